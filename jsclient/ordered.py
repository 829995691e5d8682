"""Ordered consumers: every message of a stream, in order, without gaps or repeats.

They are read by pulls; how one consumer follows another stands in `succession`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from . import errors
from ._api import Api
from ._core import Msg, OrderedInbox
from ._engine.arguments import Seconds, check_callback, integer, seconds
from ._engine.pull_terms import Policy
from ._io.pulling import Pulling
from .config import consumer_config
from .consumer import Consumer
from .consuming import ConsumeHandle, new_courier
from .fetching import FetchResult
from .pull_options import OrderedOptions, consume_policy
from .succession import OrderedMessages, Succession

if TYPE_CHECKING:
    from typing_extensions import Unpack

HEARTBEAT = 5.0

# What makes it ordered is not for the user to say.
OWN_FIELDS = (
    *("name", "durable_name", "ack_policy", "deliver_subject", "deliver_group"),
    *("mem_storage", "num_replicas", "priority_groups", "priority_policy"),
)


class PullReading(NamedTuple):
    """How a consumer of a succession is read by pulls."""

    consumer: Consumer
    inbox: OrderedInbox
    pulling: Pulling

    @property
    def name(self) -> str:
        """The consumer."""
        return self.consumer.name

    def start(self) -> None:
        """Messages come from now on."""
        self.pulling.start()

    def stop(self) -> None:
        """None come any more."""
        self.pulling.stop()

    def abandon(self) -> None:
        """The same, without waiting. For finalizers."""
        self.pulling.abandon()


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
        for field in OWN_FIELDS:
            if field in fields:
                raise TypeError(
                    f"{field} cannot be chosen: an ordered consumer has its own"
                )
        config = consumer_config(
            None,
            ack_policy="none",
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=inactive_threshold,
            **fields,
        )
        self._source = Succession(
            api,
            stream,
            config,
            courier=new_courier(api.loop, "none", None),
            prefix=name_prefix,
            max_resets=max_resets,
        )
        self._source.config.validate()
        api.refuse_too_new(config.needs())

    @property
    def stream_name(self) -> str:
        """The stream that it reads."""
        return self._source.stream

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message that was handed out; 0 before."""
        return self._source.last_seq

    # Reading --------------------------------------------------------------------------

    def messages(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: Seconds | None = None,
        idle_heartbeat: Seconds | None = None,
        stop_after: int | None = None,
    ) -> OrderedMessages:
        """An endless iteration in order; options are those of `Consumer.messages`.

        The heartbeat is 5 seconds by default, or half of `expires` if that is less.
        """
        policy = consume_policy(
            self._source.config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=None,
            threshold_bytes=None,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            on_missing="raise",
            default_heartbeat=HEARTBEAT,
            doing=f"read stream {self.stream_name!r} in order",
        )
        messages = OrderedMessages(
            self._source,
            partial(self._read, policy._replace(is_fragile=True)),
            stop_after=policy.stop_after,
            doing=policy.doing,
        )
        self._source.api.loop.readers.add(messages)
        return messages

    def _read(self, policy: Policy, stop_after: int, timeout: float) -> PullReading:
        """Reads a new consumer by pulls."""
        source = self._source
        info = source.begin(timeout)
        try:
            consumer = Consumer(source.api, info)
            inbox = OrderedInbox(source.courier, source.last_seq)
            policy = policy._replace(
                stop_after=stop_after,
                # The server may have a limit for all consumers.
                batch_limit=info.config.max_batch or 0,
            )
            pulling = consumer._pulling(policy, {}, inbox=inbox)
            return PullReading(consumer, inbox, pulling)
        except BaseException:
            source.discard(info.name)
            raise

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
                    except errors.TimeoutError as late:
                        error = _trouble(late)
                        if error is not None and not found:
                            raise
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
            self._source.inbox.last_seq = before
            raise

    def consume(
        self, callback: Callable[[Msg], object], **options: Unpack[OrderedOptions]
    ) -> ConsumeHandle:
        """Calls back with each message, in order, on a thread of its own."""
        check_callback(callback)
        return ConsumeHandle(
            self._source.api.loop,
            self.messages(**options),
            callback,
            workers=1,
            names=(self._source.stream, self._source.prefix),
            progress_interval=None,
        )

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self.stream_name!r} after {self.last_seq}>"


def _trouble(late: errors.TimeoutError) -> errors.Error | None:
    """What went wrong meanwhile, if the time was not merely too short."""
    cause = late.__cause__
    if isinstance(cause, errors.Error) and not isinstance(cause, errors.TimeoutError):
        return cause
    return None
