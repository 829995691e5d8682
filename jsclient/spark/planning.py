"""What the driver of a query plans: where it starts and ends, and who reads what.

Planning asks the server for the state of the stream and nothing else; what it decides
is in the offsets, so that the same batch is planned alike after a crash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from . import connecting, freeing
from .columns import check_schema
from .errors import OptionError
from .offsets import Bounds, Offset, read_offset, split, tell_loss
from .options import SourceOptions, as_here, source_options
from .reading import read_range
from .stream import (
    bounds_of,
    caught_up,
    certain,
    count_of,
    find_stream,
    next_of,
    place_of_time,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..stream import Stream

__all__ = ["Progress", "Range", "Source"]

# A limited batch of a filter need not be fuller than that: each try is a request.
FULL = 0.9


@dataclass
class Range(InputPartition):
    """Sequences that one task reads: from `start.next` to before `end`."""

    start: Offset
    end: int


class Source:
    """What all readers share: the options, checked when they are first needed."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        # Readers are made on the driver and pickled for the executors.
        try:
            self._given = as_here(given)
        except OptionError:
            self._given = dict(given)  # told when they are needed
        self.schema = schema

    @cached_property
    def options(self) -> SourceOptions:
        """The checked options."""
        options = source_options(self._given)
        check_schema(self.schema, options.columns)
        return options

    def stream(self) -> Stream:
        """The stream, as it is now."""
        options = self.options
        return connecting.ask(
            options.connection, lambda js: find_stream(js, options.stream)
        )

    def start(self, stream: Stream) -> int:
        """Where reading starts, as the options say."""
        options, bounds = self.options, bounds_of(stream.cached_info)
        if options.starting_timestamp is not None:
            moment = options.starting_timestamp
            place = place_of_time(stream, moment)
            if place is None and options.starting_timestamp_strategy == "error":
                raise OptionError(
                    "startingTimestamp",
                    f"no message is as young as {moment.isoformat()}; set "
                    "startingTimestampStrategy to latest to wait for the first",
                )
            return bounds.next if place is None else place
        return self.place(options.starting_offsets, stream, "startingOffsets")

    def place(self, value: str | None, stream: Stream, option: str) -> int:
        """The sequence that startingOffsets or endingOffsets mean."""
        bounds = bounds_of(stream.cached_info)
        word = value or ("earliest" if option == "startingOffsets" else "latest")
        if word == "earliest":
            return bounds.first
        if word == "latest":
            return bounds.next
        if word.isdecimal():
            place = int(word)
        else:
            offset = read_offset(word, bounds.stream, option)
            if offset.created != bounds.created:
                raise OptionError(
                    option,
                    f"the offset is of a stream {bounds.stream!r} that was created at "
                    f"{offset.created}; this one was at {bounds.created}",
                )
            place = offset.next
        timeout = self.options.connection.request_timeout
        bounds = bounds_of(caught_up(stream, place, timeout, info=stream.cached_info))
        if place > bounds.next:
            raise OptionError(
                option, f"{place} is too far: the stream ends at {bounds.next - 1}"
            )
        return place

    def parts(self, size: int) -> int:
        """Into how many partitions so many sequences are split."""
        options = self.options
        wanted = math.ceil(size / options.records_per_partition)
        return max(1, min(options.num_partitions, wanted))

    def ranges(self, start: Offset, end: int, parts: int) -> list[Range]:
        """The partitions; an empty one rather than none, which Spark would invent."""
        found = split(start.next, end, parts) or [(start.next, start.next)]
        return [Range(replace(start, next=lo), hi) for lo, hi in found]

    def read_range(self, partition: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if partition.start.next < partition.end:
            yield from read_range(
                self.options, self.schema, partition.start, partition.end
            )


class Progress:
    """What the driver of a streaming query knows between two triggers."""

    def __init__(self, source: Source, *, most: int | None = None) -> None:
        """Limits batches to `most` sequences where the options say nothing else."""
        self.source = source
        self.target: int | None = None  # of AvailableNow
        self.latest: Bounds | None = None  # as last seen
        self._initial: Offset | None = None
        self._barren: Offset | None = None  # none of our subjects before this
        self._batch_at = monotonic()  # when there last was something to read
        self._is_prepared = False
        self._is_new = True  # no batch was planned so far
        self._usual_most = most

    def look(self, known: Offset | None = None) -> Stream:
        """The stream as it is now, when it is known to have reached an offset."""
        stream = self.source.stream()
        end = 0
        if known is not None and bounds_of(stream.cached_info).created == known.created:
            end = known.next
        timeout = self.source.options.connection.request_timeout
        now = caught_up(stream, end, timeout, info=stream.cached_info)
        self.latest = bounds_of(now)
        return stream

    def reported(self) -> Offset:
        """The end of the stream as last seen."""
        bounds = self.latest
        assert bounds is not None
        return Offset(bounds.stream, bounds.created, bounds.next)

    def initial(self) -> Offset:
        """Where a new query begins; the same answer each time."""
        if self._initial is None:
            options = self.source.options
            for name, value in (
                ("endingOffsets", options.ending_offsets),
                ("endingTimestamp", options.ending_timestamp),
            ):
                if value is not None:
                    raise OptionError(name, "a streaming query has no end")
            stream = self.look()
            bounds = bounds_of(stream.cached_info)
            place = self.source.start(stream)
            self._prepare(stream, place)
            self._initial = Offset(bounds.stream, bounds.created, place, origin=place)
        return self._initial

    @property
    def begun(self) -> Offset | None:
        """Where the query begins, if that was asked for."""
        return self._initial

    def newest(self) -> Offset:
        """The end of the stream."""
        self.look()
        return self.reported()

    def given(self, raw: Mapping[str, Any]) -> Offset:
        """An offset of the checkpoint."""
        return read_offset(raw, self.source.options.stream, "checkpointLocation")

    def _prepare(self, stream: Stream, start: int) -> None:
        if not self._is_prepared:
            freeing.prepare(self.source.options, stream, start)
            self._is_prepared = True

    def checked(self, start: Offset, bounds: Bounds) -> Offset:
        """Where the batch after an offset really starts; raises for lost messages."""
        loss = bounds.loss(self._passed(start))
        if loss is None:
            return start
        tell_loss(loss, is_fatal=self.source.options.fail_on_data_loss)
        return bounds.resumed(start)

    def _passed(self, start: Offset) -> Offset:
        """Where an offset would be if filters moved it."""
        barren = self._barren
        if barren is None or barren.created != start.created:
            return start
        return barren if barren.next > start.next else start

    def end(self, start: Offset, *, is_limited: bool) -> Offset:
        """The end of the batch that starts there: `start` itself if there is none."""
        options = self.source.options
        stream = self.look(start)
        bounds = bounds_of(stream.cached_info)
        begin = self.checked(start, bounds)
        self._prepare(stream, begin.next)
        self._free_at_start(start)
        limit = bounds.next
        if self.target is not None and begin is start:
            limit = min(limit, self.target)
        if begin.next >= limit:
            return start if begin is start else begin.moved(begin.next, 1)
        if options.subject:
            place = self._passed(begin).next
            found = None if place >= limit else self._next(stream, place, limit)
            if found is None or found >= limit:
                place = max(place, limit)
                barren = Offset(begin.stream, begin.created, place, origin=place)
                self._barren = barren
                # An empty batch notes it, where a restart could not find out any more.
                is_noted = begin is not start or _is_old(begin.next, bounds)
                return barren.moved(place, 1) if is_noted else start
            # What the filter passes over does not belong to the batch.
            begin = Offset(begin.stream, begin.created, found, origin=found)
        if is_limited:
            count, limit = self._limited(stream, begin.next, limit)
            if self._is_too_few(count):
                return start
        self._batch_at = monotonic()
        return begin.moved(limit, self.source.parts(limit - begin.next))

    def _free_at_start(self, start: Offset) -> None:
        """Frees what the last run of the query has done and could not free any more.

        Nothing was planned so far, so the offset is that of a batch that is done.
        """
        if self._is_new and not start.is_initial:
            freeing.free(self.source.options, start)
        self._is_new = False

    def _next(self, stream: Stream, start: int, end: int) -> int | None:
        """The next message of our subjects; there may be none before `end`."""
        options = self.source.options
        timeout = options.connection.request_timeout
        subjects = options.subject or ()
        return certain(stream, end, timeout, lambda: next_of(stream, subjects, start))

    def _limited(self, stream: Stream, start: int, end: int) -> tuple[int, int]:
        """How many messages there are, about, and where the batch has to end."""
        subjects, most = self.source.options.subject, self._most(stream)
        total = None
        if subjects and self._has_limits:
            total = count_of(stream, subjects, start)
        if total is None:
            count = end - start
            return count, end if most is None else min(end, start + most)
        if most is None or total <= most:
            return total, end

        def count_before(place: int) -> int:
            # In this order it is rather too many: more messages may come meanwhile.
            after = count_of(stream, subjects or (), place) or 0
            return (count_of(stream, subjects or (), start) or 0) - after

        high = bounds_of(stream.cached_info).next
        return total, min(end, farthest(count_before, start, high, total, most))

    @property
    def _has_limits(self) -> bool:
        options = self.source.options
        limits = (options.max_records, options.max_bytes, options.min_records)
        return any(limit is not None for limit in limits)

    def _is_too_few(self, count: int) -> bool:
        options = self.source.options
        if options.min_records is None or self.target is not None:
            return False
        late = monotonic() - self._batch_at >= options.max_trigger_delay
        return count < options.min_records and not late

    def _most(self, stream: Stream) -> int | None:
        """How many messages a batch may have."""
        options, state = self.source.options, stream.cached_info.state
        limits = []
        if options.max_records is not None:
            limits.append(options.max_records)
        if options.max_bytes is not None and state.messages:
            limits.append(
                max(1, options.max_bytes * state.messages // max(state.bytes, 1))
            )
        return min(limits, default=self._usual_most)

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """The partitions of a batch: the same for the same two offsets."""
        if start == end:
            # Spark before 4.2 tells where a query is by asking for nothing from there.
            return self.source.ranges(end, end.next, 1)
        self._is_new = False
        if self.latest is None or self.latest.next < end.next:
            # A batch is done again after a crash: nobody has looked so far.
            stream = self.look(end)
            self._prepare(stream, end.origin or start.next)
        begin = replace(end, next=end.origin or start.next)
        if end.origin is None and start.created != end.created:
            # Only after `newest`: who knows the start has compared the two before.
            loss = Bounds(end.stream, end.created, 1, end.next).loss(start)
            if loss is not None:
                tell_loss(loss, is_fatal=self.source.options.fail_on_data_loss)
            begin = replace(end, next=1)
        if end.next <= begin.next:
            return self.source.ranges(begin, begin.next, 1)
        bounds = self.latest
        assert bounds is not None
        if (loss := bounds.loss(begin, end.next)) is not None:
            tell_loss(loss, is_fatal=self.source.options.fail_on_data_loss)
            place = bounds.resumed(begin).next
            is_other = bounds.created != end.created
            begin = replace(begin, next=end.next if is_other else min(place, end.next))
        parts = end.parts or self.source.parts(end.next - begin.next)
        return self.source.ranges(begin, end.next, parts)

    def commit(self, raw: Mapping[str, Any]) -> None:
        """What is before an offset was processed."""
        freeing.free(self.source.options, self.given(raw))


def _is_old(place: int, bounds: Bounds) -> bool:
    """Whether a stream that forgets its first messages may soon come to that place."""
    return bounds.first > 1 and place - bounds.first < (bounds.next - place)


def farthest(
    count_before: Callable[[int], int], start: int, end: int, total: int, most: int
) -> int:
    """Where a batch ends that has `most` messages, or not much less than that.

    The message at `start` is one of them; `total` of them, too many, are before `end`.
    """
    low, few = start + 1, 1
    high, many = end, total
    is_even = False
    while high - low > 1 and few < FULL * most:
        # Where it would be if they were spread evenly; if not, halving is sure.
        is_even = not is_even
        share = (most - few) / (many - few) if is_even else 0.5
        place = min(max(low + 1, low + round((high - low) * share)), high - 1)
        count = count_before(place)
        if count <= most:
            low, few = place, max(few, count)
        else:
            high, many = place, count
    return low
