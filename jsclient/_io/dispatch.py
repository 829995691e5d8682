"""Tells the user what happens: events in order, on a thread of their own.

The thread exists only while there are events to tell. A handler that raises is logged
and does not stop the others. The queue is bounded: a handler that sleeps through a
storm misses the middle of it, and is told how many events that were.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .. import events
from ..errors import Error
from .log import DEBUG, ERROR, INFO, WARNING, is_heard, log

MAX_WAITING = 1000

# How loud an event is in the log: with an error, without one.
_LEVELS: dict[type[events.Event], tuple[int, int]] = {
    events.Connected: (DEBUG, DEBUG),
    events.Disconnected: (WARNING, DEBUG),
    events.Reconnected: (INFO, INFO),
    events.ReconnectFailed: (WARNING, WARNING),
    events.Closed: (ERROR, DEBUG),
    events.LameDuck: (WARNING, WARNING),
    events.ServersDiscovered: (DEBUG, DEBUG),
    events.SlowConsumer: (WARNING, WARNING),
    events.ConsumerWarning: (WARNING, WARNING),
    events.ErrorEvent: (WARNING, WARNING),
}

Handler = Callable[[events.Event], object]


class Dispatch:
    """Hands events to one handler and to the log, and runs callbacks of futures."""

    def __init__(self, handler: Handler | None) -> None:
        self.handler = handler
        self._waiting: deque[Callable[[], None]] = deque()
        self._missed = 0
        # Reentrant: a signal handler may have something to tell while its thread tells.
        self._lock = threading.RLock()
        self._is_running = False

    def tell(self, event: events.Event) -> None:
        """Queues an event; returns at once."""
        if self.handler is None and not is_heard(_level(event)):
            return
        with self._lock:
            if len(self._waiting) >= MAX_WAITING and not isinstance(
                event, events.Closed
            ):
                self._missed += 1
                return
        self.call(lambda: self._hand_over(event))

    def call(self, job: Callable[[], None]) -> None:
        """Queues a job of the user's; returns at once."""
        with self._lock:
            self._waiting.append(job)
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="jsclient-events", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                job = self._waiting.popleft()
                missed, self._missed = self._missed, 0
            if missed:
                self._hand_over(
                    events.ErrorEvent(Error(f"{missed} events were not delivered"))
                )
            job()

    def _hand_over(self, event: events.Event) -> None:
        level = _level(event)
        if is_heard(level):
            log().log(level, "%s", _sentence(event))
        handler = self.handler
        if handler is not None:
            try:
                handler(event)
            except Exception:  # noqa: BLE001 - the user's error is reported
                log().exception("on_event raised for %s", type(event).__name__)
        if isinstance(event, events.Closed):
            self.handler = None


def _level(event: events.Event) -> int:
    loud, quiet = _LEVELS[type(event)]
    return quiet if getattr(event, "error", None) is None else loud


def _sentence(event: events.Event) -> str:
    match event:
        case events.Connected(server):
            return f"connected to {server}"
        case events.Disconnected(server, None):
            return f"disconnected from {server}"
        case events.Disconnected(server, error):
            return f"disconnected from {server}: {error}"
        case events.Reconnected(server):
            return f"reconnected to {server}"
        case events.ReconnectFailed(server, error):
            return f"reconnecting to {server} failed: {error}"
        case events.Closed(None):
            return "closed"
        case events.Closed(error):
            return f"closed: {error}"
        case events.LameDuck(server):
            return f"{server} is about to shut down"
        case events.ServersDiscovered(servers):
            return f"discovered {', '.join(servers)}"
        case events.SlowConsumer(subscription, dropped):
            return f"{subscription!r} is slow and has dropped {dropped} messages"
        case events.ConsumerWarning(stream, consumer, error):
            if getattr(error, "doing", ""):
                return str(error)  # which says whose it is
            return f"consumer {consumer!r} of stream {stream!r}: {error}"
        case events.ErrorEvent(error, None):
            return str(error)
        case events.ErrorEvent(error, subscription):
            return f"{subscription!r}: {error}"
