"""Exceptions at every place of a pull at which a signal handler can raise one.

A handler runs where Python looks for signals: when a function begins and when a call of
compiled code has returned. The profiler is told of the same places, and may raise there
as a handler does. So each work below is interrupted at its first place, at its second,
and so on, until it has no further one.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import pytest

import jsclient
from jsclient._core import Gate, LonePull
from jsclient._io.lone_pull import run_fetch
from jsclient._io.loop import Loop
from jsclient._io.pulling import Lanes
from jsclient.consumer import Consumer
from tests.harness.tidy import assert_tidy
from tests.net.client import TIMEOUT
from tests.net.pull_peer import Desk, Pull, Scene, consuming

pytestmark = [
    pytest.mark.timeout(300),
    # Python itself drops what is raised while a generator is put away.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interruption:
    """Raises at the place with that number; `is_over` when it has."""

    def __init__(self, place: int) -> None:
        self._left = place
        self.is_over = False

    def __enter__(self) -> Interruption:
        sys.setprofile(self._pass)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: object
    ) -> bool:
        sys.setprofile(None)
        return kind is Interrupt

    def _pass(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return"):
            return
        if not str(frame.f_globals.get("__name__")).startswith("jsclient."):
            return
        self._left -= 1
        if self._left == 0:
            self.is_over = True
            sys.setprofile(None)
            raise Interrupt


def places() -> Iterator[Interruption]:
    """An interruption at each place, as long as the last one came to its own."""
    for place in itertools.count(1):
        interruption = Interruption(place)
        yield interruption
        if not interruption.is_over:
            assert place > 3, "it was hardly ever interrupted"
            return


class Stock(Desk):
    """Answers pulls with what it has; what it has sent it does not send again."""

    def __init__(self, *, says_the_end: bool = True) -> None:
        super().__init__(self._serve_pull, on_ack=lambda ack: [ack.confirmed()])
        self._says_the_end = says_the_end
        self._lock = threading.Lock()
        self._last = 0  # that was sent
        self._stored = 0

    def store(self, count: int) -> list[int]:
        """Has so many more messages, with these numbers."""
        with self._lock:
            first, self._stored = self._stored + 1, self._stored + count
            return list(range(first, self._stored + 1))

    @property
    def sent(self) -> int:
        """How many were sent."""
        with self._lock:
            return self._last

    def _serve_pull(self, pull: Pull) -> Iterable[bytes]:
        with self._lock:
            first = self._last + 1
            self._last = min(self._stored, self._last + pull.body["batch"])
            numbers = range(first, self._last + 1)
        answer = [pull.message(number) for number in numbers]
        if self._says_the_end and len(answer) < pull.body["batch"]:
            answer.append(pull.status("408 Request Timeout"))
        return answer


def seqs(messages: Iterable[jsclient.Msg]) -> list[int]:
    return [msg.metadata.stream_seq for msg in messages]


def assert_put_away(scene: Scene, consumer: Consumer) -> None:
    """Nothing is left of any pull, neither here nor at the server."""
    lanes = consumer._own_lanes()
    scene.heard()
    deadline = time.monotonic() + TIMEOUT
    while lanes.pool.users or lanes.pool.left:
        assert time.monotonic() < deadline, (lanes.pool.users, lanes.pool.left)
        scene.heard()
    assert_tidy(scene.nc)
    scene.heard()  # no pull is under way to the server


def subscribed(scene: Scene) -> set[int]:
    """The subscriptions that the server has."""
    scene.heard()
    known = set()
    for verb, arguments, _ in scene.frames():
        if verb == b"SUB":
            known.add(int(arguments.split()[-1]))
        elif verb == b"UNSUB":
            known.discard(int(arguments.split()[0]))
    return known


def assert_subscribed(scene: Scene) -> None:
    """The server has the subscriptions that we have, and soon no other ones."""
    deadline = time.monotonic() + TIMEOUT
    while (known := subscribed(scene)) != (ours := set(scene.nc._loop.entries)):
        assert time.monotonic() < deadline, (known, ours)


def fetch_rest(consumer: Consumer, got: list[jsclient.Msg], count: int) -> None:
    while len(got) < count:
        found = consumer.fetch(count - len(got), timeout=TIMEOUT)
        assert found, f"only {seqs(got)} came"
        got.extend(found)


@pytest.mark.parametrize("is_new", [False, True], ids=["used lane", "new lane"])
@pytest.mark.parametrize(
    ("wanted", "says_the_end", "timeout"),
    [(2, True, TIMEOUT), (3, True, TIMEOUT), (3, False, 0.03)],
    ids=["all come", "some come", "silence"],
)
def test_no_message_is_lost_or_repeated_wherever_a_fetch_is_interrupted(
    wanted: int, says_the_end: bool, timeout: float, is_new: bool
) -> None:
    stock = Stock(says_the_end=says_the_end)
    with consuming(stock) as scene:
        consumer = scene.consumer
        for interruption in places():
            if is_new:
                consumer = scene.nc.jetstream().consumer("S", "C")
            numbers = stock.store(2)
            got: list[jsclient.Msg] = []
            with interruption:
                got.extend(consumer.fetch(wanted, timeout=timeout)._messages)
            fetch_rest(consumer, got, 2)
            assert seqs(got) == numbers
            assert_put_away(scene, consumer)
        del consumer
        assert_subscribed(scene)


def test_no_message_is_lost_or_repeated_wherever_next_is_interrupted() -> None:
    stock = Stock()
    with consuming(stock) as scene:
        consumer = scene.consumer
        for interruption in places():
            numbers = stock.store(1)
            got: list[jsclient.Msg] = []
            with interruption:
                got.append(consumer.next(TIMEOUT))
            fetch_rest(consumer, got, 1)
            assert seqs(got) == numbers
            assert_put_away(scene, consumer)
        assert_subscribed(scene)


def test_no_message_is_lost_or_repeated_wherever_columns_are_interrupted() -> None:
    stock = Stock()
    with consuming(stock) as scene:
        consumer = scene.consumer
        for interruption in places():
            numbers = stock.store(2)
            got: list[jsclient.Msg] = []
            with interruption:
                got.extend(consumer.fetch_batch(3, timeout=TIMEOUT))
            while len(got) < 2:
                found = consumer.fetch_batch(2 - len(got), timeout=TIMEOUT)
                assert len(found), f"only {seqs(got)} came"
                got.extend(found)
            assert seqs(got) == numbers
            assert_put_away(scene, consumer)
        assert_subscribed(scene)


@pytest.mark.parametrize("kind", ["all come", "some come", "late", "next"])
def test_no_message_is_lost_or_repeated_wherever_a_pull_subscription_is_interrupted(
    kind: str,
) -> None:
    stock = Stock(says_the_end=kind != "late")
    with consuming(stock) as scene:
        sub = scene.nc.jetstream().pull_subscribe(stream="S", consumer="C")
        consumer, total = sub._consumer, 0
        for interruption in places():
            numbers = stock.store(1 if kind == "next" else 2)
            got: list[jsclient.Msg] = []
            if kind == "late":
                leave_unfinished(consumer, 0.01)
            with interruption:
                if kind == "next":
                    got.append(sub.next(TIMEOUT))
                else:
                    wanted = 3 if kind == "some come" else 2
                    got.extend(sub.fetch(wanted, TIMEOUT)._messages)
            while len(got) < len(numbers):
                got.extend(sub.fetch(len(numbers) - len(got), TIMEOUT))
            total += len(got)
            assert seqs(got) == numbers
            assert sub.delivered == total
            assert not sub._running
            assert_put_away(scene, consumer)
        del consumer
        # Nobody has to wait for a fetch that is long over, and the limit is exact.
        sub.unsubscribe(limit=total + 1)
        stock.store(2)
        assert len(sub.fetch(2, TIMEOUT)) == 1
        sub.drain(TIMEOUT)


def leave_unfinished(consumer: Consumer, timeout: float) -> None:
    """A fetch is interrupted, and at once its interruption."""
    lanes = consumer._own_lanes()
    order = consumer._order(3, None, timeout, False, None, {})
    lone = LonePull(lanes.pool, order.draft)

    def take() -> None:
        lone.take_all()
        raise Interrupt

    def abandon(loop: Loop, end: Callable[[], None]) -> None:
        raise Interrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "abandoned", abandon)
        with pytest.raises(Interrupt):
            run_fetch(
                lanes,
                order,
                lone,
                consumer._converse,
                time.monotonic() + timeout,
                take,
            )


def test_what_two_exceptions_have_interrupted_is_for_the_next_fetch() -> None:
    stock = Stock(says_the_end=False)
    with consuming(stock) as scene:
        consumer = scene.consumer
        for interruption in places():
            numbers = stock.store(2)
            got: list[jsclient.Msg] = []
            leave_unfinished(consumer, 0.01)
            with interruption:
                got.extend(consumer.fetch(2, timeout=TIMEOUT)._messages)
            fetch_rest(consumer, got, 2)
            assert seqs(got) == numbers
            assert_put_away(scene, consumer)
        assert_subscribed(scene)


def test_a_consumer_that_nobody_holds_leaves_nothing_unfinished() -> None:
    with consuming(Stock(says_the_end=False)) as scene:
        consumer = scene.nc.jetstream().consumer("S", "C")
        leave_unfinished(consumer, 0.01)
        lanes = consumer._own_lanes()
        assert lanes.pool.users
        del consumer
        deadline = time.monotonic() + TIMEOUT
        while lanes.pool.users or lanes.pool.free:
            assert time.monotonic() < deadline
            scene.heard()
        assert_subscribed(scene)


def test_a_lane_is_put_away_wherever_that_is_interrupted() -> None:
    with consuming(Stock(says_the_end=False)) as scene:
        lanes: Lanes = scene.consumer._own_lanes()
        for interruption in places():
            leave_unfinished(scene.consumer, 0.01)
            with interruption:
                lanes.await_leftovers(time.monotonic() + TIMEOUT)
            lanes.await_leftovers(time.monotonic() + TIMEOUT)
            assert_put_away(scene, scene.consumer)
        assert_subscribed(scene)


# Iterations ---------------------------------------------------------------------------


def test_an_iteration_asks_once_wherever_that_is_interrupted() -> None:
    desk = Desk()
    numbers = itertools.count(1)

    def serve() -> Iterable[bytes]:
        pull = desk.pulls[-1]
        return [pull.message(next(numbers)) for _ in range(pull.body["batch"])]

    desk.cues["serve"] = serve
    with (
        consuming(desk) as scene,
        scene.consumer.messages(4, threshold_messages=0) as messages,
    ):
        got: list[jsclient.Msg] = []
        for round_, interruption in enumerate(places(), 2):
            desk.wait_pull(round_ - 1)
            scene.cue("serve")
            got.extend(messages.next(TIMEOUT) for _ in range(4))
            # Nothing is there and nothing is owed: only who reads asks for more.
            with interruption, pytest.raises(jsclient.TimeoutError):
                messages.next(0.0)
            with pytest.raises(jsclient.TimeoutError):
                messages.next(0.0)
            desk.wait_pull(round_)
            scene.heard()
            assert [pull.body["batch"] for pull in desk.pulls] == [4] * round_
            assert messages._feed.inbox.owed == 4  # type: ignore[attr-defined]
        assert seqs(got) == list(range(1, len(got) + 1))


def test_no_message_is_lost_or_repeated_wherever_an_iteration_is_interrupted() -> None:
    stock = Stock(says_the_end=False)
    with consuming(stock) as scene:
        for interruption in places():
            numbers = stock.store(7)
            got: list[jsclient.Msg] = []
            with scene.consumer.messages(4) as messages:
                with interruption:
                    for _ in numbers:
                        got.append(messages.next(TIMEOUT))
                while len(got) < len(numbers):
                    got.append(messages.next(TIMEOUT))
            assert seqs(got) == numbers
            assert_put_away(scene, scene.consumer)
        assert_subscribed(scene)


def test_a_pull_that_is_given_up_is_replaced_wherever_that_is_interrupted() -> None:
    desk = Desk()
    numbers = itertools.count(1)

    def serve(pull: Pull) -> Iterable[bytes]:
        if len(desk.pulls) % 2:
            status = pull.status("409 Leadership Change")
            return [pull.message(next(numbers)), status]
        return [pull.message(next(numbers)) for _ in range(pull.body["batch"])]

    desk.on_pull = serve
    with consuming(desk) as scene:
        for interruption in places():
            with scene.consumer.messages(4, threshold_messages=0) as messages:
                got: list[jsclient.Msg] = []
                with interruption:
                    for _ in range(4):
                        got.append(messages.next(TIMEOUT))
                while len(got) < 4:
                    got.append(messages.next(TIMEOUT))
                first = got[0].metadata.stream_seq
                assert seqs(got) == list(range(first, first + 4))
                # Nothing of the one that was given up is owed any more.
                inbox = messages._feed.inbox
                assert inbox.owed + inbox.count <= 4  # type: ignore[attr-defined]
            assert_put_away(scene, scene.consumer)
        assert_subscribed(scene)


@pytest.mark.parametrize("kind", ["messages", "batches"])
def test_an_iteration_whose_start_is_interrupted_leaves_what_it_would_begin_with(
    kind: str,
) -> None:
    stock = Stock(says_the_end=False)
    with consuming(stock) as scene:
        consumer = scene.consumer
        for interruption in places():
            numbers = stock.store(2)
            got: list[jsclient.Msg] = []
            leave_unfinished(consumer, 0.01)
            reading = None
            with interruption:
                reading = getattr(consumer, kind)(4)
            if reading is not None:
                found = reading.next(TIMEOUT)
                got.extend([found, reading.next()] if kind == "messages" else found)
                reading.stop()
            fetch_rest(consumer, got, 2)
            assert seqs(got) == numbers
            assert_put_away(scene, consumer)
        assert_subscribed(scene)


def test_nothing_is_left_wherever_the_start_of_an_iteration_is_interrupted() -> None:
    with consuming(Desk()) as scene:
        for interruption in places():
            with interruption:
                scene.consumer.messages(4).stop()
            assert_put_away(scene, scene.consumer)
        assert_subscribed(scene)


@pytest.mark.parametrize("ending", ["stop", "drain"])
def test_an_iteration_ends_wherever_its_end_is_interrupted(ending: str) -> None:
    stock = Stock(says_the_end=False)
    with consuming(stock) as scene:
        for interruption in places():
            stock.store(3)
            messages = scene.consumer.messages(4)
            got = [messages.next(TIMEOUT)]
            with interruption:
                getattr(messages, ending)()
            getattr(messages, ending)()
            got.extend(messages)
            assert len(got) == (1 if ending == "stop" else 3)
            assert_put_away(scene, scene.consumer)
        assert_subscribed(scene)


# What one thread does for another ---------------------------------------------------


class Alarm(Exception):
    """What another signal handler raises."""


def is_at_the_helm(thread: int, loop: Loop) -> bool:
    """Whether that thread waits and somebody drives the loop."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not Loop.wait.__code__:
        frame = frame.f_back
    return frame is not None and not loop.helm.is_free


@pytest.mark.parametrize("kind", [Interrupt, Alarm])
def test_what_a_thread_wants_done_is_done_although_another_one_is_interrupted_in_it(
    kind: type[BaseException],
) -> None:
    main = threading.get_ident()
    attempts: list[int] = []
    with consuming(Desk()) as scene:
        loop = scene.nc._loop

        def job() -> None:
            attempts.append(threading.get_ident())
            if len(attempts) == 1:
                raise kind

        def ask_for_it() -> None:
            while not is_at_the_helm(main, loop):
                time.sleep(0.001)
            loop.call(job)

        asking = threading.Thread(target=ask_for_it)
        asking.start()
        with pytest.raises(kind):
            loop.wait(Gate(), time.monotonic() + TIMEOUT)
        asking.join(TIMEOUT)
        assert not asking.is_alive()
        assert (attempts[0], len(attempts)) == (main, 2)


# Acks ---------------------------------------------------------------------------------


def test_an_ack_is_confirmed_wherever_the_wait_for_that_is_interrupted() -> None:
    stock = Stock()
    with consuming(stock) as scene:
        for interruption in places():
            stock.store(1)
            msg = scene.consumer.next(TIMEOUT)
            acks = len(stock.acks)
            with interruption:
                msg.ack_sync(TIMEOUT)
            if interruption.is_over:
                msg.ack_sync(TIMEOUT)  # nothing happens if it was confirmed
            assert acks < len(stock.acks) <= acks + 2
        assert_subscribed(scene)
