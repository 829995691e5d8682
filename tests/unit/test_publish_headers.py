"""The options of a publish become headers, and wrong ones are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._core import encode_headers
from jsclient._engine.publish_headers import (
    PublishOptions,
    can_be_repeated,
    lasting_data,
    lasting_headers,
    with_options,
)
from jsclient.errors import InvalidArgumentError

NOON = datetime(2030, 1, 2, 12, tzinfo=timezone(timedelta(hours=2)))

SPELLED: list[tuple[str, object, str, str]] = [
    ("msg_id", "a b", "Nats-Msg-Id", "a b"),
    ("expected_stream", "S", "Nats-Expected-Stream", "S"),
    ("expected_last_seq", 0, "Nats-Expected-Last-Sequence", "0"),
    ("expected_last_seq", 2**64 - 1, "Nats-Expected-Last-Sequence", str(2**64 - 1)),
    ("expected_last_subject_seq", 7, "Nats-Expected-Last-Subject-Sequence", "7"),
    ("expected_last_msg_id", "x", "Nats-Expected-Last-Msg-Id", "x"),
    ("ttl", 1, "Nats-TTL", "1"),
    ("ttl", 90.0, "Nats-TTL", "90"),
    ("ttl", timedelta(minutes=1), "Nats-TTL", "60"),
    ("ttl", "Never", "Nats-TTL", "never"),
    ("rollup", "sub", "Nats-Rollup", "sub"),
    ("rollup", "all", "Nats-Rollup", "all"),
    ("increment", 0, "Nats-Incr", "+0"),
    ("increment", -5, "Nats-Incr", "-5"),
    ("increment", 10**30, "Nats-Incr", "+1" + "0" * 30),
    ("schedule", "@every 5s", "Nats-Schedule", "@every 5s"),
    ("schedule", NOON, "Nats-Schedule", "@at 2030-01-02T10:00:00Z"),
    ("schedule_target", "a.b", "Nats-Schedule-Target", "a.b"),
    ("schedule_source", "a.c", "Nats-Schedule-Source", "a.c"),
    ("schedule_ttl", 5, "Nats-Schedule-TTL", "5"),
    ("schedule_time_zone", "UTC", "Nats-Schedule-Time-Zone", "UTC"),
    ("schedule_rollup", "sub", "Nats-Schedule-Rollup", "sub"),
]

NO_TEXT: list[tuple[object, type[Exception]]] = [
    (5, TypeError),
    (b"x", TypeError),
    ("", ValueError),
    (" ", ValueError),
]
NO_SEQUENCE: list[tuple[object, type[Exception]]] = [
    ("5", TypeError),
    (True, TypeError),
    (5.0, TypeError),
    (-1, ValueError),
    (2**64, ValueError),
]
NO_TTL: list[tuple[object, type[Exception]]] = [
    (0, ValueError),
    (-1, ValueError),
    (0.5, ValueError),
    (1.5, ValueError),
    (float("nan"), ValueError),
    (float("inf"), ValueError),
    (timedelta(milliseconds=500), ValueError),
    ("1h", ValueError),
    ("", ValueError),
    (True, TypeError),
    (b"never", TypeError),
]
WRONG: list[tuple[str, object, type[Exception]]] = [
    *(
        (name, value, kind)
        for name in (
            "msg_id",
            "expected_stream",
            "expected_last_subject",
            "expected_last_msg_id",
            "schedule_target",
            "schedule_source",
            "schedule_time_zone",
            "cancel_schedule",
        )
        for value, kind in NO_TEXT
    ),
    *(
        (name, value, kind)
        for name in ("expected_last_seq", "expected_last_subject_seq")
        for value, kind in NO_SEQUENCE
    ),
    *(
        (name, value, kind)
        for name in ("ttl", "schedule_ttl")
        for value, kind in NO_TTL
    ),
    ("expected_stream", "a b", ValueError),
    ("expected_stream", "a.b", ValueError),
    ("schedule_target", "a b", ValueError),
    ("schedule_source", "a..b", ValueError),
    ("cancel_schedule", "a..b", ValueError),
    ("expected_last_subject", "a b", ValueError),
    ("expected_last_subject", "a..b", ValueError),
    ("expected_last_subject", "a.>.b", ValueError),
    ("schedule_rollup", "all", ValueError),
    ("schedule_rollup", True, ValueError),
    ("rollup", "subject", ValueError),
    ("rollup", True, ValueError),
    ("rollup", ["sub"], ValueError),
    ("increment", 1.0, TypeError),
    ("increment", "+1", TypeError),
    ("increment", False, TypeError),
    ("schedule", datetime(2030, 1, 1), ValueError),
    ("schedule", 5, TypeError),
]


def options(**given: Any) -> PublishOptions:
    """Options of any type, as callers without a type checker give them."""
    made: Any = given
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "value", "key", "text"), SPELLED)
def test_an_option_is_spelled_as_the_server_reads_it(
    name: str, value: object, key: str, text: str
) -> None:
    given = {"Nats-Schedule": "@hourly"} if name.startswith("schedule_") else None
    found = with_options(given, options(**{name: value}))
    assert found == [*(given or {}).items(), (key, text)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schedule_target", "a.b"),
        ("schedule_source", "a.b"),
        ("schedule_ttl", 5),
        ("schedule_time_zone", "UTC"),
        ("schedule_rollup", "sub"),
    ],
)
def test_what_a_schedule_is_about_needs_one(name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} needs schedule"):
        with_options(None, options(**{name: value}))
    scheduled = with_options(None, options(schedule="@hourly", **{name: value}))
    assert len(list(scheduled or ())) == 2


@pytest.mark.parametrize(("name", "value", "kind"), WRONG)
def test_a_wrong_option_is_refused_by_its_name(
    name: str, value: object, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=name):
        with_options(None, options(**{name: value}))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("msgid", "msg_id"),
        ("expected_last_sequence", "expected_last_seq"),
        ("header", "headers"),
    ],
)
def test_an_unknown_option_is_a_wrong_call(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'; did you mean '{meant}'"):
        with_options(None, options(**{name: "5"}))


def test_options_that_are_none_add_nothing() -> None:
    headers = {"A": "1"}
    assert with_options(headers, options(msg_id=None, ttl=None)) is headers
    assert with_options(None, options(msg_id=None)) is None


def test_the_subject_of_an_expectation_may_have_wildcards() -> None:
    given = options(expected_last_subject="a.*", expected_last_subject_seq=0)
    assert ("Nats-Expected-Last-Subject-Sequence-Subject", "a.*") in (
        with_options(None, given) or ()
    )


@pytest.mark.parametrize("headers", [5, "x", {"K": 5}, {"K": {"x": 1}}, [("K",)]])
def test_headers_that_are_none_are_refused_with_options_and_without(
    headers: Any,
) -> None:
    with pytest.raises(TypeError, match="header"):
        with_options(headers, options(msg_id="m"))
    with pytest.raises(TypeError, match="header"):
        lasting_headers(headers)


def test_options_follow_the_headers_of_the_caller_in_any_form() -> None:
    for headers in ({"A": "1"}, [("A", "1")], iter([("A", "1")])):
        made = with_options(headers, options(msg_id="m"))
        assert made == [("A", "1"), ("Nats-Msg-Id", "m")]


def test_a_header_given_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="Nats-Msg-Id"):
        with_options({"Nats-Msg-Id": "a"}, options(msg_id="b"))


def test_another_spelling_of_a_header_is_another_header() -> None:
    made = with_options({"nats-msg-id": "a"}, options(msg_id="b"))
    assert made == [("nats-msg-id", "a"), ("Nats-Msg-Id", "b")]


def test_the_subject_of_an_expectation_needs_its_sequence() -> None:
    with pytest.raises(InvalidArgumentError, match="expected_last_subject_seq"):
        with_options(None, options(expected_last_subject="a"))
    made = with_options(
        None, options(expected_last_subject="a", expected_last_subject_seq=0)
    )
    assert made == [
        ("Nats-Expected-Last-Subject-Sequence-Subject", "a"),
        ("Nats-Expected-Last-Subject-Sequence", "0"),
    ]


def test_a_schedule_is_cancelled_by_two_headers() -> None:
    assert with_options(None, options(cancel_schedule="a.s")) == [
        ("Nats-Scheduler", "a.s"),
        ("Nats-Schedule-Next", "purge"),
    ]


@given(st.integers())
def test_any_increment_is_the_same_number_on_the_wire(number: int) -> None:
    made = with_options(None, options(increment=number))
    assert isinstance(made, list)
    ((_, text),) = made
    assert isinstance(text, str)
    assert text[0] in "+-"
    assert int(text) == number


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (options(), False),
        (options(ttl=5), False),
        (options(msg_id="a"), True),
        (options(msg_id="a", ttl=5, expected_stream="S"), True),
        (options(msg_id="a", expected_last_seq=0), False),
        (options(msg_id="a", expected_last_subject_seq=0), False),
        (options(msg_id="a", expected_last_msg_id="b"), False),
        (options(msg_id="a", increment=1), False),
    ],
)
def test_only_a_publish_with_an_id_and_no_condition_is_repeated(
    given: PublishOptions, expected: bool
) -> None:
    assert can_be_repeated(given) is expected


# What is kept for a second try


def test_headers_of_an_iterator_can_be_sent_twice() -> None:
    def fields() -> Iterator[tuple[str, str]]:
        yield "A", "1"
        yield "B", "2"

    kept = lasting_headers(fields())
    assert encode_headers(kept) == encode_headers(kept) != encode_headers([])


def test_kept_headers_do_not_change_with_those_of_the_caller() -> None:
    values = ["1", "2"]
    headers: dict[str, str | list[str]] = {"A": values, "B": "3"}
    kept = lasting_headers(headers)
    before = encode_headers(headers)
    values.append("x")
    headers["C"] = "4"
    assert encode_headers(kept) == before
    assert lasting_headers(None) is None


def test_a_kept_payload_does_not_change_with_the_buffer_of_the_caller() -> None:
    buffer = bytearray(b"abc")
    kept = [lasting_data(buffer), lasting_data(memoryview(buffer)[1:])]
    buffer[:] = b"xyz"
    assert kept == [b"abc", b"bc"]
    data = b"same"
    assert lasting_data(data) is data


@pytest.mark.parametrize("data", ["text", 5, None, memoryview(b"abcd")[::2]])
def test_a_payload_that_is_no_contiguous_buffer_is_refused(data: Any) -> None:
    told = "not str; encode it first" if isinstance(data, str) else "data must be"
    with pytest.raises(TypeError, match=told):
        lasting_data(data)
