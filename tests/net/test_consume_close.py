"""How consumes end: stopped, drained, closed, from any thread and from callbacks."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from jsclient.consuming import Messages
from tests.harness.tidy import assert_tidy
from tests.net.client import TIMEOUT, Recorder
from tests.net.pull_peer import Counter, Desk, Pull, Scene, consuming


def seven(pull: Pull) -> Iterable[bytes]:
    """As many of seven messages as were asked for."""
    most = min(7, pull.body["batch"])
    return [pull.message(number, b"%d" % number) for number in range(1, most + 1)]


class Blocked:
    """A thread that waits for something, and what became of it."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self.result: object = None
        self._wait = wait
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._wait()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.result = error

    def outcome(self) -> object:
        """What it got, as soon as it did."""
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "it still waits"
        return self.result


def asleep(messages: Messages) -> None:
    """Returns when the reader of the messages is waiting, most likely."""
    time.sleep(0.05)
    assert messages.pending_messages == 0


def lane_frames(scene: Scene) -> list[bytes]:
    """UNSUB and PING, in their order, after the handshake."""
    verbs = [verb for verb, _, _ in scene.frames()]
    return [verb for verb in verbs[2:] if verb in (b"UNSUB", b"PING")]


# Stopping -----------------------------------------------------------------------------


def test_a_stop_ends_the_interest_and_leaves_unread_messages_to_the_server() -> None:
    desk = Desk(seven)
    with consuming(desk) as scene:
        messages = scene.consumer.messages(10)
        scene.heard()
        assert messages.next().data == b"1"
        messages.stop()
        assert messages.pending_messages == 0
        assert not messages.is_active
        assert messages.error is None
        assert list(messages) == []
        with pytest.raises(jsclient.SubscriptionClosedError):
            messages.next()
        scene.heard()
        assert lane_frames(scene).count(b"UNSUB") == 1
        assert desk.acks == []


def test_stopping_twice_and_from_many_threads_is_stopping_once() -> None:
    desk = Desk()
    with consuming(desk) as scene:
        messages = scene.consumer.messages()
        desk.wait_pull()
        stops = [Blocked(messages.stop) for _ in range(8)]
        assert [stop.outcome() for stop in stops] == [None] * 8
        messages.stop()
        messages.drain()
        scene.heard()
        assert lane_frames(scene).count(b"UNSUB") == 1


@pytest.mark.parametrize("how", ["stop", "drain"])
def test_threads_blocked_in_next_wake_when_it_is_stopped(how: str) -> None:
    with consuming(Desk()) as scene:
        messages = scene.consumer.messages()
        readers = [Blocked(lambda: messages.next(60.0)) for _ in range(3)]
        iterating = Blocked(lambda: list(messages))
        asleep(messages)
        getattr(messages, how)()
        for reader in readers:
            assert isinstance(reader.outcome(), jsclient.SubscriptionClosedError)
        assert iterating.outcome() == []


def test_leaving_the_block_stops() -> None:
    with consuming(Desk()) as scene:
        with scene.consumer.messages() as messages:
            reader = Blocked(lambda: messages.next(60.0))
            asleep(messages)
        assert isinstance(reader.outcome(), jsclient.SubscriptionClosedError)


def test_an_iteration_that_nobody_holds_is_stopped() -> None:
    desk = Desk(seven)
    with consuming(desk) as scene:
        for msg in scene.consumer.messages(10):
            assert msg.data == b"1"
            break
        del msg
        gc.collect()
        assert_tidy(scene.nc)
        scene.heard()
        assert lane_frames(scene).count(b"UNSUB") == 1


def test_a_consumer_that_nobody_holds_gives_its_subscriptions_back() -> None:
    desk = Desk(seven)
    with consuming(desk) as scene:
        consumer = scene.nc.jetstream().consumer("S", "C")
        consumer.next()
        loop = scene.nc._loop
        assert len(loop.watchers) == 1
        before = len(loop.entries)
        del consumer
        gc.collect()
        deadline = time.monotonic() + TIMEOUT
        while len(loop.entries) == before:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert loop.watchers == []
        scene.heard()
        assert lane_frames(scene)[0] == b"UNSUB"


# Draining -----------------------------------------------------------------------------


def test_a_drain_hands_over_what_is_held_and_what_is_under_way() -> None:
    desk = Desk(Counter(lambda pull: list(seven(pull))[:5]))
    with consuming(desk) as scene:
        messages = scene.consumer.messages(10)
        scene.heard()
        first = desk.pulls[0]
        # Two more are sent before the server hears of the end.
        desk.on_ping = lambda: [first.message(6, b"6"), first.message(7, b"7")]
        messages.drain()
        desk.on_ping = lambda: [first.message(8, b"8")]
        scene.heard()
        assert [msg.data for msg in messages] == [b"%d" % n for n in range(1, 8)]
        assert lane_frames(scene)[-3:] == [b"UNSUB", b"PING", b"PING"]
        assert len(desk.pulls) == 1


def test_a_drain_of_a_consume_returns_when_the_callback_has_handled_all() -> None:
    desk = Desk(Counter(lambda pull: list(seven(pull))[:5]))
    handled: list[bytes] = []

    def slowly(msg: Msg) -> None:
        time.sleep(0.02)
        handled.append(msg.data)
        msg.ack()

    with consuming(desk) as scene:
        handle = scene.consumer.consume(slowly, max_messages=10)
        scene.heard()
        first = desk.pulls[0]
        desk.on_ping = lambda: [first.message(6, b"6"), first.message(7, b"7")]
        handle.drain()
        assert handled == [b"%d" % number for number in range(1, 8)]
        assert not handle.is_active
        assert handle.error is None
        handle.drain()
        handle.wait(0.0)
        scene.heard()
        assert len(desk.acks) == 7


@pytest.mark.parametrize("way", ["messages", "batches", "consume", "connection"])
def test_without_acks_a_drain_listens_until_the_server_has_ended_its_pulls(
    way: str,
) -> None:
    desk = Desk(Counter(seven), config={"ack_policy": "none"})
    handled: list[bytes] = []
    with consuming(desk) as scene:
        consumer = scene.consumer
        reading: Any
        if way == "consume":
            reading = consumer.consume(
                lambda msg: handled.append(msg.data), expires=TIMEOUT
            )
        else:
            begin = consumer.batches if way == "batches" else consumer.messages
            reading = begin(expires=TIMEOUT)
        pull = desk.wait_pull()
        desk.cues["more"] = lambda: [pull.message(8, b"8")]
        desk.cues["end"] = lambda: [
            pull.message(9, b"9"),
            pull.pending("408 Request Timeout", 1),
        ]
        if way == "connection":
            reader = Blocked(lambda: handled.extend(msg.data for msg in reading))
            draining = Blocked(lambda: scene.nc.drain(TIMEOUT))
        else:
            draining = Blocked(lambda: reading.drain(TIMEOUT))
        while reading.is_active and not consumer_is_stopped(reading):
            time.sleep(0.005)
        scene.cue("more")
        # The connection takes no more publishes in the end, but still these.
        scene.cue("end")
        assert draining.outcome() is None
        if way == "connection":
            reader.outcome()
        elif way == "messages":
            handled.extend(msg.data for msg in reading)
        elif way == "batches":
            handled.extend(msg.data for batch in reading for msg in batch)
        assert handled == [b"%d" % number for number in range(1, 10)]
        assert len(desk.pulls) == 1
        # The pull has ended by itself: there was nothing to take back.
        if way != "connection":
            assert b"UNSUB" not in lane_frames(scene)


def consumer_is_stopped(reading: Any) -> bool:
    """Whether the drain of what reads a consumer has begun."""
    reading = getattr(reading, "_messages", reading)
    pulling = getattr(reading, "_feed", None) or reading._pulling
    return bool(pulling._machine._is_stopped)


def test_without_acks_a_drain_says_when_its_time_was_too_short() -> None:
    desk = Desk(Counter(seven), config={"ack_policy": "none"})
    with consuming(desk) as scene:
        messages = scene.consumer.messages(10)
        pull = desk.wait_pull()
        scene.heard()
        desk.on_ping = lambda: [pull.message(8, b"8")]
        with pytest.raises(jsclient.DrainTimeoutError):
            messages.drain(0.5)
        # What came until the server heard of it, mostly in time, can be read.
        read = [msg.data for msg in messages]
        assert read[:7] == [b"%d" % number for number in range(1, 8)]
        assert lane_frames(scene)[-2:] == [b"UNSUB", b"PING"]
        assert not messages.is_active


def test_a_connection_says_when_it_had_too_little_time_to_drain_without_acks() -> None:
    desk = Desk(Counter(seven), config={"ack_policy": "none"})
    handled: list[bytes] = []
    with consuming(desk) as scene:
        scene.consumer.consume(lambda msg: handled.append(msg.data))
        while len(handled) < 7:
            time.sleep(0.005)
        with pytest.raises(jsclient.DrainTimeoutError):
            scene.nc.drain(0.3)


def test_a_drain_without_an_answer_says_so_and_has_ended_all_the_same() -> None:
    desk = Desk(Counter(seven))

    silence = threading.Event()

    def stubborn() -> Iterable[bytes]:
        silence.wait(TIMEOUT)
        return ()

    with consuming(desk) as scene:
        messages = scene.consumer.messages(10)
        scene.heard()
        desk.on_ping = stubborn
        with pytest.raises(jsclient.DrainTimeoutError):
            messages.drain(0.1)
        silence.set()
        assert len(list(messages)) == 7
        assert not messages.is_active


def test_a_drain_while_there_is_no_link_returns_at_once() -> None:
    desk = Desk(Counter(seven))
    told = Recorder()
    with consuming(desk, on_event=told, reconnect_wait=60.0) as scene:
        messages = scene.consumer.messages(10)
        scene.heard()
        scene.cue("cut")
        told.wait_for(events.Disconnected)
        messages.drain()
        assert len(list(messages)) == 7


def test_a_drain_whose_link_is_lost_returns() -> None:
    desk = Desk(Counter(seven))
    told = Recorder()
    with consuming(desk, links=2, on_event=told) as scene:
        messages = scene.consumer.messages(10)
        scene.heard()
        desk.on_ping = lambda: [b"-ERR 'Stale Connection'\r\n"]
        messages.drain()
        desk.on_ping = lambda: ()
        assert len(list(messages)) == 7
        told.wait_for(events.Reconnected)


# Callbacks ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "drain"])
def test_a_callback_may_end_its_own_consume(how: str) -> None:
    handled: list[bytes] = []
    told = Recorder()

    def end(msg: Msg) -> None:
        ready.wait(TIMEOUT)
        handled.append(msg.data)
        if msg.data == b"2":
            getattr(handle, how)()
            getattr(handle, how)()

    with consuming(Desk(Counter(seven)), on_event=told) as scene:
        ready = threading.Event()
        handle = scene.consumer.consume(end, max_messages=10)
        scene.heard()
        ready.set()
        handle.wait(TIMEOUT)
        assert handled == [b"%d" % n for n in range(1, 3 if how == "stop" else 8)]
        assert not handle.is_active
        assert told.of(events.ErrorEvent) == []


def test_an_event_handler_may_stop_the_consume_that_it_is_told_of() -> None:
    def stop(event: events.Event) -> None:
        begun.wait(TIMEOUT)
        if isinstance(event, events.ConsumerWarning):
            handle.stop()
            handle.stop()

    desk = Desk(lambda pull: [pull.message(1), pull.status("409 Leadership Change")])
    begun = threading.Event()
    with consuming(desk, on_event=stop) as scene:
        handle = scene.consumer.consume(lambda msg: None)
        begun.set()
        handle.wait(TIMEOUT)
        assert handle.error is None


def test_an_exception_of_a_callback_is_told_and_ends_nothing() -> None:
    handled: list[bytes] = []
    told = Recorder()

    def moody(msg: Msg) -> None:
        handled.append(msg.data)
        if msg.data == b"2":
            raise ValueError("bad mood")
        msg.ack()

    desk = Desk(Counter(seven))
    with consuming(desk, on_event=told) as scene:
        with scene.consumer.consume(moody, max_messages=10):
            warning = told.wait_for(events.ConsumerWarning)
            assert str(warning.error) == "bad mood"
            desk.wait_ack(6)
        assert len(handled) == 7
        assert len(told.of(events.ConsumerWarning)) == 1


def test_a_callback_that_ends_its_thread_ends_the_consume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(msg: Msg) -> None:
        raise SystemExit

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with consuming(Desk(Counter(seven))) as scene:
        handle = scene.consumer.consume(leave, max_messages=10)
        handle.wait(TIMEOUT)
        assert not handle.is_active


def test_the_error_that_ends_a_consume_is_raised_and_told_once() -> None:
    handled: list[bytes] = []
    told = Recorder()
    desk = Desk(
        Counter(lambda pull: [*seven(pull), pull.status("409 Consumer Deleted")])
    )
    with consuming(desk, on_event=told) as scene:
        handle = scene.consumer.consume(
            lambda msg: handled.append(msg.data), workers=4, max_messages=10
        )
        for _ in range(2):
            with pytest.raises(failures.ConsumerDeletedError):
                handle.wait(TIMEOUT)
        assert isinstance(handle.error, failures.ConsumerDeletedError)
        assert sorted(handled) == [b"%d" % number for number in range(1, 8)]
        event = told.wait_for(events.ErrorEvent)
        assert isinstance(event.error, failures.ConsumerDeletedError)
        scene.heard()
        assert len(told.of(events.ErrorEvent)) == 1
        handle.stop()
        handle.stop()


def test_waiting_for_a_consume_that_runs_is_a_timeout() -> None:
    with (
        consuming(Desk()) as scene,
        scene.consumer.consume(print) as handle,
        pytest.raises(jsclient.TimeoutError, match="still runs"),
    ):
        handle.wait(0.1)


# Closing ------------------------------------------------------------------------------


def test_closing_the_connection_wakes_every_reader_with_that_error() -> None:
    desk = Desk()
    with consuming(desk) as scene:
        messages = scene.consumer.messages()
        others = scene.consumer.messages()
        handle = scene.consumer.consume(lambda msg: None, workers=2)
        desk.wait_pull(3)
        waits = [
            Blocked(lambda: messages.next(60.0)),
            Blocked(lambda: list(messages)),
            Blocked(lambda: others.next(60.0)),
            Blocked(lambda: scene.consumer.next(60.0)),
            Blocked(lambda: scene.consumer.fetch(5, timeout=60.0)),
            Blocked(handle.wait),
        ]
        desk.wait_pull(5)
        scene.nc.close()
        for wait in waits:
            outcome = wait.outcome()
            assert isinstance(outcome, jsclient.ConnectionClosedError), outcome
        for ended in (messages, others):
            assert not ended.is_active
            assert isinstance(ended.error, jsclient.ConnectionClosedError)
            ended.stop()
        assert isinstance(handle.error, jsclient.ConnectionClosedError)
        handle.stop()
        assert scene.nc._loop.machines == []
        with pytest.raises(jsclient.ConnectionClosedError):
            scene.consumer.messages()
        with pytest.raises(jsclient.ConnectionClosedError):
            scene.consumer.next()


@pytest.mark.parametrize("how", ["close", "drain"])
@pytest.mark.parametrize("is_taken_over", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_a_fetch_returns_what_came_when_the_connection_ends(
    columns: bool, is_taken_over: bool, how: str
) -> None:
    def answer(pull: Pull) -> Iterable[bytes]:
        yield from seven(pull)
        if is_taken_over and len(desk.pulls) == 1:
            # The rest of it is asked for once more, by a conversation.
            yield pull.status("408 Request Timeout")

    desk = Desk(Counter(answer), config={"max_expires": 1_000_000_000})
    with consuming(desk) as scene:
        consumer = scene.consumer
        fetch = consumer.fetch_batch if columns else consumer.fetch
        waiting = Blocked(lambda: fetch(10, timeout=60.0))
        desk.wait_pull(2 if is_taken_over else 1)
        scene.heard()
        getattr(scene.nc, how)()
        batch = waiting.outcome()
        assert isinstance(batch, jsclient.FetchResult | jsclient.Batch)
        assert [msg.data for msg in batch] == [b"%d" % n for n in range(1, 8)]
        assert isinstance(batch.error, jsclient.ConnectionClosedError)


def test_a_connection_that_gives_up_ends_its_consumes() -> None:
    desk = Desk()
    with consuming(desk, max_reconnects=1) as scene:
        messages = scene.consumer.messages()
        desk.wait_pull()
        reader = Blocked(lambda: messages.next(60.0))
        scene.cue("cut")
        assert isinstance(reader.outcome(), jsclient.ConnectionClosedError)


def test_a_callback_that_runs_while_the_connection_closes_is_waited_for() -> None:
    begun, end = threading.Event(), threading.Event()

    def slowly(msg: Msg) -> None:
        begun.set()
        end.wait(TIMEOUT)

    with consuming(Desk(Counter(seven))) as scene:
        handle = scene.consumer.consume(slowly)
        assert begun.wait(TIMEOUT)
        scene.nc.close()
        with pytest.raises(jsclient.TimeoutError):
            handle.wait(0.05)
        end.set()
        with pytest.raises(jsclient.ConnectionClosedError):
            handle.wait(TIMEOUT)


def test_closing_again_and_again_under_load_harms_nothing() -> None:
    def flood(pull: Pull) -> Iterable[bytes]:
        return [pull.message(number) for number in range(1, pull.body["batch"] + 1)]

    for _ in range(10):
        desk = Desk(flood)
        with consuming(desk) as scene:
            messages = scene.consumer.messages(20)
            handle = scene.consumer.consume(lambda msg: msg.ack(), workers=2)
            readers = [Blocked(lambda: list(messages)) for _ in range(2)]  # noqa: B023
            desk.wait_pull(5)
            scene.nc.close()
            for reader in readers:
                assert isinstance(reader.outcome(), jsclient.ConnectionClosedError)
            with pytest.raises(jsclient.ConnectionClosedError):
                handle.wait(TIMEOUT)
