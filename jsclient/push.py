"""Push deliveries: a subscription that a consumer sends its messages to.

How one is made. The subscription comes first: the server must find it when the consumer
is made, or it takes a durable for an idle one.

    sub = PushSubscription(api, stream, config, is_new=True, ...)   # SUB
    try:
        info = consumer.create(api, stream, config, ...)
    except BaseException:
        sub.unsubscribe()                     # before `bound` nothing is deleted
        raise
    sub.bound(info, on_close=delete)          # its name; heartbeats count from here on

`config` is the consumer's, as it is wanted or as it was found. Its `deliver_subject` is
subscribed to literally, with its `deliver_group` as the queue: the server counts no
other interest. `is_new` says that deliveries are counted from 1. A subscription that is
found to be on the wrong subject is ended, and another one made.

`on_close` deletes the consumer, given so many seconds for it. It is called once at
most: by `unsubscribe`, which raises its error; after the last message of a `drain`, or
of a limit, was handed over, when a failure is told as an event.

What happens by itself, unless `raw_status` is set: heartbeats are watched, gaps between
deliveries are told as events, flow control is answered. Statuses are never messages;
those that are errors are raised for whoever reads, or told as events with a callback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from . import errors, events
from ._api import Api
from ._core import Inbox, MessageIterator, Msg, PushInbox, check_subject, check_token
from ._engine.arguments import Seconds, check_callback, integer, pending_limit, seconds
from ._engine.push import Delivery
from ._io.pushing import Pushing
from .config import ConsumerConfig
from .consuming import new_courier
from .info import ConsumerInfo
from .jetstream_errors import DuplicateSubscriptionError
from .subscription import Subscription

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_PENDING_MESSAGES = 500_000
MAX_PENDING_BYTES = 64 << 20
HEARTBEATS = 3  # so many of them may be missed


class PushSubscription:
    """The messages that a push consumer delivers. Made by `JetStream.subscribe`.

    Without a callback you read it: `next`, `messages`, or a plain `for`. With a
    callback a thread of its own reads it and calls you, one message at a time, in
    order.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        *,
        is_new: bool,
        callback: Callable[[Msg], object] | None = None,
        raw_status: bool = False,
        heartbeat_alarm: float = HEARTBEATS,
        max_pending_messages: int | None = MAX_PENDING_MESSAGES,
        max_pending_bytes: int | None = MAX_PENDING_BYTES,
        keeps: object = None,
    ) -> None:
        """Subscribes; see the module's text.

        Args:
            heartbeat_alarm: after how many intervals of silence the user is told.
            keeps: what lives as long as the subscription is held.
        """
        subject, queue = config.deliver_subject, config.deliver_group or None
        if not subject:
            raise errors.InvalidArgumentError("deliver_subject must be given")
        check_subject(subject, "deliver_subject")
        if queue is not None:
            check_token(queue, "deliver_group")
        if callback is not None:
            check_callback(callback)
        self._alarm = check_alarm(heartbeat_alarm)
        loop = api.loop
        loop.check_open()
        if loop.is_draining:
            raise errors.ConnectionDrainingError("the connection is draining")
        # What the server takes for a push consumer, if nothing is said.
        policy = str(getattr(config.ack_policy, "value", config.ack_policy) or "none")
        self._api = api
        self._loop = loop
        self._callback = callback
        self._names = [stream, config.name or config.durable_name or ""]
        self._inbox = PushInbox(
            # Messages of "flow_control" are acknowledged by its answers.
            new_courier(
                loop, "none" if policy == "flow_control" else policy, api.ack_prefix
            ),
            pending_limit(max_pending_messages, "max_pending_messages"),
            pending_limit(max_pending_bytes, "max_pending_bytes"),
            is_new=is_new,
            # Of a queue group each member gets some of the deliveries.
            checks_gaps=queue is None,
            keeps_place=policy == "flow_control",
            is_raw=raw_status,
        )
        names = self._names

        def tell(error: errors.Error) -> None:
            loop.tell(events.ConsumerWarning(names[0], names[1], error))

        self._pushing = Pushing(
            loop,
            self._inbox,
            Delivery(f"read stream {stream!r} on {subject!r}"),
            on_warning=tell,
            on_error=None if callback is None else tell,
            close_timeout=api.timeout,
            is_acking=policy == "flow_control",
        )
        self._sub = Subscription(
            keeps,
            loop,
            self._inbox,
            subject=subject,
            queue=queue,
            callback=None if callback is None else self._call,
            handle=self,
            on_notice=self._pushing.noticed,
        )
        # Flow control may be asked for before the consumer is known.
        self._pushing.start(math.inf)

    def bound(
        self, info: ConsumerInfo, on_close: Callable[[float], None] | None = None
    ) -> Self:
        """The consumer is there: what it is called, and how it is deleted at the end.

        From now on its silence is noticed, if it has heartbeats.
        """
        self._names[1] = info.name
        self._pushing.on_close = on_close
        beat = seconds(info.config.idle_heartbeat or 0, "idle_heartbeat")
        # Of a queue group any member may get the heartbeats.
        is_watched = beat > 0 and self.queue is None
        self._pushing.start(beat * self._alarm if is_watched else math.inf)
        return self

    # Reading --------------------------------------------------------------------------

    def next(self, timeout: Seconds | None = 5.0) -> Msg:
        """The next message, waiting for it at most `timeout`; None waits for ever.

        Raises TimeoutError when none came, SubscriptionClosedError when none will come,
        PushError for a status that is an error, and SlowConsumerError once after
        messages were dropped.
        """
        return self._sub.next(timeout)

    def messages(self, timeout: Seconds | None = None) -> Iterator[Msg]:
        """Iterates the messages, until the subscription ends.

        With a `timeout` the iteration also ends when no message came for that long.
        """
        self._sub.refuse_callback()
        return MessageIterator(self._inbox, self._loop.helm, seconds(timeout), self)

    def __iter__(self) -> Iterator[Msg]:
        return self.messages()

    def _call(self, msg: Msg) -> None:
        assert self._callback is not None
        try:
            self._callback(msg)
        except Exception as error:  # noqa: BLE001 - told as an event
            self._loop.tell(events.ErrorEvent(error, self))

    # Ending ---------------------------------------------------------------------------

    def unsubscribe(self, limit: int | None = None) -> None:
        """Ends the subscription at once, or after `limit` messages in all.

        Without a limit, messages that were not read yet are dropped, and the consumer
        is deleted if this subscription has made it; the error of that is raised.
        """
        if limit is None:
            self._sub.unsubscribe()
            self._pushing.stop()
            self._pushing.close()
            return
        self._loop.check_open()
        self._inbox.set_limit(integer(limit, "limit", least=1))
        if self._inbox.is_ended:
            self._loop.call(self._pushing.noticed)

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """Ends the subscription without losing what the server has already sent.

        Returns when nothing more can arrive; what has arrived can still be read, and a
        callback has handled it. When the last message was handed over, the consumer is
        deleted if this subscription has made it.
        """
        try:
            self._sub.drain(timeout)
        finally:
            if not self._loop.is_closing:
                self._pushing.stop()
                self._pushing.close_after(
                    self._inbox.await_empty()
                    if self._callback is None
                    else self._sub.called_all
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._inbox.is_ended and not self._loop.is_closing:
            self.unsubscribe()

    def __del__(self) -> None:
        # Nobody can read it any more, but the loop still has it.
        pushing = getattr(self, "_pushing", None)
        if pushing is not None:
            pushing.abandon()

    # Facts ----------------------------------------------------------------------------

    @property
    def stream_name(self) -> str:
        """The stream that is read."""
        return self._names[0]

    @property
    def consumer_name(self) -> str:
        """The consumer; empty until it is known."""
        return self._names[1]

    def consumer_info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """What the server says of the consumer now."""
        from ._consumer_verbs import fetch_info

        return fetch_info(
            self._api, self.stream_name, self.consumer_name, timeout=timeout
        )

    @property
    def subject(self) -> str:
        """Where the consumer delivers."""
        return self._sub.subject

    @property
    def queue(self) -> str | None:
        """The deliver group."""
        return self._sub.queue

    @property
    def pending_messages(self) -> int:
        """Messages that arrived and were not read yet."""
        return self._sub.pending_messages

    @property
    def pending_bytes(self) -> int:
        """Their bytes: subject, reply, headers and payload."""
        return self._sub.pending_bytes

    @property
    def dropped(self) -> int:
        """Messages that came while a pending limit was reached."""
        return self._sub.dropped

    @property
    def delivered(self) -> int:
        """Messages that were read."""
        return self._sub.delivered

    @property
    def is_active(self) -> bool:
        """Whether messages can still arrive."""
        return self._sub.is_active

    def __repr__(self) -> str:
        state = "" if self.is_active else " ended"
        name = f"{self.consumer_name!r} of {self.stream_name!r}"
        return f"<PushSubscription to {name}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PushSubscription cannot be pickled: subscribe in the process that reads"
        )


def check_alarm(beats: float) -> float:
    """After how many heartbeats silence is an alarm."""
    if isinstance(beats, bool) or not isinstance(beats, int | float):
        raise TypeError(f"heartbeat_alarm must be a number, not {type(beats).__name__}")
    if not 1 < beats < math.inf:
        raise errors.InvalidArgumentError(
            f"heartbeat_alarm must be more than 1 interval, and finite: {beats!r}"
        )
    return float(beats)


class PushFeed:
    """What brings the messages of `Consumer.messages` and `consume` when it pushes."""

    def __init__(
        self,
        api: Api,
        info: ConsumerInfo,
        stop_after: int | None,
    ) -> None:
        if info.push_bound and not info.config.deliver_group:
            raise DuplicateSubscriptionError(
                info.stream_name,
                info.name,
                "has a subscriber already; to share it, make it with a deliver_group",
            )
        self._sub = PushSubscription(api, info.stream_name, info.config, is_new=False)
        self._sub.bound(info)
        if stop_after is not None:
            self._sub.unsubscribe(stop_after)

    @property
    def inbox(self) -> Inbox:
        """Where they come."""
        return self._sub._inbox

    @property
    def is_ended(self) -> bool:
        """Whether no more can arrive."""
        return not self._sub.is_active

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None if nothing went wrong."""
        reason = self.inbox.reason
        return reason if isinstance(reason, errors.Error) else None

    def start(self) -> None:
        """It has begun already."""

    def stop(self) -> None:
        """Ends it; messages that were not taken are left to the server."""
        if not self.is_ended or self.inbox.count:
            self._sub.unsubscribe()

    def tell_errors(self) -> None:
        """Statuses that are errors are told as events, not raised for who reads."""
        self._sub._pushing.on_error = self._sub._pushing.on_warning

    def stop_asking(self, deadline: float) -> None:
        """It asks for nothing."""

    def drain(self, deadline: float) -> bool:
        """Ends it with everything that is under way; whether that was in time."""
        try:
            self._sub.drain(max(0.0, deadline - monotonic()))
        except errors.DrainTimeoutError:
            return False
        return True

    def abandon(self) -> None:
        """It ends when nobody holds it."""
