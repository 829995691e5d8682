"""How the keeper looks after what publishers leave in the outbox."""

from __future__ import annotations

import math

from .._core import Outbox

# How long unsent bytes may gather.
LINGER = 0.002
# How many looks that find nothing left for them end a patrol.
QUIET_LOOKS = 10


class Patrol:
    """Sends what publishers left, every moment, until nobody left anything for a while.

    A burst is given a moment to gather, for its publisher sends what is worth a system
    call by itself. To be told of each message would cost more than the message, so a
    publisher alerts the keeper once, and the patrol goes on by itself.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._look_at = math.inf
        self._gathered = 0
        self._quiet_looks = 0

    def look(self, now: float) -> float:
        """Sends what is due; when to look again, infinity if nobody needs it."""
        outbox = self._outbox
        if not outbox and not outbox.is_alerted:
            self._look_at = math.inf
        elif self._look_at == math.inf:
            outbox.look_after()
            self._look_at = now + LINGER
        elif now >= self._look_at:
            if outbox.send() or outbox.gathered != self._gathered:
                self._gathered = outbox.gathered
                self._quiet_looks = 0
            else:
                self._quiet_looks += 1
            self._look_at = now + LINGER
            if self._quiet_looks >= QUIET_LOOKS:
                self._quiet_looks = 0
                if not outbox.look_away():
                    self._look_at = math.inf
        return self._look_at
