"""Fetches that ask first for what is there, and wait only if that is nothing."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient._engine.pull import GRACE, Ask, Close
from jsclient.jetstream_errors import MessageSizeError, PullError, PushConsumerError
from tests.unit.test_pull import SIZE, Desk, fetch

EMPTY = (404, "No Messages")
PENDING = (408, "Requests Pending")
TIMEOUT = (408, "Request Timeout")


def trial(wanted: int = 10, *, timeout: float = 5.0, **options: Any) -> Desk:
    return fetch(wanted, timeout=timeout, no_wait_first=True, **options)


def test_the_first_pull_asks_for_what_is_there_without_expiry_or_heartbeat() -> None:
    desk = trial(heartbeat=1.0)
    assert desk.asks == [Ask(1, 10, 0, 0.0, 0.0, no_wait=True)]


def test_what_is_there_is_enough() -> None:
    desk = trial().deliver(3).status(*EMPTY)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert desk.batches == [10]


def test_all_of_it_needs_no_status() -> None:
    assert trial().deliver(10).has_ended()


@pytest.mark.parametrize("status", [EMPTY, PENDING, TIMEOUT])
def test_nothing_there_means_to_wait_for_the_rest_of_the_time(
    status: tuple[int, str],
) -> None:
    desk = trial(heartbeat=1.0).wait(0.5).status(*status)
    assert not desk.has_ended()
    second = desk.asks[1]
    assert (second.no_wait, second.batch, second.heartbeat) == (False, 10, 1.0)
    assert second.expires == pytest.approx(4.5 - 0.02)
    desk.deliver(2).wait(0.5).status(*TIMEOUT)
    assert desk.has_ended()
    assert len(desk.asks) == 2


def test_a_consumer_that_does_not_answer_is_asked_to_wait() -> None:
    desk = trial().wait(GRACE)
    assert [ask.no_wait for ask in desk.asks] == [True, False]
    assert desk.closes == [Close(1, False)]
    # What the first pull brings after all counts.
    desk.deliver(10, pull=1)
    assert desk.has_ended()


def test_one_that_falls_silent_after_some_messages_is_not_asked_again() -> None:
    desk = trial().deliver(2).wait(GRACE)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert len(desk.asks) == 1


def test_its_time_is_one_however_often_it_asks() -> None:
    desk = trial(timeout=1.0).wait(0.9).status(*EMPTY)
    assert desk.asks[-1].expires == pytest.approx(0.09)
    assert desk.wait(0.1).has_ended()


def test_a_new_link_begins_where_the_old_one_was() -> None:
    first = trial().unlink().link()
    assert [ask.no_wait for ask in first.asks] == [True, True]
    second = trial().status(*EMPTY).unlink().link()
    assert [ask.no_wait for ask in second.asks] == [True, False, False]


@pytest.mark.parametrize("is_trial", [True, False])
def test_errors_end_it_at_either_step(is_trial: bool) -> None:
    desk = trial()
    if not is_trial:
        desk.status(*EMPTY)
    desk.status(409, "Consumer is push based")
    assert desk.has_ended()
    assert type(desk.machine.error) is PushConsumerError


def test_an_unknown_status_is_an_error() -> None:
    desk = trial().status(499, "Nobody Knows")
    assert type(desk.machine.error) is PullError


def test_a_message_larger_than_its_bytes_is_an_error() -> None:
    desk = trial(max_bytes=100).status(*SIZE)
    assert type(desk.machine.error) is MessageSizeError
