"""A turn of the loop: reading, sending and sleeping until there is something to do."""

import math
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from jsclient._core import (
    Awaited,
    BatchInbox,
    Gate,
    Helm,
    Lane,
    Link,
    Outbox,
    PullInbox,
)
from jsclient.errors import ProtocolError
from tests.harness.compiled import Rig
from tests.harness.helms import PATIENCE
from tests.harness.lanes import courier, delivery

MIB = 1 << 20


class Boat:
    """A helm with a link, its far end, and a bell."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.far = far
        self.rig = Rig()
        self.link = Link(near.fileno())
        self.outbox = Outbox(MIB, 0)
        self.outbox.attach(self.link, b"")
        self.bell, self.rope = socket.socketpair()
        self.bell.setblocking(False)
        self.helm = Helm(lambda what, deadline: None, time.monotonic, self.outbox)
        self.gate = Gate()

    def turn(self, until: float | None = None, what: Awaited | None = None) -> int:
        """One turn, by default until something happens."""
        return self.helm.turn(
            self.link,
            self.rig.parser,
            self.gate if what is None else what,
            time.monotonic() + PATIENCE if until is None else until,
            self.bell.fileno(),
        )


@pytest.fixture
def boat() -> Iterator[Boat]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        boat = Boat(near, far)
        with boat.bell, boat.rope:
            yield boat


def later(do: object) -> threading.Timer:
    """Does it when the turn sleeps, or a moment before."""
    timer = threading.Timer(0.05, do)  # type: ignore[arg-type]
    timer.start()
    return timer


def test_a_turn_returns_with_what_is_there_to_read(boat: Boat) -> None:
    boat.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert boat.turn() == 15
    assert boat.rig.inboxes[1].count == 1


def test_a_turn_sleeps_until_there_is_something_to_read(boat: Boat) -> None:
    timer = later(lambda: boat.far.sendall(b"MSG a 1 2\r\nhi\r\n"))
    assert boat.turn() == 15
    timer.join()


def test_a_turn_ends_at_its_time(boat: Boat) -> None:
    assert boat.turn(until=-math.inf) == -1
    assert boat.turn(until=time.monotonic() + 0.01) == -1


def test_a_turn_ends_when_the_bell_is_rung_and_takes_the_ringing_away(
    boat: Boat,
) -> None:
    boat.rope.send(b"!!")
    assert boat.turn() == -1
    with pytest.raises(BlockingIOError):
        boat.bell.recv(1)


def test_a_turn_for_what_is_ready_does_not_sleep(boat: Boat) -> None:
    boat.gate.open()
    assert boat.turn(until=math.inf) == -1


def test_a_turn_sends_what_is_due_before_it_sleeps(boat: Boat) -> None:
    boat.outbox.control(b"PING\r\n")
    boat.turn(until=time.monotonic() + 0.01)
    assert boat.far.recv(100) == b"PING\r\n"


def ask(boat: Boat) -> None:
    """Sends a request: its answer is not expected to be there yet."""
    boat.outbox.publish("a", b"", "b", None, True)


def test_a_turn_right_after_a_request_returns_with_its_answer(boat: Boat) -> None:
    ask(boat)
    timer = later(lambda: boat.far.sendall(b"MSG a 1 2\r\nhi\r\n"))
    assert boat.turn() == 15
    timer.join()


def test_a_turn_without_time_reads_what_is_there_after_a_request_too(
    boat: Boat,
) -> None:
    boat.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    ask(boat)
    assert boat.turn(until=-math.inf) == 15


def test_a_turn_leaves_a_socket_that_takes_no_more_to_its_caller(boat: Boat) -> None:
    while not boat.link.is_blocked:
        boat.outbox.publish("a", bytes(60_000), None, None)
        boat.outbox.send()
    assert boat.turn(until=math.inf) == -1
    assert boat.link.is_blocked


def test_a_turn_tells_the_end_of_the_stream(boat: Boat) -> None:
    boat.far.close()
    assert boat.turn() == 0


def test_a_turn_raises_what_is_wrong_with_the_stream(boat: Boat) -> None:
    boat.far.sendall(b"nonsense\r\n")
    with pytest.raises(ProtocolError):
        boat.turn()


def test_a_control_line_ends_a_turn(boat: Boat) -> None:
    boat.far.sendall(b"PING\r\n")
    assert boat.turn() == 6
    # It is not handled yet, and nothing else is there to read.
    assert boat.turn(until=math.inf) == -1


class Interrupted(BaseException):
    """What the signal handler raises."""


def test_a_signal_handler_that_raises_ends_a_turn_at_once(boat: Boat) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    timer = later(lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        with pytest.raises(Interrupted):
            boat.turn()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_that_makes_it_ready_ends_a_turn(boat: Boat) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        boat.gate.open()

    before = signal.signal(signal.SIGUSR1, handle)
    main = threading.main_thread().ident
    assert main is not None
    timer = later(lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        assert boat.turn() == -1
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert boat.gate.is_open


@pytest.mark.parametrize(("kind", "is_whole"), [(BatchInbox, True), (PullInbox, False)])
def test_a_turn_for_columns_takes_all_that_is_there_to_read(
    boat: Boat, kind: type[PullInbox], is_whole: bool
) -> None:
    inbox = kind(courier())
    lane = Lane()
    lane.assign(2, 1)
    lane.open(inbox, "_INBOX.x.1.1", 10_000, 0)
    boat.rig.routes.add(2, lane)
    # More than one read takes, less than the socket holds.
    frames = [delivery(number, data=bytes(500)).frame(2) for number in range(200)]
    boat.far.sendall(b"".join(frames))
    assert boat.turn(what=inbox) > 0
    assert (inbox.count == 200) is is_whole


# Steering -----------------------------------------------------------------------------


class Clock:
    """Has something to do at its deadline."""

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline


class Live:
    """A link and its clocks."""

    def __init__(self, boat: Boat) -> None:
        self.link = boat.link
        self.parser = boat.rig.parser
        self.session = Clock()
        self.leave_at = math.inf


class Steered:
    """A boat that is steered for the messages of the sid 1."""

    def __init__(self, boat: Boat) -> None:
        boat.helm.start(boat.link)
        self.boat = boat
        self.live = Live(boat)
        self.machines: list[Clock] = []
        self.calls: list[object] = []
        self.inbox = boat.rig.inboxes[1]

    def steer(self, deadline: float | None = None) -> int | None:
        return self.boat.helm.steer(
            self.live,
            self.machines,
            self.calls,
            self.inbox,
            time.monotonic() + PATIENCE if deadline is None else deadline,
            self.boat.bell.fileno(),
        )


@pytest.fixture
def steered(boat: Boat) -> Steered:
    return Steered(boat)


def test_steering_ends_with_what_is_waited_for_and_nothing_else_to_do(
    steered: Steered,
) -> None:
    steered.boat.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert steered.steer() is None
    assert steered.inbox.count == 1


def test_steering_goes_on_while_other_messages_come(steered: Steered) -> None:
    far = steered.boat.far
    far.sendall(b"MSG other 2 2\r\nhi\r\n")
    timer = later(lambda: far.sendall(b"MSG a 1 2\r\nhi\r\n"))
    assert steered.steer() is None
    timer.join()


def test_steering_leaves_control_lines_to_the_loop(steered: Steered) -> None:
    steered.boat.far.sendall(b"MSG a 1 2\r\nhi\r\nPING\r\n")
    assert steered.steer() == 21


def test_steering_leaves_the_end_of_the_stream_to_the_loop(steered: Steered) -> None:
    steered.boat.far.close()
    assert steered.steer() == 0


def test_steering_leaves_jobs_that_wait_for_the_helm_to_the_loop(
    steered: Steered,
) -> None:
    steered.calls.append("a job")
    steered.boat.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert steered.steer() == 15


def test_steering_leaves_a_link_that_must_end_to_the_loop(steered: Steered) -> None:
    steered.boat.helm.stop(steered.boat.link)
    steered.boat.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert steered.steer() == 15


@pytest.mark.parametrize("whose", ["session", "leave_at", "machine"])
def test_steering_leaves_what_is_due_to_the_loop(steered: Steered, whose: str) -> None:
    past = time.monotonic() - 1.0
    if whose == "session":
        steered.live.session.deadline = past
    elif whose == "leave_at":
        steered.live.leave_at = past
    else:
        steered.machines += [Clock(), Clock(past)]
    steered.boat.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert steered.steer() == 15
    assert steered.steer() == -1  # it does not sleep either


def test_steering_ends_at_its_deadline(steered: Steered) -> None:
    assert steered.steer(time.monotonic() + 0.01) == -1
