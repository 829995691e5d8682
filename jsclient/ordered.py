"""Ordered consumers: every message of a stream, in order, without gaps or repeats.

The server keeps a consumer without acks in memory. Whatever goes wrong with it (a lost
message, a lost link, missed heartbeats, a restarted server) ends it, and a new one
begins after the last message that was handed to the user. So a consumer's own sequence
must count 1, 2, 3, …; the first number that does not fit is a gap.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from . import consumer as consumers_api
from . import errors
from ._api import Api
from ._core import Gate, Msg
from ._engine.arguments import Seconds, integer, seconds, unique_name
from ._engine.values import check_name
from .config import ConsumerConfig, consumer_config
from .consumer import Consumer
from .consuming import ConsumeHandle, FetchResult, Messages
from .events import ConsumerWarning
from .jetstream_errors import JetStreamError, LostPullError, StreamNotFoundError

if TYPE_CHECKING:
    from typing_extensions import Self

# Pauses between attempts to begin anew.
FIRST_PAUSE = 0.05
LAST_PAUSE = 5.0


class OrderedConsumer:
    """Reads a stream in order; made by `Stream.ordered_consumer`.

    One reading at a time: what `next`, `fetch`, `messages` and `consume` hand out
    continues where the last one stopped.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        *,
        name_prefix: str | None = None,
        max_resets: int | None = None,
        inactive_threshold: Seconds = 300.0,
        **fields: Any,
    ) -> None:
        self._api = api
        self._stream = stream
        self._prefix = check_name(name_prefix or unique_name(), "name_prefix")
        self._max_resets = (
            math.inf
            if max_resets is None
            else integer(max_resets, "max_resets", least=0)
        )
        for taken in ("name", "durable_name", "ack_policy", "deliver_subject"):
            if taken in fields:
                raise TypeError(f"an ordered consumer has its own {taken}")
        self._config = consumer_config(
            None,
            ack_policy="none",
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=inactive_threshold,
            **fields,
        )
        self._config.validate()
        api.refuse_too_new(self._config.needs())
        self._serial = 0
        self._last_seq = 0  # of the stream, handed to the user
        self._start_seq: int | None = None  # where "new" was when it began
        self._is_read = threading.Lock()

    @property
    def stream_name(self) -> str:
        """The stream that it reads."""
        return self._stream

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message that was handed out; 0 before."""
        return self._last_seq

    # Reading --------------------------------------------------------------------------

    def messages(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: Seconds = 30.0,
        idle_heartbeat: Seconds | None = None,
        stop_after: int | None = None,
    ) -> OrderedMessages:
        """An endless iteration in order; options are those of `Consumer.messages`."""
        if stop_after is not None:
            integer(stop_after, "stop_after", least=1)
        return OrderedMessages(
            self,
            stop_after,
            {
                "max_messages": max_messages,
                "max_bytes": max_bytes,
                "expires": expires,
                "idle_heartbeat": idle_heartbeat,
            },
        )

    def fetch(self, max_messages: int, *, timeout: Seconds = 5.0) -> FetchResult:
        """Up to that many messages, waiting at most `timeout` for all of them."""
        deadline = monotonic() + seconds(timeout)
        found: list[Msg] = []
        error: errors.Error | None = None
        with self.messages(max_messages, stop_after=max_messages) as messages:
            while len(found) < max_messages:
                try:
                    found.append(messages.next(max(0.0, deadline - monotonic())))
                except errors.TimeoutError:
                    break
                except errors.Error as problem:
                    if not found:
                        raise
                    error = problem
                    break
        return FetchResult(found, error)

    def next(self, timeout: Seconds = 5.0) -> Msg:
        """The next message; TimeoutError when none came in time."""
        with self.messages(1, stop_after=1) as messages:
            return messages.next(timeout)

    def consume(
        self, callback: Callable[[Msg], object], **options: Any
    ) -> ConsumeHandle:
        """Calls back with each message, in order, on a thread of its own."""
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {type(callback).__name__}")
        return ConsumeHandle(
            self._api.loop,
            self.messages(**options),
            callback,
            workers=1,
            names=(self._stream, self._prefix),
            progress_interval=None,
        )

    # Consumers on the server ----------------------------------------------------------

    def begin(self) -> Consumer:
        """A new consumer on the server, after the last message that was handed out."""
        self._serial += 1
        info = consumers_api.create(
            self._api,
            self._stream,
            self._continued().with_changes(name=f"{self._prefix}_{self._serial}"),
            {},
            action="create",
        )
        if self._start_seq is None:
            self._start_seq = info.delivered.stream_seq + 1
        return Consumer(self._api, info)

    def _continued(self) -> ConsumerConfig:
        """The configuration of the next consumer."""
        start = self._last_seq + 1 if self._last_seq else None
        if start is None and self._config.deliver_policy == "new":
            # What came since the first one began is still new.
            start = self._start_seq
        if start is None:
            return self._config
        return self._config.with_changes(
            deliver_policy="by_start_sequence", opt_start_seq=start, opt_start_time=None
        )

    def discard(self, consumer: Consumer) -> None:
        """Deletes a consumer without waiting; the server forgets it anyway some day."""
        loop = self._api.loop
        if loop.live is None or loop.is_closing:
            return
        replies = loop.request_inbox()
        subject = f"{self._api.prefix}CONSUMER.DELETE.{self._stream}.{consumer.name}"
        reply = replies.open(subject)
        replies.drop(reply)
        try:
            loop.publish(subject, b"", reply=reply.inbox)
        except errors.Error:
            # Its inactive_threshold removes it.
            return

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self._stream!r} after {self._last_seq}>"


class OrderedMessages:
    """The iteration of an ordered consumer. One thread at a time reads it."""

    def __init__(
        self,
        source: OrderedConsumer,
        stop_after: int | None,
        options: dict[str, Any],
    ) -> None:
        if not source._is_read.acquire(blocking=False):
            raise errors.InvalidArgumentError(
                "an ordered consumer is read by one iteration at a time"
            )
        self._source = source
        self._loop = source._api.loop
        self._left = math.inf if stop_after is None else stop_after
        self._options = options
        self._consumer: Consumer | None = None
        self._inner: Messages | None = None
        self._expected = 1
        self._resets = 0
        self._pause = FIRST_PAUSE
        self._error: errors.Error | None = None
        self._is_stopped = False

    def __iter__(self) -> Iterator[Msg]:
        return self

    def __next__(self) -> Msg:
        try:
            return self._next(math.inf)
        except errors.SubscriptionClosedError:
            raise StopIteration from None

    def next(self, timeout: Seconds | None = 5.0) -> Msg:
        """The next message; TimeoutError when none came in time."""
        return self._next(monotonic() + seconds(timeout))

    def _next(self, deadline: float) -> Msg:
        while True:
            if self._error is not None:
                raise self._error
            if self._is_stopped or self._left <= 0:
                self.stop()
                raise errors.SubscriptionClosedError("the messages have ended")
            if self._inner is None:
                self._begin(deadline)
                continue
            wait = deadline - monotonic()
            try:
                msg = self._inner.next(None if wait == math.inf else max(0.0, wait))
            except (errors.TimeoutError, errors.ConnectionClosedError):
                raise
            except errors.Error as error:
                if not self._is_stopped:
                    self._reset(error)
                continue
            place = msg.metadata
            if place.consumer_seq != self._expected:
                self._reset(
                    LostPullError(
                        code=0,
                        description=f"message {self._expected} of the consumer is "
                        f"missing before {place.consumer_seq}",
                        doing=f"read {self._source!r}",
                    )
                )
                continue
            self._expected += 1
            self._left -= 1
            self._pause = FIRST_PAUSE
            self._source._last_seq = place.stream_seq
            return msg

    def _begin(self, deadline: float) -> None:
        """Makes a new consumer, when there is a link, and reads it."""
        if not self._loop.wait(self._loop.linked, deadline):
            raise errors.TimeoutError("there was no link to the server in time")
        self._loop.check_open()
        try:
            self._consumer = self._source.begin()
            self._inner = self._consumer.messages(is_fragile=True, **self._options)
            self._expected = 1
        except StreamNotFoundError as error:
            self._error = error
        except (JetStreamError, errors.ConnectionError, errors.TimeoutError) as error:
            self._loop.check_open()
            self._note(error)
            until = monotonic() + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)
            if until >= deadline:
                raise errors.TimeoutError(
                    f"no consumer could be made in time: {error}"
                ) from error
            self._loop.wait(Gate(), until)

    def _reset(self, error: errors.Error) -> None:
        """The consumer is of no use any more: begin anew after the last message."""
        self._note(error)
        self._leave()

    def _note(self, error: errors.Error) -> None:
        self._resets += 1
        if self._resets > self._source._max_resets:
            self._error = error
        self._loop.tell(
            ConsumerWarning(self._source.stream_name, self._source._prefix, error)
        )

    def _leave(self) -> None:
        inner, self._inner = self._inner, None
        consumer, self._consumer = self._consumer, None
        if inner is not None and not self._loop.is_closing:
            inner.stop()
        if consumer is not None:
            self._source.discard(consumer)

    def stop(self) -> None:
        """Ends the iteration; reading the consumer again continues after it."""
        if not self._is_stopped:
            self._is_stopped = True
            self._leave()
            self._source._is_read.release()

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """The same as `stop`: what was not read is read the next time."""
        self.stop()

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None while it runs or when it was stopped."""
        return self._error

    @property
    def resets(self) -> int:
        """How often it had to begin anew."""
        return self._resets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
