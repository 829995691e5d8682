"""A fetch that gets all that it asks for, without a conversation.

Nearly every fetch sends one pull and gets all of its messages. So the pull is sent, and
the thread waits for its lane, before there is a machine. Whatever else happens, be it a
status, silence, the loss of the link or the end of the time, a `Pulling` takes the lane
over as its open pull, and the machine decides what follows, as for any conversation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .. import errors
from .._core import Courier, Lane, PullInbox
from .._engine.pull import GRACE, Ask, Policy, first_ask
from .loop import Loop
from .pulling import Lanes, Pulling


class Order(NamedTuple):
    """What a fetch asks for; fetches that are alike share it."""

    subject: str
    policy: Policy
    fields: dict[str, int | str]
    courier: Courier
    ask: Ask
    body: bytes

    @classmethod
    def of(
        cls,
        subject: str,
        policy: Policy,
        fields: dict[str, int | str],
        courier: Courier,
    ) -> Order:
        """The order of a fetch with this policy and further fields."""
        ask = first_ask(policy)
        return cls(subject, policy, fields, courier, ask, ask.body(fields))

    def rest(self, messages: int, bytes_: int, left: float) -> Order | None:
        """What is to be asked for when so much of it came; None if that is nothing."""
        policy = self.policy._replace(
            max_messages=self.policy.max_messages - messages,
            max_bytes=max(0, self.policy.max_bytes - bytes_),
            expires=left,
        )
        if left <= 0 or not policy.max_messages:
            return None
        if self.policy.counts_bytes and not policy.max_bytes:
            return None
        return Order.of(self.subject, policy, self.fields, self.courier)

    @property
    def patience(self) -> float:
        """After how much silence the pull is the machine's business."""
        if self.policy.no_wait_first:
            return GRACE
        return 2 * (self.ask.heartbeat or math.inf)


class LonePull:
    """One pull and the thread that waits for all of it."""

    def __init__(
        self, loop: Loop, lanes: Lanes, order: Order, inbox: PullInbox
    ) -> None:
        self.asked_at = -math.inf
        self.heir: Pulling | None = None  # who has taken over
        self.is_cut = False
        self._loop = loop
        self._lanes = lanes
        self._order = order
        self._inbox = inbox
        self._lane: Lane | None = None
        inbox.set_limit(order.policy.max_messages)

    def run(self, now: float, finish_at: float) -> bool:
        """Asks and waits; whether everything came. False also when one cannot ask."""
        self.asked_at = now
        if "group" in self._order.fields:
            return False  # its pulls carry a pin that may change
        self._loop.call(self._ask)
        lane = self._lane
        if lane is None:
            return False
        self._loop.wait(lane, min(finish_at, now + self._order.patience))
        return lane.is_spent

    def _ask(self) -> None:
        loop, order = self._loop, self._order
        loop.check_open()
        if self.is_cut or loop.live is None or not loop.outbox.is_up:
            return
        lane = self._lane = self._lanes.take(None)
        lane.open(
            self._inbox,
            self._lanes.new_reply(lane),
            order.ask.batch,
            order.ask.max_bytes,
        )
        lane.is_lone = True
        try:
            if lane.ask(loop.outbox, order.subject, order.body):
                loop.alert()
        except (errors.DisconnectedError, errors.ConnectionClosedError):
            return  # the lane is lost in a moment

    def hand_over(self) -> Lane | None:
        """Its lane, which belongs to the caller from now on; None if it has none."""
        lane, self._lane = self._lane, None
        return lane

    def cut(self) -> None:
        """Ends the fetch from another thread: it returns what came until now."""
        self._loop.call(self._cut)

    def _cut(self) -> None:
        self.is_cut = True
        if self._lane is not None:
            self._lane.lose()
        elif self.heir is not None:
            self.heir.end()

    def leave(self) -> None:
        """Takes leave of the server; what nobody has taken is for the next fetch."""
        if self._lane is not None:
            self._loop.call(self._leave)
        if self._inbox.count:
            self._lanes.leftovers.gather(self._inbox)

    def _leave(self) -> None:
        lane = self.hand_over()
        if lane is not None and lane.is_spent:
            self._lanes.give_back(lane)
        elif lane is not None:
            self._lanes.part(lane)
            self._lanes.leave(self._inbox, [lane])
