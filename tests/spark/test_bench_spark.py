"""The benchmark of Spark runs, at a size that says nothing about speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from bench.spark import bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.live


def test_every_cell_gives_its_figures(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    document = bench(spark, [500], runs=1, splits=[1])
    cells = {line["cell"]: line for line in document["results"]}
    assert set(cells) == {
        *("raw", "consumer", "direct", "tuples", "rate"),
        *("floor", "columns", "sink"),
    }
    assert all(line["rate"] > 0 for line in cells.values())
    for name in ("consumer", "direct", "tuples", "rate", "sink"):
        assert {"python", "jvm", "server"} <= set(cells[name])
    assert "consumer" in capsys.readouterr().out
