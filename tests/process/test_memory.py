"""Nothing grows: not with messages, not with subscriptions, not with a slow reader."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

import jsclient
from jsclient import _core
from jsclient.server import Server, run
from tests.harness.leaks import LeakMeter, open_files
from tests.live.support import Events, until
from tests.process import children

pytestmark = pytest.mark.live


def settled() -> tuple[int, dict[str, int]]:
    """Allocated blocks and objects of the core, after the collector has been."""
    for _ in range(3):
        gc.collect()
    return sys.getallocatedblocks(), _core.live_objects()


def test_messages_leave_nothing_behind(url: str) -> None:
    with LeakMeter(), jsclient.connect(url) as nc, jsclient.connect(url) as other:
        sub = nc.subscribe("flow")
        nc.flush()

        def flow(count: int) -> None:
            for start in range(0, count, 2000):
                for number in range(start, start + 2000):
                    other.publish("flow", b"%064d" % number, headers={"A": "b"})
                for _ in range(2000):
                    msg = sub.next(timeout=10)
                    assert msg.headers is not None
            other.flush()

        flow(20_000)
        files, threads = open_files(), threading.active_count()
        blocks, objects = settled()
        flow(100_000)
        blocks_after, objects_after = settled()
        assert objects_after == objects
        assert blocks_after - blocks < 200
        assert (open_files(), threading.active_count()) == (files, threads)


def test_requests_leave_nothing_behind(url: str) -> None:
    with LeakMeter(), jsclient.connect(url) as nc:
        echo = nc.subscribe("echo", callback=lambda msg: msg.respond(msg.data))

        def flow(count: int) -> None:
            for _ in range(count):
                nc.request("echo", b"x", timeout=10)
                with pytest.raises(jsclient.NoRespondersError):
                    nc.request("nobody", timeout=10)

        flow(200)
        blocks, objects = settled()
        flow(1000)
        blocks_after, objects_after = settled()
        assert objects_after == objects
        assert blocks_after - blocks < 200
        assert len(nc._loop.request_inbox()) == 0
        echo.unsubscribe()


def test_subscriptions_made_and_dropped_leave_empty_tables(running: Server) -> None:
    with LeakMeter(), jsclient.connect(running.url, name="tables") as nc:

        def empty() -> bool:
            return (len(nc._loop.entries), len(nc._loop.routes)) == (0, 0)

        def churn() -> None:
            made = [nc.subscribe(f"many.{number}") for number in range(1000)]
            nc.flush()
            for sub in made[:300]:
                sub.unsubscribe()
            del made, sub
            until(empty, "all are forgotten")

        churn()
        blocks, objects = settled()
        for _ in range(9):
            churn()
        blocks_after, objects_after = settled()
        assert objects_after == objects
        assert blocks_after - blocks < 500
        nc.flush()
        found = children.connection(running, "tables")
        assert found is not None
        assert found["subscriptions"] == 0


def test_a_slow_reader_holds_no_more_than_its_limits(url: str) -> None:
    told = Events()
    with (
        jsclient.connect(url, on_event=told) as nc,
        jsclient.connect(url) as other,
    ):
        sub = nc.subscribe("slow", max_pending_messages=1000, max_pending_bytes=50_000)
        nc.flush()
        for _ in range(20_000):
            other.publish("slow", bytes(500))
        other.flush()
        told.wait(jsclient.events.SlowConsumer)
        nc.flush()
        assert sub.pending_messages <= 1000
        assert sub.pending_bytes <= 50_000
        assert sub.pending_messages + sub.dropped == 20_000
        assert _core.live_objects()["messages"] <= 1100


HOARDER = """
import json, sys, time
import jsclient

def resident(field):
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
        return int(line.split()[1]) * 1024

with jsclient.connect(sys.argv[1]) as nc:
    consumer = nc.jetstream().consumer("HUGE", "C")
    consumer.fetch(1, timeout=20.0)  # whatever is allocated once
    before = resident("VmRSS:")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from now on
    with getattr(consumer, sys.argv[2])(max_bytes=int(sys.argv[3])) as reading:
        inbox = reading._feed.inbox if sys.argv[2] == "messages" else reading._inbox
        deadline = time.monotonic() + 20.0
        while inbox.owed_bytes > 100_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(3):
            nc.flush()
        print(json.dumps([resident("VmHWM:") - before, inbox.bytes]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.parametrize("reading", ["messages", "batches"])
def test_a_consume_that_nobody_reads_holds_no_more_than_its_limit(reading: str) -> None:
    # Memory that grows by doubling has just grown there.
    limit = 17 << 20
    with run(jetstream=True) as server, jsclient.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="HUGE", subjects=["huge"], storage="file")
        js.create_consumer("HUGE", name="C", ack_policy="none")
        # Four times as much as may be held.
        for _ in js.publish_all(("huge", bytes(50_000)) for _ in range(1300)):
            pass
        # Without the checks of the allocator, which touch all that is set aside.
        ended = children.run(HOARDER, server.url, reading, str(limit), flags=())
        grown, held = ended.json()
    assert limit - 100_000 <= held <= limit
    assert grown <= limit + (4 << 20)
