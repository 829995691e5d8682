"""Offsets: how far a query has read a stream, as its checkpoint keeps it.

`next` is the first sequence that was not read. `created` is when the stream was made: a
stream that was deleted and made again counts from 1 once more, and only that tells. Two
more things make a replay exact. `parts` is into how many partitions the batch before
the offset was split. `origin` is where that batch began, if that is not simply where
the one before ended: a query's first batch, whose start would be looked up anew, a
batch that goes on after lost messages, or after those that a filter passes over.
"""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from .errors import DataLossError, OptionError

__all__ = ["Bounds", "Offset", "load_offset", "read_offset", "split", "tell_loss"]

logger = logging.getLogger("jsclient")

VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in a stream."""

    stream: str
    created: str
    next: int
    origin: int | None = None
    parts: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        found: dict[str, Any] = {
            "v": VERSION,
            "stream": self.stream,
            "created": self.created,
            "next": self.next,
        }
        if self.origin is not None:
            found["origin"] = self.origin
        if self.parts is not None:
            found["parts"] = self.parts
        return found

    @property
    def is_initial(self) -> bool:
        """Whether it is where a query begins, before anything was read."""
        return self.origin == self.next and self.parts is None

    def moved(self, to: int, parts: int) -> Offset:
        """The end of the batch that begins here."""
        origin = self.origin if self.is_initial else None
        return replace(self, next=to, origin=origin, parts=parts)


def load_offset(text: str) -> dict[str, Any] | None:
    """The JSON of an offset, None if it is none.

    In the progress of Sparks before 4.3 it may be as Python writes it.
    """
    for load in (json.loads, ast.literal_eval):
        try:
            found = load(text)
        except (ValueError, SyntaxError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def read_offset(raw: object, stream: str, where: str) -> Offset:
    """The offset that somebody gave us, of that stream; OptionError names the giver."""
    if isinstance(raw, str):
        raw = load_offset(raw) or raw
    if not isinstance(raw, Mapping):
        raise OptionError(where, f"{raw!r} is no JSON of an offset")
    if raw.get("v", VERSION) != VERSION:
        raise OptionError(
            where, f"the offset has version {raw['v']!r}; this release reads {VERSION}"
        )
    if raw.get("stream") != stream:
        raise OptionError(
            where, f"the offset is of stream {raw.get('stream')!r}, not {stream!r}"
        )
    created = raw.get("created")
    if not isinstance(created, str):
        raise OptionError(where, "the offset does not tell when its stream was created")
    numbers = {}
    for name in ("next", "origin", "parts"):
        value = raw.get(name)
        if value is not None or name == "next":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(
                    where, f"{name} of the offset must be at least 1, not {value!r}"
                )
            numbers[name] = value
    return Offset(stream, created, **numbers)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a stream holds now: the sequences from `first` to before `next`."""

    stream: str
    created: str
    first: int
    next: int

    def loss(self, offset: Offset, end: int | None = None) -> DataLossError | None:
        """What a reader at an offset has lost, None if nothing.

        Only messages at the front count, and at an end that was known to be there:
        holes between others are no loss.
        """
        if offset.created != self.created:
            return DataLossError(
                f"DATA_LOSS: stream {self.stream!r} was deleted and made again at "
                f"{self.created} (the offset is of that from {offset.created}): "
                f"messages from {offset.next} on are gone. {WHAT_TO_DO}"
            )
        known = max(offset.next, offset.next if end is None else end)
        if known > self.next:
            return DataLossError(
                f"DATA_LOSS: stream {self.stream!r} ends at {self.next - 1}, but it "
                f"had messages up to {known - 1}: the server has lost "
                f"{self.next}..{known - 1}. {WHAT_TO_DO}"
            )
        if offset.next < self.first and (end is None or offset.next < end):
            last = self.first - 1 if end is None else min(self.first, end) - 1
            return DataLossError(
                f"DATA_LOSS: stream {self.stream!r}: messages {offset.next}..{last} "
                f"are gone (first_seq={self.first}). {WHAT_TO_DO}"
            )
        return None

    def resumed(self, offset: Offset) -> Offset:
        """Where a reader goes on that has lost messages and does not mind."""
        if offset.created != self.created:
            place = self.first
        else:
            place = min(max(offset.next, self.first), self.next)
        return Offset(self.stream, self.created, place, origin=place)


def tell_loss(loss: DataLossError, *, is_fatal: bool) -> None:
    """Raises the loss, or warns of it where nobody minds: failOnDataLoss=false."""
    if is_fatal:
        raise loss
    logger.warning("%s", loss)


WHAT_TO_DO = (
    "Set failOnDataLoss to false to go on with what is there, or start with a new "
    "checkpoint"
)


def split(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """A range of sequences in so many even parts, fewer if it has fewer sequences."""
    size = end - start
    if size <= 0:
        return []
    parts = min(parts, size)
    borders = [start + size * n // parts for n in range(parts + 1)]
    return list(pairwise(borders))
