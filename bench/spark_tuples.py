"""A Spark source as one would write it first: a tuple for each message.

Its messages come from the compiled client; `spark_plain` does without that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import jsclient
from jsclient.spark.columns import COLUMNS
from jsclient.spark.offsets import split


@dataclass
class Range(InputPartition):
    """Sequences that a task reads."""

    start: int
    end: int


class TupleSource(DataSource):
    """The format `jetstream-tuples`, with the columns of `jetstream`."""

    @classmethod
    def name(cls) -> str:
        """What it is called."""
        return "jetstream-tuples"

    def schema(self) -> StructType:
        """The same columns."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the whole stream."""
        return TupleReader(self.options)


class TupleReader(DataSourceReader):
    """Reads with a consumer, message by message."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.url = options["servers"]
        self.stream = options["stream"]
        self.parts = int(options["numPartitions"])

    def partitions(self) -> Sequence[InputPartition]:
        """Even ranges."""
        with jsclient.connect(self.url) as nc:
            state = nc.jetstream().stream(self.stream).cached_info.state
        ranges = split(state.first_seq, state.last_seq + 1, self.parts)
        return [Range(*one) for one in ranges]

    # What Spark takes: tuples here, record batches elsewhere.
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one range."""
        assert isinstance(partition, Range)
        count = partition.end - partition.start
        with (
            self.consumer(partition.start) as consumer,
            consumer.messages(5000, stop_after=count) as messages,
        ):
            for msg in messages:
                place = msg.metadata
                yield (
                    msg.subject,
                    msg.data,
                    {},
                    place.stream_seq,
                    place.timestamp,
                    place.stream,
                )

    @contextmanager
    def consumer(self, start: int) -> Iterator[jsclient.Consumer]:
        """A consumer of the stream from a sequence on, for the time of the block."""
        with jsclient.connect(self.url) as nc:
            stream = nc.jetstream().stream(self.stream)
            consumer = stream.create_consumer(
                ack_policy="none",
                deliver_policy="by_start_sequence",
                opt_start_seq=start,
            )
            yield consumer
            consumer.delete()
