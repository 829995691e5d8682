"""When, where and how often a lost link is made again, and when that ends."""

from __future__ import annotations

import time

import pytest

import jsclient
from tests.harness.proxy import FaultProxy
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    close,
    expect,
    handshake,
    info_line,
    reset,
    send,
    wait,
)
from tests.net.client import Recorder, connected
from tests.net.frames import published

REFUSED = [
    send(info_line()),
    expect(b"PING\r\n"),
    send(b"-ERR 'Authorization Violation'\r\n"),
    close(),
]


def test_the_first_attempt_follows_the_loss_at_once() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()], [handshake()]) as server,
        connected(server.url, reconnect_wait=60.0, on_event=recorder),
    ):
        recorder.wait_for(jsclient.Reconnected)


def test_other_servers_are_tried_before_the_lost_one_and_without_waiting() -> None:
    recorder = Recorder()
    start = time.monotonic()
    with (
        ScriptedServer([handshake(), close()], [handshake()]) as first,
        ScriptedServer([close()]) as second,
        ScriptedServer([close()]) as third,
        connected(
            [first.url, second.url, third.url], reconnect_wait=0.3, on_event=recorder
        ),
    ):
        assert recorder.wait_for(jsclient.Reconnected).server == first.url
        assert time.monotonic() - start >= 0.2
        failed = [event.server for event in recorder.of(jsclient.ReconnectFailed)]
        assert failed == [second.url, third.url]


def test_a_refusing_server_is_asked_once_per_wait() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake()], [handshake()]) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        connected(proxy.url, reconnect_wait=0.1, on_event=recorder),
    ):
        proxy.refuse = True
        start = time.monotonic()
        proxy.cut()
        used = time.process_time()
        recorder.wait_for(jsclient.ReconnectFailed, 6)
        used = time.process_time() - used
        recorder.wait_for(jsclient.ReconnectFailed, 9)
        assert time.monotonic() - start >= 8 * 0.09
        assert used < 0.4  # of 0.5 s: there is no busy loop
        proxy.refuse = False
        recorder.wait_for(jsclient.Reconnected)


def test_links_that_end_as_soon_as_they_are_made_are_no_storm() -> None:
    recorder = Recorder()
    start = time.monotonic()
    with (
        ScriptedServer([handshake(), reset()], repeat=True) as server,
        connected(server.url, reconnect_wait=0.1, on_event=recorder),
    ):
        recorder.wait_for(jsclient.Reconnected, 6)
        # The first attempt after a loss is free; those after it keep the distance.
        assert time.monotonic() - start >= 5 * 0.09


def test_the_limit_of_attempts_closes_the_connection_once() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()]) as server,
        connected(server.url, max_reconnects=2, on_event=recorder) as nc,
    ):
        closed = recorder.wait_for(jsclient.Closed)
        assert isinstance(closed.error, jsclient.NoServersError)
        assert len(recorder.of(jsclient.ReconnectFailed)) == 2
        assert nc.status is jsclient.Status.CLOSED
        for call in (lambda: nc.publish("a"), lambda: nc.request("a"), nc.flush):
            with pytest.raises(jsclient.ConnectionClosedError) as caught:
                call()
            assert caught.value.__cause__ is closed.error
        nc.close()
        assert recorder.kinds.count("Closed") == 1
        assert recorder.kinds[-1] == "Closed"


@pytest.mark.parametrize("forever", [None, -1])
def test_without_a_limit_attempts_go_on(forever: int | None) -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()]) as server,
        connected(
            server.url, max_reconnects=forever, reconnect_wait=0.001, on_event=recorder
        ) as nc,
    ):
        recorder.wait_for(jsclient.ReconnectFailed, 50)
        assert nc.status is jsclient.Status.RECONNECTING


def test_waiting_readers_learn_that_there_is_no_hope() -> None:
    with (
        ScriptedServer([handshake(), expect(b"SUB a 1\r\n"), close()]) as server,
        connected(server.url, max_reconnects=1) as nc,
        pytest.raises(jsclient.ConnectionClosedError),
    ):
        nc.subscribe("a").next(timeout=30.0)


def test_the_same_refusal_twice_from_one_server_closes() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()], REFUSED, REFUSED, REFUSED) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        closed = recorder.wait_for(jsclient.Closed)
        assert isinstance(closed.error, jsclient.AuthorizationError)
        assert len(recorder.of(jsclient.ReconnectFailed)) == 2
        assert nc.is_closed
        assert server.connections == 3


def test_refusals_can_be_outwaited() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), close()], REFUSED, REFUSED, REFUSED, [handshake()]
        ) as server,
        connected(server.url, on_event=recorder, ignore_auth_errors=True) as nc,
    ):
        recorder.wait_for(jsclient.Reconnected)
        assert nc.is_connected


def test_a_refusal_between_two_servers_is_not_the_same_refusal() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()], REFUSED, [handshake()]) as first,
        ScriptedServer(REFUSED, [close()]) as second,
        connected([first.url, second.url], on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.Reconnected)
        assert nc.is_connected


def test_what_does_not_fit_the_reconnect_buffer_is_refused_at_once() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), close()], [wait("back"), handshake(), answer_ping()]
        ) as server,
        connected(server.url, reconnect_buffer=1024, on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.Disconnected)
        payloads = [b"%03d" % number * 10 for number in range(1000)]
        taken: list[bytes] = []

        def publish_all() -> None:
            for payload in payloads:
                nc.publish("a", payload)
                taken.append(payload)

        with pytest.raises(jsclient.BufferFullError):
            publish_all()
        server.release("back")
        nc.flush()
        assert published(server.received(1)) == taken
        # The last one that is taken may pass the limit.
        assert sum(map(len, taken)) < 1024 + 30


def test_without_a_reconnect_buffer_publishes_fail_while_the_link_is_down() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), close()], [wait("back"), handshake(), answer_ping()]
        ) as server,
        connected(server.url, reconnect_buffer=0, on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.Disconnected)
        with pytest.raises(jsclient.DisconnectedError):
            nc.publish("a", b"lost")
        server.release("back")
        recorder.wait_for(jsclient.Reconnected)
        nc.publish("a", b"sent")
        nc.flush()
        assert b"lost" not in server.received(1)
        assert b"sent" in server.received(1)


def test_reconnect_leaves_the_link_for_another_server() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake()]) as first,
        ScriptedServer([handshake()]) as second,
        connected(
            [first.url, second.url], reconnect_wait=60.0, on_event=recorder
        ) as nc,
    ):
        nc.reconnect()
        assert recorder.wait_for(jsclient.Reconnected).server == second.url
        first.wait_closed()


def test_reconnect_cuts_a_wait_short() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()], [close()], [handshake()]) as server,
        connected(server.url, reconnect_wait=60.0, on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.ReconnectFailed)
        nc.reconnect()
        recorder.wait_for(jsclient.Reconnected)


def test_reconnecting_can_be_forbidden() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()]) as server,
        connected(server.url, allow_reconnect=False, on_event=recorder) as nc,
    ):
        closed = recorder.wait_for(jsclient.Closed)
        assert isinstance(closed.error, jsclient.DisconnectedError)
        assert nc.is_closed
        assert recorder.kinds == ["Connected", "Disconnected", "Closed"]


def test_events_tell_the_story_in_order() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()], [close()], [handshake()]) as server,
        connected(server.url, on_event=recorder),
    ):
        recorder.wait_for(jsclient.Reconnected)
    recorder.wait_for(jsclient.Closed)
    assert recorder.kinds == [
        "Connected",
        "Disconnected",
        "ReconnectFailed",
        "Reconnected",
        "Disconnected",
        "Closed",
    ]
    assert recorder.of(jsclient.Disconnected)[1].error is None
