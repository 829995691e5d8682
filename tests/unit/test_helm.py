"""The helm: one thread drives, the others sleep, and no wake-up is lost."""

import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from jsclient._core import Awaited, Gate, Helm, Inbox, Msg, Outbox
from tests.harness.compiled import Rig
from tests.harness.helms import PATIENCE, Deck, Sailor, idle_helm

ME = threading.current_thread().name


class Interrupted(BaseException):
    """What a signal handler raises."""


def waiting(
    deck: Deck, what: Awaited, deadline: float = math.inf
) -> Callable[[], bool]:
    return lambda: deck.helm.wait(what, deadline)


def opened(error: BaseException | None = None) -> Gate:
    gate = Gate()
    gate.open(error)
    return gate


# One thread


def test_waiting_for_what_is_ready_drives_nothing() -> None:
    deck = Deck()
    assert deck.helm.wait(opened(), 0.0)
    assert (deck.drivers, deck.helm.shifts) == ([], 0)


def test_a_waiting_thread_takes_the_free_helm_and_leaves_it_free() -> None:
    deck, gate = Deck(), Gate()
    free = [deck.helm.is_free]

    def look_and_open() -> None:
        free.append(deck.helm.is_free)
        gate.open()

    deck.order(look_and_open)
    assert deck.helm.wait(gate, math.inf)
    assert [*free, deck.helm.is_free] == [True, False, True]
    assert (deck.drivers, deck.helm.shifts) == ([ME], 1)


def test_a_wait_ends_at_its_deadline() -> None:
    deck = Deck()

    def pass_time() -> None:
        deck.time += 5.0

    for _ in range(2):
        deck.order(pass_time)
        deck.dismiss()
    assert not deck.helm.wait(Gate(), 10.0)
    assert deck.drivers == [ME, ME]


def test_a_wait_without_a_link_sleeps_to_its_deadline() -> None:
    helm = Helm(lambda what, deadline: None, time.monotonic, Outbox(1 << 20, 0))
    start = time.monotonic()
    assert not helm.wait(Gate(), start + 0.05)
    assert 0.05 <= time.monotonic() - start < 2.0
    assert helm.shifts == 0
    assert not helm.is_wanted


@pytest.mark.parametrize("deadline", [-math.inf, -1.0, 0.0, 1.0])
def test_a_deadline_in_the_past_ends_at_once(deadline: float) -> None:
    assert not idle_helm().wait(Gate(), deadline)


def test_an_exception_of_the_loop_leaves_the_helm_free() -> None:
    deck = Deck()

    def fail() -> None:
        raise Interrupted

    for _ in range(2):
        deck.order(fail)
        with pytest.raises(Interrupted):
            deck.helm.wait(Gate(), math.inf)
        assert deck.helm.is_free
    gate = Gate()
    deck.order(gate.open)
    assert deck.helm.wait(gate, math.inf)


def test_a_thread_at_the_helm_may_wait_again_inside() -> None:
    deck, outer, inner = Deck(), Gate(), Gate()

    def nested() -> None:
        deck.order(inner.open)
        assert deck.helm.wait(inner, math.inf)
        assert not deck.helm.is_free, "the outer wait still has the helm"
        outer.open()

    deck.order(nested)
    assert deck.helm.wait(outer, math.inf)
    assert deck.helm.is_free
    assert deck.drivers == [ME, ME]


# The bell


def test_whoever_makes_it_ready_rings_the_helm_without_a_step_of_python_code() -> None:
    # A signal handler could raise in it, after a message was counted as taken.
    rig, entered, left = Rig(), threading.Event(), threading.Event()
    rig.parser.feed(b"MSG a 1 1\r\nx\r\n")
    inbox = rig.inboxes[1]

    def drive(what: Awaited | None, deadline: float) -> None:
        entered.set()
        assert left.wait(PATIENCE)

    bell, rope = socket.socketpair()
    with bell, rope:
        helm = Helm(drive, time.monotonic, Outbox(1 << 20, 0), rope.fileno())
        helm.start()
        gate = inbox.await_empty()
        driver = Sailor("driver", lambda: helm.wait(gate, math.inf))
        assert entered.wait(PATIENCE)
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            msg = inbox.take()
        finally:
            sys.setprofile(None)
        assert msg is not None
        assert "call" not in events
        assert bell.recv(10) == b"!"
        left.set()
        assert driver.result()


def test_a_rope_that_was_cut_is_left_alone() -> None:
    bell, rope = socket.socketpair()
    with bell, rope:
        helm = Helm(
            lambda what, deadline: None,
            time.monotonic,
            Outbox(1 << 20, 0),
            rope.fileno(),
        )
        helm.ring()
        helm.ring()
        assert bell.recv(10) == b"!!"
        helm.cut_rope()
        helm.ring()
        bell.setblocking(False)
        with pytest.raises(BlockingIOError):
            bell.recv(10)


# Several threads


def test_a_second_thread_sleeps_until_its_own_thing_is_ready() -> None:
    deck, first, second = Deck(), Gate(), Gate()
    driver = deck.driver(waiting(deck, first))
    sleeper = deck.sleeper(waiting(deck, second))
    states = [(driver.is_done, deck.helm.is_wanted)]
    deck.order(second.open)
    assert sleeper.result()
    states.append((driver.is_done, deck.helm.is_wanted))
    assert states == [(False, True), (False, False)]
    deck.order(first.open)
    assert driver.result()
    assert deck.drivers == ["driver"]


def test_a_thread_that_leaves_passes_the_helm_to_a_sleeper() -> None:
    deck, first, second = Deck(), Gate(), Gate()
    driver = deck.driver(waiting(deck, first))
    sleeper = deck.sleeper(waiting(deck, second))
    deck.order(first.open)
    assert driver.result()
    deck.await_driver("sleeper")
    deck.order(second.open)
    assert sleeper.result()
    assert deck.helm.is_free


def test_an_exception_in_the_loop_passes_the_helm_to_a_sleeper() -> None:
    deck, second = Deck(), Gate()

    def fail() -> None:
        raise Interrupted

    driver = deck.driver(waiting(deck, Gate()))
    sleeper = deck.sleeper(waiting(deck, second))
    deck.order(fail)
    with pytest.raises(Interrupted):
        driver.result()
    deck.await_driver("sleeper")
    deck.order(second.open)
    assert sleeper.result()


def test_a_sleeper_whose_deadline_passed_leaves_the_helm_to_the_next() -> None:
    deck, gate = Deck(), Gate()
    driver = deck.driver(waiting(deck, Gate(), 50.0))
    late = deck.sleeper(waiting(deck, Gate(), 50.0), "late")
    patient = deck.sleeper(waiting(deck, gate), "patient")
    deck.time = 100.0
    deck.dismiss()
    assert not driver.result()
    assert not late.result()
    deck.await_driver("patient")
    deck.order(gate.open)
    assert patient.result()


def test_a_sleeper_woken_at_its_deadline_does_not_keep_the_helm_from_the_next() -> None:
    deck, gate = Deck(), Gate()
    driver = deck.driver(waiting(deck, Gate(), 50.0))
    late = deck.sleeper(waiting(deck, Gate(), 50.0), "late")
    patient = deck.sleeper(waiting(deck, gate), "patient")
    # It is time a moment after that thread has looked at the clock.
    deck.time = 100.0
    deck.earlier["late"] = [0.0]
    deck.dismiss()
    assert not driver.result()
    deck.await_driver("late")
    deck.dismiss()
    assert not late.result()
    deck.await_driver("patient")
    deck.order(gate.open)
    assert patient.result()


def test_a_sleeper_that_finds_its_thing_ready_leaves_the_helm_to_the_next() -> None:
    deck, first, last = Deck(), Gate(), Gate()
    driver = deck.driver(waiting(deck, Gate(), 50.0))
    ready = deck.sleeper(waiting(deck, first), "ready")
    patient = deck.sleeper(waiting(deck, last), "patient")
    deck.time = 100.0

    def open_and_leave() -> None:
        # In one step of the loop, so that the next thread finds both.
        first.open()
        deck.dismiss()

    deck.order(open_and_leave)
    assert not driver.result()
    assert ready.result()
    deck.await_driver("patient")
    deck.order(last.open)
    assert patient.result()


def test_ten_threads_each_get_their_own() -> None:
    deck = Deck()
    gates = [Gate() for _ in range(10)]
    first = deck.driver(waiting(deck, gates[0]), "thread0")
    rest = [
        deck.sleeper(waiting(deck, gate), f"thread{i}")
        for i, gate in enumerate(gates[1:], 1)
    ]
    for gate in reversed(gates):
        deck.order(gate.open)
    assert all(sailor.result() for sailor in [*rest, first])
    assert deck.helm.is_free


def test_messages_for_one_inbox_go_to_as_many_sleepers() -> None:
    deck, rig = Deck(), Rig()
    inbox = rig.inboxes[1]

    def take() -> bytes | None:
        hand: list[Msg | None] = [None]
        inbox.take_into(hand, deck.helm, math.inf)
        return None if hand[0] is None else hand[0].data

    gate = Gate()
    driver = deck.driver(waiting(deck, gate))
    takers = [deck.sleeper(take, f"taker{i}") for i in range(4)]
    deck.order(lambda: rig.parser.feed(b"MSG a 1 1\r\n0\r\nMSG a 1 1\r\n1\r\n"))
    deck.order(lambda: rig.parser.feed(b"MSG a 1 1\r\n2\r\nMSG a 1 1\r\n3\r\n"))
    assert sorted(str(taker.result()) for taker in takers) == [
        "b'0'",
        "b'1'",
        "b'2'",
        "b'3'",
    ]
    assert inbox.taken == 4
    deck.order(gate.open)
    assert driver.result()


def test_the_end_of_an_inbox_wakes_everyone_who_waits_for_it() -> None:
    deck, rig = Deck(), Rig()
    inbox, gate = rig.inboxes[1], Gate()
    driver = deck.driver(waiting(deck, gate))

    def take() -> bool:
        return inbox.take_into([None], deck.helm, math.inf)

    takers = [deck.sleeper(take, f"taker{i}") for i in range(3)]
    inbox.set_limit(1)
    deck.order(lambda: rig.parser.feed(b"MSG a 1 1\r\n0\r\n"))
    assert sorted(taker.result() for taker in takers) == [False, False, True]
    deck.order(gate.open)
    assert driver.result()


# With and without a link


def test_without_a_link_nobody_drives_until_there_is_one() -> None:
    deck, gate = Deck(), Gate()
    deck.helm.stop()
    sleepers = [deck.sleeper(waiting(deck, gate), f"thread{i}") for i in range(2)]
    assert deck.drivers == []
    deck.helm.start()
    deck.await_driver("thread0")
    deck.order(gate.open)
    assert all(sleeper.result() for sleeper in sleepers)


def test_a_thread_that_leaves_a_lost_link_wakes_nobody() -> None:
    deck, gate = Deck(), Gate()
    driver = deck.driver(waiting(deck, Gate(), 50.0))
    sleeper = deck.sleeper(waiting(deck, gate))
    deck.time = 100.0
    deck.helm.stop()
    deck.dismiss()
    assert not driver.result()
    assert not sleeper.is_done
    gate.open()
    assert sleeper.result()
    assert deck.drivers == ["driver"]


def test_closing_ends_every_wait() -> None:
    deck, gate = Deck(), Gate()
    driver = deck.driver(waiting(deck, Gate()))
    sleepers = [deck.sleeper(waiting(deck, gate), f"thread{i}") for i in range(3)]
    deck.helm.close()
    assert not any(sleeper.result() for sleeper in sleepers)
    deck.dismiss()
    assert not driver.result()
    assert (deck.helm.is_closed, deck.helm.is_steerable) == (True, False)
    assert not deck.helm.wait(gate, math.inf)
    assert deck.helm.wait(opened(), math.inf)


# The keeper


def test_a_keeper_drives_a_free_helm_with_nothing_to_wait_for() -> None:
    deck = Deck()
    deck.dismiss()
    deck.helm.keep()
    assert (deck.drivers, deck.helm.shifts) == ([ME], 1)


def test_a_keeper_leaves_a_helm_alone_that_is_held_wanted_or_useless() -> None:
    deck, gate = Deck(), Gate()
    driver = deck.driver(waiting(deck, gate))
    deck.helm.keep()
    deck.order(gate.open)
    assert driver.result()

    deck.helm.stop()
    deck.helm.keep()
    late = Gate()
    sleeper = deck.sleeper(waiting(deck, late))
    deck.helm.keep()
    late.open()
    assert sleeper.result()
    assert deck.drivers == ["driver"]


def test_a_keeper_wakes_a_sleeper_to_a_helm_that_lies_free() -> None:
    deck, gate = Deck(), Gate()
    deck.helm.stop()
    sleeper = deck.sleeper(waiting(deck, gate))
    deck.helm.start()
    deck.await_driver("sleeper")
    deck.helm.keep()
    deck.order(gate.open)
    assert sleeper.result()
    assert deck.drivers == ["sleeper"]


def test_a_gate_tells_when_another_thread_left_the_helm() -> None:
    deck, gate = Deck(), Gate()
    assert deck.helm.leaving().is_open
    driver = deck.driver(waiting(deck, gate))
    leaving = deck.helm.leaving()
    assert not leaving.is_open
    assert deck.helm.leaving() is leaving
    own: list[bool] = []
    deck.order(lambda: own.append(deck.helm.leaving().is_open))
    deck.order(gate.open)
    assert driver.result()
    assert own == [True]
    assert leaving.is_open


def test_a_thread_may_sleep_until_the_helm_is_free_or_something_is_ready() -> None:
    deck, gate, what = Deck(), Gate(), Gate()
    deck.helm.await_free(what)
    driver = deck.driver(waiting(deck, gate))
    first = Sailor("first", lambda: deck.helm.await_free(what))
    second = Sailor("second", lambda: deck.helm.await_free(Gate()))
    what.open()
    first.result()
    assert not second.is_done
    deck.order(gate.open)
    assert driver.result()
    second.result()


# Signals: a handler may raise in any wait


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Says what the handler does at its first run."""
    actions: list[Callable[[], None]] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if actions:
            handled.set()
            actions.pop()()

    handled.clear()
    before = signal.signal(signal.SIGUSR1, handle)
    yield actions.append
    actions.clear()
    signal.signal(signal.SIGUSR1, before)


handled = threading.Event()


def interrupt_sleeping_main_thread(
    deck: Deck, ready: Callable[[], None]
) -> Sailor[None]:
    """A thread that calls `ready` and sends signals once the main thread sleeps."""
    main = threading.main_thread()
    ident = main.ident
    assert ident is not None

    def watch() -> None:
        deck.await_sleep(main.name)
        ready()
        # A signal that comes between the last look at signals and the sleep does not
        # end the sleep, in CPython's own locks as here; the next one does.
        signal.pthread_kill(ident, signal.SIGUSR1)
        while not handled.wait(0.05):
            signal.pthread_kill(ident, signal.SIGUSR1)

    return Sailor("watch", watch)


OnSignal = Callable[[Callable[[], None]], None]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no user signals here")
class TestSignals:
    def test_a_handler_that_raises_ends_the_wait_and_loses_nothing(
        self, on_signal: OnSignal
    ) -> None:
        deck, gate = Deck(), Gate()
        driver = deck.driver(waiting(deck, gate))

        def interrupt() -> None:
            raise Interrupted

        on_signal(interrupt)
        watch = interrupt_sleeping_main_thread(deck, lambda: None)
        with pytest.raises(Interrupted):
            deck.helm.wait(Gate(), math.inf)
        watch.result()
        assert not deck.helm.is_wanted
        deck.order(gate.open)
        assert driver.result()

    def test_a_handler_that_returns_lets_the_wait_go_on(
        self, on_signal: OnSignal
    ) -> None:
        deck, gate, mine = Deck(), Gate(), Gate()
        driver = deck.driver(waiting(deck, gate))
        on_signal(lambda: deck.order(mine.open))
        watch = interrupt_sleeping_main_thread(deck, lambda: None)
        assert deck.helm.wait(mine, math.inf)
        watch.result()
        deck.order(gate.open)
        assert driver.result()

    def test_the_helm_meant_for_an_interrupted_sleeper_goes_to_another(
        self, on_signal: OnSignal
    ) -> None:
        deck, first, second = Deck(), Gate(), Gate()
        driver = deck.driver(waiting(deck, first))
        others: list[Sailor[bool]] = []

        def leave_the_helm_to_me_and_interrupt() -> None:
            deck.order(first.open)
            assert driver.result()
            raise Interrupted

        on_signal(leave_the_helm_to_me_and_interrupt)
        watch = interrupt_sleeping_main_thread(
            deck, lambda: others.append(deck.sleeper(waiting(deck, second)))
        )
        with pytest.raises(Interrupted):
            deck.helm.wait(Gate(), math.inf)
        watch.result()
        deck.await_driver("sleeper")
        deck.order(second.open)
        assert others[0].result()

    def test_the_message_of_an_interrupted_sleeper_goes_to_another(
        self, on_signal: OnSignal
    ) -> None:
        deck, rig, gate = Deck(), Rig(), Gate()
        inbox: Inbox = rig.inboxes[1]
        driver = deck.driver(waiting(deck, gate))
        others: list[Sailor[bool]] = []
        hand: list[Msg | None] = [None]

        def take() -> bool:
            return inbox.take_into(hand, deck.helm, math.inf)

        def bring_a_message_and_interrupt() -> None:
            rig.parser.feed(b"MSG a 1 1\r\nx\r\n")
            raise Interrupted

        on_signal(bring_a_message_and_interrupt)
        watch = interrupt_sleeping_main_thread(
            deck, lambda: others.append(deck.sleeper(take))
        )
        mine: list[Msg | None] = [None]
        with pytest.raises(Interrupted):
            inbox.take_into(mine, deck.helm, math.inf)
        watch.result()
        assert others[0].result()
        assert mine == [None]
        assert hand[0] is not None
        assert inbox.taken == 1
        deck.order(gate.open)
        assert driver.result()

    def test_an_interrupted_loop_passes_the_helm_on(self, on_signal: OnSignal) -> None:
        deck, gate = Deck(), Gate()
        others: list[Sailor[bool]] = []

        def interrupt() -> None:
            raise Interrupted

        def be_interrupted() -> None:
            others.append(deck.sleeper(waiting(deck, gate)))
            signal.raise_signal(signal.SIGUSR1)

        on_signal(interrupt)
        deck.order(be_interrupted)
        with pytest.raises(Interrupted):
            deck.helm.wait(Gate(), math.inf)
        deck.await_driver(ME)
        deck.await_driver("sleeper")
        deck.order(gate.open)
        assert others[0].result()


# Gates


def test_a_gate_opens_once_and_keeps_its_first_error() -> None:
    gate, error = Gate(), ValueError("first")
    assert (gate.ready, gate.is_open, gate.error) == (False, False, None)
    gate.open(error)
    gate.open(ValueError("second"))
    assert (gate.ready, gate.is_open, gate.error) == (True, True, error)
    assert opened().error is None


def test_sleeping_at_a_gate_ends_when_it_opens_or_the_time_is_over() -> None:
    gate = Gate()
    start = time.monotonic()
    assert not gate.sleep(0.02)
    assert time.monotonic() - start >= 0.02
    assert not gate.sleep(0.0)
    assert not gate.sleep(-1.0)
    sleeper = Sailor("sleeper", lambda: gate.sleep(math.inf))
    gate.open()
    assert sleeper.result()
    assert gate.sleep(math.inf)
