"""The readers of the format `jetstream`, as Spark calls them.

Offsets are sequences of the stream (see `offsets`), so any batch can be read again, by
any number of tasks. Nothing connects or complains before Spark asks for something: what
is wrong with the options of a streaming query is raised by its first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType

from . import connecting
from .columns import chosen
from .errors import OptionError
from .offsets import Offset, tell_loss
from .options import source_options
from .planning import Progress, Range, Source
from .reading import SMALL
from .stream import bounds_of, place_of_time

if TYPE_CHECKING:
    import pyarrow as pa

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


def schema(options: Mapping[str, str]) -> StructType:
    """The columns that a stream has, or that are wanted; refuses wrong options."""
    return chosen(source_options(options).columns)


class BatchReader(DataSourceReader):
    """Reads a part of a stream once, as it is when the query is planned."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._source = Source(given, schema)

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
            end = source.place(options.ending_offsets, stream, "endingOffsets")
        self._refuse_reversed(start.next, end)
        bounds = bounds_of(stream.cached_info)
        loss = bounds.loss(start, end)
        if loss is not None:
            tell_loss(loss, is_fatal=options.fail_on_data_loss)
            start = bounds.resumed(start)
        return source.ranges(start, end, source.parts(end - start.next))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, on an executor."""
        assert isinstance(partition, Range)
        return self._source.read_range(partition)

    def _refuse_reversed(self, start: int, end: int) -> None:
        """Refuses an end before the start, if the options say both."""
        options = self._source.options
        is_from_there = options.starting_offsets or options.starting_timestamp
        if end < start and is_from_there:
            for name, value in (
                ("endingOffsets", options.ending_offsets),
                ("endingTimestamp", options.ending_timestamp),
            ):
                if value is not None:
                    raise OptionError(
                        name, f"it means {end}, which is before the start at {start}"
                    )


class StreamReader(DataSourceStreamReader, *_ADMISSION):  # type: ignore[misc]
    """Reads a stream in micro-batches."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._source = Source(given, schema)
        self._progress = Progress(self._source)
        self._position: Offset | None = None  # for Sparks that do not tell the start
        self._is_first = True  # likewise: nobody has asked for an end yet

    def __getstate__(self) -> dict[str, Any]:
        # Executors read; what the driver knows stays with it.
        return {**self.__dict__, "_progress": Progress(self._source)}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        return self._progress.initial().to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing to read."""
        progress = self._progress
        if start is None:
            # Spark before 4.2 neither tells where the query is nor of its trigger. The
            # first answer may be the end of an AvailableNow: that has all there is.
            is_first, self._is_first = self._is_first, False
            known = self._position or progress.begun
            if known is None:
                return progress.newest().to_json()
            return progress.end(known, is_limited=not is_first).to_json()
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
        self._source = Source(given, schema)
        self._progress = self._new_progress()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": self._new_progress()}

    def _new_progress(self) -> Progress:
        # A batch is in this process's memory, whatever waits in the stream. Before 4.2
        # the first one is all that an AvailableNow reads.
        return Progress(self._source, most=SMALL if _ADMISSION else None)

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
