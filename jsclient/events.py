"""What a Connection tells its `on_event` callable: one frozen class per event.

Events are delivered in order by a thread of their own, never while the loop is held.
None of them holds a secret: addresses are printed without user information.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .subscription import Subscription

__all__ = [
    "Closed",
    "Connected",
    "Disconnected",
    "ErrorEvent",
    "Event",
    "LameDuck",
    "ReconnectFailed",
    "Reconnected",
    "ServersDiscovered",
    "SlowConsumer",
]


@dataclass(frozen=True, slots=True)
class Event:
    """What all events derive from."""


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """The first link is up (also after `retry_initial`)."""

    server: str


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """The link went down; `error` is why, None when the user closed it."""

    server: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Reconnected(Event):
    """A new link is up; subscriptions were made again."""

    server: str


@dataclass(frozen=True, slots=True)
class ReconnectFailed(Event):
    """One attempt to reconnect failed; more will follow unless Closed comes next."""

    server: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Closed(Event):
    """The connection ended for good; always the last event."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class LameDuck(Event):
    """The server is about to shut down."""

    server: str


@dataclass(frozen=True, slots=True)
class ServersDiscovered(Event):
    """The cluster announced servers that were not known before."""

    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlowConsumer(Event):
    """A subscription began to drop messages; `dropped` counts all so far."""

    subscription: Subscription
    dropped: int


@dataclass(frozen=True, slots=True)
class ErrorEvent(Event):
    """Something failed that no waiting call could be told about."""

    error: Exception
    subscription: Subscription | None = None
