"""The subscriptions of a connection, as the server has to know them.

The table outlives links: what it holds is replayed on the next one. It sends nothing by
itself.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import errors
from .._core import (
    Answers,
    Inbox,
    Lane,
    PushInbox,
    Replies,
    Route,
    Routes,
    sub_frame,
    unsub_frame,
)

if TYPE_CHECKING:
    from ..push import PushSubscription
    from ..subscription import Subscription


class Entry:
    """One subscription."""

    __slots__ = (
        "asked",
        "is_draining",
        "on_notice",
        "on_refused",
        "owner",
        "queue",
        "route",
        "subject",
    )

    def __init__(
        self,
        subject: str,
        queue: str | None,
        route: Route,
        *,
        owner: weakref.ref[Subscription | PushSubscription] | None,
        on_notice: Callable[[], None] | None,
        asked: str | None,
        on_refused: Callable[[errors.Error], None] | None,
    ) -> None:
        self.subject = subject
        self.queue = queue
        self.route = route
        # None if it is none of the user's. Weak: one that nobody holds is ended.
        self.owner = owner
        # Called at the helm when the parser notices the route.
        self.on_notice = on_notice
        # The subject of the request, or of the pulls, whose answers come here. An inbox
        # has those of one request, and ends with its link.
        self.asked = asked
        # Called at the helm when the server refuses a lane, or the pull on it.
        self.on_refused = on_refused
        self.is_draining = False

    @property
    def subscription(self) -> Subscription | PushSubscription | None:
        """The user's handle, if it still exists."""
        return None if self.owner is None else self.owner()

    @property
    def has_answers(self) -> bool:
        """Whether an inbox has the answers to one request, and ends with its link."""
        return self.asked is not None and isinstance(self.route, Inbox)

    def notice(self) -> None:
        """Tells who gathers answers that there are some."""
        if self.on_notice is not None:
            self.on_notice()


class Table:
    """The entries by their sids, and the routes of the parser."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.routes = Routes()
        self.replies: Replies | None = None  # the inbox of requests, when there is one
        self._sids = itertools.count(1)

    def new_sid(self) -> int:
        """A number that no subscription of this connection ever had."""
        return next(self._sids)

    def add(self, sid: int, entry: Entry) -> None:
        """Messages of the sid go to the entry's route from now on."""
        self.entries[sid] = entry
        self.routes.add(sid, entry.route)

    def remove(self, sid: int) -> None:
        """Messages of the sid are dropped from now on."""
        self.routes.remove(sid)
        self.entries.pop(sid, None)

    def of_route(self, route: Route) -> list[tuple[int, Entry]]:
        """The entries, mostly one, with this route."""
        if isinstance(route, Lane):
            entry = self.entries.get(route.sid)
            return [] if entry is None else [(route.sid, entry)]
        return [
            (sid, entry)
            for sid, entry in list(self.entries.items())
            if entry.route is route
        ]

    def refused(self, error: errors.PermissionsViolationError) -> Entry | None:
        """The subscription that a permissions error is about."""
        if error.sid is not None:
            return self.entries.get(error.sid)
        for entry in list(self.entries.values()):
            if (entry.subject, entry.queue) == (error.subject, error.queue):
                return entry
        return None

    def fail_request(self, error: errors.PermissionsViolationError) -> bool:
        """Whether a waiting request, or the pulls of a consumer, were refused."""
        is_pull = False
        for entry in list(self.entries.values()):
            is_asked = entry.asked is not None and entry.asked == error.subject
            if isinstance(entry.route, Lane):
                if is_asked and entry.route.is_open:
                    self.end(entry, error)
                    is_pull = True
            elif is_asked:
                self.end(entry, error)
                return True
            elif isinstance(entry.route, Answers) and entry.route.fail_subject(
                error.subject, error
            ):
                entry.notice()
                return True
        return is_pull

    def end(self, entry: Entry, error: errors.Error) -> None:
        """The server refuses it, or its link is lost: its readers are told."""
        if entry.on_refused is not None:
            entry.on_refused(error)
            return
        for sid, known in list(self.entries.items()):
            if known is entry:
                self.remove(sid)
        if isinstance(entry.route, Inbox):
            entry.route.end(error)
        elif isinstance(entry.route, Answers):
            entry.route.fail_all(error)
            entry.notice()
            if entry.route is self.replies:
                self.replies = None

    @property
    def is_awaited(self) -> bool:
        """Whether anything that would end with the link has no answer yet."""
        return any(
            entry.route.is_awaited
            if isinstance(entry.route, Answers)
            else entry.has_answers
            for entry in list(self.entries.values())
        )

    @property
    def is_under_way(self) -> bool:
        """Whether anything that was sent, or asked by a thread that waits, has no end.

        A batch that nobody commits now is not under way: more would have to be sent.
        """
        return bool(self.replies) or any(
            entry.route.is_awaited
            if isinstance(entry.route, Answers)
            else entry.has_answers and entry.route.has_waiters
            for entry in list(self.entries.values())
        )

    def lose_link(self, gone: errors.Error) -> None:
        """What must not outlive a link ends with it."""
        for sid, entry in list(self.entries.items()):
            if entry.has_answers:
                self.end(entry, gone)
            elif isinstance(entry.route, Answers):
                entry.route.fail_tied(gone)
                entry.notice()
            elif entry.is_draining:
                # It gets nothing more.
                self.remove(sid)
                if isinstance(entry.route, Inbox):
                    entry.route.end()

    def replay(self) -> bytes:
        """SUB, and UNSUB with what is left of a limit, for every live subscription."""
        frames: list[bytes] = []
        for sid, entry in sorted(self.entries.items()):
            if entry.is_draining:
                continue
            limit = 0
            # The server would count a push consumer's statuses as well.
            is_counted = not isinstance(entry.route, PushInbox)
            if isinstance(entry.route, Inbox) and entry.route.limit and is_counted:
                limit = entry.route.limit - entry.route.arrived
                if limit <= 0:
                    continue
            frames.append(sub_frame(entry.subject, entry.queue, sid))
            if limit:
                frames.append(unsub_frame(sid, limit))
        return b"".join(frames)
