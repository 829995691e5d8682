"""A plain reference of the wire parser and its decoders, the oracle for the compiled.

It is slow and obvious on purpose: `Parser` keeps the bytes of the unfinished frame and
reads that frame from its beginning at every feed. It promises the events that a stream
of server bytes means, and says when the stream breaks the protocol. It checks no JSON,
knows no subscriptions and answers nothing.

The moment of a verdict: a wrong verb, a stray CR or LF and a wrong payload trailer are
noticed at their first byte, an over-long line at the first byte past its limit, wrong
arguments when their line is complete. Another parser may notice a bad line sooner or
later than that, but never after the line's end; `Outcome.undecided` marks the streams
that end inside such a line, where both verdicts are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

LINE_LIMIT = 4096 + 256
INFO_LIMIT = 1 << 20
HEADER_ALLOWANCE = 65536
INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1

Info: TypeAlias = tuple[Literal["INFO"], bytes]
Message: TypeAlias = tuple[
    Literal["MSG"], bytes, int, bytes | None, bytes | None, bytes
]
Err: TypeAlias = tuple[Literal["ERR"], bytes]
Bare: TypeAlias = tuple[Literal["PING", "PONG", "OK"]]
Event: TypeAlias = Info | Message | Err | Bare

VERBS = (b"INFO", b"MSG", b"HMSG", b"PING", b"PONG", b"+OK", b"-ERR")


class Broken(Exception):
    """The stream breaks the protocol; `events` came whole in the same feed before."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.events: tuple[Event, ...] = ()


class BadHeaders(Exception):
    """The header block is malformed."""


class NotAck(Exception):
    """The subject is not the reply subject of a JetStream delivery."""


class Parser:
    """Bytes in, events out; once broken it stays broken."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload  # set it between frames only
        self._held = bytearray()  # from the first byte of the unfinished frame
        self._broken: str | None = None

    @property
    def is_broken(self) -> bool:
        return self._broken is not None

    @property
    def held(self) -> bytes:
        """The bytes of the frame that is unfinished, or broken."""
        return bytes(self._held)

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes; Broken carries those before the break."""
        if self._broken is not None:
            raise Broken(self._broken)
        self._held += data
        events: list[Event] = []
        try:
            while (found := _first_frame(self._held, self.max_payload)) is not None:
                event, size = found
                events.append(event)
                del self._held[:size]
        except Broken as broken:
            self._broken = str(broken)
            broken.events = tuple(events)
            raise
        return events


class Outcome(NamedTuple):
    """What became of a whole stream."""

    events: tuple[Event, ...]
    broken: bool
    undecided: bool = False  # it ends inside a line or trailer that may be judged later

    def allows(self, seen: Outcome) -> bool:
        """Whether another parser may answer `seen` where the reference says this."""
        verdict_fits = self.undecided or seen.broken == self.broken
        return seen.events == self.events and verdict_fits


def outcome(data: bytes, max_payload: int = 1 << 20) -> Outcome:
    """The verdict on `data` as the whole of a stream."""
    parser = Parser(max_payload)
    try:
        events = tuple(parser.feed(data))
    except Broken as broken:
        events = broken.events
    held = parser.held
    return Outcome(events, parser.is_broken, _is_undecided(held, max_payload))


def outcome_of_chunks(chunks: Iterable[bytes], max_payload: int = 1 << 20) -> Outcome:
    """The verdict on a stream that arrives in pieces; nothing is fed after a break."""
    parser = Parser(max_payload)
    events: list[Event] = []
    for chunk in chunks:
        try:
            events += parser.feed(chunk)
        except Broken as broken:
            events += broken.events
            break
    undecided = _is_undecided(parser.held, max_payload)
    return Outcome(tuple(events), parser.is_broken, undecided)


def _is_undecided(held: bytes, max_payload: int) -> bool:
    """Whether `held` ends inside a control line, or with one byte of a trailer."""
    if not held:
        return False
    if b"\n" not in held:
        limit = INFO_LIMIT if held[:4].upper() == b"INFO" else LINE_LIMIT
        return len(held) <= limit + 1
    try:
        line = _control_line(bytearray(held))
        announced = _announced(line, max_payload) if line is not None else None
    except Broken:
        return False
    if line is None or announced is None:
        return False
    return len(held) == len(line) + 2 + announced.total + 1


class _Announced(NamedTuple):
    """The control line of a message."""

    subject: bytes
    sid: int
    reply: bytes | None
    header_size: int
    total: int


def _first_frame(held: bytearray, max_payload: int) -> tuple[Event, int] | None:
    """The frame that `held` begins with and its size, or None if it is unfinished."""
    line = _control_line(held)
    if line is None:
        return None
    announced = _announced(line, max_payload)
    if announced is not None:
        return _message(held, len(line) + 2, announced)
    verb = _verb(line)
    argument = line[len(verb or b"") :].strip(b" \t")
    event: Event
    if verb == b"INFO":
        event = ("INFO", argument)
    elif verb == b"-ERR":
        event = ("ERR", argument)
    elif verb == b"PING":
        event = ("PING",)
    elif verb == b"PONG":
        event = ("PONG",)
    else:
        event = ("OK",)
    return event, len(line) + 2


def _verb(held: bytes | bytearray) -> bytes | None:
    """The verb that `held` begins with, or None if only a part of one is there."""
    head = bytes(held[:4]).upper()
    for verb in VERBS:
        if head.startswith(verb):
            return verb
    if any(verb.startswith(head) for verb in VERBS):
        return None
    raise Broken(f"unknown verb {head!r}")


def _control_line(held: bytearray) -> bytes | None:
    """The first line of `held` without CR LF, or None if it is unfinished."""
    verb = _verb(held)
    if verb is None:
        return None
    after = bytes(held[len(verb) : len(verb) + 1])
    allowed = b" \t\r{" if verb == b"INFO" else b" \t\r"
    if after and after not in allowed:
        raise Broken(f"{after!r} follows {verb!r}")
    limit = INFO_LIMIT if verb == b"INFO" else LINE_LIMIT
    end = re.compile(rb"[\r\n]").search(held, 0, limit + 1)
    if end is None:
        if len(held) > limit:
            raise Broken(f"the control line is longer than {limit} bytes")
        return None
    at = end.start()
    if held[at : at + 1] == b"\n":
        raise Broken("LF without CR ends the control line")
    if len(held) == at + 1:
        return None
    if held[at + 1 : at + 2] != b"\n":
        raise Broken("CR without LF in the control line")
    return bytes(held[:at])


def _announced(line: bytes, max_payload: int) -> _Announced | None:
    """What a MSG or HMSG line announces; None for the lines of other verbs."""
    verb = _verb(line)
    if verb not in (b"MSG", b"HMSG"):
        return None
    words = re.findall(rb"[^ \t]+", line[len(verb) :])
    sizes = 1 if verb == b"MSG" else 2
    if len(words) not in (2 + sizes, 3 + sizes):
        raise Broken(f"{verb!r} with {len(words)} arguments")
    subject, sid = words[0], _number(words[1], "sid")
    reply = words[2] if len(words) == 3 + sizes else None
    total = _number(words[-1], "size")
    header_size = 0 if verb == b"MSG" else _number(words[-2], "header size")
    if header_size > total:
        raise Broken(f"header size {header_size} is over the total of {total}")
    if total > max_payload + HEADER_ALLOWANCE:
        raise Broken(f"size {total} is over the limit of {max_payload} and allowance")
    return _Announced(subject, sid, reply, header_size, total)


def _message(
    held: bytearray, start: int, announced: _Announced
) -> tuple[Event, int] | None:
    """The message whose header block or payload begins at `start`."""
    end = start + announced.total
    trailer = bytes(held[end : end + 2])
    if not b"\r\n".startswith(trailer):
        raise Broken(f"{trailer!r} follows the payload")
    if trailer != b"\r\n":
        return None
    middle = start + announced.header_size
    header = bytes(held[start:middle]) if announced.header_size else None
    payload = bytes(held[middle:end])
    subject, sid, reply = announced.subject, announced.sid, announced.reply
    return ("MSG", subject, sid, reply, header, payload), end + 2


def _number(text: bytes, what: str) -> int:
    value = _int64(text)
    if value is None:
        raise Broken(f"{what} is {text!r}")
    return value


def _int64(text: bytes) -> int | None:
    """The value of 1 to 19 decimal digits that fits 63 bits, else None."""
    if not re.fullmatch(rb"[0-9]{1,19}", text) or int(text) > INT64_MAX:
        return None
    return int(text)


def _uint64(text: bytes) -> int | None:
    """The value of 1 to 20 decimal digits that fits 64 bits, else None."""
    if not re.fullmatch(rb"[0-9]{1,20}", text) or int(text) > UINT64_MAX:
        return None
    return int(text)


class HeaderBlock(NamedTuple):
    """A decoded header block; the fields keep their order and their case."""

    status: int | None
    description: str | None
    fields: list[tuple[str, str]]


def decode_headers(block: bytes) -> HeaderBlock:
    """Decode a whole header block; BadHeaders if it is malformed.

    A description of blanks counts as none. CR is an ordinary byte unless LF follows.
    """
    if not block.startswith(b"NATS/1.0"):
        raise BadHeaders("the version is not NATS/1.0")
    if not block.endswith(b"\r\n\r\n"):
        raise BadHeaders("no empty line ends the block")
    first, *lines = block.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(b"\n" in line for line in (first, *lines)):
        raise BadHeaders("LF without CR")
    status, description = _status(first.removeprefix(b"NATS/1.0"))
    fields: list[tuple[str, str]] = []
    for line in lines:
        key, colon, value = line.partition(b":")
        if not colon:
            raise BadHeaders(f"no colon in {line!r}")
        if key:
            fields.append((_text(key), _text(value.strip(b" \t"))))
    return HeaderBlock(status, description, fields)


def _status(rest: bytes) -> tuple[int | None, str | None]:
    """The status and description in what follows the version."""
    if not rest:
        return None, None
    found = re.fullmatch(rb" ([0-9]{3})(?: (.*))?", rest, re.DOTALL)
    if found is None:
        raise BadHeaders(f"{rest!r} follows the version")
    description = _text((found[2] or b"").strip(b" \t"))
    return int(found[1]), description or None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class Ack(NamedTuple):
    """What the reply subject of a JetStream delivery says."""

    stream: str
    consumer: str
    domain: str | None
    num_delivered: int
    stream_seq: int
    consumer_seq: int
    timestamp_ns: int
    num_pending: int


def decode_ack(reply: bytes) -> Ack:
    """Decode the reply subject of a delivery; NotAck if it is something else.

    Nine tokens are the first form; eleven or more are the second, which begins with
    domain and account hash and may have tokens at its end that mean nothing yet.
    """
    tokens = reply.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"]:
        raise NotAck(f"{reply!r} does not begin with $JS.ACK")
    domain: str | None = None
    if len(tokens) == 9:
        useful = tokens[2:]
    elif len(tokens) >= 11:
        domain = None if tokens[2] in (b"_", b"") else _text(tokens[2])
        useful = tokens[4:11]
    else:
        raise NotAck(f"{reply!r} has {len(tokens)} tokens")
    stream, consumer, *numbers = useful
    if not stream or not consumer:
        raise NotAck(f"{reply!r} has an empty name")
    values = [_uint64(number) for number in numbers]
    delivered, stream_seq, consumer_seq, timestamp, pending = values
    if (
        delivered is None
        or stream_seq is None
        or consumer_seq is None
        or timestamp is None
        or timestamp > INT64_MAX
        or pending is None
    ):
        raise NotAck(f"{reply!r} has a token that is no number")
    return Ack(
        stream=_text(stream),
        consumer=_text(consumer),
        domain=domain,
        num_delivered=delivered,
        stream_seq=stream_seq,
        consumer_seq=consumer_seq,
        timestamp_ns=timestamp,
        num_pending=pending,
    )
