"""Measures whether a block of code gives back its threads, descriptors and objects."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType

FD_DIRECTORY = "/proc/self/fd"


class LeakMeter:
    """A block after which everything is as before it, or AssertionError says what not.

    `counters` are further numbers that must be the same before and after, by name.
    Threads and descriptors that end during the block but were there before are no
    matter. A block that raises is not measured: its traceback keeps objects alive.
    """

    def __init__(
        self,
        counters: Mapping[str, Callable[[], int]] | None = None,
        *,
        timeout: float = 10.0,
    ) -> None:
        self._counters = dict(counters or {})
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
        if error is not None:
            return
        deadline = time.monotonic() + self._timeout
        for thread in self._new_threads():
            thread.join(max(0.0, deadline - time.monotonic()))
            del thread  # a Timer holds what it has called
        while leaks := self._leaks():
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError("leaked: " + "; ".join(leaks))
            # Nobody tells when a thread that was there before closes its files or
            # drops its last object, so there is nothing to wait for but time.
            time.sleep(min(0.01, left))

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
