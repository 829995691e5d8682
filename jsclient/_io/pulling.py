"""Pull conversations on a connection: the subscriptions and requests of the machine.

A `Lanes` is the pool of one consumer's subscriptions: pulls are answered on wildcard
inboxes, one open pull each, so that the subscription says which pull paid for a
message. A lane goes back to the pool when its pull has certainly ended, and is given up
otherwise. With a new link everything begins anew on a new inbox: the server may still
serve old pulls.

A `Pulling` is one conversation. Everything in it happens at the helm.

A signal handler may raise in the middle of all that. So a lane has its user from before
it is subscribed until nothing of it is left, a user that ends gives up every lane that
it has, and each step of that may be repeated. Fetches that an exception has ended are
kept until it is done, by the next fetch or by the keeper, in which no handler runs.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

from .. import errors
from .._core import Courier, Gate, Lane, LanePool, LonePull, PullInbox
from .._engine.arguments import unique_name
from .._engine.pull import Ask, Close, Conversation, Policy, Signal, Warn
from .._engine.pull_terms import Output
from ..jetstream_errors import PullError
from .leftovers import Leftovers
from .loop import Loop

# How long before the end of its time a drain gives up pulls that still live.
PARTING = 0.5


class Lanes:
    """The subscriptions on which the pulls of one consumer are answered."""

    def __init__(self, loop: Loop, subject: str) -> None:
        self.loop = loop
        self.subject = subject  # to which the pulls are sent
        self.pool = LanePool(self._new_prefix())
        self.pins: dict[str, str] = {}  # of priority groups whose pinned client we are
        self.leftovers = Leftovers(self.pool.left, self.pool.late)
        self._count = 0
        loop.watchers.append(self)

    def _new_prefix(self) -> str:
        return f"{self.loop.options.inbox_prefix}.{unique_name()}"

    def take(self, user: Pulling | LonePull) -> Lane:
        """A lane for one pull of the user."""
        return self.pool.take(user) or self._add(user)

    def _add(self, user: Pulling | LonePull) -> Lane:
        lane = Lane()
        self._count += 1
        lane.assign(self.loop.table.new_sid(), self._count)
        self.pool.users[lane] = user
        self.loop.subscribe(
            f"{self.pool.prefix}.{lane.number}.*",
            None,
            lane,
            on_notice=lambda: self._noticed(lane),
            asked=self.subject,
            on_refused=lambda error: self._refused(lane, error),
            sid=lane.sid,
        )
        return lane

    def lend(self, lone: LonePull) -> None:
        """Sends a lone pull that found no free lane."""
        self.loop.check_open()
        if lone.may_ask(self.loop.outbox) and self.loop.live is not None:
            lone.ask(self.take(lone), self.loop.outbox)

    def hand_over(self, lane: Lane, user: Pulling) -> None:
        """The lane has another user from now on, unless it was lost."""
        if lane in self.pool.users:
            self.pool.users[lane] = user
        lane.is_lone = False

    def _noticed(self, lane: Lane) -> None:
        user = self.pool.users.get(lane)
        if isinstance(user, Pulling):
            user.noticed(lane)

    def _refused(self, lane: Lane, error: errors.Error) -> None:
        """The server may not take the pull of the lane, or not answer on it."""
        user = self.pool.users.get(lane)
        if isinstance(user, Pulling):
            user.missing(error)
        elif user is not None:
            # Its thread goes on with a conversation, which is refused in its turn.
            self.part(lane)
            self.drop(lane)
            lane.lose()

    def part(self, lane: Lane) -> None:
        """The pull may live on: what is under way for it still counts."""
        lane.close()
        self.loop.stop_interest(lane.sid)

    def drop(self, lane: Lane) -> None:
        """Nobody waits for anything on this lane any more."""
        if lane in self.pool.users:
            self.loop.forget(lane.sid)
            lane.retire()
            self.pool.users.pop(lane, None)

    def _lanes_of(self, *users: object) -> list[Lane]:
        # Other threads take lanes and give them back meanwhile.
        return [lane for lane, user in list(self.pool.users.items()) if user in users]

    def dismiss(self, user: Pulling) -> None:
        """It has ended: what its lanes still bring is left to the server."""
        for lane in self._lanes_of(user):
            self.part(lane)
            self.drop(lane)

    def leave(self, lone: LonePull) -> None:
        """A fetch is over: what its pulls still bring is for the next one. At the helm.

        All of it may be repeated.
        """
        heir = lone.heir
        if heir is not None:
            heir.end()
        lanes = self._lanes_of(lone, heir)

        def passed() -> None:
            for lane in lanes:
                self.drop(lane)
            self.leftovers.settle(lone)

        for lane in lanes:
            self.part(lane)
        if lanes and (heir is None or not heir.is_settled):
            self.leftovers.expect(lone, self.loop.fence(passed))
        else:
            passed()

    def leave_all(self) -> None:
        """Takes leave for fetches that an exception has ended."""
        while not self.loop.is_closing and self._to_leave():
            self.loop.call(self._leave_all)

    def _leave_all(self) -> None:
        for lone in self._to_leave():
            self.leave(lone)

    def _to_leave(self) -> list[LonePull]:
        return [lone for lone in list(self.pool.left) if lone.settled is None]

    def await_leftovers(self, deadline: float) -> None:
        """Waits until what is late for fetches has come, at most until then."""
        self.leave_all()
        self.leftovers.await_all(self.loop, deadline)

    def linked(self, now: float) -> None:
        """Nothing to do: lanes are made when they are needed."""

    def unlinked(self, now: float) -> None:
        """The lanes of the old link are not subscribed again."""
        for lane in self.pool.renew(self._new_prefix()):
            self.loop.forget(lane.sid)
        self.leftovers.settle_all()
        self._count = 0

    def closed(self, error: errors.Error) -> None:
        """The connection is closed, and its subscriptions are gone."""
        # Whoever closes it may not be at the helm; the keeper tells once more, later.
        self.loop.helm.run(lambda: self.unlinked(0.0))
        # The collector does not see that messages refer to the loop, which has us.
        self.leftovers.clear()

    def orphan(self) -> None:
        """Nobody holds the consumer any more. Called by a finalizer: takes no lock."""
        if self in self.loop.watchers:
            self.loop.watchers.remove(self)
        if self.pool.free or self.pool.left:
            self.loop.abandoned(self._dissolve)

    def _dissolve(self) -> None:
        self.leave_all()
        while (lane := self.pool.dismiss()) is not None:
            self.loop.unsubscribe(lane.sid)


class Pulling:
    """One conversation with a consumer; see the module's text.

    `inbox` has its messages, `over` opens when it has ended; `error` says why.
    """

    def __init__(
        self,
        loop: Loop,
        lanes: Lanes,
        *,
        subject: str,
        policy: Policy,
        courier: Courier,
        fields: Mapping[str, int | str],
        is_pinned: bool = False,
        on_warning: Callable[[PullError], None] | None = None,
        look_up: Callable[[Pulling], None] | None = None,
        inbox: PullInbox | None = None,
    ) -> None:
        self.inbox = PullInbox(courier) if inbox is None else inbox
        self.over = Gate()
        self.deadline = math.inf
        self._loop = loop
        self._lanes = lanes
        self._subject = subject
        self._machine = Conversation(policy)
        self._fields = dict(fields)
        self._is_pinned = is_pinned
        self._group = str(fields.get("group", ""))
        self._on_warning = on_warning
        self._look_up = look_up
        self._asked: object = None  # last, as `_body` says it; most pulls are alike
        self._body = b""
        self._open: dict[int, Lane] = {}
        self._parting: dict[int, Lane] = {}  # given up; messages may be under way
        self._to_do: deque[Output] = deque()
        self._heard = 0
        self.is_settled = False  # all that can come of its pulls has come
        self._closed_error: errors.Error | None = None
        if most := policy.max_messages if policy.is_fetch else policy.stop_after:
            # What comes beyond that, after all, is left to the server.
            self.inbox.set_limit(most)
        if not policy.is_fetch:
            self.inbox.counts_bytes = policy.counts_bytes
            self.inbox.on_due = self._take_note

    @property
    def error(self) -> errors.Error | None:
        """What ended it, None if nothing went wrong."""
        return self._machine.error or self._closed_error

    @property
    def is_ended(self) -> bool:
        """Whether it asks for nothing more."""
        return self._machine.is_ended or self.over.is_open

    @property
    def has_time(self) -> bool:
        """Whether it may wait, and not only ask for what is there."""
        return self._machine.policy.expires > 0

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing whatever came from the server."""
        return self._machine.is_unanswered

    # What users' threads call ---------------------------------------------------------

    def start(self, finish_at: float = math.inf, lone: LonePull | None = None) -> None:
        """Begins, or takes a lone pull over; a fetch ends at that time at the most."""

        def begin() -> None:
            loop = self._loop
            loop.check_open()
            if self.is_ended or (lone is not None and lone.is_given_up):
                return
            if self not in loop.watchers:
                loop.watchers.append(self)
            if self not in loop.machines:
                loop.machines.append(self)
            is_linked = loop.live is not None and loop.outbox.is_up
            if lone is not None and lone.lane is not None:
                self._lanes.hand_over(lone.lane, self)
                self._open[1] = lone.lane
                lone.hand_over()
            if lone is not None and 1 in self._open:
                self._take_over(lone.asked_at, finish_at, is_linked=is_linked)
            else:
                now = monotonic()
                self._sync(now)
                self._machine.started(now, is_linked=is_linked, finish_at=finish_at)
                self._act()
            if lone is not None and lone.is_cut:
                self.end()

        self._loop.call(begin)

    def _take_over(self, asked_at: float, finish_at: float, *, is_linked: bool) -> None:
        """Goes on with a pull that was sent before as its own first one."""
        lane = self._open[1]
        self._machine.started(asked_at, is_linked=True, finish_at=finish_at)
        self._act()
        if lane in self._lanes.pool.users:
            self.noticed(lane)
        else:
            now = monotonic()
            self.unlinked(now)
            if is_linked:
                self.linked(now)

    def stop(self) -> None:
        """Ends it; messages that were not taken are left to the server."""
        if not self.over.is_open:
            self._loop.call(self.end)

    def end(self) -> None:
        """The same, at the helm."""
        self._take_pin()
        self._machine.stopped()
        self._act()

    def abandon(self) -> None:
        """Nobody holds it any more: the keeper stops it. For finalizers."""
        if not self.over.is_open and not self._loop.is_closing:
            self._loop.abandoned(self.stop)

    def tell_errors(self) -> None:
        """That is how it is: errors that do not end it are told as events."""

    def stop_asking(self, deadline: float) -> None:
        """Begins to drain it, which is to be over by the deadline."""

        def begin() -> None:
            now = monotonic()
            # The server is to hear of it in time that pulls are given up.
            part_at = deadline - min(PARTING, 0.1 * max(deadline - now, 0.0))
            self._sync(now)
            self._machine.drained(now, part_at)
            self._act()

        self._loop.call(begin)

    def drain(self, deadline: float) -> bool:
        """Ends it with everything that is under way; whether that was in time."""
        self.stop_asking(deadline)
        in_time = self._loop.wait(self.over, deadline)
        self.stop()
        return in_time and not self._machine.is_cut_short

    def settle(self, deadline: float) -> None:
        """Waits for what the server sent before it heard that the pull is over."""
        if self._parting and monotonic() < deadline:
            with contextlib.suppress(errors.ConnectionError):
                self.is_settled = self._loop.wait(self._loop.fence(), deadline)

    def _take_note(self) -> None:
        """So much was taken that more is due."""
        self.inbox.is_due = False
        try:
            self._loop.call(self._refill)
        except BaseException:
            # A signal handler raised, perhaps before anything was asked for.
            self.inbox.is_due = True
            raise

    # What happens at the helm ---------------------------------------------------------

    def _refill(self) -> None:
        now = monotonic()
        self._sync(now)
        self._machine.counted(now)
        self._act()

    def noticed(self, lane: Lane) -> None:
        """A status came on a lane, or everything that was wanted."""
        now = monotonic()
        self._sync(now)
        pull = next((pull for pull, known in self._open.items() if known is lane), None)
        while lane.statuses:
            msg = lane.statuses[0]
            if pull is not None:
                self._machine.status(pull, msg.status or 0, msg.description or "", now)
            if lane.statuses:
                lane.statuses.popleft()
        self._machine.counted(now)
        self._act()

    def tick(self, now: float) -> None:
        """The machine's clock."""
        self._sync(now)
        self._machine.tick(now)
        self._act()

    def linked(self, now: float) -> None:
        """There is a new link: pull on it, and see whether the consumer lives."""
        self._sync(now)
        self._machine.linked(now)
        self._act()
        is_fetch = self._machine.policy.is_fetch
        if self._look_up is not None and not self.is_ended and not is_fetch:
            self._look_up(self)

    def unlinked(self, now: float) -> None:
        """The link is gone, and its pulls."""
        self._sync(now)
        self._machine.unlinked(now)
        self._act()
        self._release_parting()
        self._parting.clear()

    def closed(self, error: errors.Error) -> None:
        """The connection is closed: readers are told at once.

        Whoever closes it may not be at the helm; the keeper tells once more, later.
        """
        if not self.over.is_open:
            self._closed_error = error
            self.inbox.end(error)
            self.over.open()
        self._loop.helm.run(self.end)

    def missing(self, error: errors.Error) -> None:
        """The consumer is gone for certain, or not for us."""

        def end() -> None:
            self._machine.missing(error)
            self._act()

        self._loop.call(end)

    def _sync(self, now: float) -> None:
        """Tells the machine what has come meanwhile."""
        inbox, machine = self.inbox, self._machine
        for lanes in (self._open, self._parting):
            for pull, lane in lanes.items():
                machine.brought(pull, lane.messages, lane.bytes)
        machine.holds(inbox.count, inbox.bytes, inbox.arrived)
        if inbox.heard != self._heard:
            self._heard = inbox.heard
            machine.heard(now - inbox.silence)
        self._take_pin()

    def _take_pin(self) -> None:
        """Every pull of the consumer says from now on whose pin it has."""
        if self.inbox.pin is not None:
            self._lanes.pins[self._group] = self.inbox.pin
            self.inbox.pin = None

    def _act(self) -> None:
        """Does what the machine asks for.

        Each thing is put away only after it was done, and may be done twice: when an
        exception of a signal handler comes in between, the next tick goes on.
        """
        self.deadline = -math.inf
        self._to_do.extend(self._machine.take_output())
        while self._to_do:
            first = self._to_do[0]
            self._do(first)
            # What it led to may have put it away already.
            if self._to_do and self._to_do[0] is first:
                self._to_do.popleft()
        self.deadline = self._machine.deadline
        self.inbox.threshold = self._machine.refill_at

    def _do(self, output: Output) -> None:
        match output:
            case Ask():
                self._ask(output)
            case Close(pull, is_certain):
                lane = self._open.get(pull)
                if lane is not None and is_certain:
                    self._lanes.pool.give_back(lane)
                elif lane is not None:
                    self._part(pull, lane)
                self._open.pop(pull, None)
            case Warn(error):
                if self._on_warning is not None:
                    self._on_warning(error)
            case Signal.UNPINNED:
                self._lanes.pins.pop(self._group, None)
            case Signal.LOOK_UP:
                if self._look_up is not None:
                    self._look_up(self)
            case Signal.ENDED:
                self._leave()

    def _part(self, pull: int, lane: Lane) -> None:
        """What the server sent before it hears of the end is still taken."""
        self._parting[pull] = lane
        self._loop.stop_interest(lane.sid)
        # At the end of a conversation all are dropped at once.
        if not self.is_ended:
            self._loop.fence(lambda: self._parted(pull))

    def _parted(self, pull: int) -> None:
        """The server has heard of it. All of this may be repeated."""
        lane = self._parting.get(pull)
        if lane is not None:
            now = monotonic()
            self._sync(now)
            self._lanes.drop(lane)
            self._machine.parted(pull, now)
            self._act()
            self._parting.pop(pull, None)

    def _release_parting(self) -> None:
        """Nothing of them is owed any more."""
        for lane in list(self._parting.values()):
            lane.close()

    def _leave(self) -> None:
        loop = self._loop
        self._release_parting()
        if self in loop.machines:
            loop.machines.remove(self)
        if self in loop.watchers:
            loop.watchers.remove(self)
        if not self._machine.policy.is_fetch:
            self._lanes.dismiss(self)
        # No cycles: what it held for the user goes when the user lets go of it.
        self.inbox.on_due = None
        self._look_up = None
        self.inbox.end(self._machine.error)
        self.over.open()

    def _ask(self, ask: Ask) -> None:
        loop = self._loop
        lane = self._open.get(ask.pull)
        if lane is not None and lane.is_asked:
            loop.alert()  # a signal handler raised when it was just sent
            return
        if lane is None:
            lane = self._open[ask.pull] = self._lanes.take(self)
        lane.is_pinned = self._is_pinned
        lane.close()  # a signal handler raised before it was sent
        reply = self._lanes.pool.new_reply(lane)
        lane.open(self.inbox, reply, ask.batch, ask.max_bytes)
        pin = self._lanes.pins.get(self._group)
        if (ask[1:], pin) != self._asked:
            fields = self._fields if pin is None else {**self._fields, "id": pin}
            self._body = ask.body(fields)
            self._asked = (ask[1:], pin)
        try:
            if lane.ask(loop.outbox, self._subject, self._body):
                loop.alert()
        except (errors.DisconnectedError, errors.ConnectionClosedError):
            pass  # the watchers are told in a moment
