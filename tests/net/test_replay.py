"""What a new link is told: subscriptions first, then what was published meanwhile."""

from __future__ import annotations

import contextlib
import re

import pytest

import jsclient
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    close,
    expect,
    handshake,
    send,
    wait,
)
from tests.net.client import Recorder, connected
from tests.net.frames import client_frames

GREETING = re.compile(rb"CONNECT [^\r\n]*\r\nPING\r\n")


def said_after_greeting(server: ScriptedServer, connection: int) -> bytes:
    """What the client said after CONNECT and the first PING."""
    said = server.received(connection)
    greeting = GREETING.match(said)
    assert greeting is not None
    return said[greeting.end() :]


def test_subscriptions_are_replayed_in_order_with_their_sids() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), answer_ping(), close()], [handshake(), answer_ping()]
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        subs = [
            nc.subscribe("a.*"),
            nc.subscribe("gone"),
            nc.subscribe("b.>", queue="workers"),
            nc.subscribe("c"),
        ]
        subs[1].unsubscribe()
        nc.flush()
        recorder.wait_for(jsclient.Reconnected)
        nc.flush()
        assert said_after_greeting(server, 1) == (
            b"SUB a.* 1\r\nSUB b.> workers 3\r\nSUB c 4\r\nPING\r\n"
        )


def test_an_auto_unsubscribe_is_replayed_with_what_is_left_of_it() -> None:
    two = b"MSG a 1 1\r\n0\r\nMSG a 1 1\r\n1\r\n"
    three = b"".join(b"MSG a 1 1\r\n%d\r\n" % number for number in (2, 3, 4, 5))
    with (
        ScriptedServer(
            [handshake(), expect(b"UNSUB 1 5\r\n"), send(two), wait("cut"), close()],
            [handshake(), expect(b"SUB a 1\r\nUNSUB 1 3\r\n"), send(three)],
        ) as server,
        connected(server.url) as nc,
    ):
        sub = nc.subscribe("a")
        sub.unsubscribe(limit=5)
        assert [sub.next().data, sub.next().data] == [b"0", b"1"]
        server.release("cut")
        assert [msg.data for msg in sub] == [b"2", b"3", b"4"]
        assert sub.delivered == 5
        server.finish()


def test_a_limit_that_was_reached_is_not_replayed() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [
                handshake(),
                expect(b"UNSUB 1 1\r\n"),
                send(b"MSG a 1 1\r\n0\r\n"),
                close(),
            ],
            [handshake(), answer_ping()],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a")
        sub.unsubscribe(limit=1)
        recorder.wait_for(jsclient.Reconnected)
        nc.flush()
        assert said_after_greeting(server, 1) == b"PING\r\n"
        assert [msg.data for msg in sub] == [b"0"]


def test_kept_publishes_follow_the_subscriptions_in_order_and_once() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), expect(b"SUB a 1\r\n"), close()],
            [wait("back"), handshake(), wait("go"), answer_ping()],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a")
        recorder.wait_for(jsclient.Disconnected)
        for number in range(10):
            nc.publish("b", b"%d" % number)
        late = nc.subscribe("c")
        server.release("back")
        recorder.wait_for(jsclient.Reconnected)
        nc.publish("b", b"new")
        server.release("go")
        nc.flush()
        frames = client_frames(server.received(1))
        said = [frame.verb for frame in frames if frame.verb in (b"SUB", b"PUB")]
        assert said == [b"SUB"] * 2 + [b"PUB"] * 11
        payloads = [frame.body for frame in frames if frame.verb == b"PUB"]
        assert payloads == [b"%d" % number for number in range(10)] + [b"new"]
        assert sub.is_active
        assert late.is_active


def test_kept_messages_keep_headers_and_replies() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), close()], [wait("back"), handshake(), answer_ping()]
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.Disconnected)
        nc.publish("b", b"x", reply="r", headers={"K": "v"})
        server.release("back")
        nc.flush()
        assert said_after_greeting(server, 1) == (
            b"HPUB b r 18 19\r\nNATS/1.0\r\nK: v\r\n\r\nx\r\nPING\r\n"
        )


def test_the_inbox_of_requests_is_replayed() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [
                handshake(),
                expect(b"PUB q "),
                send(b"PING\r\n"),
                expect(b"PONG\r\n"),
                close(),
            ],
            [handshake(), answer_ping()],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        with pytest.raises(jsclient.TimeoutError):
            nc.request("q", timeout=0.2)
        recorder.wait_for(jsclient.Reconnected)
        nc.flush()
        told = re.fullmatch(
            rb"SUB (_INBOX\.\w{22}\.\*) 1\r\nPING\r\n", said_after_greeting(server, 1)
        )
        assert told is not None
        assert told[1] in server.received(0)


def test_a_subscription_that_was_dropped_is_unsubscribed_and_not_replayed() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), expect(b"UNSUB 1\r\n"), close()],
            [handshake(), answer_ping()],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        nc.subscribe("a")
        recorder.wait_for(jsclient.Reconnected)
        nc.flush()
        assert said_after_greeting(server, 1) == b"PING\r\n"


def test_a_subscription_that_drains_when_the_link_is_lost_is_over() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [
                handshake(),
                expect(b"SUB a 1\r\n"),
                send(b"MSG a 1 4\r\nheld\r\n"),
                expect(b"UNSUB 1\r\n"),
                close(),
            ],
            [handshake(), answer_ping()],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a")
        with contextlib.suppress(jsclient.DisconnectedError):
            sub.drain()
        recorder.wait_for(jsclient.Reconnected)
        nc.flush()
        assert said_after_greeting(server, 1) == b"PING\r\n"
        assert [msg.data for msg in sub] == [b"held"]


def test_publishes_and_subscriptions_made_while_a_link_is_made_arrive_once() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), close()], [wait("info"), handshake(), answer_ping()]
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        server.wait_connections(2)
        sub = nc.subscribe("a")
        nc.publish("a", b"1")
        server.release("info")
        nc.publish("a", b"2")
        nc.flush()
        frames = client_frames(server.received(1))
        assert [f.body for f in frames if f.verb == b"PUB"] == [b"1", b"2"]
        assert {f.arguments for f in frames if f.verb == b"SUB"} == {b"a 1"}
        assert sub.is_active
