"""Push subscriptions: how they end, what they hold, what they refuse."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jsclient import errors, events
from jsclient._core import Msg
from jsclient.config import consumer_config
from tests.net.client import TIMEOUT
from tests.net.push_peer import (
    SUBJECT,
    PushDesk,
    PushScene,
    To,
    bound_info,
    pushing,
)

pytestmark = pytest.mark.timeout(60)


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


# Ending


def test_a_limit_counts_messages_and_not_statuses() -> None:
    deleted: queue.SimpleQueue[float] = queue.SimpleQueue()
    with pushing(PushDesk(), on_close=deleted.put) as scene:
        scene.sub.unsubscribe(limit=2)
        scene.send(beat(0), request("fc.1"), message(1), beat(1), message(2))
        assert [m.metadata.consumer_seq for m in scene.sub] == [1, 2]
        with pytest.raises(errors.SubscriptionClosedError):
            scene.sub.next(TIMEOUT)
        scene.heard()
        assert scene.desk.ended == [scene.desk.to.sid]
        deleted.get(timeout=TIMEOUT)  # by a thread of its own
        assert deleted.empty()


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


def test_a_subscription_that_was_refused_before_its_consumer_was_known_closes() -> None:
    text = b"-ERR 'Permissions Violation for Subscription to \"deliver.here\"'\r\n"
    deleted = threading.Event()
    desk = PushDesk(first=lambda to: [text])
    with pushing(desk) as scene:
        with pytest.raises(errors.PermissionsViolationError):
            scene.sub.next(TIMEOUT)
        info = bound_info(consumer_config(None, deliver_subject=SUBJECT))
        scene.sub.bound(info, lambda timeout: deleted.set())
        assert deleted.wait(TIMEOUT)


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
