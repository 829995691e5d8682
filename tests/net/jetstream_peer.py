"""A scripted peer that answers requests, as a JetStream of any kind would.

def answer(request: Request) -> Iterable[bytes]:
    return [request.json({"streams": None})]

with ScriptedServer([handshake(), answering(answer)]) as server:
    ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.harness.scripted import Peer, ScriptError, Step

_FRAME = re.compile(
    rb"(?P<ping>PING)\r\n"
    rb"|SUB (?P<filter>\S+) (?P<sid>\d+)\r\n"
    rb"|H?PUB (?P<subject>\S+) (?:(?P<reply>\S+) )??(?:(?P<header>\d+) )?(?P<size>\d+)"
    rb"\r\n"
)


class Request(NamedTuple):
    """A request of the client, and the frames that answer it."""

    subject: str
    reply: str
    sid: str  # of the client's subscription that the reply matches
    data: bytes
    headers: bytes

    @property
    def body(self) -> Any:
        """The JSON of the request, None without any."""
        return json.loads(self.data) if self.data else None

    def json(self, answer: object) -> bytes:
        """An answer of JSON."""
        return self.raw(json.dumps(answer).encode())

    def error(self, code: int, err_code: int, description: str) -> bytes:
        """A refusal of the API."""
        error = {"code": code, "err_code": err_code, "description": description}
        return self.json({"type": "io.nats.jetstream.api.v1.response", "error": error})

    def raw(self, data: bytes) -> bytes:
        """An answer of any bytes."""
        line = f"MSG {self.reply} {self.sid} {len(data)}\r\n".encode()
        return line + data + b"\r\n"

    def status(
        self, line: str, headers: Mapping[str, str] | None = None, data: bytes = b""
    ) -> bytes:
        """An answer with an inline status, as "503" or "204 EOB"."""
        return self.headed(f"NATS/1.0 {line}", list((headers or {}).items()), data)

    def message(
        self, headers: Sequence[tuple[str, object]], data: bytes = b""
    ) -> bytes:
        """An answer with headers, which may repeat."""
        return self.headed("NATS/1.0", headers, data)

    def headed(
        self, first: str, headers: Sequence[tuple[str, object]], data: bytes
    ) -> bytes:
        """A frame with these header lines."""
        lines = [first, *(f"{key}: {value}" for key, value in headers), "", ""]
        block = "\r\n".join(lines).encode()
        sizes = f"{len(block)} {len(block) + len(data)}"
        line = f"HMSG {self.reply} {self.sid} {sizes}\r\n".encode()
        return line + block + data + b"\r\n"


Answer = Callable[[Request], Iterable[bytes]]


def answering(answer: Answer, *, count: int | None = None) -> Step:
    """A step: answer PINGs, and requests by the function, `count` of them or all."""

    def step(peer: Peer) -> None:
        sids: dict[str, str] = {}
        left = count
        try:
            while left is None or left > 0:
                frame = peer.expect(_FRAME, timeout=60.0)
                if frame["ping"]:
                    peer.send(b"PONG\r\n", may_fail=True)
                elif frame["sid"]:
                    sids[frame["filter"].decode()] = frame["sid"].decode()
                else:
                    left = None if left is None else left - 1
                    request = _request(peer, frame, sids)
                    for piece in answer(request):
                        peer.send(piece, may_fail=True)
        except ScriptError:
            if not peer.client_ended:
                raise

    return step


def _request(peer: Peer, frame: re.Match[bytes], sids: dict[str, str]) -> Request:
    size = int(frame["size"])
    body = peer.expect(re.compile(rb"(.{%d})\r\n" % size, re.S))[1]
    header = int(frame["header"] or 0)
    reply = (frame["reply"] or b"").decode()
    wide = reply.rpartition(".")[0] + ".*"
    return Request(
        frame["subject"].decode(),
        reply,
        sids.get(reply) or sids.get(wide) or "0",
        body[header:],
        body[:header],
    )
