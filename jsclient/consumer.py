"""Consumers: handles to what reads a stream on the server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Literal, NoReturn

from . import _consumer_verbs as verbs
from ._api import Api
from ._core import Batch, BatchInbox, Courier, LonePull, Msg, PullInbox
from ._engine.arguments import Seconds, check_callback, count, integer, seconds
from ._engine.pull import Policy
from ._io.lone_pull import Order, conclude, go_on, leave_later
from ._io.pulling import Lanes, Pulling
from .consuming import Batches, ConsumeHandle, Messages, new_courier
from .errors import Error, TimeoutError
from .events import ConsumerWarning
from .fetching import FetchResult, fetch, fetch_after, fetch_batch, fetch_error
from .info import ConsumerInfo, PauseInfo
from .jetstream_errors import (
    ApiError,
    ConsumerNotFoundError,
    PullError,
    PushConsumerError,
    StreamNotFoundError,
)
from .pull_options import (
    MANY,
    ConsumeOptions,
    PullOptions,
    consume_policy,
    fetch_policy,
    pull_fields,
    refuse_for_push,
)
from .push import PushFeed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .config_fields import ConsumerSettings

DEFAULT_ROWS = 5000  # of a batch
# A call of a fetch, and its order.
_Fetch = tuple[ConsumerInfo, int, Seconds, bool, bool, Order]


class Consumer:
    """A consumer of a stream, made by `Stream.consumer` or `create_consumer`."""

    def __init__(self, api: Api, info: ConsumerInfo) -> None:
        self._api = api
        self._info = info
        self._lanes: Lanes | None = None  # made by the first pull
        self._all_lanes: list[Lanes] = []
        # What a fetch was asked for, and what came of it; the same of `next`.
        self._last_fetch: _Fetch | None = None
        self._last_next: tuple[ConsumerInfo, Seconds, Order] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The stream that it reads."""
        return self._info.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """What the server said of it last; `info` asks again."""
        return self._info

    def info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """What the server says of it now."""
        self._info = verbs.fetch_info(
            self._api, self.stream_name, self.name, timeout=timeout
        )
        return self._info

    def update(
        self,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerSettings],
    ) -> Consumer:
        """Changes fields of its configuration; all others stay as they are.

        None takes a field back to the server's default.
        """
        self._info = verbs.update(
            self._api,
            self.stream_name,
            self.name,
            None,
            fields,
            pedantic=pedantic,
            timeout=timeout,
        )
        return self

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """Deletes it."""
        verbs.delete(self._api, self.stream_name, self.name, timeout=timeout)

    def pause(
        self, until: datetime | str, *, timeout: Seconds | None = None
    ) -> PauseInfo:
        """Stops deliveries until that time."""
        return verbs.pause(
            self._api, self.stream_name, self.name, until, timeout=timeout
        )

    def resume(self, *, timeout: Seconds | None = None) -> PauseInfo:
        """Ends a pause."""
        return verbs.pause(
            self._api, self.stream_name, self.name, None, timeout=timeout
        )

    def reset(
        self, seq: int | None = None, *, timeout: Seconds | None = None
    ) -> ConsumerInfo:
        """Goes back to what is not acknowledged yet, or to a sequence of the stream."""
        self._info = verbs.reset(
            self._api, self.stream_name, self.name, seq, timeout=timeout
        )
        return self._info

    def unpin(self, group: str, *, timeout: Seconds | None = None) -> None:
        """Takes the pin of a priority group from the client that has it."""
        verbs.unpin(self._api, self.stream_name, self.name, group, timeout=timeout)

    # Messages -------------------------------------------------------------------------

    def next(
        self,
        timeout: Seconds = 5.0,
        *,
        idle_heartbeat: Seconds | None = None,
        **pull: Unpack[PullOptions],
    ) -> Msg:
        """The next message; TimeoutError when none came in time.

        A `timeout` of 0 asks for what is there, and waits less than a tenth of a second
        for the answer; one that takes longer is for the next call.
        With `idle_heartbeat` the server tells that often that it still waits, at least
        every half of `timeout`; by default every 5 seconds if that is 10 or more. When
        it does not, MissedHeartbeatError is raised.

        Options of a pull, here and below: `group`, `priority`, `min_pending` and
        `min_ack_pending` for consumers with priority groups.
        """
        info, last = self._info, self._last_next
        if (
            last is not None
            # Not merely equal: True is equal to 1, and no time.
            and timeout is last[1]
            and info is last[0]
            and idle_heartbeat is None
            and not pull
        ):
            order = last[2]
        else:
            order = self._order(1, None, timeout, False, idle_heartbeat, pull)
            if idle_heartbeat is None and not pull:
                self._last_next = (info, timeout, order)
        lanes = self._lanes or self._new_lanes()
        lone = LonePull(lanes.pool, order.draft)
        try:
            # Nearly always that is all.
            msg = lone.run_for_one(lanes.loop.helm, order.wait)
            if msg is not None:
                return msg
            finish_at = lone.asked_at + order.wait
            is_late = lone.lane is None and bool(lanes.leftovers)
            if not is_late:
                go_on(lanes, order, lone, self._converse, finish_at)
                msg = conclude(lanes, lone, lone.take_one)
                if msg is not None:
                    return msg
        except BaseException:
            # Here, for a further exception may come as soon as a function begins.
            lone.give_up()
            leave_later(lanes)
            raise
        if is_late:
            found = fetch_after(lanes, order, finish_at, self._run)
            if found._messages:
                return found._messages[0]
        else:
            fetch_error(self, lone, 0)
        raise TimeoutError(
            f"no message of consumer {self.name!r} within {seconds(timeout):g} s"
        )

    def fetch(
        self,
        max_messages: int,
        *,
        timeout: Seconds = 5.0,
        max_bytes: int | None = None,
        idle_heartbeat: Seconds | None = None,
        **pull: Unpack[PullOptions],
    ) -> FetchResult:
        """Up to that many messages, waiting at most `timeout` for all of them.

        Returns what came; its `error` says why it ended early. Raises only when nothing
        came and something went wrong. A `timeout` of 0 is that of `next`.
        """
        return self._fetch(
            max_messages, max_bytes, timeout, False, idle_heartbeat, pull
        )

    def fetch_bytes(
        self,
        max_bytes: int,
        *,
        timeout: Seconds = 5.0,
        idle_heartbeat: Seconds | None = None,
        **pull: Unpack[PullOptions],
    ) -> FetchResult:
        """Messages of up to that many bytes, counted as the server does."""
        count(max_bytes, "max_bytes")
        return self._fetch(MANY, max_bytes, timeout, False, idle_heartbeat, pull)

    def fetch_no_wait(
        self,
        max_messages: int,
        *,
        timeout: Seconds = 5.0,
        **pull: Unpack[PullOptions],
    ) -> FetchResult:
        """Up to that many messages of those that are there now.

        A message that was just stored may not be among them: a server tells its
        consumers of it a moment after it has sent the ack. `timeout` is only for a
        server that does not answer, or is far away.
        """
        return self._fetch(max_messages, None, timeout, True, None, pull)

    def _fetch(
        self,
        max_messages: int,
        max_bytes: int | None,
        timeout: Seconds,
        no_wait: bool,
        idle_heartbeat: Seconds | None,
        pull: PullOptions,
    ) -> FetchResult:
        order = self._order(
            max_messages, max_bytes, timeout, no_wait, idle_heartbeat, pull
        )
        lanes = self._own_lanes()
        finish_at = monotonic() + order.wait
        if lanes.leftovers:
            return fetch_after(lanes, order, finish_at, self._run)
        return self._run(order, finish_at)

    def _run(self, order: Order, finish_at: float) -> FetchResult:
        lanes = self._own_lanes()
        lone = LonePull(lanes.pool, order.draft)
        return fetch(self, lanes, order, lone, finish_at)

    def _converse(self, order: Order, inbox: PullInbox) -> Pulling:
        """The conversation of a fetch that is not over with its first pull."""
        return self._pulling(order.policy, order.fields, inbox=inbox)

    def _order(
        self,
        max_messages: int,
        max_bytes: int | None,
        timeout: Seconds,
        no_wait: bool,
        idle_heartbeat: Seconds | None,
        pull: PullOptions,
        *,
        no_wait_first: bool = False,
    ) -> Order:
        """What a fetch asks for; the last one again if the very same is asked for."""
        is_plain = max_bytes is idle_heartbeat is None and not pull
        if is_plain and (last := self._last_fetch) is not None:
            info, most, time, does_not_wait, does_not_wait_first, order = last
            if (
                # Not merely equal: True is equal to 1, and no number of messages.
                timeout is time
                and max_messages is most
                and info is self._info
                and no_wait is does_not_wait
                and no_wait_first is does_not_wait_first
            ):
                return order
        info = self._info
        doing = self._doing("fetch from")
        config = info.config
        self._check_is_pull(doing)
        limit = seconds(timeout)
        policy = fetch_policy(
            config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            timeout=limit,
            no_wait=no_wait or limit == 0,
            idle_heartbeat=idle_heartbeat,
            doing=doing,
        )
        policy = policy._replace(no_wait_first=no_wait_first and limit > 0)
        fields = pull_fields(config, pull)
        order = Order(self._pull_subject, policy, fields, self._courier())
        if is_plain:
            kind = (no_wait, no_wait_first)
            self._last_fetch = (info, max_messages, timeout, *kind, order)
        return order

    def messages(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        expires: Seconds | None = None,
        idle_heartbeat: Seconds | None = None,
        stop_after: int | None = None,
        on_missing: Literal["raise", "wait"] = "raise",
        **pull: Unpack[PullOptions],
    ) -> Messages:
        """An endless iteration that keeps messages at hand and asks for more in time.

        A push consumer delivers by itself: of the options it has only `stop_after`.
        DuplicateSubscriptionError if somebody else is subscribed to it.

        Args:
            max_messages: how many may be at hand and on their way; 500 by default.
            max_bytes: how many bytes, instead.
            threshold_messages, threshold_bytes: how little may be at hand before more
                is asked for; half by default.
            expires, idle_heartbeat: how long one pull lives at the server, and how
                often the server says that it does; 30 seconds and half of `expires` by
                default, less if the consumer allows no more. For a consumer without
                acks it is 4 seconds, because `drain` waits for the end of pulls. By
                default a pinned client asks again within half of the consumer's
                `priority_timeout`: one whose pulls live longer may lose its pin.
            stop_after: end after so many messages.
            on_missing: what to do when the consumer is gone for certain: raise, or wait
                until there is one again.
        """
        if self._info.config.deliver_subject:
            refuse_for_push(
                pull,
                max_messages=(max_messages, None),
                max_bytes=(max_bytes, None),
                threshold_messages=(threshold_messages, None),
                threshold_bytes=(threshold_bytes, None),
                expires=(expires, None),
                idle_heartbeat=(idle_heartbeat, None),
                on_missing=(on_missing, "raise"),
            )
            self._info = verbs.fetch_settled_info(
                self._api, self.stream_name, self.name
            )
            feed = PushFeed(self._api, self._info, stop_after)
            return Messages(self._api.loop, feed, self)
        policy = consume_policy(
            self._info.config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            on_missing=on_missing,
            awaits_ends=self._is_ack_none,
            doing=self._doing("read"),
        )
        fields = pull_fields(self._info.config, pull)
        inbox = PullInbox(self._courier())
        late: list[Msg] = []
        try:
            self._take_leftovers(late, policy)
            for msg in late:
                inbox.add(msg)
            pulling = self._pulling(policy, fields, inbox=inbox)
            return Messages(self._api.loop, pulling, self)
        except BaseException:
            self._own_lanes().leftovers.put_back(late)
            raise

    def consume(
        self,
        callback: Callable[[Msg], object],
        *,
        workers: int = 1,
        auto_in_progress: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> ConsumeHandle:
        """Calls back with each message, on `workers` threads of its own.

        An exception of the callback is reported to `on_event` and the log; the message
        stays unacknowledged. With `auto_in_progress` the server is told in time that a
        callback still works. Other options are those of `messages`.
        """
        check_callback(callback)
        integer(workers, "workers", least=1)
        messages = self.messages(**options)
        if self._info.config.deliver_subject:
            messages.tell_errors()
        interval = None
        if auto_in_progress:
            interval = seconds(self._info.config.ack_wait or 30.0) / 2
        return ConsumeHandle(
            self._api.loop,
            messages,
            callback,
            workers=workers,
            names=(self.stream_name, self.name),
            progress_interval=interval,
        )

    def fetch_batch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        timeout: Seconds = 5.0,
        idle_heartbeat: Seconds | None = None,
        **pull: Unpack[PullOptions],
    ) -> Batch:
        """Like `fetch`, in columns: no object per message, empty if nothing came.

        `max_messages` is 5000 by default, less if the consumer allows no more. What
        came too late for the fetch before is returned at once, as it is.
        """
        if max_messages is None:
            most = self._info.config.max_batch or 0
            max_messages = min(DEFAULT_ROWS, most) if most > 0 else DEFAULT_ROWS
        order = self._order(
            max_messages, max_bytes, timeout, False, idle_heartbeat, pull
        )
        finish_at = monotonic() + order.wait
        lanes = self._own_lanes()
        inbox = BatchInbox(order.draft.courier)
        if lanes.leftovers:
            lanes.await_leftovers(finish_at)
            late = lanes.leftovers.take_batch(inbox, max_messages, max_bytes or 0)
            if late is not None:
                return late
        return fetch_batch(self, lanes, order, inbox, finish_at)

    def batches(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        expires: Seconds | None = None,
        idle_heartbeat: Seconds | None = None,
        stop_after: int | None = None,
        on_missing: Literal["raise", "wait"] = "raise",
        **pull: Unpack[PullOptions],
    ) -> Batches:
        """Like `messages`, in columns: each batch has what came since the last one."""
        policy = consume_policy(
            self._info.config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            on_missing=on_missing,
            default_messages=DEFAULT_ROWS,
            awaits_ends=self._is_ack_none,
            doing=self._doing("read"),
        )
        fields = pull_fields(self._info.config, pull)
        inbox = BatchInbox(self._courier())
        late: list[Msg] = []
        try:
            self._take_leftovers(late, policy)
            for msg in late:
                inbox.add(msg)
            pulling = self._pulling(policy, fields, inbox=inbox)
            return Batches(self._api.loop, pulling, inbox, self)
        except BaseException:
            self._own_lanes().leftovers.put_back(late)
            raise

    def _take_leftovers(self, late: list[Msg], policy: Policy) -> None:
        """What fetches have left behind, up to what is wanted in all."""
        lanes = self._own_lanes()
        if lanes.leftovers:
            lanes.await_leftovers(monotonic() + self._api.timeout)
            lanes.leftovers.take_into(late, policy.stop_after or MANY)

    @property
    def _is_ack_none(self) -> bool:
        """Whether the server never delivers a message again."""
        return self._info.config.ack_policy == "none"

    def _courier(self) -> Courier:
        """Who sends the acks of its messages."""
        api = self._api
        return new_courier(api.loop, self._info.config.ack_policy, api.ack_prefix)

    def _pulling(
        self,
        policy: Policy,
        fields: dict[str, int | str],
        *,
        inbox: PullInbox | None = None,
    ) -> Pulling:
        self._check_is_pull(policy.doing)
        loop = self._api.loop
        stream, name = self.stream_name, self.name

        def warn(error: PullError) -> None:
            loop.tell(ConsumerWarning(stream, name, error))

        def look_up(pulling: Pulling) -> None:
            """In a thread of its own: the loop does not wait."""
            if not policy.is_patient:
                Thread(
                    target=self._see_if_missing,
                    args=(pulling,),
                    name="jsclient-look-up",
                    daemon=True,
                ).start()

        return Pulling(
            loop,
            self._own_lanes(),
            subject=self._pull_subject,
            policy=policy,
            courier=self._courier(),
            fields=fields,
            is_pinned=self._info.config.priority_policy == "pinned_client",
            on_warning=warn,
            look_up=look_up,
            inbox=inbox,
        )

    @property
    def _pull_subject(self) -> str:
        return f"{self._api.prefix}CONSUMER.MSG.NEXT.{self.stream_name}.{self.name}"

    def _own_lanes(self) -> Lanes:
        return self._lanes or self._new_lanes()

    def _new_lanes(self) -> Lanes:
        """The lanes of all its pulls; the first of several threads makes them."""
        fresh = Lanes(self._api.loop, self._pull_subject)
        self._all_lanes.append(fresh)
        self._lanes = self._all_lanes[0]
        if self._lanes is not fresh:
            fresh.orphan()
        return self._lanes

    def _doing(self, verb: str) -> str:
        return f"{verb} consumer {self.name!r} of stream {self.stream_name!r}"

    def _check_is_pull(self, doing: str) -> None:
        if self._info.config.deliver_subject:
            raise PushConsumerError(
                code=0,
                description=f"{self.name!r} is a push consumer, which delivers by "
                "itself: use messages() or consume()",
                doing=doing,
            )

    def _see_if_missing(self, pulling: Pulling) -> None:
        """Ends the consume of a consumer that does not exist any more."""
        error = self._find_missing()
        if error is not None:
            pulling.missing(error)

    def _find_missing(self, timeout: float | None = None) -> ApiError | None:
        """What the server says if it does not exist any more."""
        try:
            verbs.fetch_info(self._api, self.stream_name, self.name, timeout=timeout)
        except (ConsumerNotFoundError, StreamNotFoundError) as error:
            return error
        except Error:
            pass  # time-outs and the like say nothing about the consumer
        return None

    def __del__(self) -> None:
        lanes = getattr(self, "_lanes", None)
        if lanes is not None and not self._api.loop.is_closing:
            lanes.orphan()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self.stream_name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Consumer cannot be pickled: pickle its names, and ask a JetStream of "
            "the other process for it"
        )
