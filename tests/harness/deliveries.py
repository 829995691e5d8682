"""Frames of a push consumer, and a compiled parser that brings them to an inbox."""

from __future__ import annotations

from collections.abc import Mapping

from jsclient._core import Msg, Parser, PushInbox, Routes
from tests.harness.lanes import MIB, Delivery, courier, delivery

__all__ = ["PushRig", "delivery", "flow_control", "heartbeat", "status"]


def status(
    line: str, headers: Mapping[str, object] | None = None, *, reply: str = ""
) -> bytes:
    """A status for the sid 1, as "409 Consumer Deleted"."""
    fields = "".join(f"{key}: {value}\r\n" for key, value in (headers or {}).items())
    block = f"NATS/1.0 {line}\r\n{fields}\r\n".encode()
    to = f" {reply}" if reply else ""
    head = f"HMSG d 1{to} {len(block)} {len(block)}\r\n"
    return head.encode() + block + b"\r\n"


def heartbeat(last: int | None = None, *, stalled: str | None = None) -> bytes:
    """A heartbeat after that many deliveries."""
    headers: dict[str, object] = {}
    if last is not None:
        headers |= {"Nats-Last-Consumer": last, "Nats-Last-Stream": last}
    if stalled is not None:
        headers["Nats-Consumer-Stalled"] = stalled
    return status("100 Idle Heartbeat", headers)


def flow_control(subject: str) -> bytes:
    """A request to be answered on that subject."""
    return status("100 FlowControl Request", reply=subject)


class PushRig:
    """A parser with one push inbox on the sid 1."""

    def __init__(self, inbox: PushInbox | None = None) -> None:
        self.inbox = PushInbox(courier()) if inbox is None else inbox
        self.routes = Routes()
        self.routes.add(1, self.inbox)
        self.parser = Parser(self.routes, 16 * MIB)

    def feed(self, *frames: bytes | int | Delivery) -> PushRig:
        """Numbers are messages of the consumer."""
        for frame in frames:
            if isinstance(frame, int):
                frame = delivery(frame)
            if isinstance(frame, Delivery):
                frame = frame.frame(1)
            self.parser.feed(frame)
        return self

    def taken(self) -> list[int]:
        """The numbers of the messages that are there."""
        found = []
        while (msg := self.inbox.take()) is not None:
            found.append(msg.metadata.consumer_seq)
        return found

    def due(self) -> Msg | None:
        """The status whose turn it is, which is then put away."""
        status = self.inbox.status
        if status is not None:
            self.inbox.put_away(status)
        return status
