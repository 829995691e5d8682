"""A turn of the loop: reading, sending and sleeping until there is something to do."""

from __future__ import annotations

import contextlib
import ctypes
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from operator import methodcaller
from types import FrameType

import pytest

from jsclient._core import (
    Awaited,
    BatchInbox,
    Gate,
    Helm,
    Lane,
    Link,
    LiveLink,
    Outbox,
    PullInbox,
)
from jsclient.errors import ProtocolError
from tests.harness.compiled import Rig
from tests.harness.helms import PATIENCE
from tests.harness.lanes import courier, delivery

MIB = 1 << 20
QUIET = 0.001  # longer than an outbox takes for a burst


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

    def equip(self, machines: list[Clock], calls: list[object]) -> None:
        """What belongs to the loop."""
        self.helm.equip(machines, calls, self.bell.fileno(), lambda live, error: False)

    def turn(self, until: float | None = None, what: Awaited | None = None) -> int:
        """One turn, by default until something happens."""
        self.equip([], ["a job that waits for the end of this turn"])
        received = self.helm.steer(
            Live(self),
            self.gate if what is None else what,
            time.monotonic() + PATIENCE if until is None else until,
        )
        assert received is not None
        return received


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


def pulled(
    boat: Boat, kind: type[PullInbox] = PullInbox, batch: int = 10_000
) -> PullInbox:
    """The inbox of a pull whose messages come on the sid 2."""
    inbox, lane = kind(courier(boat.outbox)), Lane()
    lane.assign(2, 1)
    lane.open(inbox, "_INBOX.x.1.1", batch, 0)
    boat.rig.routes.add(2, lane)
    return inbox


def acked(boat: Boat, inbox: PullInbox, pause: float) -> bytes:
    """What is on the wire when a message that a turn has brought is acknowledged."""
    time.sleep(QUIET)
    boat.far.sendall(delivery(1).frame(2))
    boat.turn(what=inbox)
    msg = inbox.take()
    assert msg is not None
    time.sleep(pause)
    msg.ack()
    try:
        return boat.far.recv(1000, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def test_acks_of_what_was_just_read_wait_for_each_other(boat: Boat) -> None:
    inbox = pulled(boat)
    deadline = time.monotonic() + PATIENCE
    # On a machine that is busy elsewhere the reader may be late, and the ack due.
    while acked(boat, inbox, 0.0):
        assert time.monotonic() < deadline
    boat.turn(until=time.monotonic() + 0.01)
    assert b"+ACK" in boat.far.recv(1000, socket.MSG_DONTWAIT)


def test_the_ack_of_a_message_that_took_its_time_is_sent_at_once(boat: Boat) -> None:
    assert b"+ACK" in acked(boat, pulled(boat), QUIET)


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
    inbox = pulled(boat, kind)
    # More than one read takes, less than the socket holds.
    frames = [delivery(number, data=bytes(500)).frame(2) for number in range(200)]
    boat.far.sendall(b"".join(frames))
    assert boat.turn(what=inbox) > 0
    assert (inbox.count == 200) is is_whole


@pytest.mark.parametrize("first", [b"", delivery(1).frame(2) + b"PING\r\n"])
def test_a_turn_for_columns_reads_on_only_for_their_sake(
    boat: Boat, first: bytes
) -> None:
    inbox = BatchInbox(courier())
    lane = Lane()
    lane.assign(2, 1)
    lane.open(inbox, "_INBOX.x.1.1", 10_000, 0)
    boat.rig.routes.add(2, lane)
    # More than one read takes, less than the socket holds.
    boat.far.sendall(first + (b"MSG other 3 500\r\n" + bytes(500) + b"\r\n") * 200)
    assert boat.turn(what=inbox) > 0
    assert boat.rig.parser.messages < 200


# Floods -------------------------------------------------------------------------------

linux_alone = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems cannot sleep for so short a time"
)


class Tide:
    """Parts of a flood: each comes when the thread at the helm is about to sleep.

    It comes of its own accord; what a test awaits is that a turn saw two parts.
    """

    def __init__(self, boat: Boat, inbox: PullInbox) -> None:
        self.boat = boat
        self.inbox = inbox
        self.waiting: list[bytes] = []
        boat.helm = Helm(lambda what, deadline: None, self._now, boat.outbox)

    def _now(self) -> float:
        if self.waiting and threading.current_thread() is threading.main_thread():
            self.boat.far.sendall(self.waiting.pop())
        return time.monotonic()

    def turn(self, first: int, second: int) -> int:
        """How many came in a turn, which begins with the first part."""
        self.waiting = [b"".join(delivery(n).frame(2) for n in range(second))]
        self.boat.far.sendall(b"".join(delivery(n).frame(2) for n in range(first)))
        before = self.inbox.arrived
        assert self.boat.turn(what=self.inbox) > 0
        self.waiting = []
        return self.inbox.arrived - before

    def is_seen(self, first: int, second: int) -> bool:
        """Whether one of some turns saw both parts."""
        for _ in range(10):
            self.turn(1, 0)  # so that the next one is soon after it
            came = self.turn(first, second)
            assert came in (first, first + second)
            if came > first:
                return True
        return False


@linux_alone
def test_columns_rest_in_a_flood_and_take_what_came_meanwhile(boat: Boat) -> None:
    assert Tide(boat, pulled(boat, BatchInbox, 10**9)).is_seen(1_000, 10)


def test_columns_do_not_rest_for_few_messages(boat: Boat) -> None:
    assert not Tide(boat, pulled(boat, BatchInbox, 10**9)).is_seen(10, 10)


def test_columns_are_taken_when_more_is_to_be_asked_for(boat: Boat) -> None:
    inbox = pulled(boat, BatchInbox, 10**9)
    inbox.threshold = 10**9
    assert not Tide(boat, inbox).is_seen(1_000, 10)


def test_nobody_rests_while_other_threads_wait(boat: Boat) -> None:
    other = Gate()
    tide = Tide(boat, pulled(boat, BatchInbox, 10**9))
    sleeper = threading.Thread(target=boat.helm.wait, args=(other, math.inf))
    sleeper.start()
    while not boat.helm.is_wanted:
        time.sleep(0.001)
    try:
        assert not tide.is_seen(1_000, 10)
    finally:
        other.open()
        sleeper.join()


@linux_alone
def test_an_exception_before_a_rest_loses_nothing(boat: Boat) -> None:
    def now() -> float:
        raise Interrupted

    inbox = pulled(boat, BatchInbox, 10**9)
    tide = Tide(boat, inbox)
    came = 0
    for _ in range(10):
        came += tide.turn(1, 0) + 1_000
        boat.far.sendall(b"".join(delivery(n).frame(2) for n in range(1_000)))
        calm = boat.helm
        boat.helm = Helm(lambda what, deadline: None, now, boat.outbox)
        try:
            boat.turn(what=inbox)
        except Interrupted:
            break
        boat.helm = calm
    else:
        pytest.fail("it never rested")
    assert (inbox.count, inbox.arrived) == (came, came)


def test_messages_that_come_after_a_flood_are_waited_for(boat: Boat) -> None:
    inbox = pulled(boat, PullInbox, 10**9)
    tide = Tide(boat, inbox)
    tide.turn(1, 0)
    inbox.take_all()
    tide.turn(1_000, 0)
    inbox.take_all()
    timer = later(lambda: boat.far.sendall(delivery(1).frame(2)))
    assert boat.turn(what=inbox) > 0
    timer.join()
    assert inbox.count == 1


# Steering -----------------------------------------------------------------------------


class Clock:
    """Has something to do at its deadline."""

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline


class Live(LiveLink):
    """A link and its clocks."""

    session: Clock

    def __init__(self, boat: Boat) -> None:
        super().__init__(boat.link, boat.rig.parser, Clock())


class Steered:
    """A boat that is steered for the messages of the sid 1."""

    def __init__(self, boat: Boat) -> None:
        boat.helm.start(boat.link)
        self.boat = boat
        self.live = Live(boat)
        self.machines: list[Clock] = []
        self.calls: list[object] = []
        self.inbox = boat.rig.inboxes[1]
        boat.equip(self.machines, self.calls)

    def steer(self, deadline: float | None = None) -> int | None:
        return self.steering(deadline)()

    def steering(self, deadline: float | None = None) -> partial[int | None]:
        """The compiled call itself."""
        return partial(
            self.boat.helm.steer,
            self.live,
            self.inbox,
            time.monotonic() + PATIENCE if deadline is None else deadline,
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


FLOOD = """
import socket, sys
far = socket.socket(fileno=int(sys.argv[1]))
while True:
    far.sendall(b"MSG other 2 1\\r\\nx\\r\\n" * 10_000)
"""


@contextlib.contextmanager
def flood(far: socket.socket) -> Iterator[None]:
    """Another process sends messages for nobody, without end."""
    number = far.fileno()
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(number)], pass_fds=[number]
    ) as process:
        yield
        process.kill()


def test_a_flood_of_messages_for_others_is_left_to_the_loop_now_and_then(
    steered: Steered,
) -> None:
    deadline = time.monotonic() + PATIENCE
    with flood(steered.boat.far):
        received = steered.steer(deadline)
        left = deadline - time.monotonic()
    assert received is not None
    assert received > 0
    assert left > 0, "no other thread had a turn until the deadline"


def test_a_signal_handler_that_is_due_runs_before_anything_is_read(
    steered: Steered,
) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    # Without a step of Python code between the signal and the turn.
    calls = [
        partial(ctypes.CDLL(None)["raise"], int(signal.SIGUSR1)),
        steered.steering(time.monotonic() + PATIENCE),
    ]
    steered.boat.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            deque(map(methodcaller("__call__"), calls), maxlen=0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert steered.inbox.count == 0


# Waiting ------------------------------------------------------------------------------


class Sailing:
    """A boat whose threads wait for the messages of the sid 1."""

    def __init__(self, boat: Boat) -> None:
        self.far = boat.far
        self.live = Live(boat)
        self.inbox = boat.rig.inboxes[1]
        self.drives: list[str] = []
        self.failures: list[str] = []
        self.is_ours = True
        self.calls: list[object] = []
        self.helm = Helm(self._drive, time.monotonic, boat.outbox)
        self.helm.equip([], self.calls, boat.bell.fileno(), self._fail)
        self.helm.start(boat.link, self.live)
        self.parser = boat.rig.parser

    def _drive(self, what: Awaited | None, deadline: float) -> None:
        assert not self.helm.is_free
        self.drives.append("for nothing" if what is None else "for it")
        self.helm.close()

    def _fail(self, live: Live, error: Exception) -> bool:
        assert live is self.live
        self.failures.append(type(error).__name__)
        if self.is_ours:
            self.helm.close()
        return self.is_ours

    def wait(self) -> bool:
        return self.helm.wait(self.inbox, time.monotonic() + PATIENCE)


@pytest.fixture
def sailing(boat: Boat) -> Sailing:
    return Sailing(boat)


def test_a_message_is_waited_for_without_the_loop(sailing: Sailing) -> None:
    sailing.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert sailing.wait()
    assert (sailing.drives, sailing.helm.is_free) == ([], True)
    assert sailing.inbox.count == 1


def test_what_is_no_message_is_left_to_the_loop(sailing: Sailing) -> None:
    sailing.far.sendall(b"PING\r\n")
    assert not sailing.wait()
    assert (sailing.drives, sailing.parser.pings) == (["for it"], 1)


def test_jobs_that_wait_for_the_helm_come_before_anything_is_read(
    sailing: Sailing,
) -> None:
    sailing.calls.append("a job")
    sailing.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert not sailing.wait()
    assert (sailing.drives, sailing.inbox.count) == (["for it"], 0)


def test_a_keeper_has_the_loop_driven(sailing: Sailing) -> None:
    sailing.helm.keep()
    assert sailing.drives == ["for nothing"]


def test_a_lost_link_is_not_steered(sailing: Sailing) -> None:
    sailing.helm.stop(sailing.live.link)
    sailing.helm.start()
    sailing.far.sendall(b"MSG a 1 2\r\nhi\r\n")
    assert not sailing.wait()
    assert (sailing.drives, sailing.inbox.count) == (["for it"], 0)


def test_an_error_of_the_link_is_told_and_ends_the_turn(sailing: Sailing) -> None:
    sailing.far.sendall(b"nonsense\r\n")
    assert not sailing.wait()
    assert (sailing.failures, sailing.drives) == (["ProtocolError"], [])
    assert sailing.helm.is_free


def test_an_error_that_is_not_of_the_link_is_raised(sailing: Sailing) -> None:
    sailing.is_ours = False
    sailing.far.sendall(b"nonsense\r\n")
    with pytest.raises(ProtocolError):
        sailing.wait()
    assert (sailing.failures, sailing.helm.is_free) == (["ProtocolError"], True)


def test_what_ends_the_program_is_no_error_of_the_link(sailing: Sailing) -> None:
    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    timer = later(interrupt)
    with pytest.raises(KeyboardInterrupt):
        sailing.wait()
    timer.join()
    assert (sailing.failures, sailing.helm.is_free) == ([], True)
