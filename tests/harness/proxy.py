"""A TCP proxy on loopback whose link can be made slow, dumb or broken at any time.

    with FaultProxy("127.0.0.1", 4222) as proxy:
        nc = connect(proxy.url)
        proxy.set("s2c", chunk=1, delay=0.1)   # from server to client
        proxy.set("s2c")                       # healthy again
        proxy.cut()

One thread accepts, and one serves each connection, both directions of it. Bytes are
never changed or reordered. A side that closes or resets is copied to the other side.
"""

from __future__ import annotations

import functools
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeAlias

from tests.harness.crew import Crew
from tests.harness.peer import TIMEOUT
from tests.harness.sockets import Bell, no_delay, reset, wait_ready

PIECE = 65536
WINDOW = 4 * PIECE  # held for a sink that does not read
DELAYED_WINDOW = 16 << 20  # held on a long line, so that delay costs no throughput
RATE_STEP = 0.01

Direction: TypeAlias = Literal["c2s", "s2c"]


@dataclass(frozen=True, slots=True)
class Switches:
    """How one direction treats the bytes of all connections."""

    chunk: int | None = None
    delay: float = 0.0
    stall: bool = False
    rate: float | None = None


class _Link:
    """One direction of one connection: what was read and is not written yet."""

    def __init__(
        self, direction: Direction, source: socket.socket, sink: socket.socket
    ) -> None:
        self.direction = direction
        self.source = source
        self.sink = sink
        self.is_over = False  # the sink has had its FIN
        self._queue: deque[tuple[float, memoryview]] = deque()  # due time, bytes
        self._queued = 0
        self._free_at = 0.0  # when the rate allows the next byte
        self._source_ended = False
        self._is_ending = False  # FIN is queued; what comes after is dropped

    def can_read(self, switches: Switches) -> bool:
        window = DELAYED_WINDOW if switches.delay else WINDOW
        return not self._source_ended and self._queued < window

    def due(self) -> float:
        """When there is something to write."""
        return max(self._queue[0][0], self._free_at) if self._queue else math.inf

    def read(self, now: float, switches: Switches) -> None:
        data = self.source.recv(PIECE)
        if not data:
            self._source_ended = True
            self.end(now + switches.delay)
        elif not self._is_ending:
            self._queue.append((now + switches.delay, memoryview(data)))
            self._queued += len(data)

    def end(self, due: float) -> None:
        """Give the sink a FIN after what is queued."""
        if not self._is_ending:
            self._is_ending = True
            self._queue.append((due, memoryview(b"")))

    def write(self, now: float, switches: Switches, allowed: int | None) -> int:
        """Write one piece, of no more than the allowed bytes; its size."""
        due, data = self._queue.popleft()
        if not data:
            self.sink.shutdown(socket.SHUT_WR)
            self.is_over = True
            return 0
        size = len(data) if allowed is None else min(len(data), allowed)
        if switches.chunk is not None:
            size = min(size, switches.chunk)
        if switches.rate is not None:
            size = min(size, max(1, int(switches.rate * RATE_STEP)))
        try:
            sent = self.sink.send(data[:size]) if size else 0
        except BlockingIOError:
            sent = 0
        if switches.rate is not None:
            self._free_at = now + sent / switches.rate
        self._queued -= sent
        if sent < len(data):
            self._queue.appendleft((due, data[sent:]))
        return sent


class _Pair:
    """One proxied connection; the flags are set by the test, under the proxy's lock."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.bell = Bell()
        self.links = (_Link("c2s", client, server), _Link("s2c", server, client))
        self.is_cut = False
        self.half_closes: set[Direction] = set()

    def reset(self) -> None:
        for link in self.links:
            reset(link.source)

    def close(self) -> None:
        for link in self.links:
            link.source.close()


class FaultProxy:
    """Forwards connections to a server, with faults on demand."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.target_port = port
        self.port = 0  # known inside the block
        self.connections = 0  # accepted so far
        self._changed = threading.Condition()  # guards all below
        self._switches: dict[Direction, Switches] = {
            "c2s": Switches(),
            "s2c": Switches(),
        }
        self._left: dict[Direction, int | None] = {"c2s": None, "s2c": None}
        self._forwarded: dict[Direction, int] = {"c2s": 0, "s2c": 0}
        self._pairs: set[_Pair] = set()
        self._wants_refusal = False
        self._is_refusing = False
        self._is_stopping = False
        self._crew = Crew(self._wake_waiters)
        self._reserved: socket.socket | None = None
        self._bell: Bell | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        with self._changed:
            return len(self._pairs)

    def forwarded(self, direction: Direction) -> int:
        """How many bytes were written in that direction, over all connections."""
        with self._changed:
            return self._forwarded[direction]

    def set(
        self,
        direction: Direction,
        *,
        chunk: int | None = None,
        delay: float = 0.0,
        stall: bool = False,
        cut_after: int | None = None,
        rate: float | None = None,
    ) -> None:
        """Set all switches of a direction; those not named return to healthy.

        chunk: write at most so many bytes at a time.
        delay: seconds that each byte is held.
        stall: neither read nor write.
        cut_after: once, when so many more bytes were written in this direction, reset
            both sides of the connection that carried the last; with 0, the connection
            that would carry the next.
        rate: bytes per second of each connection.
        """
        for name, value in (("chunk", chunk), ("rate", rate)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}")
        with self._changed:
            self._switches[direction] = Switches(chunk, delay, stall, rate)
            self._left[direction] = cut_after
            self._ring_pairs()

    def cut(self) -> None:
        """Reset both sides of every open connection now."""
        with self._changed:
            cut = set(self._pairs)
            for pair in cut:
                pair.is_cut = True
            self._ring_pairs()
        self.wait_until(lambda: not cut & self._pairs)

    def half_close(self, direction: Direction) -> None:
        """End that direction of every open connection by FIN; drop what comes later."""
        with self._changed:
            for pair in self._pairs:
                pair.half_closes.add(direction)
            self._ring_pairs()

    @property
    def refuse(self) -> bool:
        """Whether new connections are refused; open ones are not touched."""
        return self._wants_refusal

    @refuse.setter
    def refuse(self, value: bool) -> None:
        assert self._bell is not None
        with self._changed:
            self._wants_refusal = value
            self._bell.ring()
        self.wait_until(lambda: self._is_refusing == value)

    def wait_until(self, is_true: Callable[[], bool], timeout: float = TIMEOUT) -> None:
        """Wait for something about the proxy, such as `lambda: proxy.connections > 1`.

        It is looked at after each change of a counter or of the open connections.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not is_true():
                if self._crew.errors:
                    raise self._crew.errors.pop(0)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"the proxy is still at {self._forwarded}")
                self._changed.wait(left)

    def __enter__(self) -> FaultProxy:
        # Keeps the port ours while nobody listens on it.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = self._reserved.getsockname()[1]
        listener, bell = self._listen(), Bell()
        self._bell = bell
        self._crew.start("proxy-accept", lambda: self._accept(listener, bell))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._bell is not None
        assert self._reserved is not None
        with self._changed:
            self._is_stopping = True
            self._bell.ring()
            self._ring_pairs()
        self._crew.join(TIMEOUT)
        self._bell.close()
        self._reserved.close()
        if self._crew.errors:
            raise self._crew.errors[0]

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        listener.setblocking(False)
        return listener

    def _accept(self, first: socket.socket, bell: Bell) -> None:
        listener: socket.socket | None = first
        while not self._is_stopping:
            if self._wants_refusal and listener is not None:
                listener.close()
                listener = None
            elif not self._wants_refusal and listener is None:
                listener = self._listen()
            with self._changed:
                self._is_refusing = listener is None
                self._changed.notify_all()
            readers: list[Bell | socket.socket] = [bell]
            if listener is not None:
                readers.append(listener)
            readable, _ = wait_ready(readers, [], math.inf)
            if bell in readable:
                bell.silence()
            if listener is not None and listener in readable:
                self._welcome(listener)
        if listener is not None:
            listener.close()

    def _welcome(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        with self._changed:
            name = f"proxy-{self.connections}"
            self.connections += 1
            self._changed.notify_all()
        self._crew.start(name, functools.partial(self._serve, client))

    def _serve(self, client: socket.socket) -> None:
        try:
            target = (self.host, self.target_port)
            server = socket.create_connection(target, timeout=TIMEOUT / 2)
        except OSError:
            reset(client)
            return
        no_delay(client)
        no_delay(server)
        pair = _Pair(client, server)
        with self._changed:
            self._pairs.add(pair)
            self._changed.notify_all()
        try:
            while not all(link.is_over for link in pair.links):
                if self._is_stopping or pair.is_cut:
                    pair.reset()
                    break
                self._turn(pair)
        except OSError:
            pair.reset()  # one side is gone
        finally:
            pair.close()
            with self._changed:
                self._pairs.discard(pair)
                pair.bell.close()
                self._changed.notify_all()

    def _turn(self, pair: _Pair) -> None:
        """Move at most one piece in each direction, or sleep until that is possible."""
        now = time.monotonic()
        with self._changed:
            switches = dict(self._switches)
            ending = set(pair.half_closes)
            pair.half_closes.clear()
        readers: list[Bell | socket.socket] = [pair.bell]
        writers: list[socket.socket] = []
        wake = math.inf
        for link in pair.links:
            if link.direction in ending:
                link.end(now)
            if switches[link.direction].stall:
                continue
            if link.can_read(switches[link.direction]):
                readers.append(link.source)
            if link.due() <= now:
                writers.append(link.sink)
            else:
                wake = min(wake, link.due())
        readable, writable = wait_ready(readers, writers, wake)
        if pair.bell in readable:
            # The switches may have changed before the bytes came: look again first.
            pair.bell.silence()
            return
        now = time.monotonic()
        for link in pair.links:
            # A side is a source of one link and a sink of the other.
            if link.source in readable:
                link.read(now, switches[link.direction])
            if link.sink in writable and link.due() <= now:
                self._write(pair, link, now)

    def _write(self, pair: _Pair, link: _Link, now: float) -> None:
        direction = link.direction
        with self._changed:
            switches = self._switches[direction]
            if switches.stall:
                return
            left = self._left[direction]
            sent = link.write(now, switches, left)
            self._forwarded[direction] += sent
            if left is not None:
                self._left[direction] = left - sent
                if left == sent and not link.is_over:
                    self._left[direction] = None
                    pair.is_cut = True
            self._changed.notify_all()

    def _wake_waiters(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _ring_pairs(self) -> None:
        for pair in self._pairs:
            pair.bell.ring()
