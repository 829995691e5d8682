"""Stored messages that are read directly, in columns: as reading one by one says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._core import Parser, Routes, StoredInbox, rebuild_msg
from jsclient.stored import ADDED_IN_BATCH, from_direct
from tests.harness.strategies import pieces

MIB = 1 << 20
END = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: 9\r\n\r\n"

keys = st.sampled_from(
    [b"A", b"Trace", b"Nats-Msg-Id", b"Nats-Sequence", b"Nats-Subject", b"Nats-Stream"]
)
fields = st.lists(st.tuples(keys, st.sampled_from([b"", b"1", b"x y", b"\xc3\xbc"])))
moments = st.tuples(
    st.datetimes(), st.one_of(st.none(), st.integers(0, 10**9 - 1))
).filter(lambda pair: 1970 <= pair[0].year <= 2261)


def block(
    own: list[tuple[bytes, bytes]],
    *,
    subject: bytes = b"a.b",
    seq: int = 7,
    time: bytes = b"2026-01-02T03:04:05.678Z",
    pending: int = 3,
    without: bytes = b"",
) -> bytes:
    """The header block of a message in a batch of direct gets."""
    added = [
        (b"Nats-Stream", b"S"),
        (b"Nats-Subject", subject),
        (b"Nats-Sequence", b"%d" % seq),
        (b"Nats-Time-Stamp", time),
        (b"Nats-Num-Pending", b"%d" % pending),
        (b"Nats-Last-Sequence", b"%d" % (seq - 1)),
    ]
    lines = [b"%b: %b\r\n" % line for line in [*own, *added] if line[0] != without]
    return b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"


def frame(header: bytes, data: bytes = b"") -> bytes:
    total = len(header) + len(data)
    return b"HMSG inbox 1 %d %d\r\n%b%b\r\n" % (len(header), total, header, data)


def rig() -> tuple[Parser, StoredInbox]:
    routes = Routes()
    inbox = StoredInbox(None)
    routes.add(1, inbox)
    return Parser(routes, MIB), inbox


def rfc3339(moment: tuple[object, int | None]) -> bytes:
    text = f"{moment[0]:%Y-%m-%dT%H:%M:%S}"
    if moment[1] is not None:
        text += f".{moment[1]:09}".rstrip("0").rstrip(".")
    return f"{text}Z".encode()


@given(
    st.lists(st.tuples(fields, st.binary(max_size=50), moments), max_size=5), st.data()
)
def test_columns_say_what_reading_one_by_one_says(
    stored: list[tuple[list[tuple[bytes, bytes]], bytes, tuple[object, int | None]]],
    data: st.DataObject,
) -> None:
    blocks = [
        block(
            own, subject=b"s.%d" % n, seq=5 + 3 * n, time=rfc3339(when), pending=9 - n
        )
        for n, (own, _, when) in enumerate(stored)
    ]
    payloads = [payload for _, payload, _ in stored]
    wire = b"".join(map(frame, blocks, payloads)) + frame(END)
    parser, inbox = rig()
    for piece in data.draw(pieces(wire)):
        parser.feed(piece)
    assert inbox.ready
    assert inbox.ending is not None
    assert inbox.ending.status == 204
    batch = inbox.batch
    assert len(batch) == len(stored)
    for n, header in enumerate(blocks):
        told = from_direct(
            rebuild_msg(b"inbox", b"", header, payloads[n]), "test", ADDED_IN_BATCH
        )
        assert batch[n].subject == told.subject
        assert batch[n].data == told.data
        assert batch[n].headers == told.headers
        assert batch.stream_seqs[n] == told.seq
        assert batch.timestamps_ns[n] == told.timestamp_ns
    assert batch.num_pending == (10 - len(stored) if stored else None)


@pytest.mark.parametrize(
    "bad",
    [
        block([], without=b"Nats-Num-Pending"),
        block([], without=b"Nats-Subject"),
        block([], subject=b""),
        block([], time=b"yesterday"),
        block([], time=b"2026-13-02T03:04:05Z"),
        block([], time=b"2026-01-02T03:04:05.Z"),
        block([], time=b"2026-01-02T03:04:05.1234567890Z"),
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0 408 Bad Request\r\n\r\n",
    ],
)
def test_what_cannot_be_told_ends_the_answers(bad: bytes) -> None:
    parser, inbox = rig()
    parser.feed(frame(block([])) + frame(bad) + frame(block([])))
    assert inbox.ready
    assert inbox.ending is not None
    assert inbox.ending.raw_headers == bad
    assert len(inbox.batch) == 1


def test_an_answer_without_headers_ends_the_answers_too() -> None:
    parser, inbox = rig()
    parser.feed(b"MSG inbox 1 2\r\nhi\r\n")
    assert inbox.ending is not None
    assert inbox.ending.data == b"hi"
