"""A pull conversation with a consumer: how much to ask for, when, when it is over.

A conversation keeps a ledger of its open pulls. Two sums follow from it and from what
the user holds: `owed`, what open pulls may still bring, and `held`, what arrived and
was not taken. It never asks for more than `limit - owed - held`, in messages or in
bytes, and asks when owed + held has fallen to the threshold.

A pull ends by the first of: all of its messages came; all of its bytes came (the server
says nothing then); a status; silence for two heartbeats; its time was over and no
status came; the link was lost. Whatever ends it, exactly what the ledger still holds
for it is released. The pending counts of a status are not needed for that.

Silence is judged only while a pull is open, and by what arrived, not by what was
handled.

A conversation that fetches asks once for what it wants, and again only on a new link.
One that consumes goes on until it is stopped or hopeless. After a refusal it pauses,
longer each time, until something arrives.

States: *idle* until `started`, then *running*; `ended` once, with an error or without.
Data and `now` come in, outputs are taken: requests, closed pulls, notices.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

from ..jetstream_errors import (
    JetStreamError,
    LostPullError,
    MessageSizeError,
    MissedHeartbeatError,
    PullError,
)
from .verdicts import Verdict, judge

FIRST_PAUSE = 0.1
# How long a server that shuts down has to close the link.
RELINK_PAUSE = 1.0
# How long after its expiry a pull without a status is lost.
GRACE = 2.0
# What stands for "any number of messages" beside a limit of bytes.
MANY = 1_000_000


class Policy(NamedTuple):
    """What a conversation is for."""

    is_fetch: bool
    max_messages: int  # held and owed; of a fetch: wanted
    max_bytes: int = 0  # 0: no limit of bytes
    threshold_messages: int = 0
    threshold_bytes: int = 0
    expires: float = 30.0
    heartbeat: float = 0.0  # 0: none
    stop_after: int = 0  # 0: never
    no_wait: bool = False
    batch_limit: int = 0  # what the consumer accepts; 0: anything
    is_fragile: bool = False  # trouble that is otherwise overcome ends it
    doing: str = "pull messages"

    @property
    def counts_bytes(self) -> bool:
        """Whether bytes, not messages, are the limit."""
        return self.max_bytes > 0


class Ask(NamedTuple):
    """Send a pull."""

    pull: int
    batch: int
    max_bytes: int
    expires: float
    heartbeat: float
    no_wait: bool


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


class Pull:
    """One open pull: what was asked and what came of it."""

    __slots__ = ("asked_bytes", "asked_messages", "bytes", "lost_at", "messages")

    def __init__(self, messages: int, bytes_: int, lost_at: float) -> None:
        self.asked_messages = messages
        self.asked_bytes = bytes_
        self.messages = 0
        self.bytes = 0
        self.lost_at = lost_at

    @property
    def owed_messages(self) -> int:
        """Messages that may still come."""
        return max(self.asked_messages - self.messages, 0)

    @property
    def owed_bytes(self) -> int:
        """Bytes that may still come."""
        return max(self.asked_bytes - self.bytes, 0)

    @property
    def is_spent(self) -> bool:
        """Whether it has brought all that it can."""
        return self.owed_messages == 0 or (
            self.asked_bytes > 0 and self.owed_bytes == 0
        )


class Conversation:
    """The machine; see the module's text."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.open: dict[int, Pull] = {}
        self.held_messages = 0
        self.held_bytes = 0
        self.arrived = 0  # messages since the beginning
        self.deadline = math.inf  # when tick() has work to do
        self.is_ended = False
        self.error: JetStreamError | None = None
        self._is_linked = False
        self._is_stopped = False
        self._finish_at = math.inf  # of a fetch
        self._silent_at = math.inf
        self._ask_at = -math.inf  # not before
        self._pause = FIRST_PAUSE
        self._last_pull = 0
        self._reported_size = False
        self._output: list[Output] = []

    # Sums -----------------------------------------------------------------------------

    @property
    def owed_messages(self) -> int:
        """Messages that open pulls may still bring."""
        return sum(pull.owed_messages for pull in self.open.values())

    @property
    def owed_bytes(self) -> int:
        """Bytes that open pulls may still bring."""
        return sum(pull.owed_bytes for pull in self.open.values())

    # Inputs ---------------------------------------------------------------------------

    def started(self, now: float, *, is_linked: bool, finish_at: float) -> None:
        """The conversation begins; a fetch ends at `finish_at` at the latest."""
        self._is_linked = is_linked
        self._finish_at = finish_at
        self._refill(now)
        self._set_deadline()

    def linked(self, now: float) -> None:
        """There is a new link: whatever was open on the old one is gone."""
        self._lose_all()
        self._is_linked = True
        self._ask_at = -math.inf
        self._refill(now)
        self._set_deadline()

    def unlinked(self) -> None:
        """The link is gone, and every pull with it. That ends only a fragile one."""
        self._lose_all()
        self._is_linked = False
        if self.policy.is_fragile:
            self._end(self._problem(LostPullError, "the link was lost"))
        self._set_deadline()

    def brought(self, pull: int, messages: int, bytes_: int) -> None:
        """So much came of a pull in all."""
        known = self.open.get(pull)
        if known is not None:
            known.messages = messages
            known.bytes = bytes_

    def holds(self, messages: int, bytes_: int, arrived: int) -> None:
        """So much is waiting for the user, and so much came since the beginning."""
        if arrived > self.arrived:
            self._pause = FIRST_PAUSE
            self._ask_at = -math.inf
            self._reported_size = False
        self.held_messages = messages
        self.held_bytes = bytes_
        self.arrived = arrived

    def heard(self, now: float) -> None:
        """Frames arrived since the last call, heartbeats perhaps."""
        self._pause = FIRST_PAUSE
        if self.open and self.policy.heartbeat:
            self._silent_at = now + 2 * self.policy.heartbeat
        self._set_deadline()

    def spent(self, pull: int, now: float) -> None:
        """A pull has brought all that it can."""
        if pull in self.open:
            asked_bytes = self.open[pull].asked_bytes
            # With bytes left the server still says that the batch is complete.
            is_certain = asked_bytes == 0 or self.open[pull].owed_bytes == 0
            self._close(pull, is_certain=is_certain)
            self._after_close(now)

    def status(self, pull: int, code: int, description: str, now: float) -> None:
        """A status other than a heartbeat came for a pull."""
        if pull not in self.open or self.is_ended:
            return
        row = judge(code, description)
        error = None
        if row.error is not None:
            error = row.error(
                code=code, description=description, doing=self.policy.doing
            )
        if row.verdict is Verdict.KEEP:
            assert error is not None
            if self.policy.is_fetch:
                self._end(error)
            else:
                self._output.append(Warn(error))
            return
        ended = self.open[pull]
        self._close(pull, is_certain=True)
        if code == 503:
            self._output.append(Signal.LOOK_UP)
        if row.verdict is Verdict.FATAL:
            self._end(error)
        elif self.policy.is_fetch and row.verdict is not Verdict.RELINK:
            self._end_fetch(row.verdict, error if row.is_error else None, ended)
        else:
            is_told = row.is_error or row.verdict is Verdict.SIZE
            self._go_on(row.verdict, error if is_told else None, ended, now)
        self._after_close(now)

    def _go_on(
        self, verdict: Verdict, error: PullError | None, ended: Pull, now: float
    ) -> None:
        """A consume whose pull has ended so stays alive."""
        if verdict is Verdict.UNPIN:
            self._output.append(Signal.UNPINNED)
        elif verdict is Verdict.SIZE:
            self._too_large(error, ended, now)
        elif verdict is Verdict.RELINK:
            # Mostly our own link ends in a moment; else another server takes over.
            self._warn(error)
            self._ask_at = now + RELINK_PAUSE
        elif verdict is Verdict.AGAIN:
            self._warn(error)
        elif verdict is Verdict.RETRY:
            self._warn(error)
            self._back_off(now)

    def _too_large(self, error: PullError | None, ended: Pull, now: float) -> None:
        """The next message did not fit into what the pull had left.

        If it had everything and brought nothing, the message can never fit.
        """
        if ended.messages == 0 and ended.asked_bytes >= self.policy.max_bytes:
            if not self._reported_size:
                self._reported_size = True
                self._warn(error)
            self._back_off(now)

    def _end_fetch(
        self, verdict: Verdict, error: PullError | None, ended: Pull
    ) -> None:
        """A fetch ends with its pull; quietly if that was to be expected."""
        if verdict is Verdict.UNPIN:
            self._output.append(Signal.UNPINNED)
        if verdict is Verdict.SIZE and self.arrived == 0:
            error = MessageSizeError(
                code=409,
                description="the next message is larger than "
                f"{ended.asked_bytes} bytes",
                doing=self.policy.doing,
            )
        self._end(error)

    def missing(self, error: JetStreamError) -> None:
        """The consumer is gone for certain."""
        self._end(error)

    def stopped(self) -> None:
        """The user wants nothing more."""
        self._is_stopped = True
        self._end(None)

    def drained(self) -> None:
        """The user wants no further pulls, but what open ones brought."""
        self._is_stopped = True

    def tick(self, now: float) -> None:
        """The time is `now`."""
        if self.is_ended:
            return
        if now >= self._finish_at:
            self._end(None)
        elif now >= self._silent_at and self.open:
            self._fell_silent(now)
        else:
            for pull, ledger in list(self.open.items()):
                if now >= ledger.lost_at:
                    self._close(pull, is_certain=False)
                    self._warn(self._problem(LostPullError, "a pull got no answer"))
            self._refill(now)
        self._set_deadline()

    def _fell_silent(self, now: float) -> None:
        """Two heartbeats were missed: whatever is open is lost."""
        self._lose_all()
        error = self._problem(
            MissedHeartbeatError,
            f"nothing was heard for {2 * self.policy.heartbeat:g} s",
        )
        if self.policy.is_fetch:
            self._end(error)
        else:
            self._warn(error)
            self._refill(now)

    def _problem(self, kind: type[PullError], description: str) -> PullError:
        return kind(code=0, description=description, doing=self.policy.doing)

    def taken(self, now: float) -> None:
        """The user took messages; `holds` said what is left."""
        self._refill(now)
        self._set_deadline()

    def take_output(self) -> list[Output]:
        """What is to be done, once."""
        output, self._output = self._output, []
        return output

    # Refilling ------------------------------------------------------------------------

    def _wanted(self) -> int:
        """Messages that may be asked for now."""
        policy = self.policy
        in_view = self.owed_messages + self.held_messages
        if policy.is_fetch:
            return policy.max_messages - self.arrived - self.owed_messages
        room = policy.max_messages - in_view
        if policy.counts_bytes:
            room = MANY
        if policy.stop_after:
            room = min(room, policy.stop_after - self.arrived - self.owed_messages)
        return room

    def _is_low(self) -> bool:
        """Whether so little is in view that more is due."""
        policy = self.policy
        if policy.is_fetch:
            return not self.open
        if policy.counts_bytes:
            return self.owed_bytes + self.held_bytes <= policy.threshold_bytes
        return self.owed_messages + self.held_messages <= policy.threshold_messages

    def _refill(self, now: float) -> None:
        """Asks for what is missing, if it is due and possible."""
        if self.is_ended or self._is_stopped or not self._is_linked:
            return
        if now < self._ask_at:
            return
        self._ask_at = -math.inf
        if not self._is_low():
            return
        policy = self.policy
        batch = self._wanted()
        max_bytes = 0
        if policy.counts_bytes:
            max_bytes = policy.max_bytes - self.owed_bytes - self.held_bytes
            if policy.is_fetch:
                max_bytes = policy.max_bytes - self.held_bytes
            if max_bytes <= 0:
                return
        if batch <= 0:
            return
        if policy.batch_limit:
            batch = min(batch, policy.batch_limit)
        self._ask(batch, max_bytes, now)

    def _ask(self, batch: int, max_bytes: int, now: float) -> None:
        policy = self.policy
        expires, heartbeat = policy.expires, policy.heartbeat
        if policy.is_fetch and not policy.no_wait:
            # The server's end comes a little before ours, so that we hear of it.
            left = self._finish_at - now
            expires = max(left - min(0.02, 0.1 * left), 0.001)
            if 2 * heartbeat > expires:
                heartbeat = 0.0
        self._last_pull += 1
        lost_at = math.inf if policy.is_fetch else now + expires + GRACE
        self.open[self._last_pull] = Pull(batch, max_bytes, lost_at)
        if heartbeat:
            self._silent_at = max(
                now + 2 * heartbeat,
                self._silent_at if self._silent_at < math.inf else 0.0,
            )
        self._output.append(
            Ask(
                self._last_pull,
                batch,
                max_bytes,
                0.0 if policy.no_wait else expires,
                heartbeat,
                policy.no_wait,
            )
        )

    # Endings --------------------------------------------------------------------------

    def _close(self, pull: int, *, is_certain: bool) -> None:
        del self.open[pull]
        self._output.append(Close(pull, is_certain))
        if not self.open:
            self._silent_at = math.inf

    def _lose_all(self) -> None:
        for pull in list(self.open):
            self._close(pull, is_certain=False)

    def _after_close(self, now: float) -> None:
        policy = self.policy
        if policy.is_fetch and not self.is_ended and self._is_satisfied():
            self._end(None)
        if policy.stop_after and self.arrived >= policy.stop_after:
            self._end(None)
        self._refill(now)
        self._set_deadline()

    def _is_satisfied(self) -> bool:
        """Whether a fetch has what it wanted."""
        if self.arrived >= self.policy.max_messages:
            return True
        return self.policy.counts_bytes and not self.open and self.arrived > 0

    def _warn(self, error: PullError | None) -> None:
        if error is not None and self.policy.is_fragile:
            self._end(error)
        elif error is not None and not self.policy.is_fetch:
            self._output.append(Warn(error))

    def _back_off(self, now: float) -> None:
        self._ask_at = now + self._pause
        longest = self.policy.heartbeat or 5.0
        self._pause = min(2 * self._pause, max(longest, FIRST_PAUSE))

    def _end(self, error: JetStreamError | None) -> None:
        if self.is_ended:
            return
        self._lose_all()
        self.is_ended = True
        self.error = error
        self.deadline = math.inf
        self._output.append(Signal.ENDED)

    def _set_deadline(self) -> None:
        if self.is_ended:
            self.deadline = math.inf
            return
        due = min(self._finish_at, self._silent_at)
        for pull in self.open.values():
            due = min(due, pull.lost_at)
        if self._ask_at > -math.inf and self._is_linked and not self._is_stopped:
            due = min(due, self._ask_at) if self._is_low() else due
        self.deadline = due
