"""How reports of servers are read: leniently, each field by its type.

A Reader takes the JSON of a whole report and the name of a field. What is missing, null
or of an unexpected type reads as the zero value of its type: a report of another
release is still worth having, and the JSON stays beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

from ..errors import InvalidArgumentError
from .values import Timestamp, duration_seconds, parse_time

# JSON of a server; any shape may hide behind a name.
Raw = Mapping[str, Any]
Reader = Callable[[Raw, str], Any]


class Report(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


_R = TypeVar("_R", bound=Report)


def read(kind: type[_R], raw: Raw, by_annotation: Mapping[str, Reader]) -> _R:
    """The report that the JSON tells, its fields read by their annotations."""
    make: Callable[..., _R] = kind
    return make(
        **{
            entry.name: by_annotation[str(entry.type)](raw, entry.name)
            for entry in fields(kind)
        }
    )


def integer(raw: Raw, name: str) -> int:
    """A number, or 0."""
    value = raw.get(name)
    return value if isinstance(value, int) else 0


def text(raw: Raw, name: str) -> str:
    """A text, or an empty one."""
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def text_or_none(raw: Raw, name: str) -> str | None:
    """A text, or None also for an empty one."""
    return text(raw, name) or None


def flag(raw: Raw, name: str) -> bool:
    """Whether the field is true."""
    return raw.get(name) is True


def time(raw: Raw, name: str) -> Timestamp | None:
    """An instant, or None."""
    try:
        return parse_time(text(raw, name))
    except InvalidArgumentError:
        return None


def seconds(raw: Raw, name: str) -> float:
    """A duration, or 0."""
    return duration_seconds(integer(raw, name))


def seconds_or_none(raw: Raw, name: str) -> float | None:
    """A duration; None for the negative ones, by which servers say never."""
    ns = raw.get(name)
    return duration_seconds(ns) if isinstance(ns, int) and ns >= 0 else None


def integers(raw: Raw, name: str) -> tuple[int, ...]:
    """A list of numbers; servers write an empty one as null."""
    return tuple(value for value in _list(raw, name) if isinstance(value, int))


def mapping(raw: Raw, name: str) -> dict[str, Any]:
    """An object, or an empty one."""
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def one(make: Callable[[Raw], object]) -> Reader:
    """A report inside another one, of zero values if it is missing."""
    return lambda raw, name: make(mapping(raw, name))


def one_or_none(make: Callable[[Raw], object]) -> Reader:
    """A report inside another one, or None."""

    def reader(raw: Raw, name: str) -> object:
        value = raw.get(name)
        return make(value) if isinstance(value, dict) else None

    return reader


def several(make: Callable[[Raw], object]) -> Reader:
    """A list of reports."""

    def reader(raw: Raw, name: str) -> tuple[object, ...]:
        entries = _list(raw, name)
        return tuple(make(entry) for entry in entries if isinstance(entry, dict))

    return reader


def by_key(make: Callable[[Raw], object]) -> Reader:
    """Reports by name."""

    def reader(raw: Raw, name: str) -> dict[str, object]:
        entries = mapping(raw, name).items()
        return {key: make(entry) for key, entry in entries if isinstance(entry, dict)}

    return reader


def _list(raw: Raw, name: str) -> list[Any]:
    value = raw.get(name)
    return value if isinstance(value, list) else []
