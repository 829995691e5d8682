"""Automatic status management (ADR-15) with a real server, a test for each sentence.

What a real server does not send is in the file of the same name among the net tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from jsclient import errors, events
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from tests.live.pulls import fill, stream_of
from tests.live.pushes import Answers, numbers, user_of
from tests.live.support import PATIENCE, Events, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

BEAT = 0.2


@pytest.fixture
def js(js: JetStream) -> JetStream:
    """With an empty stream."""
    stream_of(js)
    return js


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server to be paused."""
    with run(jetstream=True) as server:
        yield server


def test_the_client_will_provide_status_management_as_the_default_behavior(
    js: JetStream, told: Events
) -> None:
    js._connection.on_event = told
    fill(js, 5000, b"x" * 1000)
    with js.subscribe(
        "s.>", ack_policy="none", flow_control=True, idle_heartbeat=BEAT
    ) as sub:
        found = [sub.next(PATIENCE) for _ in range(5000)]
        assert numbers(found) == list(range(1, 5001))
        assert all(msg.status is None for msg in found)
        with pytest.raises(errors.TimeoutError):
            sub.next(5 * BEAT)  # heartbeats are no messages
    assert told.of(events.ConsumerWarning) == []


def test_it_is_offered_to_support_pre_existing_users_to_handle_statuses_themselves(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 40, b"x" * 100_000)
    with (
        user_of(jetstream_server.url) as other,
        js.subscribe(
            "s.>",
            ack_policy="none",
            flow_control=True,
            idle_heartbeat=BEAT,
            raw_status=True,
        ) as sub,
    ):
        answers = Answers(other._connection, "S")
        seen: list[object] = []
        subject = None
        while subject is None:
            msg = sub.next(PATIENCE)
            seen.append(msg.status)
            if msg.status == 100:
                assert msg.headers is not None
                subject = msg.reply or msg.headers.get("Nats-Consumer-Stalled")
        assert answers.subjects == [], "nothing is answered by itself"
        js._connection.publish(subject)
        stored = sum(one is None for one in seen)
        while stored < 40:
            msg = sub.next(PATIENCE)
            stored += msg.status is None
            if msg.status is not None and msg.reply is not None:
                msg.respond()


def test_the_server_will_send_heartbeats_when_it_has_no_pending_messages(
    js: JetStream,
) -> None:
    with js.subscribe("s.>", idle_heartbeat=BEAT, raw_status=True) as sub:
        msg = sub.next(PATIENCE)
        assert (msg.status, msg.description) == (100, "Idle Heartbeat")
        assert msg.headers is not None
        assert msg.headers["Nats-Last-Consumer"] == "0"


def test_the_library_should_set_up_a_timer_to_monitor_messages_or_status(
    js: JetStream, told: Events
) -> None:
    js._connection.on_event = told
    with js.subscribe("s.>", idle_heartbeat=BEAT) as sub:
        for number in range(1, 6):  # now messages, now heartbeats
            fill(js, 1, first=number)
            assert numbers([sub.next(PATIENCE)]) == [number]
            time.sleep(2 * BEAT)
    assert told.of(events.ConsumerWarning) == []


def test_if_no_message_or_status_is_received_an_alarm_should_be_surfaced(
    own_server: Server, told: Events
) -> None:
    with user_of(own_server.url, told) as js:
        stream_of(js)
        with js.subscribe("s.>", idle_heartbeat=BEAT) as sub:
            own_server.pause()
            try:
                warning = told.wait(events.ConsumerWarning)
            finally:
                own_server.resume()
            assert isinstance(warning.error, failures.MissedHeartbeatError)
            assert (warning.stream, warning.consumer) == ("S", sub.consumer_name)
            fill(js, 1)
            assert numbers([sub.next(PATIENCE)]) == [1]


@pytest.mark.parametrize("intervals", [None, 3, 6])
def test_the_time_allowed_should_be_3_times_the_interval_but_may_be_configured(
    js: JetStream, told: Events, intervals: int | None
) -> None:
    js._connection.on_event = told
    options: dict[str, Any] = {}
    if intervals is not None:
        options["heartbeat_alarm"] = intervals
    with js.subscribe(
        "s.>", idle_heartbeat=BEAT, delete_on_close=False, **options
    ) as sub:
        begun = time.monotonic()
        js.delete_consumer("S", sub.consumer_name)
        told.wait(events.ConsumerWarning)
        # The last heartbeat may have come a whole interval before.
        assert time.monotonic() - begun > ((intervals or 3) - 1.2) * BEAT


def test_checking_for_gaps_only_applies_to_consumers_not_participating_in_queues(
    js: JetStream, told: Events
) -> None:
    js._connection.on_event = told
    first = js.subscribe("s.>", queue="q", ack_policy="none")
    second = js.subscribe("s.>", queue="q", ack_policy="none")
    fill(js, 200)
    until(lambda: first.pending_messages + second.pending_messages == 200, "all came")
    assert first.pending_messages
    assert second.pending_messages
    for sub in (first, second):
        sub.unsubscribe()
    assert told.of(events.ConsumerWarning) == []


def test_redeliveries_are_no_gaps(js: JetStream, told: Events) -> None:
    js._connection.on_event = told
    fill(js, 3)
    with js.subscribe("s.>", ack_wait=0.3, idle_heartbeat=BEAT) as sub:
        for number in range(1, 10):
            assert sub.next(PATIENCE).metadata.consumer_seq == number
    assert told.of(events.ConsumerWarning) == []


def test_the_client_should_respond_to_the_reply_to_with_an_empty_payload(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 60, b"x" * 100_000)
    with user_of(jetstream_server.url) as other:
        answers = Answers(other._connection, "S")
        with js.subscribe(
            "s.>", ack_policy="none", flow_control=True, idle_heartbeat=5.0
        ) as sub:
            until(lambda: sub.pending_messages > 15, "a window has come")
            assert answers.subjects == []
            assert numbers(sub.next(PATIENCE) for _ in range(60)) == list(range(1, 61))
        assert answers.subjects
        assert {(msg.data, msg.headers) for msg in answers.messages} == {(b"", None)}


def test_in_pull_mode_404_and_408_are_not_surfaced_or_considered_in_counts(
    js: JetStream,
) -> None:
    fill(js, 3)
    sub = js.pull_subscribe("s.>")
    assert len(sub.fetch(10, timeout=0.3)) == 3  # ended by a 404 and a 408
    consumer = js.consumer("S", sub.consumer_name)
    with consumer.messages(stop_after=2, expires=1.0) as messages:
        fill(js, 1, first=4)
        assert messages.next(PATIENCE).metadata.stream_seq == 4
        time.sleep(1.2)  # a 408 comes
        fill(js, 1, first=5)
        assert [msg.metadata.stream_seq for msg in messages] == [5]


def test_409_is_raised_for_whoever_pulls_from_a_push_consumer(
    js: JetStream,
) -> None:
    consumer = js.create_consumer("S", name="C")
    js.delete_consumer("S", "C")
    js.create_consumer("S", name="C", deliver_subject="there")
    with pytest.raises(failures.PushConsumerError):
        consumer.fetch(1, timeout=2.0)
