"""Pipelines that run: what they write, what they say, and how they end."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsclient.spark.pipeline.description import PipelineError
from jsclient.spark.pipeline.report import Report
from jsclient.spark.pipeline.run import run, schemas
from jsclient.spark.pipeline.toml import parse
from tests.spark.test_pipeline_report import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., list[dict[str, Any]]]

# Rows that come from files: three of them, so three batches.
FILES = """
[pipeline]
name = "files"
checkpoint = "checkpoints"
trigger = "available_now"

[source.orders]
format = "json"
path = "in"
schema = "id BIGINT, total BIGINT"
options = { maxFilesPerTrigger = 1 }

[source.regions]
format = "json"
path = "regions"
schema = "id BIGINT, region STRING"
static = true

[transform.big]
sql = "select * from orders where total > 50"

[transform.placed]
sql = "select big.*, region from big join regions on big.id % 2 = regions.id"

[sink.placed]
from = "placed"
format = "parquet"
path = "out/placed"
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with orders 1 to 300 in three files, and two regions."""
    (tmp_path / "in").mkdir()
    (tmp_path / "regions").mkdir()
    for number in range(3):
        orders = (
            {"id": number * 100 + total, "total": total} for total in range(1, 101)
        )
        text = "\n".join(json.dumps(order) for order in orders)
        (tmp_path / "in" / f"{number}.json").write_text(text)
    regions = ({"id": 0, "region": "eu"}, {"id": 1, "region": "us"})
    text = "\n".join(json.dumps(region) for region in regions)
    (tmp_path / "regions" / "all.json").write_text(text)
    return tmp_path


@pytest.fixture
def run_here(spark: SparkSession, here: Path) -> Run:
    """Runs a pipeline of that folder; the result is what it said of each batch."""

    def run_it(text: str, *, once: bool = False) -> list[dict[str, Any]]:
        screen = io.StringIO()
        pipeline = parse(text, folder=here)
        with Report(pipeline.log, screen) as report:
            run(spark, pipeline, report, once=once)
        return [json.loads(line) for line in screen.getvalue().splitlines()]

    return run_it


def test_rows_go_through_sql_to_files_and_each_batch_is_told(
    spark: SparkSession, here: Path, run_here: Run
) -> None:
    said = run_here(FILES)
    assert [line["batch"] for line in said] == [0, 1, 2]
    assert {line["query"] for line in said} == {"files.placed"}
    assert [line["rows"] for line in said] == [50, 50, 50]
    assert all(line["seconds"] > 0 for line in said)
    rows = spark.read.parquet(str(here / "out" / "placed")).collect()
    assert len(rows) == 150
    assert {(row.id % 2, row.region) for row in rows} == {(0, "eu"), (1, "us")}
    # Nothing is left to do.
    assert run_here(FILES) == []


@pytest.mark.parametrize("mode", ["stream", "batch"])
def test_a_terminal_shows_what_goes_on_from_the_start(
    spark: SparkSession, here: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = FILES
    if mode == "batch":
        text = FILES.replace('trigger = "available_now"', 'mode = "batch"')
    screen = Terminal()
    pipeline = parse(text, folder=here)
    with Report(None, screen, name=pipeline.name) as report:
        run(spark, pipeline, report)
    _, first, *others, last = screen.getvalue().split("\r\x1b[K")
    assert (first, last) == ("files: starting", "")
    assert ("files: writing placed" in others) == (mode == "batch")
    assert any(line.startswith("files: 150 rows, ") for line in others)


def test_shared_sinks_read_once_and_a_batch_that_is_done_again_replaces_itself(
    spark: SparkSession, here: Path, run_here: Run
) -> None:
    text = FILES.replace("[pipeline]", "[pipeline]\nshared = true") + (
        '[sink.all]\nfrom = "orders"\nformat = "parquet"\npath = "out/all"\n'
    )
    said = run_here(text)
    assert [(line["query"], line["rows"]) for line in said] == [("files", 100)] * 3
    # As if the process had died before it noted that the last batch is done.
    for file in (here / "checkpoints" / "_shared" / "commits").glob("*2*"):
        file.unlink()
    assert [line["batch"] for line in run_here(text)] == [2]
    assert spark.read.parquet(str(here / "out" / "placed")).count() == 150
    everything = spark.read.parquet(str(here / "out" / "all"))
    assert everything.count() == everything.distinct().count() == 300
    batches = everything.select("batch").distinct().collect()
    assert sorted(row.batch for row in batches) == [0, 1, 2]


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("select total, count(*) as n from big group by total", "Aggregate"),
        ("select distinct total from big", "Distinct"),
        ("select a.* from big a join orders b on a.id = b.id", "Join"),
    ],
)
def test_a_shared_query_refuses_what_needs_the_rows_of_all_batches(
    spark: SparkSession, here: Path, sql: str, what: str
) -> None:
    text = FILES.replace("[pipeline]", "[pipeline]\nshared = true")
    text = text.replace(
        "[sink.placed]", f'[transform.kept]\nsql = "{sql}"\n[sink.placed]'
    )
    with pytest.raises(PipelineError) as refused:
        schemas(spark, parse(text, folder=here))
    assert str(refused.value).startswith(f"[transform.kept] sql: {what} needs the rows")


def test_a_batch_pipeline_writes_every_table_once(
    spark: SparkSession, here: Path, run_here: Run
) -> None:
    text = FILES.replace('trigger = "available_now"', 'mode = "batch"')
    said = run_here(text)
    assert [(line["query"], line["batch"], line["rows"]) for line in said] == [
        ("files.placed", None, 150)
    ]
    assert spark.read.parquet(str(here / "out" / "placed")).count() == 150


def test_the_log_has_a_line_for_each_batch(here: Path, run_here: Run) -> None:
    text = FILES.replace("[pipeline]", '[pipeline]\nlog = "batches.jsonl"')
    assert run_here(text) == []
    lines = (here / "batches.jsonl").read_text().splitlines()
    assert [json.loads(line)["batch"] for line in lines] == [0, 1, 2]


def test_the_columns_of_all_tables_are_found_without_running(
    spark: SparkSession, here: Path
) -> None:
    assert schemas(spark, parse(FILES, folder=here)) == {
        "orders": "struct<id:bigint,total:bigint>",
        "regions": "struct<id:bigint,region:string>",
        "big": "struct<id:bigint,total:bigint>",
        "placed": "struct<id:bigint,total:bigint,region:string>",
    }
    assert not (here / "checkpoints").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("from orders", "from order", "[transform.big] sql: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("total > 50", "totals > 50", "[transform.big] sql: [UNRESOLVED_COLUMN"),
        ("select *", "selekt *", "[transform.big] sql: [PARSE_SYNTAX_ERROR]"),
        ("total BIGINT", "total BIG", "[source.orders] schema: "),
        ('"json"', '"jsom"', "[source.orders]: [DATA_SOURCE_NOT_FOUND]"),
        ('from = "placed"', 'from = "regions"', "[sink.placed] from: regions gets no"),
    ],
)
def test_what_only_spark_can_tell_names_its_table_too(
    spark: SparkSession, here: Path, right: str, wrong: str, said: str
) -> None:
    with pytest.raises(PipelineError) as refused:
        schemas(spark, parse(FILES.replace(right, wrong, 1), folder=here))
    text = str(refused.value)
    assert text.startswith(said)
    assert "\n" not in text
