"""messages() and consume() on a real server that is well."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import chain

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.harness.leaks import LeakMeter
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import PATIENCE, Events, until

pytestmark = pytest.mark.live


@pytest.fixture
def client(jetstream_server: Server, told: Events) -> Iterator[JetStream]:
    """A client whose events are recorded; it leaves nothing behind."""
    with (
        LeakMeter(timeout=10.0),
        jsclient.connect(jetstream_server.url, on_event=told) as nc,
    ):
        js = nc.jetstream()
        yield js
        assert_nothing_left(js)
        for name in js.stream_names():
            js.delete_stream(name)


@pytest.fixture
def stream(client: JetStream) -> Stream:
    """An empty stream on `s.>`."""
    return stream_of(client)


def warnings(told: Events) -> list[Exception]:
    return [event.error for event in told.of(events.ConsumerWarning)]


class Handled:
    """A callback that remembers what it was given, by whom, and acknowledges it."""

    def __init__(self, pause: float = 0.0) -> None:
        self.seqs: list[int] = []
        self.threads: Counter[int] = Counter()
        self._pause = pause

    def __call__(self, msg: Msg) -> None:
        time.sleep(self._pause)
        self.seqs.append(msg.metadata.stream_seq)
        self.threads[threading.get_ident()] += 1
        msg.ack()


# Flow ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_messages": 1},
        {"max_messages": 2, "threshold_messages": 0},
        {"max_messages": 10, "threshold_messages": 10},
        {"max_bytes": 300},
        {"max_bytes": 1000, "threshold_bytes": 0},
        {"max_bytes": 1000, "threshold_bytes": 1000},
    ],
)
def test_every_message_comes_once_and_in_order(
    client: JetStream, stream: Stream, told: Events, options: dict[str, int]
) -> None:
    fill(client, 150)
    consumer = stream.create_consumer(name="C")
    with consumer.messages(**options) as messages:  # type: ignore[arg-type]
        for number in range(1, 151):
            msg = messages.next(PATIENCE)
            assert msg.metadata.stream_seq == number
            msg.ack()
    assert warnings(told) == []
    until(lambda: consumer.info().num_ack_pending == 0, "all acks arrived")


def test_messages_that_come_later_are_not_waited_for_long(
    client: JetStream, stream: Stream
) -> None:
    with stream.create_consumer(name="C").messages() as messages:
        for number in range(1, 21):
            client.publish("s.x", b"")
            assert messages.next(PATIENCE).metadata.stream_seq == number
        with pytest.raises(jsclient.TimeoutError):
            messages.next(0.05)


def test_pulls_follow_each_other_when_nothing_comes(
    client: JetStream, stream: Stream, told: Events
) -> None:
    consumer = stream.create_consumer(name="C")
    with consumer.messages(expires=1.0) as messages:
        # The first pull has expired by then.
        with pytest.raises(jsclient.TimeoutError):
            messages.next(1.3)
        client.publish("s.x", b"")
        assert messages.next(PATIENCE).metadata.stream_seq == 1
        assert consumer.info().num_waiting == 1
    assert warnings(told) == []


def test_stop_after_is_met_exactly_and_the_rest_stays(
    client: JetStream, stream: Stream, told: Events
) -> None:
    fill(client, 3)
    consumer = stream.create_consumer(name="C")
    messages = consumer.messages(500, stop_after=10, expires=1.0)
    got = [messages.next(PATIENCE) for _ in range(3)]
    # The first pull expires with three of ten; the next one asks for seven.
    time.sleep(1.2)
    fill(client, 20)
    got += list(messages)
    assert seqs(got) == list(range(1, 11))
    assert warnings(told) == [], "it was asked at once, and not by missed heartbeats"
    info = consumer.info()
    assert info.delivered.stream_seq == 10
    assert (info.num_ack_pending, info.num_pending) == (10, 13)
    assert seqs(consumer.fetch(13)) == list(range(11, 24))


def test_stop_after_holds_for_bytes_too(client: JetStream, stream: Stream) -> None:
    fill(client, 30)
    consumer = stream.create_consumer(name="C")
    assert len(list(consumer.messages(max_bytes=200, stop_after=10))) == 10
    assert consumer.info().delivered.stream_seq == 10


def test_without_room_for_acks_it_waits_and_goes_on_after_the_ack(
    client: JetStream, stream: Stream, told: Events
) -> None:
    fill(client, 2)
    consumer = stream.create_consumer(name="C", max_ack_pending=1)
    with consumer.messages(expires=1.0, idle_heartbeat=0.5) as messages:
        first = messages.next(PATIENCE)
        with pytest.raises(jsclient.TimeoutError):
            messages.next(2.6)  # five heartbeats
        first.ack()
        assert messages.next(PATIENCE).metadata.stream_seq == 2
    assert warnings(told) == []


def test_a_paused_consumer_is_waited_for(
    client: JetStream, stream: Stream, told: Events
) -> None:
    fill(client, 2)
    consumer = stream.create_consumer(name="C")
    consumer.pause(datetime.now(timezone.utc) + timedelta(seconds=1.5))
    begun = time.monotonic()
    with consumer.messages(expires=1.0, idle_heartbeat=0.5) as messages:
        assert messages.next(PATIENCE).metadata.stream_seq == 1
    assert time.monotonic() - begun >= 1.0
    assert warnings(told) == []


def test_a_slow_reader_gets_no_more_than_its_limit(
    client: JetStream, stream: Stream, told: Events, jetstream_server: Server
) -> None:
    fill(client, 500)
    consumer = stream.create_consumer(name="C")
    with consumer.messages(20, expires=1.0, idle_heartbeat=0.5) as messages:
        messages.next(PATIENCE)
        until(lambda: messages.pending_messages >= 19, "the buffer is full")
        time.sleep(1.5)  # longer than two heartbeats: with no pull open that is no news
        assert messages.pending_messages <= 20
        assert consumer.info().delivered.consumer_seq <= 20
        assert [messages.next().metadata.stream_seq for _ in range(99)][-1] == 100
    assert warnings(told) == []
    assert "Slow Consumer" not in jetstream_server.log()


def test_a_stream_that_is_purged_goes_on(
    client: JetStream, stream: Stream, told: Events
) -> None:
    fill(client, 30)
    consumer = stream.create_consumer(name="C")
    with consumer.messages(10) as messages:
        messages.next(PATIENCE)
        stream.purge()
        client.publish("s.new", b"new")
        while (msg := messages.next(PATIENCE)).data != b"new":
            assert msg.metadata.stream_seq <= 10
        assert msg.metadata.stream_seq == 31
    assert warnings(told) == []


# Odd messages -------------------------------------------------------------------------


def test_a_stored_message_that_looks_like_a_status_is_a_message(
    client: JetStream, stream: Stream
) -> None:
    odd = {"Status": "409", "Description": "Consumer Deleted"}
    client.publish("s.odd", b"", headers=odd)
    client.publish("s.next", b"next")
    with stream.create_consumer(name="C").messages() as messages:
        msg = messages.next(PATIENCE)
        assert dict(msg.headers or {}) == odd
        assert msg.status is None
        assert messages.next(PATIENCE).data == b"next"


def test_an_empty_message_is_a_message(client: JetStream, stream: Stream) -> None:
    for _ in range(3):
        client.publish("s.empty", b"")
    consumer = stream.create_consumer(name="C")
    with consumer.messages() as messages:
        for _ in range(3):
            msg = messages.next(PATIENCE)
            assert (msg.data, msg.headers) == (b"", None)
            msg.ack_sync()
    assert consumer.info().ack_floor.stream_seq == 3


# Limits of the consumer ---------------------------------------------------------------


def test_a_small_batch_limit_holds_for_bytes(client: JetStream, stream: Stream) -> None:
    fill(client, 23)
    consumer = stream.create_consumer(name="C", max_batch=5)
    with consumer.messages(max_bytes=100_000) as messages:
        assert seqs(messages.next(PATIENCE) for _ in range(23)) == list(range(1, 24))
    with consumer.messages() as messages:
        assert messages.is_active


def test_options_beyond_the_limits_are_refused(stream: Stream) -> None:
    consumer = stream.create_consumer(
        name="C", max_batch=5, max_expires=1.0, max_bytes=1000
    )
    with pytest.raises(ValueError, match="allows 5"):
        consumer.messages(6, expires=1.0)
    with pytest.raises(ValueError, match="allows 1"):
        consumer.messages(5, expires=30.0)
    with pytest.raises(ValueError, match="allows 1000"):
        consumer.messages(max_bytes=1001, expires=1.0)


def test_what_is_not_said_is_within_the_limits(
    client: JetStream, stream: Stream, told: Events
) -> None:
    consumer = stream.create_consumer(name="C", max_batch=5, max_expires=1.5)
    fill(client, 40)
    with consumer.messages() as messages:
        assert seqs(messages.next(PATIENCE) for _ in range(12)) == list(range(1, 13))
    with consumer.batches() as batches:
        assert len(batches.next(PATIENCE)) <= 5
    assert len(consumer.fetch_batch(timeout=1.0)) == 5
    assert warnings(told) == []


def test_a_limit_that_we_do_not_know_of_is_a_warning_and_a_pause(
    client: JetStream, stream: Stream, told: Events
) -> None:
    consumer = stream.create_consumer(name="C")
    client.update_consumer("S", "C", max_expires=1.0)
    fill(client, 1)
    with consumer.messages(expires=30.0) as messages:
        with pytest.raises(jsclient.TimeoutError):
            messages.next(1.0)
        assert 2 <= len(warnings(told)) <= 5
        assert isinstance(warnings(told)[0], failures.PullLimitError)
        client.update_consumer("S", "C", max_expires=60.0)
        assert messages.next(PATIENCE).metadata.stream_seq == 1


def test_a_full_queue_of_pulls_is_waited_out(
    client: JetStream, stream: Stream, told: Events, jetstream_server: Server
) -> None:
    consumer = stream.create_consumer(name="C", max_waiting=1)
    with (
        jsclient.connect(jetstream_server.url) as nc,
        nc.jetstream().consumer("S", "C").messages() as theirs,
    ):
        until(lambda: consumer.info().num_waiting == 1, "the place is taken")
        ours = consumer.messages(expires=1.0, idle_heartbeat=0.5)
        # The server is silent about it, as the pull has a heartbeat.
        event = told.wait(events.ConsumerWarning)
        assert isinstance(event.error, failures.MissedHeartbeatError)
        theirs.stop()
        nc.flush()  # else the server may still give them the message
    with ours:
        fill(client, 1)
        assert ours.next(PATIENCE).metadata.stream_seq == 1


# Threads ------------------------------------------------------------------------------


def test_several_threads_may_read_one_iteration(
    client: JetStream, stream: Stream
) -> None:
    fill(client, 200)
    consumer = stream.create_consumer(name="C")
    handled = Handled(pause=0.001)
    messages = consumer.messages(50, stop_after=200)

    def read() -> None:
        for msg in messages:
            handled(msg)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(handled.seqs) == list(range(1, 201))
    assert len(handled.threads) == 4
    until(lambda: consumer.info().num_ack_pending == 0, "all acks arrived")


def test_who_reads_an_iteration_has_work_while_the_others_are_busy(
    client: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(name="C", ack_policy="none")
    # None of the four goes on before each of them has a message.
    all_busy = threading.Barrier(4, timeout=PATIENCE)
    shares: list[list[int]] = [[], [], [], []]

    def read(number: int) -> None:
        for msg in messages:
            shares[number].append(msg.metadata.stream_seq)
            all_busy.wait()

    with consumer.messages(50, stop_after=80) as messages:
        threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        fill(client, 40)  # many at once
        for number in range(41, 81):
            fill(client, 1, first=number)  # and one at a time
        for thread in threads:
            thread.join(PATIENCE)
    assert [len(share) for share in shares] == [20, 20, 20, 20]
    assert sorted(chain(*shares)) == list(range(1, 81))


def test_workers_share_the_messages_of_a_consume(
    client: JetStream, stream: Stream
) -> None:
    fill(client, 200)
    consumer = stream.create_consumer(name="C")
    handled = Handled(pause=0.001)
    handle = consumer.consume(handled, workers=4, max_messages=50, stop_after=200)
    handle.wait(PATIENCE)
    assert sorted(handled.seqs) == list(range(1, 201))
    assert len(handled.threads) == 4
    assert handle.error is None
    until(lambda: consumer.info().num_ack_pending == 0, "all acks arrived")


def test_many_consumes_on_one_connection_do_not_disturb_each_other(
    client: JetStream, stream: Stream
) -> None:
    fill(client, 1000)
    consumers = [stream.create_consumer(name=f"C{number}") for number in range(10)]
    all_handled = [Handled() for _ in consumers]
    handles = [
        consumer.consume(handled, max_messages=100)
        for consumer, handled in zip(consumers, all_handled, strict=True)
    ]
    for handled in all_handled:
        # The limit holds at every moment, so it is looked at while messages flow.
        while len(handled.seqs) < 1000:
            for handle in handles:
                inbox = handle._messages._feed.inbox  # type: ignore[attr-defined]
                assert inbox.owed + inbox.count <= 100
            time.sleep(0.005)
        assert handled.seqs == list(range(1, 1001))
        assert len(handled.threads) == 1
    for handle in handles:
        handle.stop()
        handle.wait(PATIENCE)
    assert_nothing_left(client)
    for consumer in consumers:
        until(lambda: consumer.info().num_ack_pending == 0, "acks arrived")  # noqa: B023


def test_a_message_whose_callback_raised_is_delivered_again(
    client: JetStream, stream: Stream, told: Events
) -> None:
    fill(client, 3)
    consumer = stream.create_consumer(name="C", ack_wait=0.5)
    deliveries: list[tuple[int, int]] = []

    def moody(msg: Msg) -> None:
        place = msg.metadata
        deliveries.append((place.stream_seq, place.num_delivered))
        if (place.stream_seq, place.num_delivered) == (2, 1):
            raise ValueError("bad mood")
        msg.ack()

    with consumer.consume(moody):
        until(lambda: len(deliveries) == 4, "the second one came again")
    assert deliveries == [(1, 1), (2, 1), (3, 1), (2, 2)]
    assert [str(error) for error in warnings(told)] == ["bad mood"]


def test_a_long_callback_may_be_reported_by_itself(
    client: JetStream, stream: Stream
) -> None:
    fill(client, 1)
    consumer = stream.create_consumer(name="C", ack_wait=0.4)
    deliveries: list[int] = []

    def slowly(msg: Msg) -> None:
        deliveries.append(msg.metadata.num_delivered)
        time.sleep(1.2)
        msg.ack_sync()

    with consumer.consume(slowly, auto_in_progress=True):
        until(lambda: consumer.info().ack_floor.stream_seq == 1, "it was handled")
    assert deliveries == [1]


def test_a_long_callback_that_says_nothing_gets_its_message_again(
    client: JetStream, stream: Stream
) -> None:
    fill(client, 1)
    consumer = stream.create_consumer(name="C", ack_wait=0.4)
    deliveries: list[int] = []

    def slowly(msg: Msg) -> None:
        deliveries.append(msg.metadata.num_delivered)
        if len(deliveries) == 1:
            time.sleep(0.6)
        msg.ack_sync()

    with consumer.consume(slowly):
        until(lambda: len(deliveries) >= 2, "it came again")
    assert deliveries == [1, 2]
