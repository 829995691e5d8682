"""What tests give to a cluster by spark-submit.

cluster_job.py where URL        prints where executors find the package, then copies
                                the stream IN to the stream OUT as a query
cluster_job.py numbers URL N    writes the numbers below N to OUT, in two tasks that
                                take their time
cluster_job.py twice URL N      does so in two tasks, of which one stops half-way and
                                never goes on, so that Spark starts it a second time
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
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


def numbers(spark: SparkSession, url: str, count: int) -> None:
    rows = spark.range(0, count, 1, 2).selectExpr(
        "'out' AS subject", "string(id) AS data"
    )
    writer = rows.write.format("jetstream").mode("append")
    writer.options(servers=url, stream="OUT", maxInflight=4).save()


def held_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    for number, batch in enumerate(batches):
        yield batch
        # What comes last stays in buffers, so more than one was to be given.
        while number == 2 and task.partitionId() == 0 and task.attemptNumber() == 0:
            time.sleep(1.0)  # until Spark kills it, because the other one has ended


def twice(spark: SparkSession, url: str, count: int) -> None:
    columns = "subject STRING, data STRING"
    rows = spark.range(0, count, 1, 2).selectExpr(
        "'out' AS subject", "string(id) AS data"
    )
    writer = rows.mapInArrow(held_up, columns).write.format("jetstream")
    writer.options(servers=url, stream="OUT").mode("append").save()


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    if sys.argv[1] == "where":
        where(session, sys.argv[2])
    else:
        work = {"numbers": numbers, "twice": twice}[sys.argv[1]]
        work(session, sys.argv[2], int(sys.argv[3]))
    session.stop()
