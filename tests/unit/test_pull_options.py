"""The options of pulls: defaults, limits of the consumer, and errors that name them."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._engine.arguments import LARGEST_COUNT
from jsclient._engine.pull import MANY, Ask, Policy
from jsclient.config import ConsumerConfig, consumer_config
from jsclient.errors import InvalidArgumentError
from jsclient.pull_options import (
    PullOptions,
    consume_policy,
    fetch_policy,
    pull_fields,
)

FREE = ConsumerConfig()
CONSUME: dict[str, Any] = {
    "max_messages": None,
    "max_bytes": None,
    "threshold_messages": None,
    "threshold_bytes": None,
    "expires": 30.0,
    "idle_heartbeat": None,
    "stop_after": None,
    "on_missing": "raise",
    "doing": "test",
}
FETCH: dict[str, Any] = {
    "max_messages": 10,
    "max_bytes": None,
    "timeout": 5.0,
    "no_wait": False,
    "idle_heartbeat": None,
    "doing": "test",
}


def consume(limits: ConsumerConfig = FREE, **options: Any) -> Policy:
    return consume_policy(limits, **{**CONSUME, **options})


def fetch(limits: ConsumerConfig = FREE, **options: Any) -> Policy:
    return fetch_policy(limits, **{**FETCH, **options})


# Consuming ----------------------------------------------------------------------------


def test_a_consume_holds_500_messages_and_its_pulls_live_30_seconds() -> None:
    assert consume() == Policy(
        is_fetch=False,
        max_messages=500,
        threshold_messages=250,
        expires=30.0,
        heartbeat=15.0,
        doing="test",
    )


def test_pulls_whose_end_a_drain_waits_for_live_4_seconds_by_default() -> None:
    policy = consume(expires=None, awaits_ends=True)
    assert (policy.expires, policy.heartbeat, policy.awaits_ends) == (4.0, 2.0, True)
    assert consume(expires=30.0, awaits_ends=True).expires == 30.0
    brief = consumer_config(max_expires=0.5)
    assert consume(brief, expires=None, awaits_ends=True).expires == 0.5
    # What is given is kept.
    slow = consume(expires=None, idle_heartbeat=5.0, awaits_ends=True)
    assert (slow.expires, slow.heartbeat) == (10.0, 5.0)
    with pytest.raises(InvalidArgumentError, match="half of expires"):
        consume(expires=None, idle_heartbeat=16.0, awaits_ends=True)


def test_a_limit_of_bytes_replaces_the_limit_of_messages() -> None:
    policy = consume(max_bytes=1001)
    assert (policy.max_messages, policy.max_bytes) == (MANY, 1001)
    assert policy.threshold_bytes == 500
    assert policy.counts_bytes


@pytest.mark.parametrize(
    ("expires", "heartbeat"), [(1, 0.5), (30, 15), (60, 30), (100, 30), (1.5, 0.75)]
)
def test_the_heartbeat_is_half_of_the_expiry_and_at_most_30_seconds(
    expires: float, heartbeat: float
) -> None:
    assert consume(expires=expires).heartbeat == heartbeat


def test_durations_may_be_timedeltas() -> None:
    policy = consume(
        expires=timedelta(seconds=10), idle_heartbeat=timedelta(milliseconds=700)
    )
    assert (policy.expires, policy.heartbeat) == (10.0, 0.7)


@pytest.mark.parametrize(
    ("limit", "given", "threshold"),
    [(10, None, 5), (11, None, 5), (1, None, 0), (10, 0, 0), (10, 9, 9), (10, 10, 9)],
)
def test_a_threshold_is_half_by_default_and_always_below_the_limit(
    limit: int, given: int | None, threshold: int
) -> None:
    by_count = consume(max_messages=limit, threshold_messages=given)
    by_bytes = consume(max_bytes=limit, threshold_bytes=given)
    assert by_count.threshold_messages == by_bytes.threshold_bytes == threshold


def test_a_consume_may_wait_for_a_consumer_that_is_gone() -> None:
    assert not consume().is_patient
    assert consume(on_missing="wait").is_patient


def test_a_default_adapts_to_the_consumer_and_a_wish_does_not() -> None:
    limits = consumer_config(max_batch=5)
    assert consume(limits).max_messages == 5
    assert consume(limits, max_messages=5).max_messages == 5
    by_bytes = consume(limits, max_bytes=1000)
    assert (by_bytes.max_messages, by_bytes.batch_limit) == (MANY, 5)
    with pytest.raises(InvalidArgumentError, match=r"max_messages is 6.* allows 5"):
        consume(limits, max_messages=6)
    limits = consumer_config(max_expires=2.0)
    assert (consume(limits, expires=None).expires, consume(expires=None).expires) == (
        2.0,
        30.0,
    )
    with pytest.raises(InvalidArgumentError, match=r"expires is 30 s.* allows 2 s"):
        consume(limits, expires=30.0)
    # Shorter ones than anybody may wish for, if the consumer has it so.
    short = consumer_config(max_expires=0.5)
    policy = consume(short, expires=None)
    assert (policy.expires, policy.heartbeat) == (0.5, 0.25)
    assert consume(short, expires=0.5, idle_heartbeat=0.25).heartbeat == 0.25
    with pytest.raises(InvalidArgumentError, match=r"at least 0\.5 s.*: 0\.4"):
        consume(short, expires=0.4)
    with pytest.raises(InvalidArgumentError, match=r"is 1 s; the consumer .* 0\.5 s"):
        consume(short, expires=1.0)


def test_a_pinned_client_asks_again_before_it_loses_its_pin() -> None:
    limits = consumer_config(
        priority_policy="pinned_client", priority_groups=["g"], priority_timeout=3.0
    )
    policy = consume(limits, expires=None)
    assert (policy.expires, policy.heartbeat) == (1.5, 0.75)
    assert consume(limits, expires=20.0).expires == 20.0
    assert fetch(limits, timeout=60.0).expires_limit == 1.5
    others = limits.with_changes(priority_policy="overflow")
    assert consume(others, expires=None).expires == 30.0


def test_what_equals_a_limit_of_the_consumer_passes() -> None:
    limits = consumer_config(max_expires=2.0, max_bytes=100, max_batch=10)
    assert consume(limits, expires=2.0, max_bytes=100).max_bytes == 100
    assert fetch(limits, timeout=2.0, max_bytes=100).max_bytes == 100


def test_a_fetch_may_last_longer_than_a_pull() -> None:
    policy = fetch(consumer_config(max_expires=2.0), timeout=5.0)
    assert (policy.expires, policy.expires_limit) == (5.0, 2.0)
    assert fetch().expires_limit == math.inf


LIMITED = consumer_config(max_expires=2.0, max_bytes=100, max_batch=5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_messages": 10, "max_bytes": 10}, r"max_messages or max_bytes"),
        ({"max_messages": 0}, r"max_messages must be at least 1"),
        ({"max_messages": LARGEST_COUNT + 1}, r"max_messages must be at most"),
        ({"max_bytes": 0}, r"max_bytes must be at least 1"),
        ({"max_bytes": LARGEST_COUNT + 1}, r"max_bytes must be at most"),
        ({"threshold_messages": -1}, r"threshold_messages must be at least 0"),
        ({"threshold_messages": 501}, r"threshold_messages must be at most 500"),
        (
            {"max_messages": 10, "threshold_messages": 11},
            r"threshold_messages must be at most 10",
        ),
        (
            {"max_bytes": 10, "threshold_bytes": 11},
            r"threshold_bytes must be at most 10",
        ),
        ({"threshold_bytes": 1}, r"threshold_bytes needs max_bytes"),
        (
            {"max_bytes": 10, "threshold_messages": 1},
            r"threshold_messages has no use beside max_bytes",
        ),
        ({"expires": 0.9}, r"expires must be at least 1 s"),
        ({"expires": math.inf}, r"expires must be at least 1 s, and finite"),
        ({"expires": -1}, r"expires must not be negative"),
        ({"expires": 1e11}, r"expires is longer than 292 years"),
        ({"idle_heartbeat": 0.4}, r"idle_heartbeat must be from 0.5 to 30"),
        ({"idle_heartbeat": 15.1}, r"idle_heartbeat must be .* half of\s+expires"),
        ({"idle_heartbeat": 31, "expires": 100}, r"idle_heartbeat must be from 0.5"),
        ({"idle_heartbeat": float("nan")}, r"idle_heartbeat must not be .* NaN"),
        ({"on_missing": "ignore"}, r"on_missing must be 'raise' or 'wait'"),
        ({"stop_after": 0}, r"stop_after must be at least 1"),
        ({"stop_after": LARGEST_COUNT + 1}, r"stop_after must be at most"),
    ],
)
def test_a_wrong_option_of_a_consume_is_refused_by_name(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        consume(**options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"expires": 3.0}, r"expires is 3 s; the consumer allows 2"),
        ({"expires": 2.0, "max_bytes": 101}, r"max_bytes is 101; the consumer .* 100"),
        ({"expires": 2.0, "max_messages": 6}, r"max_messages is 6; the consumer .* 5"),
    ],
)
def test_what_the_consumer_would_refuse_is_not_sent(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        consume(LIMITED, **options)


@pytest.mark.parametrize(
    "name",
    [
        "max_messages",
        "threshold_messages",
        "expires",
        "idle_heartbeat",
        "stop_after",
    ],
)
@pytest.mark.parametrize("value", ["5", True, [5]])
def test_a_value_of_a_wrong_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        consume(**{name: value})


# Fetching -----------------------------------------------------------------------------


def test_a_fetch_asks_for_what_it_is_told_and_has_no_thresholds() -> None:
    assert fetch() == Policy(
        is_fetch=True, max_messages=10, expires=5.0, heartbeat=0.0, doing="test"
    )


@pytest.mark.parametrize(
    ("timeout", "given", "heartbeat"),
    [(9.9, None, 0.0), (10.0, None, 5.0), (60.0, None, 5.0), (60.0, 0, 0.0), (2, 1, 1)],
)
def test_a_long_fetch_has_heartbeats_of_5_seconds(
    timeout: float, given: float | None, heartbeat: float
) -> None:
    assert fetch(timeout=timeout, idle_heartbeat=given).heartbeat == heartbeat


def test_a_fetch_that_does_not_wait_has_no_heartbeat() -> None:
    policy = fetch(no_wait=True, timeout=60.0)
    assert (policy.no_wait, policy.heartbeat) == (True, 0.0)


def test_a_fetch_of_bytes_is_cut_to_the_batches_of_the_consumer() -> None:
    policy = fetch(consumer_config(max_batch=5), max_messages=MANY, max_bytes=1000)
    assert (policy.max_messages, policy.max_bytes) == (MANY, 1000)
    assert policy.batch_limit == 5


def test_the_longest_life_of_pulls_is_no_matter_to_those_that_do_not_wait() -> None:
    assert fetch(consumer_config(max_expires=1.0), no_wait=True).no_wait


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_messages": 0}, r"max_messages must be at least 1"),
        ({"max_messages": LARGEST_COUNT + 1}, r"max_messages must be at most"),
        ({"max_bytes": 0}, r"max_bytes must be at least 1"),
        ({"timeout": float("inf")}, r"timeout must be finite"),
        ({"timeout": 1e11}, r"timeout is longer than 292 years"),
        ({"idle_heartbeat": 2.6}, r"idle_heartbeat .* at most half of timeout.*: 2.6"),
        ({"idle_heartbeat": 0.09}, r"idle_heartbeat must be at least 0.1 s"),
        ({"idle_heartbeat": -1}, r"idle_heartbeat must not be negative"),
    ],
)
def test_a_wrong_option_of_a_fetch_is_refused_by_name(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        fetch(**options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_messages": 6, "timeout": 1.0}, r"max_messages is 6; the consumer .* 5"),
        ({"max_messages": 6, "max_bytes": 99}, r"max_messages is 6; the consumer .* 5"),
        ({"max_messages": MANY, "max_bytes": 101}, r"max_bytes is 101; the .* 100"),
    ],
)
def test_a_fetch_that_the_consumer_would_refuse_is_not_sent(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        fetch(LIMITED, **options)


# Priority groups ----------------------------------------------------------------------

PINNED = consumer_config(priority_groups=["A"], priority_policy="pinned_client")
OVERFLOW = consumer_config(priority_groups=["A", "B"], priority_policy="overflow")


def test_a_misspelt_option_is_told_with_the_nearest_right_one() -> None:
    for wrong, hint in (("gruop", "group"), ("timout", "timeout")):
        misspelt: Any = {wrong: "A"}
        with pytest.raises(TypeError, match=f"no option '{wrong}'; .* '{hint}'"):
            pull_fields(FREE, misspelt)


def test_without_options_nothing_is_added() -> None:
    assert pull_fields(FREE, {}) == {}
    nothing: PullOptions = {"group": None, "priority": None, "min_pending": None}
    assert pull_fields(FREE, nothing) == {}


def test_what_is_given_is_sent() -> None:
    assert pull_fields(PINNED, {"group": "A"}) == {"group": "A"}
    assert pull_fields(
        OVERFLOW,
        {"group": "B", "priority": 9, "min_pending": 0, "min_ack_pending": 7},
    ) == {"group": "B", "priority": 9, "min_pending": 0, "min_ack_pending": 7}
    # A consumer without groups ignores one.
    assert pull_fields(FREE, {"group": "A"}) == {"group": "A"}


@pytest.mark.parametrize(
    ("limits", "options", "told"),
    [
        (PINNED, {}, r"group must be one of \['A'\], not None"),
        (PINNED, {"group": "B"}, r"group must be one of"),
        (FREE, {"group": ""}, r"group must be 1 to 16"),
        (FREE, {"group": "a b"}, r"group must be 1 to 16"),
        (FREE, {"priority": 10}, r"priority must be from 0 to 9"),
        (FREE, {"priority": -1}, r"priority must be at least 0"),
        (FREE, {"min_pending": 1}, r"min_pending needs .* 'overflow'"),
        (PINNED, {"group": "A", "min_ack_pending": 1}, r"min_ack_pending needs"),
        (OVERFLOW, {"group": "A", "min_pending": -1}, r"min_pending must be at least"),
        (
            OVERFLOW,
            {"group": "A", "min_pending": LARGEST_COUNT + 1},
            r"min_pending must be at most",
        ),
    ],
)
def test_a_wrong_option_of_a_group_is_refused_by_name(
    limits: ConsumerConfig, options: Any, told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        pull_fields(limits, options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"group": 5}, "group must be a str"),
        ({"priority": "5"}, "priority must be an int"),
        ({"max_msgs": 5}, "there is no option 'max_msgs'"),
        ({"id": "x"}, "there is no option 'id'"),
    ],
)
def test_an_unknown_option_and_a_wrong_type_are_type_errors(
    options: Any, told: str
) -> None:
    with pytest.raises(TypeError, match=told):
        pull_fields(FREE, options)


# The body of a pull -------------------------------------------------------------------


def test_a_body_has_only_what_was_asked_for() -> None:
    short = Ask(1, batch=1, max_bytes=0, expires=0.0, heartbeat=0.0, no_wait=True)
    assert short.body({}) == b'{"batch":1,"no_wait":true}'
    full = Ask(1, batch=5, max_bytes=9, expires=1.5, heartbeat=0.5, no_wait=False)
    assert json.loads(full.body({"group": "A", "id": "x"})) == {
        "batch": 5,
        "max_bytes": 9,
        "expires": 1_500_000_000,
        "idle_heartbeat": 500_000_000,
        "group": "A",
        "id": "x",
    }


@given(expires=st.floats(min_value=1.0, max_value=1e9))
def test_a_heartbeat_on_the_wire_is_never_more_than_half(expires: float) -> None:
    policy = consume(expires=expires)
    ask = Ask(1, 1, 0, policy.expires, policy.heartbeat, no_wait=False)
    body = json.loads(ask.body({}))
    assert 0 < 2 * body["idle_heartbeat"] <= body["expires"]
