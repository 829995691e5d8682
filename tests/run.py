"""Runs all tests: `python -m tests.run`, with any arguments of pytest behind it.

Tests spend most of their time waiting, for servers, clocks or Spark, so groups of them
run side by side; what those in the background say follows at the end. Spark leaves a
signal handler and a JVM behind: its tests have a process of their own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO

INTERRUPTED = 2  # pytest's word for Ctrl-C
NOTHING_CHOSEN = 5  # and for arguments that choose no test of a group
# Each lane runs its groups one after the other; all take about as long.
FOREGROUND = (("tests/live",),)
BACKGROUND = (
    (("tests/process",), ("tests/net",), ("tests/unit", "tests/sim")),
    (("tests/spark",),),
)

Group = tuple[str, ...]


def run(
    groups: tuple[Group, ...], arguments: list[str], output: IO[bytes] | None = None
) -> list[int]:
    """Runs groups one after the other; they tell their progress here or into a file."""
    statuses = []
    for group in groups:
        # Each remembers its failures in a place of its own.
        cache = f"cache_dir=.pytest_cache/{group[0].replace('/', '-')}"
        command = [sys.executable, "-m", "pytest", "-o", cache, *group, *arguments]
        error = None if output is None else subprocess.STDOUT
        done = subprocess.run(command, stdout=output, stderr=error, check=False)
        statuses.append(done.returncode)
        if done.returncode == INTERRUPTED:
            break
    return statuses


def main(arguments: list[str]) -> int:
    """The exit status: 0 if all went well, else that of the first group that failed."""
    with contextlib.ExitStack() as stack:
        lanes = []
        beside = stack.enter_context(ThreadPoolExecutor())
        for groups in BACKGROUND:
            told = stack.enter_context(tempfile.TemporaryFile())
            lanes.append((told, beside.submit(run, groups, arguments, told)))
        statuses = run(FOREGROUND, arguments)
        for told, lane in lanes:
            statuses += lane.result()
            told.seek(0)
            sys.stdout.write(told.read().decode(errors="replace"))
            sys.stdout.flush()
    failed = [status for status in statuses if status not in (0, NOTHING_CHOSEN)]
    if failed:
        return failed[0]
    return 0 if 0 in statuses else NOTHING_CHOSEN


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
