"""How the values of options are read: a ValueError says what is wrong with one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from urllib.parse import urlsplit

WHAT_SERVERS_ARE = "it must be one address or several, as nats://host:4222"


def text(value: str) -> str:
    """Anything but nothing."""
    if not value:
        raise ValueError("it is empty")
    return value


def flag(value: str) -> bool:
    """True or false."""
    try:
        return {"true": True, "false": False}[value.strip().lower()]
    except KeyError:
        raise ValueError(f"it must be true or false, not {value!r}") from None


def count(value: str) -> int:
    """A whole number from 1 on."""
    digits = value.strip().replace("_", "")
    if not digits.isascii() or not digits.isdecimal() or int(digits) < 1:
        raise ValueError(f"it must be a whole number of at least 1, not {value!r}")
    if int(digits) >= 1 << 63:
        raise ValueError(f"{value} is too large")
    return int(digits)


_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(value: str) -> int:
    """Bytes, perhaps with a unit."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmg]?)(?:i?b)?\s*", value.lower(), re.ASCII)
    if found is None or not (total := int(found[1]) * _SIZES[found[2]]):
        raise ValueError(f"it must be a size such as 500000, 64k or 8MB, not {value!r}")
    if total >= 1 << 63:
        raise ValueError(f"{value} is too large")
    return total


_SPANS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


def span(value: str) -> float:
    """Seconds, perhaps with another unit."""
    found = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower(), flags=re.ASCII
    )
    if found is None or found[2] not in _SPANS or not float(found[1]):
        raise ValueError(
            f"it must be a time such as 500ms, 5s or 15 minutes, not {value!r}"
        )
    return float(found[1]) * _SPANS[found[2]]


def choice(*values: str) -> Callable[[str], str]:
    """One of some words."""

    def read(value: str) -> str:
        if value.strip().lower() not in values:
            raise ValueError(f"it must be one of {', '.join(values)}, not {value!r}")
        return value.strip().lower()

    return read


def several(value: str) -> tuple[str, ...]:
    """A list: JSON, or words between commas."""
    if value.lstrip().startswith("["):
        try:
            words = json.loads(value)
        except ValueError:
            words = None
        if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
            raise ValueError(f"it must be a JSON list of strings, not {value!r}")
    else:
        words = [word.strip() for word in value.split(",")]
    if not words or not all(words):
        raise ValueError(f"an entry of the list is empty: {value!r}")
    return tuple(words)


def subjects(value: str) -> tuple[str, ...]:
    """Subjects, wildcards allowed."""
    found = several(value)
    for one in found:
        tokens = one.split(".")
        if re.search(r"\s", one) or not all(tokens) or ">" in tokens[:-1]:
            raise ValueError(f"{one!r} is no subject")
    return found


def subject(value: str) -> str:
    """One subject that can be published to."""
    (first, *others) = subjects(value)
    if others or "*" in first.split(".") or ">" in first.split("."):
        raise ValueError(f"it must be one subject without wildcards, not {value!r}")
    return first


def stream(value: str) -> str:
    """The name of a stream."""
    if not value or re.search(r"[\s.*>/\\\x00-\x1f,]", value):
        raise ValueError(
            f"it must be the name of one stream, not {value!r}; several streams are "
            "read one by one and put together with union"
        )
    return value


def place(value: str) -> str:
    """A place in a stream: a word, a sequence, or the JSON of an offset."""
    word = value.strip()
    if word.lower() in ("earliest", "latest"):
        return word.lower()
    if word.isascii() and word.isdecimal() and int(word):
        return word
    if not word.startswith("{"):
        raise ValueError(
            "it must be earliest, latest, a sequence from 1 on, or the JSON of an "
            f"offset, not {value!r}"
        )
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        raise ValueError(f"{value!r} is no JSON of an offset") from None
    return word


def moment(value: str) -> datetime:
    """A time: milliseconds since 1970, or ISO 8601; UTC if it does not say."""
    word = value.strip()
    try:
        if word.isascii() and word.isdecimal():
            return datetime.fromtimestamp(int(word) / 1000, timezone.utc)
        found = datetime.fromisoformat(word.replace("Z", "+00:00"))
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            "it must be milliseconds since 1970, or a time such as "
            f"2026-01-31T12:00:00Z, not {value!r}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def servers(value: str) -> tuple[str, ...]:
    """Addresses of servers."""
    # Nothing of the value is shown: an address may hold a password.
    try:
        found = several(value)
        for one in found:
            if not urlsplit(one if "://" in one else f"nats://{one}").hostname:
                raise ValueError
    except ValueError:
        raise ValueError(WHAT_SERVERS_ARE) from None
    return found
