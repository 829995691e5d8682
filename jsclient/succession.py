"""One consumer after another: reading a stream in order, whatever happens.

The server keeps a consumer without acks in memory. Whatever goes wrong with it (a lost
message, a lost link, missed heartbeats, a restarted server) ends it, and a new one
begins after the last message that was handed to the user. A consumer's own sequence
counts 1, 2, 3, …, and heartbeats tell where it is: the first number that does not fit
is a gap. The inbox checks that and remembers the place in the stream, in compiled code,
so that no signal can come between a message and its being counted.

A `Succession` makes the consumers, `OrderedMessages` reads them. How one is read, by
pulls or by deliveries, is said by a `Reading`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from . import _consumer_verbs as consumers_api
from . import errors
from ._api import Api
from ._core import (
    ConsumerInbox,
    Courier,
    Gate,
    Msg,
    OrderedInbox,
    OrderedIterator,
    PushInbox,
)
from ._engine.arguments import Seconds, integer, seconds, unique_name
from ._engine.values import check_name
from .config import ConsumerConfig
from .events import ConsumerWarning
from .info import ConsumerInfo
from .jetstream_errors import (
    ApiError,
    JetStreamError,
    LostPullError,
    MaximumConsumersError,
)

if TYPE_CHECKING:
    from typing_extensions import Self

# Pauses between attempts to begin anew that bring no message.
FIRST_PAUSE = 0.05
LAST_PAUSE = 5.0
MOMENT = 1.0

# An inbox that ends before the first gap.
GaplessInbox = OrderedInbox | PushInbox


class Reading(Protocol):
    """How one consumer of a succession is read."""

    @property
    def name(self) -> str:
        """The consumer."""

    @property
    def inbox(self) -> GaplessInbox:
        """Where its messages come."""

    def start(self) -> None:
        """Messages come from now on."""

    def stop(self) -> None:
        """None come any more."""

    def abandon(self) -> None:
        """The same, without waiting. For finalizers."""


class Succession:
    """The consumers with which a stream is read in order, one at a time."""

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        *,
        courier: Courier,
        prefix: str | None,
        max_resets: int | None,
    ) -> None:
        self.api = api
        self.stream = stream
        self.courier = courier
        self.prefix = check_name(prefix or unique_name(), "name_prefix")
        self.max_resets = (
            math.inf
            if max_resets is None
            else integer(max_resets, "max_resets", least=0)
        )
        if config.deliver_policy == "last_per_subject" and not (
            config.filter_subject or config.filter_subjects
        ):
            # The server wants it said.
            config = config.with_changes(filter_subject=">")
        self.config = config
        self.start_seq = 0  # where the first consumer began
        self.inbox: ConsumerInbox = OrderedInbox(courier)
        self._serials = itertools.count(1)
        self._unsure: list[str] = []  # consumers that may have been made
        self._lock = threading.Lock()
        self._reader: weakref.ref[OrderedMessages] | None = None

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message that was handed out; 0 before."""
        return self.inbox.last_seq

    def read_by(self, reader: OrderedMessages) -> None:
        """Only this one reads from now on, until it is stopped or nobody holds it."""
        with self._lock:
            other = None if self._reader is None else self._reader()
            if other is not None and not other._is_stopped:
                raise errors.InvalidArgumentError(
                    "an ordered consumer is read by one iteration at a time"
                )
            self._reader = weakref.ref(reader)

    def begin(self, timeout: float, **fields: Any) -> ConsumerInfo:
        """A new consumer on the server, after the last message that was handed out."""
        name = f"{self.prefix}_{next(self._serials)}"
        try:
            info = consumers_api.create(
                self.api,
                self.stream,
                self._continued().with_changes(name=name, **fields),
                {},
                timeout=timeout,
            )
        except BaseException:
            # Nobody knows whether it was made, or will be: the server works on several
            # requests at a time. When it has answered a later one, it is done.
            self._unsure.append(name)
            self.discard(name)
            raise
        while self._unsure:
            self.discard(self._unsure.pop())
        if not self.start_seq:
            self.start_seq = info.delivered.stream_seq + 1
        return info

    def _continued(self) -> ConsumerConfig:
        """The configuration of the next consumer."""
        if self.last_seq:
            start = self.last_seq + 1
        elif self.config.deliver_policy == "last_per_subject":
            return self.config
        else:
            # What came since the first consumer began belongs to it too: another time
            # "new" and "last" would mean something else.
            start = self.start_seq
        if not start:
            return self.config
        return self.config.with_changes(
            deliver_policy="by_start_sequence", opt_start_seq=start, opt_start_time=None
        )

    def discard(self, name: str) -> None:
        """Deletes a consumer without waiting; the server forgets it anyway some day."""
        loop = self.api.loop
        subject = f"{self.api.prefix}CONSUMER.DELETE.{self.stream}.{name}"
        # When the link is down it is sent on the next one: no other consumer ever has
        # this name. When there is no room for it, its inactive_threshold removes it.
        with contextlib.suppress(errors.Error):
            if loop.outbox.publish(subject, b"", None, None) == 1:
                loop.alert()


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

    def __init__(
        self,
        source: Succession,
        new_reading: Callable[[int, float], Reading],
        *,
        stop_after: int,
        doing: str,
        is_final: Callable[[errors.Error, bool], bool] | None = None,
    ) -> None:
        """`new_reading` makes one for so many messages (0: all), in so many seconds.

        `is_final` tells whether to give up after that error, of the first attempt.
        """
        self._reading: Reading | None = None
        self._source = source
        self._new_reading = new_reading
        self._loop = source.api.loop
        self._stop_after = stop_after
        self._doing = doing
        self._is_final = is_final or would_be_refused_again
        self._taken = 0  # before the present inbox
        self._inbox: GaplessInbox = OrderedInbox(source.courier, source.last_seq)
        self._bell = _Bell()
        self._resets = 0
        self._pause = 0.0
        self._begun_at = 0.0
        self._error: errors.Error | None = None
        self._trouble: errors.Error | None = None  # why it had to begin anew
        self._is_stopped = False
        self._is_draining = False  # there is no inbox after this one
        source.read_by(self)

    def __iter__(self) -> Iterator[Msg]:
        return OrderedIterator(self.await_inbox)

    def next(self, timeout: Seconds | None = 5.0) -> Msg:
        """The next message; TimeoutError when none came in time.

        Raises the error that ended the iteration, or SubscriptionClosedError when it
        was stopped.
        """
        limit = seconds(timeout)
        if not limit and self._reading is None and self.is_active:
            # Without any time the server is still given a moment to begin.
            self._begin(monotonic() + MOMENT)
        inbox = self.await_inbox(monotonic() + limit)
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

    def await_inbox(self, deadline: float = math.inf) -> GaplessInbox | None:
        """The inbox, as soon as a message is in it; None when there will be none."""
        while True:
            if self._is_stopped:
                # What another thread found nothing of when it stopped this one.
                self._leave()
                return None
            if self._error is not None:
                raise self._error
            if self._reading is None:
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

    def _follow(self, inbox: GaplessInbox) -> None:
        """The inbox has ended, and everything in it was read."""
        self._loop.check_open()
        if self._is_draining or 0 < self._stop_after <= self._taken + inbox.taken:
            self.stop()
            return
        reason = inbox.reason
        if isinstance(reason, errors.PermissionsViolationError):
            self._error = reason  # as it would be for every further consumer
            self._leave()
            return
        if inbox.gap is not None:
            reason = LostPullError(
                code=0,
                description=f"the consumer is at message {inbox.gap}, "
                f"{inbox.deliveries} arrived",
                doing=self._doing,
            )
        elif not isinstance(reason, errors.Error):
            reason = LostPullError(
                code=0,
                description="the pull has ended",
                doing=self._doing,
            )
        if not self._is_stopped:
            if monotonic() - self._begun_at > LAST_PAUSE:
                self._pause = 0.0  # it lived
            self._note(reason)
            self._leave()

    def open(self, deadline: float) -> None:
        """Begins now, without retries that would last longer; raises why it cannot."""
        while self._reading is None:
            self._begin(deadline)
            if self._error is not None:
                raise self._error

    def _begin(self, deadline: float) -> None:
        """Makes a new consumer, when there is a link, and reads it."""
        self._leave()  # what an exception from a signal handler left behind
        self._await_link(deadline)
        if self._pause:
            self._rest(deadline)
        if self._is_draining:
            self.stop()
        if self._is_stopped:
            return
        # Until a message comes, each further attempt has to wait longer.
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LAST_PAUSE)
        source = self._source
        limit = max(min(source.api.timeout, deadline - monotonic()), 0.0)
        taken = self._taken + self._inbox.taken
        left = self._stop_after - taken if self._stop_after else 0
        is_first = not source.start_seq
        try:
            self._reading = reading = self._new_reading(left, limit)
        except (JetStreamError, errors.ConnectionError, errors.TimeoutError) as error:
            self._loop.check_open()
            if self._is_final(error, is_first):
                self._error = error
                return
            if monotonic() >= deadline:
                raise errors.TimeoutError(
                    f"no consumer could be made in time: {error}"
                ) from error
            self._note(error)
            return
        inbox = reading.inbox
        self._inbox, self._taken, source.inbox = inbox, taken, inbox
        self._begun_at = monotonic()
        try:
            reading.start()
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
                    raise errors.TimeoutError(
                        "there was no link to the server in time"
                    ) from errors.DisconnectedError("there is no link to the server")
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
            raise errors.TimeoutError(
                f"it could not begin anew in time: {self._trouble}"
            ) from self._trouble

    def _note(self, error: errors.Error) -> None:
        """It has to begin anew, after this."""
        self._resets += 1
        self._trouble = error
        if self._resets > self._source.max_resets:
            self._error = error
        self._loop.tell(
            ConsumerWarning(self._source.stream, self._source.prefix, error)
        )

    def _leave(self) -> None:
        """Lets go of the consumer."""
        reading = self._reading
        if reading is not None:
            if not self._loop.is_closing:
                reading.stop()
            self._inbox.clear()
            self._reading = None
            self._source.discard(reading.name)

    def stop(self) -> None:
        """Ends the iteration; reading the consumer again continues after it."""
        self._is_stopped = True
        self._bell.gate.open()
        self._leave()

    def finish(self) -> None:
        """What has arrived is read to its end; no further consumer is made."""
        self._is_draining = True
        self._bell.gate.open()

    def limit(self, count: int) -> None:
        """Ends after that many messages in all."""
        self._stop_after = count
        left = count - self._taken
        if left <= self._inbox.taken:
            self.stop()
        else:
            self._inbox.set_limit(left)

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """The same as `stop`: what was not read is read the next time."""
        self.stop()

    def end_reading(self, deadline: float) -> None:
        """The connection is drained; what was not read stays in the stream."""
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
    def reading(self) -> Reading | None:
        """How the present consumer is read, if there is one."""
        return self._reading

    @property
    def taken(self) -> int:
        """Messages that were read."""
        return self._taken + self._inbox.taken

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
        reading = self._reading
        if reading is not None:
            reading.abandon()
            if not self._loop.is_closing:
                source, name = self._source, reading.name
                self._loop.abandoned(lambda: source.discard(name))


def would_be_refused_again(error: errors.Error, is_first: bool) -> bool:
    """Whether the server would refuse another attempt as well."""
    if isinstance(error, MaximumConsumersError):
        # The one before may not be gone yet.
        return is_first
    return isinstance(error, ApiError) and error.code < 500
