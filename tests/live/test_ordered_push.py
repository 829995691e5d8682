"""Ordered push subscriptions on a real server: in order, no gap, no repeat."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator

import pytest

import jsclient
from jsclient import errors, events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from tests.harness.tidy import assert_tidy
from tests.live.pulls import fill, seqs, stream_of
from tests.live.pushes import proxy_of, user_of
from tests.live.support import PATIENCE, Events, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server to be maltreated."""
    with run(jetstream=True) as server:
        yield server


def assert_nothing_left(js: JetStream) -> None:
    """No consumer on the server, and nothing in the loop."""
    until(lambda: not js.consumer_names("S"), "the consumers are gone")
    assert_tidy(js._connection)


def test_messages_come_in_order_and_leave_nothing_behind(js: JetStream) -> None:
    stream_of(js)
    fill(js, 20_000, b"x" * 200)
    with js.subscribe("s.>", ordered=True) as sub:
        for number in range(1, 20_001):
            assert sub.next(PATIENCE).metadata.stream_seq == number
        assert (sub.last_seq, sub.resets, sub.delivered) == (20_000, 0, 20_000)
        assert sub.consumer_info().config.flow_control
    assert_nothing_left(js)


def test_a_filter_and_a_start_are_kept_over_consumers(js: JetStream) -> None:
    stream_of(js)
    fill(js, 50)
    with js.subscribe(
        "s.>",
        ordered=True,
        idle_heartbeat=0.2,
        deliver_policy="by_start_sequence",
        opt_start_seq=31,
    ) as sub:
        assert seqs(sub.next() for _ in range(5)) == [31, 32, 33, 34, 35]
        js.delete_consumer("S", sub.consumer_name)
        assert seqs(sub.next(PATIENCE) for _ in range(15)) == list(range(36, 51))


def test_a_deleted_consumer_is_replaced(js: JetStream) -> None:
    stream_of(js)
    fill(js, 10)
    with js.subscribe("s.>", ordered=True, idle_heartbeat=0.2) as sub:
        assert seqs(sub.next() for _ in range(10)) == list(range(1, 11))
        for round_number in range(3):
            js.delete_consumer("S", sub.consumer_name)
            fill(js, 5, first=11 + 5 * round_number)
            first = 11 + 5 * round_number
            assert seqs(sub.next(PATIENCE) for _ in range(5)) == list(
                range(first, first + 5)
            )
        assert sub.resets == 3
    assert_nothing_left(js)


def test_a_consumer_that_somebody_reset_is_replaced(js: JetStream) -> None:
    stream_of(js)
    fill(js, 10)
    with js.subscribe("s.>", ordered=True, idle_heartbeat=0.2) as sub:
        assert seqs(sub.next() for _ in range(5)) == [1, 2, 3, 4, 5]
        js.consumer("S", sub.consumer_name).reset(1)
        assert seqs(sub.next(PATIENCE) for _ in range(5)) == [6, 7, 8, 9, 10]


def test_a_deleted_stream_ends_it(js: JetStream) -> None:
    stream_of(js)
    fill(js, 3)
    with js.subscribe("s.>", ordered=True, idle_heartbeat=0.2) as sub:
        assert seqs(sub.next() for _ in range(3)) == [1, 2, 3]
        js.delete_stream("S")
        with pytest.raises(failures.StreamNotFoundError):
            sub.next(PATIENCE)
        assert not sub.is_active
    assert_tidy(js._connection)


def test_messages_new_to_the_stream_are_not_lost_with_the_first_consumer(
    js: JetStream,
) -> None:
    stream_of(js)
    fill(js, 5)
    with js.subscribe(
        "s.>", ordered=True, deliver_policy="new", idle_heartbeat=0.2
    ) as sub:
        js.delete_consumer("S", sub.consumer_name)
        fill(js, 3, first=6)
        assert seqs(sub.next(PATIENCE) for _ in range(3)) == [6, 7, 8]


def test_it_survives_kills_of_the_server(own_server: Server, told: Events) -> None:
    with user_of(own_server.url, told) as js:
        stream_of(js, storage="file")
        fill(js, 200)
        with js.subscribe("s.>", ordered=True, idle_heartbeat=0.5) as sub:
            got = [sub.next(PATIENCE) for _ in range(50)]
            for outage in (1, 2):
                own_server.kill()
                own_server.restart()
                told.wait(events.Reconnected, outage)
                got += [sub.next(PATIENCE) for _ in range(50)]
            got += [sub.next(PATIENCE) for _ in range(50)]
            assert seqs(got) == list(range(1, 201))


def test_it_survives_cut_links_under_load(own_server: Server) -> None:
    total = 20_000
    rng = random.Random(5)
    with (
        proxy_of(own_server) as proxy,
        user_of(own_server.url) as other,
        user_of(proxy.url) as js,
    ):
        stream_of(other)
        writer = threading.Thread(target=fill, args=(other, total, b"x" * 500))
        writer.start()
        with js.subscribe("s.>", ordered=True, idle_heartbeat=0.2) as sub:
            cut_at = rng.randrange(1000)
            for number in range(1, total + 1):
                assert sub.next(PATIENCE).metadata.stream_seq == number
                if number == cut_at:
                    proxy.cut()
                    cut_at = number + rng.randrange(1, 5000)
            assert sub.resets > 0
        writer.join()


def test_small_limits_are_enough(js: JetStream) -> None:
    stream_of(js)
    fill(js, 300)
    with js.subscribe("s.>", ordered=True, max_pending_messages=100) as sub:
        time.sleep(0.2)  # more than that arrive
        assert seqs(sub.next(PATIENCE) for _ in range(300)) == list(range(1, 301))


def test_a_callback_gets_them_in_order(js: JetStream) -> None:
    stream_of(js)
    got: list[int] = []
    done = threading.Event()

    def take(msg: Msg) -> None:
        got.append(msg.metadata.stream_seq)
        if len(got) == 500:
            done.set()

    sub = js.subscribe("s.>", ordered=True, callback=take, idle_heartbeat=0.2)
    fill(js, 200)
    until(lambda: len(got) == 200, "the first ones are there")
    js.delete_consumer("S", sub.consumer_name)
    fill(js, 300, first=201)
    assert done.wait(PATIENCE)
    sub.drain()
    assert got == list(range(1, 501))
    assert_nothing_left(js)


def test_it_lives_as_long_as_it_is_iterated(js: JetStream) -> None:
    stream_of(js)
    fill(js, 5)
    for msg in js.subscribe("s.>", ordered=True):
        gc.collect()
        if msg.metadata.stream_seq == 5:
            fill(js, 5, first=6)
        if msg.metadata.stream_seq == 10:
            break
    gc.collect()
    assert_nothing_left(js)


def test_nobody_holds_it(js: JetStream) -> None:
    stream_of(js)
    fill(js, 3)
    sub = js.subscribe("s.>", ordered=True)
    assert seqs([sub.next()]) == [1]
    del sub
    gc.collect()
    assert_nothing_left(js)


def test_closing_the_connection_wakes_whoever_reads(
    jetstream_server: Server, js: JetStream
) -> None:
    stream_of(js)
    with jsclient.connect(jetstream_server.url) as nc:
        sub = nc.jetstream().subscribe("s.>", ordered=True)
        closer = threading.Timer(0.2, nc.close)
        closer.start()
        with pytest.raises(errors.ConnectionClosedError):
            sub.next(PATIENCE)
        closer.join()
        assert_tidy(nc)
