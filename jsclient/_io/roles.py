"""Whom a loop drives, tells and waits for: what it needs to know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .. import errors
from .._core import Gate
from .._engine.arguments import Seconds


class Machine(Protocol):
    """A state machine that the loop drives: `tick` has work to do at its `deadline`."""

    @property
    def deadline(self) -> float:
        """When it has work to do; infinity if never."""

    def tick(self, now: float) -> None:
        """The time is `now`."""


class Watcher(Protocol):
    """Somebody whose work depends on there being a link; told at the helm."""

    def linked(self, now: float) -> None:
        """There is a new link."""

    def unlinked(self, now: float) -> None:
        """The link is gone, and what was under way on it."""

    def closed(self, error: errors.Error) -> None:
        """There will be no further link."""


class Belonging(Protocol):
    """Something at the server that goes with a subscription, as its consumer may."""

    def release_quietly(self, timeout: Seconds | None = None) -> None:
        """Deletes it, once; what the server says to that goes to `on_event`."""


class Caller(Protocol):
    """Who runs callbacks of the user on threads of its own."""

    @property
    def is_calling_here(self) -> bool:
        """Whether this thread is one of those."""

    @property
    def called_all(self) -> Gate:
        """Opens when they have ended."""


class Reader(Protocol):
    """An iteration over a consumer's messages, which asks for them by itself."""

    def end_reading(self, deadline: float) -> Callable[[], Gate | None] | None:
        """Asks for nothing more, without waiting for what is under way.

        What is returned, if anything, waits; its gate opens when what came was read.
        There is none if not everything came in time.
        """
