"""What a connection is doing, and the link that it has."""

from __future__ import annotations

import math
from enum import Enum

from .._core import LiveLink
from .._engine.servers import Server
from .._engine.session import Session
from .dial import Call


class Status(Enum):
    """What a connection is doing."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    DRAINING_SUBS = "draining subscriptions"
    DRAINING_PUBS = "draining publishes"
    CLOSED = "closed"


class Live(LiveLink):
    """The link of this moment and all that ends with it."""

    __slots__ = ("error", "server", "sock")

    session: Session

    def __init__(self, call: Call, session: Session) -> None:
        super().__init__(call.link, call.parser, session)
        self.sock = call.sock
        self.server: Server = call.server
        self.error: Exception | None = None  # why it must end
        # When to begin to leave a server that shuts down, and then at the latest to go.
        self.leave_at = math.inf
