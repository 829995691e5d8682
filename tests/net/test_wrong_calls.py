"""Calls that are wrong: each names its argument, and no byte of it is ever sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import jsclient
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    expect,
    handshake,
    send,
)
from tests.net.client import connected
from tests.net.frames import Frame, client_frames

# Wrong types are the point of these tests, so no argument here has one.
Wrong = tuple[str, dict[str, Any]]

BAD_LETTERS = [" ", "\t", "\r", "\n", "\x00"]
BAD_TOKENS: list[object] = [
    "",
    5,
    b"bytes",
    *(f"a{letter}b" for letter in BAD_LETTERS),
    "a\r\nPUB evil 0\r\n\r\n",
]
BAD_TIMES: list[object] = [-1, -0.001, math.nan, True, "1", b"1", [], timedelta(-1)]


async def later(_: object) -> None:
    """Nobody would await it."""


def each(argument: str, values: list[object], **others: object) -> list[Wrong]:
    return [(argument, {**others, argument: value}) for value in values]


def call_of(wrong: Wrong) -> str:
    argument, arguments = wrong
    shown = repr(arguments.get(argument))
    return f"{argument}={shown[:40]}"


PUBLISH = [
    *each("subject", [None, *BAD_TOKENS, "x" * 5000]),
    *each("reply", BAD_TOKENS, subject="a"),
    *each("reply", ["x" * 5000], subject="a"),
    *each("data", ["text", 5, None, [], memoryview(b"abcdef")[::2]], subject="a"),
    *each("timeout", BAD_TIMES, subject="a"),
    *each(
        "headers",
        [
            5,
            "K: v",
            {"K": 5},
            {"K": None},
            {"K": b"v"},
            {5: "v"},
            {"": "v"},
            {"bad key": "v"},
            {"bad:": "v"},
            {"K\r\n": "v"},
            {"K\x00": "v"},
            {"K": "x\r\nEvil: 1"},
            {"K": "x\n"},
            {"K": ["fine", "x\r"]},
            [("K",)],
            [5],
        ],
        subject="a",
    ),
]
REQUEST = [wrong for wrong in PUBLISH if wrong[0] != "reply"]
SUBSCRIBE = [
    *each("subject", [None, *BAD_TOKENS, ".a", "a.", "a..b", "a.>.b", "x" * 5000]),
    *each("queue", BAD_TOKENS, subject="a"),
    *each("callback", [5, "f", later], subject="a"),
    *each("max_pending_messages", [0, -1, 1.5, True, "1"], subject="a"),
    *each("max_pending_bytes", [0, -1, 1.5, True, "1"], subject="a"),
]
ONLY_TIMEOUT = each("timeout", BAD_TIMES)
LIMIT = each("limit", [0, -1, 1.5, True, "1", 10**9, 2**70])


def make_calls(call: Callable[..., object], wrongs: list[Wrong]) -> None:
    """Each call raises TypeError or ValueError, and the text names the argument."""
    for argument, arguments in wrongs:
        with pytest.raises((TypeError, ValueError)) as caught:
            call(**arguments)
        told = str(caught.value)
        what = "header" if argument == "headers" else argument
        assert what in told.lower(), f"{call_of((argument, arguments))}: {told}"
        # A UnicodeError would hold what was given, and no more than that text.
        assert not isinstance(caught.value, UnicodeError)


def rest(server: ScriptedServer) -> list[Frame]:
    """What came after CONNECT and the first PING."""
    return client_frames(server.received())[2:]


def test_wrong_arguments_of_a_connection_s_methods_send_nothing() -> None:
    with (
        ScriptedServer([handshake(), answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        make_calls(nc.publish, PUBLISH)
        make_calls(nc.request, REQUEST)
        make_calls(nc.subscribe, SUBSCRIBE)
        for call in (nc.flush, nc.rtt, nc.drain):
            make_calls(call, ONLY_TIMEOUT)
        with pytest.raises(TypeError, match="on_event"):
            nc.on_event = 5  # type: ignore[assignment]
        nc.flush()
        assert [frame.verb for frame in rest(server)] == [b"PING"]
        assert nc.stats().out_msgs == 0
        assert nc.is_connected


def test_wrong_arguments_of_a_subscription_s_methods_send_nothing() -> None:
    with (
        ScriptedServer([handshake(), answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        sub = nc.subscribe("a")
        for call in (sub.next, sub.messages, sub.drain):
            make_calls(call, ONLY_TIMEOUT)
        make_calls(sub.unsubscribe, LIMIT)
        nc.flush()
        assert [frame.verb for frame in rest(server)] == [b"SUB", b"PING"]
        assert sub.is_active


def test_wrong_answers_to_a_message_send_nothing() -> None:
    frames = b"MSG a 1 reply 0\r\n\r\nMSG a 1 0\r\n\r\n"
    script = [handshake(), expect(b"SUB a 1\r\n"), send(frames), answer_ping()]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        sub = nc.subscribe("a")
        asked, plain = sub.next(), sub.next()
        wrongs = [
            (argument, {k: v for k, v in arguments.items() if k != "subject"})
            for argument, arguments in PUBLISH
            if argument in ("data", "headers")
        ]
        make_calls(asked.respond, wrongs)
        with pytest.raises(ValueError, match="reply"):
            plain.respond(b"x")
        nc.flush()
        assert [frame.verb for frame in rest(server)] == [b"SUB", b"PING"]


OPTIONS = [
    *each("name", [5, b"x"]),
    *each("user", [5, b"x"]),
    *each("password", [5, b"x"], user="u"),
    *each("token", [5, b"x", ""]),
    *each("nkey_seed", [5]),
    *each("credentials", [5]),
    *each("tls", [5, "yes", None]),
    *each("tls_hostname", [5, b"x"]),
    *each("connect_timeout", [0, *BAD_TIMES]),
    *each("reconnect_wait", BAD_TIMES),
    *each("reconnect_jitter", BAD_TIMES),
    *each("ping_interval", BAD_TIMES),
    *each("max_reconnects", [-2, 1.5, True, "1"]),
    *each("max_pings_out", [0, -1, 1.5, True, None]),
    *each("reconnect_buffer", [-1, 1.5, True, None]),
    *each("write_buffer", [0, 1.5, True, None]),
    *each("inbox_prefix", [*BAD_TOKENS, None, "a.", ".a", "a..b", "a.*", ">"]),
    *each("on_event", [5, "f", later]),
    *[
        wrong
        for flag in (
            "tls_first",
            "retry_initial",
            "allow_reconnect",
            "reconnect_on_lame_duck",
            "randomize",
            "ignore_discovered",
            "ignore_auth_errors",
            "echo",
            "strict_credentials",
        )
        for wrong in each(flag, [None, 1, "yes"])
    ],
]


def test_a_wrong_option_of_connect_is_named_and_nobody_is_called() -> None:
    with ScriptedServer([handshake()]) as server:
        make_calls(lambda **options: jsclient.connect(server.url, **options), OPTIONS)
        assert server.connections == 0


@pytest.mark.parametrize(
    "servers",
    [5, b"nats://a:1", {}, [], "", ",", [5], [None], "nats://a b:1", "http://a:1"],
    ids=repr,
)
def test_servers_that_are_none_are_refused(servers: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="server"):
        jsclient.connect(servers)


@pytest.mark.parametrize("contradiction", ["token", "nkey_seed"])
def test_contradicting_credentials_are_refused(contradiction: str) -> None:
    with pytest.raises(ValueError, match=contradiction):
        jsclient.connect("nats://a:1", user="u", **{contradiction: "x"})  # type: ignore[arg-type]


def test_the_largest_payload_is_sent_and_one_byte_more_is_not() -> None:
    script = [handshake({"max_payload": 100}), answer_ping()]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        # The first request would also subscribe its inbox.
        for call in (nc.request, nc.publish):
            with pytest.raises(jsclient.MaxPayloadError, match="101"):
                call("a", b"x" * 101)
        nc.publish("a", b"y" * 100)
        nc.flush()
        assert [frame.verb for frame in rest(server)] == [b"PUB", b"PING"]


def test_buffers_are_taken_and_copied_before_publish_returns() -> None:
    with (
        ScriptedServer([handshake(), answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        changing = bytearray(b"first")
        for _ in range(2):  # the second one waits in the buffer
            nc.publish("a", changing)
        changing[:] = b"wrong"
        nc.publish("b", memoryview(b"xyz")[1:])
        nc.flush()
        bodies = [frame.body for frame in rest(server) if frame.verb == b"PUB"]
        assert bodies == [b"first", b"first", b"yz"]


def test_text_beyond_ascii_is_sent_as_utf_8() -> None:
    with (
        ScriptedServer([handshake(), answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        nc.publish("grüße.☃", "payload ☃".encode(), headers={"K": "wert ü"})
        nc.flush()
        (frame, _) = rest(server)
        assert frame.arguments.startswith("grüße.☃ ".encode())
        assert "K: wert ü\r\n".encode() in frame.body


def test_an_empty_header_map_is_no_header_at_all() -> None:
    with (
        ScriptedServer([handshake(), answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        nc.publish("a", b"x", headers={})
        nc.flush()
        assert [frame.verb for frame in rest(server)] == [b"PUB", b"PING"]


@pytest.mark.parametrize("timeout", [None, math.inf, 10**400, timedelta(days=999)])
def test_a_very_long_timeout_waits(timeout: Any) -> None:
    script = [handshake(), expect(b"SUB a 1\r\n"), send(b"MSG a 1 2\r\nhi\r\n")]
    with (
        ScriptedServer([*script, answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        assert nc.subscribe("a").next(timeout=timeout).data == b"hi"
        nc.flush(timeout=timeout)


def test_a_timeout_of_nothing_looks_and_returns() -> None:
    script = [handshake(), expect(b"SUB a 1\r\n"), send(b"MSG a 1 2\r\nhi\r\n")]
    with (
        ScriptedServer([*script, answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        sub = nc.subscribe("a")
        nc.flush()
        assert sub.next(timeout=0).data == b"hi"
        with pytest.raises(jsclient.TimeoutError):
            sub.next(timeout=0)
        assert list(sub.messages(timeout=0)) == []
        for call in (nc.flush, nc.rtt, lambda timeout: nc.request("q", timeout=0)):
            with pytest.raises(jsclient.TimeoutError):
                call(timeout=0)


def test_objects_that_belong_to_a_process_are_not_pickled() -> None:
    import pickle

    script = [handshake(), expect(b"SUB a 1\r\n"), send(b"MSG a 1 2\r\nhi\r\n")]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        sub = nc.subscribe("a")
        for thing in (nc, sub):
            with pytest.raises(TypeError, match="pickled"):
                pickle.dumps(thing)
        copy = pickle.loads(pickle.dumps(sub.next()))
        assert (copy.subject, copy.data) == ("a", b"hi")
