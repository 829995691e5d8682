"""What a Connection tells its `on_event` callable: one named tuple per event.

Events are delivered in order by a thread of their own, never while the loop is held.
None of them holds a secret: addresses are printed without user information.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .push import PushSubscription
    from .subscription import Subscription

__all__ = [
    "Closed",
    "Connected",
    "ConsumerWarning",
    "Disconnected",
    "ErrorEvent",
    "Event",
    "LameDuck",
    "ReconnectFailed",
    "Reconnected",
    "ServersDiscovered",
    "SlowConsumer",
]


class Connected(NamedTuple):
    """The first link is up (also after `retry_initial`)."""

    server: str


class Disconnected(NamedTuple):
    """The link went down; `error` is why, None when the user closed it."""

    server: str
    error: Exception | None


class Reconnected(NamedTuple):
    """A new link is up; subscriptions were made again."""

    server: str


class ReconnectFailed(NamedTuple):
    """One attempt to reconnect failed; more will follow unless Closed comes next."""

    server: str
    error: Exception


class Closed(NamedTuple):
    """The connection ended for good; always the last event."""

    error: Exception | None


class LameDuck(NamedTuple):
    """The server is about to shut down."""

    server: str


class ServersDiscovered(NamedTuple):
    """The cluster announced servers that were not known before."""

    servers: tuple[str, ...]


class SlowConsumer(NamedTuple):
    """A subscription began to drop messages; `dropped` counts all so far."""

    subscription: Subscription | PushSubscription
    dropped: int


class ConsumerWarning(NamedTuple):
    """A consumer met trouble that it overcomes by itself, or lost deliveries."""

    stream: str
    consumer: str
    error: Exception


class ErrorEvent(NamedTuple):
    """Something failed that no waiting call could be told about."""

    error: Exception
    subscription: Subscription | PushSubscription | None = None


Event = (
    Connected
    | Disconnected
    | Reconnected
    | ReconnectFailed
    | Closed
    | LameDuck
    | ServersDiscovered
    | SlowConsumer
    | ConsumerWarning
    | ErrorEvent
)
