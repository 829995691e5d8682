"""The thread that keeps a connection alive while the application is busy elsewhere.

It sleeps as long as threads of the user take the helm by themselves. When the helm has
lain free for a while it takes it, so that PINGs are answered and losses noticed, and
leaves it to the first thread that wants it. It sends what publishers left in the
outbox, makes new links, and ends the connection. An idle connection has its keeper in
select, where it costs nothing.
"""

from __future__ import annotations

import math
import threading
from time import monotonic
from typing import TYPE_CHECKING

from .log import log

if TYPE_CHECKING:
    from .loop import Loop

# A helm that lay free this long is taken: requests with short pauses stay with the
# caller.
PATIENCE = 0.1


class Keeper:
    """The keeper of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._bell = threading.Lock()
        self._bell.acquire()
        self._shifts = 0  # of the helm, when last looked at
        self._take_at = 0.0  # when a helm that nobody took since is ours
        self._thread = threading.Thread(
            target=self._run, name="jsclient-keeper", daemon=True
        )

    @property
    def thread_id(self) -> int:
        """The identity of the thread, 0 before it runs."""
        return self._thread.ident or 0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def ring(self) -> None:
        """Wakes the keeper, or keeps it from its next sleep."""
        if self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:
                # Another thread rang between the two steps.
                return

    def nap(self, seconds: float) -> bool:
        """Sleeps until rung, at most that long; whether it was rung."""
        return self._bell.acquire(timeout=min(max(seconds, 0.0), 3600.0))

    def _run(self) -> None:
        loop = self._loop
        try:
            while not loop.is_closing:
                if loop.live is None or loop.live.error is not None:
                    loop.links.recover()
                else:
                    self._watch()
        except BaseException as error:  # noqa: BLE001 - nothing may outlive its keeper
            log().exception("the keeper of a connection failed")
            loop.close(error if isinstance(error, Exception) else None)
        finally:
            loop.finish()

    def _watch(self) -> None:
        """One look at a link that is well.

        Publishers may ring all the time; the helm must not lie free longer for that.
        """
        loop, now = self._loop, monotonic()
        live = loop.live
        loop.forget_orphans()
        look_at = loop.patrol.look(now)
        if live is not None and live.link.error is not None:
            loop.fail(live, live.link.error)
            return
        if not loop.helm.is_free and loop.helm.shifts == self._shifts:
            # One thread has had the helm for a while: it says when it leaves, unless
            # it has left since that was looked at.
            loop.helm.on_leave = self.ring
            self._take_at = now + PATIENCE if loop.helm.is_free else math.inf
        elif loop.helm.shifts != self._shifts or self._take_at == math.inf:
            self._shifts = loop.helm.shifts
            self._take_at = now + PATIENCE
        is_full = live is not None and loop.outbox and live.link.is_blocked
        if is_full and not loop.helm.is_free:
            # The socket is full: whoever is at the helm waits until it is not.
            loop.wake()
        if now >= self._take_at or (is_full and loop.helm.is_free):
            loop.helm.keep()
            self._take_at = monotonic() + PATIENCE
        else:
            self.nap(min(look_at, self._take_at) - now)
