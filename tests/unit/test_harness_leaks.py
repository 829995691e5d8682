"""The leak meter sees what stays behind and forgives what goes in time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.harness.leaks import FD_DIRECTORY, LeakMeter, open_files

ROOT = Path(__file__).parents[2]

needs_proc = pytest.mark.skipif(
    not os.path.isdir(FD_DIRECTORY), reason="nobody tells about descriptors"
)


def test_a_block_that_leaves_nothing_passes() -> None:
    with LeakMeter({"seven": lambda: 7}):
        reader, writer = os.pipe()
        os.close(reader)
        os.close(writer)


def test_a_thread_that_stays_is_named() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="lingerer", daemon=True)
    with (
        pytest.raises(AssertionError, match="leaked: thread lingerer"),
        LeakMeter(timeout=0.05),
    ):
        thread.start()
    gate.set()
    thread.join()


def test_a_thread_that_ends_in_time_is_waited_for() -> None:
    gate = threading.Event()
    timer = threading.Timer(0.05, gate.set)
    with LeakMeter(timeout=10.0):
        timer.start()
        threading.Thread(target=gate.wait).start()
    assert gate.is_set()


def test_what_only_a_timer_holds_that_ends_in_time_is_no_leak() -> None:
    class Held:
        live = 0

        def __init__(self) -> None:
            Held.live += 1
            self.is_over = threading.Event()

        def wait(self) -> None:
            self.is_over.wait(10.0)

        def __del__(self) -> None:
            Held.live -= 1

    with LeakMeter({"held": lambda: Held.live}, timeout=10.0):
        held = Held()
        threading.Timer(0.05, held.is_over.set).start()
        threading.Timer(0.0, held.wait).start()
        del held


def test_a_thread_that_was_there_before_may_stay_or_end() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, daemon=True)
    thread.start()
    with LeakMeter():
        pass
    with LeakMeter():
        gate.set()
        thread.join()


@needs_proc
def test_a_descriptor_that_stays_is_named_by_its_target() -> None:
    meter = LeakMeter(timeout=0.05)
    meter.__enter__()
    reader, writer = os.pipe()
    target = os.readlink(f"{FD_DIRECTORY}/{reader}")
    with pytest.raises(AssertionError) as caught:
        meter.__exit__(None, None, None)
    assert f"2 x file {target}" in str(caught.value)
    os.close(reader)
    os.close(writer)


@needs_proc
def test_open_files_counts_descriptors_of_one_target() -> None:
    with open(os.devnull) as first, open(os.devnull) as second:
        assert open_files()[os.devnull] >= 2
        assert first.fileno() != second.fileno()


def test_a_counter_that_differs_is_named_with_both_values() -> None:
    live = [3]
    with (
        pytest.raises(AssertionError, match="messages is 5, was 3"),
        LeakMeter({"messages": lambda: live[0]}, timeout=0.05),
    ):
        live[0] = 5


def test_who_holds_what_leaked_is_told() -> None:
    class Held:
        pass

    live: list[Held] = []
    with (
        pytest.raises(AssertionError, match=r"held is 1, was 0; Held is held by \["),
        LeakMeter({"held": lambda: len(live)}, told=(Held,), timeout=0.05),
    ):
        live.append(Held())


def test_a_counter_below_its_start_is_a_leak_too() -> None:
    live = [3]
    with (
        pytest.raises(AssertionError, match="messages is 2, was 3"),
        LeakMeter({"messages": lambda: live[0]}, timeout=0.05),
    ):
        live[0] = 2


def test_an_object_in_a_reference_cycle_is_collected_first() -> None:
    class Node:
        live = 0

        def __init__(self) -> None:
            self.me = self
            Node.live += 1

        def __del__(self) -> None:
            Node.live -= 1

    with LeakMeter({"nodes": lambda: Node.live}, timeout=0.05):
        Node()


def test_the_error_of_the_block_is_not_hidden_by_leaks() -> None:
    calls: list[None] = []

    def count() -> int:
        calls.append(None)
        return len(calls)

    with pytest.raises(ValueError, match="mine"), LeakMeter({"calls": count}):
        raise ValueError("mine")
    assert len(calls) == 1


FAILING = """
import pytest
from tests.harness.leaks import measured

class Held:
    live = 0
    def __init__(self):
        Held.live += 1
    def __del__(self):
        Held.live -= 1

@pytest.fixture(autouse=True)
def nothing_leaks(request):
    yield from measured(request.node, {"held": lambda: Held.live})

def test_one():
    held = Held()
    assert False

def test_two():
    assert Held.live == 0
"""


def test_a_test_that_fails_is_not_reported_as_a_leak_nor_is_the_next_one(
    tmp_path: Path,
) -> None:
    hook = "from tests.conftest import pytest_runtest_makereport"
    (tmp_path / "conftest.py").write_text(hook)
    (tmp_path / "test_both.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", str(tmp_path)]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 failed, 1 passed in" in ended.stdout, ended.stdout + ended.stderr
