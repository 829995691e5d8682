"""Every cell of the benchmark runs, at a size that says nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import clients
from bench.__main__ import main
from bench.cells import CELLS, Cell
from bench.clients import Client

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def present() -> list[Client]:
    """Every client that can be measured here; the peers are not on every machine."""
    found, absent = clients.find(list(clients.KNOWN))
    missing = {name: absent[name] for name in ("floor", "jsclient") if name in absent}
    if missing:
        pytest.skip(str(missing))
    return found


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell_gives_every_figure_for_every_client_that_is_present(
    cell: Cell, present: list[Client], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    # An import is timed by starting Python twice for each: once is enough here.
    messages = "1" if cell.name == "import" else "200"
    measured = [word for client in present for word in ("--client", client.name)]
    sizes = ["--messages", messages, "--runs", "1"]
    assert main(["--cell", cell.name, *measured, *sizes, "--json", str(path)]) == 0

    document = json.loads(path.read_text(encoding="utf-8"))
    results = document["cells"][cell.name]["clients"]
    assert set(results) == {each.name for each in present if cell.name in each.cells}
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
