"""Ordered consumers: every message of a stream, in order, without gaps or repeats.

The server keeps a consumer without acks in memory. Whatever goes wrong with it (a lost
message, a lost link, missed heartbeats, a restarted server) ends it, and a new one
begins after the last message that was handed to the user. A consumer's own sequence
counts 1, 2, 3, …, and heartbeats tell where it is: the first number that does not fit
is a gap. The inbox checks that and remembers the place in the stream, in compiled code,
so that no signal can come between a message and its being counted.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from . import consumer as consumers_api
from . import errors
from ._api import Api
from ._core import Gate, Msg, OrderedInbox, OrderedIterator
from ._engine.arguments import Seconds, integer, seconds, unique_name
from ._engine.pull_terms import Policy
from ._engine.values import check_name
from ._io.loop import Loop
from ._io.pulling import Pulling
from .config import ConsumerConfig, consumer_config
from .consumer import Consumer
from .consuming import ConsumeHandle, FetchResult, new_courier
from .events import ConsumerWarning
from .jetstream_errors import (
    ApiError,
    JetStreamError,
    LostPullError,
    MaximumConsumersError,
)
from .pull_options import consume_policy

if TYPE_CHECKING:
    from typing_extensions import Self

# Pauses between attempts to begin anew that bring no message.
FIRST_PAUSE = 0.05
LAST_PAUSE = 5.0
HEARTBEAT = 5.0
MOMENT = 1.0

# What makes it ordered is not for the user to say.
OWN_FIELDS = (
    *("name", "durable_name", "ack_policy", "deliver_subject", "deliver_group"),
    *("mem_storage", "num_replicas", "priority_groups", "priority_policy"),
)


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
        for field in OWN_FIELDS:
            if field in fields:
                raise TypeError(f"an ordered consumer has its own {field}")
        config = consumer_config(
            None,
            ack_policy="none",
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=inactive_threshold,
            **fields,
        )
        if config.deliver_policy == "last_per_subject" and not (
            config.filter_subject or config.filter_subjects
        ):
            # The server wants it said.
            config = config.with_changes(filter_subject=">")
        config.validate()
        api.refuse_too_new(config.needs())
        self._config = config
        self._serials = itertools.count(1)
        self._courier = new_courier(api.loop, "none", None)
        self._inbox = OrderedInbox(self._courier)
        self._start_seq = 0  # where the first consumer began
        self._unsure: list[str] = []  # consumers that may have been made
        self._lock = threading.Lock()
        self._reading: weakref.ref[OrderedMessages] | None = None

    @property
    def stream_name(self) -> str:
        """The stream that it reads."""
        return self._stream

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message that was handed out; 0 before."""
        return self._inbox.last_seq

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
        """An endless iteration in order; options are those of `Consumer.messages`.

        The heartbeat is 5 seconds by default, or half of `expires` if that is less.
        """
        if idle_heartbeat is None:
            idle_heartbeat = min(HEARTBEAT, seconds(expires, "expires") / 2)
        policy = consume_policy(
            self._config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=None,
            threshold_bytes=None,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            on_missing="raise",
            doing=f"read stream {self._stream!r} in order",
        )
        return OrderedMessages(self, policy._replace(is_fragile=True))

    def fetch(self, max_messages: int, *, timeout: Seconds = 5.0) -> FetchResult:
        """Up to that many messages, waiting at most `timeout` for all of them."""
        deadline = monotonic() + seconds(timeout)
        integer(max_messages, "max_messages", least=1)
        found: list[Msg] = []
        error: errors.Error | None = None
        with self._unless_it_raises():
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
        with (
            self._unless_it_raises(),
            self.messages(1, stop_after=1) as messages,
        ):
            return messages.next(timeout)

    @contextlib.contextmanager
    def _unless_it_raises(self) -> Iterator[None]:
        """A block after which messages that nobody got are read again."""
        before = self.last_seq
        try:
            yield
        except BaseException:
            self._inbox.last_seq = before
            raise

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

    def _read_by(self, reading: OrderedMessages) -> None:
        """Only this one reads from now on, until it is stopped or nobody holds it."""
        with self._lock:
            other = None if self._reading is None else self._reading()
            if other is not None and not other._is_stopped:
                raise errors.InvalidArgumentError(
                    "an ordered consumer is read by one iteration at a time"
                )
            self._reading = weakref.ref(reading)

    # Consumers on the server ----------------------------------------------------------

    def _begin(self, timeout: float) -> Consumer:
        """A new consumer on the server, after the last message that was handed out."""
        name = f"{self._prefix}_{next(self._serials)}"
        try:
            info = consumers_api.create(
                self._api,
                self._stream,
                self._continued().with_changes(name=name),
                {},
                action="create",
                timeout=timeout,
            )
        except BaseException:
            # Nobody knows whether it was made, or will be: the server works on several
            # requests at a time. When it has answered a later one, it is done.
            self._unsure.append(name)
            self._discard(name)
            raise
        while self._unsure:
            self._discard(self._unsure.pop())
        if not self._start_seq:
            self._start_seq = info.delivered.stream_seq + 1
        return Consumer(self._api, info)

    def _continued(self) -> ConsumerConfig:
        """The configuration of the next consumer."""
        if self.last_seq:
            start = self.last_seq + 1
        elif self._config.deliver_policy == "last_per_subject":
            return self._config
        else:
            # What came since the first consumer began belongs to it too: another time
            # "new" and "last" would mean something else.
            start = self._start_seq
        if not start:
            return self._config
        return self._config.with_changes(
            deliver_policy="by_start_sequence", opt_start_seq=start, opt_start_time=None
        )

    def _discard(self, name: str) -> None:
        """Deletes a consumer without waiting; the server forgets it anyway some day."""
        loop = self._api.loop
        subject = f"{self._api.prefix}CONSUMER.DELETE.{self._stream}.{name}"
        # When the link is down it is sent on the next one: no other consumer ever has
        # this name. When there is no room for it, its inactive_threshold removes it.
        with contextlib.suppress(errors.Error):
            if loop.outbox.publish(subject, b"", None, None) == 1:
                loop.alert()

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self._stream!r} after {self.last_seq}>"


class _Bell:
    """Wakes a reader that waits for a link or for time to pass; watches the loop."""

    def __init__(self) -> None:
        self.gate = Gate()

    def linked(self, now: float) -> None:
        self.gate.open()

    def unlinked(self, now: float) -> None:
        """That is what it waits through."""

    def closed(self, error: errors.Error) -> None:
        self.gate.open()


class OrderedMessages:
    """The iteration of an ordered consumer. One thread at a time reads it."""

    def __init__(self, source: OrderedConsumer, policy: Policy) -> None:
        self._consumer: Consumer | None = None
        self._pulling: Pulling | None = None
        self._source = source
        self._loop: Loop = source._api.loop
        self._policy = policy
        self._taken = 0  # before the present inbox
        self._inbox = OrderedInbox(source._courier, source.last_seq)
        self._bell = _Bell()
        self._resets = 0
        self._pause = 0.0
        self._begun_at = 0.0
        self._error: errors.Error | None = None
        self._is_stopped = False
        source._read_by(self)

    def __iter__(self) -> Iterator[Msg]:
        return OrderedIterator(self._await_inbox)

    def next(self, timeout: Seconds | None = 5.0) -> Msg:
        """The next message; TimeoutError when none came in time.

        Raises the error that ended the iteration, or SubscriptionClosedError when it
        was stopped.
        """
        limit = seconds(timeout)
        if not limit and self._pulling is None and self.is_active:
            # Without any time the server is still given a moment to begin.
            self._begin(monotonic() + MOMENT)
        inbox = self._await_inbox(monotonic() + limit)
        if inbox is None:
            raise errors.SubscriptionClosedError("the messages have ended")
        hand: list[Msg | None] = [None]
        try:
            inbox.take_into(hand, self._loop.helm, 0.0)
            if hand[0] is not None:
                return hand[0]
        except BaseException:
            # A signal handler raised after the message was taken.
            if hand[0] is not None:
                inbox.put_back(hand[0])
            raise
        # Another thread stopped it just now.
        raise errors.SubscriptionClosedError("the messages have ended")

    def _await_inbox(self, deadline: float = math.inf) -> OrderedInbox | None:
        """The inbox, as soon as a message is in it; None when there will be none."""
        while True:
            if self._is_stopped:
                # What another thread found nothing of when it stopped this one.
                self._leave()
                return None
            if self._error is not None:
                raise self._error
            if self._pulling is None:
                self._begin(deadline)
                continue
            inbox = self._inbox
            inbox.refill()
            if inbox.count:
                self._pause = 0.0
                return inbox
            if inbox.is_ended:
                self._follow(inbox)
            elif not self._loop.wait(inbox, deadline):
                raise errors.TimeoutError("no message came in time")

    def _follow(self, inbox: OrderedInbox) -> None:
        """The inbox has ended, and everything in it was read."""
        self._loop.check_open()
        if 0 < self._policy.stop_after <= self._taken + inbox.taken:
            self.stop()
            return
        reason = inbox.reason
        if inbox.gap is not None:
            reason = LostPullError(
                code=0,
                description=f"the consumer is at message {inbox.gap}, "
                f"{inbox.deliveries} arrived",
                doing=self._policy.doing,
            )
        elif not isinstance(reason, errors.Error):
            reason = LostPullError(
                code=0,
                description="the pull has ended",
                doing=self._policy.doing,
            )
        if not self._is_stopped:
            if monotonic() - self._begun_at > LAST_PAUSE:
                self._pause = 0.0  # it lived
            self._note(reason)
            self._leave()

    def _begin(self, deadline: float) -> None:
        """Makes a new consumer, when there is a link, and reads it."""
        self._leave()  # what an exception from a signal handler left behind
        self._await_link(deadline)
        if self._pause:
            self._rest(deadline)
        if self._is_stopped:
            return
        # Until a message comes, each further attempt has to wait longer.
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LAST_PAUSE)
        source = self._source
        limit = min(source._api.timeout, deadline - monotonic())
        try:
            self._consumer = source._begin(max(limit, 0.0))
        except (JetStreamError, errors.ConnectionError, errors.TimeoutError) as error:
            self._loop.check_open()
            if _is_final(error, is_first=not source._start_seq):
                self._error = error
                return
            if monotonic() >= deadline:
                raise errors.TimeoutError(
                    f"no consumer could be made in time: {error}"
                ) from error
            self._note(error)
            return
        self._start(self._consumer)

    def _start(self, consumer: Consumer) -> None:
        """Begins to read a consumer that was made just now."""
        source, policy = self._source, self._policy
        taken = self._taken + self._inbox.taken
        inbox = OrderedInbox(source._courier, source.last_seq)
        self._inbox, self._taken, source._inbox = inbox, taken, inbox
        if policy.stop_after:
            policy = policy._replace(stop_after=policy.stop_after - taken)
        self._begun_at = monotonic()
        try:
            self._pulling = consumer._pulling(policy, {}, inbox=inbox)
            self._pulling.start()
        except BaseException:
            self._leave()
            raise

    def _await_link(self, deadline: float) -> None:
        loop = self._loop
        bell = self._bell = _Bell()
        loop.watchers.append(bell)
        try:
            if loop.live is None and not self._is_stopped:
                if not loop.wait(bell.gate, deadline):
                    raise errors.TimeoutError("there was no link to the server in time")
                loop.check_open()
        finally:
            loop.watchers.remove(bell)

    def _rest(self, deadline: float) -> None:
        """Lets a pause pass, unless it is stopped meanwhile."""
        bell = self._bell = _Bell()
        until = monotonic() + self._pause
        if self._is_stopped:
            return
        self._loop.wait(bell.gate, min(until, deadline))
        if until >= deadline:
            raise errors.TimeoutError("no consumer could be made in time")

    def _note(self, error: errors.Error) -> None:
        """It has to begin anew, after this."""
        self._resets += 1
        if self._resets > self._source._max_resets:
            self._error = error
        self._loop.tell(
            ConsumerWarning(self._source.stream_name, self._source._prefix, error)
        )

    def _leave(self) -> None:
        """Lets go of the consumer."""
        pulling, consumer = self._pulling, self._consumer
        if pulling is not None:
            if not self._loop.is_closing:
                pulling.stop()
            self._inbox.clear()
            self._pulling = None
        if consumer is not None:
            self._source._discard(consumer.name)
            self._consumer = None

    def stop(self) -> None:
        """Ends the iteration; reading the consumer again continues after it."""
        self._is_stopped = True
        self._bell.gate.open()
        self._leave()

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """The same as `stop`: what was not read is read the next time."""
        self.stop()

    @property
    def is_active(self) -> bool:
        """Whether messages may still come."""
        return not self._is_stopped and self._error is None

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None while it runs or when it was stopped."""
        return self._error

    @property
    def resets(self) -> int:
        """How often it had to begin anew."""
        return self._resets

    @property
    def pending_messages(self) -> int:
        """Messages that arrived and were not read yet."""
        return self._inbox.count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __del__(self) -> None:
        # Nobody can read it any more, but the loop and the server still have it.
        if self._pulling is not None:
            self._pulling.abandon()
        if self._consumer is not None and not self._loop.is_closing:
            source, name = self._source, self._consumer.name
            self._loop.abandoned(lambda: source._discard(name))


def _is_final(error: errors.Error, *, is_first: bool) -> bool:
    """Whether the server would refuse another attempt as well."""
    if isinstance(error, MaximumConsumersError):
        # The one before may not be gone yet.
        return is_first
    return isinstance(error, ApiError) and error.code < 500
