"""Push subscriptions and what a real server cannot be made to send them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jsclient import errors, events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from tests.net.client import TIMEOUT
from tests.net.push_peer import PushDesk, PushScene, To, pushing

pytestmark = pytest.mark.timeout(60)


def gaps(scene: PushScene, count: int) -> list[tuple[int, int]]:
    """The gaps that were told, at least so many, and nothing else."""
    scene.told.wait_for(events.ConsumerWarning, count)
    found = []
    for event in scene.told.of(events.ConsumerWarning):
        assert (event.stream, event.consumer) == ("S", "C")
        assert isinstance(event.error, failures.MessageGapError)
        found.append((event.error.expected, event.error.came))
    return found


def numbers(scene: PushScene, count: int) -> list[int]:
    return [scene.sub.next(TIMEOUT).metadata.consumer_seq for _ in range(count)]


def message(seq: int) -> Callable[[To], bytes]:
    return lambda to: to.message(seq)


def beat(last: int, stalled: str | None = None) -> Callable[[To], bytes]:
    return lambda to: to.heartbeat(last, stalled)


def request(subject: str) -> Callable[[To], bytes]:
    return lambda to: to.flow_control(subject)


def status(line: str) -> Callable[[To], bytes]:
    return lambda to: to.status(line)


# Gaps


def test_a_gap_is_told_and_the_message_after_it_is_delivered() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), message(2), message(4))
        assert numbers(scene, 3) == [1, 2, 4]
        assert gaps(scene, 1) == [(3, 4)]


def test_a_heartbeat_tells_of_lost_deliveries_at_once() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(4), beat(5))
        assert gaps(scene, 1) == [(4, 5)]
        scene.send(beat(5), message(6))
        assert gaps(scene, 1) == [(4, 5)]


def test_a_new_consumer_that_lost_its_first_messages_is_told_of() -> None:
    with pushing(PushDesk(), is_new=True) as scene:
        scene.send(beat(2))
        assert gaps(scene, 1) == [(0, 2)]


def test_a_consumer_that_was_there_before_may_be_anywhere() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(beat(2), message(3))
        assert numbers(scene, 1) == [3]
        assert scene.told.of(events.ConsumerWarning) == []


def test_a_gap_after_a_reconnect_is_told_and_nothing_ends() -> None:
    desk = PushDesk()
    with pushing(desk, links=2) as scene:
        scene.send(message(1), message(2))
        assert numbers(scene, 2) == [1, 2]
        desk.first = lambda to: [to.messages(5, 6)]
        scene.cue("cut")
        assert numbers(scene, 2) == [5, 6]
        assert gaps(scene, 1) == [(3, 5)]


def test_members_of_a_queue_group_are_told_of_no_gaps() -> None:
    with pushing(PushDesk(), config={"deliver_group": "q"}) as scene:
        scene.send(message(1), message(5), beat(9))
        assert scene.desk.to.queue == "q"
        assert numbers(scene, 2) == [1, 5]
        assert scene.told.of(events.ConsumerWarning) == []


# Flow control


def test_a_request_is_answered_when_all_before_it_were_handed_over() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), message(2), request("fc.1"), message(3))
        assert scene.desk.answers == []
        assert numbers(scene, 2) == [1, 2]
        scene.heard()
        assert scene.desk.answers == [], "the second message is being worked on"
        assert numbers(scene, 1) == [3]
        answer = scene.desk.wait_answer()
        assert answer == ("fc.1", "", b"")


def test_a_request_does_not_use_up_a_next() -> None:
    desk = PushDesk(first=lambda to: [to.flow_control("fc.1"), to.message(1)])
    with pushing(desk) as scene:
        assert numbers(scene, 1) == [1]
        assert desk.wait_answer().subject == "fc.1"


def test_a_request_is_answered_while_somebody_waits_for_a_message() -> None:
    desk = PushDesk()
    got: list[Msg] = []
    with pushing(desk) as scene:
        reader = threading.Thread(target=lambda: got.append(scene.sub.next(TIMEOUT)))
        reader.start()
        desk.cues["ask"] = lambda to: [to.flow_control("fc.1")]
        scene.cue("ask")
        desk.wait_answer()
        assert got == []
        scene.send(message(1))
        reader.join(TIMEOUT)
        assert len(got) == 1


def test_a_callback_answers_when_it_gets_there() -> None:
    gate, got = threading.Event(), list[int]()

    def take(msg: Msg) -> None:
        got.append(msg.metadata.consumer_seq)
        assert gate.wait(TIMEOUT)

    with pushing(PushDesk(), callback=take) as scene:
        scene.send(message(1), request("fc.1"), message(2))
        scene.heard()
        assert scene.desk.answers == []
        gate.set()
        scene.desk.wait_answer()
        scene.sub.drain()
        assert got == [1, 2]


def test_each_subject_is_answered_once() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(request("fc.1"), message(1))
        numbers(scene, 1)
        scene.desk.wait_answer()
        scene.send(beat(1, "fc.1"), beat(1, "fc.1"), request("fc.1"), message(2))
        numbers(scene, 1)
        scene.send(beat(2, "fc.2"), beat(2, "fc.2"))
        scene.desk.wait_answer(2)
        scene.heard()
        assert scene.desk.answers == ["fc.1", "fc.2"]


def test_a_stalled_consumer_is_answered_at_once() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), message(2), beat(2, "fc.7"))
        assert scene.desk.wait_answer() == ("fc.7", "", b"")
        assert scene.sub.pending_messages == 2


def test_a_consumer_that_stalls_because_the_user_is_slow_waits_for_him() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), request("fc.1"), message(2))
        scene.send(beat(2, "fc.1"), beat(2, "fc.1"))
        scene.heard()
        assert scene.desk.answers == []
        assert numbers(scene, 2) == [1, 2]
        scene.desk.wait_answer()
        scene.send(beat(2, "fc.1"))
        scene.heard()
        assert scene.desk.answers == ["fc.1"]


def test_on_a_new_link_a_stalled_consumer_is_answered_again() -> None:
    desk = PushDesk(first=lambda to: [to.heartbeat(0, "fc.1")])
    with pushing(desk, links=2) as scene:
        desk.wait_answer()
        scene.cue("cut")
        desk.wait_answer(2)
        assert desk.answers == ["fc.1", "fc.1"]


def test_a_request_that_is_reached_without_a_link_is_answered_on_the_next() -> None:
    desk = PushDesk()
    with pushing(desk, links=2, connect={"reconnect_wait": 0.3}) as scene:
        scene.send(message(1), request("fc.1"), message(2))
        scene.cue("cut")
        scene.told.wait_for(events.Disconnected)
        assert numbers(scene, 2) == [1, 2]
        scene.told.wait_for(events.Reconnected)
        assert desk.wait_answer().subject == "fc.1"


@pytest.mark.parametrize("subject", ["fc.>", "fc..x"])
def test_a_subject_that_nobody_can_publish_to_harms_nothing(subject: str) -> None:
    with pushing(PushDesk()) as scene:
        scene.send(beat(0, subject), message(1))
        assert numbers(scene, 1) == [1]
        assert scene.nc.is_connected


def test_answers_acknowledge_with_the_ack_policy_flow_control() -> None:
    config = {"ack_policy": "flow_control", "flow_control": True}
    with pushing(PushDesk(), config=config) as scene:
        scene.send(
            request("fc.1"),
            lambda to: to.message(1, stream_seq=11),
            lambda to: to.message(2, stream_seq=12),
            request("fc.2"),
            lambda to: to.message(3, stream_seq=13),
        )
        numbers(scene, 3)
        first, second = scene.desk.wait_answer(1), scene.desk.wait_answer(2)
        assert first == ("fc.1", "", b"")
        assert second.headers.splitlines()[1:3] == [
            "Nats-Last-Consumer: 2",
            "Nats-Last-Stream: 12",
        ]
        scene.send(beat(3, "fc.3"))
        assert "Nats-Last-Consumer: 3" in scene.desk.wait_answer(3).headers
        scene.send(message(5), request("fc.4"), message(6))
        numbers(scene, 2)
        assert "Nats-Last-Consumer: 3" in scene.desk.wait_answer(4).headers


# Statuses


@pytest.mark.parametrize("line", ["404 No Messages", "408 Request Timeout"])
def test_statuses_of_pulls_are_ignored(line: str) -> None:
    with pushing(PushDesk()) as scene:
        scene.send(status(line), message(1), status(line))
        assert numbers(scene, 1) == [1]
        with pytest.raises(errors.TimeoutError):
            scene.sub.next(0.05)
        assert scene.told.of(events.ConsumerWarning) == []


@pytest.mark.parametrize("line", ["409 Consumer Deleted", "503", "777 What Is This"])
def test_errors_are_raised_where_they_came_and_reading_goes_on(line: str) -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), status(line), message(2))
        assert numbers(scene, 1) == [1]
        with pytest.raises(failures.PushError) as raised:
            scene.sub.next(TIMEOUT)
        assert raised.value.code == int(line[:3])
        assert numbers(scene, 1) == [2]


def test_an_iteration_gets_the_errors_too() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), status("409 Conflict"), message(2))
        messages = iter(scene.sub)
        assert next(messages).metadata.consumer_seq == 1
        with pytest.raises(failures.PushError, match="409 Conflict"):
            next(messages)
        assert next(messages).metadata.consumer_seq == 2


def test_with_a_callback_errors_are_told_as_events() -> None:
    got: list[int] = []
    with pushing(
        PushDesk(), callback=lambda msg: got.append(msg.metadata.consumer_seq)
    ) as scene:
        scene.send(message(1), status("409 Conflict"), message(2))
        warning = scene.told.wait_for(events.ConsumerWarning)
        assert isinstance(warning.error, failures.PushError)
        scene.sub.drain()
        assert got == [1, 2]


def test_whoever_wants_gets_the_statuses_and_answers_himself() -> None:
    config = {"idle_heartbeat": 0.1}
    with pushing(PushDesk(), raw_status=True, config=config) as scene:
        scene.send(message(1), beat(9, "fc.1"), request("fc.2"), status("409 No"))
        found = [scene.sub.next(TIMEOUT) for _ in range(4)]
        assert [msg.status for msg in found] == [None, 100, 100, 409]
        with pytest.raises(errors.TimeoutError):
            scene.sub.next(0.5)
        assert scene.desk.answers == []
        assert scene.told.of(events.ConsumerWarning) == []
        found[2].respond(b"")
        assert scene.desk.wait_answer() == ("fc.2", "", b"")


# Ending


def test_a_limit_counts_messages_and_not_statuses() -> None:
    deleted: list[float] = []
    with pushing(PushDesk(), on_close=deleted.append) as scene:
        scene.sub.unsubscribe(limit=2)
        scene.send(beat(0), request("fc.1"), message(1), beat(1), message(2))
        assert [m.metadata.consumer_seq for m in scene.sub] == [1, 2]
        with pytest.raises(errors.SubscriptionClosedError):
            scene.sub.next(TIMEOUT)
        scene.heard()
        assert scene.desk.ended == [scene.desk.to.sid]
        assert len(deleted) == 1


def test_a_limit_is_not_left_to_the_server_on_a_new_link() -> None:
    desk = PushDesk()
    with pushing(desk, links=2) as scene:
        scene.sub.unsubscribe(limit=3)
        scene.send(message(1))
        desk.first = lambda to: [to.heartbeat(1), to.messages(2, 3, 4)]
        scene.cue("cut")
        assert numbers(scene, 3) == [1, 2, 3]
        with pytest.raises(errors.SubscriptionClosedError):
            scene.sub.next(TIMEOUT)
        assert b"UNSUB 1 " not in scene.server.received(1)


def test_a_failed_deletion_is_raised_by_unsubscribe() -> None:
    def fail(timeout: float) -> None:
        raise errors.TimeoutError("late")

    with pushing(PushDesk(), on_close=fail) as scene:
        with pytest.raises(errors.TimeoutError, match="late"):
            scene.sub.unsubscribe()
        assert not scene.sub.is_active


def test_a_failed_deletion_after_a_drain_is_told_as_an_event() -> None:
    def fail(timeout: float) -> None:
        raise errors.TimeoutError("late")

    with pushing(PushDesk(), on_close=fail) as scene:
        scene.send(message(1), message(2))
        scene.sub.drain()
        assert scene.told.of(events.ConsumerWarning) == []
        assert numbers(scene, 2) == [1, 2]
        warning = scene.told.wait_for(events.ConsumerWarning)
        assert str(warning.error) == "late"


def test_a_drain_deletes_after_the_last_message_was_handled() -> None:
    order: list[Any] = []

    def take(msg: Msg) -> None:
        order.append(msg.metadata.consumer_seq)

    def delete(timeout: float) -> None:
        order.append("deleted")

    with pushing(PushDesk(), callback=take, on_close=delete) as scene:
        scene.send(*(message(number) for number in range(1, 101)))
        scene.sub.drain(TIMEOUT)
        assert order == [*range(1, 101), "deleted"]
        scene.sub.unsubscribe()
        assert order.count("deleted") == 1


def test_a_callback_may_drain_its_own_subscription() -> None:
    deleted, scenes = threading.Event(), list[PushScene]()
    started = threading.Event()

    def take(msg: Msg) -> None:
        assert started.wait(TIMEOUT)
        scenes[0].sub.drain(TIMEOUT)

    with pushing(
        PushDesk(), callback=take, on_close=lambda timeout: deleted.set()
    ) as scene:
        scenes.append(scene)
        scene.send(message(1))
        started.set()
        assert deleted.wait(TIMEOUT)


def test_a_subscription_that_the_server_refuses_ends() -> None:
    text = b"-ERR 'Permissions Violation for Subscription to \"deliver.here\"'\r\n"
    desk = PushDesk(first=lambda to: [text])
    with pushing(desk, config={"idle_heartbeat": 0.1}) as scene:
        with pytest.raises(errors.PermissionsViolationError):
            scene.sub.next(TIMEOUT)
        event = scene.told.wait_for(events.ErrorEvent)
        assert event.subscription is scene.sub


# Limits and wrong calls


def test_a_slow_reader_is_told_what_was_dropped() -> None:
    with pushing(PushDesk(), max_pending_messages=3) as scene:
        scene.send(*(message(number) for number in range(1, 11)))
        event = scene.told.wait_for(events.SlowConsumer)
        assert event.subscription is scene.sub
        assert (scene.sub.pending_messages, scene.sub.dropped) == (3, 7)
        with pytest.raises(errors.SlowConsumerError, match="7 messages"):
            scene.sub.next(TIMEOUT)
        assert numbers(scene, 3) == [1, 2, 3]
        assert scene.sub.delivered == 3


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"callback": 5}, TypeError, "callback"),
        ({"heartbeat_alarm": "3"}, TypeError, "heartbeat_alarm"),
        ({"heartbeat_alarm": True}, TypeError, "heartbeat_alarm"),
        ({"heartbeat_alarm": 1}, ValueError, "heartbeat_alarm"),
        ({"heartbeat_alarm": float("nan")}, ValueError, "heartbeat_alarm"),
        ({"max_pending_messages": 0}, ValueError, "max_pending_messages"),
        ({"max_pending_bytes": "x"}, TypeError, "max_pending_bytes"),
        ({"config": {"deliver_group": "a b"}}, ValueError, "deliver_group"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    desk = PushDesk()
    with pytest.raises(error, match=text), pushing(desk, **options):
        pass
    assert desk.to.sid == "0"


def test_a_callback_gets_the_messages_alone() -> None:
    with pushing(PushDesk(), callback=lambda msg: None) as scene:
        for read in (scene.sub.next, scene.sub.messages, lambda: iter(scene.sub)):
            with pytest.raises(ValueError, match="callback"):
                read()
