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
from ._core import Gate, PubAck
from ._engine.arguments import Buffer, HeadersLike, seconds
from ._engine.publish_headers import lasting_data, lasting_headers
from ._io.loop import Loop

T = TypeVar("T")

# How long a closing connection may take to tell what became of a publish.
LAST_WORD = 3.0


class Late(Generic[T]):
    """An attribute that the first to ask for it makes, whichever thread that is."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, holder: object, owner: type) -> T:
        made: T = holder.__dict__.setdefault(self._name, self._make())
        return made


class AckFuture(Future[PubAck]):
    """A `concurrent.futures.Future` of a PubAck.

    Waiting for it drives the connection like any other wait. Callbacks run on the
    thread of the connection's events. A message under way cannot be cancelled.

    The condition variable of a Future costs more than all the rest of a publish, and
    only `concurrent.futures.wait` and `as_completed` need it: it is made when they ask,
    and the list of callbacks with the first of them.
    """

    # Until something else is set.
    _state = RUNNING
    _result: PubAck | None = None
    _exception: BaseException | None = None
    # What the functions of concurrent.futures look at.
    _condition = Late(threading.Condition)
    _waiters: Late[list[Any]] = Late(list)  # of its own, private classes
    _callbacks: Late[deque[Callable[[Future[PubAck]], object]]] = Late(deque)

    def __init__(
        self,
        loop: Loop,
        subject: str,
        data: Buffer,
        headers: HeadersLike | None,
        *,
        msg_id: str | None,
        retries: int,
    ) -> None:
        # In place of Future.__init__; the rest is made when it is asked for.
        self._loop = loop
        self._settled = Gate()
        self.subject = subject
        # Kept for a second try, which the caller's later changes must not reach.
        self.data = data if type(data) is bytes else lasting_data(data)
        self.headers = None if headers is None else lasting_headers(headers)
        self.msg_id = msg_id
        self.retries = retries

    def done(self) -> bool:
        """Whether the publish has its outcome."""
        return self._settled.is_open

    def running(self) -> bool:
        """Whether it has none yet."""
        return not self._settled.is_open

    def cancelled(self) -> bool:
        """False: what was published cannot be called back."""
        return False

    def cancel(self) -> bool:
        """False: what was published cannot be called back."""
        return False

    def result(self, timeout: float | None = None) -> PubAck:
        """The PubAck; raises what the publish failed with, or TimeoutError."""
        self._drive(timeout)
        if self._exception is not None:
            raise self._exception
        assert self._result is not None
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the publish failed with, or None if it is stored."""
        self._drive(timeout)
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[PubAck]], object]) -> None:
        """Calls fn with this future when it is done, on the thread of the events."""
        if self.done():
            _called(fn, self)
            return
        self._callbacks.append(fn)
        if self.done():
            self._call_back()

    def settle(self, ack: PubAck | None, error: BaseException | None = None) -> None:
        """Ends the wait; the first outcome counts.

        It is settled again when a signal handler raised in the middle of this.
        """
        settled = self._settled
        if settled.is_open:
            return
        known = self.__dict__
        if "_state" not in known:
            self._result = ack
            self._exception = error
            self._state = FINISHED
        # Whoever makes the condition after this line finds the state finished.
        if "_condition" in known:
            self._tell_waiters()
        settled.open()
        # Who adds the first callback after this line finds it settled.
        if "_callbacks" in known:
            self._call_back()

    def _tell_waiters(self) -> None:
        """Does for `wait` and `as_completed` what Future.set_result does."""
        with self._condition:
            for waiter in self._waiters:
                if self._exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            self._condition.notify_all()

    def _call_back(self) -> None:
        """Queues each callback once, whichever thread comes first."""
        with contextlib.suppress(IndexError):
            while self._callbacks:
                fn = self._callbacks.popleft()
                self._loop.dispatch.call(partial(_called, fn, self))

    def _drive(self, timeout: float | None) -> None:
        """Turns the loop until this is settled."""
        if self._settled.is_open:
            return
        deadline = monotonic() + seconds(timeout)
        try:
            self._loop.wait(self._settled, deadline)
        except errors.ForkedError:
            raise
        except errors.ConnectionClosedError:
            # The keeper settles it with the last that is known of it.
            self._settled.sleep(max(0.0, min(deadline - monotonic(), LAST_WORD)))
        if not self._settled.is_open:
            raise FutureTimeoutError


def _called(fn: Callable[[Future[PubAck]], object], future: Future[PubAck]) -> None:
    from ._io.log import log

    try:
        fn(future)
    except Exception:  # noqa: BLE001 - the user's error is reported
        log().exception("a callback of a publish raised")
