"""ADR-13: what a pull subscription asks for, and what it makes of the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient.pull_subscription import PullSubscription
from tests.net.client import TIMEOUT
from tests.net.pull_peer import Counter, Desk, Pull, Scene, consuming, nothing


class Stage(NamedTuple):
    sub: PullSubscription
    scene: Scene


@contextmanager
def subscribed(desk: Desk, **options: Any) -> Iterator[Stage]:
    """A pull subscription at the desk."""
    with consuming(desk, **options) as scene:
        sub = scene.nc.jetstream().pull_subscribe(stream="S", consumer="C")
        yield Stage(sub, scene)


def seqs(messages: Iterable[jsclient.Msg]) -> list[int]:
    return [msg.metadata.stream_seq for msg in messages]


def empty(pull: Pull) -> Iterable[bytes]:
    return [pull.status("404 No Messages")]


def messages(*numbers: int) -> Any:
    return lambda pull: [pull.message(number) for number in numbers]


# The requests -------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 5])
def test_first_a_no_wait_request_is_done_to_get_messages_already_available(
    batch: int,
) -> None:
    desk = Desk(messages(*range(1, batch + 1)))
    with subscribed(desk) as (sub, _):
        assert seqs(sub.fetch(batch)) == list(range(1, batch + 1))
    (pull,) = desk.pulls
    assert pull.body == {"batch": batch, "no_wait": True}


@pytest.mark.parametrize("batch", [1, 5])
def test_on_a_404_error_a_long_pull_request_is_made(batch: int) -> None:
    desk = Desk(Counter(empty, messages(*range(1, batch + 1))))
    with subscribed(desk) as (sub, _):
        assert len(sub.fetch(batch, timeout=2.0)) == batch
    first, second = desk.pulls
    assert first.body == {"batch": batch, "no_wait": True}
    assert set(second.body) == {"batch", "expires"}
    assert second.body["batch"] == batch
    # A little less than the client's own time, in nanoseconds.
    assert 1_500_000_000 < second.body["expires"] < 2_000_000_000
    assert first.reply != second.reply


def test_what_is_available_is_enough() -> None:
    desk = Desk(lambda pull: [*messages(1, 2)(pull), *empty(pull)])
    with subscribed(desk) as (sub, _):
        assert seqs(sub.fetch(5)) == [1, 2]
    assert len(desk.pulls) == 1


def test_at_least_one_message_delivered_is_a_successful_result() -> None:
    def slowly(pull: Pull) -> Iterable[bytes]:
        return [pull.message(1), pull.pending("408 Request Timeout", 4)]

    desk = Desk(Counter(empty, slowly))
    with subscribed(desk) as (sub, _):
        batch = sub.fetch(5)
    assert seqs(batch) == [1]
    assert batch.error is None


def test_next_is_a_fetch_of_one() -> None:
    desk = Desk(Counter(empty, messages(7)))
    with subscribed(desk) as (sub, _):
        assert sub.next(timeout=2.0).metadata.stream_seq == 7
    assert [pull.body["batch"] for pull in desk.pulls] == [1, 1]


def test_requests_of_one_message_share_a_wildcard_subscription() -> None:
    desk = Desk(messages(1))
    with subscribed(desk) as (sub, scene):
        for _ in range(5):
            sub.fetch(1)
        subscriptions = [
            arguments
            for verb, arguments, _ in scene.frames()
            if verb == b"SUB" and arguments.split()[0].endswith(b".1.*")
        ]
        assert len(subscriptions) == 1
    assert len({pull.reply for pull in desk.pulls}) == 5
    assert len({pull.sid for pull in desk.pulls}) == 1


def test_without_any_time_there_is_no_long_pull() -> None:
    desk = Desk(empty)
    with (
        subscribed(desk) as (sub, _),
        pytest.raises(jsclient.TimeoutError),
    ):
        sub.fetch(5, timeout=0)
    assert [pull.body for pull in desk.pulls] == [{"batch": 5, "no_wait": True}]


def test_a_client_that_goes_away_from_the_request_unsubscribes() -> None:
    desk = Desk(Counter(empty))
    with subscribed(desk) as (sub, scene):
        with pytest.raises(jsclient.TimeoutError):
            sub.fetch(5, timeout=0.2)
        scene.heard()
        ended = {arguments for verb, arguments, _ in scene.frames() if verb == b"UNSUB"}
        assert desk.pulls[1].sid.encode() in ended


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["404 No Messages", "408 Request Timeout", "408 Requests Pending"]
)
def test_404_and_408_statuses_should_not_be_surfaced_to_the_user(line: str) -> None:
    desk = Desk(Counter(lambda pull: [pull.status(line)], messages(1)))
    with subscribed(desk) as (sub, _):
        assert seqs(sub.fetch(1)) == [1]
    desk = Desk(lambda pull: [pull.status(line)])
    with subscribed(desk) as (sub, _), pytest.raises(jsclient.TimeoutError):
        sub.fetch(1, timeout=0.3)


ERRORS = [
    ("400 Bad Request - what", failures.BadPullError),
    ("409 Consumer is push based", failures.PushConsumerError),
    ("409 Consumer Deleted", failures.ConsumerDeletedError),
    ("409 Exceeded MaxAckPending", failures.PullLimitError),
    ("409 Exceeded MaxWaiting", failures.PullLimitError),
    ("409 Something New", failures.PullError),
    ("499 Never Heard Of", failures.PullError),
]


@pytest.mark.parametrize(("line", "error"), ERRORS)
@pytest.mark.parametrize("is_first", [True, False])
def test_whenever_there_is_an_error_it_is_returned_to_the_user_not_a_message(
    line: str, error: type[failures.PullError], is_first: bool
) -> None:
    def refuse(pull: Pull) -> Iterable[bytes]:
        return [pull.status(line)]

    desk = Desk(Counter(refuse) if is_first else Counter(empty, refuse))
    with subscribed(desk) as (sub, _), pytest.raises(error):
        sub.fetch(5)


@pytest.mark.parametrize(("line", "error"), ERRORS)
def test_messages_before_an_error_are_returned_with_it(
    line: str, error: type[failures.PullError]
) -> None:
    desk = Desk(Counter(lambda pull: [pull.message(1), pull.status(line)]))
    with subscribed(desk) as (sub, _):
        batch = sub.fetch(5)
    assert seqs(batch) == [1]
    assert type(batch.error) is error


# Auto unsubscribe ---------------------------------------------------------------------


def test_a_limit_counts_messages_already_received() -> None:
    desk = Desk(Counter(messages(1, 2, 3), messages(4, 5)))
    with subscribed(desk) as (sub, _):
        sub.unsubscribe(limit=5)
        assert (seqs(sub.fetch(3)), sub.is_active) == ([1, 2, 3], True)
        # Two are left of the ten that are wanted.
        assert (seqs(sub.fetch(10)), sub.is_active) == ([4, 5], False)
        with pytest.raises(jsclient.SubscriptionClosedError):
            sub.fetch(1)
    assert [pull.body["batch"] for pull in desk.pulls] == [3, 2]


def test_statuses_do_not_count_towards_the_limit() -> None:
    desk = Desk(Counter(empty, messages(1), empty, messages(2)))
    with subscribed(desk) as (sub, _):
        sub.unsubscribe(limit=2)
        assert seqs([*sub.fetch(1), *sub.fetch(1)]) == [1, 2]
        assert not sub.is_active


def test_a_limit_can_be_set_again() -> None:
    desk = Desk(messages(1))
    with subscribed(desk) as (sub, _):
        sub.unsubscribe(limit=1)
        sub.fetch(1)
        sub.unsubscribe(limit=2)
        sub.fetch(1)
        assert sub.delivered == 2
        for limit, error in ((0, ValueError), (1.5, TypeError)):
            with pytest.raises(error):
                sub.unsubscribe(limit=limit)  # type: ignore[arg-type]


def test_fetches_at_once_do_not_exceed_the_limit() -> None:
    def one(pull: Pull) -> Iterable[bytes]:
        return [pull.message(number + 1) for number in range(pull.body["batch"])]

    desk = Desk(one)
    with subscribed(desk) as (sub, _):
        sub.unsubscribe(limit=10)
        got: list[int] = []

        def work() -> None:
            try:
                while True:
                    got.append(len(sub.fetch(3)))
            except jsclient.SubscriptionClosedError:
                return

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(got) == sub.delivered == 10
    assert sum(pull.body["batch"] for pull in desk.pulls) == 10


# Links and time -----------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
def test_a_fetch_goes_on_after_a_reconnect(is_first: bool) -> None:
    """Whether the link is lost while it asks what is there, or while it waits."""
    stages: list[Stage] = []

    def leave(pull: Pull) -> Iterable[bytes]:
        stages[0].scene.nc.reconnect()
        return ()

    before = [leave] if is_first else [empty, leave]
    desk = Desk(Counter(*before, messages(1, 2)))
    with subscribed(desk, links=2) as (sub, scene):
        stages.append(Stage(sub, scene))
        assert seqs(sub.fetch(2, timeout=TIMEOUT)) == [1, 2]
    assert [pull.connection for pull in desk.pulls] == [0, 1] if is_first else [0, 0, 1]
    assert ("no_wait" in desk.pulls[-1].body) is is_first


def test_one_deadline_holds_for_all_that_a_fetch_asks() -> None:
    def later(pull: Pull) -> Iterable[bytes]:
        time.sleep(0.3)
        return empty(pull)

    desk = Desk(Counter(later))
    with subscribed(desk) as (sub, _), pytest.raises(jsclient.TimeoutError):
        sub.fetch(5, timeout=2.0)
    assert desk.pulls[1].body["expires"] < 1_700_000_000


def test_a_consumer_that_does_not_answer_at_once_is_asked_to_wait() -> None:
    # As one does that waits for acks.
    desk = Desk(Counter(nothing, messages(1)))
    with subscribed(desk) as (sub, _):
        assert seqs(sub.fetch(1, timeout=10.0)) == [1]
    assert [pull.body.get("no_wait") for pull in desk.pulls] == [True, None]


def test_without_a_link_a_fetch_says_so_when_its_time_is_over() -> None:
    desk = Desk()
    with subscribed(desk, reconnect_wait=60.0) as (sub, scene):
        scene.cue("cut")
        with pytest.raises((jsclient.DisconnectedError, jsclient.TimeoutError)):
            sub.fetch(1, timeout=0.3)
        scene.nc.close()
