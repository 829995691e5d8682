"""Failing memory costs a MemoryError, never a crash, a lost or a repeated message."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_allocation_of_the_core_may_fail() -> None:
    pytest.importorskip("_testcapi", reason="this Python cannot fail allocations")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.unit.allocation_failures"],
        cwd=ROOT,
        # What is not initialised has bytes that nobody can take for a number of his.
        env={**os.environ, "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "acknowledging_a_batch" in done.stdout
