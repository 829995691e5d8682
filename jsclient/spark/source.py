"""The readers of the format `jetstream`, as Spark calls them.

Offsets are sequences of the stream (see `offsets`), so any batch can be read again, by
any number of tasks. Nothing connects or complains before Spark asks for something: what
is wrong with the options of a streaming query is raised by its first call.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType

from . import connecting, freeing
from .columns import COLUMNS, check_schema
from .errors import OptionError
from .offsets import Bounds, Offset, read_offset, split
from .options import SourceOptions, source_options
from .reading import read_range
from .stream import bounds_of, find_stream, matching, place_of_time

if TYPE_CHECKING:
    import pyarrow as pa

    from ..stream import Stream

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    _ADMISSION: tuple[type, ...] = (SupportsTriggerAvailableNow,)
except ImportError:  # before 4.2: limits hold, AvailableNow is one batch
    _ADMISSION = ()

__all__ = ["BatchReader", "LowLatencyReader", "StreamReader", "schema"]

logger = logging.getLogger("jsclient")


@dataclass
class Range(InputPartition):
    """Sequences that one task reads: from `start.next` to before `end`."""

    start: Offset
    end: int


def schema(options: Mapping[str, str]) -> StructType:
    """Every column that a stream has; refuses options that are wrong."""
    source_options(options)
    return COLUMNS


class _Source:
    """What all readers share: the options, checked when they are first needed."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self.schema = schema

    @cached_property
    def options(self) -> SourceOptions:
        """The checked options."""
        check_schema(self.schema)
        return source_options(self._given)

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
        return self.place(options.starting_offsets, bounds, "startingOffsets")

    def place(self, value: str | None, bounds: Bounds, option: str) -> int:
        """The sequence that startingOffsets or endingOffsets mean."""
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


class BatchReader(DataSourceReader):
    """Reads a part of a stream once, as it is when the query is planned."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._source = _Source(given, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of sequences."""
        source = self._source
        options = source.options
        if options.consume != "none":
            raise OptionError("consume", "only streaming queries commit what they read")
        stream = source.stream()
        bounds = bounds_of(stream.cached_info)
        start = Offset(bounds.stream, bounds.created, source.start(stream))
        if options.ending_timestamp is not None:
            place = place_of_time(stream, options.ending_timestamp)
            end = bounds.next if place is None else min(place, bounds.next)
        else:
            end = source.place(options.ending_offsets, bounds, "endingOffsets")
        loss = bounds.loss(start, end)
        if loss is not None:
            if options.fail_on_data_loss:
                raise loss
            start = bounds.resumed(start)
        return source.ranges(start, end, source.parts(end - start.next))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, on an executor."""
        assert isinstance(partition, Range)
        return self._source.read_range(partition)


class _Progress:
    """What the driver of a streaming query knows between two triggers."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.target: int | None = None  # of AvailableNow
        self.latest: Bounds | None = None  # as last seen
        self._initial: Offset | None = None
        self._barren: Offset | None = None  # none of our subjects before this
        self._batch_at = monotonic()  # when there last was something to read
        self._is_prepared = False

    def look(self) -> Stream:
        """The stream as it is now."""
        stream = self.source.stream()
        self.latest = bounds_of(stream.cached_info)
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
        if self.source.options.fail_on_data_loss:
            raise loss
        logger.warning("%s", loss)
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
        stream = self.look()
        bounds = bounds_of(stream.cached_info)
        begin = self.checked(start, bounds)
        self._prepare(stream, begin.next)
        limit = bounds.next
        if self.target is not None and begin is start:
            limit = min(limit, self.target)
        if begin.next >= limit:
            return start if begin is start else begin.moved(begin.next, 1)
        count = limit - begin.next
        scale = 1.0  # sequences for each message that is read
        if options.subject:
            counts = is_limited and self._has_limits
            place = self._passed(begin).next
            found, total = matching(stream, options.subject, place, counted=counts)
            if found is None or found >= limit:
                self._barren = Offset(begin.stream, begin.created, max(place, limit))
                return start
            # What the filter passes over does not belong to the batch.
            begin = Offset(begin.stream, begin.created, found, origin=found)
            count = limit - found
            if total:
                count = total
                scale = max(1.0, (bounds.next - found) / total)
        if is_limited:
            if self._is_too_few(count):
                return start
            most = self._most(stream)
            if most is not None:
                limit = min(limit, begin.next + max(1, math.ceil(most * scale)))
        self._batch_at = monotonic()
        return begin.moved(limit, self.source.parts(limit - begin.next))

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
        return min(limits, default=None)

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """The partitions of a batch: the same for the same two offsets."""
        if start == end:
            # Spark before 4.2 tells where a query is by asking for nothing from there.
            return self.source.ranges(end, end.next, 1)
        if self.latest is None:
            # A batch is done again after a crash: nobody has looked yet.
            stream = self.look()
            self._prepare(stream, end.origin or start.next)
        begin = replace(end, next=end.origin or start.next)
        if end.origin is None and start.created != end.created:
            # Only after `newest`: who knows the start has compared the two before.
            loss = Bounds(end.stream, end.created, 1, end.next).loss(start)
            if loss is not None and self.source.options.fail_on_data_loss:
                raise loss
            begin = replace(end, next=1)
        if end.next <= begin.next:
            return self.source.ranges(begin, begin.next, 1)
        bounds = self.latest
        assert bounds is not None
        if (loss := bounds.loss(begin, end.next)) is not None:
            if self.source.options.fail_on_data_loss:
                raise loss
            place = bounds.resumed(begin).next
            is_other = bounds.created != end.created
            begin = replace(begin, next=end.next if is_other else min(place, end.next))
        parts = end.parts or self.source.parts(end.next - begin.next)
        return self.source.ranges(begin, end.next, parts)

    def commit(self, raw: Mapping[str, Any]) -> None:
        """What is before an offset was processed."""
        freeing.free(self.source.options, self.given(raw))


class StreamReader(DataSourceStreamReader, *_ADMISSION):  # type: ignore[misc]
    """Reads a stream in micro-batches."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._source = _Source(given, schema)
        self._progress = _Progress(self._source)
        self._position: Offset | None = None  # for Sparks that do not tell the start

    def __getstate__(self) -> dict[str, Any]:
        # Executors read; what the driver knows stays with it.
        return {**self.__dict__, "_progress": _Progress(self._source)}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        return self._progress.initial().to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing to read."""
        progress = self._progress
        if start is None:
            known = self._position or progress.begun
            if known is None:
                # Spark before 4.2 asks for the end of an AvailableNow before it tells
                # where the query is: that is all there is, in one batch.
                return progress.newest().to_json()
            return progress.end(known, is_limited=True).to_json()
        begin = progress.given(start)
        is_limited = not isinstance(limit, ReadAllAvailable) or isinstance(
            self.getDefaultReadLimit(), ReadAllAvailable
        )
        end = progress.end(begin, is_limited=is_limited)
        return start if end is begin else end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of a batch, as far as Spark has words for it."""
        options = self._source.options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_records is not None:
            return ReadMinRows(options.min_records)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The end of the stream as last seen, for the lag in the progress."""
        if self._progress.latest is None:
            return None
        return self._progress.reported().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on there is nothing new."""
        self._progress.target = self._progress.newest().next

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Ranges of sequences between two offsets."""
        progress = self._progress
        self._position = progress.given(end)
        return progress.ranges(progress.given(start), self._position)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, on an executor."""
        assert isinstance(partition, Range)
        return self._source.read_range(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: its messages may be freed."""
        self._progress.commit(end)

    def stop(self) -> None:
        """The query has ended; Spark seldom says so."""
        connecting.close_all()


class LowLatencyReader(SimpleDataSourceStreamReader, *_ADMISSION):  # type: ignore[misc]
    """Reads micro-batches on the driver, which saves Spark the tasks."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._source = _Source(given, schema)
        self._progress = _Progress(self._source)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": _Progress(self._source)}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        return self._progress.initial().to_json()

    def read(
        self, start: dict[str, Any]
    ) -> tuple[Iterator[pa.RecordBatch], dict[str, Any]]:
        """What there is to read after an offset, and where that ends."""
        begin = self._progress.given(start)
        end = self._progress.end(begin, is_limited=True)
        if end is begin:
            return iter(()), start
        return iter(self._between(begin, end)), end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on there is nothing new."""
        self._progress.target = self._progress.newest().next

    def readBetweenOffsets(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a batch that is done again."""
        progress = self._progress
        return iter(self._between(progress.given(start), progress.given(end)))

    def _between(self, start: Offset, end: Offset) -> list[pa.RecordBatch]:
        ranges = self._progress.ranges(start, replace(end, parts=1))
        return [batch for one in ranges for batch in self._source.read_range(one)]

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: its messages may be freed."""
        self._progress.commit(end)
