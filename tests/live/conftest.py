"""Servers and certificates for the live tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from tests import certificates
from tests.harness.leaks import measured
from tests.harness.streams import lent_jetstream
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
def no_leaks(request: pytest.FixtureRequest, plain_server: Server) -> Iterator[None]:
    """The test gives back its threads and descriptors."""
    yield from measured(request.node)


@pytest.fixture(scope="session")
def jetstream_server() -> Iterator[Server]:
    """A server with JetStream, shared by tests that do it no harm."""
    with run(jetstream=True) as running:
        yield running


@pytest.fixture
def js(jetstream_server: Server) -> Iterator[JetStream]:
    """A JetStream without streams; those that the test makes are deleted after it."""
    with lent_jetstream(jetstream_server.url) as context:
        yield context
