"""Runs all tests: `python -m tests.run`, with any arguments of pytest behind it.

Tests that talk to scripted peers or to nobody run in the background of those that wait
for real servers: together they need little more time than either. Spark leaves a signal
handler and a JVM behind, so its tests come last, in a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import IO

NOTHING_CHOSEN = 5  # pytest's word for arguments that choose no test of a group
ALONE = ("tests/unit", "tests/sim", "tests/net")
WITH_SERVERS = ("tests/live", "tests/process")
WITH_SPARK = ("tests/spark",)


def command(group: tuple[str, ...], arguments: list[str]) -> list[str]:
    """Runs a group; each remembers its failures in a place of its own."""
    cache = f"cache_dir=.pytest_cache/{group[0].replace('/', '-')}"
    return [sys.executable, "-m", "pytest", "-o", cache, *group, *arguments]


def start(
    group: tuple[str, ...], arguments: list[str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a group, which tells its progress here or into a file."""
    error = None if output is None else subprocess.STDOUT
    return subprocess.Popen(command(group, arguments), stdout=output, stderr=error)


def verdict(
    group: tuple[str, ...], process: subprocess.Popen[bytes], arguments: list[str]
) -> int:
    """What became of a group; its failures have a second chance, alone."""
    status = process.wait()
    if status != 1:
        return status
    sys.stdout.write("once more, alone: busy machines are too late for some tests\n")
    sys.stdout.flush()
    again = ["--last-failed", "--last-failed-no-failures", "none", *arguments]
    return start(group, again).wait()


def main(arguments: list[str]) -> int:
    """The exit status: 0 if all went well, else that of the first group that failed."""
    statuses = []
    with tempfile.TemporaryFile() as told:
        quiet = start(ALONE, arguments, told)
        loud = start(WITH_SERVERS, arguments)
        loud.wait()
        quiet.wait()
        told.seek(0)
        sys.stdout.write(told.read().decode(errors="replace"))
        sys.stdout.flush()
        statuses.append(verdict(WITH_SERVERS, loud, arguments))
        statuses.append(verdict(ALONE, quiet, arguments))
    statuses.append(verdict(WITH_SPARK, start(WITH_SPARK, arguments), arguments))
    failed = [status for status in statuses if status not in (0, NOTHING_CHOSEN)]
    if failed:
        return failed[0]
    return 0 if 0 in statuses else NOTHING_CHOSEN


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
