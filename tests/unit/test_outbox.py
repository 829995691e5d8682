"""Outgoing frames: their exact bytes, their borders, and what a lost link leaves."""

import gc
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from typing_extensions import Buffer

from jsclient._core import (
    Gate,
    Link,
    Outbox,
    Parser,
    Replies,
    Reply,
    Routes,
    Window,
    check_filter,
    check_subject,
    check_token,
    connect_frame,
    sub_frame,
    unsub_frame,
)
from jsclient.errors import (
    BufferFullError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidArgumentError,
    MaxPayloadError,
)
from tests.harness.collector import amid_collection

ASK_NOTHING, ASK_ALERT, ASK_ROOM = 0, 1, 2
MIB = 1 << 20
QUIET = 0.001  # longer than an outbox takes for a burst
FIRST_BYTES = 24  # of the arguments' limit, kept for two sizes and blanks


def down(keep_limit: int = MIB, max_payload: int = 0) -> Outbox:
    """An outbox without a link, so that what was added can be looked at."""
    outbox = Outbox(MIB, keep_limit)
    outbox.set_max_payload(max_payload)
    return outbox


def added(
    subject: str,
    data: Buffer = b"",
    reply: str | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    outbox = down()
    assert outbox.publish(subject, data, reply, headers) == ASK_NOTHING
    assert (len(outbox), outbox.frames) == (len(outbox.unsent()), 1)
    return outbox.unsent()


class Line:
    """An outbox, a link and the peer at its other end."""

    def __init__(self, high_water: int = MIB, keep_limit: int = MIB) -> None:
        self.outbox = Outbox(high_water, keep_limit)
        self.replies = Replies("_INBOX.")
        self.sockets: list[socket.socket] = []
        self.connect()

    def connect(self, preamble: bytes = b"") -> int:
        """A new link with small kernel buffers; how many frames it refused."""
        near, self.far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        near.setblocking(False)
        self.far.setblocking(False)
        self.sockets += [near, self.far]
        self.link = Link(near.fileno())
        return self.outbox.attach(self.link, preamble)

    def read(self, most: int = 1 << 30) -> bytes:
        """What has come at the far end."""
        got = b""
        while len(got) < most:
            try:
                chunk = self.far.recv(min(most - len(got), 1 << 16))
            except BlockingIOError:
                break
            if not chunk:
                break
            got += chunk
        return got

    def read_all(self) -> bytes:
        """What has come and what the outbox still sends."""
        got = self.read()
        while self.outbox.send():
            got += self.read()
        return got + self.read()

    def publish(self, data: bytes, subject: str = "a") -> int:
        return self.outbox.publish(subject, data, None, None)


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    lines: list[Line] = []

    def make(**limits: int) -> Line:
        lines.append(Line(**limits))
        return lines[-1]

    yield make
    for made in lines:
        for end in made.sockets:
            end.close()


MakeLine = Callable[..., Line]


# Bytes


@pytest.mark.parametrize(
    ("frame", "wire"),
    [
        (added("a.b", b"hi"), b"PUB a.b 2\r\nhi\r\n"),
        (added("a", b""), b"PUB a 0\r\n\r\n"),
        (added("a", b"hi", "r.s"), b"PUB a r.s 2\r\nhi\r\n"),
        (added("a", b"hi", None, {}), b"PUB a 2\r\nhi\r\n"),
        (
            added("subject", b"PAYLOAD", None, {"Header": "X"}),
            b"HPUB subject 23 30\r\nNATS/1.0\r\nHeader: X\r\n\r\nPAYLOAD\r\n",
        ),
        (
            added("a", b"", "r", {"K": "v"}),
            b"HPUB a r 18 18\r\nNATS/1.0\r\nK: v\r\n\r\n\r\n",
        ),
        (added("ä.\udcff", b"x", "\udcfe"), b"PUB \xc3\xa4.\xff \xfe 1\r\nx\r\n"),
        (added("a", b"\r\nPUB b 0\r\n\r\n"), b"PUB a 13\r\n\r\nPUB b 0\r\n\r\n\r\n"),
        (sub_frame("a.*", None, 7), b"SUB a.* 7\r\n"),
        (sub_frame("a.>", "workers", 8), b"SUB a.> workers 8\r\n"),
        (sub_frame("\udcff", "\udcfe", 8), b"SUB \xff \xfe 8\r\n"),
        (unsub_frame(7), b"UNSUB 7\r\n"),
        (unsub_frame(7, 5), b"UNSUB 7 5\r\n"),
        (connect_frame(b'{"a":1}'), b'CONNECT {"a":1}\r\n'),
    ],
)
def test_a_frame_has_these_bytes(frame: bytes, wire: bytes) -> None:
    assert frame == wire


@pytest.mark.parametrize(
    "data",
    [b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"xxabcx")[2:5]],
)
def test_any_contiguous_buffer_is_a_payload(data: Buffer) -> None:
    assert added("a", data) == b"PUB a 3\r\nabc\r\n"


def test_the_payload_is_copied_before_publish_returns() -> None:
    outbox, data = down(), bytearray(b"abc")
    outbox.publish("a", data, None, None)
    data[:] = b"xyz"
    data.extend(b"not locked")
    assert outbox.unsent() == b"PUB a 3\r\nabc\r\n"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65536, 3 * MIB])
def test_frames_of_any_size_follow_each_other(size: int) -> None:
    outbox = down(keep_limit=1 << 30)
    frame = b"PUB a %d\r\n" % size + b"x" * size + b"\r\n"
    for _ in range(3):
        outbox.publish("a", b"x" * size, None, None)
    assert outbox.unsent() == 3 * frame
    assert (outbox.frames, outbox.messages, outbox.payload_bytes) == (3, 3, 3 * size)


# Mistakes of the caller, found before any byte is added


BLANKS = [" ", "\t", "\r", "\n", "\0", "\v", "\f"]
BAD_SUBJECTS = [
    "",
    *(f"a{blank}b" for blank in BLANKS),
    *(blank for blank in BLANKS),
    "a b 1\r\nPUB c 0\r\n\r",
    ".",
    ".a",
    "a.",
    "a..b",
    "s" * (4096 - FIRST_BYTES + 1),
    "\ud800",
]


@pytest.mark.parametrize("subject", BAD_SUBJECTS)
def test_a_subject_that_the_wire_cannot_carry_is_refused(subject: str) -> None:
    outbox = down()
    with pytest.raises(ValueError, match=r"subject|surrogates"):
        outbox.publish(subject, b"x", None, None)
    with pytest.raises(ValueError, match=r"reply|surrogates"):
        outbox.publish("fine", b"x", subject, None)
    assert (len(outbox), outbox.frames, outbox.messages) == (0, 0, 0)


def test_a_refused_subject_is_refused_again() -> None:
    outbox, bad = down(), "a b"
    for _ in range(2):
        with pytest.raises(InvalidArgumentError):
            outbox.publish(bad, b"x", None, None)


def test_subject_and_reply_share_the_limit_of_the_control_line() -> None:
    most = 4096 - FIRST_BYTES
    assert len(added("s" * most)) == most + 10
    assert len(added("s" * (most - 100), b"", "r" * 100)) == most + 11
    with pytest.raises(InvalidArgumentError, match="together"):
        down().publish("s" * (most - 100), b"", "r" * 101, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "text", None, None), "bytes or another buffer, not str; encode it"),
        (("a", None, None, None), "not NoneType"),
        (("a", 5, None, None), "not int"),
        (("a", [1], None, None), "not list"),
        (("a", memoryview(b"abcdef")[::2], None, None), "contiguous"),
        ((b"a", b"", None, None), "subject must be a str, not bytes"),
        ((None, b"", None, None), "subject must be a str, not NoneType"),
        (("a", b"", b"r", None), "reply must be a str, not bytes"),
        (("a", b"", None, {"K": 1}), "not int"),
        (("a", b"", None, 5), "int"),
    ],
)
def test_a_wrong_type_is_refused_with_its_name(
    arguments: tuple[str, bytes, None, None], said: str
) -> None:
    outbox = down()
    with pytest.raises(TypeError, match=said):
        outbox.publish(*arguments)
    assert (len(outbox), outbox.frames) == (0, 0)


@pytest.mark.parametrize(
    "headers", [{"bad key:": "v"}, {"K": "x\r\nEvil: 1"}, {"": "v"}, {"K": "\0"}]
)
def test_headers_that_would_become_protocol_are_refused(
    headers: dict[str, str],
) -> None:
    outbox = down()
    with pytest.raises(InvalidArgumentError):
        outbox.publish("a", b"x", None, headers)
    assert len(outbox) == 0


@pytest.mark.parametrize("headers", [None, {"K": "v"}])
def test_headers_and_payload_together_are_held_to_max_payload(
    headers: dict[str, str] | None,
) -> None:
    outbox = down(max_payload=100)
    room = 100 - (18 if headers else 0)
    assert outbox.publish("a", b"x" * room, None, headers) == ASK_NOTHING
    before = outbox.unsent()
    with pytest.raises(MaxPayloadError, match=r"are 101 bytes.*at most 100"):
        outbox.publish("a", b"x" * (room + 1), None, headers)
    assert outbox.unsent() == before
    assert outbox.max_payload == 100


@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_no_max_payload_is_a_gibibyte(value: int) -> None:
    outbox = down(max_payload=value)
    assert outbox.max_payload == 1 << 30
    assert outbox.publish("a", b"x" * (2 * MIB), None, None) == ASK_NOTHING


@pytest.mark.parametrize(
    "subject", ["a", "a.b", "ä", "\udcff", "*", "a.*.b", "a.>", ">"]
)
def test_a_good_filter_is_accepted(subject: str) -> None:
    check_filter(subject)


@pytest.mark.parametrize(
    "subject", [*BAD_SUBJECTS[:-2], "a*", "*a", "a.b>", ">.a", "a.>.b", "**", "a.>>"]
)
def test_a_bad_filter_is_refused_by_the_name_of_its_argument(subject: str) -> None:
    with pytest.raises(InvalidArgumentError, match="filter_subject"):
        check_filter(subject, "filter_subject")


def test_a_subject_to_publish_to_may_look_like_a_wildcard() -> None:
    check_subject("a*.b>")


@pytest.mark.parametrize("text", ["a", "a..b", ".", "ä", "\udcff"])
def test_a_token_is_any_text_without_blanks(text: str) -> None:
    check_token(text, "queue")


@pytest.mark.parametrize("text", ["", *BLANKS, "a b"])
def test_a_token_with_blanks_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="queue"):
        check_token(text, "queue")


def test_a_name_that_is_no_text_is_refused() -> None:
    wrong: list[str] = [b"a", None, 1]  # type: ignore[list-item]
    for text in wrong:
        with pytest.raises(TypeError):
            check_subject(text)
        with pytest.raises(TypeError):
            check_token(text, "queue")


# Without a link


def test_publishes_are_kept_up_to_the_limit_of_the_reconnect_buffer() -> None:
    outbox = down(keep_limit=100)
    frame = b"PUB a 20\r\n" + b"x" * 20 + b"\r\n"
    for _ in range(4):
        assert outbox.publish("a", b"x" * 20, None, None) == ASK_NOTHING
    with pytest.raises(BufferFullError, match="100 bytes"):
        outbox.publish("a", b"x", None, None)
    assert outbox.unsent() == 4 * frame
    assert outbox.messages == 4


@pytest.mark.parametrize("keep_limit", [0, -1])
def test_without_a_reconnect_buffer_a_publish_is_refused_at_once(
    keep_limit: int,
) -> None:
    with pytest.raises(DisconnectedError):
        down(keep_limit).publish("a", b"x", None, None)


def test_control_frames_are_not_kept_without_a_link() -> None:
    outbox = down()
    assert not outbox.control(b"SUB a 1\r\n")
    assert outbox.ping() == 0
    assert (len(outbox), outbox.frames, outbox.is_up) == (0, 0, False)


def test_control_frames_are_kept_for_a_link_that_is_expected() -> None:
    outbox = down()
    outbox.expect_link()
    assert outbox.control(b"SUB a 1\r\n")
    assert (outbox.ping(), outbox.ping()) == (1, 2)
    assert outbox.unsent() == b"SUB a 1\r\nPING\r\nPING\r\n"


# With a link


def test_the_first_publish_after_a_quiet_moment_is_sent_at_once(line: MakeLine) -> None:
    made = line()
    assert made.outbox.is_up
    assert made.publish(b"hi") == ASK_NOTHING
    assert made.read() == b"PUB a 2\r\nhi\r\n"
    assert (len(made.outbox), made.outbox.frames) == (0, 0)
    assert made.link.bytes_out == 13


def test_an_urgent_publish_is_sent_at_once_even_in_a_burst(line: MakeLine) -> None:
    made = line()
    for i in range(5):
        made.outbox.publish("a", b"%d" % i, None, None, True)
        assert made.read().endswith(b"PUB a 1\r\n%d\r\n" % i)


def test_a_burst_is_gathered_and_arrives_in_order(line: MakeLine) -> None:
    made = line()
    asked = {made.publish(b"%03d" % i) for i in range(200)}
    assert asked <= {ASK_NOTHING, ASK_ALERT}
    assert made.read_all() == b"".join(b"PUB a 3\r\n%03d\r\n" % i for i in range(200))


def test_a_burst_that_slows_down_is_sent_with_its_next_four_frames(
    line: MakeLine,
) -> None:
    made = line()
    made.outbox.go_on()
    made.publish(b"0")  # gathered
    time.sleep(QUIET)
    sent = []
    for i in range(1, 5):
        made.publish(b"%d" % i)
        sent.append(len(made.outbox) == 0)
    assert any(sent)
    assert made.read_all() == b"".join(b"PUB a 1\r\n%d\r\n" % i for i in range(5))


def test_the_next_frame_of_a_burst_that_had_to_wait_does_not_travel_alone(
    line: MakeLine,
) -> None:
    made = line()
    for _ in range(20):
        time.sleep(QUIET)
        made.outbox.go_on()
        made.publish(b"x")
        if len(made.outbox):
            return
        made.read_all()
    pytest.fail("every frame was sent alone")


def test_unsent_bytes_ask_for_somebody_until_somebody_looks_after_them(
    line: MakeLine,
) -> None:
    made = stuck(line)
    assert {made.publish(b"x") for _ in range(5)} == {ASK_ALERT}
    made.outbox.look_after()
    assert {made.publish(b"x") for _ in range(5)} == {ASK_NOTHING}
    assert made.outbox.look_away()
    made.read_all()
    assert not made.outbox.look_away()


def test_whoever_looks_away_when_all_was_sent_is_asked_again(line: MakeLine) -> None:
    made = stuck(line)
    made.outbox.look_after()
    made.read_all()
    assert not made.outbox.look_away()
    assert made.publish(b"x" * MIB) == ASK_ALERT


def test_frames_arrive_whole_and_in_order_over_a_slow_link(line: MakeLine) -> None:
    made = line(high_water=64 * MIB)
    wire = b""
    for i, size in enumerate([10, 100_000, 0, 300_000, 70_000, 5]):
        payload = b"%d" % i * size
        wire += b"PUB a %d\r\n" % len(payload) + payload + b"\r\n"
        made.publish(payload)
    was_blocked = made.link.is_blocked
    assert made.read_all() == wire
    assert (len(made.outbox), made.outbox.frames) == (0, 0)
    assert (was_blocked, made.link.is_blocked) == (True, False)
    assert made.link.bytes_out == len(wire)


def test_a_full_outbox_takes_nothing_until_half_of_it_was_sent(line: MakeLine) -> None:
    made = line(high_water=100_000)
    outbox = made.outbox
    while made.publish(b"x" * 10_000) != ASK_ROOM:
        assert len(outbox) < 120_000
    before = (len(outbox), outbox.frames, outbox.messages, outbox.payload_bytes)
    assert len(outbox) >= 100_000
    assert made.publish(b"x") == ASK_ROOM
    assert (
        len(outbox),
        outbox.frames,
        outbox.messages,
        outbox.payload_bytes,
    ) == before
    gate = outbox.await_room()
    assert outbox.await_room() is gate
    while len(outbox) > 50_000:
        assert not gate.is_open
        made.read(1)
        made.read()
        outbox.send()
    assert gate.is_open
    assert outbox.room is None
    assert made.publish(b"x") != ASK_ROOM


def test_waiting_for_room_that_is_there_ends_at_once(line: MakeLine) -> None:
    assert line().outbox.await_room().is_open


def test_everybody_who_waits_for_room_is_let_through(line: MakeLine) -> None:
    made = stuck(line)
    outbox = made.outbox
    gates: list[Gate] = []
    gates.append(
        amid_collection(outbox.await_room, lambda: gates.append(outbox.await_room()))
    )
    outbox.detach()
    assert [gate.is_open for gate in gates] == [True, True]


def test_a_lost_link_lets_those_through_who_wait_for_room(line: MakeLine) -> None:
    made = line(high_water=100_000)
    while made.publish(b"x" * 10_000) != ASK_ROOM:
        pass
    gate = made.outbox.await_room()
    made.outbox.detach()
    assert gate.is_open


def test_a_broken_link_keeps_its_error_and_takes_nothing_more(line: MakeLine) -> None:
    made = line()
    made.far.close()
    made.publish(b"x")
    error = made.link.error
    assert isinstance(error, BrokenPipeError)
    assert len(made.outbox) > 0
    made.publish(b"x")
    assert made.link.error is error
    with pytest.raises(BrokenPipeError):
        made.link.send(b"x")


# The borders of frames, when the link is lost


def stuck(line: MakeLine) -> Line:
    """A line on which a large frame is half sent."""
    made: Line = line(high_water=64 * MIB)
    made.publish(b"x" * MIB, "begun")
    assert 0 < len(made.outbox) < MIB
    return made


def test_a_begun_frame_dies_with_the_link_and_whole_ones_stay(line: MakeLine) -> None:
    made = stuck(line)
    made.publish(b"1")
    made.outbox.control(b"SUB a 1\r\n")
    made.publish(b"2")
    made.outbox.ping()
    made.publish(b"3")
    assert made.outbox.frames == 6
    made.outbox.detach()
    kept = b"PUB a 1\r\n1\r\nPUB a 1\r\n2\r\nPUB a 1\r\n3\r\n"
    assert made.outbox.unsent() == kept
    assert (made.outbox.frames, made.outbox.is_up) == (3, False)

    assert made.connect(b"CONNECT {}\r\nPING\r\n") == 0
    assert made.read_all() == b"CONNECT {}\r\nPING\r\n" + kept


def test_a_begun_control_frame_is_not_completed_on_the_next_link(
    line: MakeLine,
) -> None:
    made = line(high_water=64 * MIB)
    made.outbox.control(b"SUB " + b"a" * MIB + b" 1\r\n")
    made.outbox.send()
    made.publish(b"1")
    made.outbox.detach()
    assert made.outbox.unsent() == b"PUB a 1\r\n1\r\n"


def test_a_frame_of_which_nothing_was_sent_stays_though_the_one_before_was_sent(
    line: MakeLine,
) -> None:
    made = line(high_water=64 * MIB)
    frames = [b"PUB a 5000\r\n" + b"%d" % i * 5000 + b"\r\n" for i in range(10)] * 30
    for frame in frames:
        made.outbox.publish("a", frame[12:-2], None, None, True)
    got = made.read(123_456)
    made.outbox.send()
    got += made.read()
    made.outbox.detach()
    kept = made.outbox.unsent()
    begun = len(got) % 5014 > 0
    assert kept == b"".join(frames[len(got) // 5014 + begun :])
    made.connect()
    assert made.read_all() == kept


def test_frames_larger_than_the_next_server_accepts_are_refused(line: MakeLine) -> None:
    made = line()
    made.outbox.detach()
    for size in (10, 51, 50, 100):
        made.publish(b"x" * size)
    made.outbox.set_max_payload(50)
    assert made.connect(b"CONNECT {}\r\n") == 2
    wire = b"PUB a 10\r\n" + b"x" * 10 + b"\r\nPUB a 50\r\n" + b"x" * 50 + b"\r\n"
    assert made.read_all() == b"CONNECT {}\r\n" + wire


def test_control_frames_before_the_link_follow_the_preamble(line: MakeLine) -> None:
    made = line()
    made.outbox.detach()
    made.publish(b"1")
    made.outbox.expect_link()
    made.outbox.control(b"SUB a 1\r\n")
    made.connect(b"CONNECT {}\r\n")
    assert made.read_all() == b"CONNECT {}\r\nPUB a 1\r\n1\r\nSUB a 1\r\n"


def test_pings_are_numbered_anew_on_each_link(line: MakeLine) -> None:
    made = line()
    assert [made.outbox.ping() for _ in range(3)] == [1, 2, 3]
    made.outbox.detach()
    made.connect()
    assert made.outbox.ping() == 1


def test_ten_thousand_pings_are_answered_in_one_write(line: MakeLine) -> None:
    made = line()
    parser = Parser(Routes())
    parser.feed(b"PING\r\n" * 10_000)
    made.outbox.answer_pings(parser)
    assert not parser.needs_attention
    assert made.read_all() == b"PONG\r\n" * 10_000
    made.outbox.answer_pings(parser)
    assert len(made.outbox) == 0


def test_a_server_that_does_not_read_gets_no_pongs_without_end(line: MakeLine) -> None:
    made = stuck(line)
    parser = Parser(Routes())
    for _ in range(10):
        parser.feed(b"PING\r\n" * 10_000)
        made.outbox.answer_pings(parser)
        assert not parser.needs_attention
    assert made.outbox.frames <= 65_537
    made.read_all()
    parser.feed(b"PING\r\n")
    made.outbox.answer_pings(parser)
    assert made.read_all() == b"PONG\r\n"


def test_only_pongs_that_were_asked_for_are_counted(line: MakeLine) -> None:
    outbox, parser = line().outbox, Parser(Routes())
    outbox.ping()
    parser.feed(b"PONG\r\nPONG\r\n")
    needed = [parser.needs_attention]
    assert outbox.count_pongs(parser) == 1
    outbox.settle_pongs(parser)
    assert [*needed, parser.needs_attention] == [True, False]
    outbox.ping()
    assert outbox.count_pongs(parser) == 1
    parser.feed(b"PONG\r\n")
    assert outbox.count_pongs(parser) == 2


def test_borders_survive_growth_and_turning_over(line: MakeLine) -> None:
    made = line(high_water=64 * MIB)
    for round_ in range(20):
        wire = b""
        for i in range(500):
            payload = b"%d" % (round_ * i) * (i % 7)
            made.publish(payload)
            wire += b"PUB a %d\r\n%b\r\n" % (len(payload), payload)
        assert made.read_all() == wire
        assert made.outbox.frames == 0


# Requests that die with their link


def ask(made: Line, data: bytes) -> Reply:
    ticket = made.replies.open("a")
    made.outbox.publish("a", data, None, None, True, ticket)
    return ticket


def test_a_ticket_tells_when_the_first_byte_of_its_frame_was_sent(
    line: MakeLine,
) -> None:
    made = line(high_water=64 * MIB)
    assert ask(made, b"x").is_begun
    assert ask(made, b"x" * MIB).is_begun, "a part of it was sent"
    waiting = ask(made, b"x")
    begun = [waiting.is_begun]
    made.read_all()
    assert [*begun, waiting.is_begun] == [False, True]


def test_a_frame_with_a_ticket_dies_with_its_link(line: MakeLine) -> None:
    made = stuck(line)
    made.publish(b"1")
    ticket = ask(made, b"2")
    made.publish(b"3")
    made.outbox.detach()
    assert made.outbox.unsent() == b"PUB a 1\r\n1\r\nPUB a 1\r\n3\r\n"
    assert not ticket.is_begun
    with pytest.raises(DisconnectedError):
        ask(made, b"4")


def test_a_frame_of_which_nothing_was_sent_can_be_withdrawn(line: MakeLine) -> None:
    made = stuck(line)
    tickets = [ask(made, b"%d" % i) for i in range(4)]
    assert made.outbox.withdraw(tickets[1])
    assert not made.outbox.withdraw(tickets[1])
    assert made.outbox.withdraw(tickets[3])
    assert made.outbox.frames == 3
    wire = b"PUB begun %d\r\n" % MIB + b"x" * MIB + b"\r\n"
    assert made.read_all() == wire + b"PUB a 1\r\n0\r\nPUB a 1\r\n2\r\n"
    assert [ticket.is_begun for ticket in tickets] == [True, False, True, False]


def test_a_begun_frame_cannot_be_withdrawn(line: MakeLine) -> None:
    made = line(high_water=64 * MIB)
    ticket = ask(made, b"x" * MIB)
    assert not made.outbox.withdraw(ticket)
    assert made.outbox.frames == 1


@pytest.mark.parametrize("end", ["detach", "abandon", "sent", "dropped"])
def test_the_outbox_lets_go_of_its_tickets(line: MakeLine, end: str) -> None:
    made = stuck(line)
    ticket = ask(made, b"x")
    made.replies.drop(ticket)
    before = sys.getrefcount(ticket)
    if end == "detach":
        made.outbox.detach()
    elif end == "abandon":
        made.outbox.abandon(refusal)
    elif end == "sent":
        made.read_all()
    else:
        made.outbox = Outbox(1, 1)
    assert sys.getrefcount(ticket) == before - 1


class Parting(str):
    """A subject that publishes something when it goes."""

    __slots__ = ("_outbox",)
    _outbox: Outbox

    def bind(self, outbox: Outbox) -> str:
        self._outbox = outbox
        return self

    def __del__(self) -> None:
        for number in range(200):
            self._outbox.publish("last.words", b"%d" % number, None, None)


def leave_a_window(outbox: Outbox) -> None:
    """Publishes from a window of which only the outbox knows then."""
    Window("_INBOX.w.", outbox, 4).feed(iter([(Parting("a").bind(outbox), b"x")]), 60.0)


@pytest.mark.parametrize("others", [0, 1, 100])
def test_a_ticket_that_goes_when_its_frame_is_sent_may_publish(
    line: MakeLine, others: int
) -> None:
    made = stuck(line)
    for _ in range(others):
        made.publish(b"before")
    leave_a_window(made.outbox)
    for _ in range(others):
        made.publish(b"after")
    gc.collect()
    wire = made.read_all()[len(b"PUB begun %d\r\n" % MIB) + MIB + 2 :]
    words = b"".join(
        b"PUB last.words %d\r\n%d\r\n" % (len(str(n)), n) for n in range(200)
    )
    assert wire == (
        b"PUB a 6\r\nbefore\r\n" * others
        + b"PUB a _INBOX.w.0 1\r\nx\r\n"
        + b"PUB a 5\r\nafter\r\n" * others
        + words
    )
    assert (made.outbox.frames, len(made.outbox)) == (0, 0)


@pytest.mark.parametrize("others", [0, 1, 100])
def test_a_ticket_that_goes_with_its_link_may_publish(
    line: MakeLine, others: int
) -> None:
    made = stuck(line)
    for _ in range(others):
        made.publish(b"before")
        ask(made, b"tied")
    leave_a_window(made.outbox)
    for _ in range(others):
        ask(made, b"tied")
        made.publish(b"after")
    made.outbox.detach()
    made.connect()
    wire = made.read_all()
    before, after = b"PUB a 6\r\nbefore\r\n", b"PUB a 5\r\nafter\r\n"
    assert wire.startswith(before * others + after * others + b"PUB last.words 1\r\n0")
    assert wire.endswith(b"PUB last.words 3\r\n199\r\n")
    assert wire.count(b"PUB ") == 2 * others + 200
    assert (made.outbox.frames, len(made.outbox)) == (0, 0)


# The end


def refusal() -> ConnectionClosedError:
    return ConnectionClosedError("closed")


def test_a_refusing_outbox_still_sends_what_it_has(line: MakeLine) -> None:
    made = line()
    for i in range(50):
        made.publish(b"%02d" % i)
    made.outbox.refuse(refusal)
    with pytest.raises(ConnectionClosedError, match="closed"):
        made.publish(b"x")
    assert made.read_all() == b"".join(b"PUB a 2\r\n%02d\r\n" % i for i in range(50))


def test_an_abandoned_outbox_drops_everything_and_touches_no_link(
    line: MakeLine,
) -> None:
    made = stuck(line)
    made.outbox.control(b"SUB a 1\r\n")
    sent = made.link.bytes_out
    made.outbox.abandon(refusal)
    assert (len(made.outbox), made.outbox.frames) == (0, 0)
    made.read()
    assert made.outbox.send() == 0
    assert made.link.bytes_out == sent
    with pytest.raises(ConnectionClosedError):
        made.publish(b"x")
    assert not made.outbox.control(b"SUB a 1\r\n")


# Leaving


def test_a_link_that_is_about_to_be_left_takes_no_new_request(line: MakeLine) -> None:
    made = line()
    early, late = (made.replies.draft("a") for _ in range(2))
    is_awaited = [made.replies.is_awaited]
    made.replies.ask(early, made.outbox, b"early")
    made.outbox.leave()
    assert (made.outbox.is_up, made.outbox.takes_requests) == (True, False)
    assert made.replies.ask(late, made.outbox, b"late") == 3
    with pytest.raises(DisconnectedError):
        made.outbox.publish("a", b"late", late.inbox, None, True, late)
    # Neither messages of their own nor pulls and subscriptions wait for the next one.
    made.publish(b"core")
    made.outbox.publish("a", b"pull", None, None, is_tied=True)
    more = made.replies.draft("a")
    made.outbox.publish("a", b"more", more.inbox, None, True, more, is_tied=True)
    made.outbox.control(b"UNSUB 1\r\n")
    got = made.read_all()
    for word in (b"early", b"core", b"pull", b"more", b"UNSUB"):
        assert word in got
    assert b"late" not in got
    is_awaited.append(made.replies.is_awaited)
    early.fail(ValueError("answered"))
    is_awaited.append(made.replies.is_awaited)
    assert is_awaited == [False, True, False], "what was not sent needs no answer"


def test_the_next_link_takes_requests_again(line: MakeLine) -> None:
    made = line()
    made.outbox.leave()
    made.outbox.detach()
    made.outbox.leave()
    assert not made.outbox.is_leaving, "there is none to leave"
    made.connect()
    reply = made.replies.draft("a")
    assert made.outbox.takes_requests
    assert made.replies.ask(reply, made.outbox, b"now") == ASK_NOTHING
    assert b"now" in made.read_all()
