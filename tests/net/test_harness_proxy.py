"""The fault proxy between plain sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness.leaks import measured
from tests.harness.proxy import Direction, FaultProxy


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from measured(request.node)


class Ends:
    """A proxy, a listener behind it, and the two ends of a connection through it."""

    def __init__(self, proxy: FaultProxy, listener: socket.socket) -> None:
        self.proxy = proxy
        self.listener = listener
        self._open: list[socket.socket] = []
        self.client, self.server = self.dial()

    def dial(self) -> tuple[socket.socket, socket.socket]:
        client = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=30.0)
        self._open.append(client)
        self.listener.settimeout(30.0)
        server, _ = self.listener.accept()
        self._open.append(server)
        server.settimeout(30.0)
        return client, server

    def way(self, direction: Direction) -> tuple[socket.socket, socket.socket]:
        """Source and sink of a direction."""
        if direction == "c2s":
            return self.client, self.server
        return self.server, self.client

    def close(self) -> None:
        for sock in self._open:
            sock.close()


@contextmanager
def proxied() -> Iterator[Ends]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        FaultProxy("127.0.0.1", listener.getsockname()[1]) as proxy,
    ):
        ends = Ends(proxy, listener)
        try:
            yield ends
        finally:
            ends.close()


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, f"closed after {data!r}"
        data += piece
    return data


both_ways = pytest.mark.parametrize("direction", ["c2s", "s2c"])


@both_ways
def test_a_healthy_proxy_forwards_and_counts(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        data = bytes(range(256)) * 4096
        writer = threading.Thread(target=source.sendall, args=(data,))
        writer.start()
        assert read_exactly(sink, len(data)) == data
        writer.join()
        ends.proxy.wait_until(lambda: ends.proxy.forwarded(direction) == len(data))
        assert ends.proxy.connections == 1
        assert ends.proxy.open_connections == 1
        assert ends.proxy.url == f"nats://127.0.0.1:{ends.proxy.port}"


@both_ways
def test_a_fin_is_passed_on_and_the_other_way_stays_open(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        source.sendall(b"last")
        source.shutdown(socket.SHUT_WR)
        assert read_exactly(sink, 4) == b"last"
        assert sink.recv(1) == b""
        sink.sendall(b"answer")
        assert read_exactly(source, 6) == b"answer"
        sink.shutdown(socket.SHUT_WR)
        assert source.recv(1) == b""
        ends.proxy.wait_until(lambda: ends.proxy.open_connections == 0)


@both_ways
def test_chunks_are_small_and_lose_nothing(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        ends.proxy.set(direction, chunk=1)
        source.sendall(b"abc" * 100)
        assert read_exactly(sink, 300) == b"abc" * 100


@both_ways
def test_a_chunk_is_all_that_one_write_carries(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        ends.proxy.set(direction, chunk=7)
        counts: set[int] = set()

        def is_through() -> bool:
            counts.add(ends.proxy.forwarded(direction))
            return max(counts) == 20

        source.sendall(b"x" * 20)
        ends.proxy.wait_until(is_through)
        assert counts <= {0, 7, 14, 20}
        assert read_exactly(sink, 20) == b"x" * 20


@both_ways
def test_delay_holds_bytes_but_not_the_other_way(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        ends.proxy.set(direction, delay=1.0)
        start = time.monotonic()
        source.sendall(b"slow")
        sink.sendall(b"fast")
        assert read_exactly(source, 4) == b"fast"
        assert time.monotonic() - start < 1.0
        assert read_exactly(sink, 4) == b"slow"
        assert time.monotonic() - start >= 1.0


@both_ways
def test_a_stall_holds_everything_until_it_is_lifted(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        ends.proxy.set(direction, stall=True)
        source.sendall(b"held")
        sink.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sink.recv(1)
        assert ends.proxy.forwarded(direction) == 0
        sink.settimeout(30.0)
        ends.proxy.set(direction)
        assert read_exactly(sink, 4) == b"held"


def test_a_stall_pushes_back_on_the_sender() -> None:
    with proxied() as ends:
        ends.proxy.set("c2s", stall=True)
        ends.client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ends.client.sendall(b"x" * (64 << 20))


@both_ways
@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_a_cut_comes_after_exactly_so_many_bytes_and_once(
    direction: Direction, count: int
) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        ends.proxy.set(direction, cut_after=count)
        source.sendall(b"123456789")
        assert read_exactly(sink, count) == b"123456789"[:count]
        with pytest.raises(ConnectionResetError):
            sink.recv(1)
        with pytest.raises(ConnectionResetError):
            source.recv(1)
        ends.client, ends.server = ends.dial()
        source, sink = ends.way(direction)
        source.sendall(b"123456789")
        assert read_exactly(sink, 9) == b"123456789"


def test_cut_resets_every_open_connection_at_once() -> None:
    with proxied() as ends:
        second = ends.dial()
        ends.proxy.wait_until(lambda: ends.proxy.open_connections == 2)
        ends.proxy.cut()
        assert ends.proxy.open_connections == 0
        for sock in (ends.client, ends.server, *second):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)


@both_ways
def test_a_half_close_ends_one_way_only(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        source.sendall(b"before")
        assert read_exactly(sink, 6) == b"before"
        ends.proxy.half_close(direction)
        assert sink.recv(1) == b""
        source.sendall(b"dropped")
        sink.sendall(b"still")
        assert read_exactly(source, 5) == b"still"


def test_a_rate_limits_bytes_per_second() -> None:
    with proxied() as ends:
        ends.proxy.set("s2c", rate=10_000)
        start = time.monotonic()
        ends.server.sendall(b"x" * 3000)
        assert read_exactly(ends.client, 3000) == b"x" * 3000
        assert time.monotonic() - start >= 0.25


def test_refusing_leaves_open_connections_and_the_port_alone() -> None:
    with proxied() as ends:
        ends.proxy.refuse = True
        assert ends.proxy.refuse
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", ends.proxy.port), timeout=30.0)
        ends.client.sendall(b"here")
        assert read_exactly(ends.server, 4) == b"here"
        ends.proxy.refuse = False
        client, server = ends.dial()
        client.sendall(b"again")
        assert read_exactly(server, 5) == b"again"


@both_ways
def test_a_reset_of_one_side_reaches_the_other(direction: Direction) -> None:
    with proxied() as ends:
        source, sink = ends.way(direction)
        linger = b"\x01\0\0\0\0\0\0\0"
        source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        source.close()
        with pytest.raises(ConnectionResetError):
            sink.recv(1)


def test_a_client_is_reset_when_nobody_listens_behind() -> None:
    with socket.socket() as deaf:
        # Bound, so that nobody else gets the port, and not listening.
        deaf.bind(("127.0.0.1", 0))
        with (
            FaultProxy("127.0.0.1", deaf.getsockname()[1]) as proxy,
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", proxy.port), timeout=30.0) as sock,
        ):
            sock.recv(1)


@pytest.mark.parametrize("value", [0, -1])
def test_a_chunk_or_rate_of_nothing_is_a_mistake(value: int) -> None:
    proxy = FaultProxy("127.0.0.1", 1)
    with pytest.raises(ValueError, match="chunk"):
        proxy.set("c2s", chunk=value)
    with pytest.raises(ValueError, match="rate"):
        proxy.set("c2s", rate=value)
