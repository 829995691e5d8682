"""What tests of every kind share: servers, a connection, a line about the server."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import hypothesis
import pytest

import jsclient
from jsclient.server import Server, find_binary, run
from tests.harness.leaks import note_error

# Machines that are shared have slow moments: no example fails for taking long.
hypothesis.settings.register_profile("jsclient", deadline=None)
hypothesis.settings.load_profile("jsclient")


def pytest_configure() -> None:
    """Children must feel Ctrl-C also where a shell runs the tests in its background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Says which server the live tests use."""
    try:
        binary = find_binary()
    except jsclient.ServerNotFoundError as error:
        return f"nats-server: {error}"
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True)
    version = answer.stdout.split()[-1:] or ["does not tell its version"]
    return f"nats-server: {version[0]} ({binary})"


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Whoever measures leaks has to know of a failure."""
    if call.excinfo is not None:
        note_error(item)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server without options for the whole session; tests do it no harm."""
    with run() as running:
        yield running


@pytest.fixture
def fresh_server() -> Iterator[Server]:
    """A server for one test, which may kill or restart it."""
    with run() as running:
        yield running


@pytest.fixture
def connection(server: Server) -> Iterator[jsclient.Connection]:
    """An open connection to the shared server."""
    with jsclient.connect(server.url) as nc:
        yield nc
