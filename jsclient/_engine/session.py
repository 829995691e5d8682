"""One link's conversation: what the server said of itself, and whether it still speaks.

The clock of a Session ticks once per `ping_interval`. Each tick that is not stale sends
a PING and counts it as outstanding; any PONG sets the count back to 0. A tick that
finds `max_pings_out` outstanding says that the peer is stale. PINGs count from the
tick, not from when their bytes were taken by the socket: a peer that does not read is
as silent as one that does not write.

A new link is a new Session.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum

from .._core import Gate
from .info import ServerInfo


class Tick(Enum):
    """What a tick of the clock asks for."""

    NOTHING = "nothing"
    PING = "ping"
    STALE = "stale"


class Session:
    """The facts and the PING clock of one link."""

    def __init__(
        self, info: ServerInfo, *, ping_interval: float, max_pings_out: int, now: float
    ) -> None:
        self.info = info
        self.outstanding = 0
        self.pongs = 0  # PINGs of this link that were answered
        self.deadline = now + ping_interval if ping_interval > 0 else math.inf
        self._interval = ping_interval
        self._max_pings_out = max_pings_out
        # Who waits for which PONG; PONGs come in the order of the PINGs.
        self._fences: deque[tuple[int, Gate, Callable[[], None] | None]] = deque()

    def tick(self, now: float) -> Tick:
        """The time is `now`; a late tick counts once, however late it is."""
        if now < self.deadline:
            return Tick.NOTHING
        # The deadline moves first: whoever is interrupted after this has ticked.
        self.deadline = now + self._interval
        if self.outstanding >= self._max_pings_out:
            return Tick.STALE
        self.outstanding += 1
        return Tick.PING

    def fence(self, ping: int, then: Callable[[], None] | None = None) -> Gate:
        """A Gate that opens with the PONG of that PING, the last one sent.

        `then` is called at the helm before, but not when the link is lost.
        """
        gate = Gate()
        self._fences.append((ping, gate, then))
        # Another thread may have sent the PING and handled its PONG meanwhile.
        if ping <= self.pongs:
            if then is not None:
                then()
            gate.open()
        return gate

    def ponged(self, pongs: int) -> None:
        """So many PONGs have come in all."""
        self.outstanding = 0
        self.pongs = max(self.pongs, pongs)
        while self._fences and self._fences[0][0] <= pongs:
            first = self._fences[0]
            _, gate, then = first
            if then is not None and not gate.is_open:
                then()
            gate.open()
            # A signal handler that waits may have put it away already.
            if self._fences and self._fences[0] is first:
                self._fences.popleft()

    def ended(self, error: Exception) -> None:
        """The link is gone: nobody waits for its PONGs any longer."""
        while self._fences:
            self._fences.popleft()[1].open(error)
