"""Lost links and what survives them, against real servers."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator

import pytest

import jsclient
from jsclient import errors, events, server
from jsclient._server_process import free_ports
from tests.certificates import Certificates
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, Events, all_results, responder, until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]

# Silence is noticed after (max_pings_out + 1) intervals.
PING_INTERVAL = 0.2


@pytest.fixture
def running() -> Iterator[server.Server]:
    """A server that the test may kill."""
    with server.run() as started:
        yield started


def closed_port() -> int:
    """A port on which nobody listens."""
    return free_ports(["127.0.0.1"])[0]


# Outages ------------------------------------------------------------------------------


def test_what_is_published_during_an_outage_arrives_once_and_in_order(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, reconnect_wait=0.1, on_event=told) as nc:
        sub = nc.subscribe("kept")
        nc.flush()
        running.kill()
        lost = told.wait(events.Disconnected)
        assert lost.server == running.url
        assert lost.error is not None
        assert nc.status is jsclient.Status.RECONNECTING
        assert not nc.is_connected
        assert nc.connected_url is None
        for number in range(10):
            nc.publish("kept", b"%d" % number)
        failed = told.wait(events.ReconnectFailed)
        assert failed.server == running.url
        running.restart()
        assert told.wait(events.Reconnected).server == running.url
        assert [int(sub.next(PATIENCE).data) for _ in range(10)] == list(range(10))
        nc.flush()
        assert sub.pending_messages == 0
        assert nc.stats().reconnects == 1
        assert nc.is_connected


def test_every_kind_of_subscription_goes_on_after_an_outage(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, reconnect_wait=0.05, on_event=told) as nc:
        got: list[bytes] = []
        plain = nc.subscribe("s.plain")
        group = nc.subscribe("s.group", queue="g")
        wild = nc.subscribe("s.*")
        called = nc.subscribe("s.plain", callback=lambda msg: got.append(msg.data))
        over = nc.subscribe("s.plain")
        over.unsubscribe()
        nc.flush()
        for outage in (1, 2):
            running.kill()
            told.wait(events.Disconnected, outage)
            later = nc.subscribe("s.plain")
            running.restart()
            told.wait(events.Reconnected, outage)
            nc.publish("s.plain", b"p")
            nc.publish("s.group", b"g")
            nc.flush()
            assert [msg.data for msg in plain.messages(0)] == [b"p"]
            assert [msg.data for msg in group.messages(0)] == [b"g"]
            assert [msg.data for msg in wild.messages(0)] == [b"p", b"g"]
            assert [msg.data for msg in later.messages(0)] == [b"p"]
        called.drain()
        assert got == [b"p", b"p"]


def test_a_reader_that_waits_gets_messages_of_the_next_link(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, reconnect_wait=0.05, on_event=told) as nc:
        sub = nc.subscribe("waited.for")
        nc.flush()

        def work(number: int) -> bytes:
            if number == 0:
                return sub.next(PATIENCE).data
            if number == 1:
                return next(iter(sub)).data
            until(lambda: not nc._loop.helm.is_free, "somebody reads")
            running.kill()
            told.wait(events.Disconnected)
            running.restart()
            told.wait(events.Reconnected)
            nc.publish("waited.for", b"1")
            nc.publish("waited.for", b"2")
            return b""

        assert sorted(all_results(3, work)) == [b"", b"1", b"2"]


def test_the_reconnect_buffer_takes_no_more_than_its_limit(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(
        running.url, reconnect_buffer=1024, reconnect_wait=0.05, on_event=told
    ) as nc:
        sub = nc.subscribe("kept")
        nc.flush()
        running.kill()
        told.wait(events.Disconnected)
        sent = 0
        with pytest.raises(errors.BufferFullError):  # noqa: PT012
            while sent < 1000:
                nc.publish("kept", b"%d" % sent)
                sent += 1
        assert 0 < sent * len(b"PUB kept 1\r\n0\r\n") <= 2048
        running.restart()
        told.wait(events.Reconnected)
        assert [int(sub.next(PATIENCE).data) for _ in range(sent)] == list(range(sent))
        nc.publish("kept", b"again")
        assert sub.next(PATIENCE).data == b"again"


def test_without_a_reconnect_buffer_publishing_fails_at_once(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(
        running.url, reconnect_buffer=0, reconnect_wait=0.05, on_event=told
    ) as nc:
        running.kill()
        told.wait(events.Disconnected)
        with pytest.raises((errors.BufferFullError, errors.DisconnectedError)):
            nc.publish("lost")
        running.restart()
        told.wait(events.Reconnected)
        nc.publish("kept")
        nc.flush()


def test_without_reconnecting_a_loss_closes_the_connection(
    running: server.Server, told: Events
) -> None:
    nc = jsclient.connect(running.url, allow_reconnect=False, on_event=told)
    sub = nc.subscribe("over")
    nc.flush()
    running.kill()
    assert told.wait(events.Closed).error is not None
    with pytest.raises(errors.ConnectionClosedError):
        sub.next(PATIENCE)
    with pytest.raises(errors.ConnectionClosedError):
        nc.publish("over")
    assert nc.is_closed
    assert told.of(events.ReconnectFailed) == []
    nc.close()


def test_attempts_end_when_their_number_is_used_up(
    running: server.Server, told: Events
) -> None:
    nc = jsclient.connect(
        running.url, max_reconnects=2, reconnect_wait=0.05, on_event=told
    )
    running.kill()
    error = told.wait(events.Closed).error
    assert isinstance(error, errors.NoServersError)
    assert len(told.of(events.ReconnectFailed)) == 2
    assert nc.is_closed
    with pytest.raises(errors.ConnectionClosedError, match="gave up"):
        nc.flush()
    nc.close()
    assert len(told.of(events.Closed)) == 1


def test_many_failed_attempts_are_no_reason_to_give_up(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(
        running.url, reconnect_wait=0.001, reconnect_jitter=0.001, on_event=told
    ) as nc:
        running.kill()
        told.wait(events.ReconnectFailed, 50)
        running.restart()
        told.wait(events.Reconnected)
        nc.flush()


def test_closing_during_an_outage_ends_the_attempts(
    running: server.Server, told: Events
) -> None:
    nc = jsclient.connect(running.url, reconnect_wait=60.0, on_event=told)
    running.kill()
    told.wait(events.ReconnectFailed)
    nc.close()
    assert told.wait(events.Closed).error is None


def test_draining_during_an_outage_closes_at_once(
    running: server.Server, told: Events
) -> None:
    nc = jsclient.connect(running.url, reconnect_wait=60.0, on_event=told)
    running.kill()
    told.wait(events.Disconnected)
    with pytest.raises(errors.DisconnectedError):
        nc.drain()
    assert nc.is_closed


# The pool -----------------------------------------------------------------------------


def test_the_other_servers_are_tried_before_the_lost_one(told: Events) -> None:
    with server.run() as first, server.run() as second, server.run() as third:
        with jsclient.connect(
            [first.url, second.url, third.url],
            randomize=False,
            reconnect_wait=60.0,
            on_event=told,
        ) as nc:
            assert nc.connected_url == first.url
            second.kill()
            first.kill()
            # Neither of them waits: the wait belongs to the lost one.
            assert told.wait(events.ReconnectFailed).server == second.url
            assert told.wait(events.Reconnected).server == third.url
            assert nc.connected_url == third.url
            nc.flush()
        assert len(told.of(events.ReconnectFailed)) == 1


def test_connecting_tries_every_server_once(url: str) -> None:
    dead = [f"nats://127.0.0.1:{closed_port()}" for _ in range(2)]
    with jsclient.connect([*dead, url], randomize=False) as nc:
        assert nc.connected_url == url
    with pytest.raises(errors.NoServersError) as caught:
        jsclient.connect(dead, randomize=False)
    assert [server for server, _ in caught.value.attempts] == dead


def test_a_random_order_reaches_every_server() -> None:
    with server.run() as first, server.run() as second:
        reached: set[str | None] = set()
        deadline = time.monotonic() + PATIENCE
        while len(reached) < 2:
            assert time.monotonic() < deadline
            with jsclient.connect([first.url, second.url]) as nc:
                reached.add(nc.connected_url)
        assert reached == {first.url, second.url}


def test_reconnect_moves_to_the_next_server(told: Events) -> None:
    with (
        server.run() as first,
        server.run() as second,
        jsclient.connect(
            f"{first.url},{second.url}", randomize=False, on_event=told
        ) as nc,
    ):
        sub = nc.subscribe("moved")
        nc.flush()
        nc.reconnect()
        assert told.wait(events.Reconnected).server == second.url
        nc.publish("moved", b"x")
        assert sub.next(PATIENCE).data == b"x"


def test_reconnect_with_one_server_makes_a_new_link_to_it(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, reconnect_wait=60.0, on_event=told) as nc:
        first = nc.server_info.client_id
        for number in (1, 2, 3):
            nc.reconnect()
            told.wait(events.Reconnected, number)
        assert nc.server_info.client_id > first
        nc.flush()


def test_reconnect_cuts_the_wait_for_the_next_attempt_short(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, reconnect_wait=60.0, on_event=told) as nc:
        running.kill()
        told.wait(events.ReconnectFailed)
        running.restart()
        nc.reconnect()
        told.wait(events.Reconnected)
        nc.flush()


# The first link -----------------------------------------------------------------------


def test_nobody_there_is_an_error_that_names_the_server() -> None:
    port = closed_port()
    with pytest.raises(errors.NoServersError, match=f"127.0.0.1:{port}") as caught:
        jsclient.connect(f"nats://u:secret@127.0.0.1:{port}")
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, ConnectionError)


def test_a_server_that_says_nothing_is_left_at_the_timeout(
    running: server.Server,
) -> None:
    running.pause()
    with pytest.raises(errors.ConnectTimeoutError) as caught:
        jsclient.connect(running.url, connect_timeout=0.3)
    assert isinstance(caught.value, TimeoutError)
    running.resume()


def test_a_silent_server_leaves_time_for_the_next_one(
    running: server.Server, url: str
) -> None:
    running.pause()
    with jsclient.connect(
        [running.url, url], randomize=False, connect_timeout=2.0
    ) as nc:
        assert nc.connected_url == url
    running.resume()


def test_retrying_the_first_link_returns_an_open_connection(told: Events) -> None:
    port = closed_port()
    with jsclient.connect(
        f"nats://127.0.0.1:{port}",
        retry_initial=True,
        reconnect_wait=0.05,
        on_event=told,
    ) as nc:
        assert nc.status is jsclient.Status.RECONNECTING
        sub = nc.subscribe("early")
        nc.publish("early", b"kept")
        with pytest.raises(errors.TimeoutError):
            nc.flush(0.05)
        with pytest.raises(errors.DisconnectedError):
            nc.rtt()
        with server.run(port=port):
            told.wait(events.Connected)
            assert sub.next(PATIENCE).data == b"kept"
            nc.flush()
            assert nc.stats().reconnects == 0
            assert told.of(events.Reconnected) == []


# Silence ------------------------------------------------------------------------------


def test_a_server_that_falls_silent_is_left_for_another(told: Events) -> None:
    with server.run() as silent, server.run() as other:
        with jsclient.connect(
            [silent.url, other.url],
            randomize=False,
            ping_interval=PING_INTERVAL,
            on_event=told,
        ) as nc:
            sub = nc.subscribe("moved")
            nc.flush()
            silent.pause()
            lost = told.wait(events.Disconnected)
            assert isinstance(lost.error, errors.StaleConnectionError)
            assert told.wait(events.Reconnected).server == other.url
            nc.publish("moved", b"x")
            assert sub.next(PATIENCE).data == b"x"
        silent.resume()


def test_a_waiting_reader_notices_the_silence_too(told: Events) -> None:
    with server.run() as silent, server.run() as other:
        with jsclient.connect(
            [silent.url, other.url],
            randomize=False,
            ping_interval=PING_INTERVAL,
            on_event=told,
        ) as nc:
            sub = nc.subscribe("moved")
            nc.flush()

            def work(number: int) -> bytes:
                if number == 0:
                    return sub.next(PATIENCE).data
                silent.pause()
                told.wait(events.Reconnected)
                nc.publish("moved", b"x")
                return b""

            assert all_results(2, work) == [b"x", b""]
        silent.resume()


def test_a_server_that_does_not_read_is_left_and_no_publisher_hangs(
    told: Events,
) -> None:
    with server.run() as silent, server.run() as other:
        with jsclient.connect(
            [silent.url, other.url],
            randomize=False,
            ping_interval=PING_INTERVAL,
            write_buffer=1 << 20,
            reconnect_buffer=0,
            on_event=told,
        ) as nc:
            silent.pause()
            payload = bytes(8192)
            deadline = time.monotonic() + PATIENCE

            def flood(number: int) -> int:
                refused = 0
                while not told.of(events.Reconnected):
                    assert time.monotonic() < deadline, "the other server is not in use"
                    try:
                        nc.publish("flood", payload, timeout=0.05)
                    except (
                        errors.TimeoutError,
                        errors.BufferFullError,
                        errors.DisconnectedError,
                    ):
                        refused += 1
                return refused

            refused = sum(all_results(3, flood))
            assert refused > 0
            lost = told.wait(events.Disconnected)
            assert isinstance(lost.error, errors.StaleConnectionError)
            assert told.wait(events.Reconnected).server == other.url
            nc.flush()
        silent.resume()


def test_closing_ends_soon_when_the_server_does_not_read(
    running: server.Server,
) -> None:
    nc = jsclient.connect(running.url, write_buffer=1 << 20, ping_interval=0)
    running.pause()
    with pytest.raises(errors.TimeoutError):  # noqa: PT012
        while True:
            nc.publish("flood", bytes(65536), timeout=0.05)
    started = time.monotonic()
    nc.close()
    assert time.monotonic() - started < 10.0
    assert nc.is_closed
    running.resume()


def test_a_pause_shorter_than_the_patience_costs_nothing(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, ping_interval=5.0, on_event=told) as nc:
        sub = nc.subscribe("kept")
        nc.flush()
        running.pause()
        for number in range(100):
            nc.publish("kept", b"%d" % number)
        with pytest.raises(errors.TimeoutError):
            nc.flush(0.1)
        running.resume()
        nc.flush()
        assert [int(msg.data) for msg in sub.messages(0)] == list(range(100))
        assert told.of(events.Disconnected) == []


# Flush and round trips ----------------------------------------------------------------


def test_the_answer_to_a_flush_that_timed_out_belongs_to_no_other(
    running: server.Server,
) -> None:
    with jsclient.connect(running.url) as nc, jsclient.connect(running.url) as other:
        sub = other.subscribe("flushed")
        other.flush()
        running.pause()
        for _ in range(3):
            with pytest.raises(errors.TimeoutError):
                nc.flush(0.02)
        running.resume()
        for number in range(20):
            nc.publish("flushed", b"%d" % number)
            nc.flush()
            other.flush()
            assert int(sub.next(0).data) == number


def test_a_round_trip_takes_some_time(running: server.Server) -> None:
    with (
        FaultProxy(running.host, running.port) as proxy,
        jsclient.connect(proxy.url) as nc,
    ):
        assert 0 < nc.rtt() < PATIENCE
        proxy.set("s2c", delay=0.1)
        assert nc.rtt() >= 0.1
        proxy.set("s2c", stall=True)
        with pytest.raises(errors.TimeoutError):
            nc.rtt(0.05)


@pytest.mark.parametrize("reconnect_wait", [60.0, 0.0])
def test_a_flush_fails_when_its_link_is_lost(
    running: server.Server, told: Events, reconnect_wait: float
) -> None:
    with (
        FaultProxy(running.host, running.port) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=reconnect_wait, on_event=told) as nc,
    ):
        proxy.set("s2c", stall=True)
        pings = nc._loop.outbox.pings

        def work(number: int) -> None:
            if number == 0:
                # There may be a new link, but what went to the old one may be lost.
                with pytest.raises(errors.DisconnectedError):
                    nc.flush(PATIENCE)
            else:
                until(lambda: nc._loop.outbox.pings > pings, "the flush waits")
                proxy.cut()
                proxy.set("s2c")

        all_results(2, work)
        told.wait(events.Reconnected)
        nc.flush()


def test_many_threads_may_flush_at_once(url: str) -> None:
    with jsclient.connect(url) as nc:

        def work(number: int) -> None:
            for _ in range(50):
                nc.publish("x")
                nc.flush(PATIENCE)

        all_results(8, work)
        assert nc.stats().out_msgs == 400


# Cut links ----------------------------------------------------------------------------


def test_no_half_frame_reaches_the_next_server(told: Events) -> None:
    with server.run() as running:
        with (
            FaultProxy(running.host, running.port) as proxy,
            jsclient.connect(proxy.url, reconnect_wait=0.02, on_event=told) as nc,
            jsclient.connect(running.url) as other,
        ):
            sub = other.subscribe("cut")
            other.flush()
            payload = bytes(100_000)
            for cut in range(1, 6):
                proxy.set("c2s", cut_after=50_000 * cut + 7)
                for _ in range(5):
                    nc.publish("cut", payload)
                told.wait(events.Disconnected, cut)
                told.wait(events.Reconnected, cut)
            nc.publish("cut", b"last")
            nc.flush()
            while (data := sub.next(PATIENCE).data) != b"last":
                assert data == payload
        assert "Parser" not in running.log()
        assert "Unknown Protocol" not in running.log()


# Many at once -------------------------------------------------------------------------


@pytest.mark.parametrize("is_secure", [False, True])
def test_every_answer_belongs_to_its_question_while_links_are_cut(
    certs: Certificates, told: Events, is_secure: bool
) -> None:
    identity = certs.server
    tls = server.TLS(cert_file=identity.cert_file, key_file=identity.key_file)
    context = ssl.create_default_context(cafile=certs.ca_file) if is_secure else False
    with (
        server.run(tls=tls if is_secure else None) as running,
        FaultProxy(running.host, running.port) as proxy,
        responder(running.url, "echo", tls=context),
        jsclient.connect(
            proxy.url,
            tls=context,
            reconnect_wait=0.01,
            reconnect_jitter=0.0,
            on_event=told,
        ) as nc,
    ):
        over = threading.Event()

        def work(number: int) -> int:
            if number == 0:
                for cut in range(1, 11):
                    over.wait(0.05)
                    proxy.cut()
                    told.wait(events.Reconnected, cut)
                over.set()
                return 0
            answered = 0
            turn = 0
            while not over.is_set():
                turn += 1
                question = b"%d/%d" % (number, turn)
                try:
                    assert nc.request("echo", question, timeout=0.5).data == question
                    answered += 1
                except (errors.TimeoutError, errors.DisconnectedError):
                    pass
                if number % 2:
                    continue
                try:
                    with nc.subscribe(f"own.{number}") as sub:
                        nc.publish(f"own.{number}", question)
                        assert sub.next(0.5).data == question
                except (errors.TimeoutError, errors.DisconnectedError):
                    pass
            return answered

        answered = all_results(13, work)
        assert all(answered[1:])
        nc.flush()
        assert nc.request("echo", b"last", timeout=PATIENCE).data == b"last"
        replies = nc._loop.replies
        assert replies is not None
        assert len(replies) == 0
        assert len(nc._loop.entries) == 1


def test_hundreds_of_subscriptions_answer_after_every_kill(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, reconnect_wait=0.02, on_event=told) as nc:
        subs = [nc.subscribe(f"s.{number}") for number in range(300)]
        nc.flush()
        for kill in range(1, 6):
            running.kill()
            told.wait(events.Disconnected, kill)
            running.restart()
            told.wait(events.Reconnected, kill)
            for number in range(300):
                nc.publish(f"s.{number}", b"%d" % kill)
            nc.flush()
            assert [sub.next(0).data for sub in subs] == [b"%d" % kill] * 300
        assert all(sub.pending_messages == 0 for sub in subs)


def test_draining_a_subscription_during_an_outage_ends_it_with_what_it_has(
    running: server.Server, told: Events
) -> None:
    with jsclient.connect(running.url, reconnect_wait=0.02, on_event=told) as nc:
        sub = nc.subscribe("held")
        nc.publish("held", b"x")
        nc.flush()
        running.kill()
        told.wait(events.Disconnected)
        sub.drain()
        running.restart()
        told.wait(events.Reconnected)
        nc.publish("held", b"late")
        nc.flush()
        assert [msg.data for msg in sub] == [b"x"]


def test_closing_while_everybody_is_busy_and_links_are_cut(
    running: server.Server, told: Events
) -> None:
    with FaultProxy(running.host, running.port) as proxy:
        for _ in range(10):
            nc = jsclient.connect(
                proxy.url, reconnect_wait=0.01, reconnect_jitter=0.0, on_event=told
            )
            started = threading.Semaphore(0)

            def work(
                number: int,
                nc: jsclient.Connection = nc,
                started: threading.Semaphore = started,
            ) -> None:
                if number == 0:
                    for _ in range(4):
                        assert started.acquire(timeout=PATIENCE)
                    proxy.cut()
                    nc.close()
                    return
                started.release()
                with pytest.raises(errors.ConnectionClosedError):  # noqa: PT012
                    while True:
                        try:
                            nc.publish("busy", bytes(1000))
                            nc.flush(PATIENCE)
                        except (errors.DisconnectedError, errors.BufferFullError):
                            continue

            all_results(5, work)
            assert nc.is_closed
