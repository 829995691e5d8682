"""The compiled parser, driven so that its results compare with the reference's.

The compiled parser hands messages to inboxes and counts what needs no bytes, so the
order between kinds of events is lost; `Summary` is what is left of a stream for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from jsclient._core import (
    Headers,
    Inbox,
    Metadata,
    Msg,
    Parser,
    Routes,
    rebuild_msg,
)
from jsclient.errors import ProtocolError
from tests.harness.reference import Ack, Event, HeaderBlock, Outcome

Parts: TypeAlias = tuple[bytes, bytes | None, bytes | None, bytes]


class Summary(NamedTuple):
    """What a stream brought."""

    messages: dict[int, list[Parts]]  # by sid: subject, reply, header block, payload
    control: list[tuple[str, bytes]]
    pings: int
    pongs: int
    unrouted: int


class Rig:
    """A compiled parser with an inbox for each sid."""

    def __init__(self, sids: Iterable[int] = (1,), max_payload: int = 1 << 20) -> None:
        self.routes = Routes()
        self.inboxes = {sid: Inbox() for sid in sids}
        for sid, inbox in self.inboxes.items():
            self.routes.add(sid, inbox)
        self.parser = Parser(self.routes, max_payload)

    def feed(self, *chunks: bytes) -> bool:
        """Whether the stream is whole after these; nothing is fed after a break."""
        try:
            for chunk in chunks:
                self.parser.feed(chunk)
        except ProtocolError:
            return False
        return True

    def summary(self) -> Summary:
        """Everything so far; the messages are taken out of their inboxes."""
        return Summary(
            {
                sid: [parts(msg) for msg in take_all(inbox)]
                for sid, inbox in self.inboxes.items()
                if inbox.count
            },
            [(verb, text) for verb, text in self.parser.control],
            self.parser.pings,
            self.parser.pongs,
            self.parser.unrouted,
        )


def take_all(inbox: Inbox) -> list[Msg]:
    """The messages that the inbox holds, taken."""
    messages = []
    while (msg := inbox.take()) is not None:
        messages.append(msg)
    return messages


def parts(msg: Msg) -> Parts:
    """The bytes of a message as they came."""
    reply = None if msg.reply is None else to_bytes(msg.reply)
    return to_bytes(msg.subject), reply, msg.raw_headers, msg.data


def metadata_of(reply: bytes) -> Metadata:
    """What a message with that reply says of itself."""
    return rebuild_msg(b"a", reply, b"", b"").metadata


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def block_of(headers: Headers) -> HeaderBlock:
    """Decoded headers as the reference writes them."""
    return HeaderBlock(headers.status, headers.description, headers.multi_items())


def ack_of(metadata: Metadata) -> Ack:
    """Metadata as the reference writes them."""
    return Ack(
        metadata.stream,
        metadata.consumer,
        metadata.domain,
        metadata.num_delivered,
        metadata.stream_seq,
        metadata.consumer_seq,
        metadata.timestamp_ns,
        metadata.num_pending,
    )


def summary_of(events: Iterable[Event], strangers: Iterable[int] = ()) -> Summary:
    """What these events leave when nobody listens to the strangers among the sids."""
    unknown = set(strangers)
    messages: dict[int, list[Parts]] = {}
    control: list[tuple[str, bytes]] = []
    counts = {"PING": 0, "PONG": 0, "OK": 0}
    unrouted = 0
    for event in events:
        if event[0] == "MSG":
            _, subject, sid, reply, header, payload = event
            if sid in unknown:
                unrouted += 1
            else:
                messages.setdefault(sid, []).append((subject, reply, header, payload))
        elif event[0] == "INFO" or event[0] == "ERR":
            control.append((event[0], event[1]))
        else:
            counts[event[0]] += 1
    return Summary(messages, control, counts["PING"], counts["PONG"], unrouted)


def sids_of(events: Iterable[Event]) -> set[int]:
    """The sids that these events have messages of."""
    return {event[2] for event in events if event[0] == "MSG"}


def disagreement(
    expected: Outcome, chunks: list[bytes], max_payload: int
) -> str | None:
    """How the compiled parser's answer differs from what is expected, or None."""
    sids = sids_of(expected.events)
    # One sid is left out, so that passing over messages is tried too.
    strangers = {max(sids)} if len(sids) > 2 else set()
    rig = Rig(sids - strangers, max_payload)
    whole = rig.feed(*chunks)
    wanted, seen = summary_of(expected.events, strangers), rig.summary()
    if seen != wanted:
        return f"expected {wanted}, saw {seen}"
    if whole == expected.broken and not expected.undecided:
        return f"expected broken={expected.broken}, saw broken={not whole}"
    return None
