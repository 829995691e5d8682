"""One server for the tests of processes, signals and threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jsclient import server


@pytest.fixture(scope="session")
def running() -> Iterator[server.Server]:
    """A server that outlives every test; none of them harms it."""
    with server.run() as started:
        yield started


@pytest.fixture
def url(running: server.Server) -> str:
    """Its address."""
    return running.url
