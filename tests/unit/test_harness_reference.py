"""The reference parser and decoders against written and generated cases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import strategies
from tests.harness.reference import (
    Ack,
    BadHeaders,
    Broken,
    Event,
    HeaderBlock,
    NotAck,
    Outcome,
    Parser,
    decode_ack,
    decode_headers,
    outcome,
    outcome_of_chunks,
)

PING: Event = ("PING",)
HEADERS = b"NATS/1.0\r\nK: v\r\n\r\n"  # 18 bytes
SESSION = (
    b'INFO {"server_id":"N"} \r\nPONG\r\n'
    b"MSG a.b 1 5\r\nhello\r\n"
    b"HMSG a.b 22 _R.1 18 20\r\n" + HEADERS + b"hi\r\n"
    b"+OK\r\n-ERR 'Slow Consumer'\r\nPING\r\n"
)
SESSION_EVENTS: tuple[Event, ...] = (
    ("INFO", b'{"server_id":"N"}'),
    ("PONG",),
    ("MSG", b"a.b", 1, None, None, b"hello"),
    ("MSG", b"a.b", 22, b"_R.1", HEADERS, b"hi"),
    ("OK",),
    ("ERR", b"'Slow Consumer'"),
    PING,
)


def message(subject: bytes, payload: bytes, reply: bytes | None = None) -> Event:
    return ("MSG", subject, 1, reply, None, payload)


GOOD: dict[bytes, list[Event]] = {
    b'INFO {"a":1} \r\n': [("INFO", b'{"a":1}')],
    b'INFO{"a":1}\r\n': [("INFO", b'{"a":1}')],
    b"info\t \t{} \t\r\n": [("INFO", b"{}")],
    b"INFO not json\r\n": [("INFO", b"not json")],
    b"INFO\r\n": [("INFO", b"")],
    b"msg a 1 3\r\nabc\r\nMSG a 1 0\r\n\r\n": [
        message(b"a", b"abc"),
        message(b"a", b""),
    ],
    b"MSG\ta  1\t 2\r\nhi\r\n": [message(b"a", b"hi")],
    b"MSG a 1 2 \t\r\nhi\r\n": [message(b"a", b"hi")],
    b"MSG a 1 r 2\r\nhi\r\n": [message(b"a", b"hi", b"r")],
    b"MSG a 0001 02\r\nhi\r\n": [message(b"a", b"hi")],
    b"MSG a 1 8\r\n\r\nPING\r\n\r\n": [message(b"a", b"\r\nPING\r\n")],
    b"MSG a 9223372036854775807 0\r\n\r\n": [
        ("MSG", b"a", (1 << 63) - 1, None, None, b"")
    ],
    b"MSG a.\xff\x00\x7f 1 \xc3\x28 1\r\nx\r\n": [
        message(b"a.\xff\x00\x7f", b"x", b"\xc3\x28")
    ],
    b"HMSG a 1 18 20\r\n" + HEADERS + b"hi\r\n": [
        ("MSG", b"a", 1, None, HEADERS, b"hi")
    ],
    b"hMsG a 1 r 18 18\r\n" + HEADERS + b"\r\n": [("MSG", b"a", 1, b"r", HEADERS, b"")],
    b"HMSG a 1 0 2\r\nhi\r\n": [message(b"a", b"hi")],
    b"HMSG a 1 5 7\r\nhello\r\n\r\n": [("MSG", b"a", 1, None, b"hello", b"\r\n")],
    b"pInG\r\nPONG\r\n+ok\r\n": [PING, ("PONG",), ("OK",)],
    b"PING \r\nPONG\tanything\r\n+OK  x\r\n": [PING, ("PONG",), ("OK",)],
    b"-ERR 'Some Text' \r\n": [("ERR", b"'Some Text'")],
    b"-err\tunquoted\r\n": [("ERR", b"unquoted")],
    b"-ERR\r\n": [("ERR", b"")],
    b"-ERR \t\r\n": [("ERR", b"")],
}


@pytest.mark.parametrize("wire", GOOD)
def test_a_good_frame_means_the_same_however_it_is_cut(wire: bytes) -> None:
    events = (*GOOD[wire], PING)
    glued = wire + b"PING\r\n"
    assert outcome(glued) == Outcome(events, broken=False)
    assert outcome_of_chunks(glued[i : i + 1] for i in range(len(glued))) == Outcome(
        events, broken=False
    )
    for at in range(len(glued) + 1):
        assert outcome_of_chunks([glued[:at], glued[at:]]).events == events


# The first byte after which the stream is lost is the last byte of each.
BAD = [
    b"X",
    b"\r",
    b" ",
    b"PX",
    b"PIP",
    b"MSH",
    b"+OX",
    b"-ERX",
    b"PINGX",
    b"PONG\x00",
    b"+OK'",
    b"-ERR'",
    b"MSGa",
    b"HMSG:",
    b"INFO[",
    b"PING\n",
    b"MSG a 1 0\n",
    b"INFO {}\n",
    b"-ERR 'x'\n",
    b"PING\rx",
    b"PING \r\r",
    b"MSG a\rb",
    b"MSG\r\n",
    b"MSG a\r\n",
    b"MSG a 1\r\n",
    b"MSG a 1 r 2 3\r\n",
    b"HMSG a 1 2\r\n",
    b"HMSG a 1 r 2 3 4\r\n",
    b"MSG a x 1\r\n",
    b"MSG a -1 1\r\n",
    b"MSG a 9223372036854775808 1\r\n",
    b"MSG a 1 -1\r\n",
    b"MSG a 1 +1\r\n",
    b"MSG a 1 abc\r\n",
    b"MSG a 1 1x\r\n",
    b"MSG a 1 \xb2\r\n",
    b"MSG a 1 1_0\r\n",
    b"MSG a 1 1\v\r\n",
    b"MSG a 1 9223372036854775808\r\n",
    b"MSG a 1 18446744073709551621\r\n",
    b"MSG a 1 00000000000000000001\r\n",
    b"MSG a 1 1099511627776\r\n",
    b"MSG a 1 1114113\r\n",
    b"HMSG a 1 18 1114113\r\n",
    b"HMSG a 1 30 20\r\n",
    b"HMSG a 1 x 20\r\n",
    b"HMSG a 1 9223372036854775808 20\r\n",
    b"MSG a 1 2\r\nabc",
    b"MSG a 1 1\r\nab",
    b"MSG a 1 4\r\nabc\r\n",
    b"MSG a 1 5\r\nabc\r\nP",
    b"MSG a 1 3\r\nabc\n",
    b"MSG a 1 3\r\nabc\r\r",
    b"MSG a 1 0\r\nP",
]


@pytest.mark.parametrize("wire", BAD)
def test_a_bad_frame_breaks_the_stream_at_its_first_wrong_byte(wire: bytes) -> None:
    parser = Parser()
    assert parser.feed(b"PING\r\n" + wire[:-1]) == [PING]
    with pytest.raises(Broken) as caught:
        parser.feed(wire[-1:])
    assert caught.value.events == ()
    assert parser.is_broken


@pytest.mark.parametrize("wire", BAD)
def test_a_bad_frame_costs_neither_the_frames_before_nor_a_wrong_one(
    wire: bytes,
) -> None:
    got = outcome(b"PING\r\n" + wire + b"\r\nPONG\r\n")
    assert got == Outcome((PING,), broken=True)


def test_a_broken_parser_stays_broken() -> None:
    parser = Parser()
    with pytest.raises(Broken) as caught:
        parser.feed(b"PING\r\nX")
    assert caught.value.events == (PING,)
    with pytest.raises(Broken) as again:
        parser.feed(b"PING\r\n")
    assert again.value.events == ()


@pytest.mark.parametrize("verb", [b"-ERR ", b"PING ", b"MSG ", b"HMSG "])
def test_a_control_line_may_have_4352_bytes_and_no_more(verb: bytes) -> None:
    parser = Parser()
    assert parser.feed(verb.ljust(4352, b"x")) == []
    with pytest.raises(Broken, match="longer than 4352"):
        parser.feed(b"x")


def test_a_control_line_of_the_full_length_is_parsed() -> None:
    subject = b"s".ljust(4352 - len(b"MSG  1 2"), b"s")
    wire = b"MSG " + subject + b" 1 2\r\nhi\r\n"
    assert outcome(wire).events == (message(subject, b"hi"),)
    assert outcome(b"PING".ljust(4352) + b"\r\n").events == (PING,)
    assert outcome(b"PING".ljust(4353) + b"\r\n") == Outcome((), broken=True)


def test_an_info_line_may_have_a_mebibyte_and_no_more() -> None:
    full = b"INFO {".ljust((1 << 20) - 1) + b"}"
    assert outcome(full + b"\r\n").events == (("INFO", full[5:]),)
    assert outcome(full + b" \r\n") == Outcome((), broken=True)
    assert outcome(b"INFO " + b"x" * (16 << 20)) == Outcome((), broken=True)


def test_the_payload_limit_is_that_of_the_server_and_an_allowance() -> None:
    parser = Parser(max_payload=100)
    line = b"MSG a 1 65636\r\n"
    assert parser.feed(line + b"x" * 65636 + b"\r\n") == [message(b"a", b"x" * 65636)]
    parser.max_payload = 99
    with pytest.raises(Broken, match="over the limit"):
        parser.feed(line)


def test_ten_thousand_pings_are_ten_thousand_events() -> None:
    assert outcome(b"PING\r\n" * 10_000).events == (PING,) * 10_000


def test_every_prefix_of_a_session_gives_the_events_it_holds_whole() -> None:
    assert outcome(SESSION) == Outcome(SESSION_EVENTS, broken=False)
    counts = []
    for at in range(len(SESSION) + 1):
        got = outcome(SESSION[:at])
        assert not got.broken
        assert got.events == SESSION_EVENTS[: len(got.events)]
        counts.append(len(got.events))
    assert counts == sorted(counts)


def test_every_byte_change_of_a_session_ends_in_events_or_broken() -> None:
    for at in range(len(SESSION)):
        for value in {0, 9, 10, 13, 32, 48, 57, 88, 255, SESSION[at] ^ 0x20}:
            changed = SESSION[:at] + bytes([value]) + SESSION[at + 1 :]
            whole = outcome(changed)
            assert (
                outcome_of_chunks([changed[:at], changed[at:]]).events == whole.events
            )
            assert whole.broken or whole.events


@pytest.mark.parametrize(
    "wire",
    [b"X", b"MSG a x", b"MSG a x 1", b"PING\rx", b"P", b"PINGX", b"MSG a 1 1\r\nab"],
)
def test_a_verdict_inside_an_unfinished_line_is_undecided(wire: bytes) -> None:
    got = outcome(wire)
    assert got.undecided
    assert got.allows(Outcome((), broken=True))
    assert got.allows(Outcome((), broken=False))
    assert not got.allows(Outcome((PING,), broken=True))


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"X\r\n",
        b"PING\r\n",
        b"MSG a x 1\r\n",
        b"PING\n",
        b"MSG a 1 3\r\nab",
        b"MSG a 1 1\r\nabc",
        b"MSG ".ljust(4354, b"x"),
    ],
)
def test_a_verdict_on_a_finished_line_is_decided(wire: bytes) -> None:
    got = outcome(wire)
    assert not got.undecided
    assert not got.allows(Outcome(got.events, broken=not got.broken))


@settings(deadline=None)
@given(st.data())
def test_a_generated_stream_means_what_it_was_built_from(data: st.DataObject) -> None:
    stream = data.draw(strategies.streams())
    assert outcome(stream.wire) == Outcome(stream.events, broken=False)
    chunks = data.draw(strategies.pieces(stream.wire))
    assert outcome_of_chunks(chunks) == Outcome(stream.events, broken=False)


@settings(deadline=None)
@given(strategies.damaged_streams, st.data())
def test_a_damaged_stream_has_one_verdict_however_it_is_cut(
    wire: bytes, data: st.DataObject
) -> None:
    whole = outcome(wire)
    parts = outcome_of_chunks(data.draw(strategies.pieces(wire)))
    assert parts.events == whole.events
    assert parts.broken == whole.broken


GOOD_BLOCKS = {
    b"NATS/1.0\r\n\r\n": HeaderBlock(None, None, []),
    HEADERS: HeaderBlock(None, None, [("K", "v")]),
    b"NATS/1.0 503\r\n\r\n": HeaderBlock(503, None, []),
    b"NATS/1.0 503 \r\n\r\n": HeaderBlock(503, None, []),
    b"NATS/1.0 503\r\nNats-Subject: foo\r\n\r\n": HeaderBlock(
        503, None, [("Nats-Subject", "foo")]
    ),
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n": HeaderBlock(
        100, "Idle Heartbeat", [("Nats-Last-Consumer", "5")]
    ),
    b"NATS/1.0 404 \t No \xc3\xa4 \xff \r\n\r\n": HeaderBlock(404, "No ä \udcff", []),
    b"NATS/1.0\r\nK: a\r\nK: b\r\nk: c\r\n\r\n": HeaderBlock(
        None, None, [("K", "a"), ("K", "b"), ("k", "c")]
    ),
    b"NATS/1.0\r\nK:\t a b:c \t\r\nL:\r\n\r\n": HeaderBlock(
        None, None, [("K", "a b:c"), ("L", "")]
    ),
    b"NATS/1.0\r\n: skipped\r\n:\r\nK: \xff\r\n\r\n": HeaderBlock(
        None, None, [("K", "\udcff")]
    ),
    b"NATS/1.0\r\nStatus: 409\r\nK : a\rb\r\n\r\n": HeaderBlock(
        None, None, [("Status", "409"), ("K ", "a\rb")]
    ),
}


@pytest.mark.parametrize("block", GOOD_BLOCKS)
def test_a_good_header_block_is_decoded(block: bytes) -> None:
    assert decode_headers(block) == GOOD_BLOCKS[block]


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"hello",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/2.0\r\n\r\n",
        b"nats/1.0\r\n\r\n",
        b"NATS/1.0\r\nK: v\r\n",
        b"NATS/1.0\r\nK: v\r\n\r\nx",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\nK: v\r\n\r\nL: w\r\n\r\n",
        b"NATS/1.0\r\n\r\n\r\n",
        b"NATS/1.0\n\r\n\r\n",
        b"NATS/1.0\nK: v\r\n\r\n",
        b"NATS/1.0\r\nK: v\nL: w\r\n\r\n",
        b"NATS/1.0\r\nK: v\n\n",
        b"NATS/1.0418\r\n\r\n",
        b"NATS/1.0 \r\n\r\n",
        b"NATS/1.0\t503\r\n\r\n",
        b"NATS/1.0  503\r\n\r\n",
        b"NATS/1.0 50\r\n\r\n",
        b"NATS/1.0 5033\r\n\r\n",
        b"NATS/1.0 5o3\r\n\r\n",
        b"NATS/1.0 503x\r\n\r\n",
        b"NATS/1.0 50\xb2\r\n\r\n",
        b"NATS/1.0 503\tText\r\n\r\n",
    ],
)
def test_a_malformed_header_block_is_refused(block: bytes) -> None:
    with pytest.raises(BadHeaders):
        decode_headers(block)


@settings(deadline=None)
@given(strategies.header_blocks())
def test_a_generated_header_block_means_what_it_was_built_from(
    block: strategies.Block,
) -> None:
    assert decode_headers(block.wire) == block.meaning


@settings(deadline=None)
@given(strategies.damaged_blocks)
def test_a_damaged_header_block_is_decoded_or_refused(wire: bytes) -> None:
    try:
        decoded = decode_headers(wire)
    except BadHeaders:
        return
    assert wire.startswith(b"NATS/1.0")
    assert all(key for key, _ in decoded.fields)


NUMBERS = b"3.10.12.1794822690692342458.2"
MEANING = Ack("S", "C", None, 3, 10, 12, 1794822690692342458, 2)

GOOD_ACKS = {
    b"$JS.ACK.S.C." + NUMBERS: MEANING,
    b"$JS.ACK._.szMpdrwD.S.C." + NUMBERS: MEANING,
    b"$JS.ACK._.szMpdrwD.S.C." + NUMBERS + b".random": MEANING,
    b"$JS.ACK._.szMpdrwD.S.C." + NUMBERS + b".a.b.c": MEANING,
    b"$JS.ACK.hub.szMpdrwD.S.C." + NUMBERS: MEANING._replace(domain="hub"),
    b"$JS.ACK.TE%ST.a@b-c$." + NUMBERS: MEANING._replace(
        stream="TE%ST", consumer="a@b-c$"
    ),
    b"$JS.ACK.\xff.C." + NUMBERS: MEANING._replace(stream="\udcff"),
    b"$JS.ACK.S.C.1.1.1.9223372036854775807.0": Ack(
        "S", "C", None, 1, 1, 1, (1 << 63) - 1, 0
    ),
    b"$JS.ACK.S.C.1.18446744073709551615.1.1.0": Ack(
        "S", "C", None, 1, (1 << 64) - 1, 1, 1, 0
    ),
}


@pytest.mark.parametrize("reply", GOOD_ACKS)
def test_the_reply_of_a_delivery_is_decoded(reply: bytes) -> None:
    assert decode_ack(reply) == GOOD_ACKS[reply]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"_INBOX.x.y",
        b"$JS.ACK",
        b"$JS.ACK.S.C.3.10.12.17",
        b"$JS.ACK._.S.C." + NUMBERS,
        b"$JS.NAK.S.C." + NUMBERS,
        b"$JSX.ACK.S.C." + NUMBERS,
        b"$js.ack.S.C." + NUMBERS,
        b"$JS.ACK.S.C..1.1.1.0",
        b"$JS.ACK..C." + NUMBERS,
        b"$JS.ACK.S.." + NUMBERS,
        b"$JS.ACK.S.C.-1.1.1.1.0",
        b"$JS.ACK.S.C.1.1x.1.1.0",
        b"$JS.ACK.S.C.1.1. 1.1.0",
        b"$JS.ACK.S.C.1.18446744073709551616.1.1.0",
        b"$JS.ACK.S.C.1.1.1.9223372036854775808.0",
        b"$JS.ACK.S.C.1.1.1.1.",
        b"$JS.ACK.S.C.1.1.1.1.0@x",
    ],
)
def test_another_subject_is_no_ack(reply: bytes) -> None:
    with pytest.raises(NotAck):
        decode_ack(reply)


@settings(deadline=None)
@given(strategies.ack_subjects())
def test_a_generated_ack_subject_means_what_it_was_built_from(
    subject: strategies.AckSubject,
) -> None:
    assert decode_ack(subject.wire) == subject.meaning


@settings(deadline=None)
@given(strategies.damaged_ack_subjects)
def test_a_damaged_ack_subject_is_decoded_or_refused(wire: bytes) -> None:
    try:
        ack = decode_ack(wire)
    except NotAck:
        return
    assert min(ack[3:]) >= 0
