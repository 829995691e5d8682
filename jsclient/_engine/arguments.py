"""Checks of arguments that many calls share; each error names the argument."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from .._core import check_token
from ..errors import InvalidArgumentError

Seconds = float | int | timedelta
# What a payload may be, and what headers may be given as.
Buffer = bytes | bytearray | memoryview
HeadersLike = (
    Mapping[str, str | Sequence[str]] | Iterable[tuple[str, str | Sequence[str]]]
)

LAST_SEQUENCE = (1 << 64) - 1
# Sums of counts are exact everywhere.
LARGEST_COUNT = 1 << 53

# Functions that do nothing when they are called: of code with these flags a call makes
# a generator, a coroutine or an asynchronous generator.
_LAZY = 0x20 | 0x80 | 0x100 | 0x200

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def seconds(value: Seconds | None, name: str = "timeout") -> float:
    """A duration in seconds; None and infinity wait for ever."""
    if type(value) is float and 0.0 <= value < 1e300:
        return value  # what nearly every call has, and the rest takes its time
    if value is None:
        return math.inf
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError(
            f"{name} must be a number of seconds, a timedelta or None, "
            f"not {type(value).__name__}"
        )
    if value != value or value < 0:
        raise InvalidArgumentError(f"{name} must not be negative or NaN: {value!r}")
    # Also an int beyond the range of float is for ever.
    return float(value) if value < 1e300 else math.inf


def positive_seconds(value: Seconds | None, name: str) -> float:
    """A duration that is longer than nothing; None and infinity are for ever."""
    result = seconds(value, name)
    if result == 0:
        raise InvalidArgumentError(f"{name} must be more than 0")
    return result


def integer(value: int, name: str, *, least: int, most: int | None = None) -> int:
    """A whole number that is at least `least`, and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise InvalidArgumentError(f"{name} must be at most {most}, not {value}")
    return value


def sequence_number(value: int, name: str, *, least: int = 1) -> int:
    """The sequence of a message in a stream."""
    return integer(value, name, least=least, most=LAST_SEQUENCE)


def count(value: int, name: str, *, least: int = 1) -> int:
    """A number of messages or bytes."""
    return integer(value, name, least=least, most=LARGEST_COUNT)


def pending_limit(value: int | None, name: str) -> int:
    """A limit of messages or bytes; None sets no limit, which the core spells -1."""
    return -1 if value is None else integer(value, name, least=1)


def flag(value: bool, name: str) -> bool:
    """True or False and nothing that only counts as one."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


def text(value: str | None, name: str) -> str | None:
    """A text or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def check_callback(value: object, name: str = "callback") -> None:
    """Raises a TypeError unless a call of it does its work."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    called: object = value
    while isinstance(called, functools.partial):
        called = called.func
    for function in (called, type(called).__call__):
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if isinstance(flags, int) and flags & _LAZY:
            raise TypeError(
                f"{name} must be an ordinary function: what {called!r} returns is "
                "neither awaited nor iterated, so its body would never run"
            )


def inbox_prefix(value: str) -> str:
    """A prefix for reply subjects: a literal subject without a dot at its end."""
    if not isinstance(value, str):
        raise TypeError(f"inbox_prefix must be a str, not {type(value).__name__}")
    check_token(value, "inbox_prefix")
    if any(token in ("", "*", ">") for token in value.split(".")):
        raise InvalidArgumentError(
            "inbox_prefix must not have wildcards, empty tokens or a dot at its end: "
            f"{value!r}"
        )
    return value


def unique_name() -> str:
    """22 random letters and digits, for inboxes that nobody can guess."""
    return "".join(_DIGITS[byte % 62] for byte in os.urandom(22))
