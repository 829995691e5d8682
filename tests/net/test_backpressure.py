"""A peer that does not read: what a full socket does to those who publish and flush."""

from __future__ import annotations

import threading
import time

import jsclient
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    expect,
    handshake,
    stall,
)


def fill(nc: jsclient.Connection) -> None:
    for _ in range(300):
        nc.publish("a", bytes(10_000))
    # Long enough for the keeper to find the socket full.
    time.sleep(0.1)


def test_a_flush_behind_a_full_socket_ends_when_the_peer_reads_again() -> None:
    steps = [
        handshake(),
        stall("first"),
        expect(b"PUB mark 0\r\n"),
        stall("second"),
        answer_ping(),
    ]
    with (
        ScriptedServer(steps, receive_buffer=4096) as server,
        jsclient.connect(server.url, ping_interval=0) as nc,
    ):
        # Idle for longer than the keeper's patience: it is at the helm, in select, and
        # stays there while it works the first jam off.
        time.sleep(0.3)
        fill(nc)
        nc.publish("mark")
        server.release("first")
        server.wait_for(b"PUB mark 0\r\n", timeout=10.0)

        fill(nc)
        flusher = threading.Thread(target=nc.flush, args=(20.0,))
        flusher.start()
        time.sleep(0.1)
        assert flusher.is_alive()
        server.release("second")
        flusher.join(10.0)
        assert not flusher.is_alive()
