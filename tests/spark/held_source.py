"""The format `held`: `jetstream`, whose queries stop for ever when a batch is planned.

That is before Spark notes the batch in its checkpoint. HELD_AT of the environment is
the sequence that the batch has to reach; the file HELD_FILE then is made.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsclient.spark.data_source import JetStreamDataSource
from jsclient.spark.source import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class HeldReader(StreamReader):
    """Plans batches, and does not tell Spark of one of them."""

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next batch."""
        planned = super().latestOffset(start, limit)
        if planned["next"] > int(os.environ["HELD_AT"]):
            Path(os.environ["HELD_FILE"]).touch()
            while True:
                signal.pause()
        return planned


class HeldSource(JetStreamDataSource):
    """Reads streams like that of which it is made."""

    @classmethod
    def name(cls) -> str:
        return "held"

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> HeldReader:
        return HeldReader(self.options, schema)
