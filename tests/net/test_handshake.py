"""INFO, CONNECT, PING, PONG: how a link begins, and how it fails to."""

from __future__ import annotations

import re
import time

import pytest

import jsclient
from tests.harness.scripted import (
    Script,
    ScriptedServer,
    answer_ping,
    close,
    expect,
    expect_close,
    handshake,
    info_line,
    reset,
    send,
    trickle,
    wait,
)
from tests.net.client import TIMEOUT, Recorder, connected

CONNECT = re.compile(rb"CONNECT \{[^\r\n]*\}\r\nPING\r\n")

# What CONNECT may hold without credentials, name included.
FIELDS = {
    "verbose",
    "pedantic",
    "tls_required",
    "lang",
    "version",
    "protocol",
    "headers",
    "no_responders",
    "echo",
    "name",
}


def test_the_first_bytes_are_connect_and_ping_and_nothing_else() -> None:
    with ScriptedServer([handshake()]) as server, connected(server.url):
        assert CONNECT.fullmatch(server.received())


def test_connect_holds_the_listed_fields_and_no_others() -> None:
    with ScriptedServer([handshake()]) as server:
        with connected(server.url, name="me"):
            pass
        (fields,) = server.connects
    assert set(fields) == FIELDS
    assert fields["name"] == "me"
    assert fields["verbose"] is False
    assert fields["pedantic"] is False
    assert fields["protocol"] == 1
    assert fields["echo"] is True
    assert fields["tls_required"] is False
    assert fields["version"] == jsclient.__version__


@pytest.mark.parametrize("supported", [True, False])
def test_headers_and_no_responders_are_what_info_says(supported: bool) -> None:
    with ScriptedServer([handshake({"headers": supported})]) as server:
        with connected(server.url):
            pass
        (fields,) = server.connects
    assert fields["headers"] is supported
    assert fields["no_responders"] is supported


def test_echo_is_only_turned_off_on_servers_that_know_it() -> None:
    scripts = [[handshake()], [handshake({"proto": 0})]]
    for script, echo in zip(scripts, (False, True), strict=True):
        with ScriptedServer(script) as server:
            with connected(server.url, echo=False):
                pass
            assert server.connects[0]["echo"] is echo


@pytest.mark.parametrize(
    ("userinfo", "expected"),
    [
        ("tok%40en@", {"auth_token": "tok@en"}),
        ("u:@", {"user": "u", "pass": ""}),
        ("us%3Aer:p%2Fw@", {"user": "us:er", "pass": "p/w"}),
    ],
)
def test_user_information_of_the_url_goes_into_connect(
    userinfo: str, expected: dict[str, str]
) -> None:
    with ScriptedServer([handshake()]) as server:
        with connected(f"nats://{userinfo}127.0.0.1:{server.port}"):
            pass
        (fields,) = server.connects
    assert {key: fields.get(key) for key in expected} == expected
    assert set(fields) - FIELDS == set(expected)


def test_options_reach_connect_and_a_callable_is_asked_for_each_link() -> None:
    passwords = iter(["first", "second"])
    script: Script = [handshake(), close()]
    with ScriptedServer(script, [handshake()]) as server:
        recorder = Recorder()
        with connected(
            server.url, user="u", password=lambda: next(passwords), on_event=recorder
        ):
            recorder.wait_for(jsclient.Reconnected)
        assert [fields["pass"] for fields in server.connects] == ["first", "second"]


def test_info_may_come_byte_by_byte_and_end_with_a_space() -> None:
    script = [trickle(info_line()), expect(CONNECT), trickle(b"PONG\r\n")]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        assert nc.is_connected
        assert nc.server_info.server_name == "scripted"


def test_ok_before_pong_is_taken() -> None:
    script = [send(info_line()), expect(CONNECT), send(b"+OK\r\n+OK\r\nPONG\r\n")]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        assert nc.is_connected


def test_what_follows_the_pong_in_its_segment_belongs_to_the_session() -> None:
    later = info_line({"max_payload": 4321, "connect_info": True})
    script = [
        send(info_line()),
        expect(CONNECT),
        send(b"PONG\r\n" + later + b"PING\r\n"),
        answer_ping(),
    ]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        nc.flush(timeout=5.0)
        server.wait_for(b"PONG\r\n")
        assert nc.max_payload == 4321
        server.finish()


def test_the_pong_of_the_handshake_does_not_answer_the_first_flush() -> None:
    script = [handshake(), expect(b"PING\r\n"), wait("end")]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        with pytest.raises(jsclient.TimeoutError):
            nc.flush(timeout=0.2)
        server.release("end")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([expect_close()], id="no INFO"),
        pytest.param([send(b"INFO {"), expect_close()], id="half of INFO"),
        pytest.param(
            [send(info_line()), expect(CONNECT), expect_close()], id="no PONG"
        ),
        pytest.param(
            [
                send(info_line()),
                expect(CONNECT),
                expect_close(),
                send(b"PONG\r\n", may_fail=True),
            ],
            id="PONG after the time-out",
        ),
    ],
)
def test_a_silent_server_costs_the_time_out_and_nothing_more(script: Script) -> None:
    with ScriptedServer(script) as server:
        start = time.monotonic()
        with pytest.raises(jsclient.ConnectTimeoutError) as caught:
            connected(server.url, connect_timeout=0.2)
        assert time.monotonic() - start < TIMEOUT
        assert server.url in str(caught.value)
        server.finish()


def test_a_silent_server_leaves_time_for_the_next_one() -> None:
    with (
        ScriptedServer([expect_close()]) as silent,
        ScriptedServer([handshake()]) as server,
        connected([silent.url, server.url], connect_timeout=0.6) as nc,
    ):
        assert nc.connected_url == server.url
        silent.finish()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        pytest.param([close()], jsclient.ConnectionError, id="closed at once"),
        pytest.param([reset()], jsclient.ConnectionError, id="reset at once"),
        pytest.param(
            [send(info_line()), expect(CONNECT), close()],
            jsclient.ConnectionError,
            id="closed after CONNECT",
        ),
        pytest.param(
            [send(b"PONG\r\n"), expect_close()], jsclient.ProtocolError, id="PONG first"
        ),
        pytest.param(
            [send(b"MSG a 1 2\r\nhi\r\n"), expect_close()],
            jsclient.ProtocolError,
            id="MSG first",
        ),
        pytest.param(
            [send(b"SSH-2.0-OpenSSH_9.9\r\n"), expect_close()],
            jsclient.ProtocolError,
            id="another protocol",
        ),
        pytest.param(
            [send(b"INFO hello\r\n"), expect_close()],
            jsclient.ProtocolError,
            id="INFO is no JSON",
        ),
        pytest.param(
            [send(b"INFO []\r\n"), expect_close()],
            jsclient.ProtocolError,
            id="INFO is no object",
        ),
        pytest.param(
            [send(info_line({"max_payload": 10**30})), expect_close()],
            jsclient.ProtocolError,
            id="INFO with a number beyond all bounds",
        ),
        pytest.param(
            [send(b"INFO {" + b" " * (2 << 20), may_fail=True), expect_close()],
            jsclient.ProtocolError,
            id="INFO without an end",
        ),
        pytest.param(
            [send(b"-ERR 'maximum connections exceeded'\r\n"), close()],
            jsclient.ServerLimitError,
            id="-ERR instead of INFO",
        ),
        pytest.param(
            [
                send(info_line()),
                expect(CONNECT),
                send(b"-ERR 'Authorization Violation'\r\n"),
                close(),
            ],
            jsclient.AuthorizationError,
            id="not authorized",
        ),
        pytest.param(
            [
                send(info_line()),
                expect(CONNECT),
                send(b"-ERR 'Something New'\r\n"),
                close(),
            ],
            jsclient.ServerError,
            id="unknown -ERR",
        ),
        pytest.param(
            [send(info_line()), expect(CONNECT), send(b"WHAT\r\n"), expect_close()],
            jsclient.ProtocolError,
            id="garbage instead of PONG",
        ),
    ],
)
def test_a_handshake_that_fails_says_why_and_names_the_server(
    script: Script, kind: type[Exception]
) -> None:
    with ScriptedServer(script) as server:
        with pytest.raises(kind) as caught:
            connected(server.url)
        assert f"127.0.0.1:{server.port}" in str(caught.value)
        server.finish()


def test_a_refusal_is_raised_only_after_all_servers_were_asked() -> None:
    refusal = [
        send(info_line()),
        expect(CONNECT),
        send(b"-ERR 'Authorization Violation'\r\n"),
        close(),
    ]
    with (
        ScriptedServer(refusal) as first,
        ScriptedServer([handshake()]) as second,
        connected([first.url, second.url]) as nc,
    ):
        assert nc.connected_url == second.url


def test_nobody_listening_is_told_with_each_server_s_answer() -> None:
    with ScriptedServer([close()]) as used, pytest.raises(jsclient.ConnectionError):
        connected(used.url)
    # The port is free again now.
    with pytest.raises(jsclient.NoServersError) as caught:
        connected([used.url, used.url.replace("127.0.0.1", "localhost")])
    assert len(caught.value.attempts) == 2
    assert used.url in str(caught.value)


def test_retry_initial_returns_at_once_and_connects_later() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([close()], [close()], [handshake()]) as server,
        connected(server.url, retry_initial=True, on_event=recorder) as nc,
    ):
        assert recorder.wait_for(jsclient.Connected).server == server.url
        assert nc.is_connected
        assert "Reconnected" not in recorder.kinds
