"""Servers and certificates for the live tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jsclient.server import Server
from tests import certificates
from tests.harness.leaks import LeakMeter
from tests.live.support import Events


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    """A CA and certificates, made once."""
    return certificates.write(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def plain_server(server: Server) -> Server:
    """The shared server, for modules that use the name of its fixture otherwise."""
    return server


@pytest.fixture
def url(plain_server: Server) -> str:
    """The address of the shared server."""
    return plain_server.url


@pytest.fixture
def told() -> Events:
    """A recorder to be given as `on_event`."""
    return Events()


@pytest.fixture
def no_leaks(plain_server: Server) -> Iterator[None]:
    """The test gives back its threads and descriptors."""
    with LeakMeter(timeout=10.0):
        yield
