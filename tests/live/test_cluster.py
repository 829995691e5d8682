"""A cluster of three: discovery, failover and servers that say goodbye."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

import pytest

import jsclient
from jsclient import events, server
from tests.live.support import PATIENCE, Events, until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]


@pytest.fixture(scope="module")
def shared() -> Iterator[server.Cluster]:
    """Three servers with one user, for tests that do them no harm."""
    with server.run(cluster=3, users={"app": "secret"}) as running:
        wait_announced(running)
        yield running


@pytest.fixture
def cluster() -> Iterator[server.Cluster]:
    """Three servers with one user, for tests that end some of them."""
    with server.run(cluster=3, users={"app": "secret"}) as running:
        wait_announced(running)
        yield running


def wait_announced(cluster: server.Cluster) -> None:
    """Until every server tells its clients of all."""

    def knows_all(url: str) -> bool:
        with jsclient.connect(with_user(url)) as nc:
            return set(nc.servers) == set(cluster.urls)

    for url in cluster.urls:
        until(functools.partial(knows_all, url), f"{url} announces all")


def with_user(url: str) -> str:
    return url.replace("://", "://app:secret@")


def by_url(cluster: server.Cluster, url: str | None) -> server.Server:
    return next(member for member in cluster.servers if member.url == url)


def test_the_other_servers_are_known_from_the_first_one(
    shared: server.Cluster, told: Events
) -> None:
    with jsclient.connect(with_user(shared.urls[0]), on_event=told) as nc:
        assert sorted(nc.servers) == sorted(shared.urls)
        assert nc.server_info.cluster == "jsclient"
        told.wait(events.Connected)
    # What the first INFO says is no news.
    assert told.of(events.ServersDiscovered) == []


def test_announced_servers_may_be_ignored(shared: server.Cluster) -> None:
    with jsclient.connect(with_user(shared.urls[0]), ignore_discovered=True) as nc:
        nc.flush()
        assert nc.servers == (shared.urls[0],)


def test_messages_cross_the_cluster(shared: server.Cluster) -> None:
    first, second = (
        jsclient.connect(with_user(url), ignore_discovered=True)
        for url in shared.urls[:2]
    )
    with first, second:
        service = first.subscribe("across", callback=lambda msg: msg.respond(b"yes"))
        first.flush()
        until(lambda: answers(second, "across"), "the interest crossed")
        assert service.is_active


def test_who_dies_is_replaced_by_an_announced_server_that_gets_the_urls_user(
    cluster: server.Cluster, told: Events
) -> None:
    with jsclient.connect(with_user(cluster.urls[0]), on_event=told) as nc:
        sub = nc.subscribe("kept")
        nc.flush()
        cluster.servers[0].kill()
        told.wait(events.Disconnected)
        nc.publish("kept", b"meanwhile")
        reached = told.wait(events.Reconnected).server
        assert reached in cluster.urls[1:]
        assert sub.next(PATIENCE).data == b"meanwhile"
        assert told.of(events.ReconnectFailed) == []

        # Next, the one that is in use now; the listed one stays in the pool.
        by_url(cluster, reached).kill()
        again = told.wait(events.Reconnected, 2).server
        assert again in set(cluster.urls[1:]) - {reached}
        nc.flush()
        assert cluster.urls[0] in nc.servers


def test_a_server_that_joins_is_told_and_one_that_left_is_forgotten(
    cluster: server.Cluster, told: Events
) -> None:
    first, second, third = cluster.servers
    third.kill()
    second.kill()

    def is_alone() -> bool:
        with jsclient.connect(with_user(first.url)) as early:
            return early.servers == (first.url,)

    until(is_alone, "the first one noticed that the others are gone")
    with jsclient.connect(with_user(first.url), on_event=told) as nc:
        second.restart()
        assert told.wait(events.ServersDiscovered).servers == (second.url,)
        assert set(nc.servers) == {first.url, second.url}
        third.restart()
        assert told.wait(events.ServersDiscovered, 2).servers == (third.url,)
        third.kill()
        until(
            lambda: set(nc.servers) == {first.url, second.url}, "the third is forgotten"
        )
        # It was seen before: its return is no discovery.
        third.restart()
        until(lambda: set(nc.servers) == set(cluster.urls), "the third is back")
        nc.flush()
    assert len(told.of(events.ServersDiscovered)) == 2
    assert told.of(events.Disconnected)[0].error is None


def test_a_server_that_shuts_down_says_so_once_and_is_left_when_it_closes(
    cluster: server.Cluster, told: Events
) -> None:
    with jsclient.connect(with_user(cluster.urls[0]), on_event=told) as nc:
        sub = nc.subscribe("kept")
        nc.flush()
        cluster.servers[0].lame_duck()
        assert told.wait(events.LameDuck).server == cluster.urls[0]
        # Nothing happens until the server closes the link.
        nc.publish("kept", b"during")
        assert sub.next(PATIENCE).data == b"during"
        assert told.wait(events.Reconnected).server in cluster.urls[1:]
        nc.publish("kept", b"after")
        assert sub.next(PATIENCE).data == b"after"
        assert len(told.of(events.LameDuck)) == 1


def test_a_server_that_shuts_down_may_be_left_before_it_closes(told: Events) -> None:
    # Long enough that only we can end the link during the test.
    config = 'lame_duck_grace_period: "20s"'
    with (
        server.run(cluster=3, users={"app": "secret"}, config=config) as cluster,
        jsclient.connect(
            with_user(cluster.urls[0]), reconnect_on_lame_duck=True, on_event=told
        ) as nc,
        jsclient.connect(with_user(cluster.urls[1]), ignore_discovered=True) as other,
    ):
        until(lambda: set(nc.servers) == set(cluster.urls), "all are announced")
        service = other.subscribe("ready", callback=lambda msg: msg.respond(b"yes"))
        sub = other.subscribe("counted")
        other.flush()
        until(lambda: answers(nc, "ready"), "the interest crossed")
        cluster.servers[0].lame_duck()
        told.wait(events.LameDuck)
        sent = 0
        pause = threading.Event()
        while not told.of(events.Reconnected):
            nc.publish("counted", b"%d" % sent)
            sent += 1
            pause.wait(0.001)
        lost = told.wait(events.Disconnected)
        assert "shutting down" in str(lost.error)
        assert nc.connected_url in cluster.urls[1:]
        # The last ones may overtake those that went through the old server.
        got = [int(sub.next(PATIENCE).data) for _ in range(sent)]
        assert sorted(got) == list(range(sent))
        assert service.is_active
        cluster.servers[0].kill()  # it would wait for its grace period to end


def answers(nc: jsclient.Connection, subject: str) -> bool:
    try:
        return nc.request(subject, timeout=PATIENCE).data == b"yes"
    except jsclient.NoRespondersError:
        return False


def test_a_lone_server_that_shuts_down_says_so_too(told: Events) -> None:
    with server.run() as alone:
        with jsclient.connect(alone.url, reconnect_wait=60.0, on_event=told) as nc:
            nc.flush()
            alone.lame_duck()
            assert told.wait(events.LameDuck).server == alone.url
            told.wait(events.Disconnected)
            assert nc.servers == (alone.url,)
        assert len(told.of(events.LameDuck)) == 1
