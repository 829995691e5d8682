"""The readers of the source without Spark: planned here, read here."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.sql.types import StructType

from jsclient.jetstream import JetStream
from jsclient.spark.columns import COLUMNS
from jsclient.spark.source import BatchReader, StreamReader
from jsclient.stream import Stream

Row = dict[str, Any]

since_41 = pytest.mark.skipif(
    pyspark.__version__ < "4.1", reason="what Spark 4.0 cannot do"
)

# Before, Spark neither asks for limits nor tells where a query is, and an AvailableNow
# is one batch of all: `test_source_before_42`.
HAS_LIMITS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
since_42 = pytest.mark.skipif(
    not HAS_LIMITS,
    reason="Spark limits the batches of a query from 4.2 on",
)


def columns(text: str) -> StructType:
    """Columns of `COLUMNS` by their names."""
    return StructType([COLUMNS[name] for name in text.split()])


SEQUENCE = columns("sequence")


class Readers:
    """Makes readers of one server's streams."""

    def __init__(self, url: str) -> None:
        self.url = url

    def given(self, options: dict[str, Any]) -> dict[str, str]:
        """Options as Spark hands them over."""
        values = {"servers": self.url, "stream": "S", **options}
        return {name: str(value) for name, value in values.items()}

    def batch(self, schema: StructType = COLUMNS, /, **options: Any) -> BatchReader:
        return BatchReader(self.given(options), schema)

    def stream(self, schema: StructType = COLUMNS, /, **options: Any) -> StreamReader:
        return StreamReader(self.given(options), schema)

    def rows(self, schema: StructType = COLUMNS, /, **options: Any) -> list[Row]:
        """What a batch query reads."""
        reader = self.batch(schema, **options)
        return [row for part in reader.partitions() for row in read(reader, part)]

    def seqs(self, **options: Any) -> list[int]:
        """The sequences that a batch query reads."""
        return [row["sequence"] for row in self.rows(SEQUENCE, **options)]


def read(reader: BatchReader | StreamReader, part: Any) -> Iterator[Row]:
    """The rows of a partition, read by another process's copy of the reader."""
    there, what = pickle.loads(pickle.dumps((reader, part)))
    for batch in there.read(what):
        batch.validate(full=True)
        yield from batch.to_pylist()


def between(reader: StreamReader, start: Any, end: Any) -> list[int]:
    """The sequences of a micro-batch."""
    parts = reader.partitions(start, end)
    return [row["sequence"] for part in parts for row in read(reader, part)]


def made(js: JetStream, name: str = "S", **fields: Any) -> Stream:
    """A stream on `s.>`."""
    return js.create_stream(
        **{
            "name": name,
            "subjects": ["s.>"],
            "storage": "memory",
            "allow_direct": True,
            **fields,
        }
    )


def fill(js: JetStream, count: int, *, subjects: int = 4, data: bytes = b"%d") -> None:
    """Publishes messages to s.0, s.1, …, with their numbers as payloads."""
    messages = ((f"s.{n % subjects}", data % n) for n in range(count))
    for _ in js.publish_all(messages):
        pass


def expire(stream: Stream) -> None:
    """Lets all messages of a stream become too old, and later ones live again."""
    stream.update(max_age=0.1)
    while stream.info().state.messages:  # the server tells nobody
        pass
    stream.update(max_age=0.0)
