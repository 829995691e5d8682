"""A fetch that gets all that it asks for, without a conversation.

Nearly every fetch sends one pull and gets all of its messages. So the pull is sent, and
the thread waits for its lane, before there is a machine: that is the core's `LonePull`.
Whatever else happens, be it a status, silence, the loss of the link or the end of the
time, a `Pulling` takes the lane over as its open pull, and the machine decides what
follows, as for any conversation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from .. import errors
from .._core import Courier, Draft, LonePull, PullInbox
from .._engine.pull import GRACE, Policy, first_ask
from .pulling import Lanes, Pulling

_T = TypeVar("_T")

# How long a fetch without any time waits for what the server has: an answer that takes
# longer is for the next one, and the call is over a tenth of a second after it began.
MOMENT = 0.08


class Order:
    """What a fetch asks for; fetches that are alike share it."""

    __slots__ = ("draft", "fields", "policy", "subject", "wait")

    def __init__(
        self,
        subject: str,
        policy: Policy,
        fields: dict[str, int | str],
        courier: Courier,
    ) -> None:
        ask = first_ask(policy)
        self.subject = subject
        self.policy = policy
        self.fields = fields
        self.wait = policy.expires or MOMENT
        self.draft = Draft(
            subject,
            ask.body(fields),
            courier,
            batch=ask.batch,
            max_bytes=ask.max_bytes,
            limit=policy.max_messages,
            # After so much silence the pull is the machine's business.
            patience=GRACE if policy.no_wait_first else 2 * (ask.heartbeat or math.inf),
            # The pulls of a group carry a pin that may change.
            is_alone="group" not in fields,
        )

    def rest(self, messages: int, bytes_: int, left: float) -> Order | None:
        """What is to be asked for when so much of it came; None if that is nothing."""
        policy = self.policy._replace(
            max_messages=self.policy.max_messages - messages,
            max_bytes=max(0, self.policy.max_bytes - bytes_),
            expires=left if self.policy.expires else 0.0,
        )
        if left <= 0 or not policy.max_messages:
            return None
        if self.policy.counts_bytes and not policy.max_bytes:
            return None
        return Order(self.subject, policy, self.fields, self.draft.courier)


# Makes the conversation of a fetch that is not over with its first pull.
Converse = Callable[[Order, PullInbox], Pulling]


def run_fetch(
    lanes: Lanes,
    order: Order,
    lone: LonePull,
    converse: Converse,
    finish_at: float,
    take: Callable[[], _T],
) -> _T:
    """Asks, waits, takes what came, and takes leave of the server.

    What comes after that is left to the next fetch, and so is what was taken if an
    exception comes in its place. A conversation that was needed is the heir of the lone
    pull.
    """
    try:
        if not lone.run(lanes.loop.helm, finish_at):
            go_on(lanes, order, lone, converse, finish_at)
        return conclude(lanes, lone, take)
    except BaseException:
        # Here, for a further exception may come as soon as a function begins.
        lone.give_up()
        leave_later(lanes)
        raise


def conclude(lanes: Lanes, lone: LonePull, take: Callable[[], _T]) -> _T:
    """Takes what came, and takes leave of the server."""
    found = take()
    if lone.has_rest and not lanes.loop.is_closing:
        lanes.loop.call(lambda: lanes.leave(lone))
    return found


def leave_later(lanes: Lanes) -> None:
    """The next fetch, or the keeper, takes leave for a fetch that was given up."""
    if not lanes.loop.is_closing:
        lanes.loop.abandoned(lanes.leave_all)


def go_on(
    lanes: Lanes, order: Order, lone: LonePull, converse: Converse, finish_at: float
) -> None:
    """A pull that found no free lane is sent; one that is not enough has an heir."""
    loop = lanes.loop
    if lone.lane is None:
        loop.call(lambda: lanes.lend(lone))
        if lone.wait(loop.helm, finish_at):
            return
    lone.heir = pulling = converse(order, lone.inbox)
    try:
        pulling.start(finish_at, lone)
        loop.wait(pulling.over, finish_at)
    except errors.ForkedError:
        raise
    except errors.ConnectionClosedError as error:
        # It ends the fetch like any other error: what came is the user's.
        pulling.closed(error)
    if not pulling.is_ended:
        pulling.stop()
    pulling.settle(finish_at)
