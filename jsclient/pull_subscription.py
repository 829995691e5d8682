"""Pull subscriptions: messages of a consumer, a fetch at a time (ADR-13).

A fetch asks for what is there, without waiting. If that is nothing, it asks again and
waits. It is the same machine as that of `Consumer.fetch`, which waits from the start.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from . import errors
from ._core import LonePull, Msg
from ._engine.arguments import Seconds, integer, seconds
from ._io.lone_pull import Order
from .fetching import FetchResult, fetch
from .info import ConsumerInfo
from .jetstream_errors import ConsumerNotFoundError, StreamNotFoundError
from .pull_options import PullOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .consumer import Consumer
    from .ownership import Ownership


class _Turn:
    """One fetch, from what it may bring to what it brought."""

    __slots__ = ("came", "lone", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        self.came = 0
        self.lone: LonePull | None = None


class PullSubscription:
    """A consumer that is read by fetches. Made by `JetStream.pull_subscribe`.

        with js.pull_subscribe("orders.*", durable="worker") as sub:
            for msg in sub.fetch(10, timeout=5.0):
                msg.ack()

    Several threads may fetch; each message goes to one of them.
    """

    def __init__(self, consumer: Consumer, ownership: Ownership, subject: str) -> None:
        self.subject = subject
        self._consumer = consumer
        self._ownership = ownership
        self._loop = consumer._api.loop
        self._lock = threading.RLock()  # a signal handler may fetch, too
        self._changed = threading.Condition(self._lock)
        self._is_ended = False
        self._limit: int | None = None  # of messages in all
        self._delivered = 0
        self._running: set[_Turn] = set()  # fetches that are under way

    # Reading --------------------------------------------------------------------------

    def fetch(
        self,
        max_messages: int = 1,
        timeout: Seconds = 5.0,
        *,
        idle_heartbeat: Seconds | None = None,
        **pull: Unpack[PullOptions],
    ) -> FetchResult:
        """The messages that are there, up to that many, or those that come in time.

        If there are some it returns them at once. Else it waits until all of them came
        or the time is over, and returns what came; `error` of the result says why it
        ended early. Raises TimeoutError when nothing came, and the server's error if
        there was one. With a `timeout` of 0 it does not wait: an answer that takes a
        tenth of a second is for the next fetch.

        Options of the pull: `group`, `priority`, `min_pending`, `min_ack_pending`.
        """
        consumer = self._consumer

        def order_of(count: int) -> Order:
            return consumer._order(
                count, None, timeout, False, idle_heartbeat, pull, no_wait_first=True
            )

        order = order_of(max_messages)
        deadline = monotonic() + order.wait
        lanes = consumer._own_lanes()
        turn = _Turn()
        late: list[Msg] = []
        found: FetchResult | None = None
        # Whatever is raised in here, no message that came is lost: it is for the next
        # fetch. Nothing may be called after it, not even a method of the result.
        try:
            count = self._reserve(turn, max_messages, deadline)
            if count < max_messages:
                order = order_of(count)
            turn.lone = LonePull(lanes.pool, order.draft)
            if self._is_ended:
                self._loop.call(turn.lone.cut)
            if lanes.leftovers:
                lanes.await_leftovers(deadline)
                lanes.leftovers.take_into(late, count)
            found = FetchResult(late, None)
            if not late:
                found = fetch(consumer, lanes, order, turn.lone, deadline)
            self._leave(turn, len(found._messages))
            if not found._messages:
                self._raise_end()
                raise errors.TimeoutError(
                    f"no message of {self._ownership.name!r} within "
                    f"{seconds(timeout):g} s"
                )
            return found
        except BaseException:
            lanes.leftovers.put_back(late if found is None else found._messages)
            self._leave(turn, 0)
            raise

    def next(
        self,
        timeout: Seconds = 5.0,
        *,
        idle_heartbeat: Seconds | None = None,
        **pull: Unpack[PullOptions],
    ) -> Msg:
        """The next message; TimeoutError when none came in time."""
        found = self.fetch(1, timeout, idle_heartbeat=idle_heartbeat, **pull)
        return found._messages[0]

    def _reserve(self, turn: _Turn, wanted: int, deadline: float) -> int:
        """How many of the wanted messages are within the limit of the subscription."""
        with self._lock:
            while True:
                self._raise_end()
                room = wanted
                if self._limit is not None:
                    others = sum(other.wanted for other in self._running)
                    room = min(room, self._limit - self._delivered - others)
                if room > 0:
                    turn.wanted = room
                    self._running.add(turn)
                    return room
                # Other fetches have asked for all the rest.
                if not self._changed.wait(deadline - monotonic()):
                    raise errors.TimeoutError("no message was left by other fetches")

    def _leave(self, turn: _Turn, came: int) -> None:
        """A fetch is over with so many messages; the last word counts."""
        with self._lock:
            self._running.discard(turn)
            # No call stands between, in which a signal handler could raise.
            self._delivered += came - turn.came
            turn.came = came
            self._changed.notify_all()

    def _raise_end(self) -> None:
        self._loop.check_open()
        if not self.is_active:
            raise errors.SubscriptionClosedError(f"{self!r} has ended")

    # Ending ---------------------------------------------------------------------------

    def unsubscribe(
        self, limit: int | None = None, *, timeout: Seconds | None = None
    ) -> None:
        """Ends the subscription at once, or after `limit` messages in all.

        At once also means for fetches under way. Then the consumer is deleted, if the
        subscription made it; raises what the server says to that. A limit deletes
        nothing: the last messages want to be acknowledged first.
        """
        self._loop.check_open()
        if limit is not None:
            integer(limit, "limit", least=1)
            with self._lock:
                self._limit = limit
                self._changed.notify_all()
            return
        self._end()
        self._ownership.release(timeout)

    def drain(self, timeout: Seconds | None = 5.0) -> None:
        """Ends the subscription; fetches under way return what the server has sent.

        Then the consumer is deleted, if the subscription made it; if that fails,
        `on_event` is told.
        """
        limit = seconds(timeout)
        deadline = monotonic() + limit
        self._loop.check_open()
        self._end()
        with self._lock:
            in_time = self._changed.wait_for(
                lambda: not self._running, min(limit, threading.TIMEOUT_MAX)
            )
        self._ownership.release_quietly(max(0.0, deadline - monotonic()))
        if not in_time:
            raise errors.DrainTimeoutError("a fetch did not end in time")

    def _end(self) -> None:
        with self._lock:
            self._is_ended = True
            self._changed.notify_all()
            running = [turn.lone for turn in self._running]
        for lone in running:
            if lone is not None:
                self._loop.call(lone.cut)

    def __enter__(self) -> PullSubscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._loop.is_closing or (self._is_ended and not self._ownership.is_ours):
            return
        try:
            self.unsubscribe()
        except (ConsumerNotFoundError, StreamNotFoundError):
            return  # somebody was faster

    # Facts ----------------------------------------------------------------------------

    def consumer_info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """What the server says of the consumer now."""
        return self._consumer.info(timeout=timeout)

    @property
    def stream_name(self) -> str:
        """The stream that it reads."""
        return self._ownership.stream

    @property
    def consumer_name(self) -> str:
        """The consumer that it reads."""
        return self._ownership.name

    @property
    def owns_consumer(self) -> bool:
        """Whether the consumer is deleted when the subscription ends."""
        return self._ownership.is_ours

    @property
    def delivered(self) -> int:
        """Messages that were fetched."""
        return self._delivered

    @property
    def is_active(self) -> bool:
        """Whether more messages can be fetched."""
        is_full = self._limit is not None and self._delivered >= self._limit
        return not self._is_ended and not is_full

    def __repr__(self) -> str:
        names = f"{self._ownership.name!r} of {self._ownership.stream!r}"
        return f"<PullSubscription of consumer {names}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PullSubscription cannot be pickled: subscribe in the process that reads"
        )
