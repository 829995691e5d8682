"""A driver of its own, for tests that kill it or look into its logs.

python -m tests.spark.driver CONF FOLDER OPTIONS...: for each OPTIONS, reads what is
there of a stream into files below the folder, or into another stream if their entry
`sink` has the options of that; their entry `at` names another checkpoint, their entry
`format` another format. CONF and OPTIONS are JSON.
"""

from __future__ import annotations

import json
import sys
import traceback

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.held_source import HeldSource


def main(conf: str, folder: str, *queries: str) -> int:
    """Runs the queries to their ends; how many of them failed."""
    builder = SparkSession.builder.master("local[2]").config(
        "spark.ui.enabled", "false"
    )
    for name, value in json.loads(conf).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(HeldSource)
    failed = 0
    for text in queries:
        options = json.loads(text)
        sink = options.pop("sink", None)
        checkpoint = f"{folder}/{options.pop('at', 'checkpoint')}"
        reader = spark.readStream.format(options.pop("format", "jetstream"))
        try:
            run(reader.options(**options).load(), folder, checkpoint, sink)
        except PySparkException:
            traceback.print_exc()
            failed += 1
    spark.stop()
    return failed


def run(
    frame: DataFrame, folder: str, checkpoint: str, sink: dict[str, str] | None
) -> None:
    """One query, with all that Spark says of it."""
    frame.explain(True)
    if sink is None:
        writer = frame.writeStream.option("path", f"{folder}/out")
    else:  # which has a subject of its own
        writer = frame.select("data").writeStream.format("jetstream").options(**sink)
    query = (
        writer.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    progress = query.lastProgress
    assert progress is not None
    print(progress.json)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
