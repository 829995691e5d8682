"""Running a pipeline until it is done, until it fails, or until it is told to stop.

Whoever is told to stop (Ctrl-C, SIGTERM) lets each query finish the batch that it works
on. A query that was stopped in the middle of one does that batch again when it is
started the next time, so nothing is lost either way. A second signal does not wait.

After a clean end the messages of the last batch are freed for sources that do so: Spark
tells a source that a batch is done only when it plans the next one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING

from .description import Pipeline, PipelineError
from .frames import check_shared, frames
from .report import Batch, Report, batch_of
from .writing import start, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["run", "schemas"]

# How often the line on the terminal is written again.
PERIOD = 0.25


def schemas(spark: SparkSession, pipeline: Pipeline) -> dict[str, str]:
    """The columns of every table, found without running anything."""
    found = _checked(spark, pipeline)
    return {name: frame.schema.simpleString() for name, frame in found.items()}


def run(
    spark: SparkSession, pipeline: Pipeline, report: Report, *, once: bool = False
) -> None:
    """Runs the pipeline; returns after a clean end.

    once: handle what is there now, then end.

    Raises PipelineError for what is described wrongly, before anything is written, and
    what Spark raises when a query fails; the other queries are stopped then.
    """
    found = _checked(spark, pipeline)
    if not pipeline.is_stream:
        _run_batch(pipeline, found, report)
        return
    stopping = threading.Event()
    queries: list[StreamingQuery] = []
    with _signals(stopping):
        try:
            for query in pipeline.queries():
                queries.append(start(pipeline, query, found, once=once))
            _watch(pipeline, queries, report, stopping)
        finally:
            for each in queries:
                each.stop()
    _commit_last(pipeline, queries)


def _checked(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    found = frames(spark, pipeline)
    if pipeline.is_stream:
        for sink in pipeline.sinks:
            if not found[sink.origin].isStreaming:
                raise PipelineError(
                    f"sink.{sink.name}",
                    "from",
                    f"{sink.origin} gets no new rows: all its sources are static",
                )
        if pipeline.is_shared:
            check_shared(pipeline, found)
    return found


def _run_batch(pipeline: Pipeline, found: dict[str, DataFrame], report: Report) -> None:
    """Writes every sink once."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    if pipeline.is_shared:
        for source in pipeline.sources:
            found[source.name].persist()
    for sink in pipeline.sinks:
        began = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        clock = time.monotonic()
        counted = Observation()
        frame = found[sink.origin].observe(counted, count(lit(1)).alias("rows"))
        write(frame, sink)
        seconds = time.monotonic() - clock
        rows = int(counted.get["rows"])
        report.done(
            Batch(
                time=began.replace("+00:00", "Z"),
                pipeline=pipeline.name,
                query=f"{pipeline.name}.{sink.name}",
                batch=None,
                rows=rows,
                seconds=round(seconds, 3),
                rows_per_second=round(rows / seconds, 1),
                lag=None,
            )
        )


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """Turns the first signal into an event; the next one is as it was before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def told(number: int, frame: FrameType | None) -> None:
        stopping.set()
        restore()

    for number in numbers:
        signal.signal(number, told)
    try:
        yield
    finally:
        restore()


def _watch(
    pipeline: Pipeline,
    queries: Sequence[StreamingQuery],
    report: Report,
    stopping: threading.Event,
) -> None:
    """Reports batches until all queries have ended, or are to stop and may."""
    watched = {query: _Watched(pipeline.name, query) for query in queries}
    running = list(queries)
    while running:
        for query in list(running):
            # A part of a second is fine too, whatever the annotation says.
            has_ended = query.awaitTermination(PERIOD / len(running))  # type: ignore[arg-type]
            for batch in watched[query].news():
                report.done(batch)
            if has_ended or (stopping.is_set() and watched[query].is_between_batches()):
                query.stop()
                running.remove(query)


class _Watched:
    """One query, and how far its batches have been reported."""

    def __init__(self, pipeline: str, query: StreamingQuery) -> None:
        self._pipeline = pipeline
        self._query = query
        self._reported = -1
        self._began: int | None = None  # reported when it was first asked to stop

    def news(self) -> Iterator[Batch]:
        """The batches that were done since the last time."""
        last = self._query.lastProgress
        if last is None or last.batchId <= self._reported:
            return
        # Mostly it is one. Asking for all that Spark remembers is dear.
        is_one = last.batchId <= self._reported + 1
        for progress in [last] if is_one else self._query.recentProgress:
            batch = batch_of(self._pipeline, progress)
            if batch is not None and progress.batchId > self._reported:
                self._reported = progress.batchId
                yield batch

    def is_between_batches(self) -> bool:
        """Whether the batch that was running at the first call is done."""
        if self._began is None:
            self._began = self._reported
        status = self._query.status
        is_working = status["isTriggerActive"] and status["isDataAvailable"]
        return not is_working or self._reported > self._began


def _commit_last(pipeline: Pipeline, queries: Sequence[StreamingQuery]) -> None:
    """Frees the messages of the last batch of each source that frees any."""
