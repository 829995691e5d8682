"""Measures whether a block of code gives back its threads, descriptors and objects."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

import pytest

FD_DIRECTORY = "/proc/self/fd"

_HAS_RAISED = pytest.StashKey[bool]()


class LeakMeter:
    """A block after which everything is as before it, or AssertionError says what not.

    `counters` are further numbers that must be the same before and after, by name. Who
    holds objects of the types `told` is said when something leaks.
    Threads and descriptors that end during the block but were there before are no
    matter. A block that raises is not measured: its traceback keeps objects alive.
    """

    def __init__(
        self,
        counters: Mapping[str, Callable[[], int]] | None = None,
        *,
        told: tuple[type, ...] = (),
        timeout: float = 10.0,
    ) -> None:
        self._counters = dict(counters or {})
        self._told = told
        self._timeout = timeout
        self._threads: set[threading.Thread] = set()
        self._files: Counter[str] = Counter()
        self._counts: dict[str, int] = {}

    def __enter__(self) -> LeakMeter:
        _collect()
        self._threads = set(threading.enumerate())
        self._files = open_files()
        self._counts = {name: count() for name, count in self._counters.items()}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and (leaks := self.settle(self._timeout)):
            raise AssertionError("leaked: " + "; ".join([*leaks, *self._holders()]))

    def settle(self, timeout: float) -> list[str]:
        """Waits until everything is as before; what is not when the time is over."""
        deadline = time.monotonic() + timeout
        for thread in self._new_threads():
            thread.join(max(0.0, deadline - time.monotonic()))
            del thread  # a Timer holds what it has called
        while leaks := self._leaks():
            left = deadline - time.monotonic()
            if left <= 0:
                return leaks
            # Nobody tells when a thread that was there before closes its files or
            # drops its last object, so there is nothing to wait for but time.
            time.sleep(min(0.01, left))
        return []

    def _new_threads(self) -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one not in self._threads]

    def _leaks(self) -> list[str]:
        _collect()
        leaks = [f"thread {thread.name}" for thread in self._new_threads()]
        for target, surplus in sorted((open_files() - self._files).items()):
            leaks.append(f"{surplus} x file {target}")
        for name, count in self._counters.items():
            value = count()
            if value != self._counts[name]:
                leaks.append(f"{name} is {value}, was {self._counts[name]}")
        return leaks

    def _holders(self) -> list[str]:
        found = [one for one in gc.get_objects() if issubclass(type(one), self._told)]
        return [
            f"{type(one).__name__} is held by {repr(by)[:200]}"
            for one in found
            for by in gc.get_referrers(one)
            if by is not found
        ]


def note_error(test: pytest.Item) -> None:
    """The test has raised, so `measured` does not say that it leaks as well."""
    test.stash[_HAS_RAISED] = True


def measured(
    test: pytest.Item,
    counters: Mapping[str, Callable[[], int]] | None = None,
    told: tuple[type, ...] = (),
) -> Iterator[None]:
    """What a fixture yields from: the block of a LeakMeter is the test."""
    _forget_error()
    meter = LeakMeter(counters, told=told)
    meter.__enter__()
    yield
    if not test.stash.get(_HAS_RAISED, False):
        meter.__exit__(None, None, None)
        return
    # What it left behind may end now, and not in the middle of the next test.
    _forget_error()
    meter.settle(1.0)


def _forget_error() -> None:
    # pytest keeps the error of a test, and so all that its frames hold, until the call
    # of the next one.
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)


def open_files() -> Counter[str]:
    """What the open descriptors of this process lead to; empty where nobody tells."""
    if not os.path.isdir(FD_DIRECTORY):
        return Counter()
    targets: Counter[str] = Counter()
    for name in os.listdir(FD_DIRECTORY):
        try:
            targets[os.readlink(f"{FD_DIRECTORY}/{name}")] += 1
        except FileNotFoundError:
            continue  # closed since, as is the one that listed the directory
    return targets


def _collect() -> None:
    # Finalizers can make new garbage; three rounds settle what we know of.
    for _ in range(3):
        gc.collect()
