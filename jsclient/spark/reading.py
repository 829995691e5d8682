"""Reading a range of sequences of a stream, in the way that fits stream and range.

There are three ways. What stops one lets the next go on at the same place:

* direct gets, many messages at a time: no state on the server, best for small ranges,
  and the only fast way into a work queue;
* an ephemeral consumer that wants no acks: cheaper for the server on large ranges;
* one message at a time from the stream's leader, where nothing else is allowed.

What is read is complete: replicas that are behind are found out by asking the leader
for the next message, messages that are gone by looking at the stream's first sequence.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa

import jsclient

from . import connecting
from .errors import OptionError
from .offsets import Bounds, Offset, tell_loss
from .rows import Rows
from .stream import bounds_of, caught_up, certain, filters, find_stream

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ..stream import Stream
    from .options import SourceOptions

__all__ = ["read_range"]

# Ranges up to this are read directly: a consumer costs more than it saves.
SMALL = 10_000
# Direct gets of more messages, or bytes without their generated headers, could make the
# server cut off a reader that is held up.
DIRECT_MESSAGES = 5000
# A server that has forgotten our pulls, after a restart say, is found out after two of
# these, not only when a request would be given up.
HEARTBEAT = 1.0
# How long an idle consumer outlives a reader that could not delete it.
IDLE = 120.0
# Rows that were read one by one, put together, and bytes of any rows.
SINGLES = 256
GATHERED_BYTES = 32 << 20
# How soon it is looked whether a hole is a loss: later, it could have become one.
LOOK_EVERY = 0.05

# What makes one way of reading impossible here, so that another may be tried.
_OBSTACLES = (
    jsclient.NoRespondersError,
    jsclient.PermissionsViolationError,
    jsclient.UnsupportedByServerError,
    jsclient.MaximumConsumersError,
    jsclient.ConsumerCreateError,
    jsclient.InvalidArgumentError,  # of the stream's allow_direct, or of our filters
    jsclient.TimeoutError,
)


def read_range(
    options: SourceOptions, schema: StructType, offset: Offset, end: int
) -> Iterator[pa.RecordBatch]:
    """The messages from an offset to before `end`, in order of their sequences."""
    reader = RangeReader(options, schema, offset, end)
    for batch in reader.read():
        if batch.num_rows:
            yield batch


class RangeReader:
    """One pass over a range. `position` is the first sequence that is not read yet."""

    def __init__(
        self, options: SourceOptions, schema: StructType, offset: Offset, end: int
    ) -> None:
        self.position = offset.next
        self._options = options
        self._timeout = options.connection.request_timeout
        self._offset = offset
        self._end = end
        self._hole: int | None = None  # that nobody has looked at yet
        self._look_at = 0.0
        self._is_told = False  # of a loss that nobody minds
        self._stream = self._found()
        now = bounds_of(
            caught_up(self._stream, end, self._timeout, info=self._stream.cached_info)
        )
        self._check_loss(now, self.position)
        self._end = min(end, now.next)  # less only if nobody minds the loss
        subjects = options.subject or ()
        self._subjects = subjects or (">",)
        # Several filters are more than a direct get takes: then all are read.
        self._filter = subjects[0] if len(subjects) == 1 else None
        self._plain = Rows(schema, options.stream, ())
        self._sieve = Rows(
            schema, options.stream, subjects if len(subjects) > 1 else ()
        )
        state = self._stream.cached_info.state
        self._mean = max(1, state.bytes // max(1, state.messages))
        wanted = set(schema.fieldNames())
        self._headers_only = not wanted & {"data", "headers"}

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, by the first way that works."""
        if bounds_of(self._stream.cached_info).created != self._offset.created:
            return  # another stream of that name, and nobody minds the loss
        ways = self._ways()
        for number, way in enumerate(ways):
            try:
                yield from way()
                self._look_at_hole()
                return
            except _OBSTACLES:
                if number + 1 == len(ways):
                    raise

    def _ways(self) -> list[Callable[[], Iterator[pa.RecordBatch]]]:
        config = self._stream.cached_info.config
        mode = self._options.read_mode
        has_consumers = config.retention != "workqueue"
        direct = [self._by_direct_gets] if config.allow_direct else []
        consumer = [self._by_consumer] if has_consumers else []
        if mode == "direct":
            if not direct:
                raise OptionError(
                    "readMode",
                    f"stream {self._stream.name!r} does not have allow_direct",
                )
            return [self._by_direct_gets]
        if mode == "consumer":
            if not consumer:
                raise OptionError(
                    "readMode",
                    f"stream {self._stream.name!r} is a work queue: a consumer would "
                    "take its messages away; use auto or direct",
                )
            return [self._by_consumer]
        is_small = self._end - self.position <= SMALL
        if is_small and len(self._options.subject or ()) < 2:
            return [*direct, *consumer, self._one_by_one]
        return [*consumer, *direct, self._one_by_one]

    # The ways -------------------------------------------------------------------------

    def _by_direct_gets(self) -> Iterator[pa.RecordBatch]:
        while self.position < self._end:
            batch = self._stream.get_batch(
                self.position,
                next_for=self._filter,
                max_messages=min(
                    self._options.fetch_size,
                    DIRECT_MESSAGES,
                    self._end - self.position,
                ),
                max_bytes=self._options.max_fetch_bytes,
            )
            if len(batch):
                self._advance(batch.stream_seqs)
                yield self._sieve.of_batch(batch, self._end)
            if not batch.num_pending and self.position < self._end:
                # The end of the stream, or of a replica that is behind.
                missed = self._missed((self._filter or ">",))
                if missed is None:
                    return
                self._advance([missed.seq])
                yield self._sieve.of_messages([missed])

    def _one_by_one(self) -> Iterator[pa.RecordBatch]:
        return _gathered(self._singles(), SINGLES)

    def _singles(self) -> Iterator[pa.RecordBatch]:
        while self.position < self._end:
            msg = self._missed((self._filter or ">",))
            if msg is None:
                return
            self._advance([msg.seq])
            yield self._sieve.of_messages([msg])

    def _by_consumer(self) -> Iterator[pa.RecordBatch]:
        """Reads consumer after consumer: one that lost something is replaced."""
        before = -1
        while self.position < self._end:
            if self.position == before:
                raise jsclient.TimeoutError(
                    f"no message of stream {self._stream.name!r} came from "
                    f"{self.position} on"
                )
            before = self.position
            consumer = self._consumer()
            try:
                if consumer.cached_info.num_pending == 0 and self._is_covered():
                    return
                yield from _gathered(self._consumed(consumer), self._options.fetch_size)
            finally:
                # If the server cannot be told, it forgets the consumer by itself.
                with contextlib.suppress(jsclient.Error):
                    consumer.delete(timeout=2.0)

    def _consumed(self, consumer: jsclient.Consumer) -> Iterator[pa.RecordBatch]:
        """What one consumer delivers, until the range or its deliveries end."""
        delivered = 0
        window = self._window()
        with consumer.batches(
            window, idle_heartbeat=HEARTBEAT, stop_after=self._end - self.position
        ) as batches:
            while self.position < self._end:
                try:
                    batch = batches.next(self._timeout)
                except (jsclient.TimeoutError, jsclient.SubscriptionClosedError):
                    self._is_covered()
                    return
                except (jsclient.PullError, jsclient.ConsumerNotFoundError):
                    return
                count = len(batch)
                numbers = batch.consumer_seqs
                if numbers[0] != delivered + 1 or numbers[-1] != delivered + count:
                    return  # a lost link took some with it
                delivered += count
                self._advance(batch.stream_seqs)
                yield self._plain.of_batch(batch, self._end)
                if not batch.num_pending:
                    self._is_covered()
                self._mean = max(1, len(batch.data) // count)
                if self._window() < window // 4:
                    return  # messages have become much larger: ask for fewer

    def _consumer(self) -> jsclient.Consumer:
        try:
            return self._stream.create_consumer(
                name=f"spark-{uuid.uuid4().hex[:16]}",
                deliver_policy="by_start_sequence",
                opt_start_seq=self.position,
                ack_policy="none",
                headers_only=self._headers_only or None,
                inactive_threshold=IDLE,
                mem_storage=True,
                num_replicas=1,
                **filters(self._options.subject),
            )
        except (jsclient.InvalidArgumentError, jsclient.ConsumerFilterError) as error:
            raise OptionError("subject", str(error)) from error

    # What was read, and what is missing -----------------------------------------------

    def _advance(self, seqs: Sequence[int]) -> None:
        """Messages of these sequences came."""
        is_dense = seqs[-1] - self.position + 1 == len(seqs)
        if not is_dense and self._hole is None:
            self._hole = first_hole(seqs, self.position)
        self.position = seqs[-1] + 1
        if self._hole is not None and monotonic() >= self._look_at:
            self._look_at_hole()
            self._look_at = monotonic() + LOOK_EVERY

    def _look_at_hole(self) -> None:
        """Holes are no loss, unless they came while we were reading."""
        if self._hole is not None and not self._is_told:
            now = caught_up(self._stream, self._end, self._timeout)
            self._check_loss(bounds_of(now), self._hole)
        self._hole = None

    def _check_loss(self, bounds: Bounds, start: int) -> None:
        """Raises, or warns once, if messages from there on are gone by now."""
        here = Offset(self._offset.stream, self._offset.created, start)
        loss = bounds.loss(here, self._end)
        if loss is not None:
            tell_loss(loss, is_fatal=self._options.fail_on_data_loss)
            self._is_told = True

    def _missed(self, subjects: Sequence[str]) -> jsclient.StoredMessage | None:
        """The next message of the range, if there is one, as the leader knows it."""
        found = certain(
            self._stream, self._end, self._timeout, lambda: self._next(subjects)
        )
        if found is None and self._hole is None:
            self._hole = self.position
        return found

    def _next(self, subjects: Sequence[str]) -> jsclient.StoredMessage | None:
        found: jsclient.StoredMessage | None = None
        for subject in subjects:
            with contextlib.suppress(jsclient.MessageNotFoundError):
                one = self._stream.get_msg(
                    self.position, next_for=subject, from_leader=True
                )
                if one.seq < self._end and (found is None or one.seq < found.seq):
                    found = one
        return found

    def _is_covered(self) -> bool:
        """Whether nothing is left of the range, though its end was not reached."""
        if self.position < self._end and self._missed(self._subjects) is None:
            self.position = self._end
        return self.position >= self._end

    def _window(self) -> int:
        """How many messages may be on their way: pulls by bytes wait for each other."""
        options = self._options
        return max(
            2, min(2 * options.fetch_size, options.max_fetch_bytes // self._mean)
        )

    def _found(self) -> Stream:
        return connecting.ask(
            self._options.connection, lambda js: find_stream(js, self._options.stream)
        )


def first_hole(seqs: Sequence[int], start: int) -> int:
    """The first number from `start` on that is not in an ascending sequence."""
    low, high = 0, len(seqs)
    while low < high:
        middle = (low + high) // 2
        if seqs[middle] == start + middle:
            low = middle + 1
        else:
            high = middle
    return start + low


def _gathered(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Small batches put together: each costs Spark as much as many rows."""
    waiting: list[pa.RecordBatch] = []
    count = total = 0
    try:
        for batch in batches:
            waiting.append(batch)
            count += batch.num_rows
            total += batch.nbytes
            if count >= size or total >= GATHERED_BYTES:
                yield pa.concat_batches(waiting)
                waiting, count, total = [], 0, 0
    except jsclient.Error:
        # These rows count as read: who reads on in another way begins after them.
        if waiting:
            yield pa.concat_batches(waiting)
        raise
    if waiting:
        yield pa.concat_batches(waiting)
