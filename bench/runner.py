"""Takes samples: starts a worker and what it needs beside it, and reads its result.

Every sample is a process of its own, so no client inherits another's memory or warm
caches. The clients take turns within each run, in an order that rotates from run to
run: a slow minute of the machine meets all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.cells import Beside, Cell, Sample
from bench.clients import ROOT, Client

PATIENCE = 120.0  # seconds after which a worker counts as stuck


class WorkerError(Exception):
    """A worker gave no sample."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, how often and how large."""

    cells: Sequence[Cell]
    clients: Sequence[Client]
    runs: int
    size: int
    messages: Callable[[Cell], int]


@dataclass(slots=True)
class Outcome:
    """The samples of each cell and client, and what went wrong."""

    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@contextmanager
def process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program whose output is read; it is ended with the block or as stuck."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    timer = threading.Timer(PATIENCE, child.kill)
    timer.start()
    try:
        with child:
            try:
                yield child
            finally:
                child.kill()
    finally:
        timer.cancel()


def await_ready(child: subprocess.Popen[str]) -> None:
    """Waits for the line READY."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if line.strip() != "READY":
        raise WorkerError(f"said {line!r} instead of READY")


def take_sample(
    client: Client, floor: Client, cell: Cell, url: str, messages: int, size: int
) -> Sample:
    """Runs one worker to its end. Raises WorkerError."""
    load = [*floor.program, url, "load", str(messages), str(size)]
    echo = [*floor.program, url, "echo", "0", "0"]
    command = client.command(cell, url, messages, size)
    if cell.beside is Beside.ECHO:
        with process(echo) as responder:
            await_ready(responder)
            return finished(command)
    if cell.beside in (Beside.STREAM, Beside.FILLED):
        make = [*floor.program, url, cell.beside.value, str(messages), str(size)]
        if subprocess.run(make, timeout=PATIENCE).returncode != 0:
            raise WorkerError("there is no stream to work with")
    if cell.beside is Beside.LOAD:
        return finished(command, load)
    return finished(command)


def finished(command: Sequence[str], load: Sequence[str] | None = None) -> Sample:
    """The sample of a worker, with the load started when it is ready for it."""
    with process(command) as worker:
        assert worker.stdout is not None
        if load is not None:
            await_ready(worker)
            with process(load) as publisher:
                publisher.communicate()
        output = worker.stdout.read()
        status = worker.wait()
    if status != 0 or not output:
        raise WorkerError(f"ended with status {status}")
    sample: dict[str, float] = json.loads(output)
    return sample


def run(plan: Plan, floor: Client, url: str) -> Outcome:
    """All runs of all cells; progress goes to the standard error stream."""
    outcome = Outcome()
    for cell in plan.cells:
        takers = [client for client in plan.clients if cell.name in client.cells]
        by_client = outcome.samples.setdefault(cell.name, {})
        for number in range(plan.runs):
            turn = number % len(takers) if takers else 0
            for client in takers[turn:] + takers[:turn]:
                doing = f"{cell.name}, {client.name}, run {number + 1} of {plan.runs}"
                show_progress(doing)
                try:
                    sample = take_sample(
                        client, floor, cell, url, plan.messages(cell), plan.size
                    )
                except WorkerError as error:
                    outcome.failures.append(f"{doing}: {error}")
                else:
                    by_client.setdefault(client.name, []).append(sample)
    show_progress("")
    return outcome


def show_progress(text: str) -> None:
    """Replaces the line that says what is being done, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def server_info(floor: Client, url: str) -> dict[str, object]:
    """What the server says of itself."""
    command = [*floor.program, url, "info", "0", "0"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    info: dict[str, object] = json.loads(answer.stdout)
    return info
