"""What goes into a pull conversation and what comes out of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from ..jetstream_errors import PullError
from .values import duration_ns


class Policy(NamedTuple):
    """What a conversation is for."""

    is_fetch: bool
    max_messages: int  # held and owed; of a fetch: wanted
    max_bytes: int = 0  # 0: no limit of bytes
    threshold_messages: int = 0
    threshold_bytes: int = 0
    expires: float = 30.0  # of a fetch: what is left of its time counts
    heartbeat: float = 0.0  # 0: none
    stop_after: int = 0  # 0: never
    no_wait: bool = False
    no_wait_first: bool = False  # a fetch that waits only if there is nothing yet
    batch_limit: int = 0  # what the consumer accepts; 0: anything
    expires_limit: float = math.inf  # a fetch that waits longer asks again
    is_patient: bool = False  # waits for another consumer when its own is deleted
    is_fragile: bool = False  # trouble that is otherwise overcome ends it
    # The server delivers nothing again: who drains waits for the ends of pulls.
    awaits_ends: bool = False
    doing: str = "pull messages"

    @property
    def counts_bytes(self) -> bool:
        """Whether bytes, not messages, are the limit."""
        return self.max_bytes > 0


class Ask(NamedTuple):
    """Send a pull."""

    pull: int
    batch: int
    max_bytes: int  # 0: none
    expires: float  # 0: never
    heartbeat: float  # 0: none
    no_wait: bool

    def body(self, fields: Mapping[str, int | str]) -> bytes:
        """What is sent, with further fields."""
        body: dict[str, int] = {"batch": self.batch}
        if self.max_bytes:
            body["max_bytes"] = self.max_bytes
        if self.expires:
            body["expires"] = duration_ns(self.expires, "expires")
        if self.heartbeat:
            beat = duration_ns(self.heartbeat, "idle_heartbeat")
            # The server refuses more than a half, to the nanosecond.
            body["idle_heartbeat"] = min(beat, body["expires"] // 2)
        if self.no_wait:
            body["no_wait"] = True
        return json.dumps({**body, **fields}, separators=(",", ":")).encode()


class Close(NamedTuple):
    """A pull is over. If that is certain, nothing more can come of it."""

    pull: int
    is_certain: bool


class Warn(NamedTuple):
    """Something to tell the user; the conversation goes on."""

    error: PullError


class Signal(Enum):
    """Outputs without data."""

    UNPINNED = "unpinned"  # forget the pin
    LOOK_UP = "look up"  # is the consumer still there?
    ENDED = "ended"


Output = Ask | Close | Warn | Signal
