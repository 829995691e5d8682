"""Ordered push subscriptions: what ends a consumer, and how the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import jsclient
from jsclient import errors, events
from jsclient import jetstream_errors as failures
from jsclient.config import consumer_config
from jsclient.ordered_push import OrderedPushSubscription, ordered_push
from tests.harness.scripted import ScriptedServer
from tests.harness.tidy import assert_tidy
from tests.net.client import TIMEOUT, Recorder, connected
from tests.net.push_peer import ApiRefusal, Create, PushDesk, To

pytestmark = pytest.mark.timeout(60)

Answer = Callable[[Create, To], Iterable[bytes] | ApiRefusal]


class Turns:
    """An `on_create` that gives the consumers their answers one after the other."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

    def __call__(self, create: Create, to: To) -> Iterable[bytes] | ApiRefusal:
        return self._answers.pop(0)(create, to) if self._answers else ()


class Scene(NamedTuple):
    nc: jsclient.Connection
    sub: OrderedPushSubscription
    desk: PushDesk
    told: Recorder

    def places(self, count: int) -> list[int]:
        """The places in the stream of the next messages."""
        return [self.sub.next(TIMEOUT).metadata.stream_seq for _ in range(count)]


@contextmanager
def ordered(
    *answers: Answer, links: int = 1, config: dict[str, Any] | None = None, **more: Any
) -> Iterator[Scene]:
    """An ordered subscription to the scripted consumers; nothing is left of it."""
    desk, told = PushDesk(on_create=Turns(*answers)), Recorder()
    with (
        ScriptedServer(*[desk.script()] * links) as server,
        connected(server.url, on_event=told) as nc,
    ):
        wanted = consumer_config(None, **(config or {}))
        sub = ordered_push(nc.jetstream()._api, "S", wanted, **more)
        yield Scene(nc, sub, desk, told)
        if not nc.is_closed:
            if sub.is_active:
                sub.unsubscribe()
            assert_tidy(nc)


def plays(*frames: Callable[[To], bytes]) -> Answer:
    """A consumer that is made, and sends these."""
    return lambda create, to: [frame(to) for frame in frames]


def at(seq: int, stream_seq: int) -> Callable[[To], bytes]:
    return lambda to: to.message(seq, stream_seq=stream_seq)


def refuses(code: int, err_code: int) -> Answer:
    return lambda create, to: ApiRefusal(code, err_code)


# The consumer


def test_the_consumer_is_made_as_ordered_consumers_are() -> None:
    with ordered(config={"filter_subject": "s.*"}) as scene:
        create = scene.desk.wait_create()
        nanoseconds = 1_000_000_000
        assert create.config == {
            "name": create.name,
            "deliver_subject": create.config["deliver_subject"],
            "ack_policy": "none",
            "ack_wait": 22 * 3600 * nanoseconds,
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": 5 * nanoseconds,
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subject": "s.*",
        }
        assert create.config["deliver_subject"].startswith("_INBOX.")
        assert scene.sub.consumer_name == create.name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "x"),
        ("durable_name", "x"),
        ("deliver_subject", "x"),
        ("deliver_group", "x"),
        ("ack_policy", "explicit"),
        ("ack_policy", "all"),
        ("max_deliver", 2),
        ("flow_control", False),
        ("mem_storage", False),
        ("num_replicas", 3),
    ],
)
def test_what_an_ordered_consumer_cannot_be_is_refused(field: str, value: Any) -> None:
    with (
        pytest.raises(errors.InvalidArgumentError, match=field),
        ordered(config={field: value}) as scene,
    ):
        scene.desk.wait_create()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ack_policy", "none"),
        ("max_deliver", 1),
        ("flow_control", True),
        ("mem_storage", True),
        ("num_replicas", 1),
    ],
)
def test_what_it_is_anyway_may_be_said(field: str, value: Any) -> None:
    with ordered(config={field: value}) as scene:
        assert scene.desk.wait_create().config[field] == value


def test_a_first_consumer_that_is_refused_is_raised_by_the_call() -> None:
    with pytest.raises(failures.StreamNotFoundError), ordered(refuses(404, 10059)):
        pass


# Resets


def test_a_gap_is_never_seen_and_the_next_consumer_begins_before_it() -> None:
    with ordered(
        plays(at(1, 11), at(2, 12), at(4, 14), at(5, 15)),
        plays(at(1, 13), at(2, 14), at(3, 15)),
    ) as scene:
        assert scene.places(5) == [11, 12, 13, 14, 15]
        first, second = scene.desk.wait_create(1), scene.desk.wait_create(2)
        assert second.config["deliver_policy"] == "by_start_sequence"
        assert second.config["opt_start_seq"] == 13
        assert second.config["deliver_subject"] != first.config["deliver_subject"]
        assert scene.desk.wait_delete() == first.name
        assert scene.sub.resets == 1
        warning = scene.told.wait_for(events.ConsumerWarning)
        assert "at message 4, 2 arrived" in str(warning.error)


def test_a_heartbeat_that_does_not_fit_begins_anew() -> None:
    with ordered(
        plays(at(1, 11), lambda to: to.heartbeat(2)), plays(at(1, 12))
    ) as scene:
        assert scene.places(2) == [11, 12]
        assert scene.desk.wait_create(2).config["opt_start_seq"] == 12


def test_a_consumer_that_somebody_reset_is_replaced() -> None:
    with ordered(
        plays(at(1, 11), at(2, 12), at(1, 11), at(2, 12)), plays(at(1, 13))
    ) as scene:
        assert scene.places(3) == [11, 12, 13]


def test_what_the_old_consumer_still_sends_is_not_seen() -> None:
    old: list[To] = []

    def lose_one(create: Create, to: To) -> Iterable[bytes]:
        old.append(to)
        return [to.message(1, stream_seq=11), to.message(3, stream_seq=13)]

    def go_on(create: Create, to: To) -> Iterable[bytes]:
        return [
            old[0].message(2, stream_seq=12),
            to.message(1, stream_seq=12),
            old[0].message(4, stream_seq=14),
            to.message(2, stream_seq=13),
        ]

    with ordered(lose_one, go_on) as scene:
        assert scene.places(3) == [11, 12, 13]


def test_silence_begins_anew() -> None:
    config = {"idle_heartbeat": 0.1}
    with ordered(plays(at(1, 11)), plays(at(1, 12)), config=config) as scene:
        assert scene.places(2) == [11, 12]
        warning = scene.told.wait_for(events.ConsumerWarning)
        assert isinstance(warning.error, failures.MissedHeartbeatError)


def test_heartbeats_that_fit_keep_it_alive() -> None:
    config = {"idle_heartbeat": 0.1}
    with ordered(plays(at(1, 11)), config=config, heartbeat_alarm=10) as scene:
        assert scene.places(1) == [11]
        scene.desk.cues["beat"] = lambda to: [to.heartbeat(1)]
        for _ in range(10):
            with pytest.raises(errors.TimeoutError):
                scene.sub.next(0.15)
            scene.nc.publish("cue.beat", b"")
        assert scene.sub.resets == 0


def test_a_lost_link_waits_for_the_next_one_and_goes_on() -> None:
    with ordered(plays(at(1, 11), at(2, 12)), plays(at(1, 13)), links=2) as scene:
        assert scene.places(1) == [11]
        scene.nc.publish("cue.cut", b"")
        scene.told.wait_for(events.Reconnected)
        assert scene.places(2) == [12, 13]
        assert scene.desk.wait_create(2).config["opt_start_seq"] == 13


def test_before_the_first_message_the_next_consumer_begins_where_the_first_did() -> (
    None
):
    config = {"deliver_policy": "new"}
    with ordered(
        plays(lambda to: to.heartbeat(1)), plays(at(1, 7)), config=config
    ) as scene:
        assert scene.places(1) == [7]
        create = scene.desk.wait_create(2)
        # The consumer said that it begins after message 6 of the stream.
        assert create.config["opt_start_seq"] == 7


def test_a_start_time_is_not_repeated_after_the_first_message() -> None:
    config = {
        "deliver_policy": "by_start_time",
        "opt_start_time": "2026-01-01T00:00:00Z",
    }
    with ordered(plays(at(1, 11), at(3, 13)), plays(at(1, 12)), config=config) as scene:
        assert scene.places(2) == [11, 12]
        assert "opt_start_time" in scene.desk.wait_create(1).config
        assert "opt_start_time" not in scene.desk.wait_create(2).config


def test_a_message_without_room_is_read_again() -> None:
    with ordered(
        plays(at(1, 11), at(2, 12), at(3, 13)), plays(at(1, 13)), max_pending_messages=2
    ) as scene:
        assert scene.places(3) == [11, 12, 13]
        assert scene.sub.dropped == 0


@pytest.mark.parametrize("err_code", [10008, 10023, 10039, 10035])
def test_a_refusal_that_may_pass_is_tried_again(err_code: int) -> None:
    with ordered(
        plays(at(1, 11), at(3, 13)),
        refuses(503, err_code),
        refuses(503, err_code),
        plays(at(1, 12)),
    ) as scene:
        assert scene.places(2) == [11, 12]
        assert scene.sub.last_seq == 12


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (404, 10059, failures.StreamNotFoundError),
        (400, 10080, failures.InvalidConsumerConfigError),
        (500, 10012, failures.ConsumerCreateError),
    ],
)
def test_any_other_refusal_ends_it(
    code: int, err_code: int, kind: type[Exception]
) -> None:
    with ordered(plays(at(1, 11), at(3, 13)), refuses(code, err_code)) as scene:
        assert scene.places(1) == [11]
        with pytest.raises(kind):
            scene.sub.next(TIMEOUT)
        assert not scene.sub.is_active
        assert isinstance(scene.sub.error, kind)


def test_with_a_callback_the_end_is_told_as_an_event() -> None:
    got: list[int] = []
    with ordered(
        plays(at(1, 11), at(3, 13)),
        refuses(404, 10059),
        callback=lambda msg: got.append(msg.metadata.stream_seq),
    ) as scene:
        error = scene.told.error(failures.StreamNotFoundError)
        assert isinstance(error, failures.StreamNotFoundError)
        assert got == [11]


def test_resets_are_limited_if_that_is_wanted() -> None:
    broken = plays(at(2, 12))
    with ordered(broken, broken, broken, max_resets=1) as scene:
        with pytest.raises(failures.LostPullError):
            scene.sub.next(TIMEOUT)
        assert scene.sub.resets == 2


# Flow control and ending


def test_flow_control_is_answered_in_its_place() -> None:
    with ordered(
        plays(at(1, 11), lambda to: to.flow_control("fc.1"), at(2, 12))
    ) as scene:
        assert scene.places(1) == [11]
        scene.nc.flush(TIMEOUT)
        assert scene.desk.answers == []
        assert scene.places(1) == [12]
        assert scene.desk.wait_answer().subject == "fc.1"


def test_a_new_consumer_may_use_the_same_subject_of_flow_control() -> None:
    with ordered(
        plays(lambda to: to.flow_control("fc.1"), at(1, 11)),
        plays(lambda to: to.flow_control("fc.1"), at(1, 12)),
    ) as scene:
        assert scene.places(1) == [11]
        scene.desk.cues["skip"] = lambda to: [to.message(3, stream_seq=13)]
        scene.nc.publish("cue.skip", b"")
        assert scene.places(1) == [12]
        scene.desk.wait_answer(2)
        assert scene.desk.answers == ["fc.1", "fc.1"]


def test_a_drain_leaves_what_has_arrived_to_be_read() -> None:
    with ordered(plays(at(1, 11), at(2, 12), at(3, 13))) as scene:
        assert scene.places(1) == [11]
        scene.sub.drain()
        assert [msg.metadata.stream_seq for msg in scene.sub] == [12, 13]
        assert not scene.sub.is_active
        assert scene.desk.wait_delete() == scene.desk.wait_create().name
        with pytest.raises(errors.SubscriptionClosedError):
            scene.sub.next(TIMEOUT)


def test_a_drain_waits_for_the_callback() -> None:
    got: list[int] = []
    with ordered(
        plays(at(1, 11), at(2, 12), at(3, 13)),
        callback=lambda msg: got.append(msg.metadata.stream_seq),
    ) as scene:
        scene.sub.drain()
        assert got == [11, 12, 13]


def test_a_limit_ends_it_after_so_many_messages_over_all_consumers() -> None:
    with ordered(
        plays(at(1, 11), at(2, 12), at(4, 14)),
        plays(at(1, 13), at(2, 14), at(3, 15)),
    ) as scene:
        scene.sub.unsubscribe(limit=4)
        assert [msg.metadata.stream_seq for msg in scene.sub] == [11, 12, 13, 14]
        assert scene.sub.delivered == 4
        assert not scene.sub.is_active


def test_an_iteration_with_a_timeout_ends_when_nothing_comes() -> None:
    with ordered(plays(at(1, 11), at(2, 12))) as scene:
        found = list(scene.sub.messages(0.1))
        assert [msg.metadata.stream_seq for msg in found] == [11, 12]
        assert scene.sub.is_active
