"""Every cell of the benchmark runs, at a size that says nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import clients
from bench.__main__ import main
from bench.cells import CELLS, Cell

MEASURED = ("floor", "jsclient")

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def installed() -> None:
    absent = clients.find(MEASURED)[1]
    if absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell_gives_every_figure_for_the_floor_and_for_jsclient(
    cell: Cell, tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    # An import is timed by starting Python twice for each: once is enough here.
    messages = "1" if cell.name == "import" else "200"
    measured = [word for name in MEASURED for word in ("--client", name)]
    sizes = ["--messages", messages, "--runs", "1"]
    assert main(["--cell", cell.name, *measured, *sizes, "--json", str(path)]) == 0

    document = json.loads(path.read_text(encoding="utf-8"))
    results = document["cells"][cell.name]["clients"]
    # Nothing is imported by a C program.
    assert set(results) == set(MEASURED) - (
        {"floor"} if cell.name == "import" else set()
    )
    for result in results.values():
        assert set(result["medians"]) == {figure.name for figure in cell.figures}
        assert None not in result["medians"].values()
        assert len(result["samples"]) == 1


def test_a_client_that_fails_is_reported_and_fails_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # No worker can send a payload that large.
    options = ["--messages", "1", "--size", "100000000", "--runs", "1"]
    path = str(tmp_path / "bench.json")
    status = main(["--cell", "pub", "--client", "floor", *options, "--json", path])
    assert status == 1
    assert (
        "FAILED pub, floor, run 1 of 1: ended with status 1" in capsys.readouterr().out
    )
