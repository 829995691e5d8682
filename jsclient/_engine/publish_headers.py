"""The headers that tell a stream what to do with a message."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TypedDict

from .._core import Headers, check_filter, check_subject
from ..errors import InvalidArgumentError
from .arguments import Buffer, HeadersLike
from .fields import nearest
from .releases import Version
from .values import check_name

# With one of these a second try of the same publish would not mean the same.
_CONDITIONS = (
    "expected_last_seq",
    "expected_last_subject_seq",
    "expected_last_msg_id",
    "increment",
)


class PublishOptions(TypedDict, total=False):
    """What a publish may ask of the stream; see `JetStream.publish`."""

    msg_id: str | None
    expected_stream: str | None
    expected_last_seq: int | None
    expected_last_subject_seq: int | None
    expected_last_subject: str | None
    expected_last_msg_id: str | None
    ttl: float | timedelta | str | None
    rollup: str | None
    increment: int | None
    schedule: str | datetime | None
    schedule_target: str | None
    schedule_source: str | None
    schedule_ttl: float | timedelta | str | None
    schedule_time_zone: str | None
    schedule_rollup: str | None
    cancel_schedule: str | None


def with_options(
    headers: HeadersLike | None, options: PublishOptions
) -> HeadersLike | None:
    """The headers of a message, those of its options added.

    Raises ValueError or TypeError naming the option that cannot be.
    """
    fields: list[tuple[str, str]] = []
    for name, value in options.items():
        if name not in _SPELLINGS:
            hint = nearest(name, [*_SPELLINGS, "headers"])
            raise TypeError(f"a publish has no option {name!r}{hint}")
        if value is not None:
            key, spell = _SPELLINGS[name]
            fields.append((key, spell(value, name)))
    if not fields:
        return headers
    if options.get("cancel_schedule") is not None:
        fields.append(("Nats-Schedule-Next", "purge"))
    if options.get("expected_last_subject") is not None and (
        options.get("expected_last_subject_seq") is None
    ):
        raise InvalidArgumentError(
            "expected_last_subject needs expected_last_subject_seq"
        )
    given = [] if headers is None else Headers(headers).multi_items()
    known = {key for key, _ in given}
    if options.get("schedule") is None and "Nats-Schedule" not in known:
        for name, value in options.items():
            if name.startswith("schedule_") and value is not None:
                raise InvalidArgumentError(f"{name} needs schedule")
    for key, _ in fields:
        if key in known:
            raise InvalidArgumentError(
                f"the header {key!r} is given as a header and as an option"
            )
    return [*given, *fields]


def lasting_headers(headers: HeadersLike | None) -> Headers | None:
    """Headers that can be sent more than once, whatever the caller does with his."""
    return None if headers is None else Headers(headers)


def lasting_data(data: Buffer) -> bytes:
    """A payload that does not change when the caller's buffer does."""
    if isinstance(data, bytes):
        return data
    try:
        view = memoryview(data)
    except TypeError:
        given: object = data
        hint = "; encode it first" if isinstance(given, str) else ""
        raise TypeError(
            f"data must be bytes or another buffer, not {type(data).__name__}{hint}"
        ) from None
    if not view.c_contiguous:
        raise TypeError("data must be a contiguous buffer")
    return view.tobytes()


def can_be_repeated(options: PublishOptions) -> bool:
    """Whether sending the message again after an unknown outcome stores it once."""
    return options.get("msg_id") is not None and not any(
        options.get(name) is not None for name in _CONDITIONS
    )


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value.strip():
        raise InvalidArgumentError(f"{name} must not be blank")
    return value


def _name(value: object, name: str) -> str:
    return check_name(_text(value, name), name)


def _subject(value: object, name: str) -> str:
    text = _text(value, name)
    check_subject(text, name)
    return text


def _filter(value: object, name: str) -> str:
    text = _text(value, name)
    check_filter(text, name)
    return text


def _sequence(value: object, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value < 2**64:
        raise InvalidArgumentError(f"{name} must be from 0 to 2**64 - 1: {value}")
    return str(value)


def _increment(value: object, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    return f"{value:+d}"


def _ttl(value: object, name: str) -> str:
    if isinstance(value, str):
        if value.lower() != "never":
            raise InvalidArgumentError(
                f"{name} must be a number of seconds, a timedelta or 'never': {value!r}"
            )
        return "never"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name} must be a number of seconds, a timedelta or 'never', "
            f"not {type(value).__name__}"
        )
    if not 1 <= value < 2**63 or value != int(value):
        raise InvalidArgumentError(
            f"{name} must be whole seconds, at least 1: {value!r}"
        )
    return str(int(value))


def _rollup(value: object, name: str) -> str:
    if value not in ("sub", "all"):
        raise InvalidArgumentError(f"{name} must be 'sub' or 'all': {value!r}")
    return str(value)


def _schedule_rollup(value: object, name: str) -> str:
    if value != "sub":
        raise InvalidArgumentError(f"{name} must be 'sub': {value!r}")
    return "sub"


def _schedule(value: object, name: str) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgumentError(f"{name} must have a time zone: {value!r}")
        moment = value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
        return f"@at {moment}"
    return _text(value, name)


_SPELLINGS = {
    "msg_id": ("Nats-Msg-Id", _text),
    "expected_stream": ("Nats-Expected-Stream", _name),
    "expected_last_seq": ("Nats-Expected-Last-Sequence", _sequence),
    "expected_last_subject_seq": ("Nats-Expected-Last-Subject-Sequence", _sequence),
    "expected_last_subject": ("Nats-Expected-Last-Subject-Sequence-Subject", _filter),
    "expected_last_msg_id": ("Nats-Expected-Last-Msg-Id", _text),
    "ttl": ("Nats-TTL", _ttl),
    "rollup": ("Nats-Rollup", _rollup),
    "increment": ("Nats-Incr", _increment),
    "schedule": ("Nats-Schedule", _schedule),
    "schedule_target": ("Nats-Schedule-Target", _subject),
    "schedule_source": ("Nats-Schedule-Source", _subject),
    "schedule_ttl": ("Nats-Schedule-TTL", _ttl),
    "schedule_time_zone": ("Nats-Schedule-Time-Zone", _text),
    "schedule_rollup": ("Nats-Schedule-Rollup", _schedule_rollup),
    "cancel_schedule": ("Nats-Scheduler", _subject),
}

# Servers of earlier releases take the message as if nothing had been asked.
_SINCE: dict[str, Version] = {
    "expected_last_subject": (2, 11, 0),
    "ttl": (2, 11, 0),
    "increment": (2, 12, 0),
    "schedule": (2, 12, 0),
    "schedule_target": (2, 12, 0),
    "schedule_ttl": (2, 12, 0),
    "schedule_source": (2, 14, 0),
    "schedule_time_zone": (2, 14, 0),
    "schedule_rollup": (2, 14, 0),
    "cancel_schedule": (2, 14, 0),
}


def needs_of(options: PublishOptions) -> list[tuple[str, Version]]:
    """The options in use that not every server knows, and the release of each."""
    return [
        (name, _SINCE[name])
        for name, value in options.items()
        if value is not None and name in _SINCE
    ]
