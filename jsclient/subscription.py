"""Subscriptions: iterate them, or let a thread call you."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from . import errors, events
from ._core import Gate, Inbox, MessageIterator, Msg
from ._engine.arguments import Seconds, integer, seconds
from ._io.loop import Loop

if TYPE_CHECKING:
    from .push import PushSubscription


class Subscription:
    """Messages of one subject. Made by `Connection.subscribe`.

    Without a callback you read it: `next`, `messages`, or a plain `for`. With a
    callback a thread of its own reads it and calls you, one message at a time, in
    order.
    """

    def __init__(
        self,
        connection: object,
        loop: Loop,
        inbox: Inbox,
        *,
        subject: str,
        queue: str | None,
        callback: Callable[[Msg], object] | None,
        handle: PushSubscription | None = None,
        on_notice: Callable[[], None] | None = None,
    ) -> None:
        self.subject = subject
        self.queue = queue
        self._connection = connection  # lives as long as its subscriptions are held
        self._loop = loop
        self._inbox = inbox
        self._callback = callback
        self._told_dropped = 0
        self._thread: threading.Thread | None = None
        self._called_all = Gate()  # opens when the callback's thread ends
        # What users hold, if it is not this, lives as long as it has to.
        self._sid = loop.subscribe(subject, queue, inbox, handle or self, on_notice)
        if callback is not None:
            self._thread = threading.Thread(
                target=self._call, name=f"jsclient-sub-{self._sid}", daemon=True
            )
            loop.callers.add(self)
            self._thread.start()

    # Reading --------------------------------------------------------------------------

    def next(self, timeout: Seconds | None = 5.0) -> Msg:
        """The next message, waiting for it at most `timeout`; None waits for ever.

        Raises TimeoutError when none came, SubscriptionClosedError when none will come,
        and SlowConsumerError once after messages were dropped.
        """
        self.refuse_callback()
        if self._inbox.dropped != self._told_dropped:
            self._raise_slow()
        limit = seconds(timeout)
        hand: list[Msg | None] = [None]
        try:
            if self._inbox.take_into(hand, self._loop.helm, monotonic() + limit):
                msg = hand[0]
                assert msg is not None
                return msg
        except BaseException:
            # A signal handler raised after the message was taken: the next call gets
            # it.
            if hand[0] is not None:
                self._inbox.put_back(hand[0])
            raise
        self._raise_end()
        raise errors.TimeoutError(f"no message on {self.subject!r} within {limit:g} s")

    def messages(self, timeout: Seconds | None = None) -> Iterator[Msg]:
        """Iterates the messages, until the subscription ends.

        With a `timeout` the iteration also ends when no message came for that long.
        """
        self.refuse_callback()
        return MessageIterator(self._inbox, self._loop.helm, seconds(timeout), self)

    def __iter__(self) -> Iterator[Msg]:
        return self.messages()

    def refuse_callback(self) -> None:
        """Raises if a callback gets the messages."""
        if self._callback is not None:
            raise errors.InvalidArgumentError(
                f"the subscription to {self.subject!r} has a callback, which gets its "
                "messages; subscribe without one to read them yourself"
            )

    def _raise_slow(self) -> NoReturn:
        fresh = self._inbox.dropped - self._told_dropped
        self._told_dropped = self._inbox.dropped
        raise errors.SlowConsumerError(
            f"{fresh} messages on {self.subject!r} were dropped at the pending limits"
        )

    def _raise_end(self) -> None:
        """Raises why no message will come, if so."""
        if self._inbox.is_ended:
            if self._inbox.reason is not None:
                raise self._inbox.reason
            raise errors.SubscriptionClosedError(
                f"the subscription to {self.subject!r} has ended"
            )
        self._loop.check_open()

    def _call(self) -> None:
        """The callback's thread."""
        callback = self._callback
        assert callback is not None
        try:
            for msg in MessageIterator(self._inbox, self._loop.helm, float("inf")):
                try:
                    callback(msg)
                except Exception as error:  # noqa: BLE001 - told as an event
                    self._loop.tell(events.ErrorEvent(error, self))
        except errors.Error:
            # The end of the subscription was told to whom it concerns.
            return
        finally:
            self._loop.callers.discard(self)
            self._called_all.open()

    # Ending ---------------------------------------------------------------------------

    def unsubscribe(self, limit: int | None = None) -> None:
        """Ends the subscription at once, or after `limit` messages in all.

        Without a limit, messages that were not read yet are dropped.
        """
        self._loop.check_open()
        self._refuse_draining()
        if limit is None:
            self._loop.unsubscribe(self._sid)
            self._inbox.clear()
            self._inbox.end()
            return
        integer(limit, "limit", least=1)
        if limit > 999_999_999:
            raise errors.InvalidArgumentError("limit must have at most 9 digits")
        self._inbox.set_limit(limit)
        if self._inbox.is_ended:
            self._loop.unsubscribe(self._sid)
        else:
            self._loop.unsubscribe(self._sid, limit)

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """Ends the subscription without losing what the server has already sent.

        Returns when nothing more can arrive; what has arrived can still be read, and a
        callback has handled it. Raises DrainTimeoutError when that took too long.
        """
        deadline = monotonic() + seconds(timeout)
        self._loop.check_open()
        self._refuse_draining()
        self._loop.stop_interest(self._sid)
        self._finish_drain(self._loop.fence(), deadline)
        if self._callback is not None and not self.is_calling_here:
            self._await(self._called_all, deadline)

    def _finish_drain(self, fence: Gate, deadline: float) -> None:
        """After the fence nothing more can arrive."""
        try:
            self._await(fence, deadline)
        finally:
            self._loop.forget(self._sid)
            self._inbox.end()

    def _await(self, gate: Gate, deadline: float) -> None:
        if not self._loop.wait(gate, deadline):
            raise errors.DrainTimeoutError(
                f"draining {self.subject!r} did not finish in time"
            )

    def _refuse_draining(self) -> None:
        if self._loop.is_draining:
            raise errors.ConnectionDrainingError("the connection is draining already")

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._inbox.is_ended and not self._loop.is_closing:
            self.unsubscribe()

    # Facts ----------------------------------------------------------------------------

    @property
    def calls_back(self) -> bool:
        """Whether a callback gets the messages."""
        return self._callback is not None

    @property
    def is_calling_here(self) -> bool:
        """Whether this thread is the one that runs the callback."""
        return threading.current_thread() is self._thread

    @property
    def called_all(self) -> Gate:
        """Opens when the callback has handled its last message."""
        return self._called_all

    @property
    def pending_messages(self) -> int:
        """Messages that arrived and were not read yet."""
        return self._inbox.count

    @property
    def pending_bytes(self) -> int:
        """Their bytes: subject, reply, headers and payload."""
        return self._inbox.bytes

    @property
    def dropped(self) -> int:
        """Messages that came while a pending limit was reached."""
        return self._inbox.dropped

    @property
    def delivered(self) -> int:
        """Messages that were read."""
        return self._inbox.taken

    @property
    def is_active(self) -> bool:
        """Whether messages can still arrive."""
        return not self._inbox.is_ended

    def __repr__(self) -> str:
        queue = "" if self.queue is None else f" queue={self.queue!r}"
        state = "" if self.is_active else " ended"
        return f"<Subscription {self.subject!r}{queue}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Subscription cannot be pickled: subscribe in the process that reads"
        )
