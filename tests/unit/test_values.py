"""Durations, instants, names and subjects between Python and the wire."""

from __future__ import annotations

import copy
import math
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient import InvalidArgumentError
from jsclient._engine.values import (
    Timestamp,
    check_group,
    check_metadata,
    check_name,
    check_time,
    duration_ns,
    duration_seconds,
    format_time,
    parse_time,
    subject_covers,
    subjects_overlap,
)

LONGEST = (1 << 63) - 1
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


# Durations


@settings(deadline=None)
@given(st.integers(0, 9_223_372_036))
def test_whole_seconds_are_exact(seconds: int) -> None:
    assert duration_ns(seconds, "x") == seconds * 10**9
    assert duration_ns(float(seconds), "x") == seconds * 10**9


@settings(deadline=None)
@given(st.timedeltas(timedelta(0), timedelta(days=100_000)))
def test_timedeltas_are_exact(value: timedelta) -> None:
    whole = (value.days * 86400 + value.seconds) * 10**9
    assert duration_ns(value, "x") == whole + value.microseconds * 1000


@settings(deadline=None)
@given(st.integers(0, 2**22 * 10**9))
def test_up_to_48_days_come_back_to_the_nanosecond(ns: int) -> None:
    assert duration_ns(duration_seconds(ns), "x") == ns


def test_the_longest_duration_of_the_server_comes_back() -> None:
    assert duration_ns(duration_seconds(LONGEST), "x") == LONGEST


def test_floats_are_rounded_to_nanoseconds() -> None:
    assert duration_ns(0.1, "x") == 100_000_000
    assert duration_ns(1e-9, "x") == 1
    assert duration_ns(1.4e-9, "x") == 1
    assert duration_ns(0.0, "x") == 0


@pytest.mark.parametrize(
    "value",
    [-1, -0.5, timedelta(seconds=-1), math.nan, math.inf, -math.inf, 10**10, 1e300],
)
def test_a_duration_that_cannot_be_is_refused_by_its_name(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match="ack_wait"):
        duration_ns(value, "ack_wait")


@pytest.mark.parametrize("value", [True, "5", None, b"1"])
def test_a_duration_is_a_number_or_a_timedelta(value: Any) -> None:
    with pytest.raises(TypeError, match="ack_wait must be a number of seconds"):
        duration_ns(value, "ack_wait")


# Instants


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2024-01-01T00:00:00Z", 1704067200_000000000),
        ("2024-01-01T00:00:00.1Z", 1704067200_100000000),
        ("2024-01-01T00:00:00.123456789+02:00", 1704060000_123456789),
        ("2024-01-01t00:00:00.000000001z", 1704067200_000000001),
        ("2024-01-01 00:00:00-00:30", 1704069000_000000000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("9999-12-31T23:59:59.999999999Z", 253402300799_999999999),
    ],
)
def test_a_time_is_parsed_to_the_nanosecond(text: str, ns: int) -> None:
    stamp = parse_time(text)
    assert stamp is not None
    assert stamp.ns == ns
    assert stamp.tzinfo is timezone.utc
    assert stamp == EPOCH + timedelta(microseconds=ns // 1000)
    assert stamp.nanosecond == ns % 1000


def test_the_zero_time_is_none() -> None:
    assert parse_time("0001-01-01T00:00:00Z") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2024-01-01",
        "2024-01-01T00:00:00",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00.1234567890Z",
        "2024-13-01T00:00:00Z",
        "2024-01-01T00:00:61Z",
        "0001-01-01T00:00:00+01:00",
        "٢٠٢٤-01-01T00:00:00Z",
        "2024-01-01T00:00:00Z\n",
    ],
)
def test_what_is_no_time_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="created"):
        parse_time(text, "created")


@settings(deadline=None)
@given(st.integers(-62135596799 * 10**9, 253402300799_999999999))
def test_every_instant_comes_back_from_its_text(ns: int) -> None:
    stamp = Timestamp.from_ns(ns)
    again = parse_time(format_time(stamp))
    assert again is not None
    assert again.ns == stamp.ns == ns


@settings(deadline=None)
@given(st.datetimes(timezones=st.timezones()).filter(lambda d: 1 < d.year < 9999))
def test_every_aware_datetime_is_told_in_utc(moment: datetime) -> None:
    again = parse_time(format_time(check_time(moment, "x")))
    assert again == moment.astimezone(timezone.utc)


def test_a_text_has_only_the_digits_that_count() -> None:
    assert format_time(Timestamp.from_ns(0)) == "1970-01-01T00:00:00Z"
    assert format_time(Timestamp.from_ns(100_000_000)) == "1970-01-01T00:00:00.1Z"
    assert format_time(Timestamp.from_ns(1)) == "1970-01-01T00:00:00.000000001Z"


def test_a_timestamp_survives_pickles_and_copies() -> None:
    stamp = Timestamp.from_ns(1_700_000_000_123_456_789)
    for other in (pickle.loads(pickle.dumps(stamp)), copy.deepcopy(stamp)):
        assert type(other) is Timestamp
        assert other.ns == stamp.ns


def test_what_is_computed_from_a_timestamp_has_microseconds() -> None:
    stamp = Timestamp.from_ns(1_700_000_000_123_456_789)
    later = stamp + timedelta(seconds=1)
    assert later == datetime(2023, 11, 14, 22, 13, 21, 123456, tzinfo=timezone.utc)
    assert isinstance(later, Timestamp)
    assert later.ns == 1_700_000_001_123_456_000
    assert stamp.replace(microsecond=5).ns == 1_700_000_000_000_005_000


def test_a_time_to_send_may_be_a_text() -> None:
    stamp = check_time("2024-01-01T00:00:00.000000001Z", "opt_start_time")
    assert isinstance(stamp, Timestamp)
    assert stamp.nanosecond == 1


def test_a_time_to_send_needs_a_zone() -> None:
    with pytest.raises(InvalidArgumentError, match="pause_until must have a time zone"):
        check_time(datetime(2024, 1, 1), "pause_until")


def test_the_zero_time_cannot_be_sent() -> None:
    with pytest.raises(InvalidArgumentError, match="pause_until"):
        check_time("0001-01-01T00:00:00Z", "pause_until")


def test_a_time_to_send_is_a_datetime_or_a_text() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="pause_until must be a datetime"):
        check_time(wrong, "pause_until")


# Names


@pytest.mark.parametrize("name", ["ORDERS", "a-b_c", "$KV", "é", "a" * 255, "é" * 127])
def test_a_good_name_is_taken(name: str) -> None:
    assert check_name(name, "stream name") == name


@pytest.mark.parametrize("sign", [*" \t\r\n\f.*>/\\"])
def test_a_name_without_room_in_a_subject_or_a_path_is_refused(sign: str) -> None:
    with pytest.raises(InvalidArgumentError, match="stream name"):
        check_name(f"a{sign}b", "stream name")


@pytest.mark.parametrize("name", ["", "a" * 256, "é" * 128])
def test_a_name_has_1_to_255_bytes(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="stream name"):
        check_name(name, "stream name")


def test_a_name_is_a_text() -> None:
    wrong: Any = b"A"
    with pytest.raises(TypeError, match="stream name must be a str"):
        check_name(wrong, "stream name")


@pytest.mark.parametrize("name", ["A", "a/_=-9", "x" * 16])
def test_a_good_group_is_taken(name: str) -> None:
    assert check_group(name, "group") == name


@pytest.mark.parametrize("name", ["", "x" * 17, "a b", "a.b", "é", "a\n"])
def test_a_bad_group_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="group"):
        check_group(name, "group")


def test_metadata_has_at_most_128_kib() -> None:
    check_metadata({"k": "v" * (131072 - 1)}, "metadata")
    with pytest.raises(InvalidArgumentError, match="metadata has 131073 bytes"):
        check_metadata({"k": "é" * 65536}, "metadata")


# Subjects

TOKENS = st.lists(st.sampled_from("ab*"), min_size=1, max_size=3)
FILTERS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]),
    TOKENS,
    st.sampled_from([[], [">"]]),
)
LITERALS = [
    f"{a}{b}{c}{d}"
    for a in "abc"
    for b in ("", ".a", ".b", ".c")
    for c in ("", ".a", ".b", ".c")
    for d in ("", ".a", ".b", ".c")
    if (b or not c) and (c or not d)
]


def matches(pattern: str, subject: str) -> bool:
    """Whether the literal subject matches, token by token."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        one in ("*", other) for one, other in zip(wanted, tokens, strict=True)
    )


@settings(deadline=None)
@given(FILTERS, FILTERS)
def test_filters_overlap_if_a_subject_matches_both(one: str, other: str) -> None:
    both = any(matches(one, s) and matches(other, s) for s in LITERALS)
    assert subjects_overlap(one, other) is both
    assert subjects_overlap(other, one) is both


@settings(deadline=None)
@given(FILTERS, FILTERS)
def test_a_filter_covers_another_if_it_matches_all_of_it(
    wide: str, narrow: str
) -> None:
    assert subject_covers(wide, narrow) is all(
        matches(wide, subject) for subject in LITERALS if matches(narrow, subject)
    )
