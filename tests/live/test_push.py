"""Push deliveries of a real server: flow control, heartbeats, gaps, reconnects."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import pytest

import jsclient
from jsclient import errors, events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from tests.harness.tidy import assert_tidy
from tests.live.pulls import fill, stream_of
from tests.live.pushes import Answers, numbers, proxy_of, user_of
from tests.live.support import PATIENCE, Events, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server to be maltreated."""
    with run(jetstream=True) as server:
        yield server


# Flow control


def test_everything_arrives_with_flow_control_and_none_is_dropped(
    js: JetStream, jetstream_server: Server
) -> None:
    stream_of(js)
    fill(js, 45_000, b"x" * 1000)  # more than the largest window, 32 MiB
    with user_of(jetstream_server.url) as other:
        answers = Answers(other._connection, "S")
        with js.subscribe(
            "s.>", ack_policy="none", flow_control=True, idle_heartbeat=5.0
        ) as sub:
            for number, msg in enumerate(sub.messages(timeout=PATIENCE), 1):
                assert msg.metadata.consumer_seq == number
                if number == 45_000:
                    break
            assert sub.dropped == 0
        subjects = answers.subjects
        assert len(subjects) >= 3
        assert len(subjects) == len(set(subjects)), "each was answered once"


def test_a_slow_user_is_sent_no_more_than_a_window(
    js: JetStream, jetstream_server: Server
) -> None:
    stream_of(js)
    fill(js, 60, b"x" * 100_000)
    with user_of(jetstream_server.url) as other:
        answers = Answers(other._connection, "S")
        with js.subscribe(
            "s.>", ack_policy="none", flow_control=True, idle_heartbeat=0.1
        ) as sub:
            until(lambda: sub.pending_messages > 10, "a window has arrived")
            time.sleep(0.5)  # heartbeats say that the consumer is stalled
            assert answers.subjects == []
            assert sub.pending_bytes < 3 << 20
            for number in range(1, 61):
                assert sub.next(PATIENCE).metadata.consumer_seq == number
                if number % 10 == 0:
                    time.sleep(0.15)
            assert sub.dropped == 0
        subjects = answers.subjects
        assert subjects
        assert len(subjects) == len(set(subjects))


def test_a_hundred_thousand_messages_do_not_stall(js: JetStream) -> None:
    # A million of them are a cell of the benchmark.
    stream_of(js)
    total = 100_000
    fill(js, total, b"x" * 128)
    count = 0
    with js.subscribe(
        "s.>", ack_policy="none", flow_control=True, idle_heartbeat=1.0
    ) as sub:
        for msg in sub.messages(timeout=PATIENCE):
            count += 1
            if msg.metadata.stream_seq == total:
                break
    assert count == total


def test_the_ack_policy_flow_control_acknowledges_what_was_read(
    js: JetStream,
) -> None:
    stream_of(js)
    fill(js, 50)
    with js.subscribe(
        "s.>", ack_policy="flow_control", flow_control=True, max_ack_pending=20
    ) as sub:
        for number in range(1, 51):
            msg = sub.next(PATIENCE)
            assert msg.metadata.stream_seq == number
            msg.ack()  # does nothing
        with pytest.raises(errors.TimeoutError):
            sub.next(2.5)  # the request comes with a heartbeat, after a second
        until(
            lambda: sub.consumer_info().ack_floor.stream_seq == 50,
            "all are acknowledged",
        )


# Heartbeats


def test_silence_of_the_server_is_told_and_is_not_the_end(
    own_server: Server, told: Events
) -> None:
    with user_of(own_server.url, told) as js:
        stream_of(js)
        fill(js, 3)
        with js.subscribe("s.>", idle_heartbeat=0.2) as sub:
            assert numbers(sub.next() for _ in range(3)) == [1, 2, 3]
            with pytest.raises(errors.TimeoutError):
                sub.next(1.5)
            assert told.of(events.ConsumerWarning) == [], "heartbeats come"
            own_server.pause()
            try:
                for count in (1, 2, 3):
                    warning = told.wait(events.ConsumerWarning, count)
                    assert isinstance(warning.error, failures.MissedHeartbeatError)
                    assert warning.consumer == sub.consumer_name
            finally:
                own_server.resume()
            fill(js, 1, first=4)
            assert numbers([sub.next(PATIENCE)]) == [4]


def test_a_deleted_consumer_is_noticed_by_its_silence(
    js: JetStream, told: Events
) -> None:
    js._connection.on_event = told
    stream_of(js)
    with js.subscribe("s.>", idle_heartbeat=0.2, delete_on_close=False) as sub:
        js.delete_consumer("S", sub.consumer_name)
        deleted = time.monotonic()
        times: list[float] = []
        for count in range(1, 5):
            warning = told.wait(events.ConsumerWarning, count)
            assert isinstance(warning.error, failures.MissedHeartbeatError)
            times.append(time.monotonic())
        # The last heartbeat came an interval before, at most.
        assert times[0] - deleted > 0.3
        # A busy machine may be late, but not always.
        pauses = sorted(later - sooner for sooner, later in pairwise(times))
        assert pauses[-1] > 0.5, "not before 3 intervals"
        assert pauses[0] < 0.79, "and not after 4"


# Links


def test_a_gap_that_a_lost_link_left_is_told(own_server: Server, told: Events) -> None:
    with (
        proxy_of(own_server) as proxy,
        user_of(own_server.url) as other,
        user_of(proxy.url, told) as js,
    ):
        stream_of(other)
        with js.subscribe("s.>", idle_heartbeat=0.5, ack_wait=60) as sub:
            fill(other, 2)
            assert numbers(sub.next() for _ in range(2)) == [1, 2]
            # Another one with the same interest, so that deliveries go on.
            stand_in = other._connection.subscribe(sub.subject)
            other._connection.flush()
            proxy.refuse = True
            proxy.cut()
            told.wait(events.Disconnected)
            until(lambda: proxy.open_connections == 0, "the server has lost the client")
            fill(other, 3, first=3)
            # Heartbeats come there as well.
            delivered = (msg for msg in stand_in.messages(PATIENCE) if msg.reply)
            assert numbers(islice(delivered, 3)) == [3, 4, 5]
            proxy.refuse = False
            told.wait(events.Reconnected)
            warning = told.wait(events.ConsumerWarning)
            assert isinstance(warning.error, failures.MessageGapError)
            assert warning.error.missing == 3
            fill(other, 1, first=6)
            assert numbers([sub.next(PATIENCE)])[0] > 5


def test_deliveries_go_on_after_a_server_was_restarted(
    own_server: Server, told: Events
) -> None:
    with user_of(own_server.url, told) as js:
        stream_of(js, storage="file")
        fill(js, 5)
        with js.subscribe(
            "s.>", durable="D", idle_heartbeat=0.5, flow_control=True, ack_wait=1
        ) as sub:
            for _ in range(5):
                sub.next(PATIENCE).ack_sync()
            own_server.kill()
            own_server.restart()
            told.wait(events.Reconnected)
            fill(js, 5, first=6)
            seen = set[int]()
            while not seen >= {6, 7, 8, 9, 10}:
                msg = sub.next(PATIENCE)
                seen.add(msg.metadata.stream_seq)
                msg.ack()


def test_nothing_is_lost_while_links_are_cut(own_server: Server, told: Events) -> None:
    total = 3000
    with (
        proxy_of(own_server) as proxy,
        user_of(own_server.url) as other,
        user_of(proxy.url, told) as js,
    ):
        stream_of(other)
        seen = set[int]()
        with js.subscribe(
            "s.>", durable="D", ack_wait=1, flow_control=True, idle_heartbeat=0.2
        ) as sub:
            fill(other, total)
            deadline = time.monotonic() + 60
            cuts = 0
            while len(seen) < total:
                assert time.monotonic() < deadline, f"{len(seen)} of {total}"
                try:
                    msg = sub.next(5.0)
                except errors.TimeoutError:
                    continue
                seen.add(msg.metadata.stream_seq)
                msg.ack()
                if len(seen) // 500 > cuts:
                    cuts += 1
                    proxy.cut()
            assert seen == set(range(1, total + 1))
            assert cuts >= 5


# Push consumers in the new API


def test_a_push_consumer_can_be_iterated(js: JetStream) -> None:
    stream = stream_of(js)
    fill(js, 100)
    consumer = stream.create_consumer(
        name="P", deliver_subject="there", idle_heartbeat=0.5, flow_control=True
    )
    with consumer.messages() as messages:
        assert numbers(messages.next() for _ in range(40)) == list(range(1, 41))
        assert consumer.info().push_bound
        until(lambda: messages.pending_messages == 60, "all have arrived")
        messages.drain()
        assert numbers(messages) == list(range(41, 101))
        assert not messages.is_active
        assert messages.error is None
    assert_tidy(js._connection)


def test_a_push_consumer_that_somebody_reads_is_refused(
    js: JetStream, jetstream_server: Server
) -> None:
    consumer = stream_of(js).create_consumer(name="P", deliver_subject="there")
    with consumer.messages(), jsclient.connect(jetstream_server.url) as nc:
        other = nc.jetstream().consumer("S", "P")
        with pytest.raises(jsclient.DuplicateSubscriptionError, match="'P'"):
            other.messages()
        with pytest.raises(jsclient.DuplicateSubscriptionError):
            consumer.consume(print)
        assert_tidy(nc)
    consumer.delete()
    with pytest.raises(jsclient.ConsumerNotFoundError):
        consumer.messages()


def test_members_of_a_deliver_group_share_a_push_consumer(js: JetStream) -> None:
    consumer = stream_of(js).create_consumer(
        name="P", deliver_subject="there", deliver_group="g"
    )
    with consumer.messages() as one, consumer.messages() as other:
        fill(js, 100)
        until(lambda: one.pending_messages + other.pending_messages == 100, "all came")


def test_a_push_consumer_can_be_read_again_at_once(js: JetStream) -> None:
    consumer = stream_of(js).create_consumer(name="P", deliver_subject="there")
    js.create_consumer("S", durable_name="D", deliver_subject="elsewhere")
    # The server notices a moment later that nobody is subscribed any more.
    for _ in range(50):
        consumer.messages().stop()
        js.subscribe(stream="S", consumer="D").unsubscribe()


def test_a_push_consumer_stops_after_so_many_messages(js: JetStream) -> None:
    stream = stream_of(js)
    fill(js, 30)
    consumer = js.create_consumer("S", deliver_subject="there", idle_heartbeat=0.1)
    with consumer.messages(stop_after=12) as messages:
        assert numbers(messages) == list(range(1, 13))
    until(lambda: not consumer.info().push_bound, "the server heard of it")
    assert_tidy(js._connection)
    assert stream.consumer(consumer.name).cached_info.config.deliver_subject == "there"


def test_a_push_consumer_calls_back_on_workers(js: JetStream) -> None:
    stream_of(js)
    fill(js, 100)
    consumer = js.create_consumer("S", deliver_subject="there", ack_policy="explicit")
    got: list[int] = []

    def take(msg: Msg) -> None:
        got.append(msg.metadata.stream_seq)
        msg.ack()

    with consumer.consume(take, workers=3, stop_after=100) as handle:
        handle.wait(PATIENCE)
    assert sorted(got) == list(range(1, 101))
    until(lambda: consumer.info().num_ack_pending == 0, "all are acknowledged")
    assert_tidy(js._connection)


@pytest.mark.parametrize(
    "option",
    [
        {"max_messages": 5},
        {"max_bytes": 500},
        {"threshold_messages": 2},
        {"threshold_bytes": 2},
        {"expires": 10.0},
        {"idle_heartbeat": 1.0},
        {"on_missing": "wait"},
        {"group": "g"},
        {"priority": 1},
    ],
)
def test_options_of_pulls_are_refused_by_name(
    js: JetStream, option: dict[str, Any]
) -> None:
    stream_of(js)
    consumer = js.create_consumer("S", deliver_subject="there")
    (name,) = option
    with pytest.raises(errors.InvalidArgumentError, match=f"{name} is for pull"):
        consumer.messages(**option)
    with pytest.raises(errors.InvalidArgumentError, match=f"{name} is for pull"):
        consumer.consume(print, **option)
    with pytest.raises(TypeError, match="'nonsense'"):
        consumer.consume(print, nonsense=1)  # type: ignore[call-arg]
    assert_tidy(js._connection)


# Objects


def test_a_subscription_that_nobody_holds_ends(js: JetStream) -> None:
    stream_of(js)
    sub = js.subscribe("s.>", idle_heartbeat=0.5, delete_on_close=False)
    name = sub.consumer_name
    assert js.consumer("S", name).cached_info.push_bound
    del sub
    gc.collect()
    assert_tidy(js._connection)
    until(lambda: not js.consumer("S", name).cached_info.push_bound, "no interest")


def test_a_subscription_lives_as_long_as_it_is_iterated(js: JetStream) -> None:
    stream_of(js)
    fill(js, 5)
    for msg in js.subscribe("s.>", ack_policy="none", idle_heartbeat=0.5):
        gc.collect()
        if msg.metadata.stream_seq == 5:
            fill(js, 5, first=6)  # these can only come if it lives
        if msg.metadata.stream_seq == 10:
            break
    gc.collect()
    assert_tidy(js._connection)


def test_a_callback_lives_without_being_held(js: JetStream) -> None:
    stream_of(js)
    got: list[int] = []
    done = threading.Event()

    def take(msg: Msg) -> None:
        got.append(msg.metadata.stream_seq)
        msg.ack()
        if len(got) == 20:
            done.set()

    js.subscribe("s.>", callback=take, idle_heartbeat=0.5)
    gc.collect()
    fill(js, 20)
    assert done.wait(PATIENCE)
    assert got == list(range(1, 21))


def test_draining_the_connection_reads_what_has_arrived(
    jetstream_server: Server, js: JetStream
) -> None:
    stream_of(js)
    fill(js, 200)
    got: list[int] = []

    def take(msg: Msg) -> None:
        got.append(msg.metadata.stream_seq)
        msg.ack()

    with jsclient.connect(jetstream_server.url) as nc:
        sub = nc.jetstream().subscribe("s.>", callback=take, idle_heartbeat=0.5)
        until(lambda: sub.delivered > 0, "messages have arrived")
        nc.drain()
    assert got == list(range(1, len(got) + 1))
    assert sub.pending_messages == 0


def test_closing_the_connection_wakes_whoever_reads(
    jetstream_server: Server, js: JetStream
) -> None:
    stream_of(js)
    with jsclient.connect(jetstream_server.url) as nc:
        sub = nc.jetstream().subscribe("s.>", idle_heartbeat=0.5)
        closer = threading.Timer(0.2, nc.close)
        closer.start()
        with pytest.raises(errors.ConnectionClosedError):
            sub.next(PATIENCE)
        closer.join()
        assert_tidy(nc)
