"""The benchmark of Spark runs, at a size that says nothing about speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from bench import spark_batches, spark_cells
from bench.spark import asked, bench, judged, verdict
from bench.spark_cells import Cell, WrongResultError, check, taken
from tests.spark.readers import since_42

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is warmed up."""
    monkeypatch.setattr(spark_cells, "UNCOUNTED", 0)
    monkeypatch.setattr(spark_batches, "WARM", 1)


@pytest.mark.live
def test_every_cell_of_rows_gives_its_figures(
    spark: SparkSession, hurried: None, capsys: pytest.CaptureFixture[str]
) -> None:
    document = bench(spark, [500], runs=1, splits=[1], only=["read", "write"])
    cells = {line["cell"]: line for line in document["results"]}
    assert set(cells) == {
        *("raw", "consumer", "direct", "plain", "tuples", "range"),
        *("floor", "columns", "sink"),
    }
    assert all(line["rate"] > 0 for line in cells.values())
    for name in ("consumer", "direct", "plain", "tuples", "range", "sink"):
        assert {"client", "jvm", "server"} <= set(cells[name])
    assert "consumer" in capsys.readouterr().out


@since_42  # before, the first batch of a query has all there is
@pytest.mark.live
def test_every_cell_of_batches_gives_its_figures(
    spark: SparkSession, hurried: None, capsys: pytest.CaptureFixture[str]
) -> None:
    document = bench(spark, [], runs=1, batches=1, only=["batches"])
    cells = {line["cell"]: line for line in document["results"]}
    assert {name for name, line in cells.items() if "over_idle" in line} == {
        "jetstream>noop",
        "jetstream>jetstream",
    }
    assert set(cells) > {"rate>noop", "idle>noop", "idle>idle"}
    assert all(line["ms"] >= line["addBatch"] > 0 for line in cells.values())
    assert "jetstream>noop" in capsys.readouterr().out


def test_parts_and_sizes_can_be_named_several_times() -> None:
    parts, sizes = ["--only=write", "--only=batches"], ["--messages=5", "--messages=7"]
    chosen = asked([*parts, *sizes])
    assert (chosen.only, chosen.messages) == (["write", "batches"], [5, 7])
    assert asked([]).only == ["read", "write", "batches"]


def test_cells_take_turns_and_the_first_round_does_not_count() -> None:
    seen: list[str] = []

    def cell(name: str) -> Cell:
        def take() -> dict[str, float]:
            seen.append(name)
            return {"seconds": float(len(seen))}

        return Cell(name, 1, take)

    found = taken([cell("a"), cell("b"), cell("c")], 2)
    assert "".join(seen) == "abcbcacab"
    assert found["b", 1] == [{"seconds": 4.0}, {"seconds": 9.0}]


def test_a_run_with_a_wrong_result_is_none() -> None:
    check("rows", 5, 5)
    with pytest.raises(WrongResultError, match="rows: 4, not 5"):
        check("rows", 4, 5)


def test_a_line_says_which_of_its_goals_are_missed() -> None:
    line = {"cell": "sink", "parts": 2, "client": 2.0, "of_floor": 0.9}
    assert verdict(judged(line)) == "  met"
    assert verdict(judged(line | {"of_floor": 0.5})) == (
        "  MISSED: of_floor 0.50 is to be at least 0.85"
    )
    assert verdict(judged(line | {"cell": "columns"})) == ""
