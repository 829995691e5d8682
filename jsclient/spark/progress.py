"""How far a streaming query is behind its streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["lag", "lag_of"]


def lag(query: StreamingQuery) -> int | None:
    """How many messages the streams had that the query's last batch did not reach.

    They are counted by sequences, so messages that were deleted or that the filter
    passes over count too. None before the first batch, and without a stream.
    """
    progress = query.lastProgress
    return None if progress is None else lag_of(progress)


def lag_of(progress: StreamingQueryProgress) -> int | None:
    """The same from what Spark told at one time, to a listener for example."""
    found = [
        behind
        for source in progress.sources
        if (behind := _behind(source.endOffset, source.latestOffset)) is not None
    ]
    return sum(found) if found else None


def _behind(end: str | None, latest: str | None) -> int | None:
    """The distance of two offsets; None if they are not ours."""
    try:
        last, reached = json.loads(latest or "")["next"], json.loads(end or "")["next"]
        return max(0, int(last) - int(reached))
    except (ValueError, TypeError, KeyError):
        return None
