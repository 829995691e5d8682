"""Consumes on servers that die, links that break and consumers that go away.

What a user may rely on: a message is handed over, or delivered again later; after
`ack_sync` it never comes again, except that a server killed within moments of it may
forget it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg, PullInbox
from jsclient.consumer import Consumer
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.stream import Stream
from tests.harness.leaks import LeakMeter
from tests.harness.proxy import FaultProxy
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import BUSY, PATIENCE, Events, until

pytestmark = pytest.mark.live

QUICK = {"reconnect_wait": 0.05, "reconnect_jitter": 0.0}


@pytest.fixture
def server() -> Iterator[Server]:
    """A server for one test, which may kill it."""
    with run(jetstream=True) as running:
        yield running


@pytest.fixture
def client(server: Server, told: Events) -> Iterator[JetStream]:
    """A client that reconnects quickly; it leaves nothing behind."""
    with (
        LeakMeter(timeout=10.0),
        jsclient.connect(server.url, on_event=told, **QUICK) as nc,  # type: ignore[arg-type]
    ):
        yield nc.jetstream()
        assert_nothing_left(nc.jetstream())


@pytest.fixture
def stream(client: JetStream) -> Stream:
    """An empty stream on disk."""
    return stream_of(client, storage="file")


class Meanwhile:
    """Something that happens in another thread while the test waits."""

    def __init__(self, work: Callable[[], object], *, after: float = 0.0) -> None:
        self._thread = threading.Timer(after, work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE)


class Outage:
    """A server dies and comes back; then messages are published."""

    def __init__(self, server: Server, *, count: int = 1) -> None:
        self._server = server
        self._count = count
        self._back_at = 0.0

    def __call__(self) -> None:
        self._server.kill()
        time.sleep(0.1)
        self._server.restart()
        self._back_at = time.monotonic()
        with jsclient.connect(self._server.url) as nc:
            fill(nc.jetstream(), self._count)

    def assert_over_within(self, seconds: float) -> None:
        """Whoever waited has gone on so soon after the server was back."""
        assert time.monotonic() - self._back_at < seconds + BUSY


# A server that comes back -------------------------------------------------------------


def test_an_idle_consume_goes_on_when_a_killed_server_is_back(
    client: JetStream, stream: Stream, server: Server, told: Events
) -> None:
    consumer = stream.create_consumer(durable_name="C")
    with consumer.messages() as messages:
        with pytest.raises(jsclient.TimeoutError):
            messages.next(0.1)
        outage = Outage(server)
        outage()
        assert messages.next(60.0).metadata.stream_seq == 1
        outage.assert_over_within(1.0)
        assert consumer.info().num_waiting == 1
    assert told.of(events.ConsumerWarning) == []


def test_a_next_that_waits_gets_its_message_from_the_restarted_server(
    client: JetStream, stream: Stream, server: Server
) -> None:
    consumer = stream.create_consumer(durable_name="C")
    outage = Outage(server)
    with Meanwhile(outage, after=0.1):
        assert consumer.next(timeout=60.0).metadata.stream_seq == 1
        outage.assert_over_within(1.0)


def test_a_fetch_that_waits_gets_the_rest_from_the_restarted_server(
    client: JetStream, stream: Stream, server: Server
) -> None:
    fill(client, 2)
    consumer = stream.create_consumer(durable_name="C")
    outage = Outage(server, count=2)
    with Meanwhile(outage, after=0.2):
        batch = consumer.fetch(4, timeout=60.0)
        outage.assert_over_within(1.0)
    assert len(batch) == 4
    assert batch.error is None
    assert {1, 2} <= set(seqs(batch))


def test_a_fetch_without_a_server_is_an_error_when_its_time_is_over(
    client: JetStream, stream: Stream, server: Server, told: Events
) -> None:
    consumer = stream.create_consumer(durable_name="C")
    server.kill()
    told.wait(events.Disconnected)
    begun = time.monotonic()
    with pytest.raises(jsclient.DisconnectedError):
        consumer.fetch(1, timeout=0.3)
    with pytest.raises(jsclient.DisconnectedError):
        consumer.next(timeout=0.3)
    assert time.monotonic() - begun < PATIENCE


def test_a_server_that_is_stopped_and_started_again_is_pulled_from_once(
    client: JetStream, stream: Stream, server: Server, told: Events
) -> None:
    consumer = stream.create_consumer(durable_name="C")
    with consumer.messages(4) as messages:
        fill(client, 2)
        assert seqs(messages.next(PATIENCE) for _ in range(2)) == [1, 2]
        with pytest.raises(jsclient.TimeoutError):
            messages.next(0.05)
        # Two pulls are open now, of two messages each.
        until(lambda: consumer.info().num_waiting == 2, "both wait")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)
        server.wait(PATIENCE)
        server.restart()
        told.wait(events.Reconnected)
        until(lambda: consumer.info().num_waiting == 1, "one waits")
        fill(client, 4)
        inbox = messages._feed.inbox
        assert isinstance(inbox, PullInbox)
        for number in range(3, 7):
            assert messages.next(PATIENCE).metadata.stream_seq == number
            assert inbox.owed + inbox.count <= 4
    for event in told.of(events.ConsumerWarning):
        assert isinstance(event.error, failures.ServerShutdownError)


def test_a_server_that_comes_back_empty_ends_the_consume(
    client: JetStream, stream: Stream, server: Server
) -> None:
    messages = stream.create_consumer(durable_name="C").messages()
    handled: list[Msg] = []
    handle = stream.create_consumer(durable_name="D").consume(handled.append)
    server.kill()
    server.restart(keep_store=False)
    with pytest.raises((failures.StreamNotFoundError, failures.ConsumerNotFoundError)):
        messages.next(PATIENCE)
    with pytest.raises((failures.StreamNotFoundError, failures.ConsumerNotFoundError)):
        handle.wait(PATIENCE)


def test_a_consumer_that_lived_in_memory_may_be_waited_for(
    client: JetStream, stream: Stream, server: Server
) -> None:
    fill(client, 1)
    config = {"name": "C", "mem_storage": True, "inactive_threshold": 60.0}
    consumer = stream.create_consumer(**config)  # type: ignore[arg-type]
    with consumer.messages(on_missing="wait") as messages:
        messages.next(PATIENCE)
        server.kill()
        server.restart()
        with pytest.raises(jsclient.TimeoutError):
            messages.next(0.5)
        client.create_consumer("S", **config)  # type: ignore[arg-type]
        assert messages.next(PATIENCE).metadata.stream_seq == 1


# Links that break ---------------------------------------------------------------------


def test_a_reset_link_loses_no_message_and_repeats_none_by_itself(
    server: Server, client: JetStream, stream: Stream
) -> None:
    stream.create_consumer(durable_name="C", ack_wait=1.0)
    fill(client, 200)
    port = int(server.url.rpartition(":")[2])
    handed: Counter[int] = Counter()
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        jsclient.connect(proxy.url, **QUICK) as nc,  # type: ignore[arg-type]
    ):
        consumer = nc.jetstream().consumer("S", "C")
        with consumer.messages(10) as messages:
            # Acks may be lost with a link as well; then the message comes again.
            while len(handed) < 200 or consumer.info().num_ack_pending:
                try:
                    msg = messages.next(0.5)
                except jsclient.TimeoutError:
                    continue
                place = msg.metadata
                # Whatever comes again was delivered again by the server.
                assert handed[place.stream_seq] < place.num_delivered
                handed[place.stream_seq] += 1
                msg.ack()
                assert messages.pending_messages <= 10
                if place.consumer_seq in (20, 90, 91, 150):
                    proxy.cut()
        assert_nothing_left(nc.jetstream())
    assert set(handed) == set(range(1, 201))


def test_a_fetch_in_every_thread_survives_cuts(
    server: Server, client: JetStream, stream: Stream
) -> None:
    stream.create_consumer(durable_name="C", ack_wait=1.0, max_ack_pending=-1)
    fill(client, 300)
    port = int(server.url.rpartition(":")[2])
    done: set[int] = set()
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        jsclient.connect(proxy.url, **QUICK) as nc,  # type: ignore[arg-type]
    ):
        consumer = nc.jetstream().consumer("S", "C")
        deadline = time.monotonic() + 30.0

        def work() -> None:
            while len(done) < 300 and time.monotonic() < deadline:
                try:
                    for msg in consumer.fetch(5, timeout=1.0):
                        msg.ack_sync(1.0)
                        done.add(msg.metadata.stream_seq)
                except (jsclient.ConnectionError, jsclient.TimeoutError):
                    continue

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            time.sleep(0.1)
            proxy.cut()
        for thread in threads:
            thread.join(40.0)
        assert_nothing_left(nc.jetstream())
    assert done == set(range(1, 301))


def test_latency_does_not_stop_the_flow(
    server: Server, client: JetStream, stream: Stream
) -> None:
    fill(client, 2000)
    port = int(server.url.rpartition(":")[2])
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        jsclient.connect(proxy.url) as nc,
    ):
        consumer = nc.jetstream().create_consumer("S", name="C", max_ack_pending=-1)
        proxy.set("c2s", delay=0.05)
        proxy.set("s2c", delay=0.05)
        begun = time.monotonic()
        with consumer.messages(1000, stop_after=2000) as messages:
            for msg in messages:
                msg.ack()
        # One after the other they would take 200 seconds.
        assert time.monotonic() - begun < 60.0
        until(lambda: consumer.info().ack_floor.stream_seq == 2000, "all acks arrived")


# What is not allowed ------------------------------------------------------------------

DENIED = """
A { jetstream: enabled, users: [
    {user: all, password: all},
    {user: pull, password: pull,
     permissions: {publish: {deny: "$JS.API.CONSUMER.MSG.NEXT.>"}}},
    {user: lane, password: lane, permissions: {subscribe: {deny: "mine.*.*.>"}}}
] }
"""
READERS: dict[str, Callable[[JetStream, Consumer], object]] = {
    "next": lambda _, consumer: consumer.next(timeout=60.0),
    "fetch": lambda _, consumer: consumer.fetch(5, timeout=60.0),
    "fetch_no_wait": lambda _, consumer: consumer.fetch_no_wait(5, timeout=60.0),
    "fetch_batch": lambda _, consumer: consumer.fetch_batch(5, timeout=60.0),
    "messages": lambda _, consumer: list(consumer.messages()),
    "batches": lambda _, consumer: list(consumer.batches()),
    "consume": lambda _, consumer: consumer.consume(print).wait(60.0),
    "pull_subscribe": lambda js, _: js.pull_subscribe(stream="S", consumer="C").next(
        60.0
    ),
    "ordered": lambda js, _: list(js.stream("S").ordered_consumer().messages()),
}


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A server that does not allow everything, with a message and a consumer."""
    with run(jetstream=True, accounts=DENIED) as running:
        with jsclient.connect(running.url, user="all", password="all") as nc:
            stream_of(nc.jetstream()).create_consumer(durable_name="C")
            fill(nc.jetstream(), 1)
        yield running


@pytest.mark.parametrize("user", ["pull", "lane"])
@pytest.mark.parametrize("reader", READERS)
def test_a_pull_that_is_not_allowed_fails_at_once(
    strict: Server, user: str, reader: str
) -> None:
    with jsclient.connect(
        strict.url, user=user, password=user, inbox_prefix="mine"
    ) as nc:
        js = nc.jetstream()
        consumer = js.consumer("S", "C")
        for _ in range(2):
            with pytest.raises(jsclient.PermissionsViolationError) as caught:
                READERS[reader](js, consumer)
            subject = "$JS.API.CONSUMER.MSG.NEXT.S." if user == "pull" else "mine."
            assert caught.value.subject.startswith(subject)
        assert_nothing_left(js)
        assert js.stream("S").info().state.messages == 1


# Consumers that go away ---------------------------------------------------------------


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_what_is_deleted_ends_a_consume_after_the_messages_at_hand(
    client: JetStream, stream: Stream, what: str
) -> None:
    fill(client, 3)
    consumer = stream.create_consumer(name="C")
    messages = consumer.messages()
    until(lambda: messages.pending_messages == 3, "all are at hand")
    begun = time.monotonic()
    if what == "consumer":
        consumer.delete()
    else:
        client.delete_stream("S")
    assert seqs(messages.next() for _ in range(3)) == [1, 2, 3]
    # What the server says is the same; whoever catches the one has the other as well.
    kind = failures.ConsumerDeletedError
    if what == "stream":
        kind = failures.StreamDeletedError
    with pytest.raises(failures.ConsumerDeletedError):
        next(iter(messages))
    limit = 0.5 if what == "consumer" else 1.0
    assert time.monotonic() - begun < limit + BUSY
    assert type(messages.error) is kind


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_what_is_deleted_ends_a_fetch_with_what_was_deleted(
    client: JetStream, stream: Stream, what: str
) -> None:
    consumer = stream.create_consumer(name="C")
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(consumer.fetch, 3, timeout=600.0)
        until(lambda: consumer.info().num_waiting == 1, "it waits")
        begun = time.monotonic()
        if what == "consumer":
            client.delete_consumer("S", "C")
        else:
            client.delete_stream("S")
        with pytest.raises(failures.ConsumerDeletedError) as caught:
            fetching.result(PATIENCE)
    limit = 0.5 if what == "consumer" else 1.0
    assert time.monotonic() - begun < limit + BUSY
    is_stream = isinstance(caught.value, failures.StreamDeletedError)
    assert is_stream == (what == "stream")


def test_an_ephemeral_that_the_server_forgets_ends_the_consume(
    client: JetStream, stream: Stream, server: Server
) -> None:
    consumer = stream.create_consumer(name="C", inactive_threshold=0.1)
    # A pull would keep it alive.
    until(lambda: stream.consumer_names() == [], "it is forgotten")
    messages = consumer.messages()
    with pytest.raises((failures.ConsumerDeletedError, failures.ConsumerNotFoundError)):
        messages.next(PATIENCE)


def test_a_consumer_that_is_deleted_while_no_pull_is_open_is_noticed(
    client: JetStream,
    stream: Stream,
    told: Events,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(client, 4)
    consumer = stream.create_consumer(name="C")
    messages = consumer.messages(4, threshold_messages=0)
    until(lambda: messages.pending_messages == 4, "all are at hand")
    consumer.delete()
    assert seqs(messages.next(PATIENCE) for _ in range(4)) == [1, 2, 3, 4]
    with pytest.raises(failures.ConsumerNotFoundError):
        messages.next(PATIENCE)
    warning = told.wait(events.ConsumerWarning)
    assert isinstance(warning.error, failures.UnreachableConsumerError)
    sentence = (
        f"read consumer 'C' of stream {stream.name!r}: 503 "
        "nobody answers for it: it is gone, or has no leader just now"
    )
    assert str(warning.error) == sentence
    assert sentence in caplog.messages


def test_a_consumer_that_is_made_again_is_read_again(
    client: JetStream, stream: Stream, told: Events
) -> None:
    fill(client, 4)
    consumer = stream.create_consumer(name="C")
    with consumer.messages(4, threshold_messages=0, on_missing="wait") as messages:
        until(lambda: messages.pending_messages == 4, "all are at hand")
        consumer.delete()
        assert seqs(messages.next(PATIENCE) for _ in range(4)) == [1, 2, 3, 4]
        with pytest.raises(jsclient.TimeoutError):
            messages.next(1.0)
        assert 2 <= len(told.of(events.ConsumerWarning)) <= 6
        stream.create_consumer(name="C")
        assert messages.next(PATIENCE).metadata.stream_seq == 1


# The ledger ---------------------------------------------------------------------------


def test_under_kills_and_cuts_nothing_is_lost_and_nothing_comes_after_its_ack(
    server: Server, client: JetStream, stream: Stream
) -> None:
    # A killed server forgets deliveries, does not answer acks of them, and may forget
    # acks of its last moments. Nothing else comes twice after a confirmed ack.
    count = 600
    stream.create_consumer(durable_name="C", ack_wait=2.0, max_ack_pending=-1)
    fill(client, count)
    port = int(server.url.rpartition(":")[2])
    handed: Counter[int] = Counter()
    confirmed: dict[int, float] = {}
    forgotten: list[tuple[int, float]] = []
    lock = threading.Lock()

    def work(msg: Msg) -> None:
        seq = msg.metadata.stream_seq
        time.sleep(0.005)
        with lock:
            handed[seq] += 1
            if seq in confirmed:
                forgotten.append((seq, confirmed[seq]))
        msg.ack_sync(0.2)
        with lock:
            confirmed[seq] = time.monotonic()

    kills: list[float] = []
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        jsclient.connect(proxy.url, **QUICK) as nc,  # type: ignore[arg-type]
    ):
        consumer = nc.jetstream().consumer("S", "C")
        handle = consumer.consume(work, workers=4, max_messages=20)
        for number in range(6):
            time.sleep(0.15)
            if number == 3:
                kills.append(time.monotonic())
                server.kill()
                server.restart()
            else:
                proxy.cut()

        def is_done() -> bool:
            info = consumer.info()
            return info.ack_floor.stream_seq == count and not info.num_ack_pending

        until(is_done, "all are acknowledged", 40.0)
        handle.stop()
        handle.wait(PATIENCE)
        assert_nothing_left(nc.jetstream())
    assert set(handed) == set(range(1, count + 1))
    for seq, at in forgotten:
        assert any(kill - 1.0 < at < kill + 0.5 for kill in kills), (seq, at, kills)
