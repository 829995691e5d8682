"""A scripted JetStream with one consumer whose pulls a test answers as it likes.

    desk = Desk(lambda pull: [pull.message(1, b"hello")])
    with consuming(desk) as scene:
        assert scene.consumer.next().data == b"hello"

A test that wants frames sent later has its client publish a cue: `desk.cues` says what
the peer sends when it sees one.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jsclient
from jsclient import Status
from jsclient.consumer import Consumer
from tests.harness.scripted import (
    Peer,
    Script,
    ScriptedServer,
    ScriptError,
    handshake,
)
from tests.harness.tidy import assert_tidy
from tests.net.client import TIMEOUT, connected
from tests.net.frames import Frame, client_frames

_FRAME = re.compile(
    rb"(?P<ping>PING)\r\n"
    rb"|UNSUB (?P<ended>\d+)[^\r\n]*\r\n"
    rb"|SUB (?P<filter>\S+) (?P<sid>\d+)\r\n"
    rb"|H?PUB (?P<subject>\S+) (?:(?P<reply>\S+) )??(?:(?P<header>\d+) )?(?P<size>\d+)"
    rb"\r\n"
)
PULLS = "$JS.API.CONSUMER.MSG.NEXT.S."
NEXT = f"{PULLS}C"
CONSUMER = {
    "stream_name": "S",
    "name": "C",
    "config": {
        "durable_name": "C",
        "ack_policy": "explicit",
        "ack_wait": 30_000_000_000,
    },
}


class Pull(NamedTuple):
    """A pull of the client, and the frames that answer it."""

    connection: int
    reply: str
    sid: str
    raw: bytes
    consumer: str = "C"

    @property
    def body(self) -> dict[str, Any]:
        """What it asks for."""
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def inbox(self) -> str:
        """The part of the reply subject that the pulls of one link share."""
        return self.reply.rsplit(".", 2)[0]

    def message(
        self,
        seq: int,
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        place: int | None = None,
        pending: int = 0,
    ) -> bytes:
        """A message of the stream, delivered for this pull, in its place by default."""
        numbers = f"1.{seq}.{place or seq}.1794822688406701443.{pending}"
        ack = f"$JS.ACK.S.{self.consumer}.{numbers}"
        if headers is None:
            line = f"MSG s.a {self.sid} {ack} {len(data)}\r\n"
            return line.encode() + data + b"\r\n"
        block = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
        block = f"NATS/1.0\r\n{block}\r\n"
        sizes = f"{len(block)} {len(block) + len(data)}"
        line = f"HMSG s.a {self.sid} {ack} {sizes}\r\n{block}"
        return line.encode() + data + b"\r\n"

    def status(self, line: str, headers: Mapping[str, object] | None = None) -> bytes:
        """A status such as "404 No Messages"."""
        given = (headers or {}).items()
        fields = "".join(f"{key}: {value}\r\n" for key, value in given)
        block = f"NATS/1.0 {line}\r\n{fields}\r\n"
        size = len(block)
        return f"HMSG {self.reply} {self.sid} {size} {size}\r\n{block}\r\n".encode()

    def pending(self, line: str, messages: object, size: object = 0) -> bytes:
        """A status that tells what the pull had left."""
        left = {"Nats-Pending-Messages": messages, "Nats-Pending-Bytes": size}
        return self.status(line, left)


class Ack(NamedTuple):
    """What the client published to an ack subject."""

    subject: str
    reply: str
    sid: str
    payload: bytes

    def confirmed(self) -> bytes:
        """The server's answer to a double ack."""
        return f"MSG {self.reply} {self.sid} 0\r\n\r\n".encode()


def nothing(*_: object) -> Iterable[bytes]:
    """No answer."""
    return ()


class Desk:
    """What the peer does, and what it saw; the same for every link."""

    def __init__(
        self,
        on_pull: Callable[[Pull], Iterable[bytes]] = nothing,
        *,
        on_ack: Callable[[Ack], Iterable[bytes]] = nothing,
        on_ping: Callable[[], Iterable[bytes]] = nothing,
        config: Mapping[str, object] | None = None,
        version: str = "2.15.1",
    ) -> None:
        self.version = version
        self.on_pull = on_pull
        self.on_ack = on_ack
        self.on_ping = on_ping  # what comes before the PONG
        self.cues: dict[str, Callable[[], Iterable[bytes]]] = {}
        # What is answered to a request; None: `info`.
        self.on_request: Callable[[str, bytes], object] = lambda *_: None
        self.info: dict[str, Any] | None = {
            **CONSUMER,
            "config": {**CONSUMER["config"], **(config or {})},  # type: ignore[dict-item]
        }
        self._pulls: list[Pull] = []
        self._acks: list[Ack] = []
        self._changed = threading.Condition()
        self.is_open = threading.Event()  # who connects before that waits for it
        self.is_open.set()

    @property
    def pulls(self) -> list[Pull]:
        """The pulls so far."""
        with self._changed:
            return list(self._pulls)

    @property
    def acks(self) -> list[Ack]:
        """The acks so far."""
        with self._changed:
            return list(self._acks)

    def wait_pull(self, count: int = 1, timeout: float = TIMEOUT) -> Pull:
        """The pull with that number."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self._pulls) >= count, timeout)
            assert found, f"only {len(self._pulls)} pulls: {self._pulls}"
            return self._pulls[count - 1]

    def wait_ack(self, count: int = 1, timeout: float = TIMEOUT) -> Ack:
        """The ack with that number."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self._acks) >= count, timeout)
            assert found, f"only {len(self._acks)} acks: {self._acks}"
            return self._acks[count - 1]

    def await_open(self, peer: Peer) -> None:
        """A step before the script."""
        assert self.is_open.wait(TIMEOUT)

    def script(self) -> Script:
        """For one link."""
        return [handshake({"version": self.version}), self._serve]

    def _serve(self, peer: Peer) -> None:
        sids: dict[str, str] = {}
        try:
            while True:
                frame = peer.expect(_FRAME, timeout=60.0)
                if frame["ping"]:
                    for piece in self.on_ping():
                        peer.send(piece, may_fail=True)
                    peer.send(b"PONG\r\n", may_fail=True)
                elif frame["sid"]:
                    sids[frame["filter"].decode()] = frame["sid"].decode()
                elif frame["subject"]:
                    for piece in self._answer(peer, frame, sids):
                        peer.send(piece, may_fail=True)
                    if not peer.is_open:
                        return
        except ScriptError:
            if not peer.client_ended:
                raise

    def _answer(
        self, peer: Peer, frame: re.Match[bytes], sids: dict[str, str]
    ) -> Iterable[bytes]:
        size = int(frame["size"])
        body = peer.expect(re.compile(rb"(.{%d})\r\n" % size, re.S))[1]
        body = body[int(frame["header"] or 0) :]
        subject, reply = frame["subject"].decode(), (frame["reply"] or b"").decode()
        sid = sids.get(reply) or sids.get(reply.rpartition(".")[0] + ".*") or "0"
        if subject.startswith(PULLS):
            consumer = subject.removeprefix(PULLS)
            pull = Pull(peer.index, reply, sid, body, consumer)
            self._note(self._pulls, pull)
            return self.on_pull(pull)
        if subject.startswith("$JS.ACK."):
            ack = Ack(subject, reply, sid, body)
            self._note(self._acks, ack)
            return self.on_ack(ack)
        if subject == "cue.cut":
            peer.reset()
            return ()
        if subject.startswith("cue."):
            return self.cues.get(subject.removeprefix("cue."), nothing)()
        answer = self.on_request(subject, body) or self.info
        if answer is None:
            error = {
                "code": 404,
                "err_code": 10014,
                "description": "not found",
            }
            answer = {"error": error}
        text = json.dumps(answer)
        if not reply:
            return ()
        return [f"MSG {reply} {sid} {len(text)}\r\n{text}\r\n".encode()]

    def _note(self, record: list[Any], what: object) -> None:
        with self._changed:
            record.append(what)
            self._changed.notify_all()


class Counter:
    """An `on_pull` that gives the pulls their answers one after the other."""

    def __init__(self, *answers: Callable[[Pull], Iterable[bytes]]) -> None:
        self._answers = list(answers)

    def __call__(self, pull: Pull) -> Iterable[bytes]:
        return self._answers.pop(0)(pull) if self._answers else ()


class Scene(NamedTuple):
    """A client with a consumer, and the peer that it speaks to."""

    nc: jsclient.Connection
    consumer: Consumer
    server: ScriptedServer

    def frames(self, connection: int = 0) -> list[Frame]:
        """What the client said on a link, as a server reads it."""
        return client_frames(self.server.received(connection), may_be_cut=True)

    def cue(self, name: str) -> None:
        """Has the peer do what the desk says for this cue."""
        self.nc.publish(f"cue.{name}", b"")

    def heard(self) -> None:
        """Returns when the client has handled all that the peer sent so far."""
        self.nc.flush(TIMEOUT)


@contextmanager
def consuming(desk: Desk, *, links: int = 1, **options: Any) -> Iterator[Scene]:
    """A consumer at the desk; afterwards nothing of any pull is left."""
    script = [desk.await_open, *desk.script()]
    with (
        ScriptedServer(*[script] * links) as server,
        connected(server.url, **options) as nc,
    ):
        yield Scene(nc, nc.jetstream().consumer("S", "C"), server)
        if nc.status is not Status.CLOSED:
            assert_tidy(nc)
