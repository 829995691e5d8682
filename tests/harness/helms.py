"""A helm whose loop turns exactly as a test says, and threads that wait at it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from jsclient._core import Awaited, Helm, Outbox

T = TypeVar("T")
PATIENCE = 10.0  # real seconds until a test gives up


def idle_helm() -> Helm:
    """A helm without a link, at time 1.0: waits with earlier deadlines end at once."""
    return Helm(lambda what, deadline: None, lambda: 1.0, Outbox(1 << 20, 0))


class Sailor(Generic[T]):
    """A thread that makes one call; `result` is what came of it."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._call = call
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        # Whatever it is, it is raised again where the result is asked for.
        except BaseException as error:  # noqa: BLE001
            self._future.set_exception(error)

    def result(self) -> T:
        return self._future.result(PATIENCE)

    @property
    def is_done(self) -> bool:
        return self._future.done()


class Deck:
    """A helm, its clock, and the orders that the thread at the helm carries out.

    The thread that drives leaves when what it waits for is ready, or when told to.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.earlier: dict[str, list[float]] = {}  # what threads read before `time`
        self.drivers: list[str] = []
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._clock: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.helm = Helm(self._drive, self._now, Outbox(1 << 20, 0))
        self.helm.start()

    def _drive(self, what: Awaited | None, deadline: float) -> None:
        name = threading.current_thread().name
        self.drivers.append(name)
        self._taken.put(name)
        while what is None or not what.ready:
            order = self._orders.get(timeout=PATIENCE)
            if order is None:
                return
            order()

    def _now(self) -> float:
        # A thread reads the clock when it counts among the sleepers, just before it
        # sleeps.
        name = threading.current_thread().name
        self._clock.put(name)
        earlier = self.earlier.get(name)
        return earlier.pop(0) if earlier else self.time

    def order(self, do: Callable[[], None]) -> None:
        """The thread at the helm does this."""
        self._orders.put(do)

    def dismiss(self) -> None:
        """The thread at the helm leaves it."""
        self._orders.put(None)

    def driver(self, wait: Callable[[], T], name: str = "driver") -> Sailor[T]:
        """A thread that has the helm when this returns."""
        sailor = Sailor(name, wait)
        assert self._taken.get(timeout=PATIENCE) == name
        return sailor

    def sleeper(self, wait: Callable[[], T], name: str = "sleeper") -> Sailor[T]:
        """A thread that is asleep when this returns."""
        sailor = Sailor(name, wait)
        self.await_sleep(name)
        return sailor

    def await_sleep(self, name: str) -> None:
        """Waits until the thread of that name sleeps."""
        while self._clock.get(timeout=PATIENCE) != name:
            pass

    def await_driver(self, name: str) -> None:
        """Waits until the thread of that name takes the helm."""
        assert self._taken.get(timeout=PATIENCE) == name
