"""What the live tests share: a recorder of events, and threads that tell errors."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import jsclient
from jsclient import events

# How long a test waits for what must happen: far more than it takes; it finds hangs.
PATIENCE = 20.0
BUSY = 1.0  # by so many seconds a busy machine may be late

_Event = TypeVar("_Event", bound=events.Event)
_T = TypeVar("_T")


class Events:
    """An `on_event` that remembers everything and can be waited on."""

    def __init__(self) -> None:
        self.seen: list[events.Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: events.Event) -> None:
        with self._changed:
            self.seen.append(event)
            self._changed.notify_all()

    def of(self, kind: type[_Event]) -> list[_Event]:
        """The events of a kind so far."""
        with self._changed:
            return [event for event in self.seen if isinstance(event, kind)]

    def wait(
        self, kind: type[_Event], count: int = 1, timeout: float = PATIENCE
    ) -> _Event:
        """The event of that kind with that number, as soon as it was told."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self.of(kind)) >= count, timeout)
        assert found, f"no {kind.__name__} number {count}, only {self.seen}"
        return self.of(kind)[count - 1]


def all_results(
    count: int, work: Callable[[int], _T], timeout: float = 60.0
) -> list[_T]:
    """What `work(0)` to `work(count - 1)` return, each run in a thread of its own."""
    barrier = threading.Barrier(count)

    def run(number: int) -> _T:
        barrier.wait(timeout)
        return work(number)

    with ThreadPoolExecutor(count) as executor:
        futures = [executor.submit(run, number) for number in range(count)]
        return [future.result(timeout) for future in futures]


def until(is_true: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    """Returns when something has come true that nobody tells of."""
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


@contextmanager
def responder(
    url: str, subject: str, *, tls: ssl.SSLContext | bool = False
) -> Iterator[jsclient.Subscription]:
    """A second connection that answers every request with the request's own data."""
    with jsclient.connect(url, tls=tls) as nc:
        subscription = nc.subscribe(subject, callback=lambda msg: msg.respond(msg.data))
        nc.flush()
        yield subscription
