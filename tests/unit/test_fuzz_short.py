"""The fuzz program, for a moment in each test run and longer under sanitizers."""

import random
import subprocess
import sys

import pytest

from tests.fuzz import fuzz_core, run_sanitized


def test_random_sessions_have_the_outcome_of_the_reference() -> None:
    said: list[str] = []
    seed = random.randrange(1 << 40)
    try:
        rounds = fuzz_core.run(2.0, seed, said.append)
    except fuzz_core.Difference as found:
        pytest.fail(f"{''.join(said)}{found}")
    assert rounds >= 50


def test_a_round_depends_on_its_seed_alone() -> None:
    streams = [fuzz_core.frame(random.Random(5)) for _ in range(2)]
    assert streams[0] == streams[1]
    assert fuzz_core.frame(random.Random(6)) != streams[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_sessions_are_clean_under_the_sanitizers() -> None:
    if run_sanitized.sanitizers() is None:
        pytest.skip("the compiler has no sanitizer libraries")
    seed = random.randrange(1 << 40)
    arguments = ["--seconds", "5", "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run_sanitized", *arguments],
        cwd=run_sanitized.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without a difference" in done.stdout
