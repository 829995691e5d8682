"""The server's end of one scripted connection: sends, expects, stalls, breaks.

One thread owns a peer and runs its script. While it waits or sends, it reads and
records whatever the client sends; only `stall` stops that. TLS runs over memory
buffers, so bytes that were read too early still reach the handshake, and nothing needs
a lock but the record, which the test reads.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tests.harness.sockets import Bell, reset, wait_ready

TIMEOUT = 30.0  # far more than anything takes, also where all is slow
PIECE = 65536

Pattern: TypeAlias = bytes | re.Pattern[bytes]


class ScriptError(AssertionError):
    """The client did not do what the script says."""


class UnwelcomedError(ScriptError):
    """The client went away before its handshake was over.

    So does one that is closed while it reconnects. Whoever waits for more is told; that
    nobody does is no error.
    """


class _Stopped(Exception):
    """The server's block ended while the script was at work."""


class Stage:
    """What the peers of one server share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # guards all that the peers record
        self.released: set[str] = set()
        self.is_stopping = False
        self.port = 0


class Peer:
    """The server's end of one connection; its methods are for the script's thread."""

    def __init__(self, stage: Stage, index: int, sock: socket.socket) -> None:
        self.stage = stage
        self.index = index
        self.is_open = True
        self.bell = Bell()
        self.received = bytearray()  # what the client said, without TLS
        self.raw = bytearray()  # what came off the socket
        self.client_ended = False  # by FIN or RST
        self.script_ended = False
        self._sock = sock
        self._at = 0  # where in `received` the next expectation looks
        self._outgoing = bytearray()
        self._tls: ssl.SSLObject | None = None
        self._tls_in = ssl.MemoryBIO()
        self._tls_out = ssl.MemoryBIO()
        self._is_secured = False

    def send(
        self, data: bytes, *, timeout: float = TIMEOUT, may_fail: bool = False
    ) -> None:
        """Hand the bytes to the kernel; with `may_fail` the client may be gone."""
        deadline = time.monotonic() + timeout
        self._require_open("send")
        self._queue(data)
        try:
            while self._outgoing:
                self._turn(deadline, f"send {data[:60]!r}")
        except OSError as error:
            self._outgoing.clear()
            if not may_fail:
                raise ScriptError(self._story(f"send {data[:60]!r}")) from error

    def trickle(self, data: bytes, *, timeout: float = TIMEOUT) -> None:
        """Send each byte as a segment (or TLS record) of its own."""
        deadline = time.monotonic() + timeout
        for at in range(len(data)):
            self.send(data[at : at + 1], timeout=deadline - time.monotonic())

    def expect(self, pattern: Pattern, *, timeout: float = TIMEOUT) -> re.Match[bytes]:
        """Wait until the client has sent the pattern after the last one expected."""
        deadline = time.monotonic() + timeout
        doing = f"expect {pattern!r}"
        self._require_open(doing)
        while (found := search(pattern, self.received, self._at)) is None:
            if self.client_ended:
                raise ScriptError(self._story(doing))
            self._turn(deadline, doing)
        self._at = found.end()
        return found

    def expect_close(self, *, timeout: float = TIMEOUT) -> None:
        """Wait until the client closes or resets its end."""
        deadline = time.monotonic() + timeout
        while not self.client_ended:
            self._turn(deadline, "expect the client's close")

    def wait(self, name: str, *, timeout: float = TIMEOUT) -> None:
        """Wait until the test calls `release(name)`."""
        deadline = time.monotonic() + timeout
        while name not in self.stage.released:
            self._turn(deadline, f"wait for the release of {name!r}")

    def stall(self, name: str, *, timeout: float = 60.0) -> None:
        """Read nothing until the test calls `release(name)`."""
        deadline = time.monotonic() + timeout
        while name not in self.stage.released:
            doing = f"stall until the release of {name!r}"
            self._turn(deadline, doing, reading=False)

    def start_tls(
        self,
        context: ssl.SSLContext,
        *,
        timeout: float = TIMEOUT,
        may_fail: bool = False,
    ) -> None:
        """Handshake as the TLS server; with `may_fail` a failure ends the script.

        Bytes that came after the last expectation belong to the handshake.
        """
        deadline = time.monotonic() + timeout
        self._require_open("start TLS")
        with self.stage.changed:
            self._tls_in.write(self.received[self._at :])
            del self.received[self._at :]
        self._tls = context.wrap_bio(self._tls_in, self._tls_out, server_side=True)
        try:
            self._shake_hands(self._tls, deadline)
        except (OSError, ScriptError):  # an SSLError is an OSError
            if not may_fail:
                raise
            self.close()
            raise _Stopped from None

    def half_close(self) -> None:
        """Send FIN and go on reading."""
        self._require_open("half close")
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection by FIN, as a server that has read everything does."""
        self._require_open("close")
        try:
            # The kernel answers with RST instead when received bytes lie unread.
            while not self.client_ended and wait_ready([self._sock], [], 0.0)[0]:
                self._receive()
            if self._is_secured and self._tls is not None:
                self._say_goodbye(self._tls)
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.client_ended = True  # it was faster
        self.is_open = False
        self._sock.close()

    def reset(self) -> None:
        """End the connection by RST."""
        self._require_open("reset")
        self.is_open = False
        reset(self._sock)

    def play(self, script: Script) -> None:
        """Run the script, then listen until the client or the server ends."""
        try:
            for step in script:
                step(self)
            self._script_over()
            while self.is_open and not self.client_ended:
                self._turn(math.inf, "listen")
        except _Stopped:
            self._script_over()
        finally:
            if self.is_open:
                self.is_open = False
                self._sock.close()

    def _script_over(self) -> None:
        with self.stage.changed:
            self.script_ended = True
            self.stage.changed.notify_all()

    def _turn(self, deadline: float, doing: str, *, reading: bool = True) -> None:
        """Move bytes once, or wake for a release; ScriptError at the deadline."""
        if self.stage.is_stopping:
            raise _Stopped
        if time.monotonic() >= deadline:
            raise ScriptError(self._story(doing))
        readers: list[Bell | socket.socket] = [self.bell]
        if self.is_open and reading and not self.client_ended:
            readers.append(self._sock)
        writers = [self._sock] if self._outgoing else []
        readable, writable = wait_ready(readers, writers, deadline)
        if self.bell in readable:
            self.bell.silence()
        if self._sock in readable:
            self._receive()
        if self._sock in writable:
            del self._outgoing[: self._sock.send(self._outgoing[:PIECE])]

    def _receive(self) -> None:
        try:
            data = self._sock.recv(PIECE)
        except ConnectionError:
            data = b""
        with self.stage.changed:
            self.raw += data
            if self._tls is None:
                self.received += data
            elif data:
                self._tls_in.write(data)
            if not data:
                self._tls_in.write_eof()
                self.client_ended = True
            if self._is_secured and self._tls is not None:
                self._decrypt(self._tls)
            self.stage.changed.notify_all()

    def _decrypt(self, tls: ssl.SSLObject) -> None:
        try:
            while data := tls.read(PIECE):
                self.received += data
        except ssl.SSLWantReadError:
            return
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        self.client_ended = True

    def _shake_hands(self, tls: ssl.SSLObject, deadline: float) -> None:
        is_done = False
        while not is_done:
            try:
                tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            finally:
                self._outgoing += self._tls_out.read()
                while self._outgoing:
                    self._turn(deadline, "send the TLS handshake")
            if not (is_done or self._tls_in.pending or self.client_ended):
                self._turn(deadline, "shake hands for TLS")
        self._is_secured = True
        with self.stage.changed:
            self._decrypt(tls)
            self.stage.changed.notify_all()

    def _say_goodbye(self, tls: ssl.SSLObject) -> None:
        """Send close_notify; the client's own is not waited for."""
        with contextlib.suppress(ssl.SSLError):
            tls.unwrap()
        self._sock.send(self._tls_out.read())

    def _queue(self, data: bytes) -> None:
        if self._is_secured and self._tls is not None:
            self._tls.write(data)
            self._outgoing += self._tls_out.read()
        else:
            self._outgoing += data

    def _require_open(self, doing: str) -> None:
        if not self.is_open:
            raise ScriptError(f"{doing} after the end of connection {self.index}")

    def _story(self, doing: str) -> str:
        ended = "closed, " if self.client_ended else ""
        tail = bytes(self.received[self._at :][-500:])
        return f"connection {self.index}: {doing}: client {ended}sent last {tail!r}"


Step: TypeAlias = Callable[[Peer], None]
Script: TypeAlias = Sequence[Step]


def search(pattern: Pattern, text: bytearray, start: int = 0) -> re.Match[bytes] | None:
    """The first place of literal bytes or of a regex, in a copy of the text."""
    if isinstance(pattern, bytes):
        pattern = re.compile(re.escape(pattern))
    # The copy is made only for a hit: streams are long and most looks are in vain.
    if pattern.search(text, start) is None:
        return None
    return pattern.search(bytes(text), start)
