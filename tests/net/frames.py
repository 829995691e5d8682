"""Reads what a client sent as strictly as a server would."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(rb"([A-Z]+)(?: ([^\r\n]*))?\r\n")
_SIZED = (b"PUB", b"HPUB")
_OTHERS = (b"CONNECT", b"PING", b"PONG", b"SUB", b"UNSUB")


class Frame(NamedTuple):
    """One frame of a client; `body` is headers and payload."""

    verb: bytes
    arguments: bytes
    body: bytes


def client_frames(data: bytes, *, may_be_cut: bool = False) -> list[Frame]:
    """The frames in `data`; AssertionError where a server would see an error.

    With `may_be_cut` the last one may be unfinished, and is left out.
    """
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        line = _LINE.match(data, at)
        if line is None:
            assert may_be_cut, f"no control line: {data[at : at + 60]!r}"
            assert b"\r\n" not in data[at:], f"no control line: {data[at : at + 60]!r}"
            break
        verb, arguments = line[1], line[2] or b""
        at = line.end()
        body = b""
        if verb in _SIZED:
            size = int(arguments.split()[-1])
            if len(data) < at + size + 2:
                assert may_be_cut, f"{verb!r} {arguments!r} is unfinished"
                break
            body = data[at : at + size]
            at += size
            assert data[at : at + 2] == b"\r\n", f"no CR LF after {arguments!r}"
            at += 2
        else:
            assert verb in _OTHERS, f"unknown verb {verb!r}"
        frames.append(Frame(verb, arguments, body))
    return frames


def published(data: bytes, *, may_be_cut: bool = False) -> list[bytes]:
    """The payloads of the publishes in `data`, which have no headers."""
    frames = client_frames(data, may_be_cut=may_be_cut)
    return [frame.body for frame in frames if frame.verb == b"PUB"]
