"""The end: close, drain, and user code that raises, sleeps or closes from within."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

import jsclient
from jsclient._core import Inbox
from jsclient._io.dispatch import MAX_WAITING
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    close,
    expect,
    handshake,
    send,
    stall,
    wait,
)
from tests.net.client import TIMEOUT, Recorder, answer_pings, connected
from tests.net.frames import published

SUB = b"SUB a 1\r\n"


class Callers:
    """Threads that each make one call; what it raised is kept."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self.ended: list[float] = []
        self._threads: list[threading.Thread] = []

    def start(self, call: Callable[[], object]) -> None:
        def run() -> None:
            try:
                call()
            except jsclient.Error as error:
                self.raised.append(error)
            self.ended.append(time.monotonic())

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT)
        assert not any(thread.is_alive() for thread in self._threads)


def test_close_wakes_every_waiting_thread() -> None:
    with ScriptedServer([handshake()]) as server, connected(server.url) as nc:
        subs = [nc.subscribe("a") for _ in range(5)]
        callers = Callers()
        for sub in subs[:3]:
            callers.start(lambda sub=sub: sub.next(timeout=None))  # type: ignore[misc]
        for sub in subs[3:]:
            callers.start(lambda sub=sub: list(sub))  # type: ignore[misc]
        for _ in range(3):
            callers.start(lambda: nc.request("q", timeout=60.0))
        for _ in range(2):
            callers.start(lambda: nc.flush(timeout=60.0))
        server.wait_for(b"PUB q ")
        time.sleep(0.2)  # let them all fall asleep; nothing tells when they have
        start = time.monotonic()
        nc.close()
        callers.join()
        assert len(callers.raised) == 10
        assert {type(error) for error in callers.raised} == {
            jsclient.ConnectionClosedError
        }
        assert max(callers.ended) - start < TIMEOUT


def test_a_hundred_threads_end_when_one_of_them_closes() -> None:
    with ScriptedServer([handshake()]) as server, connected(server.url) as nc:
        callers = Callers()

        def work() -> None:
            while True:
                nc.publish("a", b"x")
                nc.request("q", timeout=60.0)

        for _ in range(99):
            callers.start(work)
        server.wait_for(b"PUB q ")
        callers.start(nc.close)
        callers.join()
        assert len(callers.raised) == 99
        assert {type(error) for error in callers.raised} == {
            jsclient.ConnectionClosedError
        }


def test_close_sends_what_was_published() -> None:
    payloads = [b"%d" % number for number in range(1000)]
    with ScriptedServer([handshake()]) as server:
        with connected(server.url) as nc:
            for payload in payloads:
                nc.publish("a", payload)
        server.wait_closed()
        assert published(server.received()) == payloads


def test_close_twice_and_from_two_threads_is_fine() -> None:
    recorder = Recorder()
    with ScriptedServer([handshake()]) as server:
        nc = connected(server.url, on_event=recorder)
        callers = Callers()
        callers.start(nc.close)
        callers.start(nc.close)
        callers.join()
        nc.close()
        assert callers.raised == []
        assert nc.is_closed
        assert nc.status is jsclient.Status.CLOSED
        recorder.wait_for(jsclient.Closed)
        server.wait_closed()
    assert recorder.kinds == ["Connected", "Disconnected", "Closed"]


def test_nothing_works_after_close() -> None:
    with ScriptedServer([handshake(), expect(SUB)]) as server:
        nc = connected(server.url)
        sub = nc.subscribe("a")
        nc.close()
        calls: list[Callable[[], object]] = [
            lambda: nc.publish("a"),
            lambda: nc.request("a"),
            lambda: nc.subscribe("a"),
            nc.flush,
            nc.rtt,
            nc.drain,
            nc.reconnect,
            sub.next,
            lambda: list(sub),
            sub.unsubscribe,
            sub.drain,
        ]
        for call in calls:
            with pytest.raises(jsclient.ConnectionClosedError):
                call()
        assert nc.connected_url is None
        assert nc.stats().out_msgs == 0
        assert "closed" in repr(nc)


def test_a_subscription_that_comes_too_late_for_the_end_has_ended_too() -> None:
    with ScriptedServer([handshake()]) as server:
        nc = connected(server.url)
        loop = nc._loop
        nc.close()
        # Looked before it was closed, and subscribes after every other one has ended.
        inbox = Inbox()
        loop.subscribe("late", None, inbox)
        assert isinstance(inbox.reason, jsclient.ConnectionClosedError)
        assert not loop.entries
        assert len(loop.routes) == 0


def test_close_in_a_callback_ends_the_connection() -> None:
    recorder = Recorder()
    with ScriptedServer([handshake(), expect(SUB), send(b"MSG a 1 0\r\n\r\n")]) as s:
        nc = connected(s.url, on_event=recorder)
        sub = nc.subscribe("a", callback=lambda msg: nc.close())
        recorder.wait_for(jsclient.Closed)
        assert nc.is_closed
        assert not sub.is_active


def test_close_in_an_event_handler_ends_the_connection() -> None:
    closed = threading.Event()
    held: list[jsclient.Connection] = []

    def handler(event: jsclient.Event) -> None:
        if isinstance(event, jsclient.Disconnected) and event.error is not None:
            held[0].close()
        if isinstance(event, jsclient.Closed):
            closed.set()

    with ScriptedServer([handshake(), wait("go"), close()]) as server:
        held.append(connected(server.url, on_event=handler))
        server.release("go")
        assert closed.wait(TIMEOUT)
        held[0].close()


def test_close_is_quick_although_the_peer_takes_nothing() -> None:
    with ScriptedServer([handshake(), stall("end")], receive_buffer=4096) as server:
        nc = connected(server.url, write_buffer=16 << 20)
        for _ in range(1000):
            nc.publish("a", b"x" * 8192)
        start = time.monotonic()
        nc.close()
        assert time.monotonic() - start < TIMEOUT / 2
        server.release("end")


def test_close_is_quick_while_a_link_is_being_made() -> None:
    recorder = Recorder()
    with ScriptedServer([handshake(), close()], [wait("never")]) as server:
        nc = connected(server.url, on_event=recorder, connect_timeout=30.0)
        server.wait_connections(2)
        start = time.monotonic()
        nc.close()
        assert time.monotonic() - start < TIMEOUT / 2
        recorder.wait_for(jsclient.Closed)
        server.release("never")


def test_close_is_quick_while_waiting_for_the_next_attempt() -> None:
    recorder = Recorder()
    with ScriptedServer([handshake(), close()]) as server:
        nc = connected(server.url, on_event=recorder, reconnect_wait=60.0)
        recorder.wait_for(jsclient.ReconnectFailed)
        start = time.monotonic()
        nc.close()
        assert time.monotonic() - start < TIMEOUT / 2


def test_drain_without_a_link_closes_and_says_so() -> None:
    recorder = Recorder()
    with ScriptedServer([handshake(), close()]) as server:
        nc = connected(server.url, on_event=recorder, reconnect_wait=60.0)
        recorder.wait_for(jsclient.ReconnectFailed)
        with pytest.raises(jsclient.DisconnectedError):
            nc.drain()
        assert nc.is_closed


def test_drain_lets_callbacks_finish_what_has_arrived_and_then_closes() -> None:
    held = b"".join(b"MSG a 1 2\r\n%02d\r\n" % number for number in range(100))
    with ScriptedServer([handshake(), expect(SUB), send(held), answer_pings]) as server:
        nc = connected(server.url)
        seen: list[bytes] = []

        def handle(msg: jsclient.Msg) -> None:
            seen.append(msg.data)
            nc.publish("answers", msg.data)

        sub = nc.subscribe("a", callback=handle)
        nc.drain()
        assert seen == [b"%02d" % number for number in range(100)]
        assert not sub.is_active
        server.wait_closed()
        said = server.received()
        assert published(said) == seen
        assert said.index(b"UNSUB 1\r\n") < said.rindex(b"PING\r\n")


def test_while_draining_nothing_new_is_taken() -> None:
    script = [handshake(), expect(SUB), send(b"MSG a 1 0\r\n\r\n"), answer_pings]
    with ScriptedServer(script) as server:
        nc = connected(server.url)
        refused: list[Exception] = []
        entered, go_on = threading.Event(), threading.Event()

        def handle(msg: jsclient.Msg) -> None:
            entered.set()
            go_on.wait(TIMEOUT)
            try:
                nc.subscribe("b")
            except jsclient.Error as error:
                refused.append(error)

        sub = nc.subscribe("a", callback=handle)
        callers = Callers()
        assert entered.wait(TIMEOUT)
        callers.start(nc.drain)
        server.wait_for(b"UNSUB 1\r\n")
        go_on.set()
        callers.join()
        assert callers.raised == []
        assert [type(error) for error in refused] == [jsclient.ConnectionDrainingError]
        assert not sub.is_active


def test_a_callback_that_raises_is_told_and_called_again() -> None:
    frames = b"MSG a 1 3\r\nbad\r\nMSG a 1 4\r\ngood\r\n"
    recorder = Recorder()
    done = threading.Event()

    def handle(msg: jsclient.Msg) -> None:
        if msg.data == b"bad":
            raise RuntimeError("no such luck")
        done.set()

    with (
        ScriptedServer([handshake(), expect(SUB), send(frames)]) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a", callback=handle)
        assert done.wait(TIMEOUT)
        event = recorder.wait_for(jsclient.ErrorEvent)
        assert isinstance(event.error, RuntimeError)
        assert event.subscription is sub
        assert nc.is_connected


def test_blocking_calls_and_subscriptions_work_inside_a_callback() -> None:
    script = [
        handshake(),
        expect(SUB),
        send(b"MSG a 1 0\r\n\r\n"),
        answer_ping(),
        expect(b"SUB b 2\r\n"),
        send(b"MSG b 2 2\r\nhi\r\n"),
    ]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        seen: list[bytes] = []
        done = threading.Event()

        def handle(msg: jsclient.Msg) -> None:
            nc.flush()
            with nc.subscribe("b") as other:
                seen.append(other.next().data)
            done.set()

        sub = nc.subscribe("a", callback=handle)
        assert done.wait(TIMEOUT)
        assert seen == [b"hi"]
        assert sub.is_active


def test_a_slow_callback_makes_only_its_own_subscription_late() -> None:
    frames = b"MSG a 1 0\r\n\r\nMSG b 2 2\r\nhi\r\n"
    go_on = threading.Event()
    with (
        ScriptedServer([handshake(), expect(b"SUB b 2\r\n"), send(frames)]) as server,
        connected(server.url) as nc,
    ):
        slow = nc.subscribe("a", callback=lambda msg: go_on.wait(TIMEOUT))
        assert nc.subscribe("b").next().data == b"hi"
        go_on.set()
        assert slow.is_active


def test_an_event_handler_that_raises_is_logged_and_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()

    def handler(event: jsclient.Event) -> None:
        recorder(event)
        raise RuntimeError("no such luck")

    with (
        caplog.at_level(logging.ERROR, "jsclient"),
        ScriptedServer([handshake(), close()], [handshake()]) as server,
        connected(server.url, on_event=handler),
    ):
        recorder.wait_for(jsclient.Reconnected)
    recorder.wait_for(jsclient.Closed)
    assert "no such luck" in caplog.text
    # The records hold the exception, and with it this function's frame.
    caplog.clear()


def test_events_that_nobody_takes_are_bounded_and_counted() -> None:
    go_on = threading.Event()
    told: list[jsclient.Event] = []
    recorder = Recorder()

    def handler(event: jsclient.Event) -> None:
        go_on.wait(TIMEOUT)
        told.append(event)
        recorder(event)

    storm = b"-ERR 'Something New'\r\n" * (3 * MAX_WAITING)
    with (
        ScriptedServer([handshake(), send(storm), answer_ping()]) as server,
        connected(server.url, on_event=handler) as nc,
    ):
        nc.flush()
        go_on.set()
    recorder.wait_for(jsclient.Closed)
    assert len(told) <= MAX_WAITING + 10
    errors = [str(event.error) for event in recorder.of(jsclient.ErrorEvent)]
    assert sum("not delivered" in text for text in errors) == 1
    assert isinstance(told[-1], jsclient.Closed)
