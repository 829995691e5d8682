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
OWN = frozenset({"batches-5000", "jsall", "jsrows", "gaps"})


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
    """The program made of a C source beside this file."""
    path = ROOT / "bench" / source
    return built(
        path,
        (path, ROOT / "bench" / "meter.h"),
        lambda to: [*compiler(), "-std=c11", "-O2", "-o", to, str(path), *libraries],
    )


def go_compiled(source: str) -> Path:
    """The program made of a Go source beside this file, with the modules of go.mod."""
    path = ROOT / "bench" / source

    def command(to: str) -> list[str]:
        if shutil.which("go") is None:
            raise NotInstalledError("no Go: go is not a program")
        return ["go", "build", "-o", to, path.name]

    modules = (path.with_name("go.mod"), path.with_name("go.sum"))
    return built(path, (path, *modules), command)


def built(
    source: Path, inputs: Sequence[Path], command: Callable[[str], list[str]]
) -> Path:
    """The program of a source, made by the command when one of its inputs is newer."""
    program = BUILD / source.stem
    if program.exists() and all(
        each.stat().st_mtime < program.stat().st_mtime for each in inputs
    ):
        return program
    BUILD.mkdir(parents=True, exist_ok=True)
    # Built aside and moved, so that a run at the same time never starts half a program.
    fresh = program.with_suffix(f".{os.getpid()}")
    making = subprocess.run(
        command(str(fresh)), capture_output=True, text=True, cwd=source.parent
    )
    if making.returncode != 0:
        raise NotInstalledError(reason_of(making.stderr))
    fresh.replace(program)
    return program


def reason_of(output: str) -> str:
    """The line of a compiler's output that says why it failed."""
    lines = output.splitlines()
    errors = [line for line in lines if "error:" in line]
    # Go marks no error; it says before what it builds and what it has to fetch.
    others = [line for line in lines if not line.startswith(("#", "go: downloading"))]
    return next(iter(errors + others), output)


def floor() -> Client:
    """The raw C socket program; without it there is nothing to compare with."""
    cells = (LIVE | MICRO) - {"gaps"}
    return Client("floor", "", cells, (str(compiled("floor.c")),))


def jsclient() -> Client:
    return _python_client("jsclient", "jsclient", "jsclient_worker", EVERY)


def nats_py() -> Client:
    if importlib.util.find_spec("nats") is None:
        raise NotInstalledError("the package nats-py is not installed")
    return _python_client("nats-py", "nats-py", "natspy_worker", EVERY - OWN)


def nats_c() -> Client:
    program = compiled("peers/natsc_worker.c", "-lnats", "-lpthread")
    return _compiled_client("nats.c", program)


def nats_go() -> Client:
    return _compiled_client("nats.go", go_compiled("peers/natsgo_worker.go"))


def _compiled_client(name: str, program: Path) -> Client:
    answer = subprocess.run(
        [program, "-", "version", "0", "0"], capture_output=True, text=True
    )
    if answer.returncode != 0:
        raise NotInstalledError(answer.stderr.strip())
    cells = LIVE - OWN - {"push"}
    return Client(name, answer.stdout.strip(), cells, (str(program),))


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
    "nats.go": nats_go,
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
