"""A model of a pull consumer on a server: what it answers, byte for byte.

It serves waiting pulls in turn, one message each, charges each pull what a message
weighs, and ends pulls as servers do: in silence when the last byte is used, with a
status otherwise. What it delivers stands in a queue of its own, and goes to nobody if
the interest ends before it is sent. Whatever crosses the link stands in a queue in each
direction, so that a test decides when it arrives, and a cut loses it.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

TIMEOUT = (408, "Request Timeout")
NO_MESSAGES = (404, "No Messages")
TOO_LARGE = (409, "Message Size Exceeds MaxBytes")
COMPLETED = (409, "Batch Completed")
WAITING = (409, "Exceeded MaxWaiting")

Status = tuple[int, str]


@dataclass(slots=True)
class Request:
    """A pull on its way."""

    sid: int
    reply: str
    body: bytes


@dataclass(slots=True)
class Unsubscribe:
    """An UNSUB on its way."""

    sid: int


@dataclass(slots=True)
class Ping:
    """A PING on its way; the PONG has its number."""

    number: int


@dataclass(slots=True)
class Frame:
    """Something on its way to the client."""

    wire: bytes
    reply: str = ""  # of the pull that it belongs to
    sid: int = 0
    message: int | None = None  # if it is one
    size: int = 0
    pong: int = 0


@dataclass(slots=True, eq=False)
class Waiting:
    """A pull that the server has."""

    sid: int
    reply: str
    left: int
    bytes_left: int
    has_bytes: bool
    no_wait: bool
    expires_at: float
    heartbeat: float
    beat_at: float
    is_mute: bool = False


@dataclass(slots=True)
class Consumer:
    """The consumer; see the module's text."""

    max_waiting: int
    now: float = 0.0
    is_linked: bool = True
    is_deleted: bool = False
    messages: dict[int, int] = field(default_factory=dict)  # payload sizes, to deliver
    sent: dict[int, int] = field(default_factory=dict)  # not known to have arrived
    pulls: list[Waiting] = field(default_factory=list)
    ended: list[Waiting] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)  # pulls that end without a word
    up: deque[Request | Unsubscribe | Ping] = field(default_factory=deque)
    down: deque[Frame] = field(default_factory=deque)
    queue: deque[Frame] = field(default_factory=deque)  # delivered, not sent
    is_busy: bool = False  # it sends only when it is told to
    wasted: int = 0  # messages that it has sent to nobody
    deaf_to: set[int] = field(default_factory=set)  # sids without interest
    refusals: deque[Status] = field(default_factory=deque)  # for the next pulls
    mood: Status | None = None  # ends every pull at once
    published: int = 0
    delivered: int = 0

    # The stream

    def publish(self, size: int) -> None:
        self.published += 1
        self.messages[self.published] = size
        self.serve()

    def redeliver(self, arrived: set[int]) -> None:
        """The ack_wait of what did not arrive is over."""
        under_way = {frame.message for frame in self.under_way}
        for number in sorted(self.sent):
            if number not in under_way:
                size = self.sent.pop(number)
                if number not in arrived:
                    self.messages[number] = size
        self.messages = dict(sorted(self.messages.items()))
        self.serve()

    @property
    def under_way(self) -> list[Frame]:
        """What it has for the client, in its queue and on the link."""
        return [*self.down, *self.queue]

    def deliver(self, frame: Frame) -> None:
        self.queue.append(frame)
        if not self.is_busy:
            self.flush()

    def flush(self) -> None:
        """Sends what it has delivered to those who still listen."""
        while self.queue:
            frame = self.queue.popleft()
            if frame.sid not in self.deaf_to:
                self.down.append(frame)
            elif frame.message is not None:
                self.wasted += 1

    # The link

    def read(self) -> None:
        """Takes the oldest thing that the client sent."""
        what = self.up.popleft()
        match what:
            case Request():
                self.asked(what)
            case Unsubscribe(sid):
                self.deaf_to.add(sid)
            case Ping(number):
                self.down.append(Frame(b"PONG\r\n", pong=number))

    def cut(self) -> None:
        """The link is lost with everything on it, and so is the interest."""
        self.is_linked = False
        self.deaf_to |= {pull.sid for pull in self.pulls}
        self.up.clear()
        self.down.clear()
        self.queue.clear()

    def send(self, pull: Waiting, status: Status) -> None:
        code, text = status
        head = f"NATS/1.0 {code} {text}".rstrip() + "\r\n"
        if status in (TIMEOUT, TOO_LARGE, COMPLETED):
            head += f"Nats-Pending-Messages: {pull.left}\r\n"
            head += f"Nats-Pending-Bytes: {pull.bytes_left}\r\n"
        block = (head + "\r\n").encode()
        line = f"HMSG {pull.reply} {pull.sid} {len(block)} {len(block)}\r\n"
        self.deliver(Frame(line.encode() + block + b"\r\n", pull.reply, pull.sid))

    # Pulls

    def asked(self, request: Request) -> None:
        body = json.loads(request.body)
        expires = body.get("expires", 0) / 1e9
        beat = body.get("idle_heartbeat", 0) / 1e9
        assert body["batch"] >= 1
        assert 2 * body.get("idle_heartbeat", 0) <= body.get("expires", 0)
        pull = Waiting(
            request.sid,
            request.reply,
            left=body["batch"],
            bytes_left=body.get("max_bytes", 0),
            has_bytes="max_bytes" in body,
            no_wait=body.get("no_wait", False),
            expires_at=self.now + expires if expires else float("inf"),
            heartbeat=beat,
            beat_at=self.now + beat if beat else float("inf"),
        )
        if self.is_deleted:
            self.send(pull, (503, ""))
        elif self.mood is not None:
            self.send(pull, self.mood)
        elif self.refusals:
            self.send(pull, self.refusals.popleft())
        elif pull.no_wait and not self.messages:
            self.send(pull, NO_MESSAGES)
        elif len(self.pulls) >= self.max_waiting:
            if beat:
                self.lost.add(pull.reply)
            else:
                self.send(pull, WAITING)
        else:
            self.pulls.append(pull)
            self.serve()

    def end(self, pull: Waiting, status: Status | None) -> None:
        self.pulls.remove(pull)
        self.ended.append(pull)
        if status is not None:
            self.send(pull, status)

    def lose(self, pull: Waiting) -> None:
        self.lost.add(pull.reply)
        self.end(pull, None)

    def delete(self) -> None:
        """The consumer is deleted; another of its name may be made later."""
        self.is_deleted = True
        for pull in list(self.pulls):
            self.end(pull, (409, "Consumer Deleted"))

    def serve(self) -> None:
        """Gives messages to waiting pulls, in turn."""
        for pull in list(self.pulls):
            if pull.sid in self.deaf_to:
                self.end(pull, None)
        while self.messages:
            audible = [pull for pull in self.pulls if not pull.is_mute]
            if not audible:
                return
            pull = audible[0]
            number = next(iter(self.messages))
            frame = self.frame(pull, number, self.messages[number])
            if pull.has_bytes and frame.size > pull.bytes_left:
                self.end(pull, TOO_LARGE)
                continue
            self.sent[number] = self.messages.pop(number)
            self.delivered += 1
            self.deliver(frame)
            pull.left -= 1
            pull.bytes_left -= frame.size if pull.has_bytes else 0
            pull.beat_at = self.now + (pull.heartbeat or float("inf"))
            if pull.has_bytes and pull.bytes_left == 0:
                self.end(pull, None)
            elif pull.left == 0:
                self.end(pull, COMPLETED if pull.has_bytes else None)
            else:
                self.pulls.remove(pull)
                self.pulls.append(pull)
        for pull in list(self.pulls):
            if pull.no_wait and not pull.is_mute:
                self.end(pull, NO_MESSAGES)

    def frame(self, pull: Waiting, number: int, size: int) -> Frame:
        subject = b"s.%d" % number
        reply = b"$JS.ACK.S.C.1.%d.%d.1794822688406701443.%d" % (
            number,
            self.delivered + 1,
            len(self.messages) - 1,
        )
        data = b"x" * size
        if number % 3:
            wire = b"MSG %b %d %b %d\r\n%b\r\n" % (subject, pull.sid, reply, size, data)
            header = b""
        else:
            header = b"NATS/1.0\r\nNumber: %d\r\n\r\n" % number
            total = len(header) + size
            wire = b"HMSG %b %d %b %d %d\r\n%b%b\r\n" % (
                *(subject, pull.sid, reply, len(header), total),
                *(header, data),
            )
        charge = len(subject) + len(reply) + len(header) + size
        return Frame(wire, pull.reply, pull.sid, number, charge)

    # The clock

    def next_event(self) -> float:
        """When `tick` has something to do."""
        audible = (pull.beat_at for pull in self.pulls if not pull.is_mute)
        return min(
            *(pull.expires_at for pull in self.pulls),
            *audible,
            float("inf"),
            float("inf"),
        )

    def tick(self, now: float) -> None:
        """Sends heartbeats and ends what has expired."""
        self.now = now
        for pull in list(self.pulls):
            if pull.sid in self.deaf_to:
                self.end(pull, None)
            elif now >= pull.expires_at and pull.is_mute:
                self.lose(pull)
            elif now >= pull.expires_at:
                self.end(pull, TIMEOUT)
            elif now >= pull.beat_at and not pull.is_mute:
                pull.beat_at = now + pull.heartbeat
                self.send(pull, (100, "Idle Heartbeat"))
