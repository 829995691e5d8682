"""Which clients can be measured here, and how their workers are built and started."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cells import CELLS, Cell

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
LIVE = frozenset(cell.name for cell in CELLS if cell.module is None)
MICRO = frozenset(cell.name for cell in CELLS if cell.module == "bench.micro")
EVERY = frozenset(cell.name for cell in CELLS)
# What only jsclient has: the others publish many with futures.
OWN = frozenset({"batches-5000", "jsall", "jsrows"})


class NotInstalledError(Exception):
    """The client cannot be measured on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is installed: its version, its cells, and its worker program."""

    name: str
    version: str
    cells: frozenset[str]
    program: tuple[str, ...]

    def command(self, cell: Cell, url: str, messages: int, size: int) -> list[str]:
        """The command line of a worker for one sample."""
        numbers = [str(messages), str(size)]
        if cell.module is not None and self.program[0] == sys.executable:
            return [sys.executable, "-m", cell.module, self.name, cell.name, *numbers]
        return [*self.program, url, cell.name, *numbers]


def compiler() -> list[str]:
    """The C compiler, from the environment variable CC if it is set."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        raise NotInstalledError(f"no C compiler: {command[0]} is not a program")
    return command


def compiled(source: str, *libraries: str) -> Path:
    """The program made of a C source beside this file, built when it is out of date."""
    path = ROOT / "bench" / source
    program = BUILD / path.stem
    inputs = (path, ROOT / "bench" / "meter.h")
    if program.exists() and all(
        each.stat().st_mtime < program.stat().st_mtime for each in inputs
    ):
        return program
    BUILD.mkdir(parents=True, exist_ok=True)
    # Built aside and moved, so that a run at the same time never starts half a program.
    fresh = program.with_suffix(f".{os.getpid()}")
    command = [*compiler(), "-std=c11", "-O2", "-o", str(fresh), str(path), *libraries]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        lines = [line for line in built.stderr.splitlines() if "error:" in line]
        raise NotInstalledError(lines[0] if lines else built.stderr)
    fresh.replace(program)
    return program


def floor() -> Client:
    """The raw C socket program; without it there is nothing to compare with."""
    return Client("floor", "", LIVE | MICRO, (str(compiled("floor.c")),))


def jsclient() -> Client:
    return _python_client("jsclient", "jsclient", "jsclient_worker", EVERY)


def nats_py() -> Client:
    if importlib.util.find_spec("nats") is None:
        raise NotInstalledError("the package nats-py is not installed")
    return _python_client("nats-py", "nats-py", "natspy_worker", EVERY - OWN)


def nats_c() -> Client:
    program = str(compiled("peers/natsc_worker.c", "-lnats", "-lpthread"))
    answer = subprocess.run(
        [program, "-", "version", "0", "0"], capture_output=True, text=True
    )
    if answer.returncode != 0:
        raise NotInstalledError(answer.stderr.strip())
    return Client("nats.c", answer.stdout.strip(), LIVE - OWN, (program,))


def _python_client(
    name: str, distribution: str, worker: str, cells: frozenset[str]
) -> Client:
    version = importlib.metadata.version(distribution)
    return Client(name, version, cells, (sys.executable, "-m", f"bench.peers.{worker}"))


# In the order of the table's columns.
KNOWN: dict[str, Callable[[], Client]] = {
    "floor": floor,
    "jsclient": jsclient,
    "nats-py": nats_py,
    "nats.c": nats_c,
}


def find(names: Sequence[str]) -> tuple[list[Client], dict[str, str]]:
    """The named clients that are installed, and why the others are not."""
    found: list[Client] = []
    absent: dict[str, str] = {}
    for name in names:
        try:
            found.append(KNOWN[name]())
        except NotInstalledError as reason:
            absent[name] = str(reason)
    return found, absent
