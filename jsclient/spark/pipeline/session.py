"""The Spark session of a pipeline: started here, given by spark-submit, or remote."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...errors import Error
from ..java import find_java
from ..options import SECRETS
from .description import Pipeline, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]

# What a pipeline has unless its file says otherwise. Spark's own bar of progress would
# be in the way of ours; of its log, what matters comes as an exception. In that, Spark
# before 4.2 shows the options of a sink but those whose names look like secrets.
DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",
    "spark.sql.redaction.options.regex": f"(?i)url|{'|'.join(SECRETS)}",
}


@contextmanager
def session(pipeline: Pipeline, master: str | None = None) -> Iterator[SparkSession]:
    """A session for the pipeline, on `master` or else where its file says.

    A session that this program has already is used as it is, and goes on afterwards.
    Whoever runs it with spark-submit has already chosen the master.
    """
    # Whoever installed pandas 3 is told of it by PySpark, which does not need it here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Error("pipelines need Spark: pip install 'jsclient[spark]'") from error
    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    spark = _started(SparkSession.builder.appName(pipeline.name), pipeline, master)
    try:
        yield spark
    finally:
        spark.stop()


def _started(
    builder: SparkSession.Builder, pipeline: Pipeline, master: str | None
) -> SparkSession:
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    master = master or (None if is_submitted else pipeline.master or "local[*]")
    for key, value in {**DEFAULTS, **pipeline.spark}.items():
        builder = builder.config(key, value)
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    find_java()
    # Workers need the interpreter that has this package, not the first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Nobody else takes part, so the machine's name need not lead anywhere.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if any(sink.format == "delta" for sink in pipeline.sinks):
        builder = _with_delta(builder, pipeline)
    return builder.getOrCreate()


def _with_delta(
    builder: SparkSession.Builder, pipeline: Pipeline
) -> SparkSession.Builder:
    try:
        from delta import configure_spark_with_delta_pip
    except ImportError:
        name = next(sink.name for sink in pipeline.sinks if sink.format == "delta")
        raise PipelineError(
            f"sink.{name}", "format", "delta needs a package: pip install delta-spark"
        ) from None
    extended = builder.config(
        "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
    ).config(
        "spark.sql.catalog.spark_catalog",
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    )
    configured: SparkSession.Builder = configure_spark_with_delta_pip(extended)
    return configured
