"""Every test of this tier gives back its threads, descriptors and compiled objects."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from jsclient._core import Route, live_objects
from tests.harness.leaks import measured


def _counter(name: str) -> Callable[[], int]:
    return lambda: live_objects()[name]


@pytest.fixture(scope="package", autouse=True)
def _small_collections() -> Iterator[None]:
    """The meter collects several times per test: what is there now need not be seen."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    counters = {name: _counter(name) for name in live_objects()}
    yield from measured(request.node, counters, (Route,))
