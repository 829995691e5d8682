"""A loopback peer that plays a fixed script on each connection it accepts.

A script is a list of steps, made by the functions at the end of this file or written as
any function of a `Peer`. While a step waits or sends, and after the last one, the peer
reads and records whatever the client sends; only `stall` stops that. A step that does
not get what it waits for in time raises ScriptError in the script's thread; the server
raises it again, where the test waits for something or else at the end of its block. A
block that ends in the middle of a script is no error: `finish` waits for the scripts.
Nor is it one at the end of the block that a client has left during a `handshake`.

    script = [handshake(), expect(b"SUB a "), send(b"PING\\r\\n")]
    with ScriptedServer(script) as server:
        ...
        server.wait_for(b"PONG\\r\\n")
"""

from __future__ import annotations

import json
import math
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

from tests.harness.crew import Crew
from tests.harness.peer import (
    TIMEOUT,
    Pattern,
    Peer,
    Script,
    ScriptError,
    Stage,
    Step,
    UnwelcomedError,
    search,
)
from tests.harness.sockets import Bell, no_delay, wait_ready

Json: TypeAlias = dict[str, Any]  # any JSON object: the test knows what it looks for

CONNECT = re.compile(rb"^CONNECT[ \t]*(\{[^\r\n]*\})[ \t]*\r\n", re.I | re.M)
INFO: Json = {
    "server_id": "NBNOZ3CRMPRHQZ3DNRDIVGYUXCMEX3DMQ4KPEW2AB3CFZ4BC7X2RPW2T",
    "server_name": "scripted",
    "version": "2.15.1",
    "proto": 1,
    "git_commit": "0000000",
    "go": "go1.27.2",
    "host": "127.0.0.1",
    "port": 4222,
    "headers": True,
    "max_payload": 1048576,
    "jetstream": True,
    "client_id": 5,
    "client_ip": "127.0.0.1",
    "xkey": "XDYNUXJZRHMQFV6KSMFYPXR4GHOQDJWAQEZVVVTC2QKVCX5WSEZCFLPR",
    "api_lvl": 5,
}

__all__ = [
    "INFO",
    "Peer",
    "Script",
    "ScriptError",
    "ScriptedServer",
    "Step",
    "answer_ping",
    "close",
    "expect",
    "expect_close",
    "half_close",
    "handshake",
    "info_line",
    "reset",
    "send",
    "stall",
    "start_tls",
    "trickle",
    "wait",
]


class ScriptedServer:
    """Plays the scripts, one per connection in order of arrival, on a free port.

    When all are used up, further connections are refused, or with `repeat` the last
    script is played again. `receive_buffer` makes the kernel's buffer small, so that a
    stalled peer soon blocks its client.
    """

    def __init__(
        self,
        *scripts: Script,
        repeat: bool = False,
        receive_buffer: int | None = None,
    ) -> None:
        if not scripts:
            raise ValueError("no script")
        self._stage = Stage()
        self._scripts = scripts
        self._repeat = repeat
        self._receive_buffer = receive_buffer
        self._peers: list[Peer] = []
        self._crew = Crew(self._wake_waiters)
        self._bell: Bell | None = None

    @property
    def port(self) -> int:
        """The port, known inside the block."""
        return self._stage.port

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        with self._stage.changed:
            return len(self._peers)

    @property
    def connects(self) -> list[Json]:
        """The CONNECT of each connection that sent one."""
        with self._stage.changed:
            streams = [bytes(peer.received) for peer in self._peers]
        found = (CONNECT.search(stream) for stream in streams)
        return [json.loads(match[1]) for match in found if match is not None]

    def received(self, connection: int = 0) -> bytes:
        """All that the client said on a connection, TLS taken off."""
        with self._stage.changed:
            return bytes(self._peers[connection].received)

    def received_raw(self, connection: int = 0) -> bytes:
        """All that came off the socket of a connection."""
        with self._stage.changed:
            return bytes(self._peers[connection].raw)

    def release(self, name: str) -> None:
        """Let the scripts go on that wait or stall for this name, now and later."""
        with self._stage.changed:
            self._stage.released.add(name)
            self._ring_peers()

    def wait_for(
        self, pattern: Pattern, *, connection: int = 0, timeout: float = TIMEOUT
    ) -> re.Match[bytes]:
        """Wait until the pattern stands in what the client said on a connection."""
        found: list[re.Match[bytes]] = []

        def is_there() -> bool:
            if len(self._peers) <= connection:
                return False
            match = search(pattern, self._peers[connection].received)
            found.extend([match] if match else [])
            return match is not None

        self._wait(is_there, f"{pattern!r} on connection {connection}", timeout)
        return found[0]

    def wait_connections(self, count: int, *, timeout: float = TIMEOUT) -> None:
        """Wait until this many connections were accepted."""
        self._wait(lambda: len(self._peers) >= count, f"{count} connections", timeout)

    def wait_closed(self, connection: int = 0, *, timeout: float = TIMEOUT) -> None:
        """Wait until the client has closed or reset a connection."""

        def is_closed() -> bool:
            peers = self._peers
            return len(peers) > connection and peers[connection].client_ended

        self._wait(is_closed, f"the client's end of connection {connection}", timeout)

    def finish(self, *, timeout: float = TIMEOUT) -> None:
        """Wait until every script given was played to its end."""

        def are_over() -> bool:
            ended = sum(peer.script_ended for peer in self._peers)
            return ended == len(self._peers) >= len(self._scripts)

        self._wait(are_over, "the end of all scripts", timeout)

    def __enter__(self) -> ScriptedServer:
        listener = socket.socket()
        if self._receive_buffer is not None:
            size = self._receive_buffer
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        self._stage.port = listener.getsockname()[1]
        bell = self._bell = Bell()
        self._crew.start("scripted-accept", lambda: self._accept(listener, bell))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._bell is not None
        with self._stage.changed:
            self._stage.is_stopping = True
            self._bell.ring()
            self._ring_peers()
        self._crew.join(TIMEOUT)
        self._bell.close()
        for peer in self._peers:
            peer.bell.close()
        for one in self._crew.errors:
            if not isinstance(one, UnwelcomedError):
                raise one

    def _accept(self, listener: socket.socket, bell: Bell) -> None:
        with listener:
            index = 0
            while self._repeat or index < len(self._scripts):
                wait_ready([bell, listener], [], math.inf)
                if self._stage.is_stopping:
                    return
                try:
                    sock, _ = listener.accept()
                except (BlockingIOError, ConnectionError):
                    continue  # the client has gone again
                index += 1
                if index == len(self._scripts) and not self._repeat:
                    # From the first step of the last script on, others are refused.
                    listener.close()
                self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        no_delay(sock)
        with self._stage.changed:
            index = len(self._peers)
            peer = Peer(self._stage, index, sock)
            self._peers.append(peer)
            self._stage.changed.notify_all()
        script = self._scripts[min(index, len(self._scripts) - 1)]
        self._crew.start(f"scripted-{index}", lambda: peer.play(script))

    def _wait(self, is_true: Callable[[], bool], what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._stage.changed:
            while not is_true():
                if self._crew.errors:
                    raise self._crew.errors.pop(0)
                left = deadline - time.monotonic()
                if left <= 0:
                    tails = [bytes(peer.received[-500:]) for peer in self._peers]
                    raise TimeoutError(f"{what} did not come; received {tails!r}")
                self._stage.changed.wait(left)

    def _wake_waiters(self) -> None:
        with self._stage.changed:
            self._stage.changed.notify_all()

    def _ring_peers(self) -> None:
        for peer in self._peers:
            peer.bell.ring()


def info_line(overrides: Mapping[str, object] | None = None) -> bytes:
    """An INFO line with the space before CR LF that real servers send.

    A value of None leaves the field out.
    """
    fields = {**INFO, **(overrides or {})}
    shown = {key: value for key, value in fields.items() if value is not None}
    text = json.dumps(shown, separators=(",", ":"))
    return f"INFO {text} \r\n".encode()


def handshake(
    info_overrides: Mapping[str, object] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float = TIMEOUT,
) -> Step:
    """Send INFO, upgrade to TLS if a context is given, take CONNECT and PING, PONG."""

    def step(peer: Peer) -> None:
        deadline = time.monotonic() + timeout

        def left() -> float:
            return deadline - time.monotonic()

        announced: dict[str, object] = {"port": peer.stage.port}
        if tls is not None:
            announced["tls_required"] = True
        announced.update(info_overrides or {})
        try:
            peer.send(info_line(announced), timeout=left())
            if tls is not None:
                peer.start_tls(tls, timeout=left())
            peer.expect(CONNECT, timeout=left())
            peer.expect(b"PING\r\n", timeout=left())
            peer.send(b"PONG\r\n", timeout=left())
        except (ScriptError, OSError) as error:
            cause = error.__cause__ or error
            if peer.client_ended or isinstance(cause, ConnectionError):
                raise UnwelcomedError(str(error)) from error
            raise

    return step


def send(data: bytes, *, timeout: float = TIMEOUT, may_fail: bool = False) -> Step:
    """Send the bytes; with `may_fail` the client may be gone."""
    return lambda peer: peer.send(data, timeout=timeout, may_fail=may_fail)


def trickle(data: bytes, *, timeout: float = TIMEOUT) -> Step:
    """Send the bytes one at a time."""
    return lambda peer: peer.trickle(data, timeout=timeout)


def expect(pattern: Pattern, *, timeout: float = TIMEOUT) -> Step:
    """Wait for bytes or a compiled regex after what was expected before."""

    def step(peer: Peer) -> None:
        peer.expect(pattern, timeout=timeout)

    return step


def expect_close(*, timeout: float = TIMEOUT) -> Step:
    """Wait until the client closes or resets the connection."""
    return lambda peer: peer.expect_close(timeout=timeout)


def answer_ping(*, timeout: float = TIMEOUT) -> Step:
    """Wait for the next PING and answer it."""

    def step(peer: Peer) -> None:
        peer.expect(b"PING\r\n", timeout=timeout)
        peer.send(b"PONG\r\n")

    return step


def wait(name: str, *, timeout: float = TIMEOUT) -> Step:
    """Wait until the test calls `server.release(name)`."""
    return lambda peer: peer.wait(name, timeout=timeout)


def stall(name: str, *, timeout: float = 60.0) -> Step:
    """Stop reading until the test calls `server.release(name)`."""
    return lambda peer: peer.stall(name, timeout=timeout)


def start_tls(
    context: ssl.SSLContext, *, timeout: float = TIMEOUT, may_fail: bool = False
) -> Step:
    """Become the server of a TLS handshake; `may_fail`: a failure ends the script."""
    return lambda peer: peer.start_tls(context, timeout=timeout, may_fail=may_fail)


def half_close() -> Step:
    """Send FIN and go on reading."""
    return lambda peer: peer.half_close()


def close() -> Step:
    """End the connection by FIN."""
    return lambda peer: peer.close()


def reset() -> Step:
    """End the connection by RST."""
    return lambda peer: peer.reset()
