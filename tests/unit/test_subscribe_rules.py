"""The tables of the subscribe workflow: wrong arguments, and consumers that differ."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient import InvalidArgumentError
from jsclient import jetstream_errors as failures
from jsclient._engine.subscribe_rules import Wish, check_wish, find_mismatch

S: dict[str, Any] = {"subject": "s.1"}
PULL: dict[str, Any] = {**S, "is_pull": True}
ORDERED: dict[str, Any] = {**S, "is_ordered": True}


@pytest.mark.parametrize(
    ("wish", "fields", "text"),
    [
        ({}, {}, "give a subject"),
        ({"consumer": "C"}, {}, "give a subject"),
        ({"subject": "a b"}, {}, "subject"),
        ({"subject": "a..b"}, {}, "subject"),
        ({"stream": "a.b"}, {}, "stream must not have"),
        ({"stream": "S", "consumer": "a.b"}, {}, "the consumer's name must not have"),
        (S, {"durable_name": "a.b"}, "the consumer's name must not have"),
        (S, {"deliver_group": "a.b"}, "a queue that is its own durable must not"),
        (S, {"deliver_group": "a b"}, "queue"),
        (S, {"filter_subject": "s.2"}, "filters of the configuration differ"),
        (S, {"filter_subjects": ["s.1", "s.2"]}, "filters of the configuration"),
        ({**S, "consumer": "C"}, {"durable_name": "D"}, "give one of them"),
        (S, {"durable_name": "D", "name": "E"}, "give one of them"),
        ({**S, "consumer": "C"}, {"name": "E"}, "give one of them"),
        (PULL, {"deliver_subject": "d"}, "deliver_subject"),
        (PULL, {"deliver_group": "g"}, "deliver_group"),
        (PULL, {"flow_control": True}, "flow_control"),
        (PULL, {"idle_heartbeat": 10**9}, "idle_heartbeat"),
        (PULL, {"ack_policy": "none"}, "must be 'explicit'"),
        (PULL, {"ack_policy": "all"}, "must be 'explicit'"),
        (S, {"max_waiting": 5}, "max_waiting"),
        (S, {"deliver_group": "g", "idle_heartbeat": 10**9}, "a queue has neither"),
        (S, {"deliver_group": "g", "flow_control": True}, "a queue has neither"),
        ({**ORDERED, "consumer": "C", "stream": "S"}, {}, "give no consumer"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    wish: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        check_wish(Wish(**wish, fields=fields))


@pytest.mark.parametrize(
    ("wish", "fields"),
    [
        (S, {}),
        ({"stream": "S"}, {}),
        ({"subject": "s.>", "stream": "S"}, {"durable_name": "D"}),
        (S, {"filter_subject": "s.1"}),
        ({"stream": "S"}, {"filter_subjects": ["a", "b"]}),
        ({**S, "consumer": "C"}, {"durable_name": "C", "name": "C"}),
        (PULL, {"ack_policy": "explicit", "max_waiting": 5}),
        (S, {"deliver_group": "a.b", "durable_name": "D"}),
        (S, {"ack_policy": "none", "idle_heartbeat": 10**9, "flow_control": True}),
        (ORDERED, {"idle_heartbeat": 10**9}),
    ],
)
def test_arguments_that_can_be_are_not(
    wish: dict[str, Any], fields: dict[str, Any]
) -> None:
    check_wish(Wish(**wish, fields=fields))


@pytest.mark.parametrize(
    ("wish", "fields", "name"),
    [
        (S, {}, ""),
        ({**S, "consumer": "C"}, {}, "C"),
        (S, {"durable_name": "D"}, "D"),
        (S, {"name": "N"}, "N"),
        (S, {"deliver_group": "g"}, "g"),
        (S, {"deliver_group": "g", "durable_name": "D"}, "D"),
        ({**S, "consumer": "C"}, {"deliver_group": "g"}, "C"),
    ],
)
def test_the_consumer_is_looked_for_by_the_first_name_that_was_given(
    wish: dict[str, Any], fields: dict[str, Any], name: str
) -> None:
    assert Wish(**wish, fields=fields).name == name


QUEUE = {"deliver_group": "g"}
PUSH = {"deliver_subject": "d"}
SHARED = {**PUSH, "deliver_group": "g"}


@pytest.mark.parametrize(
    ("wish", "fields", "actual", "is_bound", "error", "text"),
    [
        (
            S,
            {},
            {**PUSH, "filter_subject": "s.2"},
            False,
            failures.SubjectMismatchError,
            "delivers ['s.2'], not ['s.1']",
        ),
        (
            S,
            {},
            {**PUSH, "filter_subjects": ["s.1", "s.2"]},
            False,
            failures.SubjectMismatchError,
            "",
        ),
        (PULL, {}, PUSH, False, failures.PushConsumerMismatchError, "use subscribe"),
        (S, {}, {}, False, failures.PullConsumerMismatchError, "use pull_subscribe"),
        (S, QUEUE, PUSH, False, failures.NoDeliverGroupError, "queue 'g' cannot"),
        (S, QUEUE, PUSH, True, failures.NoDeliverGroupError, ""),
        (S, {}, PUSH, True, failures.DuplicateSubscriptionError, "has a subscriber"),
        (S, {}, SHARED, False, failures.QueueRequiredError, "queue group 'g'"),
        (S, {}, SHARED, True, failures.QueueRequiredError, ""),
        (
            S,
            {"deliver_group": "other"},
            SHARED,
            True,
            failures.QueueMismatchError,
            "'g', not 'other'",
        ),
        (
            S,
            QUEUE,
            {**SHARED, "flow_control": True, "idle_heartbeat": 10**9},
            False,
            failures.QueueStatusError,
            "flow_control",
        ),
        (
            S,
            QUEUE,
            {**SHARED, "idle_heartbeat": 10**9},
            False,
            failures.QueueStatusError,
            "idle_heartbeat",
        ),
    ],
)
def test_a_consumer_that_does_not_fit_is_told_by_its_own_error(
    wish: dict[str, Any],
    fields: dict[str, Any],
    actual: dict[str, Any],
    is_bound: bool,
    error: type[failures.SubscriptionMismatchError],
    text: str,
) -> None:
    wanted = Wish(**wish, consumer="C", fields=fields)
    found = find_mismatch(wanted, "S", actual, is_bound=is_bound)
    assert type(found) is error
    assert (found.stream, found.consumer) == ("S", "C")
    assert "consumer 'C' of stream 'S'" in str(found)
    assert text in str(found)


@pytest.mark.parametrize(
    ("wish", "fields", "actual", "is_bound"),
    [
        (S, {}, PUSH, False),
        (S, {}, {**PUSH, "filter_subject": "s.1"}, False),
        ({"stream": "S"}, {}, {**PUSH, "filter_subject": "s.1"}, False),
        (
            {"stream": "S"},
            {"filter_subjects": ["b", "a"]},
            {**PUSH, "filter_subjects": ["a", "b"]},
            False,
        ),
        (S, QUEUE, SHARED, True),
        (PULL, {}, {}, False),
        (PULL, {}, {"filter_subject": "s.1"}, True),
    ],
)
def test_a_consumer_that_fits_is_taken(
    wish: dict[str, Any], fields: dict[str, Any], actual: dict[str, Any], is_bound: bool
) -> None:
    wanted = Wish(**wish, consumer="C", fields=fields)
    assert find_mismatch(wanted, "S", actual, is_bound=is_bound) is None
