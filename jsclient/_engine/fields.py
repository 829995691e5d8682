"""How the fields of configurations go from Python to JSON and back, by their types.

A configuration is a dataclass whose fields are None while unset. The annotation of a
field names its Kind, and a Kind knows three things: what the field takes as
an argument, how it is written for a server, and how a server's value is read.

What no Kind understands, and a field that no class knows, is kept in `extra` as it came
and is sent back with the rest: nothing of a later release is lost when its
configurations are read, changed and written by this one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple, Protocol

from ..errors import InvalidArgumentError
from .values import (
    check_text,
    check_time,
    duration_ns,
    duration_seconds,
    format_time,
    parse_time,
)


class Kind(NamedTuple):
    """What fields of one type have in common; values are of any type before `clean`."""

    clean: Callable[[Any, str], Any]  # (argument, field's name) -> value to keep
    dump: Callable[[Any, str], Any]  # (kept value, field's name) -> JSON
    load: Callable[[Any], Any]  # JSON -> argument; ValueError: not understood


Kinds = dict[str, Kind]


class Config(Protocol):
    """What all configurations have."""

    extra: dict[str, Any]

    def to_api(self) -> dict[str, Any]: ...


def kinds_of(kind: type, by_annotation: Kinds) -> Kinds:
    """The kinds of a dataclass's fields, by their annotations."""
    return {
        entry.name: by_annotation[str(entry.type)]
        for entry in fields(kind)
        if entry.name != "extra"
    }


def clean_fields(config: Config, kinds: Kinds) -> None:
    """Checks the types of all fields that are set, and keeps each in its one form."""
    if not isinstance(config.extra, Mapping):
        raise TypeError(f"extra must be a dict, not {type(config.extra).__name__}")
    config.extra = dict(config.extra)
    for name, value in _set_fields(config, kinds):
        setattr(config, name, kinds[name].clean(value, name))


def to_api(config: Config, kinds: Kinds) -> dict[str, Any]:
    """The JSON of the fields that are set, and of what is unknown here."""
    result = dict(config.extra)
    for name, value in _set_fields(config, kinds):
        kind = kinds[name]
        result[name] = kind.dump(kind.clean(value, name), name)
    return result


def from_api(
    raw: Mapping[str, Any], kinds: Kinds, unwanted: Iterable[str] = ()
) -> dict[str, Any]:
    """The arguments of a configuration, `extra` among them, for a server's JSON."""
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in raw.items():
        if value is None or name in unwanted:
            continue
        try:
            values[name] = kinds[name].load(value)
        except (KeyError, TypeError, ValueError):
            extra[name] = value
    values["extra"] = extra
    return values


def show(config: Config, kinds: Kinds) -> str:
    """The configuration as text, without the many fields that are not set."""
    parts = [
        f"{name}={value.value if isinstance(value, Enum) else value!r}"
        for name, value in _set_fields(config, kinds)
    ]
    if config.extra:
        parts.append(f"extra={config.extra!r}")
    return f"{type(config).__name__}({', '.join(parts)})"


def check_known(names: Iterable[str], kind: type) -> None:
    """Raises a TypeError that names the nearest field for one that does not exist."""
    known = [entry.name for entry in fields(kind)]
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            raise TypeError(f"{kind.__name__} has no field {name!r}{hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """What an error says of the name that was perhaps meant, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _set_fields(config: Config, kinds: Kinds) -> list[tuple[str, Any]]:
    pairs = ((name, getattr(config, name)) for name in kinds)
    return [(name, value) for name, value in pairs if value is not None]


def _plain(wanted: type, word: str) -> Kind:
    """A kind whose values are JSON as they are."""

    def clean(value: Any, name: str) -> Any:
        # A bool is an int to Python, but not to the server.
        if not isinstance(value, wanted) or (wanted is int and type(value) is bool):
            raise TypeError(f"{name} must be {word}, not {type(value).__name__}")
        return value

    return Kind(clean, lambda value, _name: value, lambda value: clean(value, "it"))


def _clean_duration(value: Any, name: str) -> float:
    if not duration_ns(value, name) and value:
        # To the server 0 means no limit at all.
        raise InvalidArgumentError(f"{name} is less than a nanosecond: {value!r}")
    return value.total_seconds() if isinstance(value, timedelta) else value


def _load_duration(value: Any) -> float:
    seconds = duration_seconds(NUMBER.load(value))
    duration_ns(seconds, "it")  # refuses what could not be sent back
    return seconds


def _load_time(value: Any) -> Any:
    return parse_time(TEXT.load(value))


def _clean_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return check_text(value, name)


TEXT = Kind(
    _clean_text, lambda value, _name: value, lambda value: _clean_text(value, "it")
)
FLAG = _plain(bool, "a bool")
NUMBER = _plain(int, "an int")
DURATION = Kind(_clean_duration, duration_ns, _load_duration)
TIME = Kind(check_time, lambda value, _name: format_time(value), _load_time)


def many(kind: Kind) -> Kind:
    """Lists of values of one kind."""

    def clean(value: Any, name: str) -> list[Any]:
        # The letters of a str would make a list as well, but never the right one.
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"{name} must be a list, not {type(value).__name__}")
        return [kind.clean(entry, f"{name}[{at}]") for at, entry in enumerate(value)]

    def load(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise TypeError("not a list")
        return [kind.load(entry) for entry in value]

    return Kind(
        clean, lambda value, name: [kind.dump(entry, name) for entry in value], load
    )


def _clean_texts_by_key(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, not {type(value).__name__}")
    return {
        TEXT.clean(key, f"a key of {name}"): TEXT.clean(text, f"{name}[{key!r}]")
        for key, text in value.items()
    }


TEXTS_BY_KEY = Kind(
    _clean_texts_by_key,
    lambda value, _name: dict(value),
    lambda value: _clean_texts_by_key(value, "it"),
)


def choice(kind: type[Enum]) -> Kind:
    """One of an Enum's values, also given as text of any case."""

    def clean(value: Any, name: str) -> Enum:
        if not isinstance(value, str):
            raise TypeError(
                f"{name} must be a {kind.__name__} or a str, not {type(value).__name__}"
            )
        try:
            return kind(value.lower())
        except ValueError:
            known = ", ".join(repr(member.value) for member in kind)
            raise InvalidArgumentError(
                f"{name} must be one of {known}, not {str(value)!r}"
            ) from None

    return Kind(clean, lambda value, _name: value.value, lambda value: kind(value))


# Any configuration: no type says that a class takes its own fields as keywords.
def part(kind: type[Any], *, short: str | None = None) -> Kind:
    """A configuration inside another one, also given as a dict of its fields.

    A str sets the field `short` alone, if there is such a field.
    """

    def clean(value: Any, name: str) -> Any:
        if isinstance(value, str) and short is not None:
            return kind(**{short: value})
        if isinstance(value, Mapping):
            check_known(value, kind)
            return kind(**value)
        if not isinstance(value, kind):
            raise TypeError(
                f"{name} must be a {kind.__name__}, not {type(value).__name__}"
            )
        return value

    def load(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError("not an object")
        return kind.from_api(value)

    return Kind(clean, lambda value, _name: value.to_api(), load)
