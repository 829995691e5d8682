"""A pull conversation with a consumer: how much to ask for, when, when it is over.

A conversation keeps a ledger of its open pulls. Two sums follow from it and from what
the user has not taken: `owed`, what open pulls may still bring, and `held`, what came
and waits. It never asks for more than `limit - owed - held`, in messages or in bytes,
and asks when owed + held has fallen to the threshold.

A pull ends by the first of: all of its messages came; all of its bytes came (the server
says nothing then); a status; silence for two heartbeats; its time was over and no
status came; the link was lost. Whatever ends it, exactly what the ledger still holds
for it is released: the pending counts of a status are not needed for that.

A pull that ended without a word of the server may have messages under way. So it is
*parting* until the server has heard that nobody listens, which takes a PONG: it stays
owed as long, and what it brings is held like everything else. So limits are kept to the
byte, and nothing that comes has to be dropped, although pulls get lost.

Silence is judged only while a pull is open, and by what arrived, not by what was
handled.

A conversation that fetches asks for what it wants, and again only if its link or its
server went away, or if the consumer allows no pull as long as the fetch. It may ask
first for what is there (`no_wait_first`, ADR-13): if that is something it is content,
else it asks again and waits. While nobody answers for the consumer it asks again too: a
new one, or one between two leaders, is there in a moment.
One that consumes goes on until it is stopped or hopeless. After a refusal it pauses,
longer each time, until a message or a heartbeat comes. One that is drained asks for
nothing more and ends when nothing more can come. Its open pulls are given up at once,
if the server delivers again what it sends in vain. Where it does not they live to their
end, which only the server can tell: it counts a message as delivered before it sends
it, and may drop it when nobody listens any more.

States: *idle* until `started`, then *running*, perhaps *draining*; *ended* once, with
an error or without.
Data and `now` come in. `brought`, `holds` and `heard` tell what came, in this order,
before any other input; whatever follows from it does so with that input. Outputs are
taken: requests, ends of pulls, warnings.
"""

from __future__ import annotations

import math

from ..errors import Error
from ..jetstream_errors import (
    LostPullError,
    MessageSizeError,
    MissedHeartbeatError,
    PullError,
    StreamDeletedError,
    StreamNotFoundError,
)
from .pull_terms import Ask, Close, Output, Policy, Signal, Warn
from .verdicts import Row, Verdict, judge

__all__ = [
    "MANY",
    "Ask",
    "Close",
    "Conversation",
    "Policy",
    "Pull",
    "Signal",
    "Warn",
    "first_ask",
]

FIRST_PAUSE = 0.1
# The longest pause of a conversation without heartbeats.
LAST_PAUSE = 5.0
# How long a server that shuts down has to close the link.
RELINK_PAUSE = 1.0
# How long to wait for word whether more than the consumer was deleted.
ENQUIRY = 0.5
# How long after its expiry a pull without a status is lost.
GRACE = 2.0
# How much earlier than a fetch its pull ends, so that we hear of it in time.
LEAD = 0.02
# With less time between them a heartbeat may well be late.
SHORTEST_HEARTBEAT = 0.05
# What stands for "any number of messages" beside a limit of bytes.
MANY = 1_000_000


class Pull:
    """One open pull: what was asked and what came of it."""

    __slots__ = (
        "asked_bytes",
        "asked_messages",
        "bytes",
        "early_until",
        "is_cut",
        "is_trial",
        "lost_at",
        "messages",
    )

    def __init__(
        self,
        messages: int,
        bytes_: int,
        *,
        early_until: float,
        lost_at: float,
        is_cut: bool = False,
        is_trial: bool = False,
    ) -> None:
        self.asked_messages = messages
        self.asked_bytes = bytes_
        self.early_until = early_until  # no end before that is as planned
        self.lost_at = lost_at
        self.is_cut = is_cut  # it ends before its fetch does; another may follow
        self.is_trial = is_trial  # it asks for what is there; another may follow
        self.messages = 0
        self.bytes = 0  # as the server charges them

    @property
    def owed_messages(self) -> int:
        """Messages that may still come."""
        left = self.asked_messages - self.messages
        return left if left > 0 else 0

    @property
    def owed_bytes(self) -> int:
        """Bytes that may still come."""
        left = self.asked_bytes - self.bytes
        return left if left > 0 else 0

    @property
    def is_spent(self) -> bool:
        """Whether it has brought all that it can."""
        return self.owed_messages == 0 or 0 < self.asked_bytes <= self.bytes


def new_ask(
    policy: Policy,
    number: int,
    batch: int,
    max_bytes: int,
    left: float,
    *,
    is_trial: bool = False,
) -> Ask:
    """A pull, which a fetch makes with so much time left."""
    expires, heartbeat = policy.expires, policy.heartbeat
    no_wait = policy.no_wait or is_trial
    if no_wait:
        expires = heartbeat = 0.0
    elif policy.is_fetch:
        expires = max(left - min(LEAD, 0.1 * left), 0.001)
        expires = min(expires, policy.expires_limit)
        heartbeat = min(heartbeat, expires / 2)
        if heartbeat < SHORTEST_HEARTBEAT:
            heartbeat = 0.0
    return Ask(number, batch, max_bytes, expires, heartbeat, no_wait)


def first_ask(policy: Policy) -> Ask:
    """The pull with which a fetch begins, which may bring all that it wants."""
    batch = min(policy.max_messages, policy.batch_limit or policy.max_messages)
    is_trial = policy.no_wait_first
    return new_ask(
        policy, 1, batch, policy.max_bytes, policy.expires, is_trial=is_trial
    )


class Conversation:
    """The machine; see the module's text."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.open: dict[int, Pull] = {}
        self._parting: dict[int, Pull] = {}  # given up; the server may not know it yet
        self.held_messages = 0
        self.held_bytes = 0
        self.arrived = 0  # messages since the beginning
        self.deadline = math.inf  # when tick() has work to do
        self.is_ended = False
        self.is_unanswered = True  # nothing whatever came from the server
        self.error: Error | None = None
        self._is_linked = False
        self.is_cut_short = False  # drained, but pulls were given up before their end
        self._is_stopped = False
        self._part_at: float | None = None  # when a drain gives up open pulls
        self._is_waiting = not policy.no_wait_first
        self._finish_at = math.inf  # of a fetch
        self._absence: PullError | None = None  # that a fetch tries to outlast
        self._deletion: PullError | None = None  # after which it only waits for word
        self._heartbeat = 0.0  # that the open pulls were promised
        self._heard_at = -math.inf  # or asked at, if that was later
        self._ask_at = -math.inf  # not before
        self._pause = FIRST_PAUSE
        self._last_pull = 0
        self._past_bytes = 0  # that pulls have brought of which nothing more comes
        self._needs_all_room = False  # the next message is larger than what was left
        self._told_size = False
        self._output: list[Output] = []

    # Sums -----------------------------------------------------------------------------

    @property
    def owed_messages(self) -> int:
        """Messages that pulls may still bring."""
        owed = 0
        for pull in self.open.values():
            owed += pull.owed_messages
        for pull in self._parting.values():
            owed += pull.owed_messages
        return owed

    @property
    def owed_bytes(self) -> int:
        """Bytes that pulls may still bring."""
        owed = 0
        for pull in self.open.values():
            owed += pull.owed_bytes
        for pull in self._parting.values():
            owed += pull.owed_bytes
        return owed

    # What came ------------------------------------------------------------------------

    def brought(self, pull: int, messages: int, bytes_: int) -> None:
        """So much came of a pull in all."""
        known = self.open.get(pull) or self._parting.get(pull)
        if known is not None:
            known.messages = messages
            known.bytes = bytes_
            if known.is_spent and pull in self.open:
                # At most the server says so, and that is not needed.
                self._close(pull, is_certain=True)

    def holds(self, messages: int, bytes_: int, arrived: int) -> None:
        """So much waits for the user, and so many messages came since the beginning."""
        if arrived > self.arrived:
            self._needs_all_room = False
            self._told_size = False
        self.held_messages = messages
        self.held_bytes = bytes_
        self.arrived = arrived

    def heard(self, at: float) -> None:
        """A message or a heartbeat came, the last one at that time."""
        self._heard_at = max(self._heard_at, at)
        self.is_unanswered = False
        self._pause = FIRST_PAUSE
        self._absence = None

    # Inputs ---------------------------------------------------------------------------

    def started(self, now: float, *, is_linked: bool, finish_at: float) -> None:
        """The conversation begins; a fetch ends at `finish_at` at the latest."""
        self._is_linked = is_linked
        self._finish_at = finish_at
        self._settle(now)

    def counted(self, now: float) -> None:
        """Messages came or were taken, as was told just now."""
        self._settle(now)

    def linked(self, now: float) -> None:
        """There is a new link: whatever was open on the old one is gone."""
        self._lose_all()
        self._forget_parting()
        self._is_linked = True
        self._ask_at = -math.inf
        self._pause = FIRST_PAUSE
        self._settle(now)

    def unlinked(self, now: float) -> None:
        """The link is gone, and every pull with it. That ends only a fragile one."""
        self._lose_all()
        self._forget_parting()
        self._is_linked = False
        self._settle(now)
        if self.policy.is_fragile:
            self._end(self._problem(LostPullError, "the link was lost"))

    def parted(self, pull: int, now: float) -> None:
        """The server has heard that a pull is over: nothing more can come of it."""
        known = self._parting.get(pull)
        if known is not None:
            self._past_bytes += known.bytes
            del self._parting[pull]
            self._was_trial(known)
        self._settle(now)

    def status(self, pull: int, code: int, description: str, now: float) -> None:
        """A status other than a heartbeat came for a pull."""
        known = self.open.get(pull)
        if known is not None:
            self._heard_at = now
            self.is_unanswered = False
            row = judge(code, description)
            error = None
            if row.error is not None:
                error = row.error(
                    code=code, description=description, doing=self.policy.doing
                )
            if row.verdict is Verdict.KEEP and not self.policy.is_fetch:
                self._warn(error)
            else:
                self._close(pull, is_certain=row.is_over)
                self._react(row, error, known, now)
        self._settle(now)

    def tick(self, now: float) -> None:
        """The time is `now`."""
        if now < self._finish_at:
            if now >= self._silent_at:
                self._fell_silent()
            for number, pull in list(self.open.items()):
                if now >= pull.lost_at and not self.is_ended:
                    self._close(number, is_certain=False)
                    if not self._was_trial(pull):
                        error = self._problem(LostPullError, "a pull got no answer")
                        self._lost(error)
        self._settle(now)

    def missing(self, error: Error) -> None:
        """The consumer is gone for certain, or not for us."""
        if self._deletion is not None:
            gone, error = error, self._deletion
            if isinstance(gone, StreamNotFoundError):
                error = self._problem(
                    StreamDeletedError, "the stream was deleted", code=409
                )
                error.__cause__ = gone
        self._end(error)

    def stopped(self) -> None:
        """The user wants nothing more."""
        self._end(self._deletion)

    def drained(self, now: float, part_at: float = math.inf) -> None:
        """The user wants no further pulls, but what open ones bring.

        If they live to their end they do so until `part_at` at the most.
        """
        self._is_stopped = True
        self._part_at = part_at if self.policy.awaits_ends else -math.inf
        self._settle(now)

    def take_output(self) -> list[Output]:
        """What is to be done, once."""
        output, self._output = self._output, []
        return output

    # Reactions ------------------------------------------------------------------------

    def _react(
        self, row: Row, error: PullError | None, ended: Pull, now: float
    ) -> None:
        """A status has ended a pull."""
        is_fetch, verdict = self.policy.is_fetch, row.verdict
        if verdict is Verdict.UNPIN:
            self._output.append(Signal.UNPINNED)
        if verdict is Verdict.GONE and self.policy.is_patient:
            verdict = Verdict.RETRY
        if verdict is Verdict.FATAL or (
            verdict is Verdict.GONE and self.policy.is_fragile
        ):
            self._end(error)
        elif verdict is Verdict.GONE:
            # A deleted stream says the same: whoever is asked in time knows better.
            self._is_stopped = True
            self._lose_all()
            self._deletion = error
            self._finish_at = min(self._finish_at, now + ENQUIRY)
            self._output.append(Signal.LOOK_UP)
        elif verdict is not Verdict.SIZE and not error and self._was_trial(ended):
            pass
        elif is_fetch and verdict is Verdict.LOOK_UP:
            self._absence = error
            self._output.append(Signal.LOOK_UP)
            self._back_off(now)
        elif is_fetch and verdict is Verdict.DONE and ended.is_cut:
            if now < ended.early_until:
                self._back_off(now)
        elif is_fetch and verdict is not Verdict.RELINK:
            if verdict is Verdict.SIZE and self.arrived == 0:
                error = self._too_large(ended)
            self._end(error)
        elif verdict is Verdict.SIZE:
            self._did_not_fit(ended, now)
        else:
            self._warn(error)
            if verdict is Verdict.LOOK_UP:
                self._output.append(Signal.LOOK_UP)
            if verdict is Verdict.RELINK:
                # Mostly our own link ends in a moment; else another server takes over.
                self._ask_at = max(self._ask_at, now + RELINK_PAUSE)
            elif verdict in (Verdict.RETRY, Verdict.LOOK_UP) or (
                # Do not run in circles.
                ended.messages == 0 and now < ended.early_until
            ):
                self._back_off(now)

    def _was_trial(self, ended: Pull) -> bool:
        """Whether the pull asked for what is there: if that is nothing, we wait."""
        if ended.is_trial and self.arrived:
            self._end(None)
        elif ended.is_trial:
            self._is_waiting = True
        return ended.is_trial

    def _did_not_fit(self, ended: Pull, now: float) -> None:
        """The next message was larger than what was left of a pull.

        A pull that brought something has just come to its end. If it brought nothing
        because others had taken a part of the room, asking again is of no use until
        they have left it. If it had all the room, the message can never fit.
        """
        if ended.messages == 0 and ended.asked_bytes < self.policy.max_bytes:
            self._needs_all_room = True
        elif ended.messages == 0:
            if not self._told_size:
                self._told_size = True
                self._warn(self._too_large(ended))
            self._back_off(now)

    def _too_large(self, ended: Pull) -> PullError:
        return self._problem(
            MessageSizeError,
            f"the next message is larger than {ended.asked_bytes} bytes",
            code=409,
        )

    def _fell_silent(self) -> None:
        """Two heartbeats were missed: whatever is open is lost."""
        error = self._problem(
            MissedHeartbeatError, f"nothing was heard for {2 * self._heartbeat:g} s"
        )
        self._lose_all()
        if self.policy.is_fetch:
            self._end(error)
        else:
            self._lost(error)

    def _lost(self, error: PullError) -> None:
        """The server was silent: old ones are, if there is no consumer any more."""
        self._warn(error)
        if not self.policy.is_fetch and not self.is_ended:
            self._output.append(Signal.LOOK_UP)

    def _problem(
        self, kind: type[PullError], description: str, *, code: int = 0
    ) -> PullError:
        return kind(code=code, description=description, doing=self.policy.doing)

    def _warn(self, error: PullError | None) -> None:
        if error is None or self.policy.is_fetch:
            return
        if self.policy.is_fragile:
            self._end(error)
        else:
            self._output.append(Warn(error))

    def _back_off(self, now: float) -> None:
        self._ask_at = max(self._ask_at, now + self._pause)
        self._pause = min(2 * self._pause, self.policy.heartbeat or LAST_PAUSE)

    # Conclusions ----------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Ends the conversation if it is complete, else asks for what is missing."""
        if self.is_ended:
            return
        if self._is_complete():
            self._end(None)
            return
        if now >= self._finish_at:
            self._end(self._deletion or self._absence)
            return
        if self._part_at is not None:
            if now >= self._part_at and self.open:
                self.is_cut_short = self.policy.awaits_ends
                self._lose_all()
            if not self.open and not self._parting:
                self._end(self._deletion)
                return
        if self._is_asking and now >= self._ask_at:
            self._ask_at = -math.inf
            batch, max_bytes = self._room()
            if batch > 0:
                self._ask(batch, max_bytes, now)
        self._set_deadline()

    def _is_complete(self) -> bool:
        """Whether everything came that was wanted."""
        policy = self.policy
        if not policy.is_fetch:
            return 0 < policy.stop_after <= self.arrived
        if self.arrived >= policy.max_messages:
            return True
        return policy.counts_bytes and self._came_bytes >= policy.max_bytes

    @property
    def _came_bytes(self) -> int:
        """Bytes that pulls have brought, other than those that are open."""
        came = self._past_bytes
        for pull in self._parting.values():
            came += pull.bytes
        return came

    @property
    def refill_at(self) -> int:
        """More is due when so much, or less, is owed and held; -1: never by taking.

        It counts bytes if the policy does.
        """
        policy = self.policy
        if self.is_ended or self._is_stopped or not self._is_linked or policy.is_fetch:
            return -1
        if policy.stop_after and (
            self.arrived + self.owed_messages >= policy.stop_after
        ):
            return -1
        if not policy.counts_bytes:
            return policy.threshold_messages
        return 0 if self._needs_all_room else policy.threshold_bytes

    @property
    def _is_asking(self) -> bool:
        """Whether it may ask, and so little is in view that more is due."""
        policy = self.policy
        if policy.is_fetch:
            is_free = not self.open and not self._parting
            return is_free and self._is_linked and not self._is_stopped
        if policy.counts_bytes:
            in_view = self.owed_bytes + self.held_bytes
        else:
            in_view = self.owed_messages + self.held_messages
        return in_view <= self.refill_at

    def _room(self) -> tuple[int, int]:
        """The messages, none perhaps, and the bytes that may be asked for."""
        policy = self.policy
        owed, max_bytes = self.owed_messages, 0
        if policy.is_fetch:
            batch = policy.max_messages - self.arrived
            if policy.counts_bytes:
                max_bytes = policy.max_bytes - self._came_bytes
        elif policy.counts_bytes:
            batch = MANY
            max_bytes = policy.max_bytes - self.owed_bytes - self.held_bytes
        else:
            batch = policy.max_messages - owed - self.held_messages
        if policy.stop_after:
            batch = min(batch, policy.stop_after - self.arrived - owed)
        return min(batch, policy.batch_limit or batch), max_bytes

    def _ask(self, batch: int, max_bytes: int, now: float) -> None:
        policy = self.policy
        number = self._last_pull + 1
        left = self._finish_at - now
        is_trial = not self._is_waiting
        ask = new_ask(policy, number, batch, max_bytes, left, is_trial=is_trial)
        is_cut = policy.is_fetch and ask.expires == policy.expires_limit
        lost_at = math.inf
        if is_trial or is_cut or not policy.is_fetch:
            # A consumer at its limits does not answer a pull that does not wait.
            lost_at = now + ask.expires + GRACE
        pull = Pull(
            batch,
            max_bytes,
            early_until=now + min(FIRST_PAUSE, ask.expires / 2),
            lost_at=lost_at,
            is_cut=is_cut,
            is_trial=is_trial,
        )
        # The ledger and what is done for it change together: no call stands between, in
        # which a signal handler could raise.
        self._last_pull = number
        self._heard_at = now
        self._heartbeat = ask.heartbeat
        self.open[number] = pull
        self._output.append(ask)

    def _close(self, pull: int, *, is_certain: bool) -> None:
        close = Close(pull, is_certain)
        if is_certain:
            self._past_bytes += self.open[pull].bytes
        else:
            self._parting[pull] = self.open[pull]
        del self.open[pull]
        self._output.append(close)

    def _lose_all(self) -> None:
        for pull in list(self.open):
            self._close(pull, is_certain=False)

    def _forget_parting(self) -> None:
        """Nothing comes of them any more, or nobody counts it."""
        self._past_bytes = self._came_bytes
        self._parting = {}

    def _end(self, error: Error | None) -> None:
        if not self.is_ended:
            self._lose_all()
            self._forget_parting()
            self.is_ended = True
            self.error = error
            self.deadline = math.inf
            self._output.append(Signal.ENDED)

    @property
    def _silent_at(self) -> float:
        """When the silence of the server means that its pulls are lost."""
        if not self.open or not self._heartbeat:
            return math.inf
        return self._heard_at + 2 * self._heartbeat

    def _set_deadline(self) -> None:
        due = min(self._finish_at, self._silent_at)
        if self._part_at is not None and self.open:
            due = min(due, self._part_at)
        for pull in self.open.values():
            due = min(due, pull.lost_at)
        if self._ask_at > -math.inf and self._is_asking:
            due = min(due, self._ask_at)
        self.deadline = due
