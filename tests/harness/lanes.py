"""A compiled parser with lanes, and the frames that come on them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from typing_extensions import Buffer

from jsclient._core import Courier, Lane, Outbox, Parser, PullInbox, Routes
from jsclient._engine.arguments import HeadersLike

MIB = 1 << 20


class Delivery(NamedTuple):
    """A message as a consumer delivers it."""

    subject: bytes
    reply: bytes
    header: bytes = b""
    data: bytes = b""

    def frame(self, sid: int) -> bytes:
        """As it comes for a subscription."""
        total = len(self.header) + len(self.data)
        verb, sizes = b"MSG", b"%d" % total
        if self.header:
            verb, sizes = b"HMSG", b"%d %d" % (len(self.header), total)
        line = b"%b %b %d %b %b\r\n" % (verb, self.subject, sid, self.reply, sizes)
        return line + self.header + self.data + b"\r\n"

    @property
    def size(self) -> int:
        """As the server counts it."""
        return sum(map(len, self))


def delivery(
    number: int,
    *,
    stream_seq: int | None = None,
    data: bytes = b"",
    header: bytes = b"",
) -> Delivery:
    """The delivery with that number of a consumer."""
    seq = number if stream_seq is None else stream_seq
    reply = b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.9" % (seq, number)
    return Delivery(b"s.%d" % (number % 3), reply, header, data)


def status(sid: int, subject: str, block: bytes) -> bytes:
    """The frame of a status."""
    head = b"HMSG %b %d %d %d\r\n" % (subject.encode(), sid, len(block), len(block))
    return head + block + b"\r\n"


class Port:
    """What a courier turns to; remembers nothing."""

    takes_reasons = True

    def publish(
        self, subject: str, data: Buffer, *, headers: HeadersLike | None = None
    ) -> None:
        raise AssertionError("nobody answers here")

    def note_bad_headers(self, error: Exception) -> None:
        raise AssertionError("nobody looks at headers here")

    def ack_sync(self, subject: str, timeout: float | timedelta | None) -> None:
        raise AssertionError("nobody waits here")

    def attend_publish(
        self,
        asked: int,
        subject: str,
        data: Buffer,
        reply: str | None,
        headers: HeadersLike | None,
        timeout: float,
    ) -> None:
        assert asked == 1, "there is room"


def courier(
    outbox: Outbox | None = None,
    *,
    is_ack_none: bool = False,
    ack_prefix: str | None = None,
) -> Courier:
    if outbox is None:
        outbox = Outbox(MIB, MIB)
    return Courier(Port(), outbox, is_ack_none, ack_prefix)


class LaneRig:
    """A parser, and a lane for each inbox, on the sids 1, 2, …"""

    def __init__(
        self, *inboxes: PullInbox, batch: int = 1_000_000, max_bytes: int = 0
    ) -> None:
        self.routes = Routes()
        self.parser = Parser(self.routes, 16 * MIB)
        self.lanes: list[Lane] = []
        for sid, inbox in enumerate(inboxes, 1):
            lane = Lane()
            lane.assign(sid, sid)
            lane.open(inbox, self.reply(sid), batch, max_bytes)
            self.routes.add(sid, lane)
            self.lanes.append(lane)

    def reply(self, sid: int) -> str:
        """Where the statuses of the first pull on a lane go."""
        return f"_INBOX.x.{sid}.1"

    def feed(self, deliveries: Iterable[Delivery]) -> None:
        """The same deliveries for every lane."""
        for one in deliveries:
            for lane in self.lanes:
                self.parser.feed(one.frame(lane.sid))

    def beat(self, sid: int, fields: bytes = b"") -> None:
        """A heartbeat for the first pull on a lane."""
        block = b"NATS/1.0 100 Idle Heartbeat\r\n" + fields + b"\r\n"
        self.parser.feed(status(sid, self.reply(sid), block))
