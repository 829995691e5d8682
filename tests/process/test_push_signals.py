"""Signal handlers that raise while push deliveries are read."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from jsclient import server
from tests.process import children
from tests.process.test_signals import KINDS, storm

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not hasattr(signal, "setitimer"), reason="this system has no interval timers"
    ),
]

# Messages of 1 KiB: flow control is asked for often, at first.
READING = """
    js = other.jetstream()
    try:
        js.delete_stream("STORM")
    except jsclient.StreamNotFoundError:
        pass
    js.create_stream(name="STORM", subjects=["storm.*"], storage="memory")
    total = 30_000
    sent = threading.Event()

    def publish():
        jobs = (("storm.a", b"%010d" % number * 100) for number in range(total))
        for number, _ in enumerate(js.publish_all(jobs)):
            if number % 1000 == 0:
                time.sleep(0.02)
        sent.set()

    sub = nc.jetstream().subscribe("storm.*", OPTIONS)
    threading.Thread(target=publish, daemon=True).start()
    got = []

    def read():
        # extend takes each message and keeps it without a step of Python in between.
        got.extend(sub.messages(timeout=0.2))

    weather(read, lambda: sent.is_set() and len(got) >= total, seconds=1.5)
    got.extend(sub.messages(timeout=0.2))
    numbers = [int(msg.data[:10]) for msg in got]
    assert numbers == list(range(total)), len(numbers)
    sub.unsubscribe()
    assert not [event for event in events if "Warning" in type(event).__name__], events
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with JetStream."""
    with server.run(jetstream=True) as running:
        yield running.url


@pytest.mark.parametrize("kind", KINDS)
def test_no_delivery_is_lost_or_repeated_when_a_handler_raises(
    url: str, kind: str
) -> None:
    options = 'ack_policy="none", flow_control=True, idle_heartbeat=0.2'
    script = storm(READING.replace("OPTIONS", options))
    children.run(script, url, kind, timeout=60).check()


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_is_lost_or_repeated_in_order_when_a_handler_raises(
    url: str, kind: str
) -> None:
    script = storm(READING.replace("OPTIONS", "ordered=True, idle_heartbeat=0.5"))
    children.run(script, url, kind, timeout=60).check()
