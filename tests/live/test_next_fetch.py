"""next, fetch, fetch_bytes and fetch_no_wait on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import chain

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from jsclient.consumer import Consumer
from jsclient.consuming import Batches, Messages
from jsclient.fetching import FetchResult
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import BUSY, PATIENCE, all_results, until

pytestmark = pytest.mark.live


@pytest.fixture
def stream(js: JetStream) -> Stream:
    """An empty stream on `s.>`."""
    return stream_of(js)


@pytest.fixture
def consumer(stream: Stream, js: JetStream) -> Iterator[Consumer]:
    """A consumer of the stream; after the test nothing of any pull is left."""
    yield stream.create_consumer(durable_name="C")
    assert_nothing_left(js)


@pytest.fixture
def other(jetstream_server: Server) -> Iterator[JetStream]:
    """A second client."""
    with jsclient.connect(jetstream_server.url) as nc:
        yield nc.jetstream()


# One message --------------------------------------------------------------------------


def test_threads_that_ask_one_consumer_at_once_get_each_message_once(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 400)

    def take(_: int) -> list[int]:
        return [consumer.next().metadata.stream_seq for _ in range(50)]

    found = all_results(8, take)
    assert sorted(chain(*found)) == list(range(1, 401))
    # One subscription for each pull that was open at the same time, and no more.
    assert 1 <= len(consumer._own_lanes().pool.free) <= 8


def test_a_call_like_the_last_one_is_checked_like_any_other(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 4)
    assert consumer.next(timeout=1).data == b"1"
    with pytest.raises(TypeError, match="timeout"):
        consumer.next(timeout=True)
    assert len(consumer.fetch(1)) == 1
    with pytest.raises(TypeError, match="max_messages"):
        consumer.fetch(True)
    assert len(consumer.fetch(1)) == 1
    assert len(consumer.fetch_no_wait(1)) == 1


def test_the_last_call_is_forgotten_when_the_consumer_changes(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 6)
    assert len(consumer.fetch(3)) == 3
    consumer.update(max_batch=2)
    with pytest.raises(ValueError, match="the consumer allows 2"):
        consumer.fetch(3)


def test_next_returns_a_message_that_is_there(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 2)
    first = consumer.next()
    assert (first.subject, first.data) == ("s.1", b"1")
    assert first.metadata.stream == "S"
    assert first.metadata.consumer == "C"
    assert first.metadata.domain is None
    assert first.metadata.num_pending == 1
    assert consumer.next().metadata.consumer_seq == 2


def test_next_waits_for_a_message(
    other: JetStream, js: JetStream, consumer: Consumer
) -> None:
    def work(number: int) -> object:
        if number:
            time.sleep(0.1)
            return other.publish("s.late", b"late")
        return consumer.next(timeout=10.0).data

    assert all_results(2, work)[0] == b"late"


def test_next_is_a_timeout_when_nothing_comes(consumer: Consumer) -> None:
    begun = time.monotonic()
    with pytest.raises(jsclient.TimeoutError):
        consumer.next(timeout=0.3)
    assert 0.27 <= time.monotonic() - begun < 1.3 + BUSY


def test_a_message_is_not_lost_between_timeouts(
    js: JetStream, consumer: Consumer
) -> None:
    # Some come just when the time of a call is over.
    got: list[Msg] = []
    for number in range(20):
        js.publish_async("s.x", b"%d" % number)
        while len(got) <= number:
            try:
                got.append(consumer.next(timeout=0.002))
            except jsclient.TimeoutError:
                continue
    assert [msg.metadata.stream_seq for msg in got] == list(range(1, 21))
    assert {msg.metadata.num_delivered for msg in got} == {1}


# Several ------------------------------------------------------------------------------


def test_a_fetch_of_more_than_there_is_returns_them_when_its_time_is_over(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 3)
    begun = time.monotonic()
    batch = consumer.fetch(10, timeout=0.5)
    assert 0.45 <= time.monotonic() - begun < 1.5 + BUSY
    assert seqs(batch) == [1, 2, 3]
    assert batch.error is None
    assert batch[-1].subject == "s.3"
    assert [msg.subject for msg in batch[:2]] == ["s.1", "s.2"]


def test_a_fetch_of_what_there_is_returns_at_once(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 5)
    begun = time.monotonic()
    assert seqs(consumer.fetch(3, timeout=30.0)) == [1, 2, 3]
    assert seqs(consumer.fetch(2, timeout=30.0)) == [4, 5]
    assert time.monotonic() - begun < 15.0


def test_a_large_fetch_returns_every_message_once(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 2000)
    batch = consumer.fetch(1000, timeout=20.0)
    assert seqs(batch) == list(range(1, 1001))
    # max_ack_pending is 1000: the rest comes when these are acknowledged.
    assert len(consumer.fetch(1000, timeout=0.1)) == 0
    for msg in batch:
        msg.ack()
    assert seqs(consumer.fetch(1000, timeout=20.0)) == list(range(1001, 2001))


def test_fetches_at_once_get_different_messages(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 40)
    results = all_results(4, lambda _: consumer.fetch(10, timeout=10.0))
    assert [len(batch) for batch in results] == [10] * 4
    assert sorted(seq for batch in results for seq in seqs(batch)) == list(range(1, 41))
    assert all(batch.error is None for batch in results)


def test_a_fetch_does_not_disturb_a_consume_of_the_same_consumer(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 20)
    with consumer.messages(5) as messages:
        first = [messages.next().metadata.stream_seq for _ in range(5)]
        batch = seqs(consumer.fetch(5, timeout=10.0))
        rest = [messages.next().metadata.stream_seq for _ in range(10)]
    assert sorted([*first, *batch, *rest]) == list(range(1, 21))


# Without waiting ----------------------------------------------------------------------


def fill_and_see(js: JetStream, consumer: Consumer, count: int) -> None:
    """A stream stores a message before its consumers know of it."""
    fill(js, count)
    until(lambda: consumer.info().num_pending == count, "the consumer knows")


def test_without_waiting_one_gets_what_is_there(
    js: JetStream, consumer: Consumer
) -> None:
    begun = time.monotonic()
    assert len(consumer.fetch_no_wait(5)) == 0
    fill_and_see(js, consumer, 1)
    batch = consumer.fetch_no_wait(5)
    assert seqs(batch) == [1]
    assert batch.error is None
    assert len(consumer.fetch(5, timeout=0)) == 0
    fill_and_see(js, consumer, 7)
    assert len(consumer.fetch_no_wait(5)) == 5
    assert time.monotonic() - begun < PATIENCE


def test_without_room_for_acks_nothing_comes_and_nothing_hangs(
    js: JetStream, stream: Stream
) -> None:
    fill(js, 3)
    consumer = stream.create_consumer(name="narrow", max_ack_pending=1)
    held = consumer.next()
    begun = time.monotonic()
    # The server does not answer such a pull.
    assert len(consumer.fetch_no_wait(5, timeout=0.3)) == 0
    assert time.monotonic() - begun < PATIENCE
    held.ack_sync()
    assert seqs(consumer.fetch_no_wait(5, timeout=0.3)) == [2]


def test_a_paused_consumer_has_nothing_now(js: JetStream, stream: Stream) -> None:
    fill(js, 3)
    consumer = stream.create_consumer(name="paused")
    consumer.pause(datetime.now(timezone.utc) + timedelta(seconds=60))
    begun = time.monotonic()
    assert len(consumer.fetch_no_wait(5, timeout=600.0)) == 0
    assert time.monotonic() - begun < PATIENCE
    consumer.resume()
    assert len(consumer.fetch_no_wait(5)) == 3


# Bytes --------------------------------------------------------------------------------


def test_bytes_are_a_limit(js: JetStream, consumer: Consumer) -> None:
    fill(js, 5, b"x" * 250)
    begun = time.monotonic()
    batch = consumer.fetch_bytes(1000, timeout=20.0)
    assert seqs(batch) == [1, 2, 3]
    assert batch.error is None
    assert sum(msg.size for msg in batch) <= 1000
    assert time.monotonic() - begun < 10.0


def test_a_message_that_does_not_fit_is_an_error_that_says_so(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 1, b"x" * 500)
    with pytest.raises(failures.MessageSizeError, match="larger than 400 bytes"):
        consumer.fetch_bytes(400)
    assert len(consumer.fetch_bytes(1000, timeout=0.3)) == 1


def test_messages_and_bytes_may_both_be_limits(
    js: JetStream, consumer: Consumer
) -> None:
    fill(js, 6, b"x" * 250)
    assert len(consumer.fetch(2, max_bytes=10_000)) == 2
    assert len(consumer.fetch(4, max_bytes=1000)) == 3


# Refusals -----------------------------------------------------------------------------


def test_limits_of_the_consumer_are_named_before_anything_is_sent(
    stream: Stream,
) -> None:
    consumer = stream.create_consumer(
        name="strict", max_batch=5, max_expires=1.0, max_bytes=1000
    )
    with pytest.raises(ValueError, match="allows 5"):
        consumer.fetch(6, timeout=1.0)
    with pytest.raises(ValueError, match="allows 1000"):
        consumer.fetch_bytes(1001, timeout=1.0)
    assert len(consumer.fetch(5, timeout=0.1)) == 0
    assert len(consumer.fetch_bytes(1000, timeout=0.1)) == 0


def test_a_fetch_is_longer_than_the_consumer_allows_a_pull_to_be(
    js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(name="brief", max_expires=0.2)
    with pytest.raises(ValueError, match=r"is 30 s; the consumer allows 0\.2 s"):
        consumer.messages(expires=30.0)

    def first_of(reading: Messages | Batches) -> object:
        with reading:
            return reading.next(PATIENCE)

    readers: list[Callable[[], object]] = [
        lambda: consumer.next(timeout=PATIENCE),
        lambda: consumer.fetch(1, timeout=PATIENCE),
        # It waits for more bytes until its time is over.
        lambda: consumer.fetch_bytes(1000, timeout=2.0),
        lambda: consumer.fetch_batch(1, timeout=PATIENCE),
        lambda: js.pull_subscribe(stream="S", consumer="brief").next(PATIENCE),
        lambda: first_of(consumer.messages()),
        lambda: first_of(consumer.batches()),
    ]
    for read in readers:
        # The message comes when several pulls have ended.
        timer = threading.Timer(0.5, fill, [js, 1])
        timer.start()
        assert read()
        timer.join()
    empty = stream.create_consumer(name="idle", max_expires=0.2, deliver_policy="new")
    batch = empty.fetch(5, timeout=0.5)
    assert (len(batch), batch.error) == (0, None)


def test_limits_that_we_do_not_know_of_are_told_by_the_server(
    other: JetStream, js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(name="changing")
    other.update_consumer("S", "changing", max_batch=5)
    with pytest.raises(failures.PullLimitError, match="MaxRequestBatch of 5"):
        consumer.fetch(6, timeout=1.0)
    consumer.info()
    with pytest.raises(ValueError, match="allows 5"):
        consumer.fetch(6, timeout=1.0)


def test_a_push_consumer_cannot_be_pulled(js: JetStream, stream: Stream) -> None:
    consumer = stream.create_consumer(name="push", deliver_subject="there")
    for pull in (
        consumer.next,
        lambda: consumer.fetch(1),
        lambda: consumer.fetch_bytes(100),
        lambda: consumer.fetch_no_wait(1),
        consumer.fetch_batch,
        consumer.batches,
    ):
        with pytest.raises(failures.PushConsumerError, match="delivers by itself"):
            pull()


def test_a_consumer_that_became_a_push_consumer_says_so(
    other: JetStream, js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(name="both")
    other.delete_consumer("S", "both")
    other.create_consumer("S", name="both", deliver_subject="there")
    with pytest.raises(failures.PushConsumerError):
        consumer.fetch(1, timeout=1.0)
    messages = consumer.messages()
    with pytest.raises(failures.PushConsumerError):
        messages.next()


def test_the_last_place_in_the_queue_of_pulls_may_be_taken(
    other: JetStream, js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(name="queue", max_waiting=1)
    theirs = other.consumer("S", "queue")

    def work(number: int) -> object:
        if number:
            return theirs.fetch(1, timeout=PATIENCE)
        until(lambda: consumer.info().num_waiting == 1, "theirs waits")
        with pytest.raises(failures.PullLimitError, match="MaxWaiting"):
            consumer.fetch(1, timeout=1.0)
        fill(js, 1)  # ends theirs
        return None

    all_results(2, work)


def test_a_consumer_that_is_gone_is_told_at_once(js: JetStream, stream: Stream) -> None:
    consumer = stream.create_consumer(name="gone")
    js.delete_consumer("S", "gone")
    calls: list[Callable[[], object]] = [
        lambda: consumer.fetch(1, timeout=30.0),
        lambda: consumer.next(timeout=30.0),
        lambda: consumer.fetch_bytes(1000, timeout=30.0),
        lambda: consumer.fetch_no_wait(1, timeout=30.0),
        lambda: consumer.fetch_batch(1, timeout=30.0),
    ]
    for call in calls:
        begun = time.monotonic()
        with pytest.raises(failures.ConsumerNotFoundError):
            call()
        assert time.monotonic() - begun < 1.0 + BUSY


def test_a_consumer_that_goes_meanwhile_is_told_at_once(
    other: JetStream, js: JetStream, stream: Stream
) -> None:
    fill(js, 1)
    consumer = stream.create_consumer(name="going")

    def work(number: int) -> object:
        if number:
            time.sleep(0.2)
            other.delete_consumer("S", "going")
            return None
        begun = time.monotonic()
        batch = consumer.fetch(2, timeout=30.0)
        assert time.monotonic() - begun < 0.2 + BUSY
        return batch

    batch = all_results(2, work)[0]
    assert isinstance(batch, FetchResult)
    assert len(batch) == 1
    assert isinstance(batch.error, failures.ConsumerDeletedError)
