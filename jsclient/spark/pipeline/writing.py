"""Where rows go: streaming queries for the sinks of a pipeline, and whole tables.

A sink has a query of its own, with its own checkpoint, and reads the source for itself.
Shared sinks have one query: each batch is kept in memory, the transforms are computed
from it, and all sinks are written before it is noted as done. If that is cut short, the
whole batch is written again, so every sink has to take it twice: a stream recognises
the messages, and of files each batch has a folder that the second write replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..ledger import DEFAULT_BUCKET
from .description import AVAILABLE_NOW, Pipeline, Query, Sink
from .frames import add_transforms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["start", "write"]


def start(
    pipeline: Pipeline, query: Query, found: dict[str, DataFrame], *, once: bool
) -> StreamingQuery:
    """Starts the query that writes what the sinks of it have to get."""
    if pipeline.is_shared:
        (source,) = pipeline.streams
        writer = found[source.name].writeStream
        writer = writer.foreachBatch(_WriteShared(pipeline))
        return _started(writer, pipeline, query, once=once)
    (sink,) = query.sinks
    writer = found[sink.origin].writeStream.outputMode(sink.output_mode)
    if sink.format == "jetstream" and sink.output_mode == "update":
        # Spark lets Python sinks have no updates, but it does let them have batches.
        writer = writer.foreachBatch(_WriteUpdates(_told_apart(sink)))
        return _started(writer, pipeline, query, once=once)
    writer = writer.format(sink.format).options(**sink.options)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if sink.path is not None:
        writer = writer.option("path", sink.path)
    return _started(writer, pipeline, query, once=once)


def _started(
    writer: DataStreamWriter, pipeline: Pipeline, query: Query, *, once: bool
) -> StreamingQuery:
    writer = writer.queryName(query.name)
    writer = writer.option("checkpointLocation", query.checkpoint)
    if once or pipeline.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=pipeline.trigger).start()


def write(frame: DataFrame, sink: Sink, *, batch: int | None = None) -> None:
    """Writes a whole table, or the rows of one batch, which may be done twice."""
    writer = frame.write.format(sink.format).options(**sink.options)
    mode, path = sink.save_mode, sink.path
    if batch is not None:
        mode = "append"
        if sink.format == "parquet":
            mode, path = "overwrite", f"{path}/batch={batch}"
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    writer.mode(mode).save(path)


def _told_apart(sink: Sink) -> Sink:
    """The sink with a ledger of its own, as a foreachBatch may write several."""
    if sink.format != "jetstream":
        return sink
    named = {key.lower(): value for key, value in sink.options.items()}
    others = {k: v for k, v in sink.options.items() if k.lower() != "ledger"}
    ledger = f"{named.get('ledger', DEFAULT_BUCKET)}-{sink.name}"
    return replace(sink, options={**others, "ledger": ledger})


# These are pickled when the session is remote.


@dataclass(frozen=True, slots=True)
class _WriteUpdates:
    sink: Sink

    def __call__(self, frame: DataFrame, batch: int) -> None:
        write(frame, self.sink, batch=batch)


@dataclass(frozen=True, slots=True)
class _WriteShared:
    pipeline: Pipeline

    def __call__(self, frame: DataFrame, batch: int) -> None:
        (source,) = self.pipeline.streams
        frame.persist()
        try:
            # The views of a query are its own: no other query sees this one.
            frame.createOrReplaceTempView(source.name)
            add_transforms(frame.sparkSession, self.pipeline)
            for sink in self.pipeline.sinks:
                rows = frame.sparkSession.table(sink.origin)
                write(rows, _told_apart(sink), batch=batch)
        finally:
            frame.unpersist()
