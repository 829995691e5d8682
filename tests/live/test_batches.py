"""Messages in columns, from a real server: fetched, consumed, acknowledged."""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import jsclient
from jsclient import errors, events
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from tests.harness.proxy import FaultProxy
from tests.live.pulls import assert_nothing_left, fill, stream_of
from tests.live.support import PATIENCE, Events, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

WAIT = 0.05  # between attempts to reconnect


def new_consumer(
    js: JetStream, count: int, *, ack_policy: str = "explicit", storage: str = "memory"
) -> jsclient.Consumer:
    """A consumer of a stream with messages 1 to count."""
    stream = stream_of(js, storage=storage)
    fill(js, count)
    return stream.create_consumer(durable_name="c", ack_policy=ack_policy, ack_wait=5.0)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server to be maltreated."""
    with run(jetstream=True) as server:
        yield server


# Fetching


def test_a_fetched_batch_says_what_the_stream_has(js: JetStream) -> None:
    consumer = new_consumer(js, 10)
    batch = consumer.fetch_batch(10)
    assert len(batch) == 10
    assert batch.stream_seqs.tolist() == list(range(1, 11))
    assert batch.consumer_seqs.tolist() == list(range(1, 11))
    assert batch.num_delivered.tolist() == [1] * 10
    assert batch.subjects == [f"s.{n}" for n in range(1, 11)]
    assert bytes(batch.data) == b"12345678910"
    stored = [js.stream("S").get_msg(n) for n in range(1, 11)]
    assert batch.timestamps_ns.tolist() == [one.timestamp_ns for one in stored]
    assert [msg.data for msg in batch] == [one.data for one in stored]
    assert batch.error is None
    assert_nothing_left(js)


def test_a_fetch_returns_what_there_is_when_its_time_is_over(js: JetStream) -> None:
    consumer = new_consumer(js, 3)
    assert len(consumer.fetch_batch(10, timeout=0.2)) == 3
    empty = consumer.fetch_batch(10, timeout=0.1)
    assert len(empty) == 0
    assert list(empty) == []
    assert_nothing_left(js)


def test_a_fetch_without_time_takes_what_is_there(js: JetStream) -> None:
    consumer = new_consumer(js, 3)
    # What takes a busy server longer is for the next call.
    batches = iter(lambda: consumer.fetch_batch(10, timeout=0), None)
    assert len(next(batch for batch in batches if len(batch))) == 3
    assert len(next(batches)) == 0


def test_a_fetch_of_bytes_keeps_its_limit(js: JetStream) -> None:
    stream = stream_of(js)
    fill(js, 10, b"x" * 1000)
    consumer = stream.create_consumer(name="c")
    batch = consumer.fetch_batch(100, max_bytes=4500, timeout=1.0)
    assert len(batch) == 4
    assert batch.sizes == [1000] * 4


def test_a_fetch_from_a_consumer_that_is_gone_raises(js: JetStream) -> None:
    consumer = new_consumer(js, 3)
    consumer.delete()
    with pytest.raises(failures.ConsumerNotFoundError):
        consumer.fetch_batch(10, timeout=5.0)
    assert_nothing_left(js)


def test_a_fetch_that_ended_early_says_why(js: JetStream) -> None:
    consumer = new_consumer(js, 3)
    timer = threading.Timer(0.3, consumer.delete)
    timer.start()
    batch = consumer.fetch_batch(10, timeout=10.0)
    timer.join()
    assert len(batch) == 3
    assert isinstance(batch.error, failures.ConsumerDeletedError)


def test_acks_of_a_batch_are_one_for_each_message(js: JetStream) -> None:
    consumer = new_consumer(js, 20)
    batch = consumer.fetch_batch(20)
    assert consumer.info().num_ack_pending == 20
    batch.ack()
    batch.ack()
    until(lambda: consumer.info().num_ack_pending == 0, "all are acknowledged")
    assert consumer.cached_info.ack_floor.stream_seq == 20


def test_a_message_of_a_batch_can_be_refused(js: JetStream) -> None:
    consumer = new_consumer(js, 3)
    batch = consumer.fetch_batch(3)
    batch[1].nak()
    again = consumer.fetch_batch(1)
    assert again.stream_seqs.tolist() == [2]
    assert again.num_delivered.tolist() == [2]


def test_headers_and_large_payloads_are_in_the_columns(js: JetStream) -> None:
    stream = stream_of(js)
    wanted = [b"", b"a" * 100_000, b"b", b"c" * 500_000]
    for number, data in enumerate(wanted):
        headers = {"Number": str(number)} if number % 2 else None
        js.publish(f"s.{number}", data, headers=headers)
    batch = stream.create_consumer(name="c").fetch_batch(4)
    assert batch.sizes == [len(data) for data in wanted]
    assert [msg.data for msg in batch] == wanted
    for number in (1, 3):
        first, last = batch.header_offsets[number], batch.header_offsets[number + 1]
        assert b"Number: %d" % number in bytes(batch.header_data[first:last])
        found = batch[number].headers
        assert found is not None
        assert found["Number"] == str(number)
    assert batch[0].headers is None


# Consuming


def test_batches_bring_every_message_in_order(js: JetStream) -> None:
    consumer = new_consumer(js, 3000)
    got: list[int] = []
    with consumer.batches(200, stop_after=3000) as batches:
        for batch in batches:
            assert 0 < len(batch) <= 200
            got += batch.stream_seqs.tolist()
            batch.ack()
    assert got == list(range(1, 3001))
    assert not batches.is_active
    assert batches.error is None
    until(lambda: consumer.info().ack_floor.stream_seq == 3000, "all acknowledged")
    assert_nothing_left(js)


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_stop_after_is_exact(js: JetStream, count: int) -> None:
    consumer = new_consumer(js, 1500)
    with consumer.batches(100, stop_after=count) as batches:
        got = [seq for batch in batches for seq in batch.stream_seqs]
    assert got == list(range(1, count + 1))
    assert consumer.info().delivered.stream_seq == count


def test_batches_of_bytes_bring_every_message(js: JetStream) -> None:
    stream = stream_of(js)
    fill(js, 500, b"x" * 500)
    consumer = stream.create_consumer(name="c", ack_policy="none")
    with consumer.batches(max_bytes=20_000, stop_after=500) as batches:
        got: list[int] = []
        for batch in batches:
            assert len(batch.data) <= 20_000
            got += batch.stream_seqs.tolist()
    assert got == list(range(1, 501))


def test_what_is_held_stays_within_the_limit_while_nobody_reads(
    js: JetStream,
) -> None:
    consumer = new_consumer(js, 1000, ack_policy="none")
    with consumer.batches(100, threshold_messages=50) as batches:
        until(lambda: batches._inbox.count == 100, "as much as is allowed has come")
        js._connection.flush()
        assert batches._inbox.count == 100
        assert consumer.info().delivered.stream_seq == 100
        assert len(batches.next()) == 100


def test_the_next_batch_is_waited_for(js: JetStream) -> None:
    consumer = new_consumer(js, 0)
    with consumer.batches() as batches:
        with pytest.raises(errors.TimeoutError):
            batches.next(timeout=0.05)
        fill(js, 5)
        got: list[int] = []
        while len(got) < 5:
            got += batches.next().stream_seqs.tolist()
    assert got == [1, 2, 3, 4, 5]
    with pytest.raises(errors.SubscriptionClosedError):
        batches.next()
    assert list(batches) == []


def test_stopping_wakes_who_waits(js: JetStream) -> None:
    consumer = new_consumer(js, 0)
    batches = consumer.batches()
    ended = threading.Event()

    def read() -> None:
        for _ in batches:
            pass
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: bool(consumer.info().num_waiting), "it waits at the server")
    batches.stop()
    assert ended.wait(PATIENCE)
    reader.join()
    assert_nothing_left(js)


def test_draining_leaves_what_has_come_to_be_read(js: JetStream) -> None:
    consumer = new_consumer(js, 50)
    with consumer.batches(100) as batches:
        first = batches.next()
        batches.drain()
        rest = [seq for batch in batches for seq in batch.stream_seqs]
    got = first.stream_seqs.tolist() + rest
    assert got == list(range(1, len(got) + 1))
    assert consumer.info().delivered.stream_seq == len(got)
    assert_nothing_left(js)


def test_batches_that_nobody_holds_end(js: JetStream) -> None:
    consumer = new_consumer(js, 10)
    for batch in consumer.batches():
        assert len(batch) > 0
        break
    del batch
    gc.collect()
    assert_nothing_left(js)


def test_a_deleted_consumer_ends_them_after_what_has_come(js: JetStream) -> None:
    consumer = new_consumer(js, 10)
    got: list[int] = []
    with consumer.batches() as batches:
        while len(got) < 10:
            got += batches.next().stream_seqs.tolist()
        consumer.delete()
        with pytest.raises(failures.ConsumerDeletedError):
            for _ in batches:
                pass
        assert isinstance(batches.error, failures.ConsumerDeletedError)
    assert_nothing_left(js)


def test_closing_the_connection_ends_them(jetstream_server: Server) -> None:
    nc = jsclient.connect(jetstream_server.url)
    js = nc.jetstream()
    consumer = new_consumer(js, 10)
    batches = consumer.batches()
    batches.next()
    js.delete_stream("S")
    nc.close()
    with pytest.raises(errors.Error):
        for _ in batches:
            pass


def test_a_batch_outlives_its_connection(jetstream_server: Server) -> None:
    with jsclient.connect(jetstream_server.url) as nc:
        js = nc.jetstream()
        batch = new_consumer(js, 10).fetch_batch(10)
        js.delete_stream("S")
    assert batch.stream_seqs.tolist() == list(range(1, 11))
    assert batch[3].data == b"4"
    with pytest.raises(errors.ConnectionClosedError):
        batch.ack()
    assert not batch.is_acked


class Interrupt(BaseException):
    """What a signal handler raises, like KeyboardInterrupt."""


# A signal may come in a finalizer, where Python cannot raise.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(60, method="thread")  # the alarm is the test's own
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_signals_that_raise_lose_no_batch(js: JetStream) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    count = 20_000
    rng = random.Random(3)
    consumer = new_consumer(js, count, ack_policy="none")
    got: list[jsclient.Batch] = []
    interrupted = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    with consumer.batches(1000, stop_after=count) as batches:
        iterator = iter(batches)
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.002))
                # One step: nothing can come between.
                got.extend(iterator)
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except Interrupt:
                interrupted += 1
    signal.signal(signal.SIGALRM, before)
    assert [seq for batch in got for seq in batch.stream_seqs] == list(
        range(1, count + 1)
    )
    assert interrupted > 0


# Trouble


def test_after_a_killed_server_everything_arrives(
    own_server: Server, told: Events
) -> None:
    count = 4000
    with jsclient.connect(own_server.url, reconnect_wait=WAIT, on_event=told) as nc:
        js = nc.jetstream()
        consumer = new_consumer(js, count, storage="file")
        seen: Counter[int] = Counter()
        killed = 0
        deadline = time.monotonic() + 40
        with consumer.batches(200) as batches:
            while len(seen) < count:
                assert time.monotonic() < deadline
                batch = batches.next(PATIENCE)
                seen.update(batch.stream_seqs)
                batch.ack()
                if len(seen) > 1000 * (killed + 1) and killed < 2:
                    killed += 1
                    own_server.kill()
                    own_server.restart()
                    told.wait(events.Reconnected, killed)
        assert set(seen) == set(range(1, count + 1))
        assert killed == 2
        assert_nothing_left(js)


@pytest.mark.parametrize("seed", range(2))
def test_cut_links_lose_no_message(
    jetstream_server: Server, js: JetStream, seed: int
) -> None:
    rng = random.Random(seed)
    count = 3000
    new_consumer(js, count)
    js.update_consumer("S", "c", ack_wait=1.0)
    port = int(jetstream_server.url.rpartition(":")[2])
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=WAIT) as nc,
    ):
        consumer = nc.jetstream().consumer("S", "c")
        seen: Counter[int] = Counter()
        cuts = 0
        with consumer.batches(200) as batches:
            while len(seen) < count:
                if cuts < 4 and len(seen) >= cuts * 500:
                    cuts += 1
                    proxy.set("s2c", cut_after=rng.randrange(1, 30_000))
                batch = batches.next(PATIENCE)
                seen.update(batch.stream_seqs)
                batch.ack()
        assert set(seen) == set(range(1, count + 1))
        until(lambda: consumer.info().num_ack_pending == 0, "all acknowledged")
        assert_nothing_left(nc.jetstream())


def test_a_fetch_goes_on_after_a_restart(own_server: Server, told: Events) -> None:
    with jsclient.connect(own_server.url, reconnect_wait=WAIT, on_event=told) as nc:
        js = nc.jetstream()
        consumer = new_consumer(js, 0, storage="file")
        got: list[jsclient.Batch] = []
        reader = threading.Thread(
            target=lambda: got.append(consumer.fetch_batch(5, timeout=PATIENCE))
        )
        reader.start()
        until(lambda: bool(consumer.info().num_waiting), "it waits at the server")
        own_server.kill()
        own_server.restart()
        told.wait(events.Reconnected)
        fill(js, 5)
        reader.join(PATIENCE)
        assert got[0].stream_seqs.tolist() == [1, 2, 3, 4, 5]
