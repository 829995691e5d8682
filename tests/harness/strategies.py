"""Hypothesis strategies for server streams, header blocks, ack subjects and damage.

A valid thing comes with its meaning, known from how it was built and not by parsing it.
"""

from __future__ import annotations

import itertools
import json
from typing import NamedTuple

from hypothesis import strategies as st

from tests.harness.reference import Ack, Event, HeaderBlock

INT64_MAX = (1 << 63) - 1
BARE_VERBS: list[tuple[bytes, Event]] = [
    (b"PING", ("PING",)),
    (b"PONG", ("PONG",)),
    (b"+OK", ("OK",)),
]


class Stream(NamedTuple):
    """Bytes as a server sends them and the events they mean."""

    wire: bytes
    events: tuple[Event, ...]


class Block(NamedTuple):
    """A header block and what it holds."""

    wire: bytes
    meaning: HeaderBlock


class AckSubject(NamedTuple):
    """The reply subject of a delivery and what it says."""

    wire: bytes
    meaning: Ack


def bytes_without(
    unwanted: bytes, *, least: int, most: int
) -> st.SearchStrategy[bytes]:
    """Any bytes but the unwanted ones."""
    wanted = [value for value in range(256) if value not in unwanted]
    # Letters come first, so that a failing example shrinks to something readable.
    wanted.sort(key=lambda value: (not bytes([value]).isalnum(), value))
    values = st.lists(st.sampled_from(wanted), min_size=least, max_size=most)
    return values.map(bytes)


subjects = bytes_without(b" \t\r\n", least=1, most=12)
numbers = st.one_of(st.integers(0, 99), st.integers(0, INT64_MAX))
gaps = st.text(" \t", min_size=1, max_size=3).map(str.encode)
blanks = st.text(" \t", max_size=2).map(str.encode)
payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r\n", b"\r\nPING\r\n", b"MSG a 1 3\r\nabc\r\n", b"\r"]),
)


@st.composite
def verbs(draw: st.DrawFn, verb: bytes) -> bytes:
    """The verb in any mixture of upper and lower case."""
    if draw(st.booleans()):
        return verb
    lower = draw(st.lists(st.booleans(), min_size=len(verb), max_size=len(verb)))
    letters = zip(verb.decode(), lower, strict=True)
    return "".join(c.lower() if low else c for c, low in letters).encode()


@st.composite
def digits(draw: st.DrawFn, value: int) -> bytes:
    """The number in decimal, with leading zeros now and then."""
    plain = str(value)
    return plain.zfill(draw(st.sampled_from([1, 1, 5, 19]))).encode()


@st.composite
def info_frames(draw: st.DrawFn) -> Stream:
    fields = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8))
    text = json.dumps(draw(fields), ensure_ascii=draw(st.booleans()))
    body = text.encode()
    line = draw(verbs(b"INFO")) + draw(blanks) + body + draw(blanks) + b"\r\n"
    return Stream(line, (("INFO", body),))


@st.composite
def err_frames(draw: st.DrawFn) -> Stream:
    text = draw(bytes_without(b"\r\n", least=0, most=30)).strip(b" \t")
    gap = draw(gaps if text else blanks)
    line = draw(verbs(b"-ERR")) + gap + text + draw(blanks if text else st.just(b""))
    return Stream(line + b"\r\n", (("ERR", text),))


@st.composite
def bare_frames(draw: st.DrawFn) -> Stream:
    verb, event = draw(st.sampled_from(BARE_VERBS))
    ignored = b""
    if draw(st.integers(0, 4)) == 4:
        ignored = draw(gaps) + draw(bytes_without(b"\r\n", least=0, most=8))
    return Stream(draw(verbs(verb)) + ignored + b"\r\n", (event,))


@st.composite
def message_frames(draw: st.DrawFn) -> Stream:
    subject, sid = draw(subjects), draw(numbers)
    reply = draw(st.none() | subjects)
    payload = draw(payloads)
    has_headers = draw(st.booleans())
    header = draw(st.one_of(payloads, block_bytes)) if has_headers else b""
    words = [subject, draw(digits(sid))]
    if reply is not None:
        words.append(reply)
    if has_headers:
        words.append(draw(digits(len(header))))
    words.append(draw(digits(len(header) + len(payload))))
    line = draw(verbs(b"HMSG" if has_headers else b"MSG"))
    for word in words:
        line += draw(gaps) + word
    wire = line + draw(blanks) + b"\r\n" + header + payload + b"\r\n"
    return Stream(wire, (("MSG", subject, sid, reply, header or None, payload),))


@st.composite
def header_blocks(draw: st.DrawFn) -> Block:
    """A well-formed header block, with or without status, fields and empty keys."""
    status, description = None, None
    wire = b"NATS/1.0"
    if draw(st.booleans()):
        status = draw(st.integers(0, 999))
        wire += f" {status:03}".encode()
        if draw(st.booleans()):
            raw = draw(bytes_without(b"\r\n", least=0, most=20))
            wire += b" " + raw
            description = raw.strip(b" \t").decode("utf-8", "surrogateescape") or None
    wire += b"\r\n"
    fields = []
    for _ in range(draw(st.integers(0, 4))):
        key = draw(bytes_without(b"\r\n:", least=0, most=10))
        value = draw(bytes_without(b"\r\n", least=0, most=20))
        wire += key + b":" + value + b"\r\n"
        if key:
            text = value.strip(b" \t").decode("utf-8", "surrogateescape")
            fields.append((key.decode("utf-8", "surrogateescape"), text))
    return Block(wire + b"\r\n", HeaderBlock(status, description, fields))


block_bytes = header_blocks().map(lambda block: block.wire)


@st.composite
def ack_subjects(draw: st.DrawFn) -> AckSubject:
    """The reply subject of a delivery, in its first, its second or a longer form."""
    names = bytes_without(b" \t\r\n\f.*>/\\", least=1, most=10)
    stream, consumer = draw(names), draw(names)
    values = draw(st.tuples(numbers, numbers, numbers, numbers, numbers))
    tokens = [b"$JS", b"ACK"]
    domain = None
    extra: list[bytes] = []
    if draw(st.booleans()):
        token = draw(st.one_of(st.just(b"_"), names))
        tokens += [token, b"szMpdrwD"]
        if token != b"_":
            domain = token.decode("utf-8", "surrogateescape")
        extra = draw(st.lists(names, max_size=3))
    tokens += [stream, consumer]
    tokens += [draw(digits(value)) for value in values]
    meaning = Ack(
        stream.decode("utf-8", "surrogateescape"),
        consumer.decode("utf-8", "surrogateescape"),
        domain,
        *values,
    )
    return AckSubject(b".".join(tokens + extra), meaning)


def frames() -> st.SearchStrategy[Stream]:
    """One valid frame of any kind, messages most often."""
    messages = message_frames()
    return st.one_of(messages, messages, bare_frames(), err_frames(), info_frames())


@st.composite
def streams(draw: st.DrawFn, most: int = 6) -> Stream:
    """Several valid frames in a row."""
    parts = draw(st.lists(frames(), max_size=most))
    wire = b"".join(part.wire for part in parts)
    return Stream(wire, tuple(event for part in parts for event in part.events))


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data cut at any places, also into empty pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    borders = [0, *cuts, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


# Bytes that mean something to one of the grammars; random ones rarely do.
telling_bytes = st.one_of(
    st.sampled_from(list(b"\r\n \t0129-+:.{}'\x00\x7f\x80\xff_$aM")),
    st.integers(0, 255),
)


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """The original after one to three changes, each small but anywhere."""
    data = original
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["change", "delete", "insert", "truncate", "glue"]))
        if kind == "change":
            data = data[:at] + bytes([draw(telling_bytes)]) + data[at + 1 :]
        elif kind == "delete":
            data = data[:at] + data[at + draw(st.integers(1, 4)) :]
        elif kind == "insert":
            data = data[:at] + bytes([draw(telling_bytes)]) + data[at:]
        elif kind == "truncate":
            data = data[:at]
        else:
            start = draw(st.integers(0, len(original)))
            data = data[:at] + original[start:]
    return data


damaged_streams = streams(most=4).flatmap(lambda stream: damaged(stream.wire))
damaged_blocks = header_blocks().flatmap(lambda block: damaged(block.wire))
damaged_ack_subjects = ack_subjects().flatmap(lambda ack: damaged(ack.wire))
