"""A Spark source as one would write it first: a tuple for each message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        return TupleReader(
            self.options["servers"],
            self.options["stream"],
            int(self.options["numPartitions"]),
        )


class TupleReader(DataSourceReader):
    """Reads with a consumer, message by message."""

    def __init__(self, url: str, stream: str, parts: int) -> None:
        self.url = url
        self.stream = stream
        self.parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        """Even ranges."""
        with jsclient.connect(self.url) as nc:
            state = nc.jetstream().stream(self.stream).cached_info.state
        ranges = split(state.first_seq, state.last_seq + 1, self.parts)
        return [Range(*one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        """The rows of one range."""
        assert isinstance(partition, Range)
        with jsclient.connect(self.url) as nc:
            consumer = (
                nc.jetstream()
                .stream(self.stream)
                .create_consumer(
                    ack_policy="none",
                    deliver_policy="by_start_sequence",
                    opt_start_seq=partition.start,
                )
            )
            with consumer.messages(
                5000, stop_after=partition.end - partition.start
            ) as messages:
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
            consumer.delete()
