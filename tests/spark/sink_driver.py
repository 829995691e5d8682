"""A driver whose tasks fail while they publish, for tests that count what is stored.

python -m tests.spark.sink_driver URL FOLDER: writes a frame of 20,000 rows to the
stream BATCH, and the stream IN to the stream QUERY with a ledger. The first attempt of
each task raises in the middle of its rows, the second one kills its own process; each
attempt has the rows in another order. The file FOLDER/found gets a line for each write:
how many rows its tasks found to be stored already. The test breaks Spark's search for
formats, so the format `jetstream` is known only because it is registered.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import jsclient.spark
from jsclient.spark.data_source import JetStreamDataSource
from jsclient.spark.options import sink_options
from jsclient.spark.sink import BatchWriter, Plan, StreamWriter, Written, _planned

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROWS = 20_000


def troubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in an order of their own, and what happens in the middle of them."""
    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    table = pa.Table.from_batches(list(batches))
    places = list(range(table.num_rows))
    random.Random(attempt).shuffle(places)
    parts = table.take(places).to_batches(max_chunksize=200)
    for number, part in enumerate(parts):
        if number == len(parts) // 2 and attempt < 2:
            # What was sent is stored, and the stream QUERY has forgotten its ids.
            time.sleep(0.5)
            if attempt == 0:
                raise RuntimeError("a task fails")
            os.kill(os.getpid(), signal.SIGKILL)
        yield part


def tell(plan: Plan, messages: Sequence[Any]) -> None:
    """Says how many rows were stored already, in the file that has our name."""
    found = sum(one.duplicates for one in messages if isinstance(one, Written))
    with open(plan.options.connection.name, "a") as told:
        told.write(f"{found}\n")


class TroubledBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return super().write(troubled(iterator))

    def commit(self, messages: Sequence[Any]) -> None:
        super().commit(messages)
        tell(self.plan, messages)


class TroubledStreamWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return super().write(troubled(iterator))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        tell(self.plan, messages)


class TroubledSource(JetStreamDataSource):
    """The format `jetstream`, with writers that fail."""

    @classmethod
    def name(cls) -> str:
        return "troubled"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return TroubledBatchWriter(_planned(sink_options(self.options), schema))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> StreamWriter:
        return TroubledStreamWriter(_planned(sink_options(self.options), schema))


def main(url: str, folder: str) -> None:
    """Writes both."""
    from tests.spark import sink_driver  # tasks must know it by this name

    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.dataSource.register(sink_driver.TroubledSource)
    jsclient.spark.register(spark)
    rows = spark.range(0, ROWS, 1, 2).selectExpr(
        # Some rows are equal, and all of them count.
        "'b.1' AS subject",
        "CAST(id - id % 2 AS STRING) AS data",
    )
    options = {"servers": url, "name": f"{folder}/found"}
    rows.write.format("troubled").options(stream="BATCH", **options).mode(
        "append"
    ).save()
    frame = (
        spark.readStream.format("jetstream")
        .options(servers=url, stream="IN", recordsPerPartition=5000)
        .load()
        .selectExpr("'q.1' AS subject", "data")
    )
    query = (
        frame.writeStream.format("troubled")
        .options(stream="QUERY", exactlyOnce="ledger", **options)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
