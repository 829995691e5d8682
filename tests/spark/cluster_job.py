"""What tests give to a cluster by spark-submit.

cluster_job.py where URL        prints where executors find the package, then copies
                                the stream IN to the stream OUT as a query
cluster_job.py numbers URL N    writes the numbers below N to OUT, in two tasks that
                                take their time
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import SparkSession


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


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    if sys.argv[1] == "where":
        where(session, sys.argv[2])
    else:
        numbers(session, sys.argv[2], int(sys.argv[3]))
    session.stop()
