"""Runs all tests: `python -m tests.run`, with any arguments of pytest behind it.

Tests that talk to servers, real or scripted, leave most of the machine to others, so
those that talk to nobody, and those of Spark, run beside them; what these say follows
at the end. Spark leaves a signal handler and a JVM behind: its tests have a process of
their own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO

INTERRUPTED = 2  # pytest's word for Ctrl-C
NOTHING_CHOSEN = 5  # and for arguments that choose no test of a group
ALONE = ("tests/unit", "tests/sim")
WITH_SCRIPTS = ("tests/net",)
WITH_SERVERS = ("tests/live", "tests/process")
WITH_SPARK = ("tests/spark",)

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
    with tempfile.TemporaryFile() as told, ThreadPoolExecutor() as beside:
        quiet = beside.submit(run, (ALONE, WITH_SPARK), arguments, told)
        statuses = run((WITH_SERVERS, WITH_SCRIPTS), arguments)
        statuses += quiet.result()
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
