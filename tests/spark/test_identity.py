"""Options that say who we are, and to whom we speak, each against a real server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import jsclient
from jsclient._engine import nkeys
from jsclient.server import Server, run
from jsclient.spark import connecting
from jsclient.spark.errors import OptionError
from jsclient.spark.options import ConnectionOptions, source_options
from tests import certificates
from tests.certificates import Certificates, Identity
from tests.operators import Key, Operator
from tests.spark.readers import Readers, fill, made

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def closed_after() -> Iterator[None]:
    yield
    connecting.close_all()


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.write(tmp_path_factory.mktemp("certificates"))


def options(server: Server, given: Mapping[str, str]) -> ConnectionOptions:
    """As Spark hands them over; the address has no user and demands no TLS."""
    url = f"nats://127.0.0.1:{server.port}"
    return source_options({"stream": "S", "servers": url, **given}).connection


def connects(server: Server, **given: str) -> jsclient.Connection:
    """The connection of these options, over which something was sent."""
    found = connecting.connection(options(server, given))
    found.flush()
    return found


def is_refused(server: Server, problem: str, **given: str) -> None:
    """Nobody connects with these options; none of their values is told."""
    with pytest.raises(OptionError, match=problem) as told:
        connects(server, **given)
    for name in ("token", "password", "creds", "nkey"):
        assert name not in given or given[name] not in f"{told.value!r} {told.value}"


# Who we are ---------------------------------------------------------------------------


def test_a_token_is_shown() -> None:
    with run(token="right-token") as server:
        connects(server, token="right-token")
        is_refused(server, "check user, password, token", token="wrong-token")
        is_refused(server, "check user, password, token")


def test_a_user_and_a_password_are_shown() -> None:
    with run(users={"u": "right-word"}) as server:
        connects(server, user="u", password="right-word")
        is_refused(server, "check user, password", user="u", password="wrong-word")


def test_an_nkey_is_a_seed_or_the_file_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, stranger = Key(nkeys.USER), Key(nkeys.USER)
    file = tmp_path / "Seed.nk"
    file.touch(mode=0o600)
    file.write_text(key.seed)
    monkeypatch.chdir(tmp_path)
    users = f"authorization {{ users: [ {{nkey: {key.public}}} ] }}"
    with run(config=users) as server:
        connects(server, nkey=key.seed)
        connects(server, nkey=str(file))
        connects(server, nkey="./Seed.nk")
        connects(server, nkey="Seed.nk")
        file.rename(tmp_path / "Seed")
        connects(server, nkey="Seed")
        is_refused(server, "check user, password", nkey=stranger.seed)


def test_credentials_are_a_file_or_its_content(tmp_path: Path) -> None:
    operator = Operator()
    text = operator.creds()
    file = tmp_path / "user.creds"
    file.touch(mode=0o600)
    file.write_text(text)
    with run(config=operator.config) as server:
        connects(server, creds=text)
        connects(server, creds=str(file))
        stranger = operator.creds(is_stranger=True)
        is_refused(server, "check user, password", creds=stranger)


# To whom we speak ---------------------------------------------------------------------


def tls_of(identity: Identity, **more: object) -> dict[str, object]:
    return {"cert_file": identity.cert_file, "key_file": identity.key_file, **more}


def test_a_server_is_trusted_whose_certificate_tls_ca_has_signed(
    certs: Certificates,
) -> None:
    with run(tls=tls_of(certs.server)) as server:
        assert connects(server, tlsCa=certs.ca_file).server_info.tls_required
        # That authority is nobody's business elsewhere.
        is_refused(server, "option servers: no TLS link: .*check tls", tls="true")
    with run(tls=tls_of(certs.self_signed)) as server:
        is_refused(server, "no TLS link", tlsCa=certs.ca_file)


def test_tls_that_is_demanded_is_not_given_up(
    server: Server, certs: Certificates
) -> None:
    is_refused(server, "no TLS link", tls="true")
    is_refused(server, "no TLS link", tlsCa=certs.ca_file)


def test_our_own_certificate_is_shown(certs: Certificates) -> None:
    tls = tls_of(certs.server, ca_file=certs.ca_file, verify=True)
    ours = {"tlsCert": certs.client.cert_file, "tlsKey": certs.client.key_file}
    with run(tls=tls) as server:
        connects(server, tlsCa=certs.ca_file, **ours)
        is_refused(server, "no TLS link", tlsCa=certs.ca_file)
    wrong = {"tlsCert": certs.client.cert_file, "tlsKey": certs.ca_file}
    is_refused(server, "option tlsCert: it is of no use", **wrong)


def test_the_name_in_the_certificate_may_be_another_one(certs: Certificates) -> None:
    with run(tls=tls_of(certs.nameonly)) as server:
        connects(server, tlsCa=certs.ca_file, tlsHostname="localhost")
        is_refused(server, "no TLS link", tlsCa=certs.ca_file)


def test_the_handshake_comes_first_if_told_so(certs: Certificates) -> None:
    with run(tls=tls_of(certs.server, handshake_first=True)) as server:
        connects(server, tlsCa=certs.ca_file, tlsFirst="true")
        late = {"tlsCa": certs.ca_file, "connectTimeout": "500ms"}
        is_refused(server, "option servers", **late)


# Where JetStream is -------------------------------------------------------------------

ACCOUNTS = """
    A {
        jetstream: enabled
        users: [{user: a, password: a}]
        exports: [{service: "$JS.API.>", response_type: stream}]
    }
    B {
        users: [{user: b, password: b}]
        imports: [{service: {account: A, subject: "$JS.API.>"}, to: "JSA.API.>"}]
    }
"""


def test_the_streams_of_another_account_are_read_by_its_prefix() -> None:
    with run(jetstream=True, accounts=ACCOUNTS) as server:
        url = f"nats://127.0.0.1:{server.port}"
        with jsclient.connect(url, user="a", password="a") as nc:
            js = nc.jetstream()
            made(js)
            fill(js, 10)
        readers = Readers(url)
        account = {"user": "b", "password": "b"}
        for mode in ("direct", "consumer"):
            seqs = readers.seqs(apiPrefix="JSA.API", readMode=mode, **account)
            assert seqs == list(range(1, 11))
        with pytest.raises(OptionError, match="check domain, apiPrefix"):
            readers.seqs(**account)


def test_a_domain_is_reached_by_its_name() -> None:
    with run(jetstream={"domain": "hub"}) as server:
        with jsclient.connect(server.url) as nc:
            js = nc.jetstream()
            made(js)
            fill(js, 10)
        readers = Readers(server.url)
        for mode in ("direct", "consumer"):
            assert readers.seqs(domain="hub", readMode=mode) == list(range(1, 11))
        with pytest.raises(OptionError, match="check domain, apiPrefix"):
            readers.seqs(domain="other", requestTimeout="500ms")


def test_a_user_who_may_hear_only_one_prefix_names_it() -> None:
    permissions = '{ publish: ">", subscribe: "_MINE.>" }'
    user = f"{{ user: u, password: p, permissions: {permissions} }}"
    config = f"authorization {{ users: [ {user}, {{user: all, password: p}} ] }}"
    with run(jetstream=True, config=config) as server:
        url = f"nats://127.0.0.1:{server.port}"
        with jsclient.connect(url, user="all", password="p") as nc:
            js = nc.jetstream()
            made(js)
            fill(js, 10)
        readers = Readers(url)
        given = {"user": "u", "password": "p", "inboxPrefix": "_MINE"}
        for mode in ("direct", "consumer"):
            assert readers.seqs(readMode=mode, **given) == list(range(1, 11))
        with pytest.raises(jsclient.Error, match="_INBOX"):
            readers.seqs(user="u", password="p", requestTimeout="500ms")
