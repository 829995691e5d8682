"""Publishes over a TLS link that takes nothing more: what was not sent never appears.

TLS may have sent any part of what it was given last, and says so much later. That is in
doubt; all behind it can still be taken back.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient.ack_future import AckFuture
from tests import certificates
from tests.certificates import Certificates
from tests.harness.scripted import (
    Script,
    ScriptedServer,
    expect,
    info_line,
    send,
    stall,
    start_tls,
)
from tests.net.client import answer_pings, connected, narrow
from tests.net.test_js_publish_faults import INFO, PATIENCE, WAYS, Way, bodies

SIZE = 16 << 10


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory: Path = tmp_path_factory.mktemp("certificates")
    return certificates.write(directory)


def stalling(certs: Certificates) -> Script:
    """A server that reads nothing after the handshake until it is let go."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server.cert_file, certs.server.key_file)
    return [
        send(info_line({**INFO, "tls_required": True})),
        start_tls(context),
        expect(b"CONNECT "),
        expect(b"PING\r\n"),
        send(b"PONG\r\n"),
        stall("go"),
        answer_pings,
    ]


def client(server: ScriptedServer, certs: Certificates) -> jsclient.Connection:
    nc = connected(
        server.url.replace("nats:", "tls:"),
        tls=ssl.create_default_context(cafile=certs.ca_file),
        write_buffer=64 << 20,
    )
    narrow(nc)
    return nc


@WAYS
def test_a_publish_behind_a_stalled_link_is_withdrawn_at_its_deadline(
    way: Way, certs: Certificates
) -> None:
    with (
        ScriptedServer(stalling(certs), receive_buffer=65536) as server,
        client(server, certs) as nc,
    ):
        # Far more than the kernel takes.
        for _ in range(20):
            nc.publish("fill", b"x" * (1 << 18))
        js = nc.jetstream(timeout=0.2, ack_timeout=0.2)
        with pytest.raises(errors.TimeoutError, match="was not sent") as caught:
            way(js, "a.b", b"late")
        assert not isinstance(caught.value, failures.PublishOutcomeUnknownError)
        server.release("go")
        nc.flush(PATIENCE)
        assert b"late" not in bodies(server.received())
        assert nc._loop.outbox.frames == 0


def test_what_tls_has_seen_is_unknown_and_what_is_behind_it_is_taken_back(
    certs: Certificates,
) -> None:
    with (
        ScriptedServer(stalling(certs), receive_buffer=65536) as server,
        client(server, certs) as nc,
    ):
        js = nc.jetstream(timeout=PATIENCE, ack_timeout=0.5, max_pending=4000)
        futures: list[AckFuture] = []
        # Far more than the kernel takes, and TLS at once.
        for number in range(200):
            data = b"%0*d" % (SIZE, number)
            futures.append(js.publish_async("a.b", data))
        ends = [type(future.exception(PATIENCE)) for future in futures]
        server.release("go")
        nc.flush(PATIENCE)
        came = {int(body[-9:]) for body in bodies(server.received())}
        refused = [n for n, end in enumerate(ends) if end is errors.TimeoutError]
        assert set(ends) == {errors.TimeoutError, failures.PublishTimeoutError}
        assert len(refused) >= 5, "not only what TLS has not seen at the very end"
        assert came.isdisjoint(refused)
        assert len(came) + len(refused) == len(futures), "what was unknown did come"
        assert nc._loop.outbox.frames == 0
