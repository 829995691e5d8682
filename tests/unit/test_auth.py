"""auth.py: the CONNECT fields of every kind of credentials, and that none leaks."""

from __future__ import annotations

import base64
import copy
import hashlib
import logging
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from jsclient._engine import nkeys
from jsclient.auth import Authenticator
from jsclient.errors import (
    AuthenticationError,
    CredentialsError,
    InvalidArgumentError,
)

RAW = hashlib.sha256(b"planted").digest()
SEED = nkeys.encode_seed(nkeys.USER, RAW).decode()
KEY = Ed25519PrivateKey.from_private_bytes(RAW)
PUBLIC = nkeys.encode_public(nkeys.USER, KEY.public_key().public_bytes_raw())
JWT = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJwbGFudGVkIn0.cGxhbnRlZHNlY3JldA"
OTHER_JWT = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJvdGhlciJ9.b3RoZXI"
BEARER = f"---BEGIN JWT---\n{JWT}\n---END JWT---\n"
CREDS = f"{BEARER}\n---BEGIN NKEY SEED---\n{SEED}\n---END NKEY SEED---\n"
SECRETS = (SEED, JWT, "planted-token", "planted-password", RAW.hex())

posix_only = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
# Arguments that the annotations forbid are what some tests are about.
untyped: Callable[..., Any] = Authenticator


def signature(nonce: str) -> str:
    return base64.urlsafe_b64encode(KEY.sign(nonce.encode())).rstrip(b"=").decode()


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode())
    path.chmod(mode)
    return path


def all_of(error: BaseException | None) -> str:
    """All that an error and those behind it can show."""
    shown = ""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        shown += f"{one!s} {one!r} {one.args!r} {vars(one)!r} "
        shown += " ".join(repr(getattr(one, n, "")) for n in ("object", "filename"))
        waiting += [one.__cause__, one.__context__]
    return shown


def assert_nothing_planted(shown: str) -> None:
    for secret in SECRETS:
        assert secret not in shown
        assert secret[4:24] not in shown


# --- fields of each method


def test_without_credentials_there_are_no_fields() -> None:
    assert Authenticator().fields(None) == {}
    assert Authenticator().fields("abc") == {}


def test_user_and_password_are_sent() -> None:
    assert Authenticator(user="u", password="p").fields(None) == {
        "user": "u",
        "pass": "p",
    }


def test_an_empty_password_is_sent_and_a_missing_one_is_not() -> None:
    assert Authenticator(user="u", password="").fields(None) == {
        "user": "u",
        "pass": "",
    }
    assert Authenticator(user="u").fields(None) == {"user": "u"}


def test_a_token_is_sent() -> None:
    assert Authenticator(token="tök").fields("abc") == {"auth_token": "tök"}


def test_password_and_token_callables_are_called_on_every_attempt() -> None:
    passwords = iter(["one", "two"])
    auth = Authenticator(user="u", password=lambda: next(passwords))
    assert [auth.fields(None)["pass"] for _ in range(2)] == ["one", "two"]
    tokens = iter(["one", "two"])
    auth = Authenticator(token=lambda: next(tokens))
    assert [auth.fields(None)["auth_token"] for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize("nonce", ["abc", "PXoWU7zWAMt75FY", "é"])
def test_an_nkey_signs_the_text_of_the_nonce(nonce: str) -> None:
    fields = Authenticator(nkey_seed=SEED).fields(nonce)
    assert fields == {"nkey": PUBLIC, "sig": signature(nonce)}
    assert len(fields["sig"]) == 86
    role, raw = nkeys.decode_public(fields["nkey"])
    assert role == nkeys.USER
    assert raw == KEY.public_key().public_bytes_raw()


def test_a_nonce_that_is_no_utf8_is_signed_all_the_same() -> None:
    assert len(Authenticator(nkey_seed=SEED).fields("\ud800")["sig"]) == 86


def test_a_seed_may_be_given_in_many_ways(tmp_path: Path) -> None:
    path = write(tmp_path / "user.nk", f"# mine\r\n{SEED}\r\n")
    ways: list[Any] = [
        SEED,
        f" {SEED}\n",
        SEED.encode(),
        bytearray(SEED.encode()),
        path,
        lambda: SEED,
        lambda: SEED.encode(),
        lambda: bytearray(SEED.encode()),
    ]
    for way in ways:
        fields = Authenticator(nkey_seed=way).fields("abc")
        assert fields == {"nkey": PUBLIC, "sig": signature("abc")}


def test_credentials_may_be_given_in_many_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "user.creds", CREDS)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("PLANTED_FOLDER", str(tmp_path))
    ways: list[Any] = [
        str(path),
        path,
        "~/user.creds",
        Path("~/user.creds"),
        "$PLANTED_FOLDER/user.creds",
        CREDS.encode(),
        CREDS.replace("\n", "\r\n").encode(),
        bytearray(CREDS.encode()),
        lambda: CREDS,
        lambda: CREDS.encode(),
    ]
    for way in ways:
        fields = Authenticator(credentials=way).fields("abc")
        assert fields == {"jwt": JWT, "sig": signature("abc")}


def test_a_bearer_jwt_is_sent_without_a_signature(tmp_path: Path) -> None:
    path = write(tmp_path / "bearer.creds", BEARER)
    for nonce in (None, "", "abc"):
        assert Authenticator(credentials=path).fields(nonce) == {"jwt": JWT}
        assert Authenticator(credentials=JWT.encode()).fields(nonce) == {"jwt": JWT}


def test_a_creds_file_is_read_again_on_every_attempt(tmp_path: Path) -> None:
    path = write(tmp_path / "user.creds", CREDS)
    auth = Authenticator(credentials=path)
    assert auth.fields("abc")["jwt"] == JWT
    write(path, CREDS.replace(JWT, OTHER_JWT))
    assert auth.fields("abc")["jwt"] == OTHER_JWT
    path.unlink()
    with pytest.raises(CredentialsError, match="cannot read"):
        auth.fields("abc")


def test_the_callers_buffers_are_left_alone() -> None:
    seed = bytearray(SEED.encode())
    auth = Authenticator(nkey_seed=lambda: seed)
    assert auth.fields("abc") == auth.fields("abc")
    assert seed == SEED.encode()


@pytest.mark.parametrize("nonce", [None, ""])
def test_a_signature_needs_a_nonce(nonce: str | None) -> None:
    for auth in (
        Authenticator(nkey_seed=SEED),
        Authenticator(credentials=CREDS.encode()),
    ):
        with pytest.raises(
            AuthenticationError, match="nkeys not supported by this server"
        ) as caught:
            auth.fields(nonce)
        assert_nothing_planted(all_of(caught.value))


# --- user information of the URL


def test_user_information_of_the_url_replaces_the_options() -> None:
    def never() -> str:
        raise AssertionError("called in vain")

    url = {"user": "url", "password": ""}
    expected = {"user": "url", "pass": ""}
    assert Authenticator(user="u", password=never).fields("abc", **url) == expected
    assert Authenticator(token=never).fields("abc", **url) == expected
    assert Authenticator(nkey_seed=never).fields("abc", **url) == expected
    assert Authenticator(user="u", password=never).fields(None, token="tok@en") == {
        "auth_token": "tok@en"
    }


def test_credentials_apply_beside_user_information_and_tokens() -> None:
    auth = Authenticator(credentials=CREDS.encode())
    assert auth.fields("abc", user="u", password="p") == {
        "user": "u",
        "pass": "p",
        "jwt": JWT,
        "sig": signature("abc"),
    }
    auth = Authenticator(credentials=BEARER.encode(), token="t")
    assert auth.fields("abc") == {"auth_token": "t", "jwt": JWT}


# --- wrong calls


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"credentials": b"x", "nkey_seed": "x"}, ["credentials", "nkey_seed"]),
        ({"token": "t", "user": "u"}, ["token", "user"]),
        ({"token": "t", "password": "p"}, ["token", "password"]),
        ({"token": "t", "nkey_seed": SEED}, ["token", "nkey_seed"]),
        ({"user": "u", "nkey_seed": SEED}, ["user", "nkey_seed"]),
        ({"password": "p"}, ["password", "user"]),
        ({"password": "p", "credentials": b"x"}, ["password", "user"]),
        ({"user": ""}, ["user"]),
        ({"token": ""}, ["token"]),
    ],
)
def test_contradictions_are_refused_by_name(
    arguments: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Authenticator(**arguments)
    for name in named:
        assert name in str(caught.value)
    assert_nothing_planted(all_of(caught.value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", b"u"),
        ("user", lambda: "u"),
        ("password", b"planted-password"),
        ("token", b"planted-token"),
        ("token", 5),
        ("nkey_seed", 5),
        ("nkey_seed", ["SU"]),
        ("credentials", 5),
        ("credentials", memoryview(b"x")),
        ("strict_credentials", "yes"),
    ],
)
def test_a_wrong_type_is_refused_by_name(name: str, value: object) -> None:
    arguments = {"user": "u"} if name == "password" else {}
    with pytest.raises(TypeError, match=f"^{name} must be") as caught:
        untyped(**arguments, **{name: value})
    assert_nothing_planted(all_of(caught.value))


def test_a_path_of_bytes_is_refused() -> None:
    class BytesPath:
        def __fspath__(self) -> bytes:
            return b"/tmp/x"

    with pytest.raises(TypeError, match="credentials must be a path of text"):
        untyped(credentials=BytesPath())


@pytest.mark.parametrize(
    "arguments",
    [
        {"user": "planted-password\ud800"},
        {"user": "u", "password": "planted-password\ud800"},
        {"token": "planted-token\udfff"},
    ],
)
def test_text_that_utf8_cannot_carry_is_refused_unseen(
    arguments: dict[str, str],
) -> None:
    with pytest.raises(CredentialsError, match="UTF-8 cannot carry") as caught:
        untyped(**arguments)
    assert_nothing_planted(all_of(caught.value))


@pytest.mark.parametrize(
    "seed", ["/run/user.nk", "Seeds/user.nk", PUBLIC, SEED[:-1], SEED[:-1] + "\ud800"]
)
def test_a_str_that_is_no_seed_says_how_to_name_a_file(seed: str) -> None:
    with pytest.raises(CredentialsError, match=r"pathlib\.Path") as caught:
        Authenticator(nkey_seed=seed)
    assert_nothing_planted(all_of(caught.value))


@pytest.mark.parametrize(
    ("argument", "content"),
    [
        ("credentials", CREDS),
        ("credentials", JWT),
        ("credentials", SEED),
        ("credentials", f"{SEED}\n"),
        ("credentials", Path(SEED)),
        ("nkey_seed", Path(SEED)),
        ("credentials", f"x\n{CREDS}"),
    ],
)
def test_content_in_place_of_a_path_is_refused_unseen(
    argument: str, content: object
) -> None:
    with pytest.raises(CredentialsError, match="looks like content") as caught:
        untyped(**{argument: content})
    assert_nothing_planted(all_of(caught.value))


def test_content_in_an_expanded_variable_is_refused_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLANTED_CREDS", CREDS)
    auth = Authenticator(credentials="$PLANTED_CREDS")
    with pytest.raises(CredentialsError, match="looks like content") as caught:
        auth.fields("abc")
    assert_nothing_planted(all_of(caught.value))


# --- what can be wrong with credentials

ACCOUNT_SEED = nkeys.encode_seed(nkeys.ACCOUNT, RAW).decode()
FLIPPED_SEED = SEED[:30] + ("A" if SEED[30] != "A" else "B") + SEED[31:]
DAMAGED = [
    (CREDS.replace(SEED, FLIPPED_SEED), "its checksum is wrong"),
    (CREDS.replace(SEED, SEED[:30] + "1" + SEED[31:]), "it is not base32"),
    (CREDS.replace(SEED, SEED[:-1]), "it has 57 characters"),
    (CREDS.replace(SEED, ACCOUNT_SEED), "a key for account, not for user"),
    (CREDS.replace(SEED, ""), "the seed section is empty"),
    (CREDS + CREDS, "more than one JWT"),
    (CREDS.replace(JWT, JWT[:20]), "the JWT is damaged"),
    (SEED, "there is no JWT"),
    ("", "there is no JWT"),
]


@pytest.mark.parametrize(("text", "problem"), DAMAGED)
def test_damaged_credentials_are_named_without_content(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = write(tmp_path / "user.creds", text)
    from_file = Authenticator(credentials=path)
    from_callable = Authenticator(credentials=lambda: text)
    attempts: list[tuple[str, Callable[[], object]]] = [
        (str(path), lambda: from_file.fields("abc")),
        ("the credentials callable", lambda: from_callable.fields("abc")),
        ("credentials", lambda: Authenticator(credentials=text.encode())),
    ]
    for place, attempt in attempts:
        with pytest.raises(CredentialsError, match=problem) as caught:
            attempt()
        assert place in str(caught.value)
        assert_nothing_planted(all_of(caught.value))


def test_a_damaged_seed_is_refused_at_once() -> None:
    for seed in (FLIPPED_SEED, FLIPPED_SEED.encode(), ACCOUNT_SEED, b"", b"/a/path"):
        with pytest.raises(CredentialsError, match="nkey_seed") as caught:
            Authenticator(nkey_seed=seed)
        assert_nothing_planted(all_of(caught.value))


@pytest.mark.parametrize("argument", ["credentials", "nkey_seed"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, argument: str) -> None:
    for path in (tmp_path / "missing.creds", tmp_path, tmp_path / "nul\0"):
        auth = untyped(**{argument: path})
        with pytest.raises(CredentialsError, match="cannot read the") as caught:
            auth.fields("abc")
        assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    exact = CREDS + "\n" * ((1 << 20) - len(CREDS))
    path = write(tmp_path / "large.creds", exact)
    auth = Authenticator(credentials=path)
    assert auth.fields("abc")["jwt"] == JWT
    write(path, exact + "\n")
    with pytest.raises(CredentialsError, match="larger than 1048576 bytes"):
        auth.fields("abc")


def test_a_callable_that_fails_is_named_and_its_error_chained() -> None:
    class VaultSealedError(Exception):
        pass

    def fail() -> str:
        raise VaultSealedError("come back later")

    for auth in (
        Authenticator(user="u", password=fail),
        Authenticator(token=fail),
        Authenticator(nkey_seed=fail),
        Authenticator(credentials=fail),
    ):
        with pytest.raises(
            CredentialsError, match=r"callable raised VaultSealedError$"
        ) as caught:
            auth.fields("abc")
        assert isinstance(caught.value.__cause__, VaultSealedError)


@pytest.mark.parametrize("name", ["password", "token", "nkey_seed", "credentials"])
def test_a_callable_that_returns_another_type_is_named(name: str) -> None:
    arguments = {"user": "u"} if name == "password" else {}
    auth = untyped(**arguments, **{name: lambda: 5})
    with pytest.raises(CredentialsError, match=f"the {name} callable must return"):
        auth.fields("abc")


def test_a_token_callable_that_returns_nothing_is_named() -> None:
    with pytest.raises(CredentialsError, match="token callable returned an empty str"):
        Authenticator(token=lambda: "").fields(None)


def test_a_missing_cryptography_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auth = Authenticator(nkey_seed=SEED)
    monkeypatch.setitem(
        sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None
    )
    with pytest.raises(
        CredentialsError, match=r"pip install 'jsclient\[nkeys\]'"
    ) as caught:
        auth.fields("abc")
    assert_nothing_planted(all_of(caught.value))
    assert Authenticator(credentials=BEARER.encode()).fields("abc") == {"jwt": JWT}


def test_cryptography_is_imported_only_to_sign() -> None:
    code = """
        import sys
        from jsclient.auth import Authenticator
        Authenticator(token="t").fields("abc")
        Authenticator(nkey_seed=sys.argv[1])
        assert "cryptography" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), SEED], check=True)


# --- files that others may read


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@posix_only
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o611, 0o622, 0o700])
def test_a_file_of_the_user_alone_is_no_matter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = write(tmp_path / "user.creds", CREDS, mode)
    assert Authenticator(credentials=path, strict_credentials=True).fields("abc")
    assert warnings_of(caplog) == []


@posix_only
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o777])
@pytest.mark.parametrize("argument", ["credentials", "nkey_seed"])
def test_a_file_that_others_may_read_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, argument: str
) -> None:
    path = write(tmp_path / "user.creds", CREDS, mode)
    auth = untyped(**{argument: path})
    for _ in range(3):
        assert auth.fields("abc")["sig"] == signature("abc")
    (warning,) = warnings_of(caplog)
    assert caplog.records[0].name == "jsclient"
    assert str(path) in warning
    assert f"{mode:04o}" in warning
    assert_nothing_planted(warning)


@posix_only
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
@pytest.mark.parametrize("argument", ["credentials", "nkey_seed"])
def test_strict_credentials_refuse_a_file_that_others_may_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, argument: str
) -> None:
    path = write(tmp_path / "user.creds", CREDS, mode)
    auth = untyped(**{argument: path}, strict_credentials=True)
    with pytest.raises(CredentialsError, match="can be read by other users") as caught:
        auth.fields("abc")
    assert warnings_of(caplog) == []
    assert_nothing_planted(all_of(caught.value))
    path.chmod(0o600)
    assert auth.fields("abc")["sig"] == signature("abc")


# --- nothing leaks


def every_kind(tmp_path: Path) -> list[tuple[Authenticator, str]]:
    path = write(tmp_path / "user.creds", CREDS)
    return [
        (Authenticator(), "nothing"),
        (Authenticator(user="u", password="planted-password"), "user, password"),
        (Authenticator(token="planted-token"), "token"),
        (Authenticator(token=lambda: "planted-token"), "token"),
        (Authenticator(nkey_seed=SEED), "nkey seed"),
        (Authenticator(nkey_seed=path), "nkey seed file 'user.creds'"),
        (Authenticator(nkey_seed=lambda: SEED), "nkey seed callable"),
        (Authenticator(credentials=CREDS.encode()), "credentials"),
        (Authenticator(credentials=path), "credentials file 'user.creds'"),
        (Authenticator(credentials=lambda: CREDS), "credentials callable"),
        (
            Authenticator(token="planted-token", credentials=path),
            "token, credentials file 'user.creds'",
        ),
    ]


def test_the_repr_tells_the_kind_and_no_more(tmp_path: Path) -> None:
    for auth, kind in every_kind(tmp_path):
        assert auth.fields("abc") is not None
        assert repr(auth) == str(auth) == f"<Authenticator: {kind}>"


def test_the_attributes_show_no_content(tmp_path: Path) -> None:
    for auth, _ in every_kind(tmp_path):
        auth.fields("abc")
        assert not hasattr(auth, "__dict__")
        shown = [repr(getattr(auth, name)) for name in Authenticator.__slots__]
        assert_nothing_planted(" ".join(shown))


def test_an_authenticator_cannot_be_pickled_or_copied(tmp_path: Path) -> None:
    for auth, _ in every_kind(tmp_path):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="path of a credentials file"):
                pickle.dumps(auth, protocol)
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copy.deepcopy(auth)


def test_nothing_is_logged_of_what_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for auth, _ in every_kind(tmp_path):
            auth.fields("abc")
    assert_nothing_planted(" ".join(r.getMessage() for r in caplog.records))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/mem")
@pytest.mark.parametrize("argument", ["credentials", "nkey_seed"])
def test_no_copy_of_a_seed_from_a_file_stays_in_memory(
    tmp_path: Path, argument: str
) -> None:
    # The child is told the seed reversed, so that it finds only copies and the needle.
    code = """
        import sys
        from pathlib import Path
        from jsclient.auth import Authenticator

        def copies(reversed_needle):
            needle, found = bytearray(reversed_needle), 0
            needle.reverse()
            with open("/proc/self/maps") as maps:
                lines = maps.readlines()
            with open("/proc/self/mem", "rb", 0) as memory:
                for line in lines:
                    span, access = line.split()[:2]
                    if not access.startswith("rw"):
                        continue
                    start, end = (int(x, 16) for x in span.split("-"))
                    memory.seek(start)
                    region = bytearray(end - start)
                    memory.readinto(region)
                    found += region.count(needle)
                    region[:] = bytes(len(region))
            needle[:] = bytes(len(needle))
            return found

        auth = Authenticator(**{sys.argv[1]: Path(sys.argv[2])})
        text, raw = (bytes.fromhex(x) for x in sys.argv[3:])
        planted = [bytearray(text), bytearray(raw)]
        for one in planted:
            one.reverse()
        print(copies(text), copies(raw))
        for one in planted:
            one[:] = bytes(len(one))
        assert auth.fields("abc")["sig"] and auth.fields("def")["sig"]
        print(copies(text), copies(raw))
    """
    path = write(tmp_path / "user.creds", CREDS)
    needles = [SEED[8:48].encode()[::-1].hex(), RAW[4:28][::-1].hex()]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), argument, path, *needles],
        check=True,
        capture_output=True,
        text=True,
    )
    planted, left = done.stdout.splitlines()
    assert planted == "2 2"  # the needle and what was planted to try the scan
    assert left == "1 1"  # the needle
