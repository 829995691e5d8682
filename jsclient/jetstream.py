"""JetStream: streams, consumers and publishing, from one context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NoReturn, overload

from . import _consumer_verbs as consumers_api
from . import _stream_verbs as streams_api
from . import publisher, subscribing
from ._api import Api, Listing, api_prefix, literal_prefix
from ._core import AsyncPublishing, PubAck, check_literal
from ._engine.arguments import (
    Buffer,
    HeadersLike,
    Seconds,
    flag,
    integer,
    positive_seconds,
    seconds,
)
from ._engine.publish_headers import PublishOptions, can_be_repeated
from .ack_future import AckFuture
from .async_publisher import AsyncPublisher
from .batch import AtomicBatch, FastBatch
from .config import ConsumerConfig, StreamConfig
from .consumer import Consumer
from .errors import Error, InvalidArgumentError
from .info import AccountInfo, ConsumerInfo, PauseInfo
from .ordered_push import OrderedPushSubscription
from .publish_all import publish_all
from .pull_subscription import PullSubscription
from .push import PushSubscription
from .repeating import Repeats
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .columns import ColumnsLike
    from .config_fields import ConsumerFields, ConsumerSettings, StreamFields
    from .connection import Connection
    from .publish_all import Publishable
    from .publish_columns import Published
    from .subscribe_options import PushOptions, SubscribeOptions

# How often and how soon a message is sent again that no stream answers.
RETRIES = 2
RETRY_WAIT = 0.25


class JetStream(AsyncPublishing):
    """What JetStream offers to one account, perhaps of another domain.

    Made by `Connection.jetstream`. Making one asks the server nothing.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: Seconds = 5.0,
        max_pending: int = 4000,
        ack_timeout: Seconds = 5.0,
        ack_prefix: str | None = None,
    ) -> None:
        self._connection = connection  # lives as long as its contexts are held
        self._loop = connection._loop
        self._timeout = positive_seconds(timeout, "timeout")
        if ack_prefix is not None:
            ack_prefix = literal_prefix(ack_prefix, "ack_prefix")
        self._api = Api(
            self._loop, api_prefix(domain, prefix), self._timeout, ack_prefix
        )
        self._max_pending = integer(max_pending, "max_pending", least=1)
        self._ack_timeout = positive_seconds(ack_timeout, "ack_timeout")
        self._literal: str | None = None  # the last subject that was published to
        self._async: AsyncPublisher | None = None
        self._publishers: list[AsyncPublisher] = []

    def account_info(self, *, timeout: Seconds | None = None) -> AccountInfo:
        """Usage and limits of the account; JetStreamNotEnabledError without them."""
        answer = self._api.call(
            "INFO", doing="look up the account", timeout=timeout, is_safe=True
        )
        return AccountInfo.from_api(answer)

    # Publishing -----------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        data: Buffer = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Seconds | None = None,
        retries: int = RETRIES,
        retry_wait: Seconds = RETRY_WAIT,
        **options: Unpack[PublishOptions],
    ) -> PubAck:
        """Publishes a message and returns where the stream stored it.

        Args:
            msg_id: a message with an id that the stream saw lately is not stored again.
            expected_stream, expected_last_seq, expected_last_msg_id: store it only if
                the stream is this one, and its last message that one.
            expected_last_subject_seq: store it only if the last message of the subject
                (or of `expected_last_subject`) has this sequence; 0: if there is none.
            ttl: seconds after which the stream forgets it, or "never".
            rollup: "sub" or "all": it replaces older messages of the subject, or all.
            increment: what is added to a counter.
            schedule, schedule_target, schedule_source, schedule_ttl,
                schedule_time_zone, schedule_rollup: when the stream is to publish it,
                where and how.
            cancel_schedule: the subject of a schedule that ends when this is stored.
            retries, retry_wait: how often and how soon to try again while no stream
                answers.

        Raises:
            NoStreamResponseError: no stream stores the subject.
            UnsupportedByServerError: the server does not know one of the options.
            ApiError: the stream refused the message; a subclass says why.
            TimeoutError: it was not sent in time, and will not be, or the time was over
                before the last of the `retries`.
            PublishOutcomeUnknownError: it was sent and no ack came; it is also a
                TimeoutError, or a ConnectionError after a lost link. Only a message
                with a `msg_id` and without conditions is sent again by itself after a
                lost link, in the first half of the stream's `duplicate_window`.
        """
        if subject is not self._literal:
            self._check_literal(subject)
        limit = self._timeout if timeout is None else seconds(timeout)
        if retries is not RETRIES:
            integer(retries, "retries", least=-1)
        wait = RETRY_WAIT
        if retry_wait is not wait:
            wait = seconds(retry_wait, "retry_wait")
        if not options:
            return publisher.publish(
                self._loop, subject, data, headers, limit, retries, wait
            )
        return publisher.publish(
            self._loop,
            subject,
            data,
            publisher.optioned(self._api, headers, options),
            limit,
            retries,
            wait,
            msg_id=options.get("msg_id"),
            repeats=(
                Repeats(self._api, options.get("expected_stream"))
                if can_be_repeated(options)
                else None
            ),
        )

    def _publish_async(
        self,
        subject: str,
        data: Buffer,
        headers: HeadersLike | None,
        timeout: Seconds | None,
        options: PublishOptions,
    ) -> AckFuture:
        """A `publish_async` that could not be done at once."""
        self._check_literal(subject)
        made = self._async or self._publisher()
        if options:
            headers = publisher.optioned(self._api, headers, options)
        limit = self._timeout if timeout is None else seconds(timeout)
        return made.publish(
            subject, data, headers, msg_id=options.get("msg_id"), timeout=limit
        )

    def _check_literal(self, subject: str) -> None:
        """Raises for a wildcard; the same subject again is not looked at."""
        check_literal(subject)
        self._literal = subject

    def _publisher(self) -> AsyncPublisher:
        """The publisher of all futures; the first of several threads makes it."""
        fresh = AsyncPublisher(
            self._loop,
            max_pending=self._max_pending,
            ack_timeout=self._ack_timeout,
            retries=RETRIES,
            retry_wait=RETRY_WAIT,
        )
        self._publishers.append(fresh)
        self._async = self._publishers[0]
        self._pledges = self._async.pledges
        if self._async is not fresh:
            fresh.retire()
        return self._async

    def __del__(self) -> None:
        for one in getattr(self, "_publishers", ()):
            one.retire()

    def publish_all(
        self,
        messages: Iterable[Publishable],
        *,
        window: int = 1000,
        timeout: Seconds | None = None,
        on_error: Literal["raise", "return"] = "raise",
    ) -> Iterator[PubAck | Error]:
        """Publishes (subject, data) or (subject, data, headers) tuples as a pipeline.

        Yields the PubAcks in order; nothing is published until it is iterated. At most
        `window` messages are on their way, each with its `timeout`. The first error is
        raised, and messages after it may or may not be stored; with `on_error="return"`
        errors are yielded in the places of their acks. Unlike `publish` it sends
        nothing twice, also not what no stream answers: that would come after its
        successors.
        """
        if on_error not in ("raise", "return"):
            raise InvalidArgumentError(
                f"on_error must be 'raise' or 'return': {on_error!r}"
            )
        if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
            raise TypeError(
                "messages must be an iterable of (subject, data) tuples, not "
                f"{type(messages).__name__}"
            )
        return publish_all(
            self._loop,
            messages,
            window=integer(window, "window", least=1),
            timeout=self._timeout if timeout is None else seconds(timeout),
            on_error=on_error,
        )

    def publish_columns(
        self,
        columns: ColumnsLike | Iterable[ColumnsLike],
        *,
        subject: str | None = None,
        content_ids: str | None = None,
        expected_stream: str | None = None,
        window: int = 1000,
        timeout: Seconds | None = 30.0,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
        on_error: Literal["raise", "skip"] = "raise",
        known_ids: AbstractSet[bytes] | None = None,
    ) -> Published:
        """Publishes the rows of Arrow tables without an object for each.

        Returns when every row has its outcome. `jsclient.columns` says which columns
        there may be, and how to do without Arrow. Rows are sent in their order.

        Args:
            columns: a `pyarrow.RecordBatch` or `Table`, `Rows`, or an iterable of them.
            subject: for all rows, in place of a column.
            content_ids: a text that begins the ids that are made of each row's subject,
                headers and payload (the n-th row with the same content gets an n).
                Publishing the same rows again with the same text, in whatever order,
                stores nothing twice within the stream's duplicate window.
            expected_stream: rows that another stream would store are refused.
            window: how many rows may wait for their acks; over a line on which acks
                take 10 ms or more, raise it.
            timeout: how long there may be no progress.
            retries, retry_wait: how often and how soon a row is published again that no
                stream answers.
            on_error: "skip" counts the rows that are refused and goes on.
            known_ids: rows with these ids are not published; they count as duplicates.

        Raises:
            PublishColumnsError: a row is not stored, or nobody can know; it tells which
                and how many others are. Rows with ids are published again by themselves
                after a lost link or a silence of 5 s, in the first half of the stream's
                `duplicate_window`.
        """
        from .columns import Identities, all_rows
        from .publish_columns import publish_columns

        if on_error not in ("raise", "skip"):
            raise InvalidArgumentError(
                f"on_error must be 'raise' or 'skip': {on_error!r}"
            )
        if subject is not None:
            check_literal(subject)
        identities = None if content_ids is None else Identities.of(content_ids)
        return publish_columns(
            self._loop,
            Repeats(self._api, expected_stream),
            all_rows(
                columns,
                subject=subject,
                expected_stream=expected_stream,
                identities=identities,
            ),
            window=integer(window, "window", least=1),
            timeout=seconds(timeout),
            retries=integer(retries, "retries", least=0),
            retry_wait=seconds(retry_wait, "retry_wait"),
            on_error=on_error,
            known_ids=known_ids,
        )

    def flush_publishes(self, timeout: Seconds | None = 30.0) -> None:
        """Waits until every `publish_async` so far has its outcome."""
        if self._async is not None:
            self._async.flush(seconds(timeout))

    @property
    def pending_publishes(self) -> int:
        """How many `publish_async` have no outcome yet."""
        return 0 if self._async is None else self._async.pending

    def atomic_batch(self, *, timeout: Seconds | None = None) -> AtomicBatch:
        """A batch of messages that are stored all together or not at all.

        The stream must have `allow_atomic` (nats-server 2.12).
        """
        limit = self._timeout if timeout is None else seconds(timeout)
        return AtomicBatch(self._api, limit)

    def fast_batch(
        self,
        *,
        flow: int = 100,
        max_outstanding: int = 2,
        on_gap: Literal["fail", "ok"] = "fail",
        timeout: Seconds | None = None,
    ) -> FastBatch:
        """A stream of messages that the server acknowledges many at a time.

        The stream must have `allow_batched` (nats-server 2.14). `flow` is the largest
        number of messages between two acks, `max_outstanding` how many acks may be
        missing. With `on_gap="fail"` a lost message ends the batch.
        """
        limit = self._timeout if timeout is None else seconds(timeout)
        return FastBatch(
            self._api,
            limit,
            flow=integer(flow, "flow", least=1),
            max_outstanding=integer(max_outstanding, "max_outstanding", least=1),
            on_gap=on_gap,
        )

    # Subscriptions --------------------------------------------------------------------

    @overload
    def subscribe(
        self,
        subject: str | None = None,
        *,
        ordered: Literal[False] = False,
        **options: Unpack[PushOptions],
    ) -> PushSubscription: ...

    @overload
    def subscribe(
        self,
        subject: str | None = None,
        *,
        ordered: Literal[True],
        **options: Unpack[PushOptions],
    ) -> OrderedPushSubscription: ...

    def subscribe(
        self,
        subject: str | None = None,
        *,
        ordered: bool = False,
        **options: Unpack[PushOptions],
    ) -> PushSubscription | OrderedPushSubscription:
        """Messages of a subject, sent to you by a push consumer; docs/subscribe.md.

        Pull consumers (`Stream.create_consumer`, `Consumer.messages`) are the first
        choice for new code: they are faster and never sent more than they can take.

        Args:
            subject: what to read; the stream is found by it unless `stream` is given.
            ordered: every message once and in order; the consumers are made anew
                whenever anything goes wrong (at most `max_resets` times).
            consumer: a consumer that must be there, and is used as it is.
            durable: a consumer that is used if it is there, else made.
            queue: subscriptions with the same queue share the messages; without a
                durable or a consumer it is also the name of the durable.
            config, or fields of one as `ack_wait`: how the consumer is configured; one
                that is there must be so already.
            callback: called with each message on a thread of its own; without it you
                read the subscription yourself.
            deliver_subject: where the consumer delivers; an inbox by default.
            flow_control: the server sends no more than you have room for.
            idle_heartbeat: seconds after which the server says that it is there.
            heartbeat_alarm: after how many silent intervals `on_event` is told.
            max_pending_messages, max_pending_bytes: what may wait to be read; messages
                beyond that are dropped, and delivered again if the consumer wants acks.
            raw_status: heartbeats and other statuses are messages for you to handle.
            delete_on_close: whether a consumer that this call has made is deleted at
                the end of the subscription; by default it is, but not that of a queue.

        Raises:
            NoMatchingStreamError: no stream, or more than one, has the subject.
            SubscriptionMismatchError: the consumer is not as asked for; a subclass says
                what is different.
        """
        keeps = self._connection
        if flag(ordered, "ordered"):
            return subscribing.subscribe_ordered(self._api, subject, options, keeps)
        return subscribing.subscribe(self._api, subject, options, keeps)

    def pull_subscribe(
        self,
        subject: str | None = None,
        durable: str | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> PullSubscription:
        """Messages of a subject, a fetch at a time; see docs/subscribe.md.

        `Stream.create_consumer` and `Consumer.fetch` do the same in two steps.

        Args:
            subject: what to read; the stream is found by it unless `stream` is given.
            durable: a consumer that is used if it is there, else made.
            consumer: a consumer that must be there; if it cannot be looked up, the
                first fetch tells.
            config, or fields of one as `ack_wait`: how it is configured; one that is
                there must be so already.
            delete_on_close: whether a consumer that this call has made is deleted at
                the end of the subscription; by default it is.

        Raises:
            NoMatchingStreamError: no stream, or more than one, has the subject.
            SubscriptionMismatchError: the consumer is not as asked for; a subclass says
                what is different.
        """
        return subscribing.pull_subscribe(
            self._api, subject, {**options, "durable": durable}
        )

    # Streams --------------------------------------------------------------------------

    def create_stream(
        self,
        config: StreamConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """Makes a stream, of a StreamConfig or of its fields.

        Making the same stream again is fine; StreamNameInUseError if a different one
        has its name.
        """
        return Stream(
            self._api,
            streams_api.create(
                self._api, config, fields, pedantic=pedantic, timeout=timeout
            ),
        )

    def update_stream(
        self,
        config: StreamConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """Changes the fields of a stream that are given; all others stay.

        These are the fields that `config` sets, and those that are named here: None
        takes one back to the server's default; `mirror=None` makes a mirror a stream
        of its own.
        """
        return Stream(
            self._api,
            streams_api.update(
                self._api, None, config, fields, pedantic=pedantic, timeout=timeout
            ),
        )

    def create_or_update_stream(
        self,
        config: StreamConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """Changes the given fields of a stream, or makes it if there is none."""
        return Stream(
            self._api,
            streams_api.create_or_update(
                self._api, config, fields, pedantic=pedantic, timeout=timeout
            ),
        )

    def stream(self, name: str, *, timeout: Seconds | None = None) -> Stream:
        """The stream of that name; StreamNotFoundError if there is none."""
        return Stream(
            self._api, streams_api.fetch_info(self._api, name, timeout=timeout)
        )

    def delete_stream(self, name: str, *, timeout: Seconds | None = None) -> None:
        """Deletes a stream with all its messages and consumers."""
        streams_api.delete(self._api, name, timeout=timeout)

    def purge_stream(
        self,
        name: str,
        *,
        subject: str | None = None,
        sequence: int | None = None,
        keep: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """Deletes messages of a stream and returns how many; see `Stream.purge`."""
        return streams_api.purge(
            self._api,
            name,
            subject=subject,
            sequence=sequence,
            keep=keep,
            timeout=timeout,
        )

    def streams(
        self, subject: str | None = None, *, timeout: Seconds | None = None
    ) -> Listing[Stream]:
        """Every stream, or those whose subjects overlap one.

        When a server of a cluster is away the others wait 4 seconds for it, for every
        256 streams. So each such page has at least 5 seconds, unless a `timeout` for
        all together is given.
        """
        return streams_api.listing(
            self._api,
            lambda info: Stream(self._api, info),
            subject=subject,
            timeout=timeout,
        )

    def stream_names(
        self, subject: str | None = None, *, timeout: Seconds | None = None
    ) -> Listing[str]:
        """The names of every stream, or of those whose subjects overlap one."""
        return streams_api.names(self._api, subject=subject, timeout=timeout)

    # Consumers ------------------------------------------------------------------------

    def create_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """Makes a consumer of a stream; ConsumerExistsError if another has its name."""
        return Consumer(
            self._api,
            consumers_api.create(
                self._api,
                stream,
                config,
                fields,
                pedantic=pedantic,
                timeout=timeout,
            ),
        )

    def update_consumer(
        self,
        stream: str,
        name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerSettings],
    ) -> Consumer:
        """Changes the fields of a consumer that are given; all others stay."""
        return Consumer(
            self._api,
            consumers_api.update(
                self._api,
                stream,
                name,
                config,
                fields,
                pedantic=pedantic,
                timeout=timeout,
            ),
        )

    def create_or_update_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """Changes the given fields of a consumer, or makes it if there is none."""
        return Consumer(
            self._api,
            consumers_api.create_or_update(
                self._api,
                stream,
                config,
                fields,
                pedantic=pedantic,
                timeout=timeout,
            ),
        )

    def consumer(
        self, stream: str, name: str, *, timeout: Seconds | None = None
    ) -> Consumer:
        """The consumer of that name; ConsumerNotFoundError if there is none."""
        return Consumer(
            self._api,
            consumers_api.fetch_info(self._api, stream, name, timeout=timeout),
        )

    def delete_consumer(
        self, stream: str, name: str, *, timeout: Seconds | None = None
    ) -> None:
        """Deletes a consumer."""
        consumers_api.delete(self._api, stream, name, timeout=timeout)

    def consumers(
        self, stream: str, *, timeout: Seconds | None = None
    ) -> Listing[Consumer]:
        """Every consumer of a stream; `timeout` is as in `streams`."""
        return consumers_api.listing(
            self._api,
            stream,
            lambda info: Consumer(self._api, info),
            timeout=timeout,
        )

    def consumer_names(
        self, stream: str, *, timeout: Seconds | None = None
    ) -> Listing[str]:
        """The names of every consumer of a stream."""
        return consumers_api.names(self._api, stream, timeout=timeout)

    def pause_consumer(
        self,
        stream: str,
        name: str,
        until: datetime | str,
        *,
        timeout: Seconds | None = None,
    ) -> PauseInfo:
        """Stops the deliveries of a consumer until that time."""
        return consumers_api.pause(self._api, stream, name, until, timeout=timeout)

    def resume_consumer(
        self, stream: str, name: str, *, timeout: Seconds | None = None
    ) -> PauseInfo:
        """Ends the pause of a consumer."""
        return consumers_api.pause(self._api, stream, name, None, timeout=timeout)

    def reset_consumer(
        self,
        stream: str,
        name: str,
        seq: int | None = None,
        *,
        timeout: Seconds | None = None,
    ) -> ConsumerInfo:
        """Sets a consumer back to what is not acknowledged yet, or to a sequence."""
        return consumers_api.reset(self._api, stream, name, seq, timeout=timeout)

    def unpin_consumer(
        self, stream: str, name: str, group: str, *, timeout: Seconds | None = None
    ) -> None:
        """Takes the pin of a priority group from the client that has it."""
        consumers_api.unpin(self._api, stream, name, group, timeout=timeout)

    def __repr__(self) -> str:
        return f"<JetStream {self._api.prefix!r} of {self._connection!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a JetStream context cannot be pickled: connect in the other process"
        )
