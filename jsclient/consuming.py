"""Reading a consumer without an end: by an iteration, in columns, or by a callback."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Protocol

from . import errors, events
from ._core import (
    Batch,
    BatchInbox,
    BatchIterator,
    Courier,
    Gate,
    Inbox,
    MessageIterator,
    Msg,
)
from ._engine.arguments import Seconds, seconds
from ._io.loop import Loop
from ._io.pulling import Pulling


class Feed(Protocol):
    """What brings the messages of an iteration: pulls, or the deliveries of a push."""

    @property
    def inbox(self) -> Inbox:
        """Where they come."""

    @property
    def is_ended(self) -> bool:
        """Whether no more are asked for."""

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None if nothing went wrong."""

    def start(self) -> None:
        """Begins."""

    def stop(self) -> None:
        """Ends it; messages that were not taken are left to the server."""

    def stop_asking(self, deadline: float) -> None:
        """The first step of `drain`, which does not wait."""

    def drain(self, deadline: float) -> bool:
        """Ends it with everything that is under way; whether that was in time."""

    def tell_errors(self) -> None:
        """Errors that do not end it are told as events, not raised for who reads."""

    def abandon(self) -> None:
        """Nobody holds it any more. For finalizers."""


class Messages:
    """An iteration over a consumer's messages that asks for more by itself.

        with consumer.messages() as messages:
            for msg in messages:
                msg.ack()

    Several threads may iterate it; each message goes to one of them. Leaving the block
    stops it: messages that were fetched and not read are delivered again later, unless
    the consumer has no acks (`ack_policy="none"`): then they are lost.
    """

    def __init__(self, loop: Loop, feed: Feed, consumer: object) -> None:
        self._loop = loop
        self._feed = feed
        self._consumer = consumer  # lives as long as it is read
        feed.start()
        loop.readers.add(self)

    def __iter__(self) -> Iterator[Msg]:
        return MessageIterator(self._feed.inbox, self._loop.helm, math.inf, self)

    def next(self, timeout: Seconds | None = 5.0) -> Msg:
        """The next message; TimeoutError when none came in time.

        Raises the error that ended the iteration, or SubscriptionClosedError when it
        was stopped.
        """
        limit = seconds(timeout)
        inbox = self._feed.inbox
        hand: list[Msg | None] = [None]
        try:
            if inbox.take_into(hand, self._loop.helm, monotonic() + limit):
                msg = hand[0]
                assert msg is not None
                return msg
        except BaseException:
            # A signal handler raised after the message was taken.
            if hand[0] is not None:
                inbox.put_back(hand[0])
            raise
        if inbox.is_ended:
            raise inbox.reason or errors.SubscriptionClosedError(
                "the messages have ended"
            )
        self._loop.check_open()
        raise errors.TimeoutError(f"no message came within {limit:g} s")

    def stop(self) -> None:
        """Ends the iteration at once; unread messages are delivered again later.

        Those of a consumer without acks are lost.
        """
        self._feed.stop()
        self._feed.inbox.clear()

    def tell_errors(self) -> None:
        """Errors that do not end it are told as events, not raised for who reads."""
        self._feed.tell_errors()

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """Asks for nothing more; what is under way can still be read to its end.

        A server that is just sending keeps the rest for later, but not for a consumer
        without acks: it counts what is on its way there as delivered. Such a drain
        waits until the last pull has ended, for up to `expires` and a moment, and
        raises DrainTimeoutError if it is given less time: then the server may have
        delivered to nobody. Whatever came can be read all the same.
        """
        if not self._feed.drain(monotonic() + seconds(timeout)):
            raise errors.DrainTimeoutError("the pulls did not end in time")

    def end_reading(self, deadline: float) -> Callable[[], Gate | None] | None:
        """The connection is drained: see `Reader`."""
        feed = self._feed
        if feed.is_ended:
            return None
        feed.stop_asking(deadline)

        def finish() -> Gate | None:
            return feed.inbox.await_empty() if feed.drain(deadline) else None

        return finish

    @property
    def is_active(self) -> bool:
        """Whether messages may still come."""
        return not self._feed.is_ended

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None while it runs or when it was stopped."""
        return self._feed.error

    @property
    def pending_messages(self) -> int:
        """Messages that arrived and were not read yet."""
        return self._feed.inbox.count

    def __enter__(self) -> Messages:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._loop.is_closing:
            self.stop()

    def __del__(self) -> None:
        # Nobody can read it any more, but the loop still has it.
        feed = getattr(self, "_feed", None)
        if feed is not None:
            feed.abandon()


class Batches:
    """An iteration over a consumer's messages in columns, a batch at a time.

        with consumer.batches() as batches:
            for batch in batches:
                table = batch.to_arrow()
                batch.ack()

    Each batch has what came since the last one.
    """

    def __init__(
        self, loop: Loop, pulling: Pulling, inbox: BatchInbox, consumer: object
    ) -> None:
        self._loop = loop
        self._pulling = pulling
        self._inbox = inbox
        self._consumer = consumer  # lives as long as it is read
        pulling.start()
        loop.readers.add(self)

    def __iter__(self) -> Iterator[Batch]:
        return BatchIterator(self._inbox, self._loop.helm, self)

    def next(self, timeout: Seconds | None = 5.0) -> Batch:
        """The next batch; TimeoutError when nothing came in time.

        Raises the error that ended the iteration, or SubscriptionClosedError when it
        was stopped.
        """
        limit = seconds(timeout)
        inbox = self._inbox
        hand: list[Batch | None] = [None]
        try:
            if inbox.take_batch_into(hand, self._loop.helm, monotonic() + limit):
                batch = hand[0]
                assert batch is not None
                return batch
        except BaseException:
            # A signal handler raised after the batch was taken.
            if hand[0] is not None:
                inbox.put_back_batch(hand[0])
            raise
        if inbox.is_ended:
            raise inbox.reason or errors.SubscriptionClosedError(
                "the messages have ended"
            )
        self._loop.check_open()
        raise errors.TimeoutError(f"no message came within {limit:g} s")

    def stop(self) -> None:
        """Ends the iteration at once; unread messages are delivered again later.

        Those of a consumer without acks are lost.
        """
        self._pulling.stop()
        self._inbox.clear()

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """Asks for nothing more; what is under way can still be read to its end.

        A server that is just sending keeps the rest for later, but not for a consumer
        without acks: it counts what is on its way there as delivered. Such a drain
        waits until the last pull has ended, for up to `expires` and a moment, and
        raises DrainTimeoutError if it is given less time: then the server may have
        delivered to nobody. Whatever came can be read all the same.
        """
        if not self._pulling.drain(monotonic() + seconds(timeout)):
            raise errors.DrainTimeoutError("the pulls did not end in time")

    def end_reading(self, deadline: float) -> Callable[[], Gate | None] | None:
        """The connection is drained: see `Reader`."""
        pulling, inbox = self._pulling, self._inbox
        if pulling.is_ended:
            return None
        pulling.stop_asking(deadline)

        def finish() -> Gate | None:
            return inbox.await_empty() if pulling.drain(deadline) else None

        return finish

    @property
    def is_active(self) -> bool:
        """Whether messages may still come."""
        return not self._pulling.is_ended

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None while it runs or when it was stopped."""
        return self._pulling.error

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._loop.is_closing:
            self.stop()

    def __del__(self) -> None:
        # Nobody can read it any more, but the loop still has it.
        pulling = getattr(self, "_pulling", None)
        if pulling is not None:
            pulling.abandon()


class ProgressReports:
    """Tells the server that messages are being worked on; a machine of the loop."""

    def __init__(self, loop: Loop, interval: float) -> None:
        self.deadline = math.inf
        self._loop = loop
        self._interval = interval
        self._working: dict[int, Msg] = {}
        loop.machines.append(self)

    def begin(self, msg: Msg) -> None:
        """This thread works on the message."""
        self._working[threading.get_ident()] = msg
        if self.deadline == math.inf:
            self.deadline = monotonic() + self._interval
            self._loop.wake()

    def end(self) -> None:
        """This thread is done with it."""
        self._working.pop(threading.get_ident(), None)

    def tick(self, now: float) -> None:
        """Reports every message that is still being worked on."""
        working = list(self._working.values())
        self.deadline = now + self._interval if working else math.inf
        for msg in working:
            # Without room or a link the next report has to do.
            with contextlib.suppress(errors.Error):
                msg.in_progress()

    def close(self) -> None:
        """No more reports."""
        if self in self._loop.machines:
            self._loop.machines.remove(self)


class MessageSource(Protocol):
    """What a consume reads: the iteration of a consumer, ordered or not."""

    def __iter__(self) -> Iterator[Msg]: ...

    def stop(self) -> None: ...

    def drain(self, timeout: Seconds | None = 5.0) -> None: ...


class ConsumeHandle:
    """A callback that runs for each message, on one thread or several."""

    def __init__(
        self,
        loop: Loop,
        messages: MessageSource,
        callback: Callable[[Msg], object],
        *,
        workers: int,
        names: tuple[str, str],
        progress_interval: float | None,
    ) -> None:
        self._loop = loop
        self._messages = messages
        self._callback = callback
        self._names = names
        self._left = workers
        self._error: Exception | None = None
        self._over = Gate()
        self._lock = threading.Lock()
        self._reports: ProgressReports | None = None
        if progress_interval is not None:
            self._reports = ProgressReports(loop, progress_interval)
        self._threads = [
            threading.Thread(
                target=self._work, name=f"jsclient-consume-{number}", daemon=True
            )
            for number in range(workers)
        ]
        loop.callers.add(self)
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        try:
            for msg in self._messages:
                self._handle(msg)
        except errors.Error as error:
            self._error = error
        finally:
            with self._lock:
                self._left -= 1
                is_last = self._left == 0
            if is_last:
                self._end()

    def _end(self) -> None:
        """The last worker is done; mostly because there are no more messages."""
        if self._reports is not None:
            self._reports.close()
        if not self._loop.is_closing:
            self._messages.stop()
            if self._error is not None:
                self._loop.tell(events.ErrorEvent(self._error))
        self._loop.callers.discard(self)
        self._over.open()

    def _handle(self, msg: Msg) -> None:
        reports = self._reports
        if reports is not None:
            reports.begin(msg)
        try:
            self._callback(msg)
        except Exception as error:  # noqa: BLE001 - the user's error is reported
            self._loop.tell(events.ConsumerWarning(*self._names, error))
        finally:
            if reports is not None:
                reports.end()

    def stop(self) -> None:
        """Ends it; messages that no callback has are delivered again later.

        Those of a consumer without acks are lost.

        A callback that runs goes on to its end: see `wait`.
        """
        self._messages.stop()

    def drain(self, timeout: Seconds | None = 30.0) -> None:
        """Asks for nothing more and waits until the callback has handled the rest.

        That of a consumer without acks waits for the end of its pulls, too: see
        `Messages.drain`.
        """
        deadline = monotonic() + seconds(timeout)
        self._messages.drain(deadline - monotonic())
        if not self.is_calling_here:
            self.wait(max(0.0, deadline - monotonic()))

    def wait(self, timeout: Seconds | None = None) -> None:
        """Waits until it has ended; raises TimeoutError, or the error that ended it."""
        limit = seconds(timeout)
        deadline = monotonic() + limit
        with contextlib.suppress(errors.ConnectionClosedError):
            self._loop.wait(self._over, deadline)
        # On a closed connection there is nothing to drive: the callbacks end by
        # themselves.
        while not self._over.is_open:
            left = deadline - monotonic()
            if left <= 0:
                raise errors.TimeoutError(f"it still runs after {limit:g} s")
            self._over.sleep(min(left, threading.TIMEOUT_MAX))
        if self._error is not None:
            raise self._error

    @property
    def is_calling_here(self) -> bool:
        """Whether this thread is one of those that run the callback."""
        return threading.current_thread() in self._threads

    @property
    def called_all(self) -> Gate:
        """Opens when the callback was called for the last time."""
        return self._over

    @property
    def is_active(self) -> bool:
        """Whether messages may still come."""
        return not self._over.is_open

    @property
    def error(self) -> Exception | None:
        """What ended it, None while it runs or when it was stopped."""
        return self._error

    def __enter__(self) -> ConsumeHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._loop.is_closing:
            self.stop()


def new_courier(loop: Loop, ack_policy: object, ack_prefix: str | None) -> Courier:
    """Who sends the acks of a consumer's messages."""
    is_ack_none = str(getattr(ack_policy, "value", ack_policy)) == "none"
    return Courier(loop, loop.outbox, is_ack_none, ack_prefix)
