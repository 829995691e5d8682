"""What tests give to a cluster by spark-submit.

cluster_job.py where URL        prints where executors find the package, then copies
                                the stream IN to the stream OUT as a query
cluster_job.py numbers URL N F  writes the numbers below N to OUT, in two tasks, of
                                which one stops half-way and never goes on, unless it is
                                started a second time; F gets the id of its process
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa


def package(_: int) -> str:
    import jsclient

    return jsclient.__file__


def where(spark: SparkSession, url: str) -> None:
    found = spark.sparkContext.parallelize(range(2), 2).map(package).collect()
    sys.stdout.write("".join(f"package: {place}\n" for place in found))
    source = spark.readStream.format("jetstream").option("servers", url)
    rows = source.option("stream", "IN").option("numPartitions", 2).load()
    with tempfile.TemporaryDirectory() as folder:
        query = (
            rows.selectExpr("'out' AS subject", "data")
            .writeStream.format("jetstream")
            .options(servers=url, stream="OUT", checkpointLocation=folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def stopping(
    file: str,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def held_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        is_it = task.partitionId() == 0 and task.attemptNumber() == 0
        for number, batch in enumerate(batches):
            yield batch
            # What comes last stays in buffers, so more than one was to be given.
            if is_it and number == 2:
                Path(file).write_text(str(os.getpid()))
                while True:
                    time.sleep(1.0)  # until it is killed

    return held_up


def numbers(spark: SparkSession, url: str, count: int, file: str) -> None:
    columns = "subject STRING, data STRING"
    rows = spark.range(0, count, 1, 2).selectExpr(
        "'out' AS subject", "string(id) AS data"
    )
    writer = rows.mapInArrow(stopping(file), columns).write.format("jetstream")
    writer.options(servers=url, stream="OUT").mode("append").save()


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    if sys.argv[1] == "where":
        where(session, sys.argv[2])
    else:
        numbers(session, sys.argv[2], int(sys.argv[3]), sys.argv[4])
    session.stop()
