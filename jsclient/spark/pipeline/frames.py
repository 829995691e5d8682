"""The tables of a pipeline as DataFrames and views, in the order of the file."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from .. import from_json, register
from .description import Pipeline, PipelineError, Source
from .reasons import reason, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["add_transforms", "check_shared", "frames"]

# What has a memory in a stream, as the plan calls it. A plan marks what streams by ~.
_KEEPS_STATE = re.compile(r"~(Aggregate|Distinct|Deduplicate\w*|GlobalLimit|Window)\b")
_JOIN = re.compile(r"~Join\b")


def frames(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Every source and transform by its name; each is a view of the session too.

    Raises PipelineError with the table and key that Spark or the server refuses.
    """
    formats = [source.format for source in pipeline.sources]
    if "jetstream" in [*formats, *(sink.format for sink in pipeline.sinks)]:
        # Spark's own search for it finds nothing where some package is broken, or where
        # ours is installed from its source tree.
        register(spark)
    found = {}
    for source in pipeline.sources:
        found[source.name] = frame = _load(spark, pipeline, source)
        frame.createOrReplaceTempView(source.name)
    return {**found, **add_transforms(spark, pipeline)}


def add_transforms(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """The transforms, made of the views that the session has now."""
    found = {}
    for transform in pipeline.transforms:
        try:
            frame = spark.sql(transform.sql)
            frame.createOrReplaceTempView(transform.name)
        except spark_errors() as error:
            table = f"transform.{transform.name}"
            raise PipelineError(table, "sql", reason(error)) from error
        found[transform.name] = frame
    return found


def _load(spark: SparkSession, pipeline: Pipeline, source: Source) -> DataFrame:
    table = f"source.{source.name}"
    reader = spark.readStream if source in pipeline.streams else spark.read
    reader = reader.format(source.format).options(**source.options)
    key = None
    try:
        if source.schema is not None:
            key = "schema"
            reader = reader.schema(source.schema)
        key = None
        frame = reader.load(source.path)
        # Asked for, not used: a remote session finds out only now what is wrong.
        frame.schema  # noqa: B018
        if source.json_schema is not None:
            key = "json_schema"
            frame = from_json(frame, source.json_schema)
            frame.schema  # noqa: B018
    except spark_errors() as error:
        raise PipelineError(table, key, reason(error)) from error
    return frame


def check_shared(pipeline: Pipeline, found: dict[str, DataFrame]) -> None:
    """Refuses transforms that remember rows of earlier batches.

    A shared query computes its tables from the rows of one batch, so these would give
    another result than in queries of their own.
    """
    for transform in pipeline.transforms:
        said = io.StringIO()
        with redirect_stdout(said):
            found[transform.name].explain(extended=True)
        plan = said.getvalue().partition("== Analyzed Logical Plan ==")[2]
        plan = plan.partition("== Optimized Logical Plan ==")[0]
        kept = _KEEPS_STATE.search(plan)
        what = kept[1] if kept else ""
        if _JOIN.search(plan) and plan.count("StreamingRelation") > 1:
            what = "Join"
        if what:
            raise PipelineError(
                f"transform.{transform.name}",
                "sql",
                f"{what} needs the rows of all batches, which [pipeline] shared = true "
                "cannot give it",
            )
