"""The future of a publish's ack."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures._base import FINISHED, RUNNING
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from . import errors
from ._core import Pledge, PubAck
from ._engine.arguments import seconds

T = TypeVar("T")

# How long a closing connection may take to tell what became of a publish.
LAST_WORD = 3.0


class Late(Generic[T]):
    """An attribute that the first to ask for it makes, whichever thread that is.

    Whoever asks wants to be told when the future is settled, unless it is already.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, holder: AckFuture, owner: type) -> T:
        made: T = holder.__dict__.setdefault(self._name, self._make())
        holder.is_observed = True
        return made


class Shown(Generic[T]):
    """An attribute of a Future whose value the pledge has."""

    def __init__(self, look: Callable[[Pledge], T]) -> None:
        self._look = look

    def __get__(self, holder: Pledge, owner: type) -> T:
        return self._look(holder)


class AckFuture(Pledge, Future[PubAck]):
    """A `concurrent.futures.Future` of a PubAck.

    Waiting for it drives the connection like any other wait. Callbacks run on the
    thread of the connection's events. A message under way cannot be cancelled.

    Its state is that of a Pledge, which the core makes and settles by itself. The
    condition variable of a Future costs more than all the rest of a publish, and only
    `concurrent.futures.wait` and `as_completed` need it: it is made when they ask, and
    the list of callbacks with the first of them.
    """

    # What the functions of concurrent.futures look at.
    _condition = Late(threading.Condition)
    _waiters: Late[list[Any]] = Late(list)  # of its own, private classes
    _callbacks: Late[deque[Callable[[Future[PubAck]], object]]] = Late(deque)

    _state = Shown(lambda one: FINISHED if one.is_settled else RUNNING)
    _result = Shown(lambda one: one.ack)
    _exception = Shown(lambda one: one.error)

    def done(self) -> bool:
        """Whether the publish has its outcome."""
        return self.is_settled

    def running(self) -> bool:
        """Whether it has none yet."""
        return not self.is_settled

    def cancelled(self) -> bool:
        """False: what was published cannot be called back."""
        return False

    def cancel(self) -> bool:
        """False: what was published cannot be called back."""
        return False

    def result(self, timeout: float | None = None) -> PubAck:
        """The PubAck; raises what the publish failed with, or TimeoutError."""
        if not self.is_settled:
            self._drive(timeout)
        if self.error is not None:
            raise self.error
        assert self.ack is not None
        return self.ack

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the publish failed with, or None if it is stored."""
        if not self.is_settled:
            self._drive(timeout)
        return self.error

    def add_done_callback(self, fn: Callable[[Future[PubAck]], object]) -> None:
        """Calls fn with this future when it is done, on the thread of the events."""
        if self.is_settled:
            _called(fn, self)
            return
        self._callbacks.append(fn)
        if self.done():
            self._call_back()

    def tell(self) -> None:
        """It is settled: tells those who do not wait for it by `result`.

        They are told again when a signal handler raised in the middle of this.
        """
        if self.is_observed:
            known = self.__dict__
            if "_condition" in known:
                self._tell_waiters()
            if "_callbacks" in known:
                self._call_back()
            self.is_observed = False

    def _tell_waiters(self) -> None:
        """Does for `wait` and `as_completed` what Future.set_result does."""
        with self._condition:
            for waiter in self._waiters:
                if self.error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            self._condition.notify_all()

    def _call_back(self) -> None:
        """Queues each callback once, whichever thread comes first."""
        dispatch = self.owner.dispatch
        with contextlib.suppress(IndexError):
            while self._callbacks:
                fn = self._callbacks.popleft()
                dispatch.call(partial(_called, fn, self))

    def _drive(self, timeout: float | None) -> None:
        """Turns the loop until this is settled."""
        deadline = monotonic() + seconds(timeout)
        try:
            self.owner.wait(self, deadline)
        except errors.ForkedError:
            raise
        except errors.ConnectionClosedError:
            # The keeper settles it with the last that is known of it.
            self.sleep(max(0.0, min(deadline - monotonic(), LAST_WORD)))
        if not self.is_settled:
            raise FutureTimeoutError


def _called(fn: Callable[[Future[PubAck]], object], future: Future[PubAck]) -> None:
    from ._io.log import log

    try:
        fn(future)
    except Exception:  # noqa: BLE001 - the user's error is reported
        log().exception("a callback of a publish raised")
