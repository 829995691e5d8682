"""Links: non-blocking reads and writes, plain by a socket pair, TLS by a script."""

import contextlib
import gc
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep

import pytest

from jsclient._core import Link, Outbox, Parser, Replies, Routes
from jsclient.errors import ProtocolError
from tests.harness.compiled import Rig
from tests.harness.helms import Sailor

MIB = 1 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


Pair = tuple[socket.socket, socket.socket]


def test_a_read_is_parsed_and_delivered_at_once(pair: Pair) -> None:
    near, far = pair
    rig, link = Rig(), Link(near.fileno())
    assert link.receive(rig.parser) == -1
    far.sendall(b"MSG a 1 2\r\nhi\r\nPING\r\n")
    assert link.receive(rig.parser) == 21
    assert (rig.inboxes[1].count, rig.parser.pings, link.bytes_in) == (1, 1, 21)
    assert link.receive(rig.parser) == -1


def test_the_end_of_the_stream_is_a_read_of_nothing(pair: Pair) -> None:
    near, far = pair
    far.sendall(b"PING\r\n")
    far.close()
    rig, link = Rig(), Link(near.fileno())
    assert [link.receive(rig.parser) for _ in range(3)] == [6, 0, 0]


def test_a_large_message_is_received_into_its_own_bytes(pair: Pair) -> None:
    near, far = pair
    payload = bytes(range(256)) * 3000
    rig, link = Rig(), Link(near.fileno())
    wire = b"MSG a 1 %d\r\n" % len(payload) + payload + b"\r\nPING\r\n"
    sender = Sailor("sender", lambda: far.sendall(wire))
    while not rig.parser.pings:
        link.receive(rig.parser)
    sender.result()
    msg = rig.inboxes[1].take()
    assert msg is not None
    assert msg.data == payload
    assert link.bytes_in == len(wire)


def test_a_reset_link_raises_the_error_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        link = Link(near.fileno())
        with pytest.raises(ConnectionResetError):
            link.receive(Parser(Routes()))


def test_a_bad_descriptor_is_an_error_of_the_system() -> None:
    link = Link(-1)
    with pytest.raises(OSError, match="reading failed"):
        link.receive(Parser(Routes()))
    with pytest.raises(OSError, match="writing failed"):
        link.send(b"x")


def test_broken_bytes_raise_again_without_another_read(pair: Pair) -> None:
    near, far = pair
    link, parser = Link(near.fileno()), Parser(Routes())
    far.sendall(b"garbage\r\n")
    for _ in range(2):
        with pytest.raises(ProtocolError):
            link.receive(parser)
    assert link.bytes_in == 9


def test_a_direct_write_says_how_much_was_taken(pair: Pair) -> None:
    near, _ = pair
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    link = Link(near.fileno())
    assert link.send(b"CONNECT {}\r\n") == 12
    assert not link.is_blocked
    taken = link.send(b"x" * MIB)
    assert 0 < taken < MIB
    assert (link.is_blocked, link.send(b"x")) == (True, 0)
    assert link.bytes_out == 12 + taken


# TLS


class Again(OSError):
    """What the ssl module raises when it wants the socket first."""


class Interrupted(BaseException):
    """What a signal handler raises."""


class ScriptedTLS:
    """Stands for the ssl module's object; each call first does a step of a script."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.incoming = b""
        self.written: list[bytes] = []
        self.most = 1 << 30

    def _step(self) -> None:
        if self.steps:
            self.steps.pop(0)()

    def read(self, size: int, buffer: memoryview, /) -> int:
        self._step()
        got, self.incoming = self.incoming[:size], self.incoming[size:]
        if not got:
            raise Again
        buffer[: len(got)] = got
        return len(got)

    def write(self, data: bytes, /) -> int:
        self._step()
        self.written.append(data[: self.most])
        return len(self.written[-1])


def again() -> None:
    raise Again


def interrupt() -> None:
    raise Interrupted


class Secured:
    """An outbox and a parser on a link of scripted TLS."""

    def __init__(self) -> None:
        self.tls = ScriptedTLS()
        self.link = Link(-1, self.tls, (Again,))
        self.outbox = Outbox(MIB, MIB)
        self.outbox.attach(self.link, b"")
        self.rig = Rig()

    def publish(self, data: bytes) -> int:
        return self.outbox.publish("a", data, None, None, True)


def frame(data: bytes) -> bytes:
    return b"PUB a %d\r\n%b\r\n" % (len(data), data)


def test_tls_is_read_into_the_parser() -> None:
    secured = Secured()
    assert secured.link.receive(secured.rig.parser) == -1
    secured.tls.incoming = b"MSG a 1 50000\r\n" + b"x" * 50_000 + b"\r\n"
    while secured.link.receive(secured.rig.parser) > 0:
        pass
    assert secured.rig.inboxes[1].count == 1
    assert secured.link.bytes_in == 50_017


def test_what_tls_did_not_take_is_offered_again_unchanged() -> None:
    secured = Secured()
    secured.tls.steps = [again]
    secured.publish(b"1")
    assert (secured.link.is_blocked, secured.tls.written) == (True, [])
    secured.publish(b"2")
    assert secured.outbox.send() == 0
    assert secured.tls.written == [frame(b"1"), frame(b"2")]
    assert not secured.link.is_blocked


def test_a_partial_tls_write_is_continued_where_it_ended() -> None:
    secured = Secured()
    secured.tls.most = 5
    secured.publish(b"0123456789")
    assert b"".join(secured.tls.written) == frame(b"0123456789")


def test_an_error_of_tls_stays_with_the_link() -> None:
    secured = Secured()
    error = ssl.SSLError("bad record")

    def fail() -> None:
        raise error

    secured.tls.steps = [fail]
    secured.publish(b"1")
    assert secured.link.error is error
    assert secured.outbox.send() == len(frame(b"1"))
    secured.tls.steps = [fail]
    with pytest.raises(ssl.SSLError):
        secured.link.receive(secured.rig.parser)


def test_frames_published_while_tls_writes_are_sent_once_and_in_order() -> None:
    secured = Secured()

    def publish_elsewhere() -> None:
        # The ssl module lets other threads run while it encrypts.
        other = Sailor("other", lambda: secured.publish(b"2"))
        other.result()

    secured.tls.steps = [publish_elsewhere]
    secured.publish(b"1")
    assert b"".join(secured.tls.written) == frame(b"1") + frame(b"2")
    assert len(secured.outbox) == 0


def test_a_link_that_is_replaced_while_tls_writes_gets_nothing_more() -> None:
    secured, after = Secured(), ScriptedTLS()

    def replace() -> None:
        secured.outbox.detach()
        secured.publish(b"2")
        secured.outbox.attach(Link(-1, after, (Again,)), b"CONNECT {}\r\n")

    secured.tls.steps = [replace]
    secured.publish(b"1")
    assert b"".join(secured.tls.written) == frame(b"1")
    sent = b"".join(after.written)
    assert sent == b"CONNECT {}\r\n" + frame(b"2"), "the first may have gone out"


def test_a_link_that_is_given_up_lives_as_long_as_a_write_on_it() -> None:
    secured = Secured()
    tls = secured.tls
    alive: list[bool] = []

    def look() -> None:
        alive.append(any(isinstance(user, Link) for user in gc.get_referrers(tls)))

    def give_up() -> None:
        look()
        secured.outbox.detach()
        del secured.link
        look()

    tls.steps = [give_up]
    secured.publish(b"1")
    look()
    assert alive == [True, True, False]


@pytest.mark.parametrize("last", [again, interrupt])
def test_what_tls_may_have_sent_is_not_sent_again_on_the_next_link(
    last: Callable[[], None],
) -> None:
    secured = Secured()
    secured.tls.steps = [again, again, again, last]
    for data in (b"1", b"2", b"3"):
        secured.publish(data)
    with contextlib.suppress(Interrupted):
        secured.outbox.send()
    secured.outbox.detach()
    assert secured.outbox.unsent() == frame(b"2") + frame(b"3")


def test_a_frame_that_tls_has_seen_cannot_be_withdrawn() -> None:
    secured = Secured()
    replies = Replies("_INBOX.")
    tickets = [replies.open("a") for _ in range(2)]
    secured.tls.steps = [again, again]
    for ticket in tickets:
        secured.outbox.publish("a", b"x", None, None, True, ticket)
    withdrawn = [secured.outbox.withdraw(ticket) for ticket in tickets]
    assert withdrawn == [False, True]
    secured.outbox.send()
    assert b"".join(secured.tls.written) == frame(b"x")


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_signal_handler_may_publish_and_read_inside_tls(call: str) -> None:
    secured = Secured()

    def handler() -> None:
        secured.publish(b"handler")
        assert secured.link.receive(secured.rig.parser) == -1

    secured.tls.steps = [handler]
    if call == "read":
        secured.tls.incoming = b"PING\r\n"
        assert secured.link.receive(secured.rig.parser) == 6
    else:
        secured.publish(b"1")
    assert secured.outbox.send() == 0
    assert b"".join(secured.tls.written).endswith(frame(b"handler"))


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_handler_that_raises_inside_tls_breaks_the_link_not_the_stream(
    call: str,
) -> None:
    secured = Secured()
    secured.tls.steps = [interrupt]
    calls: dict[str, Callable[[], int]] = {
        "read": lambda: secured.link.receive(secured.rig.parser),
        "write": lambda: secured.publish(b"1"),
    }
    with pytest.raises(Interrupted):
        calls[call]()
    assert isinstance(secured.link.error, ConnectionAbortedError)
    with pytest.raises(ConnectionAbortedError):
        secured.link.receive(secured.rig.parser)
    secured.outbox.send()
    assert secured.tls.written == []


def test_reading_and_writing_tls_exclude_each_other() -> None:
    secured = Secured()
    reading, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def read_slowly() -> None:
        reading.set()
        assert leave.wait(10.0)
        order.append("read")

    def write() -> None:
        order.append("write")

    secured.tls.steps = [read_slowly, write]
    secured.tls.incoming = b"PING\r\n"
    reader = Sailor("reader", lambda: secured.link.receive(secured.rig.parser))
    assert reading.wait(10.0)
    writer = Sailor("writer", lambda: secured.publish(b"1"))
    leave.set()
    assert reader.result() == 6
    writer.result()
    assert order == ["read", "write"]


def test_a_frame_is_not_withdrawn_while_its_write_waits_for_a_read() -> None:
    secured = Secured()
    ticket = Replies("_INBOX.").open("a")
    reading, leave = threading.Event(), threading.Event()

    def read_slowly() -> None:
        reading.set()
        assert leave.wait(10.0)

    secured.tls.steps = [read_slowly]
    secured.tls.incoming = b"PING\r\n"
    reader = Sailor("reader", lambda: secured.link.receive(secured.rig.parser))
    assert reading.wait(10.0)
    outbox = secured.outbox
    writer = Sailor(
        "writer", lambda: outbox.publish("a", b"x", None, None, True, ticket)
    )
    deadline = monotonic() + 10.0
    while not outbox.unsent():  # then the writer waits: nowhere else others can run
        assert monotonic() < deadline
        sleep(0.001)
    assert not outbox.withdraw(ticket)
    leave.set()
    reader.result()
    writer.result()
    assert secured.tls.written == [frame(b"x")]
    assert outbox.unsent() == b""
