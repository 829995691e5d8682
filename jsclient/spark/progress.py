"""How far a streaming query is, and how far behind its streams."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .offsets import load_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["end_offsets", "lag", "lag_of"]


def lag(query: StreamingQuery) -> int | None:
    """How many messages the streams had that the query's last batch did not reach.

    They are counted by sequences, so messages that were deleted or that the filter
    passes over count too. None before the first batch, without a stream, with
    `lowLatency`, and before Spark 4.2: there Spark does not ask where a stream ends.
    """
    progress = query.lastProgress
    return None if progress is None else lag_of(progress)


def lag_of(progress: StreamingQueryProgress) -> int | None:
    """The same from what Spark told at one time, to a listener for example."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        return None  # before 4.2
    found = []
    for source in progress.sources:
        reached, latest = _offset(source.endOffset), _offset(source.latestOffset)
        # A server of Spark Connect may be older than we are: it says instead how far
        # the batch got, which has its partitions.
        if reached is not None and latest is not None and "parts" not in latest:
            found.append(max(0, int(latest["next"]) - int(reached["next"])))
    return sum(found) if found else None


def end_offsets(progress: StreamingQueryProgress) -> list[dict[str, Any]]:
    """Where the batch ended in each stream that it read."""
    ends = (_offset(source.endOffset) for source in progress.sources)
    return [end for end in ends if end is not None]


def _offset(text: str | None) -> dict[str, Any] | None:
    """An offset of ours; None if there is none or it is of another format."""
    found = load_offset(text or "")
    return found if found is not None and "next" in found else None
