"""The compiled parser on written cases, each at every cut that a network can make."""

import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from jsclient._core import Inbox, Parser, Routes, live_objects
from jsclient.errors import ProtocolError
from tests.harness.compiled import Rig, parts, summary_of
from tests.harness.reference import Event, outcome

LINE_LIMIT = 4096 + 256
INFO_LIMIT = 1 << 20
ALLOWANCE = 1 << 16
BLOCK = b"NATS/1.0\r\nK: v\r\n\r\n"
STATUS = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n"
GLUE = b"MSG glue 1 4\r\nnext\r\n"
SESSION = (
    b'INFO {"server_id":"N"} \r\nPONG\r\n'
    b"MSG a.b 1 5\r\nhello\r\n"
    b"HMSG a.b 2 _R.1 18 20\r\n" + BLOCK + b"hi\r\n"
    b"+OK\r\n-ERR 'Slow Consumer'\r\nPING\r\nmsg c 3 r 0\r\n\r\n"
)


def message(
    payload: bytes,
    subject: bytes = b"a",
    reply: bytes | None = None,
    header: bytes | None = None,
    sid: int = 1,
) -> Event:
    return ("MSG", subject, sid, reply, header, payload)


def hmsg(block: bytes, payload: bytes) -> bytes:
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    return b"HMSG a 1 " + sizes + b"\r\n" + block + payload + b"\r\n"


GOOD: dict[bytes, list[Event]] = {
    b'INFO {"a":1} \r\n': [("INFO", b'{"a":1}')],
    b'INFO{"a":1}\r\n': [("INFO", b'{"a":1}')],
    b"info\t {} \t\r\n": [("INFO", b"{}")],
    b"INFO\r\n": [("INFO", b"")],
    hmsg(BLOCK, b"hi"): [message(b"hi", header=BLOCK)],
    b"msg a 1 3\r\nabc\r\nMSG a 1 0\r\n\r\n": [message(b"abc"), message(b"")],
    b"MSG\ta  1\t 2\r\nhi\r\n": [message(b"hi")],
    b"MSG a 1 2 \t\r\nhi\r\n": [message(b"hi")],
    b"MSG a 0001 02\r\nhi\r\n": [message(b"hi")],
    b"MSG a 1 r.s 2\r\nhi\r\n": [message(b"hi", reply=b"r.s")],
    b"MSG a 1 8\r\n\r\nPING\r\n\r\n": [message(b"\r\nPING\r\n")],
    b"MSG a.\xff\x00\x7f 1 \xc3\x28 1\r\nx\r\n": [
        message(b"x", b"a.\xff\x00\x7f", b"\xc3\x28")
    ],
    hmsg(b"NATS/1.0 503\r\nNats-Subject: foo\r\n\r\n", b""): [
        message(b"", header=b"NATS/1.0 503\r\nNats-Subject: foo\r\n\r\n")
    ],
    hmsg(b"NATS/1.0 503\r\n\r\n", b"hi"): [
        message(b"hi", header=b"NATS/1.0 503\r\n\r\n")
    ],
    hmsg(STATUS, b""): [message(b"", header=STATUS)],
    b"HMSG a 1 0 2\r\nhi\r\n": [message(b"hi")],
    b"hMsG a 1 r 5 7\r\nhello\r\n\r\n": [message(b"\r\n", reply=b"r", header=b"hello")],
    b"PING\r\npOnG\r\n+ok\r\n": [("PING",), ("PONG",), ("OK",)],
    b"PING \r\nPONG\tanything\r\n+OK  x\r\n": [("PING",), ("PONG",), ("OK",)],
    b"-ERR 'Some Text' \r\n": [("ERR", b"'Some Text'")],
    b"-err\tunquoted\r\n": [("ERR", b"unquoted")],
    b"-ERR\r\n": [("ERR", b"")],
    SESSION: list(outcome(SESSION).events),
}
BAD_LINES = [
    b"X",
    b"XPUB a 1",
    b"",
    b" PING",
    b"PINGX",
    b"PIN",
    b"INFOX",
    b"+OKAY",
    b"-ERROR",
    b"PING\rx",
    b"PING \r",
    b"MSG a\rb 1 1",
    b"MSG",
    b"MSGa 1 1",
    b"MSG a",
    b"MSG a 1",
    b"MSG a 1 r 2 3",
    b"HMSG a 1 2",
    b"HMSG a 1 r 2 3 4",
    b"MSG a x 1",
    b"MSG a -1 1",
    b"MSG a 9223372036854775808 1",
    b"MSG a 1 -1",
    b"MSG a 1 +1",
    b"MSG a 1 abc",
    b"MSG a 1 1x",
    b"MSG a 1 \xb2",
    b"MSG a 1 1_0",
    b"MSG a 1 1\v",
    b"MSG a 1 9223372036854775808",
    b"MSG a 1 18446744073709551621",
    b"MSG a 1 00000000000000000001",
    b"MSG a 1 1099511627776",
    b"MSG a 1 %d" % ((1 << 20) + ALLOWANCE + 1),
    b"HMSG a 1 18 %d" % ((1 << 20) + ALLOWANCE + 1),
    b"HMSG a 1 30 20",
    b"HMSG a 1 x 20",
    b"HMSG a 1 -1 20",
    b"HMSG a 1 9223372036854775808 20",
]
BAD = [line + b"\r\n" for line in BAD_LINES] + [
    b"PING\n",
    b"\n",
    b"MSG a 1 2\n",
    b"MSG a 1 2\r\nabc\r\n",
    b"MSG a 1 1\r\nabc\r\n",
    b"MSG a 1 4\r\nabc\r\n",
    b"MSG a 1 5\r\nabc\r\n  ",
    b"MSG a 1 3\r\nabc\n\n",
    b"MSG a 1 3\r\nabc\r\r",
]


def whole(wire: bytes) -> Iterator[list[bytes]]:
    yield [wire]


def byte_by_byte(wire: bytes) -> Iterator[list[bytes]]:
    yield [wire[i : i + 1] for i in range(len(wire))]


def at_every_split(wire: bytes) -> Iterator[list[bytes]]:
    for at in range(len(wire) + 1):
        yield [wire[:at], wire[at:]]


@pytest.mark.parametrize("cut", [whole, byte_by_byte, at_every_split])
@pytest.mark.parametrize("glue", [b"", GLUE], ids=["alone", "glued"])
@pytest.mark.parametrize("wire", GOOD)
def test_a_good_frame_is_read_however_it_is_cut(
    wire: bytes, glue: bytes, cut: Callable[[bytes], Iterator[list[bytes]]]
) -> None:
    events = GOOD[wire] + ([message(b"next", b"glue")] if glue else [])
    for chunks in cut(wire + glue):
        rig = Rig([1, 2, 3])
        assert rig.feed(*chunks)
        assert rig.parser.is_idle
        assert rig.summary() == summary_of(events)


@pytest.mark.parametrize("cut", [whole, byte_by_byte, at_every_split])
@pytest.mark.parametrize("wire", BAD)
def test_a_bad_frame_costs_the_stream_but_no_message_before_it(
    wire: bytes, cut: Callable[[bytes], Iterator[list[bytes]]]
) -> None:
    for chunks in cut(GLUE + wire + GLUE):
        rig = Rig()
        assert not rig.feed(*chunks)
        assert rig.summary() == summary_of([message(b"next", b"glue")])
        assert not rig.feed(GLUE), "a broken stream stays broken"
        assert rig.inboxes[1].count == 0


@pytest.mark.parametrize("wire", [line for line in BAD_LINES if b"\r" not in line])
def test_a_bad_line_is_shown_in_the_error(wire: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        Parser(Routes()).feed(wire + b"\r\n")
    assert not wire or repr(wire[:60])[1:-1] in str(caught.value)


def test_every_prefix_of_a_session_gives_what_it_holds_whole() -> None:
    for at in range(len(SESSION) + 1):
        rig = Rig([1, 2, 3])
        assert rig.feed(SESSION[:at])
        assert rig.summary() == summary_of(outcome(SESSION[:at]).events)


def test_every_byte_change_of_a_session_gives_the_events_of_the_reference() -> None:
    for at in range(len(SESSION)):
        for value in range(256):
            changed = SESSION[:at] + bytes([value]) + SESSION[at + 1 :]
            expected = outcome(changed)
            rig = Rig([1, 2, 3])
            is_whole = rig.feed(changed)
            assert expected.undecided or is_whole is not expected.broken
            seen, wanted = rig.summary(), summary_of(expected.events)
            if seen != wanted:
                strangers = set(wanted.messages) - {1, 2, 3}
                assert seen == summary_of(expected.events, strangers)


# Numbers and limits


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes that were allocated at once while it ran."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "size", [1 << 21, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) + 5, 10**20]
)
def test_a_hostile_size_allocates_nothing(size: int) -> None:
    rig = Rig()
    assert peak_of(lambda: rig.feed(b"MSG a 1 %d\r\n" % size)) < 16384
    assert not rig.feed(b"PING\r\n")


@pytest.mark.parametrize("total", [100 + ALLOWANCE, 100 + ALLOWANCE + 1])
def test_a_size_may_exceed_max_payload_by_the_header_allowance(total: int) -> None:
    rig = Rig(max_payload=100)
    fits = total <= 100 + ALLOWANCE
    assert rig.feed(b"MSG a 1 %d\r\n" % total + b"x" * total + b"\r\n") is fits
    assert rig.inboxes[1].count == fits


def test_max_payload_can_be_changed_between_frames() -> None:
    rig = Rig(max_payload=100)
    rig.parser.max_payload = 1 << 20
    assert rig.parser.max_payload == 1 << 20
    assert rig.feed(b"MSG a 1 1000000\r\n")
    assert not Rig(max_payload=100).feed(b"MSG a 1 1000000\r\n")


@pytest.mark.parametrize("value", [0, -1, 1 << 50])
def test_a_server_without_a_sensible_max_payload_is_held_to_a_gibibyte(
    value: int,
) -> None:
    assert Parser(Routes(), value).max_payload == 1 << 30


def line_of(verb: bytes, size: int) -> bytes:
    """A whole frame whose control line has that many bytes before CR LF."""
    if verb == b"MSG":
        return b"MSG " + b"s" * (size - 8) + b" 1 0\r\n\r\n"
    if verb == b"HMSG":
        return b"HMSG " + b"s" * (size - 11) + b" 1 0 0\r\n\r\n"
    return verb + b" " + b"x" * (size - len(verb) - 1) + b"\r\n"


LIMITS = [
    *((verb, LINE_LIMIT) for verb in (b"MSG", b"HMSG", b"PING", b"PONG", b"-ERR")),
    (b"INFO", INFO_LIMIT),
]


@pytest.mark.parametrize(("verb", "limit"), LIMITS)
def test_a_control_line_may_be_as_long_as_its_limit(verb: bytes, limit: int) -> None:
    wire = line_of(verb, limit)
    end = wire.index(b"\n")
    for at in (end - 1, end, end + 1, len(wire)):
        rig = Rig()
        assert rig.feed(wire[:at], wire[at:])
        assert rig.summary() == summary_of(outcome(wire).events)


@pytest.mark.parametrize(("verb", "limit"), LIMITS)
def test_a_longer_control_line_is_refused(verb: bytes, limit: int) -> None:
    wire = line_of(verb, limit + 1)
    for at in (10, limit + 1, len(wire)):
        assert not Rig().feed(wire[:at], wire[at:])


@pytest.mark.parametrize("start", [b"MSG ", b"PING ", b"IN", b"INFX", b"\xff", b" "])
def test_a_line_without_end_is_refused_at_the_limit(start: bytes) -> None:
    rig = Rig()
    assert rig.feed(start.ljust(LINE_LIMIT + 1, b"x"))
    assert not rig.feed(b"x")


def test_a_line_without_end_costs_no_more_memory_than_its_limit() -> None:
    chunk = b"x" * 65536
    rig = Rig()
    assert peak_of(lambda: rig.feed(chunk, *[chunk] * 255)) < 16384
    info = Rig()
    peak = peak_of(lambda: info.feed(b"INFO {", *[chunk] * 256))
    assert peak < 2 * INFO_LIMIT + 131072
    assert not info.feed(b"\r\n")


@pytest.mark.parametrize("size", [50_000, INFO_LIMIT - 5])
def test_a_long_info_is_read_and_its_buffer_given_back(size: int) -> None:
    body = b'{"connect_urls":["' + b"x" * (size - 21) + b'"]}'
    assert len(body) == size
    wire = b"INFO " + body + b"\r\n"
    rig = Rig()
    assert rig.feed(*[wire[i : i + 1000] for i in range(0, len(wire), 1000)], GLUE)
    assert rig.parser.control == [("INFO", body)]
    assert rig.summary().messages == {1: [(b"glue", None, None, b"next")]}


# Counting


def test_ten_thousand_pings_are_counted_and_ask_for_attention() -> None:
    rig = Rig()
    assert not rig.parser.needs_attention
    assert rig.feed(b"PING\r\n" * 10_000)
    assert rig.parser.pings == 10_000
    assert rig.parser.needs_attention


@pytest.mark.parametrize(
    ("wire", "asks"),
    [(b"PONG\r\n", True), (b"+OK\r\n", False), (b"-ERR x\r\n", True), (GLUE, False)],
)
def test_only_what_must_be_handled_asks_for_attention(wire: bytes, asks: bool) -> None:
    rig = Rig()
    assert rig.feed(wire)
    assert rig.parser.needs_attention is asks


def test_ten_thousand_messages_come_in_their_order() -> None:
    rig = Rig()
    assert rig.feed(b"".join(b"MSG a 1 4\r\n%04d\r\n" % i for i in range(10_000)))
    assert rig.parser.messages == 10_000
    assert rig.parser.payload_bytes == 40_000
    bodies = [data for *_, data in rig.summary().messages[1]]
    assert bodies == [b"%04d" % i for i in range(10_000)]


def test_a_message_for_an_unknown_sid_is_counted_and_passed_over() -> None:
    rig = Rig()
    assert rig.feed(b"MSG a 7 2\r\nhi\r\n" + GLUE)
    assert (rig.parser.messages, rig.parser.unrouted) == (2, 1)
    assert rig.summary() == summary_of(
        [message(b"hi", sid=7), *outcome(GLUE).events], [7]
    )


def test_messages_follow_a_route_that_is_added_replaced_or_removed() -> None:
    rig = Rig([1])
    first, second = rig.inboxes[1], Inbox()
    assert rig.feed(GLUE)
    rig.routes.add(1, second)
    assert rig.feed(GLUE)
    assert (first.count, second.count) == (1, 1)
    assert rig.routes.remove(1) is second
    assert rig.routes.remove(1) is None
    assert rig.feed(GLUE)
    assert (second.count, rig.parser.unrouted, len(rig.routes)) == (1, 1, 0)


def test_a_parser_can_be_bound_to_other_routes() -> None:
    rig, other = Rig(), Rig()
    rig.parser.bind(other.routes)
    assert rig.feed(GLUE)
    assert (rig.inboxes[1].count, other.inboxes[1].count) == (0, 1)


# Large messages go straight into their bytes objects


BIG = bytes(range(256)) * 512
BIG_BLOCK = b"NATS/1.0\r\n" + b"K: v\r\n" * 20_000 + b"\r\n"
LARGE = {
    "payload": (None, BIG),
    "header and payload": (BLOCK, BIG),
    "large header": (BIG_BLOCK, BIG),
    "large header alone": (BIG_BLOCK, b""),
    "just large": (None, b"x" * (32 * 1024 + 1)),
    "just not": (None, b"x" * (32 * 1024)),
    "ends in CR": (None, BIG + b"\r"),
}


def large_frame(block: bytes | None, payload: bytes, sid: int = 1) -> bytes:
    sizes = b"%d" % (len(block or b"") + len(payload))
    verb = b"MSG"
    if block is not None:
        verb, sizes = b"HMSG", b"%d %s" % (len(block), sizes)
    line = b"%s sub.ject %d re.ply %s\r\n" % (verb, sid, sizes)
    return line + (block or b"") + payload + b"\r\n"


def telling_cuts(wire: bytes) -> list[int]:
    """The places in a large frame where something begins or ends, and some others."""
    line = wire.index(b"\n") + 1
    near = {line, line + len(BLOCK), line + len(BIG_BLOCK), len(wire)}
    cuts = {place + step for place in near for step in range(-3, 4)}
    return sorted(at for at in cuts | {1, 65536, 70_000} if 0 < at <= len(wire))


@pytest.mark.parametrize("case", LARGE)
def test_a_large_message_is_read_however_it_is_cut(case: str) -> None:
    block, payload = LARGE[case]
    wire = large_frame(block, payload)
    wanted = (b"sub.ject", b"re.ply", block, payload)
    for at in telling_cuts(wire):
        rig = Rig()
        assert rig.feed(GLUE + wire[:at], wire[at:] + GLUE)
        got = rig.summary().messages[1]
        assert [got[0][3], got[1] == wanted, got[2][3]] == [b"next", True, b"next"]
        assert rig.parser.payload_bytes == len(block or b"") + len(payload) + 8


@pytest.mark.parametrize("chunk", [1, 999, 65536])
def test_a_large_message_is_gathered_from_small_reads(chunk: int) -> None:
    wire = large_frame(BLOCK, BIG)
    rig = Rig()
    assert rig.feed(*[wire[i : i + chunk] for i in range(0, len(wire), chunk)])
    assert rig.summary().messages == {1: [(b"sub.ject", b"re.ply", BLOCK, BIG)]}


@pytest.mark.parametrize("trailer", [b"\n\n", b"\r\r", b"xx"])
@pytest.mark.parametrize("sid", [1, 9], ids=["wanted", "unknown"])
def test_a_large_payload_with_a_wrong_end_is_neither_delivered_nor_counted(
    trailer: bytes, sid: int
) -> None:
    wire = large_frame(None, BIG, sid)
    rig = Rig()
    assert not rig.feed(wire[:100], wire[100:-2], trailer)
    assert rig.inboxes[1].arrived == 0
    assert (rig.parser.messages, rig.parser.unrouted) == (0, 0)


def test_a_large_message_for_an_unknown_sid_is_passed_over_without_memory() -> None:
    wire = large_frame(BIG_BLOCK, BIG, sid=9)
    for at in telling_cuts(wire):
        rig = Rig()
        assert rig.feed(wire[:at], wire[at:] + GLUE)
        assert (rig.parser.messages, rig.parser.unrouted) == (2, 1)
        assert rig.parser.payload_bytes == len(BIG_BLOCK) + len(BIG) + 4
        assert rig.inboxes[1].count == 1
    rig = Rig()
    pieces = [wire[i : i + 1000] for i in range(0, len(wire), 1000)]
    assert peak_of(lambda: rig.feed(*pieces)) < 16384


def test_an_unfinished_large_message_is_given_up_with_its_parser() -> None:
    before = live_objects()
    rig = Rig()
    assert rig.feed(large_frame(BLOCK, BIG)[:1000])
    assert not rig.parser.is_idle
    assert live_objects()["messages"] == before["messages"]
    del rig
    assert live_objects() == before


def test_a_large_message_over_the_limits_is_dropped_and_counted() -> None:
    rig = Rig()
    inbox = Inbox(max_bytes=1000)
    rig.routes.add(1, inbox)
    assert rig.feed(large_frame(None, BIG)[:100], large_frame(None, BIG)[100:] + GLUE)
    assert (inbox.dropped, inbox.arrived, inbox.count) == (1, 2, 1)
    msg = inbox.take()
    assert msg is not None
    assert parts(msg) == (b"glue", None, None, b"next")


@pytest.mark.parametrize("wrong", ["text", bytearray(b"PING\r\n"), None, 1])
def test_only_bytes_are_fed(wrong: bytes) -> None:
    with pytest.raises(TypeError):
        Parser(Routes()).feed(wrong)
