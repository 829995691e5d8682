"""What tests of the client share: a quick connection and a recorder of its events."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, TypeVar

import jsclient
from jsclient.events import Event
from tests.harness.peer import TIMEOUT as TIMEOUT
from tests.harness.scripted import Peer, ScriptError

E = TypeVar("E", bound=Event)


class Recorder:
    """An `on_event` callable that keeps what it is told, for tests to wait for."""

    def __init__(self) -> None:
        self._told: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self._told.append(event)
            self._changed.notify_all()

    @property
    def told(self) -> list[Event]:
        """All events so far, in order."""
        with self._changed:
            return list(self._told)

    @property
    def kinds(self) -> list[str]:
        """The class names of all events so far."""
        return [type(event).__name__ for event in self.told]

    def of(self, kind: type[E]) -> list[E]:
        """The events of one class so far."""
        return [event for event in self.told if isinstance(event, kind)]

    def wait_for(self, kind: type[E], count: int = 1, timeout: float = TIMEOUT) -> E:
        """The event of that class with that number, counted from 1."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(found := [e for e in self._told if isinstance(e, kind)]) < count:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{count} x {kind.__name__} not in {self._told}")
                self._changed.wait(left)
        return found[count - 1]

    def error(self, kind: type[Exception], timeout: float = TIMEOUT) -> Exception:
        """The first error of that class that an ErrorEvent told."""
        count = 1
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            error = self.wait_for(jsclient.ErrorEvent, count, left).error
            if isinstance(error, kind):
                return error
            count += 1


def connected(
    url: str | list[str],
    # The options of jsclient.connect, which checks them.
    **options: Any,
) -> jsclient.Connection:
    """A connection that reconnects almost at once, to its servers in their order."""
    quick: dict[str, Any] = {
        "reconnect_wait": 0.01,
        "reconnect_jitter": 0.0,
        "randomize": False,
        "connect_timeout": TIMEOUT,
    }
    return jsclient.connect(url, **{**quick, **options})


def narrow(nc: jsclient.Connection) -> None:
    """The kernel keeps little of what the peer does not read, and no more than that.

    By itself it would take more and more, at moments of its own.
    """
    live = nc._loop.live
    assert live is not None
    live.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)


def answer_pings(peer: Peer) -> None:
    """A step: answer every PING until the client ends the connection."""
    try:
        while True:
            peer.expect(b"PING\r\n", timeout=60.0)
            peer.send(b"PONG\r\n", may_fail=True)
    except ScriptError:
        if not peer.client_ended:
            raise
