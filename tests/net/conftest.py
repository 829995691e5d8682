"""Every test of this tier gives back its threads, descriptors and compiled objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jsclient._core import live_objects
from tests.harness.leaks import LeakMeter


def _counter(name: str) -> Callable[[], int]:
    return lambda: live_objects()[name]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    with LeakMeter({name: _counter(name) for name in live_objects()}):
        yield
