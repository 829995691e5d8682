"""Signal handlers that raise while a consumer is pulled from."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from jsclient import server
from tests.process import children
from tests.process.test_signals import KINDS, returns_whole, storm

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not hasattr(signal, "setitimer"), reason="this system has no interval timers"
    ),
]

# What was delivered and is lost would come again long after the test.
READING = """
    js = other.jetstream()
    try:
        js.delete_stream("STORM")
    except jsclient.StreamNotFoundError:
        pass
    js.create_stream(name="STORM", subjects=["storm.*"], storage="memory")
    total = 3_000
    for _ in js.publish_all(("storm.a", b"%d" % number) for number in range(total)):
        pass
    consumer = nc.jetstream().create_consumer(
        "STORM", name="C", ack_wait=600, max_ack_pending=-1
    )
    messages = MESSAGES
    got = []

    def read():
        while len(got) < total:
            found = None
            try:
                found = CALL
            except jsclient.TimeoutError:
                pass
            finally:
                if found is not None:
                    got.extend(found)

    # It has to be interrupted often, however fast it reads.
    def read_and_wait():
        read()
        consumer.fetch(3, timeout=0.003)

    weather(read_and_wait, lambda: len(got) >= total and raised > 100)
    numbers = [int(msg.data) for msg in got]
    assert sorted(numbers) == list(range(total)), len(numbers)
    if messages is not None:
        messages.stop()
    lanes = consumer._own_lanes()
    deadline = time.monotonic() + 20
    while lanes.pool.users or lanes.pool.left:
        assert time.monotonic() < deadline, (lanes.pool.users, lanes.pool.left)
        nc.flush(timeout=5)
    assert not nc._loop.machines
    assert consumer.info().num_ack_pending == total
    for msg in got:
        msg.ack()
    nc.flush(timeout=5)
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with JetStream."""
    with server.run(jetstream=True) as running:
        yield running.url


@returns_whole
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("messages", "call"),
    [
        ("None", "[consumer.next(timeout=0.05)]"),
        ("None", "consumer.fetch(min(7, total - len(got)), timeout=0.05)._messages"),
        ("consumer.messages(20)", "[messages.next(0.05)]"),
    ],
    ids=["next", "fetch", "messages"],
)
def test_no_message_is_lost_or_repeated_when_a_handler_raises(
    url: str, kind: str, messages: str, call: str
) -> None:
    reading = READING.replace("MESSAGES", messages).replace("CALL", call)
    children.run(storm(reading, left=2), url, kind, timeout=60).check()
