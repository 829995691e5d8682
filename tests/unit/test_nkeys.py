"""nkeys.py: the text of keys and seeds, and the sections of a creds file."""

from __future__ import annotations

import base64
import contextlib
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from jsclient._engine import nkeys
from jsclient._engine.nkeys import (
    crc16,
    decode_public,
    decode_seed,
    encode_public,
    encode_seed,
    parse_credentials,
    parse_seed,
    wipe,
)
from jsclient.errors import CredentialsError, InvalidArgumentError

KEYS = st.binary(min_size=32, max_size=32)
ROLES = st.sampled_from(sorted(nkeys.ROLES))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

RAW = bytes(range(32))
SEED = bytes(encode_seed(nkeys.USER, RAW))
JWT = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJVIn0.c2lnbmF0dXJl"

FILE = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.
NKEYs are sensitive and should be treated as secrets.

-----BEGIN USER NKEY SEED-----
{SEED.decode()}
------END USER NKEY SEED------

*************************************************************
""".encode()


def with_checksum(body: bytes) -> str:
    """The nkey text of any prefix and key, made by the standard library."""
    whole = body + crc16(body).to_bytes(2, "little")
    return base64.b32encode(whole).decode().rstrip("=")


def test_the_checksum_has_the_published_check_value() -> None:
    assert crc16(b"123456789") == 0x31C3
    assert crc16(b"") == 0


@given(ROLES, KEYS)
def test_a_public_key_is_read_as_it_was_written(role: int, raw: bytes) -> None:
    text = encode_public(role, raw)
    assert len(text) == 56
    assert text == with_checksum(bytes((role,)) + raw)
    assert decode_public(text) == (role, raw)
    assert decode_public(text.encode()) == (role, raw)


@given(ROLES, KEYS)
def test_a_seed_is_read_as_it_was_written(role: int, raw: bytes) -> None:
    text = encode_seed(role, raw)
    assert len(text) == 58
    prefix = bytes((144 | role >> 5, (role & 31) << 3))
    assert text.decode() == with_checksum(prefix + raw)
    assert decode_seed(text) == (role, bytearray(raw))


@pytest.mark.parametrize(
    ("role", "letter"),
    [
        (nkeys.ACCOUNT, "A"),
        (nkeys.CLUSTER, "C"),
        (nkeys.SERVER, "N"),
        (nkeys.OPERATOR, "O"),
        (nkeys.USER, "U"),
        (nkeys.CURVE, "X"),
    ],
)
def test_the_first_letters_tell_the_role(role: int, letter: str) -> None:
    assert encode_public(role, RAW)[0] == letter
    assert encode_seed(role, RAW)[:2].decode() == "S" + letter


def test_a_published_pair_of_seed_and_public_key_fits() -> None:
    # The pair that the server's documentation uses in its example of nkeys.
    seed = b"SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    public = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    role, raw = decode_seed(seed)
    key = Ed25519PrivateKey.from_private_bytes(raw).public_key()
    assert role == nkeys.USER
    assert encode_public(nkeys.USER, key.public_bytes_raw()) == public
    assert decode_public(public) == (nkeys.USER, key.public_bytes_raw())


@given(KEYS, st.integers(0, 57), st.sampled_from(LETTERS))
def test_every_change_of_one_letter_of_a_seed_is_noticed(
    raw: bytes, at: int, letter: str
) -> None:
    text = encode_seed(nkeys.USER, raw)
    if text[at] == ord(letter):
        return
    text[at] = ord(letter)
    with pytest.raises(CredentialsError, match="damaged: its checksum is wrong"):
        decode_seed(text)


@pytest.mark.parametrize("wrong", [b"0", b"1", b"a", b"=", b" ", b"\xff"])
def test_a_seed_with_a_foreign_letter_is_not_base32(wrong: bytes) -> None:
    with pytest.raises(CredentialsError, match="the seed is damaged: it is not base32"):
        decode_seed(SEED[:20] + wrong + SEED[21:])


@pytest.mark.parametrize("text", [b"", SEED[:-1], SEED + b"A", SEED + b"\n"])
def test_a_seed_of_another_length_is_damaged(text: bytes) -> None:
    with pytest.raises(CredentialsError, match=f"it has {len(text)} characters"):
        decode_seed(text)


def test_a_key_that_is_no_seed_is_not_taken_for_one() -> None:
    for prefix in (b"\xa0\x00", b"\x78\x00", b"\x90\x08"):
        text = with_checksum(prefix + RAW)
        with pytest.raises(CredentialsError, match="not a seed"):
            decode_seed(text.encode())


def test_a_key_that_is_not_public_is_not_taken_for_one() -> None:
    for prefix in (b"\x90", b"\x78", b"\x08"):
        with pytest.raises(CredentialsError, match="not a public key"):
            decode_public(with_checksum(prefix + RAW))


@pytest.mark.parametrize(
    "text",
    ["", "U", SEED.decode(), "\udc80" * 56, "u" * 56, encode_public(160, RAW)[::-1]],
)
def test_a_damaged_public_key_is_refused(text: str) -> None:
    with pytest.raises(CredentialsError):
        decode_public(text)


@given(st.binary(max_size=80))
def test_garbage_raises_only_credentials_errors(text: bytes) -> None:
    for function in (decode_seed, decode_public, parse_credentials, parse_seed):
        with contextlib.suppress(CredentialsError):
            function(text)


def test_a_wrong_role_or_size_is_a_wrong_call() -> None:
    with pytest.raises(InvalidArgumentError, match="7 is no nkey role"):
        encode_public(7, RAW)
    with pytest.raises(InvalidArgumentError, match="120 is no nkey role"):
        encode_seed(120, RAW)
    with pytest.raises(InvalidArgumentError, match="32 bytes, not 31"):
        encode_seed(nkeys.USER, RAW[1:])


def test_wiping_zeroes_a_buffer_in_place() -> None:
    buffer = bytearray(b"secret")
    with memoryview(buffer) as view:
        wipe(buffer)
        assert bytes(view) == bytes(6)


def test_a_creds_file_has_a_jwt_and_a_seed() -> None:
    credentials = parse_credentials(FILE)
    assert credentials.jwt == JWT
    assert credentials.seed == bytearray(SEED)
    assert parse_credentials(bytearray(FILE)).seed == bytearray(SEED)


@pytest.mark.parametrize(
    "text",
    [
        FILE.replace(b"\n", b"\r\n"),
        FILE.replace(b"\n", b"\n\n  \t\n"),
        b"\xef\xbb\xbf" + FILE,
        b"\n\n   " + FILE.replace(b"\n", b" \n   "),
        FILE.rstrip(b"*\n"),
        b"\n".join([b"---x---", JWT.encode(), b"------", b"--- ---", SEED, b"---y---"]),
        b"\n".join([b"--- seed ---", SEED, b"------", b"---jwt---"])
        + f"\n{JWT}\n------".encode(),
        f"{JWT}\n{SEED.decode()}".encode(),
        f"---JWT---\n{JWT}\n---END---\n{SEED.decode()}\n".encode(),
    ],
    ids=[
        "crlf",
        "blank lines",
        "byte order mark",
        "indented",
        "no final line end",
        "other titles",
        "seed first",
        "no sections",
        "seed without section",
    ],
)
def test_the_layout_of_a_creds_file_may_vary(text: bytes) -> None:
    credentials = parse_credentials(text)
    assert (credentials.jwt, credentials.seed) == (JWT, bytearray(SEED))


@pytest.mark.parametrize("text", [JWT, f"\r\n{JWT}\r\n", f"---JWT---\n{JWT}\n---E---"])
def test_a_file_with_only_a_jwt_is_that_of_a_bearer(text: str) -> None:
    credentials = parse_credentials(text.encode())
    assert (credentials.jwt, credentials.seed) == (JWT, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "there is no JWT"),
        (b"hello\nworld\n", "there is no JWT"),
        (SEED, "there is no JWT"),
        (FILE.split(b"***")[-2], "there is no JWT"),
        (b"---SEED---\n" + SEED + b"\n---E---\n", "there is no JWT"),
        (FILE + FILE, "more than one JWT"),
        (f"{JWT}\n{JWT}".encode(), "more than one JWT"),
        (FILE.replace(JWT.encode(), b"a.b.c\nd.e.f"), "more than one JWT"),
        (FILE + FILE[FILE.index(b"-----BEGIN USER") :], "more than one seed"),
        (FILE.replace(JWT.encode(), b"eyJ0"), "not three dotted parts"),
        (FILE.replace(b".", b" . "), "not three dotted parts"),
        (FILE.replace(JWT.encode(), b""), "the JWT section is empty"),
        (FILE.replace(SEED, b""), "the seed section is empty"),
        (FILE[: FILE.index(b"------END USER")], "the seed section has no closing line"),
        (FILE[:60], "the JWT section has no closing line"),
    ],
)
def test_what_is_wrong_with_a_creds_file_is_named(text: bytes, problem: str) -> None:
    with pytest.raises(CredentialsError, match=problem) as caught:
        parse_credentials(text)
    assert JWT not in str(caught.value)
    assert SEED.decode() not in str(caught.value)


def test_a_long_line_of_dashes_is_read_in_linear_time() -> None:
    with pytest.raises(CredentialsError, match="there is no JWT"):
        parse_credentials(b"-" * 200_000 + b"x")


@pytest.mark.parametrize(
    "text",
    [
        SEED,
        SEED + b"\n",
        b"  " + SEED + b"\r\n\r\n",
        FILE,
        b"# my key\n" + SEED + b"\n",
        b"---NKEY SEED---\n" + SEED + b"\n---END---",
    ],
)
def test_a_seed_is_found_in_its_file(text: bytes) -> None:
    assert parse_seed(text) == SEED


@pytest.mark.parametrize("text", [b"", b" \n", b"a\nb\n", f"{JWT}\n{JWT}".encode()])
def test_a_file_without_a_seed_is_named(text: bytes) -> None:
    with pytest.raises(CredentialsError, match="there is no seed"):
        parse_seed(text)


def test_a_single_line_is_taken_for_the_seed_whatever_it_is() -> None:
    assert parse_seed(b" SUBROKEN \n") == b"SUBROKEN"


def test_credentials_show_and_pickle_nothing() -> None:
    credentials = parse_credentials(FILE)
    assert repr(credentials) == "<Credentials: JWT and seed>"
    assert repr(parse_credentials(JWT.encode())) == "<Credentials: JWT without seed>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(credentials)
