"""Values of JetStream's JSON and what they are in Python: durations, instants, names.

The wire counts durations in nanoseconds and writes instants as RFC 3339; Python has
float seconds and datetimes. Whole seconds, timedeltas and durations of up to 48 days
are exact to the nanosecond, longer fractions as far as a float goes. A `Timestamp` has
the nanoseconds that a datetime cannot hold: a server gets back the instant it told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from ..errors import InvalidArgumentError
from .arguments import Seconds

MAX_NAME_BYTES = 255
MAX_DESCRIPTION_BYTES = 4096
MAX_METADATA_BYTES = 128 * 1024
# Keys that the server writes for itself begin with this.
RESERVED_METADATA = "_nats"

_BILLION = 1_000_000_000
_LONGEST_NS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_NOT_IN_NAMES = frozenset(" \t\r\n\f\0.*>/\\")
_GROUP_NAME = re.compile(r"[A-Za-z0-9/_=-]{1,16}")
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d\d:\d\d))",
    re.ASCII,
)
_ZERO_TIME = "0001-01-01T00:00:00Z"


def duration_ns(value: Seconds, name: str) -> int:
    """A duration of the wire: nanoseconds for seconds or a timedelta."""
    if isinstance(value, timedelta):
        ns = value // _MICROSECOND * 1000
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name} must be a number of seconds or a timedelta, "
            f"not {type(value).__name__}"
        )
    elif isinstance(value, int):
        ns = value * _BILLION
    elif not math.isfinite(value):
        raise InvalidArgumentError(f"{name} must be a finite duration, not {value!r}")
    elif value == _LONGEST_NS / _BILLION:
        ns = _LONGEST_NS  # the nearest float is longer than the longest duration
    else:
        # Exactly, and rounded to even: what round() does with a Fraction, but faster.
        numerator, denominator = value.as_integer_ratio()
        ns, rest = divmod(numerator * _BILLION, denominator)
        ns += 2 * rest > denominator or (2 * rest == denominator and ns % 2 == 1)
    if ns < 0:
        raise InvalidArgumentError(f"{name} must not be negative: {value!r}")
    if ns > _LONGEST_NS:
        raise InvalidArgumentError(f"{name} is longer than 292 years: {value!r}")
    return ns


def duration_seconds(ns: int) -> float:
    """A duration of the wire as seconds."""
    return ns / _BILLION


class Timestamp(datetime):
    """An instant that a server told: an aware datetime, exact to the nanosecond.

    `ns` counts nanoseconds since 1970 in UTC. What is computed from a Timestamp, and
    comparisons with other datetimes, have the microseconds of any datetime.
    """

    __slots__ = ("_below",)
    _below: int

    @classmethod
    def from_ns(cls, ns: int) -> Timestamp:
        """The instant that many nanoseconds after the beginning of 1970."""
        microseconds, below = divmod(ns, 1000)
        return cls.of(_EPOCH + timedelta(microseconds=microseconds), below)

    @classmethod
    def of(cls, moment: datetime, nanosecond: int = 0) -> Timestamp:
        """The moment, and `nanosecond` (0 to 999) more than its microsecond."""
        stamp = cls.combine(moment.date(), moment.timetz())
        stamp._below = nanosecond
        return stamp

    @property
    def nanosecond(self) -> int:
        """The nanoseconds after the microsecond, 0 to 999."""
        # Instances that datetime makes by itself, as in a sum, have no such digits.
        return getattr(self, "_below", 0)

    @property
    def ns(self) -> int:
        """Nanoseconds since the beginning of 1970 in UTC."""
        moment: datetime = self
        return (moment - _EPOCH) // _MICROSECOND * 1000 + self.nanosecond

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        moment = datetime.combine(self.date(), self.timetz())
        return Timestamp.of, (moment, self.nanosecond)


def parse_time(text: str, name: str = "time") -> Timestamp | None:
    """The instant that an RFC 3339 text tells, in UTC; None for Go's zero time."""
    if text == _ZERO_TIME:
        return None
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"{name} is no RFC 3339 time: {text!r}")
    day, clock, fraction, zone = match.groups()
    digits = (fraction or "").ljust(9, "0")
    try:
        moment = datetime.fromisoformat(
            f"{day}T{clock}.{digits[:6]}{zone or '+00:00'}"
        ).astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{name} is no time: {text!r} ({error})") from None
    return Timestamp.of(moment, int(digits[6:]))


def check_time(value: datetime | str, name: str) -> datetime:
    """An instant to send: an aware datetime, or the RFC 3339 text of one."""
    if isinstance(value, str):
        moment = parse_time(value, name)
        if moment is None:
            raise InvalidArgumentError(f"{name} must not be the zero time")
        return moment
    if not isinstance(value, datetime):
        raise TypeError(
            f"{name} must be a datetime or an RFC 3339 text, not {type(value).__name__}"
        )
    if value.utcoffset() is None:
        raise InvalidArgumentError(f"{name} must have a time zone: {value!r}")
    return value


def format_time(moment: datetime) -> str:
    """The aware datetime as RFC 3339 text in UTC, to the digits that it has."""
    below = moment.nanosecond if isinstance(moment, Timestamp) else 0
    moment = moment.astimezone(timezone.utc)
    digits = f"{moment.microsecond:06}{below:03}".rstrip("0")
    text = moment.replace(microsecond=0, tzinfo=None).isoformat()
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def check_name(text: str, name: str) -> str:
    """The name of a stream or consumer, if it can be one."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, not {type(text).__name__}")
    if not text:
        raise InvalidArgumentError(f"{name} must not be empty")
    if not _NOT_IN_NAMES.isdisjoint(text):
        raise InvalidArgumentError(
            f"{name} must not have blanks, line breaks, NUL or any of . * > / \\: "
            f"{text!r}"
        )
    return check_size(text, name, MAX_NAME_BYTES)


def check_group(text: str, name: str) -> str:
    """The name of a priority group, if it can be one."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, not {type(text).__name__}")
    if not _GROUP_NAME.fullmatch(text):
        raise InvalidArgumentError(
            f"{name} must be 1 to 16 of A-Z a-z 0-9 / _ = -: {text!r}"
        )
    return text


def check_text(text: str, name: str) -> str:
    """The text, if it can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{name} must not have half a surrogate pair: {text!r}"
        ) from None
    return text


def check_size(text: str, name: str, most: int) -> str:
    """The text, if it has at most that many bytes."""
    size = len(check_text(text, name).encode())
    if size > most:
        raise InvalidArgumentError(
            f"{name} has {size} bytes, at most {most} are allowed"
        )
    return text


def check_metadata(metadata: Mapping[str, str], name: str) -> None:
    """Raises if keys and values together are more than a server takes."""
    size = sum(len(text.encode()) for pair in metadata.items() for text in pair)
    if size > MAX_METADATA_BYTES:
        raise InvalidArgumentError(
            f"{name} has {size} bytes, at most {MAX_METADATA_BYTES} are allowed"
        )


def subjects_overlap(one: str, other: str) -> bool:
    """Whether some subject matches both, each of which may have wildcards."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def subject_covers(wide: str, narrow: str) -> bool:
    """Whether every subject that matches `narrow` also matches `wide`."""
    left, right = wide.split("."), narrow.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">":
            return True
        if b == ">" or (a != b and a != "*"):
            return False
    return len(left) == len(right)
