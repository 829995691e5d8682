"""What a micro-batch of a few rows takes, as Spark itself tells it.

Batch follows batch, five rows each. `rate` is a source of Spark's own without Python;
`idle` a source, and a sink, in Python that do nothing at all. So the difference to
`idle` is what `jetstream` adds, and all that `idle` takes is Spark's.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import jsclient
from bench.spark_cells import STREAM, Cell, Place, Sample, WrongResultError, check, fill
from jsclient.spark.columns import COLUMNS
from jsclient.spark.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

ROWS = 5  # of a batch
WARM = 5  # batches of each query that do not count
PATIENCE = 120.0  # seconds after which a query counts as stuck
SINK = "OUT"  # the stream that is written

# What Spark tells of a batch, in milliseconds: the whole, and its parts.
WHOLE = "triggerExecution"
STEPS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")


def tiny_batches(place: Place, batches: int, folder: str) -> list[Cell]:
    """A cell for each pair of source and sink; a run is a query of so many batches."""
    total = (WARM + batches) * ROWS
    where = {"servers": place.url}
    sources: dict[str, dict[str, Any]] = {
        "rate": {"rowsPerBatch": ROWS, "numPartitions": 1},
        "idle": {"rows": ROWS, "total": total},
        "jetstream": {**where, "stream": STREAM, "maxRecordsPerTrigger": ROWS},
    }
    sinks: dict[str, dict[str, Any]] = {
        "noop": {},
        "idle": {},
        "jetstream": {**where, "stream": SINK, "subject": "out"},
    }

    def cell(source: str, sink: str) -> Cell:
        format_of = {"rate": "rate-micro-batch"}.get(source, source)

        def take() -> Sample:
            emptied(place.url)
            with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
                frame = (
                    place.spark.readStream.format(format_of)
                    .options(**sources[source])
                    .load()
                )
                if sink != "noop":
                    frame = frame.select("data")  # the subject is that of the sink
                query = (
                    frame.writeStream.format(sink)
                    .options(**sinks[sink])
                    .option("checkpointLocation", checkpoint)
                    .start()
                )
                try:
                    told = progress(query, WARM + batches)
                finally:
                    query.stop()
            for each in told:
                check(f"rows of a batch of {source}", each.numInputRows, ROWS)
            if sink == "jetstream":
                check("messages of the sink", stored(place.url), total)
            return {
                name: statistics.median(
                    each.durationMs.get(name, 0) for each in told[WARM:]
                )
                for name in (WHOLE, *STEPS)
            }

        return Cell(f"{source}>{sink}", 1, take)

    fill(place, total)
    return [
        cell("rate", "noop"),
        cell("idle", "noop"),
        cell("jetstream", "noop"),
        cell("idle", "idle"),
        cell("jetstream", "jetstream"),
    ]


def progress(query: Any, count: int) -> Sequence[StreamingQueryProgress]:
    """What Spark tells of the first batches, when they are done."""
    deadline = time.monotonic() + PATIENCE
    while (last := query.lastProgress) is None or last.batchId < count - 1:
        if query.awaitTermination(0.1) or time.monotonic() > deadline:
            raise WrongResultError(f"the query came only to {last and last.batchId}")
    return [p for p in query.recentProgress if "addBatch" in p.durationMs][:count]


def emptied(url: str) -> None:
    """Makes the stream of the sink anew."""
    with jsclient.connect(url) as nc:
        js = nc.jetstream()
        if SINK in js.stream_names():
            js.delete_stream(SINK)
        js.create_stream(name=SINK, subjects=["out"])


def stored(url: str) -> int:
    """How many messages the sink has stored."""
    with jsclient.connect(url) as nc:
        return nc.jetstream().stream(SINK).cached_info.state.messages


# A source and a sink that do nothing --------------------------------------------------


@dataclass
class Numbers(InputPartition):
    """Rows that a task makes."""

    start: int
    end: int


class IdleSource(DataSource):
    """The format `idle`, with the columns of `jetstream`."""

    @classmethod
    def name(cls) -> str:
        """What it is called."""
        return "idle"

    def schema(self) -> StructType:
        """The same columns."""
        return COLUMNS

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Makes rows up."""
        return IdleReader(int(self.options["rows"]), int(self.options["total"]))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Forgets rows."""
        return IdleWriter()


class IdleReader(DataSourceStreamReader):
    """Gives a few rows to each batch until all are given."""

    def __init__(self, rows: int, total: int) -> None:
        self.rows = rows
        self.total = total

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Nothing was given."""
        return {"next": 0}

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, int], limit: Any
    ) -> dict[str, int]:
        """A few more."""
        return {"next": min(start["next"] + self.rows, self.total)}

    def partitions(
        self, start: dict[str, int], end: dict[str, int]
    ) -> Sequence[InputPartition]:
        """One."""
        return [Numbers(start["next"], end["next"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """So many rows."""
        assert isinstance(partition, Numbers)
        size = partition.end - partition.start
        schema = Rows(COLUMNS, "", ()).schema
        columns = [pa.nulls(size, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class Nothing(WriterCommitMessage):
    """What a task has done."""


class IdleWriter(DataSourceStreamWriter):
    """Takes all rows."""

    def write(self, iterator: Iterator[Any]) -> Nothing:
        """Takes those of one task."""
        for _ in iterator:
            pass
        return Nothing()

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Nothing to do."""
