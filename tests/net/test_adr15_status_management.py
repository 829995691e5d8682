"""Automatic status management (ADR-15): each rule of it has a test of its name.

Here are those for which a server has to be scripted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

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


def test_if_the_library_detects_a_gap_it_can_surface_a_notification() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), message(2), message(4))
        assert numbers(scene, 3) == [1, 2, 4]
        assert gaps(scene, 1) == [(3, 4)]


def test_the_library_should_interrogate_messages_and_heartbeat_messages() -> None:
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


def test_gap_checking_should_be_disabled_on_queue_deliver_group_subscriptions() -> None:
    with pushing(PushDesk(), config={"deliver_group": "q"}) as scene:
        scene.send(message(1), message(5), beat(9))
        assert scene.desk.to.queue == "q"
        assert numbers(scene, 2) == [1, 5]
        assert scene.told.of(events.ConsumerWarning) == []


def test_a_member_of_a_queue_group_may_get_no_heartbeats() -> None:
    config = {"deliver_group": "q", "idle_heartbeat": 0.1}
    with pushing(PushDesk(), config=config) as scene:
        with pytest.raises(errors.TimeoutError):
            scene.sub.next(0.6)
        assert scene.told.of(events.ConsumerWarning) == []


# Flow control


def test_when_it_would_have_been_passed_to_the_user_the_client_should_respond() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), message(2), request("fc.1"), message(3))
        assert scene.desk.answers == []
        assert numbers(scene, 2) == [1, 2]
        scene.heard()
        assert scene.desk.answers == [], "the second message is being worked on"
        assert numbers(scene, 1) == [3]
        answer = scene.desk.wait_answer()
        assert answer == ("fc.1", "", b"")


def test_next_message_should_try_to_respond_with_the_next_buffered_message() -> None:
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


def test_it_is_only_required_to_respond_to_the_specific_subject_once() -> None:
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


def test_a_heartbeat_with_the_stalled_header_is_responded_to_as_flow_control() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(message(1), message(2), beat(2, "fc.7"))
        assert scene.desk.wait_answer() == ("fc.7", "", b"")
        assert scene.sub.pending_messages == 2


def test_a_heartbeat_with_malformed_headers_harms_nothing() -> None:
    def heartbeat(to: To) -> bytes:
        block = (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: fc.1\r\nx\r\n\r\n"
        )
        head = f"HMSG d {to.sid} {len(block)} {len(block)}\r\n".encode()
        return head + block + b"\r\n"

    with pushing(PushDesk()) as scene:
        scene.send(heartbeat, message(1))
        assert numbers(scene, 1) == [1]
        assert scene.desk.answers == []
        assert scene.nc.is_connected


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


@pytest.mark.parametrize("subject", ["fc.S.C.xyz1", "fc.a.b.c.d.e.f.g", "fc.ü", "fc.1"])
def test_the_format_of_the_flow_control_subject_should_not_be_inspected(
    subject: str,
) -> None:
    with pushing(PushDesk()) as scene:
        scene.send(request(subject), message(1))
        numbers(scene, 1)
        assert scene.desk.wait_answer().subject == subject


# Statuses


@pytest.mark.parametrize("line", ["404 No Messages", "408 Request Timeout"])
def test_404_and_408_statuses_should_not_be_surfaced_to_the_user(line: str) -> None:
    with pushing(PushDesk()) as scene:
        scene.send(status(line), message(1), status(line))
        assert numbers(scene, 1) == [1]
        with pytest.raises(errors.TimeoutError):
            scene.sub.next(0.05)
        assert scene.told.of(events.ConsumerWarning) == []


@pytest.mark.parametrize("line", ["409 Consumer Deleted", "503", "777 What Is This"])
def test_409_503_and_unknown_statuses_should_not_be_passed_but_raised_as_an_error(
    line: str,
) -> None:
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


def test_a_client_can_provide_a_mode_to_allow_the_user_to_handle_statuses() -> None:
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
