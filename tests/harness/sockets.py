"""What the loopback peers need of sockets: readiness, a bell, and the hard reset."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from typing import Protocol


class Readable(Protocol):
    """Anything that a selector can watch."""

    def fileno(self) -> int: ...


class Bell:
    """Wakes a thread out of `wait_ready`; any thread may ring it until it is closed."""

    def __init__(self) -> None:
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)

    def fileno(self) -> int:
        return self._inner.fileno()

    def ring(self) -> None:
        # A full pair rings already.
        with contextlib.suppress(BlockingIOError):
            self._outer.send(b"\0")

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._inner.recv(4096):
                pass

    def close(self) -> None:
        self._inner.close()
        self._outer.close()


def wait_ready(
    readers: Iterable[Readable], writers: Iterable[Readable], deadline: float
) -> tuple[list[Readable], list[Readable]]:
    """Those that can be read or written now, none when the deadline came first."""
    interest: dict[Readable, int] = dict.fromkeys(readers, selectors.EVENT_READ)
    for writer in writers:
        interest[writer] = interest.get(writer, 0) | selectors.EVENT_WRITE
    timeout = None
    if deadline != math.inf:
        timeout = max(0.0, deadline - time.monotonic())
    with selectors.PollSelector() as selector:
        for watched, events in interest.items():
            selector.register(watched, events, watched)
        ready = selector.select(timeout)
    readable = [key.data for key, events in ready if events & selectors.EVENT_READ]
    writable = [key.data for key, events in ready if events & selectors.EVENT_WRITE]
    return readable, writable


def reset(sock: socket.socket) -> None:
    """Close with RST, dropping what the kernel has not sent yet."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def no_delay(sock: socket.socket) -> None:
    """One segment per send, and calls that never block."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
