"""The entry: `python -m bench [--quick] [--cell NAME] [--client NAME] ...`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import clients, facts, report, runner
from bench.cells import CELLS, Cell
from bench.clients import ROOT
from jsclient import server as local_server

SIZE = 128  # bytes of each payload
RUNS = 7
QUICK_RUNS = 3

# The slowest client must not be cut off while the load waits for it in the server.
SERVER_CONFIG = """
max_pending: 512MB
write_deadline: "60s"
"""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about one minute")
    parser.add_argument(
        "--cell", action="append", choices=[cell.name for cell in CELLS]
    )
    parser.add_argument("--client", action="append", choices=list(clients.KNOWN))
    parser.add_argument("--runs", type=int, help=f"default {RUNS}, quick {QUICK_RUNS}")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of a payload")
    parser.add_argument("--messages", type=int, help="the same number for every cell")
    parser.add_argument("--json", type=Path, help="default bench/results/....json")
    parser.add_argument("--server", help="URL of a running server; default: its own")
    return parser.parse_args(argv)


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of the server to measure with."""
    if url is not None:
        yield url
        return
    with local_server.run(config=SERVER_CONFIG, jetstream=True) as own:
        yield own.url


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a worker failed."""
    options = arguments(argv)
    wanted = options.client or list(clients.KNOWN)
    found, absent = clients.find([name for name in clients.KNOWN if name in wanted])
    cells = [cell for cell in CELLS if not options.cell or cell.name in options.cell]

    def messages(cell: Cell) -> int:
        if options.messages is not None:
            return int(options.messages)
        return cell.quick if options.quick else cell.messages

    plan = runner.Plan(
        cells=cells,
        clients=found,
        runs=options.runs or (QUICK_RUNS if options.quick else RUNS),
        size=options.size,
        messages=messages,
    )
    floor = clients.floor()  # the load and the responder, even if it is not measured
    about = facts.machine()
    with server(options.server) as url:
        about["server"] = runner.server_info(floor, url)["version"]
        outcome = runner.run(plan, floor, url)
    about["versions"] = {client.name: client.version for client in found}
    about["absent"] = absent

    for name, reason in absent.items():
        print(f"not measured: {name} ({reason})")
    print(f"{about['cpu']}, {about['cores']} cores, {about['python']}", end=", ")
    print(f"nats-server {about['server']}", end=", ")
    print(f"{plan.size}-byte messages, medians of {plan.runs} runs")
    print(report.table(cells, [client.name for client in found], outcome.samples))
    for failure in outcome.failures:
        print(f"FAILED {failure}")
    name = "quick.json" if options.quick else "bench.json"
    path = options.json or ROOT / "bench" / "results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": about,
        "runs": plan.runs,
        "size": plan.size,
        "messages": {cell.name: messages(cell) for cell in cells},
        "cells": report.summary(cells, outcome.samples),
        "failures": outcome.failures,
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
