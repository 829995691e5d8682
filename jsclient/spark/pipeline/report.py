"""What a running pipeline says: a live line on a terminal, and one for each batch.

The lines of batches are JSON, for machines. They go to the file that the pipeline names
as its log; without one they go to stderr, unless that is a terminal: there stands the
live line, which is for people.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from ..progress import lag_of
from .description import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from ..refusals import Refusals

__all__ = ["Batch", "Report"]

# What lasts less than so many seconds is not told on the live line.
MOMENT = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that is done, or in a pipeline of mode batch one sink."""

    time: str  # when it began, in UTC
    pipeline: str
    query: str
    batch: int | None
    rows: int | None
    seconds: float
    rows_per_second: float | None
    lag: int | None  # messages that were there and not read yet
    skipped: int | None = None  # rows that the server refused; None if nobody can tell


def batch_of(
    pipeline: str, progress: StreamingQueryProgress, refusals: Refusals | None = None
) -> Batch | None:
    """What Spark tells of a batch; None if it tells that there was none."""
    if "addBatch" not in progress.durationMs:
        return None
    seconds = progress.durationMs.get("triggerExecution", progress.batchDuration) / 1000
    rows = progress.numInputRows or 0
    skipped = None
    if refusals is not None:
        skipped = refusals.take(str(progress.id), progress.batchId)
    return Batch(
        time=progress.timestamp,
        pipeline=pipeline,
        query=progress.name or str(progress.id),
        batch=progress.batchId,
        rows=rows,
        seconds=seconds,
        rows_per_second=round(rows / seconds, 1) if seconds else None,
        lag=lag_of(progress),
        skipped=skipped,
    )


class Report:
    """Where the lines go. Used by one thread."""

    def __init__(
        self,
        log: str | None,
        screen: TextIO | None = None,
        *,
        name: str = "",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`name` is the pipeline's, for the live line; `clock` tells seconds."""
        self._screen = screen or sys.stderr
        self.is_live = self._screen.isatty()
        self._file = _opened(log) if log else None
        self._name = name
        self._clock = clock
        self._began = clock()
        self._latest: dict[str, tuple[Batch, float]] = {}  # by query, and when it ended
        self._rows = 0
        self._skipped = 0
        self._shown = ""

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clear()
        if self._file is not None:
            self._file.close()

    def say(self, text: str) -> None:
        """Tells what goes on while there is nothing else to tell."""
        self._show(f"{self._name}: {text}")

    @property
    def skipped(self) -> int:
        """How many rows the server has refused so far."""
        return self._skipped

    def started(self) -> None:
        """From now on there can be batches."""
        self._began = self._clock()

    def done(self, batch: Batch) -> None:
        """Tells of a batch."""
        self._latest[batch.query] = batch, self._clock()
        self._rows += batch.rows or 0
        self._skipped += batch.skipped or 0
        if self._file is not None or not self.is_live:
            file = self._file or self._screen
            file.write(json.dumps(asdict(batch)) + "\n")
            file.flush()
        self.tick([batch.query])

    def tick(self, working: Collection[str]) -> None:
        """Writes the live line again; `working` are the queries that have a batch."""
        if self.is_live:
            self._show(self._line(working))

    def clear(self) -> None:
        """Makes room for another line."""
        if self._shown:
            self._screen.write("\r\x1b[K")
            self._screen.flush()
            self._shown = ""

    def _show(self, text: str) -> None:
        if not self.is_live:
            return
        width = shutil.get_terminal_size().columns
        self._shown = text[: width - 1]
        self._screen.write(f"\r\x1b[K{self._shown}")
        self._screen.flush()

    def _line(self, working: Collection[str]) -> str:
        """One line for all queries: their rates together, and the worst of the rest."""
        now = self._clock()
        spans = {query: now - ended for query, (_, ended) in self._latest.items()}
        # A query that waits for messages has no rate.
        busy = [q for q, span in spans.items() if q in working or span < MOMENT]
        batches = [batch for batch, _ in self._latest.values()]
        words = [f"{self._name}: {self._rows:,} rows"]
        if self._skipped:
            words.append(f"{self._skipped:,} skipped")
        if busy:
            rates = [self._latest[query][0].rows_per_second or 0.0 for query in busy]
            words.append(f"{sum(rates):,.0f} rows/s")
        lags = [batch.lag for batch in batches if batch.lag is not None]
        if lags:
            words.append(f"lag {max(lags):,}")
        if batches:
            words.append(f"batch {max(batch.seconds for batch in batches):.2f} s")
        if working:
            word = "running"
            span = max(spans.get(query, now - self._began) for query in working)
        else:
            word = "waiting"
            span = min(spans.values(), default=now - self._began)
        if span >= MOMENT:
            words.append(f"{word} {span:,.0f} s")
        return ", ".join(words)


def _opened(log: str) -> TextIO:
    try:
        return open(log, "a", encoding="utf-8")
    except OSError as error:
        problem = f"{log} cannot be written: {error.strerror}"
        raise PipelineError("pipeline", "log", problem) from error
