"""Processes that stand still for a while, and interpreters that are busy elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

import jsclient
from jsclient import events, server
from tests.live.support import Events
from tests.process import children

pytestmark = pytest.mark.live


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no job control here")
def test_a_process_that_was_stopped_goes_on_by_itself() -> None:
    with server.run(config="ping_interval: 1s\nping_max: 1\n") as impatient:
        child = children.start(
            """
    import logging, sys
    import jsclient

    logging.disable()
    seen = []
    with jsclient.connect(sys.argv[1], reconnect_wait=0.05, on_event=seen.append) as nc:
        sub = nc.subscribe("stopped")
        nc.flush()
        print("ready")
        sys.stdin.readline()
        try:
            sub.next(timeout=0.5)
        except jsclient.TimeoutError:
            pass
        for _ in range(50):
            try:
                nc.flush(timeout=5)
                break
            except jsclient.DisconnectedError:
                pass
        nc.publish("stopped", b"x")
        assert sub.next(timeout=5).data == b"x"
        assert nc.stats().reconnects == 1, (nc.stats(), seen)
    """,
            impatient.url,
        )
        assert child.stdin is not None
        children.told(child, "ready")
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(4.0)  # the server gives a client up that does not answer
        os.kill(child.pid, signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        children.finish(child).check()


def test_a_busy_interpreter_is_not_taken_for_a_silent_server(url: str) -> None:
    told = Events()
    stop = threading.Event()

    def spin() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    with jsclient.connect(url, ping_interval=0.5, on_event=told) as nc:
        spinners = [threading.Thread(target=spin) for _ in range(3)]
        for thread in spinners:
            thread.start()
        try:
            assert sys.getswitchinterval() == pytest.approx(0.005)
            time.sleep(4.0)
            assert nc.rtt(timeout=5) < 5
        finally:
            stop.set()
            for thread in spinners:
                thread.join(10)
        assert told.of(events.Disconnected) == []
        assert nc.stats().reconnects == 0


def test_a_server_s_pings_are_answered_while_the_application_is_busy() -> None:
    told = Events()
    with (
        server.run(config="ping_interval: 500ms\nping_max: 2\n") as impatient,
        jsclient.connect(impatient.url, on_event=told) as nc,
    ):
        sub = nc.subscribe("busy")
        nc.flush()
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            sum(range(1000))
        assert told.of(events.Disconnected) == []
        nc.publish("busy", b"x")
        assert sub.next(timeout=5).data == b"x"
