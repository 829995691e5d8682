"""The other end of an outbox: what came over its link, and answers to it."""

from __future__ import annotations

import socket

from jsclient._core import Outbox, Parser


def arrived(outbox: Outbox, far: socket.socket) -> bytes:
    """All that the link brings once the peer, which does not block, reads."""
    got = b""
    while True:
        left = outbox.send()
        try:
            got += far.recv(1 << 16)
        except BlockingIOError:
            if not left:
                return got


def publishes(wire: bytes) -> list[tuple[str, bytes]]:
    """Where the acks of PUB and HPUB frames go, and what they carry."""
    frames = []
    while wire:
        line, _, wire = wire.partition(b"\r\n")
        words = line.split(b" ")
        size = int(words[-1])
        frames.append((words[2].decode(), wire[:size]))
        wire = wire[size + 2 :]
    return frames


def answer(parser: Parser, reply: str, body: bytes, headers: bytes = b"") -> None:
    """A message comes to a reply subject."""
    line = f"MSG {reply} 1 {len(body)}\r\n"
    if headers:
        line = f"HMSG {reply} 1 {len(headers)} {len(headers) + len(body)}\r\n"
    parser.feed(line.encode() + headers + body + b"\r\n")
