"""Messages that come when their fetch is over: the next one has them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient._core import Gate, LonePull
from tests.net.client import TIMEOUT
from tests.net.pull_peer import NEXT, Counter, Desk, Scene, consuming

# Of a message without a payload, as the server counts: its subject and its ack subject.
SIZE = len("s.a$JS.ACK.S.C.1.1.1.1794822688406701443.0")


def seqs(messages: Iterable[jsclient.Msg]) -> list[int]:
    return [msg.metadata.stream_seq for msg in messages]


class Tardy(Desk):
    """Sends messages for the first pull only when it learns that it is over."""

    def __init__(self, *numbers: int, **options: Any) -> None:
        super().__init__(**options)
        self._late = list(numbers)
        self.on_ping = self._before_pong

    def _before_pong(self) -> Iterable[bytes]:
        if self.pulls:
            while self._late:
                yield self.pulls[0].message(self._late.pop(0))


def words(scene: Scene) -> list[bytes]:
    """The client's pulls, UNSUBs and PINGs."""
    return [
        b"pull" if arguments.startswith(NEXT.encode()) else verb
        for verb, arguments, _ in scene.frames()
        if verb in (b"UNSUB", b"PING") or arguments.startswith(NEXT.encode())
    ]


def test_a_fetch_whose_server_is_silent_keeps_its_time() -> None:
    desk = Desk()
    silence = threading.Event()

    def stubborn() -> Iterable[bytes]:
        if desk.pulls:
            silence.wait(TIMEOUT)
        return ()

    desk.on_ping = stubborn
    with consuming(desk) as scene:
        begun = time.monotonic()
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        with pytest.raises(jsclient.TimeoutError):
            scene.consumer.next(timeout=0.2)
        assert time.monotonic() - begun < TIMEOUT / 2
        silence.set()


@pytest.mark.parametrize("version", ["2.15.1", "2.10.25"])
@pytest.mark.parametrize("kind", ["next", "fetch", "no_wait", "bytes", "batch", "sub"])
def test_without_any_time_a_silent_server_is_not_waited_for(
    kind: str, version: str
) -> None:
    desk = Desk(version=version)
    silence = threading.Event()

    def stubborn() -> Iterable[bytes]:
        if desk.pulls:
            silence.wait(TIMEOUT)
        return ()

    desk.on_ping = stubborn
    with consuming(desk) as scene:
        consumer = scene.consumer
        sub = scene.nc.jetstream().pull_subscribe(stream="S", consumer="C")
        ask: Callable[[], object] = {
            "next": lambda: consumer.next(timeout=0),
            "fetch": lambda: consumer.fetch(5, timeout=0),
            "no_wait": lambda: consumer.fetch_no_wait(5, timeout=0),
            "bytes": lambda: consumer.fetch_bytes(500, timeout=0),
            "batch": lambda: consumer.fetch_batch(5, timeout=0),
            "sub": lambda: sub.fetch(5, timeout=0),
        }[kind]
        took = []
        for _ in range(3):
            begun = time.monotonic()
            with suppress(jsclient.TimeoutError):
                assert not ask()
            took.append(time.monotonic() - begun)
        silence.set()
        # A tenth of a second each; the machine may be busy.
        assert min(took) < 0.5


def test_an_answer_that_takes_longer_than_no_time_is_for_the_next_call() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        got: list[int] = []
        while len(got) < 2:
            got.extend(seqs(scene.consumer.fetch(2, timeout=0)))
        assert got == [1, 2]


def test_what_the_server_sends_before_it_hears_of_the_end_is_for_the_next_fetch() -> (
    None
):
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        assert scene.consumer.next(TIMEOUT).metadata.stream_seq == 1
        assert scene.consumer.next(TIMEOUT).metadata.stream_seq == 2
        # They cost no further pull. First the interest ends, then the server says so.
        assert len(desk.pulls) == 1
        said = words(scene)
        assert said[said.index(b"pull") :][:3] == [b"pull", b"UNSUB", b"PING"]
        # After that nobody listens any more.
        desk.on_ping = lambda: [desk.pulls[0].message(3)]
        scene.heard()
        with pytest.raises(jsclient.TimeoutError):
            scene.consumer.next(0.1)


def test_a_pull_subscription_has_them_too() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        sub = scene.nc.jetstream().pull_subscribe(stream="S", consumer="C")
        with pytest.raises(jsclient.TimeoutError):
            sub.fetch(5, timeout=0.2)
        assert seqs(sub.fetch(1, timeout=TIMEOUT)) == [1]
        assert seqs(sub.fetch(5, timeout=TIMEOUT)) == [2]
        assert sub.delivered == 2
        assert len(desk.pulls) == 1


def test_a_fetch_asks_only_for_the_rest() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        desk.on_pull = lambda pull: [pull.message(3), pull.message(4)]
        assert seqs(scene.consumer.fetch(4, timeout=TIMEOUT)) == [1, 2, 3, 4]
        assert [pull.body["batch"] for pull in desk.pulls] == [5, 2]


def test_a_fetch_of_bytes_counts_theirs() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_bytes(1000, timeout=0.2)) == 0
        desk.on_pull = Counter(lambda pull: [pull.status("404 No Messages")])
        batch = scene.consumer.fetch_bytes(1000, timeout=TIMEOUT)
        assert seqs(batch) == [1, 2]
        asked = desk.pulls[1].body["max_bytes"]
        assert asked == 1000 - sum(msg.size for msg in batch)


def test_a_fetch_of_fewer_bytes_leaves_the_others() -> None:
    desk = Tardy(1, 2, 3)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_bytes(1000, timeout=0.2)) == 0
        desk.on_pull = lambda pull: [pull.status("404 No Messages")]
        assert seqs(scene.consumer.fetch_bytes(2 * SIZE, timeout=TIMEOUT)) == [1, 2]
        assert seqs(scene.consumer.fetch_bytes(2 * SIZE, timeout=TIMEOUT)) == [3]


def test_an_error_of_the_rest_does_not_lose_them() -> None:
    desk = Tardy(1)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        desk.on_pull = lambda pull: [pull.status("409 Exceeded MaxWaiting")]
        batch = scene.consumer.fetch(2, timeout=TIMEOUT)
        assert seqs(batch) == [1]
        assert isinstance(batch.error, failures.PullLimitError)


def test_the_next_message_that_is_too_large_for_the_rest_is_no_error() -> None:
    desk = Tardy(1)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_bytes(1000, timeout=0.2)) == 0
        desk.on_pull = lambda pull: [pull.status("409 Message Size Exceeds MaxBytes")]
        batch = scene.consumer.fetch_bytes(1000, timeout=TIMEOUT)
        assert (seqs(batch), batch.error) == ([1], None)


def test_an_iteration_begins_with_them() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        desk.on_pull = Counter(
            lambda pull: [pull.message(number) for number in (3, 4, 5)]
        )
        with scene.consumer.messages(10, stop_after=5) as messages:
            assert seqs(messages) == [1, 2, 3, 4, 5]
        assert desk.pulls[1].body["batch"] == 3


@pytest.mark.parametrize("wanted", [1, 2])
def test_an_iteration_that_wants_no_more_than_them_asks_for_nothing(
    wanted: int,
) -> None:
    desk = Tardy(1, 2, 3)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        with scene.consumer.messages(stop_after=wanted) as messages:
            assert seqs(messages) == [1, 2][:wanted]
            assert not messages.is_active
        with scene.consumer.batches(stop_after=3 - wanted) as batches:
            assert [seq for batch in batches for seq in seqs(batch)] == [1, 2, 3][
                wanted:
            ]
        assert len(desk.pulls) == 1


def test_those_of_columns_are_for_the_next_columns() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_batch(5, timeout=0.2)) == 0
        batch = scene.consumer.fetch_batch(5, timeout=TIMEOUT)
        assert (seqs(batch), batch.error) == ([1, 2], None)
        assert len(desk.pulls) == 1
        assert not scene.consumer._own_lanes().leftovers


def test_those_of_columns_are_for_any_fetch() -> None:
    desk = Tardy(1, 2, 3, 4)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_batch(5, timeout=0.2)) == 0
        assert seqs(scene.consumer.fetch(2, timeout=TIMEOUT)) == [1, 2]
        assert scene.consumer.next(TIMEOUT).metadata.stream_seq == 3
        assert seqs(scene.consumer.fetch_batch(5, timeout=TIMEOUT)) == [4]
        assert len(desk.pulls) == 1


def test_columns_that_want_fewer_get_the_first_of_them() -> None:
    desk = Tardy(1, 2, 3)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_batch(5, timeout=0.2)) == 0
        assert seqs(scene.consumer.fetch_batch(2, timeout=TIMEOUT)) == [1, 2]
        assert seqs(scene.consumer.fetch_batch(2, timeout=TIMEOUT)) == [3]
        assert len(desk.pulls) == 1


def test_columns_of_bytes_count_theirs() -> None:
    desk = Tardy(1, 2, 3)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_batch(5, timeout=0.2)) == 0
        desk.on_pull = lambda pull: [pull.status("404 No Messages")]
        first = scene.consumer.fetch_batch(5, max_bytes=2 * SIZE, timeout=TIMEOUT)
        assert (seqs(first), [msg.size for msg in first]) == ([1, 2], [SIZE, SIZE])
        # One byte is missing.
        rest = scene.consumer.fetch_batch(5, max_bytes=SIZE - 1, timeout=TIMEOUT)
        assert len(rest) == 0
        rest = scene.consumer.fetch_batch(5, max_bytes=SIZE, timeout=TIMEOUT)
        assert seqs(rest) == [3]


def test_columns_get_those_of_other_fetches_as_they_are() -> None:
    desk = Desk()
    with consuming(desk) as scene:
        late = [b"", b"x" * 70_000]
        desk.on_ping = lambda: (
            [desk.pulls[0].message(number, data) for number, data in enumerate(late, 1)]
            if desk.pulls
            else []
        )
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        batch = scene.consumer.fetch_batch(5, timeout=TIMEOUT)
        assert [msg.data for msg in batch] == late
        assert list(batch.stream_seqs) == [1, 2]
        assert len(desk.pulls) == 1
        batch.ack()
        assert batch.is_acked


def test_batches_begin_with_them() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        desk.on_pull = Counter(
            lambda pull: [pull.message(number) for number in (3, 4, 5)]
        )
        with scene.consumer.batches(10, stop_after=5) as batches:
            assert [seq for batch in batches for seq in seqs(batch)] == [1, 2, 3, 4, 5]
        assert desk.pulls[1].body["batch"] == 3


def test_a_lost_link_leaves_those_that_came() -> None:
    desk = Tardy(1)
    with consuming(desk, links=2) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        scene.heard()
        scene.nc.reconnect()
        assert scene.consumer.next(TIMEOUT).metadata.stream_seq == 1


def test_a_lost_link_ends_the_wait_for_those_that_did_not() -> None:
    desk = Desk()
    desk.on_pull = Counter(lambda _: (), lambda pull: [pull.message(1)])
    stalled = threading.Event()

    def stall() -> Iterable[bytes]:
        if len(desk.pulls) == 1:
            stalled.wait(TIMEOUT)
        return ()

    desk.on_ping = stall
    with consuming(desk, links=2) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        threading.Timer(0.1, scene.nc.reconnect).start()
        assert scene.consumer.next(TIMEOUT).metadata.stream_seq == 1
        stalled.set()


class Interrupt(Exception):
    """Raised by a signal handler."""


@contextmanager
def interrupted(after: float) -> Iterator[None]:
    """A block that a signal handler ends."""

    def raise_it(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        with pytest.raises(Interrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_that_raises_leaves_what_came_to_the_next_fetch() -> None:
    desk = Desk(Counter(lambda pull: [pull.message(1), pull.message(2)]))
    with consuming(desk) as scene:
        with interrupted(0.3):
            scene.consumer.fetch(5, timeout=60.0)
        assert seqs(scene.consumer.fetch(2, timeout=TIMEOUT)) == [1, 2]
        assert len(desk.pulls) == 1


def test_a_signal_that_raises_keeps_them_in_their_order() -> None:
    desk = Tardy(1, 2)
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch(5, timeout=0.2)) == 0
        with interrupted(0.3):
            scene.consumer.fetch(5, timeout=60.0)
        assert seqs(scene.consumer.fetch(2, timeout=TIMEOUT)) == [1, 2]


def test_nothing_is_expected_of_a_link_that_is_gone() -> None:
    with consuming(Desk()) as scene:
        gone = Gate()
        gone.open(jsclient.DisconnectedError("the link was lost"))
        lanes = scene.consumer._own_lanes()
        order = scene.consumer._order(1, None, 1.0, False, None, {})
        lanes.leftovers.expect(LonePull(lanes.pool, order.draft), gone)
        assert not lanes.leftovers
