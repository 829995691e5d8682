"""Certificates for TLS tests, made on the spot by a CA of their own.

`write(directory)` makes all of them in a few milliseconds. Each leaf has a case that a
client must tell apart: right host, wrong host, host name without an address, expired,
for clients, and signed by itself.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT_EMAIL = "app@test"

_DAY = datetime.timedelta(days=1)
_SERVER = ExtendedKeyUsageOID.SERVER_AUTH
_CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
_LOCALHOST = x509.DNSName("localhost")
_LOOPBACK = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))


@dataclass(frozen=True, slots=True)
class Identity:
    """The PEM files of a certificate and its private key."""

    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class Certificates:
    """What `write` has made; all but `self_signed` are signed by `ca_file`."""

    ca_file: str
    server: Identity  # localhost and 127.0.0.1
    wronghost: Identity  # other.example
    nameonly: Identity  # localhost, but no address
    expired: Identity  # localhost and 127.0.0.1, ended yesterday
    client: Identity  # for clients, names CLIENT_EMAIL
    self_signed: Identity  # localhost and 127.0.0.1, no CA


@dataclass(frozen=True, slots=True)
class _Issuer:
    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def write(directory: Path) -> Certificates:
    """Make a CA and its certificates and write them to the directory as PEM files."""
    ca = _Issuer(_named("test-ca"), ec.generate_private_key(ec.SECP256R1()))
    ca_file = directory / "ca.pem"
    ca_file.write_bytes(_ca_certificate(ca))
    here = (_LOCALHOST, _LOOPBACK)
    mail = x509.RFC822Name(CLIENT_EMAIL)
    return Certificates(
        ca_file=str(ca_file),
        server=_leaf(directory, "server", ca, *here),
        wronghost=_leaf(directory, "wronghost", ca, x509.DNSName("other.example")),
        nameonly=_leaf(directory, "nameonly", ca, _LOCALHOST),
        expired=_leaf(directory, "expired", ca, *here, ends=-_DAY),
        client=_leaf(directory, "client", ca, mail, usage=_CLIENT),
        self_signed=_leaf(directory, "self_signed", None, *here),
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: _Issuer,
    ends: datetime.timedelta = _DAY,
) -> x509.CertificateBuilder:
    """What all certificates have; they begin long enough ago to have ended."""
    now = datetime.datetime.now(datetime.timezone.utc)
    issuer_key = issuer.key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now + ends)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key),
            critical=False,
        )
    )


def _ca_certificate(ca: _Issuer) -> bytes:
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(ca.name, ca.key, ca)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(ca.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _leaf(
    directory: Path,
    name: str,
    ca: _Issuer | None,
    *names: x509.GeneralName,
    usage: x509.ObjectIdentifier = _SERVER,
    ends: datetime.timedelta = _DAY,
) -> Identity:
    """Write name.pem and name.key, signed by the CA, or by itself without one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    issuer = ca or _Issuer(subject, key)
    certificate = (
        _builder(subject, key, issuer, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(issuer.key, hashes.SHA256())
    )
    cert_file = directory / f"{name}.pem"
    key_file = directory / f"{name}.key"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Identity(str(cert_file), str(key_file))
