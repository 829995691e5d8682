"""JetStream in a cluster of three: leaders move, servers die, a quorum is lost."""

from __future__ import annotations

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import jsclient
from jsclient import errors, server
from jsclient import jetstream_errors as failures
from jsclient._core import PubAck
from jsclient.jetstream import JetStream
from jsclient.stored import StoredMessage
from jsclient.stream import Stream
from tests.live.support import PATIENCE, Events, all_results, until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]


@pytest.fixture(scope="module")
def shared() -> Iterator[server.Cluster]:
    """Three servers, for tests that do them no harm."""
    with server.run(cluster=3, jetstream=True) as running:
        yield running


@pytest.fixture
def js(shared: server.Cluster) -> Iterator[JetStream]:
    """A JetStream without streams; those that the test makes are deleted after it."""
    with jsclient.connect(shared.url) as nc:
        context = nc.jetstream(timeout=PATIENCE)
        yield context
        for name in context.stream_names():
            context.delete_stream(name)


def replicated(js: JetStream, name: str = "S", storage: str = "memory") -> Stream:
    return js.create_stream(
        name=name, subjects=[f"{name}.>"], storage=storage, num_replicas=3
    )


def leader_of(stream: Stream) -> str:
    cluster = stream.info().cluster
    assert cluster is not None
    return cluster.leader


def test_draining_leaves_no_publish_of_another_thread_in_doubt(
    shared: server.Cluster, js: JetStream
) -> None:
    def publish(context: JetStream) -> int:
        """Publishes until it is refused; how many are stored."""
        for number in itertools.count():
            try:
                context.publish("S.one")
            except (errors.ConnectionDrainingError, errors.ConnectionClosedError):
                break
            if number == 0:
                begun.wait(PATIENCE)
        return number

    stream = replicated(js)
    stored = 0
    for _ in range(10):
        nc = jsclient.connect(shared.url)
        begun = threading.Barrier(5)
        with ThreadPoolExecutor(4) as executor:
            counts = [executor.submit(publish, nc.jetstream()) for _ in range(4)]
            begun.wait(PATIENCE)
            nc.drain(PATIENCE)
            stored += sum(count.result(PATIENCE) for count in counts)
    assert stream.info().state.messages == stored


def test_a_replicated_stream_tells_where_it_is(js: JetStream) -> None:
    stream = replicated(js)
    cluster = stream.info().cluster
    assert cluster is not None
    assert cluster.name == "jsclient"
    names = {cluster.leader, *(peer.name for peer in cluster.replicas)}
    assert names == {"n0", "n1", "n2"}
    assert not any(peer.offline for peer in cluster.replicas)
    consumer = stream.create_consumer(durable_name="C")
    assert consumer.info().cluster is not None
    # The same again, at once and by many.
    made = all_results(4, lambda _: replicated(js).cached_info.created)
    assert set(made) == {stream.cached_info.created}


def test_more_replicas_than_servers_are_refused_at_once(js: JetStream) -> None:
    began = time.monotonic()
    with pytest.raises(failures.ApiError) as caught:
        js.create_stream(name="S", num_replicas=5, timeout=60.0)
    assert caught.value.code == 400
    # A passing trouble would be waited for, up to the deadline.
    assert time.monotonic() - began < 30.0


def test_lists_of_a_cluster_are_whole(js: JetStream) -> None:
    names = [f"S{number:03}" for number in range(280)]
    for name in names:
        js.create_stream(name=name, storage="memory")
    assert sorted(js.stream_names()) == names
    found = js.streams()
    assert sorted(stream.name for stream in found) == names
    assert found.missing == ()


def test_a_stream_is_managed_while_its_leader_moves(js: JetStream) -> None:
    stream = replicated(js)
    js.publish("S.a", b"x")
    old = leader_of(stream)
    answer = js._api.call("STREAM.LEADER.STEPDOWN.S", doing="move the leader")
    assert answer["success"] is True
    stream.update(description="moved")
    stream.create_consumer(durable_name="C")
    assert stream.consumer_names() == ["C"]
    assert stream.get_msg(1).data == b"x"
    until(lambda: leader_of(stream) not in ("", old), "there is another leader")
    assert stream.info().config.description == "moved"


def one_by_one(js: JetStream, stop: threading.Event) -> list[int]:
    seqs = []
    while not stop.is_set():
        seqs.append(js.publish("S.a").seq)
    return seqs


def by_futures(js: JetStream, stop: threading.Event) -> list[int]:
    futures = []
    while not stop.wait(0.0005):
        futures.append(js.publish_async("S.a"))
    return [future.result(PATIENCE).seq for future in futures]


def by_pipeline(js: JetStream, stop: threading.Event) -> list[int]:
    def messages() -> Iterator[tuple[str, bytes]]:
        while not stop.wait(0.0005):
            yield "S.a", b""

    acks = js.publish_all(messages(), window=20)
    return [ack.seq for ack in acks if isinstance(ack, PubAck)]


def test_no_publish_fails_when_a_server_that_shuts_down_is_left(
    told: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is.
    monkeypatch.setattr("jsclient._io.loop.LAST_ANSWERS", PATIENCE)
    ways = (one_by_one, one_by_one, by_futures, by_pipeline)
    stop = threading.Event()
    # Long enough that only we can end the link during the test.
    config = 'lame_duck_grace_period: "20s"'
    with (
        server.run(cluster=3, jetstream=True, config=config) as cluster,
        jsclient.connect(cluster.urls) as other,
    ):
        stream = replicated(other.jetstream(timeout=PATIENCE))
        leader = leader_of(stream)
        left = next(member for member in cluster.servers if member.name != leader)
        with jsclient.connect(
            left.url, reconnect_on_lame_duck=True, on_event=told
        ) as nc:
            js = nc.jetstream(timeout=PATIENCE, ack_timeout=PATIENCE, max_pending=20)
            until(lambda: set(nc.servers) == set(cluster.urls), "all are announced")

            def work(number: int) -> list[int]:
                if number < len(ways):
                    return ways[number](js, stop)
                try:
                    left.lame_duck()
                    told.wait(jsclient.Reconnected)
                finally:
                    stop.set()
                return []

            seqs = [seq for one in all_results(len(ways) + 1, work) for seq in one]
            assert len(told.of(jsclient.Disconnected)) == 1
            assert sorted(seqs) == list(range(1, len(seqs) + 1)), "each stored once"
        left.kill()  # it would wait for its grace period to end


def meta_leader(cluster: server.Cluster) -> str:
    """The name of the server that answers for all of JetStream."""
    with urllib.request.urlopen(f"{cluster.servers[0].monitor_url}/jsz") as answer:
        return str(json.load(answer)["meta_cluster"]["leader"])


@pytest.mark.slow
def test_a_list_is_told_once_while_a_server_does_not_answer() -> None:
    with (
        server.run(cluster=3, jetstream=True) as cluster,
        jsclient.connect(cluster.servers[0].url) as nc,
        jsclient.connect(cluster.servers[0].url) as spy,
    ):
        js = nc.jetstream(timeout=PATIENCE)
        used = {meta_leader(cluster), cluster.servers[0].name}
        silent = next(member for member in cluster.servers if member.name not in used)
        leaders: dict[str, str] = {}
        while silent.name not in leaders.values():
            stream = js.create_stream(name=f"S{len(leaders)}", storage="memory")
            leaders[stream.name] = leader_of(stream)
        missing = [name for name, leader in leaders.items() if leader == silent.name]
        asked = spy.subscribe("$JS.API.STREAM.LIST")
        spy.flush()
        silent.pause()
        try:
            # A list takes the servers longer than other calls may take here.
            found = nc.jetstream(timeout=1.0).streams()
        finally:
            silent.resume()
        spy.flush()
        assert asked.pending_messages == 1
        assert found.missing == tuple(missing)
        assert sorted(stream.name for stream in found) == [
            name for name in leaders if name not in missing
        ]


@pytest.mark.slow
def test_calls_and_publishes_outlive_a_dead_leader_and_a_lost_quorum() -> None:
    with (
        server.run(cluster=3, jetstream=True) as cluster,
        jsclient.connect(cluster.urls, reconnect_wait=0.05) as nc,
    ):
        js = nc.jetstream(timeout=60.0)
        stream = replicated(js, storage="file")
        js.publish("S.a", b"x")
        dead = cluster.servers[int(leader_of(stream)[1:])]
        dead.kill()
        # Whoever led what: every call comes through by itself.
        stream.update(description="survived")
        stream.create_consumer(durable_name="C")
        replicated(js, "T")
        assert sorted(js.stream_names()) == ["S", "T"]
        info = stream.info()
        assert info.config.description == "survived"
        assert info.cluster is not None
        assert info.cluster.leader != dead.name
        assert stream.get_msg(1).data == b"x"

        # Of the two that are left one more dies: there is no quorum.
        leader = cluster.servers[int(leader_of(stream)[1:])]
        other = next(
            member for member in cluster.servers if member not in (dead, leader)
        )
        with jsclient.connect(leader.url, ignore_discovered=True) as near:
            other.kill()
            assert publishes_without_quorum(near) == [failures.PublishTimeoutError] * 2
            until(lambda: is_away(js), "JetStream says that it is away", timeout=40.0)
            # What waits goes on by itself when the quorum is back.
            timer = threading.Timer(0.2, other.restart)
            timer.start()
            js.create_stream(name="U", storage="memory")
            timer.join()
            until(lambda: stores(near), "messages are stored again", timeout=60.0)
            assert near.jetstream().publish_async("S.a").result(PATIENCE).seq > 2
        assert sorted(js.stream_names()) == ["S", "T", "U"]
        stored = [msg.data for msg in all_of(stream)]
        for once in (b"x", b"again"):
            assert stored.count(once) == 1
        for unknown in (b"sync", b"async"):
            assert stored.count(unknown) <= 1


def publishes_without_quorum(nc: jsclient.Connection) -> list[type]:
    """How a publish and a future end that the leader cannot answer."""
    js = nc.jetstream(timeout=1.0, ack_timeout=1.0)
    future = js.publish_async("S.a", b"async")
    try:
        js.publish("S.a", b"sync")
    except jsclient.Error as error:
        return [type(error), type(future.exception(PATIENCE))]
    return []


def stores(nc: jsclient.Connection) -> bool:
    """Whether a message is stored now: with its id at most once in all tries."""
    try:
        nc.jetstream().publish("S.a", b"again", msg_id="again", timeout=2.0)
    except (failures.PublishTimeoutError, failures.NoStreamResponseError):
        return False
    return True


def all_of(stream: Stream) -> list[StoredMessage]:
    last = stream.info().state.last_seq
    return [stream.get_msg(seq) for seq in range(1, last + 1)]


def is_away(js: JetStream) -> bool:
    """Whether JetStream answers that it has no leader; at first nobody answers."""
    try:
        js.account_info(timeout=1.5)
    except failures.JetStreamUnavailableError as error:
        return (error.code, error.err_code, error.is_retryable) == (503, 10008, True)
    except jsclient.TimeoutError:
        return False
    return False
