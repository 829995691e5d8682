"""Looks whether a connection has put away what belonged to reading that is over."""

from __future__ import annotations

import time

import jsclient
from jsclient._core import Lane, PushInbox
from jsclient._io.pulling import Pulling
from jsclient._io.pushing import Pushing
from jsclient.consuming import ProgressReports


def assert_tidy(nc: jsclient.Connection, *, timeout: float = 5.0) -> None:
    """No conversation is left, and no subscription of one but a pool of free lanes."""
    loop = nc._loop

    def leftovers() -> list[object]:
        known = [*loop.machines, *loop.watchers]
        found: list[object] = [
            one for one in known if isinstance(one, Pulling | Pushing | ProgressReports)
        ]
        for entry in list(loop.entries.values()):
            route = entry.route
            if isinstance(route, Lane) and (route.inbox or entry.is_draining):
                found.append(entry.subject)
            if isinstance(route, PushInbox):
                found.append(entry.subject)
        return found

    deadline = time.monotonic() + timeout
    while left := leftovers():
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.005)  # the threads of a consume end a moment after its stop
