"""Push deliveries in a cluster of three: leaders that step down or die."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Cluster, run
from tests.live.support import PATIENCE, Events, until

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("no_leaks"),
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three servers, of which a test may end some."""
    with run(cluster=3, jetstream=True) as running:
        yield running


def published(js: JetStream, first: int, last: int) -> None:
    """Stores messages, however long there is no leader of the stream."""
    deadline = time.monotonic() + PATIENCE
    for number in range(first, last + 1):
        while True:
            try:
                js.publish("s.x", b"", msg_id=f"id-{number}", timeout=1.0)
                break
            except jsclient.Error:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def leader(js: JetStream, consumer: str) -> str:
    cluster = js.consumer("S", consumer, timeout=PATIENCE).cached_info.cluster
    assert cluster is not None
    return cluster.leader


def make_stream(js: JetStream) -> None:
    js.create_stream(
        name="S", subjects=["s.>"], storage="file", num_replicas=3, timeout=PATIENCE
    )


def test_deliveries_follow_the_leader(cluster: Cluster, told: Events) -> None:
    with jsclient.connect(cluster.url, on_event=told) as nc:
        js = nc.jetstream(timeout=PATIENCE)
        make_stream(js)
        published(js, 1, 5)
        with js.subscribe(
            "s.>", durable="D", flow_control=True, idle_heartbeat=0.5, ack_wait=2
        ) as sub:
            seen = set[int]()

            def read(last: int) -> None:
                while not seen >= set(range(1, last + 1)):
                    msg = sub.next(PATIENCE)
                    seen.add(msg.metadata.stream_seq)
                    msg.ack()

            read(5)
            before = leader(js, "D")
            nc.request("$JS.API.CONSUMER.LEADER.STEPDOWN.S.D", timeout=PATIENCE)
            until(lambda: leader(js, "D") not in ("", before), "another one leads")
            published(js, 6, 10)
            read(10)


def test_an_ordered_subscription_outlives_the_server_of_its_consumer(
    cluster: Cluster,
) -> None:
    with jsclient.connect(cluster.url) as nc:
        make_stream(nc.jetstream(timeout=PATIENCE))
        published(nc.jetstream(), 1, 10)
    ours = cluster.servers[0]
    with jsclient.connect(ours.url, ignore_discovered=True) as nc:
        js = nc.jetstream(timeout=PATIENCE)
        sub = js.subscribe("s.>", ordered=True, idle_heartbeat=0.5)
        while leader(js, sub.consumer_name) == ours.name:
            # It would take our link along.
            sub.unsubscribe()
            sub = js.subscribe("s.>", ordered=True, idle_heartbeat=0.5)
        with sub:
            got = [sub.next(PATIENCE).metadata.stream_seq for _ in range(10)]
            name = leader(js, sub.consumer_name)
            next(one for one in cluster.servers if one.name == name).kill()
            published(js, 11, 15)
            got += [sub.next(2 * PATIENCE).metadata.stream_seq for _ in range(5)]
            assert got == list(range(1, 16))
            assert sub.resets > 0
