"""Secrets reach the server and nothing else: no repr, log, event, error, traceback."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jsclient
from jsclient._engine import nkeys
from tests.harness.scripted import (
    Script,
    ScriptedServer,
    close,
    expect,
    expect_close,
    handshake,
    info_line,
    send,
)
from tests.net.client import Recorder, connected

SEED = nkeys.encode_seed(nkeys.USER, bytes(range(32))).decode()
JWT = "eyJ0eXAiOiJKV1QifQ.eyJwbGFudGVkIjoiand0In0.c2lnbmF0dXJl"
PASSWORD = "planted-password-Xk3"
TOKEN = "planted-token-Qz7"
USER = "planted-user-Wv9"
PLANTED = (PASSWORD, TOKEN, USER, SEED, JWT, "planted")
CREDS = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------
"""

# A way to say who we are: options and what stands before the host in the URL.
Way = tuple[dict[str, Any], str]


@pytest.fixture
def creds(tmp_path: Path) -> Path:
    path = tmp_path / "user.creds"
    path.write_text(CREDS)
    path.chmod(0o600)
    return path


def ways(creds: Path) -> dict[str, Way]:
    return {
        "user and password": ({"user": USER, "password": PASSWORD}, ""),
        "password by callable": ({"user": USER, "password": lambda: PASSWORD}, ""),
        "token": ({"token": TOKEN}, ""),
        "URL with password": ({}, f"{USER}:{PASSWORD}@"),
        "URL with token": ({}, f"{TOKEN}@"),
        "seed": ({"nkey_seed": SEED}, ""),
        "creds": ({"credentials": creds}, ""),
        "creds as bytes": ({"credentials": CREDS.encode()}, ""),
    }


def inside(thing: object) -> Iterator[str]:
    """Everything that an object shows of itself when it is printed or looked into."""
    yield repr(thing)
    yield str(thing)
    if hasattr(thing, "__dict__"):
        yield repr(vars(thing))
    for name in getattr(type(thing), "__slots__", ()):
        yield repr(getattr(thing, name, None))
    if isinstance(thing, BaseException):
        yield repr(thing.args)
        yield "".join(traceback.format_exception(thing))
        for other in (thing.__cause__, thing.__context__):
            if other is not None:
                yield from inside(other)
        for _, attempt in getattr(thing, "attempts", ()):
            yield from inside(attempt)
    if isinstance(thing, jsclient.Event):
        error = getattr(thing, "error", None)
        if error is not None:
            yield from inside(error)


def shown_by(record: logging.LogRecord) -> Iterator[str]:
    yield record.getMessage()
    yield repr(record.args)
    yield repr(vars(record))
    if record.exc_info and record.exc_info[1] is not None:
        yield from inside(record.exc_info[1])


def assert_clean(texts: Iterator[str]) -> None:
    for text in texts:
        for secret in PLANTED:
            assert secret not in text


def test_a_whole_life_shows_no_secret(
    creds: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = [
        send(info_line({"nonce": "abcdefghijklmno"})),
        expect(b"PING\r\n"),
        send(b"-ERR 'Authorization Violation'\r\n"),
        close(),
    ]
    first = [
        handshake({"nonce": "abcdefghijklmno"}),
        expect(b"SUB a 1\r\n"),
        send(b"HELLO\r\n"),
        expect_close(),
    ]
    caplog.set_level(logging.DEBUG)
    for options, userinfo in ways(creds).values():
        recorder = Recorder()
        with ScriptedServer(first, [close()], refused, refused) as server:
            nc = connected(
                f"nats://{userinfo}127.0.0.1:{server.port}",
                on_event=recorder,
                **options,
            )
            sub = nc.subscribe("a")
            recorder.wait_for(jsclient.Closed)
            with pytest.raises(jsclient.ConnectionClosedError) as caught:
                nc.publish("a")
            things: list[object] = [
                nc,
                sub,
                nc.stats(),
                nc.server_info,
                nc.servers,
                nc.status,
                nc.connected_url,
                nc.last_error,
                caught.value,
                *recorder.told,
            ]
            for thing in things:
                assert_clean(inside(thing))
            (fields, *_) = server.connects
            assert {"pass", "auth_token", "sig"} & set(fields)
        nc.close()
    for record in caplog.records:
        assert_clean(shown_by(record))
    assert len(caplog.records) > 8
    caplog.clear()


SCRIPTS: dict[str, Script] = {
    "closed": [close()],
    "refused": [
        send(info_line({"nonce": "abcdefghijklmno"})),
        expect(b"PING\r\n"),
        send(b"-ERR 'Authorization Violation'\r\n"),
        close(),
    ],
    "broken": [send(b"HELLO\r\n"), expect_close()],
    "without a nonce": [send(info_line()), close()],
    "with TLS": [send(info_line({"tls_required": True})), close()],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_failed_connect_shows_no_secret(
    creds: Path, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for options, userinfo in ways(creds).values():
        with ScriptedServer(script) as server:
            url = f"nats://{userinfo}127.0.0.1:{server.port}"
            with pytest.raises(jsclient.Error) as caught:
                connected(url, **options)
            assert_clean(inside(caught.value))
    for record in caplog.records:
        assert_clean(shown_by(record))


@pytest.mark.parametrize(
    "connect",
    [
        pytest.param(lambda: jsclient.connect(f"nats://{USER}:{PASSWORD}@h:x"), id="1"),
        pytest.param(lambda: jsclient.connect(f"nats://{USER}:{PASSWORD}@"), id="2"),
        pytest.param(lambda: jsclient.connect(f"http://{TOKEN}@h:1"), id="3"),
        pytest.param(lambda: jsclient.connect(f"nats://{TOKEN}@h:1/path"), id="4"),
        pytest.param(lambda: jsclient.connect(f"nats://{PASSWORD}"), id="5"),
        pytest.param(lambda: jsclient.connect(f"nats://u:{PASSWORD}/x@h:1"), id="6"),
        pytest.param(
            lambda: jsclient.connect("nats://h:1", nkey_seed=SEED[:-1]), id="7"
        ),
        pytest.param(
            lambda: jsclient.connect("nats://h:1", nkey_seed=SEED.lower()), id="8"
        ),
        pytest.param(lambda: jsclient.connect("nats://h:1", credentials=CREDS), id="9"),
        pytest.param(
            lambda: jsclient.connect("nats://h:1", credentials=CREDS[:-90].encode()),
            id="10",
        ),
        pytest.param(
            lambda: jsclient.connect("nats://h:1", user=USER, token=TOKEN), id="11"
        ),
        pytest.param(
            lambda: jsclient.connect("nats://h:1", token="\ud800" + TOKEN), id="12"
        ),
    ],
)
def test_a_wrong_call_with_secrets_shows_none(
    connect: Callable[[], jsclient.Connection],
) -> None:
    with pytest.raises((ValueError, TypeError, jsclient.Error)) as caught:
        connect()
    shown = "".join(inside(caught.value))
    # The traceback quotes this file, which names the constants and not their values.
    for secret in (PASSWORD, TOKEN, SEED, JWT):
        assert secret not in shown


def test_a_callable_that_raises_shows_its_own_words_only() -> None:
    def password() -> str:
        held = PASSWORD
        raise RuntimeError(f"the vault of {len(held)} bytes is closed")

    with ScriptedServer([send(info_line()), expect_close()]) as server:
        with pytest.raises(jsclient.CredentialsError) as caught:
            connected(server.url, user="me", password=password)
        shown = "".join(inside(caught.value))
        assert PASSWORD not in shown
        assert "the vault" in shown
