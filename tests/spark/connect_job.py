"""What the test of Spark Connect runs: everything that a remote session can do.

Its arguments are the addresses of Spark and NATS and a folder; it prints its results.
"""

import io
import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")

from pyspark.sql import SparkSession  # noqa: E402 - it warns at once

import jsclient.spark  # noqa: E402
from jsclient.spark.pipeline.report import Report  # noqa: E402
from jsclient.spark.pipeline.run import run  # noqa: E402
from jsclient.spark.pipeline.toml import parse  # noqa: E402

PIPELINE = """
[pipeline]
name = "remote"
checkpoint = "checkpoints"

[jetstream]
servers = "${NATS_URL}"

[source.orders]
stream = "IN"
json_schema = "n BIGINT"
maxRecordsPerTrigger = 600

[transform.sums]
sql = "select 'sums' as subject, to_json(struct(sum(value.n) as n)) as data from orders"

[sink.files]
from = "orders"
format = "parquet"
path = "copies"

[sink.sums]
from = "sums"
stream = "SUMS"
output_mode = "update"
"""


def main(remote: str, url: str, folder: str) -> dict[str, object]:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    frame = jsclient.spark.read(spark, "IN", servers=url)
    rows = jsclient.spark.from_json(frame, "n BIGINT")
    (total,) = rows.selectExpr("count(*) as count", "sum(value.n) as sum").collect()
    jsclient.spark.write(frame.selectExpr("data"), "OUT", subject="out", servers=url)

    screen = io.StringIO()
    pipeline = parse(PIPELINE, folder=Path(folder), env={"NATS_URL": url})
    with Report(None, screen) as report:
        run(spark, pipeline, report, once=True)
    said = [json.loads(line) for line in screen.getvalue().splitlines()]
    copies = spark.read.parquet(f"{folder}/copies").count()
    spark.stop()
    return {
        "read": [total["count"], total["sum"]],
        "lag": [line["lag"] for line in said if line["query"] == "remote.files"],
        "copies": copies,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
