"""Consumes in a cluster of three: leaders that step down, die, or have no quorum."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg, PullInbox
from jsclient.consumer import Consumer
from jsclient.fetching import FetchResult
from jsclient.jetstream import JetStream
from jsclient.server import Cluster, Server, run
from tests.live.pulls import assert_nothing_left, fill, seqs
from tests.live.support import BUSY, PATIENCE, Events, until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three servers, of which a test may end some."""
    with run(cluster=3, jetstream=True) as running:
        yield running


def replicated(js: JetStream) -> Consumer:
    """A consumer on all servers, of a stream with 2 messages."""
    stream = js.create_stream(
        name="S", subjects=["s.>"], storage="file", num_replicas=3, timeout=PATIENCE
    )
    for number in (1, 2):
        published(js, number)
    return stream.create_consumer(durable_name="C", ack_wait=2.0, timeout=PATIENCE)


def leader_of(consumer: Consumer) -> str:
    cluster = consumer.info(timeout=PATIENCE).cluster
    assert cluster is not None
    return cluster.leader


def elsewhere(cluster: Cluster, leader: str) -> Server:
    """A server that does not lead the consumer."""
    return next(one for one in cluster.servers if one.name != leader)


def published(js: JetStream, number: int) -> None:
    """Stores one message, however long there is no leader of the stream."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            js.publish("s.x", b"", msg_id=f"id-{number}", timeout=1.0)
            return
        except jsclient.Error:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_leader_that_steps_down_is_told_and_the_next_one_is_pulled_from(
    cluster: Cluster, told: Events
) -> None:
    with jsclient.connect(cluster.servers[0].url, on_event=told) as nc:
        js = nc.jetstream(timeout=PATIENCE)
        consumer = replicated(js)
        with consumer.messages(2) as messages:
            for msg in [messages.next(PATIENCE) for _ in range(2)]:
                msg.ack()
            with pytest.raises(jsclient.TimeoutError):
                messages.next(0.1)
            # One pull is done, others are open; by their own replies the new leader
            # knows these.
            before = leader_of(consumer)
            nc.request("$JS.API.CONSUMER.LEADER.STEPDOWN.S.C", b"", timeout=PATIENCE)
            until(lambda: leader_of(consumer) not in ("", before), "another one leads")

            def is_told() -> bool:
                # A new consumer may be unreachable for a moment: that is told as well.
                warnings = told.of(events.ConsumerWarning)
                kinds = [type(warning.error) for warning in warnings]
                return failures.LeadershipChangedError in kinds

            until(is_told, "the change is told")
            begun = time.monotonic()
            fill(js, 2)
            got = [messages.next(PATIENCE) for _ in range(2)]
            assert seqs(got) == [3, 4]
            assert time.monotonic() - begun < 1.0 + BUSY
            inbox = messages._feed.inbox
            assert isinstance(inbox, PullInbox)
            assert inbox.owed + inbox.count <= 2
            for msg in got:
                msg.ack_sync()
            assert consumer.info().num_ack_pending == 0
        assert_nothing_left(js)


def test_a_fetch_is_told_of_a_new_leader_beside_what_it_got(cluster: Cluster) -> None:
    with (
        jsclient.connect(cluster.servers[0].url) as nc,
        ThreadPoolExecutor(1) as pool,
    ):
        js = nc.jetstream(timeout=PATIENCE)
        replicated(js)
        consumer = js.create_consumer("S", durable_name="D", ack_wait=600.0)

        def fetch_under_a_new_leader(count: int) -> Future[FetchResult]:
            fetching = pool.submit(consumer.fetch, 5, timeout=600.0)

            def is_waiting() -> bool:
                # What the old leader sends may come after the word of the new one.
                lanes = list(consumer._own_lanes().pool.users)
                came = sum(lane.messages for lane in lanes)
                return came == count and consumer.info().num_waiting == 1

            until(is_waiting, "it has what there is and waits for more")
            before = leader_of(consumer)
            verb = "$JS.API.CONSUMER.LEADER.STEPDOWN.S.D"
            nc.request(verb, b"", timeout=PATIENCE)
            until(lambda: leader_of(consumer) not in ("", before), "another one leads")
            return fetching

        batch = fetch_under_a_new_leader(2).result(PATIENCE)
        assert seqs(batch) == [1, 2]
        assert isinstance(batch.error, failures.LeadershipChangedError)
        # Without any message it is all that there is to tell.
        with pytest.raises(failures.LeadershipChangedError):
            fetch_under_a_new_leader(0).result(PATIENCE)
        fill(js, 1)
        assert seqs([consumer.next(PATIENCE)]) == [3]
        assert_nothing_left(js)


def test_a_server_that_shuts_down_gently_costs_a_consume_nothing(
    cluster: Cluster, told: Events
) -> None:
    ours, other, _ = cluster.servers
    with (
        jsclient.connect(ours.url, on_event=told) as nc,
        jsclient.connect(other.url, ignore_discovered=True) as publisher,
    ):
        consumer = replicated(nc.jetstream(timeout=PATIENCE))
        got: list[Msg] = []

        def keep(msg: Msg) -> None:
            msg.ack()
            got.append(msg)

        with consumer.consume(keep, expires=2.0, idle_heartbeat=0.5) as handle:
            until(lambda: len(got) == 2, "what there is was read")
            ours.lame_duck()
            told.wait(events.LameDuck)
            js = publisher.jetstream(timeout=PATIENCE)
            for number in range(3, 23):
                published(js, number)
            assert told.wait(events.Reconnected).server in cluster.urls[1:]
            for number in range(23, 33):
                published(js, number)
            # Acks that were under way when the link ended are asked for again.
            until(lambda: set(seqs(got)) == set(range(1, 33)), "everything was read")
            assert handle.is_active
            assert handle.error is None
        assert len(told.of(events.LameDuck)) == 1
        handle.wait(PATIENCE)
        assert_nothing_left(nc.jetstream())


def test_an_ordered_consumer_outlives_its_leaders(cluster: Cluster) -> None:
    with jsclient.connect(cluster.url, reconnect_wait=0.05) as nc:
        js = nc.jetstream(timeout=PATIENCE)
        replicated(js)
        stream = js.stream("S")
        for number in range(3, 21):
            published(js, number)
        ordered = stream.ordered_consumer()
        options = {"stop_after": 60, "expires": 2.0, "idle_heartbeat": 0.5}
        with ordered.messages(5, **options) as messages:  # type: ignore[arg-type]
            got = [messages.next(PATIENCE) for _ in range(10)]
            verb = "STREAM.LEADER.STEPDOWN.S"
            js._api.call(verb, doing="move the leader", is_safe=True)
            got += [messages.next(PATIENCE) for _ in range(5)]
            # It has one replica: it ends with its server, which may be ours.
            assert messages.reading is not None
            leader = leader_of(stream.consumer(messages.reading.name))
            next(one for one in cluster.servers if one.name == leader).kill()
            for number in range(21, 61):
                published(js, number)
            got += messages
        assert seqs(got) == list(range(1, 61))
        assert messages.resets >= 1
        assert_nothing_left(js)


def test_a_leader_that_dies_while_we_are_elsewhere_is_noticed_by_its_silence(
    cluster: Cluster, told: Events
) -> None:
    with jsclient.connect(cluster.url) as nc:
        name = leader_of(replicated(nc.jetstream(timeout=PATIENCE)))
    ours = elsewhere(cluster, name)
    with jsclient.connect(ours.url, on_event=told, ignore_discovered=True) as nc:
        js = nc.jetstream(timeout=PATIENCE)
        consumer = js.consumer("S", "C")
        with consumer.messages(expires=2.0, idle_heartbeat=0.5) as messages:
            for msg in [messages.next(PATIENCE) for _ in range(2)]:
                msg.ack_sync()
            # Nothing is said to us: only the heartbeats are missing.
            next(one for one in cluster.servers if one.name == name).kill()
            warned = told.wait(events.ConsumerWarning)
            assert isinstance(
                warned.error,
                failures.MissedHeartbeatError
                | failures.LeadershipChangedError
                | failures.UnreachableConsumerError,
            )
            published(js, 3)
            until(lambda: leader_of(consumer) not in ("", name), "another one leads")
            begun = time.monotonic()
            assert messages.next(PATIENCE).metadata.stream_seq == 3
            # Two heartbeats; a busy machine has some time more.
            assert time.monotonic() - begun < 2 * 0.5 + BUSY
            assert told.of(events.Disconnected) == []
        assert_nothing_left(js)


def test_a_consume_outlives_the_loss_of_the_quorum(cluster: Cluster) -> None:
    ours, *others = cluster.servers
    with jsclient.connect(ours.url, ignore_discovered=True) as nc:
        js = nc.jetstream(timeout=PATIENCE)
        consumer = replicated(js)
        with consumer.messages(expires=2.0, idle_heartbeat=0.5) as messages:
            for msg in [messages.next(PATIENCE) for _ in range(2)]:
                msg.ack_sync()
            for other in others:
                other.kill()
            # A leader that is left alone goes on to send heartbeats, to whom it serves.
            with pytest.raises(jsclient.TimeoutError):
                messages.next(1.5)
            for other in others:
                other.restart()
            cluster.wait_healthy(PATIENCE)
            published(js, 3)

            def knows_all() -> bool:
                # The consumer has a leader of its own, which may be elected later.
                info = consumer.info(timeout=PATIENCE)
                return info.delivered.stream_seq + info.num_pending == 3

            until(knows_all, "the consumer is back")
            begun = time.monotonic()
            assert messages.next(PATIENCE).metadata.stream_seq == 3
            assert time.monotonic() - begun < 2.0 + BUSY
        assert_nothing_left(js)
