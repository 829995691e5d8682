"""Ordered push subscriptions: every message in order, by deliveries instead of pulls.

How one consumer follows another stands in `succession`. Here each has an inbox of its
own: what the one before still sends finds nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from . import errors
from ._api import Api
from ._consumer_verbs import fetch_info
from ._core import ConsumerInbox, Gate, Msg, OrderedIterator, PushInbox
from ._engine.arguments import (
    Seconds,
    check_callback,
    integer,
    pending_limit,
    seconds,
    unique_name,
)
from ._engine.push import Delivery
from ._io.pushing import Pushing
from .config import ConsumerConfig
from .consuming import ConsumeHandle, new_courier
from .events import ConsumerWarning
from .info import ConsumerInfo
from .jetstream_errors import (
    ApiError,
    InsufficientResourcesError,
    JetStreamNotEnabledError,
    JetStreamUnavailableError,
    MaximumConsumersError,
)
from .push import HEARTBEATS, MAX_PENDING_BYTES, MAX_PENDING_MESSAGES, check_alarm
from .succession import OrderedMessages, Succession

if TYPE_CHECKING:
    from typing_extensions import Self

# What an ordered consumer is: given fields must be like this, or not be given at all.
_OWN: tuple[tuple[str, Any], ...] = (
    ("name", None),
    ("durable_name", None),
    ("deliver_subject", None),
    ("deliver_group", None),
    ("ack_policy", "none"),
    ("max_deliver", 1),
    ("flow_control", True),
    ("mem_storage", True),
    ("num_replicas", 1),
)
IDLE_HEARTBEAT = 5.0
ACK_WAIT = 22 * 3600.0
# What may pass, so that making the next consumer is tried again.
_PASSING = (
    JetStreamNotEnabledError,
    JetStreamUnavailableError,
    InsufficientResourcesError,
)


def ordered_config(config: ConsumerConfig) -> ConsumerConfig:
    """The configuration of an ordered push consumer; an error for what cannot be."""
    for field, value in _OWN:
        given = getattr(config, field)
        if given is not None and given != value:
            rule = "has none" if value is None else f"has {value!r}"
            raise errors.InvalidArgumentError(
                f"{field} cannot be {given!r}: an ordered consumer {rule}"
            )
    own = {field: value for field, value in _OWN if value is not None}
    config = config.with_changes(**own, ack_wait=ACK_WAIT)
    if config.idle_heartbeat is None:
        config = config.with_changes(idle_heartbeat=IDLE_HEARTBEAT)
    return config


def is_final(error: errors.Error, is_first: bool) -> bool:
    """Whether it is given up after this error."""
    if isinstance(error, MaximumConsumersError):
        # The one before may not be gone yet.
        return is_first
    if not isinstance(error, ApiError):
        return False
    return is_first or not (isinstance(error, _PASSING) or error.code == 503)


class PushReading:
    """How a consumer of a succession is read by its deliveries."""

    def __init__(
        self,
        source: Succession,
        *,
        timeout: float,
        stop_after: int,
        limits: tuple[int, int],
        heartbeat_alarm: float,
    ) -> None:
        self._loop = loop = source.api.loop
        subject = f"{loop.options.inbox_prefix}.{unique_name()}"
        self.inbox = PushInbox(source.courier, *limits, last_seq=source.last_seq)
        if stop_after:
            self.inbox.set_limit(stop_after)

        def warn(error: errors.Error) -> None:
            loop.tell(ConsumerWarning(source.stream, source.prefix, error))

        self._pushing = Pushing(
            loop,
            self.inbox,
            Delivery(f"read stream {source.stream!r} in order"),
            on_warning=warn,
            on_error=None,
            is_fragile=True,
        )
        self._sid = loop.subscribe(
            subject, None, self.inbox, None, self._pushing.noticed
        )
        try:
            self.info = source.begin(timeout, deliver_subject=subject)
        except BaseException:
            loop.unsubscribe(self._sid)
            raise
        beat = seconds(self.info.config.idle_heartbeat or 0, "idle_heartbeat")
        self._patience = beat * heartbeat_alarm if beat else math.inf

    @property
    def name(self) -> str:
        """The consumer."""
        return self.info.name

    def start(self) -> None:
        """Messages come from now on."""
        self._pushing.start(self._patience)

    def stop(self) -> None:
        """None come any more."""
        self._loop.unsubscribe(self._sid)
        self._pushing.stop()
        self.inbox.end()

    def abandon(self) -> None:
        """The same, without waiting. For finalizers."""
        if not self._loop.is_closing:
            self._loop.abandoned(self.stop)

    def drain(self, deadline: float) -> bool:
        """What the server has sent still comes; whether it said so in time."""
        self._loop.stop_interest(self._sid)
        in_time = self._loop.wait(self._loop.fence(), deadline)
        self._loop.forget(self._sid)
        self._pushing.stop()
        self.inbox.end()
        return in_time


class OrderedPushSubscription:
    """A stream in order, pushed. Made by `JetStream.subscribe` with `ordered=True`.

    Without a callback you read it: `next`, `messages`, or a plain `for`. With a
    callback a thread of its own reads it and calls you. One thread at a time reads it.
    """

    def __init__(
        self,
        source: Succession,
        messages: OrderedMessages,
        callback: Callable[[Msg], object] | None,
        keeps: object,
    ) -> None:
        self._source = source
        self._messages = messages
        self._keeps = keeps  # lives as long as the subscription is held
        self._handle: ConsumeHandle | None = None
        if callback is not None:
            self._handle = ConsumeHandle(
                source.api.loop,
                messages,
                callback,
                workers=1,
                names=(source.stream, source.prefix),
                progress_interval=None,
            )
        source.api.loop.readers.add(self)

    # Reading --------------------------------------------------------------------------

    def next(self, timeout: Seconds | None = 5.0) -> Msg:
        """The next message; TimeoutError when none came in time.

        Raises the error that ended it, or SubscriptionClosedError when it was ended.
        """
        self._refuse_callback()
        return self._messages.next(timeout)

    def messages(self, timeout: Seconds | None = None) -> Iterator[Msg]:
        """Iterates the messages, until the subscription ends.

        With a `timeout` the iteration also ends when no message came for that long.
        """
        self._refuse_callback()
        # The iteration holds the subscription, and so what that keeps.
        return OrderedIterator(partial(self._await_inbox, seconds(timeout)))

    def _await_inbox(self, timeout: float) -> ConsumerInbox | None:
        """The inbox, as soon as a message is in it; None if none comes."""
        try:
            return self._messages.await_inbox(monotonic() + timeout)
        except errors.TimeoutError:
            return None

    def __iter__(self) -> Iterator[Msg]:
        return self.messages()

    def _refuse_callback(self) -> None:
        if self._handle is not None:
            raise errors.InvalidArgumentError(
                "the subscription has a callback, which gets its messages; subscribe "
                "without one to read them yourself"
            )

    # Ending ---------------------------------------------------------------------------

    def unsubscribe(self, limit: int | None = None) -> None:
        """Ends it at once, or after `limit` messages in all."""
        self._source.api.loop.check_open()
        if limit is None:
            self._messages.stop()
        else:
            self._messages.limit(integer(limit, "limit", least=1))

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """Ends it without losing what the server has already sent.

        Returns when nothing more can arrive; what has arrived can still be read, and a
        callback has handled it.
        """
        limit = seconds(timeout)
        deadline = monotonic() + limit
        self._source.api.loop.check_open()
        in_time = self._finish(deadline)
        if in_time and self._handle is not None and not self._handle.is_calling_here:
            self._handle.wait(max(0.0, deadline - monotonic()))
        if not in_time:
            raise errors.DrainTimeoutError("the server did not answer in time")

    def _finish(self, deadline: float) -> bool:
        """Ends it with what the server has sent; whether it said so in time."""
        self._messages.finish()
        reading = self._messages.reading
        if not isinstance(reading, PushReading):
            return True
        in_time = reading.drain(deadline)
        self._source.discard(reading.name)
        return in_time

    def end_reading(self, deadline: float) -> Callable[[], Gate | None] | None:
        """The connection is drained: see `Reader`."""
        reading = self._messages.reading
        if not self.is_active or reading is None:
            return None
        self._finish(deadline)
        return reading.inbox.await_empty

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._source.api.loop.is_closing:
            self._messages.stop()

    # Facts ----------------------------------------------------------------------------

    @property
    def stream_name(self) -> str:
        """The stream that is read."""
        return self._source.stream

    @property
    def consumer_name(self) -> str:
        """The present consumer; empty while there is none."""
        reading = self._messages.reading
        return "" if reading is None else reading.name

    def consumer_info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """What the server says of the present consumer."""
        name = self.consumer_name
        if not name:
            raise errors.SubscriptionClosedError("there is no consumer now")
        return fetch_info(self._source.api, self.stream_name, name, timeout=timeout)

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message that was read; 0 before."""
        return self._source.last_seq

    @property
    def resets(self) -> int:
        """How often it had to begin anew."""
        return self._messages.resets

    @property
    def pending_messages(self) -> int:
        """Messages that arrived and were not read yet."""
        return self._messages.pending_messages

    @property
    def pending_bytes(self) -> int:
        """Their bytes: subject, reply, headers and payload."""
        return self._source.inbox.bytes

    @property
    def dropped(self) -> int:
        """Always 0: a message for which there is no room is read again later."""
        return 0

    @property
    def delivered(self) -> int:
        """Messages that were read."""
        return self._messages.taken

    @property
    def is_active(self) -> bool:
        """Whether messages may still come."""
        return self._messages.is_active

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None while it runs or when it was ended."""
        return self._messages.error

    def __repr__(self) -> str:
        state = "" if self.is_active else " ended"
        return f"<OrderedPushSubscription to {self.stream_name!r}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an OrderedPushSubscription cannot be pickled: subscribe in the process "
            "that reads"
        )


def ordered_push(
    api: Api,
    stream: str,
    config: ConsumerConfig,
    *,
    callback: Callable[[Msg], object] | None = None,
    max_resets: int | None = None,
    heartbeat_alarm: float = HEARTBEATS,
    max_pending_messages: int | None = MAX_PENDING_MESSAGES,
    max_pending_bytes: int | None = MAX_PENDING_BYTES,
    timeout: Seconds | None = None,
    keeps: object = None,
) -> OrderedPushSubscription:
    """Reads a stream in order. `config` has what the user said, above all the filter.

    Returns when the first consumer is there, within `timeout`; raises why there cannot
    be one.
    """
    if callback is not None:
        check_callback(callback)
    alarm = check_alarm(heartbeat_alarm)
    limits = (
        pending_limit(max_pending_messages, "max_pending_messages"),
        pending_limit(max_pending_bytes, "max_pending_bytes"),
    )
    source = Succession(
        api,
        stream,
        ordered_config(config),
        courier=new_courier(api.loop, "none", None),
        prefix=None,
        max_resets=max_resets,
    )
    source.config.with_changes(deliver_subject="x").validate()
    api.refuse_too_new(source.config.needs())

    def read(stop_after: int, limit: float) -> PushReading:
        return PushReading(
            source,
            timeout=limit,
            stop_after=stop_after,
            limits=limits,
            heartbeat_alarm=alarm,
        )

    messages = OrderedMessages(
        source,
        read,
        stop_after=0,
        doing=f"read stream {stream!r} in order",
        is_final=is_final,
    )
    limit = api.timeout if timeout is None else seconds(timeout)
    messages.open(monotonic() + limit)
    return OrderedPushSubscription(source, messages, callback, keeps)
