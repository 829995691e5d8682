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
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..freeing import commit_final
from ..options import sink_options, source_options
from ..progress import end_offsets
from ..refusals import OPTION, Refusals
from .description import Pipeline, PipelineError, Sink
from .frames import check_shared, frames
from .report import Batch, Report, batch_of
from .writing import start, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
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
    report.say("starting")
    found = _checked(spark, pipeline)
    with ExitStack() as ending:
        refusals = None
        if not _is_remote(spark):  # else its commits are on another machine
            refusals = ending.enter_context(Refusals())
            pipeline = _told(pipeline, refusals)
        if pipeline.is_stream:
            _run_stream(pipeline, found, report, refusals, once=once)
        else:
            _run_batch(pipeline, found, report, refusals)


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _told(pipeline: Pipeline, refusals: Refusals) -> Pipeline:
    """The pipeline with sinks that tell how many rows they skip."""
    sinks = tuple(
        replace(sink, options={**sink.options, OPTION: refusals.path})
        if sink.format == "jetstream"
        else sink
        for sink in pipeline.sinks
    )
    return replace(pipeline, sinks=sinks)


def _run_stream(
    pipeline: Pipeline,
    found: dict[str, DataFrame],
    report: Report,
    refusals: Refusals | None,
    *,
    once: bool,
) -> None:
    """Runs the queries to their ends, and frees what their last batches have read."""
    stopping = threading.Event()
    watched: list[_Watched] = []
    with _signals(stopping):
        try:
            for query in pipeline.queries():
                started = start(pipeline, query, found, once=once)
                watched.append(_Watched(pipeline.name, started, refusals))
            _watch(watched, report, stopping)
        finally:
            for each in watched:
                each.query.stop()
    for each in watched:
        _free_last(pipeline, each)


def _checked(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    found = frames(spark, pipeline)
    for sink in pipeline.sinks:
        if sink.format == "jetstream":
            _check_columns(sink, found[sink.origin])
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


def _check_columns(sink: Sink, frame: DataFrame) -> None:
    """Refuses rows that no stream could store, before anything is written."""
    from ..sink import check_columns

    try:
        check_columns(sink_options(sink.options), frame.schema)
    except OptionError as error:
        key = "from" if error.option == "schema" else error.option
        raise PipelineError(f"sink.{sink.name}", key, error.problem) from error


def _run_batch(
    pipeline: Pipeline,
    found: dict[str, DataFrame],
    report: Report,
    refusals: Refusals | None,
) -> None:
    """Writes every sink once."""
    shared = pipeline.sources if pipeline.is_shared else ()
    kept = [found[source.name].persist() for source in shared]
    try:
        for sink in pipeline.sinks:
            report.say(f"writing {sink.name}")
            report.done(_written(pipeline, sink, found[sink.origin], refusals))
    finally:
        for frame in kept:
            frame.unpersist()


def _written(
    pipeline: Pipeline, sink: Sink, frame: DataFrame, refusals: Refusals | None
) -> Batch:
    """Writes a sink once."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    began = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    clock = time.monotonic()
    counted = Observation()
    write(frame.observe(counted, count(lit(1)).alias("rows")), sink)
    seconds = time.monotonic() - clock
    rows = int(counted.get["rows"])
    return Batch(
        time=began.replace("+00:00", "Z"),
        pipeline=pipeline.name,
        query=f"{pipeline.name}.{sink.name}",
        batch=None,
        rows=rows,
        seconds=round(seconds, 3),
        rows_per_second=round(rows / seconds, 1),
        lag=None,
        skipped=None if refusals is None else refusals.take(None, 0),
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
    watched: Sequence[_Watched], report: Report, stopping: threading.Event
) -> None:
    """Reports batches until all queries have ended, or are to stop and may."""
    running = list(watched)
    report.started()
    while running:
        for each in list(running):
            # A part of a second is fine too, whatever the annotation says.
            pause = PERIOD / len(running)
            has_ended = each.query.awaitTermination(pause)  # type: ignore[arg-type]
            for batch in each.news():
                report.done(batch)
            if has_ended or (stopping.is_set() and each.is_between_batches()):
                each.query.stop()
                running.remove(each)
        if report.is_live:
            report.tick([each.name for each in running if each.is_working()])


class _Watched:
    """One query, and how far its batches have been reported."""

    def __init__(
        self, pipeline: str, query: StreamingQuery, refusals: Refusals | None = None
    ) -> None:
        self.query = query
        self.name = query.name or str(query.id)  # as its batches are told
        self.last: StreamingQueryProgress | None = None  # of the last batch
        self._pipeline = pipeline
        self._refusals = refusals
        self._reported = -1
        self._began: int | None = None  # reported when it was first asked to stop

    def news(self) -> Iterator[Batch]:
        """The batches that were done since the last time."""
        last = self.query.lastProgress
        if last is None or last.batchId <= self._reported:
            return
        # Mostly it is one. Asking for all that Spark remembers is dear.
        is_one = last.batchId <= self._reported + 1
        for progress in [last] if is_one else self.query.recentProgress:
            if progress.batchId <= self._reported:
                continue
            batch = batch_of(self._pipeline, progress, self._refusals)
            if batch is not None:
                self._reported = progress.batchId
                self.last = progress
                yield batch

    def is_working(self) -> bool:
        """Whether a batch is running."""
        status = self.query.status
        return bool(status["isTriggerActive"] and status["isDataAvailable"])

    def is_between_batches(self) -> bool:
        """Whether the batch that was running at the first call is done."""
        if self._began is None:
            self._began = self._reported
        return not self.is_working() or self._reported > self._began


def _free_last(pipeline: Pipeline, watched: _Watched) -> None:
    """Frees the messages of a query's last batch, for sources that free any."""
    for source in pipeline.streams:
        if source.frees_messages and watched.last is not None:
            stream = source_options(source.options).stream
            ends = [e for e in end_offsets(watched.last) if e["stream"] == stream]
            if ends:
                commit_final(source.options, min(ends, key=lambda e: int(e["next"])))
