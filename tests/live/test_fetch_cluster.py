"""Fetches and acks in a cluster of three, from every server of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Cluster, run
from jsclient.stream import Stream
from tests.live.pulls import assert_nothing_left, fill, seqs
from tests.live.support import PATIENCE, until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three servers that no test here ends."""
    with run(cluster=3, jetstream=True) as running:
        yield running


@pytest.fixture(params=[0, 1, 2], ids=["one", "two", "three"])
def js(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[JetStream]:
    """A JetStream by way of one of the servers; at most one of them leads."""
    url = cluster.servers[request.param].url
    with jsclient.connect(url, ignore_discovered=True) as nc:
        context = nc.jetstream(timeout=PATIENCE)
        yield context
        assert_nothing_left(context)
        for name in context.stream_names():
            context.delete_stream(name)


def replicated(js: JetStream, messages: int) -> Stream:
    """A stream on all servers."""
    stream = js.create_stream(
        name="S", subjects=["s.>"], storage="memory", num_replicas=3
    )
    fill(js, messages)
    return stream


def test_a_fetch_without_waiting_ends_with_what_there_is(js: JetStream) -> None:
    # A server says that with 404, or with 408 while it replicates what it delivered.
    begun = time.monotonic()
    stream = replicated(js, 1)
    consumer = stream.create_consumer(durable_name="C")
    until(lambda: len(consumer.info().cluster.leader) > 0, "it has a leader")  # type: ignore[union-attr]
    # The consumer's leader may learn of a message later than the stream's.
    until(lambda: consumer.info().num_pending == 1, "it has the message")
    batch = consumer.fetch_no_wait(5, timeout=600.0)
    assert (seqs(batch), batch.error) == ([1], None)
    fill(js, 20, first=2)
    until(lambda: consumer.info().num_pending == 20, "it has the messages")
    batch = consumer.fetch_no_wait(50, timeout=600.0)
    assert (seqs(batch), batch.error) == (list(range(2, 22)), None)
    assert len(consumer.fetch_no_wait(5, timeout=600.0)) == 0
    assert time.monotonic() - begun < 3 * PATIENCE


def test_a_pull_subscription_has_what_there_is(js: JetStream) -> None:
    replicated(js, 20)
    with js.pull_subscribe("s.>", "D") as sub:
        assert seqs(sub.fetch(50, timeout=PATIENCE)) == list(range(1, 21))


def test_a_confirmed_ack_is_known_at_once(js: JetStream) -> None:
    consumer = replicated(js, 5).create_consumer(durable_name="C")
    for msg in consumer.fetch(5, timeout=PATIENCE):
        msg.ack_sync(PATIENCE)
        assert consumer.info().ack_floor.stream_seq == msg.metadata.stream_seq
    assert consumer.info().num_ack_pending == 0


def test_a_consumer_that_was_just_made_can_be_fetched_from(js: JetStream) -> None:
    # Until it has a leader, and all servers know of it, nobody answers for it.
    stream = replicated(js, 1)
    for number in range(10):
        consumer = stream.create_consumer(durable_name=f"C{number}")
        assert consumer.next(timeout=PATIENCE).metadata.stream_seq == 1
    for number in range(10):
        with js.pull_subscribe("s.>", f"D{number}") as sub:
            assert seqs(sub.fetch(1, timeout=PATIENCE)) == [1]


def test_a_leader_of_the_stream_that_steps_down_costs_neither_messages_nor_pulls(
    js: JetStream,
) -> None:
    stream = replicated(js, 0)
    consumer = stream.create_consumer(durable_name="C", ack_wait=60.0)
    total = 300

    def publish() -> None:
        for number in range(total):
            while True:
                try:
                    js.publish("s.x", b"", msg_id=str(number), timeout=1.0)
                    break
                except jsclient.Error:
                    continue  # it has an id: doing it again does no harm

    def step_down() -> None:
        # Between two leaders nobody answers: it is asked again.
        verb = "STREAM.LEADER.STEPDOWN.S"
        js._api.call(verb, doing="move the leader", is_safe=True)

    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(publish)
        got: list[int] = []
        with consumer.messages(20) as messages:
            while len(got) < total:
                msg = messages.next(PATIENCE)
                msg.ack()
                got.append(msg.metadata.stream_seq)
                if len(got) in (50, 150):
                    step_down()
            assert messages.error is None
        published.result(PATIENCE)
    assert got == list(range(1, total + 1))
    assert stream.info().state.messages == total
