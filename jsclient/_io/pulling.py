"""Pull conversations on a connection: the subscriptions and requests of the machine.

A `Lanes` is the pool of one consumer's subscriptions: pulls are answered on wildcard
inboxes, one open pull each, so that the subscription says which pull paid for a
message. A lane goes back to the pool when its pull has certainly ended, and is given up
otherwise. With a new link everything begins anew on a new inbox: the server may still
serve old pulls.

A `Pulling` is one conversation. Everything in it happens at the helm.
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
from ..jetstream_errors import JetStreamError, PullError
from .leftovers import Leftovers
from .loop import Loop


class Lanes:
    """The subscriptions on which the pulls of one consumer are answered."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.pool = LanePool(self._new_prefix())
        self.pins: dict[str, str] = {}  # of priority groups whose pinned client we are
        self.leftovers = Leftovers()
        self._count = 0
        loop.watchers.append(self)

    def _new_prefix(self) -> str:
        return f"{self.loop.options.inbox_prefix}.{unique_name()}"

    def take(self, user: Pulling | None) -> Lane:
        """A lane for one pull of the user; None is a thread that waits for it alone."""
        return self.pool.take(user) or self._add(user)

    def _add(self, user: Pulling | None) -> Lane:
        lane = Lane()
        self._count += 1
        sid = self.loop.subscribe(
            f"{self.pool.prefix}.{self._count}.*",
            None,
            lane,
            on_notice=lambda: self._noticed(lane),
        )
        lane.assign(sid, self._count)
        self.pool.users[lane] = user
        return lane

    def lend(self, lone: LonePull) -> None:
        """Sends a lone pull that found no free lane."""
        self.loop.check_open()
        if lone.may_ask(self.loop.outbox) and self.loop.live is not None:
            lone.ask(self.take(None), self.loop.outbox)

    def hand_over(self, lane: Lane, user: Pulling) -> bool:
        """The lane has another user from now on; False if it was lost."""
        if lane not in self.pool.users:
            return False
        self.pool.users[lane] = user
        lane.is_lone = False
        return True

    def _noticed(self, lane: Lane) -> None:
        user = self.pool.users.get(lane)
        if user is not None:
            user.noticed(lane)

    def part(self, lane: Lane) -> None:
        """The pull may live on: what is under way for it still counts."""
        lane.close()
        if lane in self.pool.users:
            self.loop.stop_interest(lane.sid)

    def part_alone(self, lone: LonePull) -> None:
        """A lone pull is over, at the helm, before everything came."""
        lane = lone.hand_over()
        if lane is not None and lane.is_spent:
            self.pool.give_back(lane)
        elif lane is not None:
            self.part(lane)
            self.leave(lone.inbox, [lane])

    def leave(self, inbox: PullInbox, lanes: list[Lane]) -> None:
        """A fetch has returned without these: what they bring is for the next one."""
        if not any(lane in self.pool.users for lane in lanes):
            return

        def passed() -> None:
            for lane in lanes:
                self.drop(lane)
            self.leftovers.settle(inbox)

        self.leftovers.expect(inbox, self.loop.fence(passed))

    def drop(self, lane: Lane) -> None:
        """Nobody waits for anything on this lane any more."""
        if lane in self.pool.users:
            del self.pool.users[lane]
            lane.retire()
            self.loop.forget(lane.sid)

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

    def orphan(self) -> None:
        """Nobody holds the consumer any more. Called by a finalizer: takes no lock."""
        if self in self.loop.watchers:
            self.loop.watchers.remove(self)
        free = self.pool.free
        while free:
            self.loop.orphaned(free.pop().sid)


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
        self._parted: list[tuple[Lane, Gate | None]] = []
        self._to_do: deque[Output] = deque()
        self._heard = 0
        self._is_settled = False
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

    # What users' threads call ---------------------------------------------------------

    def start(self, finish_at: float = math.inf, lone: LonePull | None = None) -> None:
        """Begins, or takes a lone pull over; a fetch ends at that time at the most."""

        def begin() -> None:
            loop = self._loop
            loop.check_open()
            loop.watchers.append(self)
            loop.machines.append(self)
            is_linked = loop.live is not None and loop.outbox.is_up
            lane = None if lone is None else lone.hand_over()
            if lane is None or lone is None:
                now = monotonic()
                self._sync(now)
                self._machine.started(now, is_linked=is_linked, finish_at=finish_at)
                self._act()
            else:
                self._take_over(lane, lone.asked_at, finish_at, is_linked=is_linked)
            if lone is not None:
                lone.heir = self
                if lone.is_cut:
                    self.end()

        self._loop.call(begin)

    def _take_over(
        self, lane: Lane, asked_at: float, finish_at: float, *, is_linked: bool
    ) -> None:
        """Goes on as if the pull of the lane were its own first one."""
        is_alive = self._lanes.hand_over(lane, self)
        self._open[1] = lane
        self._machine.started(asked_at, is_linked=True, finish_at=finish_at)
        self._act()
        if is_alive:
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

    def drain(self, deadline: float) -> bool:
        """Ends it with everything that is under way; whether that was in time."""
        fences: list[Gate] = []

        def begin() -> None:
            if self.is_ended:
                return
            self._machine.drained()
            self._act()
            fences.extend(fence for _, fence in self._parted if fence is not None)

        self._loop.call(begin)
        in_time = all(self._loop.wait(fence, deadline) for fence in fences)
        self.stop()
        return in_time

    def settle(self, deadline: float) -> None:
        """Waits for what the server sent before it heard that the pull is over."""
        if self._parted and monotonic() < deadline:
            with contextlib.suppress(errors.ConnectionError):
                self._is_settled = self._loop.wait(self._loop.fence(), deadline)

    def finish(self) -> None:
        """Takes leave of pulls that did not end for certain."""

        def leave() -> None:
            self._take_pin()
            if self._is_settled:
                self._drop_parted()
            else:
                self._lanes.leave(self.inbox, [lane for lane, _ in self._parted])
                self._parted.clear()

        if not self.is_ended:
            self.stop()
        if self._parted:
            self._loop.call(leave)

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

    def closed(self, error: errors.Error) -> None:
        """The connection is closed: readers are told at once.

        Whoever closes it may not be at the helm; the keeper tells once more, later.
        """
        if not self.over.is_open:
            self._closed_error = error
            self.inbox.end(error)
            self.over.open()
        self._loop.helm.run(self.end)

    def missing(self, error: JetStreamError) -> None:
        """The consumer is gone for certain."""

        def end() -> None:
            self._machine.missing(error)
            self._act()

        self._loop.call(end)

    def _sync(self, now: float) -> None:
        """Tells the machine what has come meanwhile."""
        inbox, machine = self.inbox, self._machine
        for pull, lane in self._open.items():
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
            self._do(self._to_do[0])
            if self._to_do:
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
                    self._part(lane)
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

    def _part(self, lane: Lane) -> None:
        """What the server sent before it hears of the end is still taken."""
        self._parted = [
            (parted, fence)
            for parted, fence in self._parted
            if fence is None or not self._drop_behind(parted, fence)
        ]
        self._lanes.part(lane)
        # At the end of a conversation all are dropped at once.
        self._parted.append((lane, None if self.is_ended else self._loop.fence()))

    def _drop_behind(self, lane: Lane, fence: Gate) -> bool:
        if fence.is_open:
            self._lanes.drop(lane)
        return fence.is_open

    def _drop_parted(self) -> None:
        for lane, _ in self._parted:
            self._lanes.drop(lane)
        self._parted.clear()

    def _leave(self) -> None:
        loop = self._loop
        if self in loop.machines:
            loop.machines.remove(self)
        if self in loop.watchers:
            loop.watchers.remove(self)
        if not self._machine.policy.is_fetch:
            self._drop_parted()
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
