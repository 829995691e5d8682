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

from .._core import Courier, Draft, LonePull, PullInbox
from .._engine.pull import GRACE, Policy, first_ask
from .loop import Loop
from .pulling import Lanes, Pulling

_T = TypeVar("_T")


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
        # Without any time the server is still given a moment to say what it has.
        self.wait = policy.expires or 1.0
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
            expires=left,
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
    pulling = None
    try:
        is_complete = lone.run(lanes.loop.helm, finish_at)
        if not is_complete and lone.lane is None:
            is_complete = _run_on_new_lane(lanes, lone, finish_at)
        if not is_complete:
            pulling = converse(order, lone.inbox)
            _run_conversation(lanes.loop, lone, pulling, finish_at)
        return take()
    except BaseException:
        lone.put_back()
        raise
    finally:
        if lone.has_rest or pulling is not None:
            _leave(lanes, lone, pulling)


def _run_on_new_lane(lanes: Lanes, lone: LonePull, finish_at: float) -> bool:
    """Runs a pull that found no free lane; whether everything came."""
    try:
        lanes.loop.call(lambda: lanes.lend(lone))
    except BaseException:
        # A signal handler raised, perhaps before the thread at the helm came to it.
        lone.cut()
        raise
    return lone.lane is not None and lone.wait(lanes.loop.helm, finish_at)


def _run_conversation(
    loop: Loop, lone: LonePull, pulling: Pulling, finish_at: float
) -> None:
    """Goes on with a pull that has not brought everything."""
    pulling.start(finish_at, lone)
    loop.wait(pulling.over, finish_at)
    if not pulling.is_ended:
        pulling.stop()
    pulling.settle(finish_at)


def _leave(lanes: Lanes, lone: LonePull, pulling: Pulling | None) -> None:
    """Takes leave of the server; what nobody has taken is for the next fetch."""
    if lanes.loop.is_closing:
        return
    if pulling is not None:
        pulling.finish()
    if lone.lane is not None:
        lanes.loop.call(lambda: lanes.part_alone(lone))
    if lone.inbox.count:
        lanes.leftovers.gather(lone.inbox)
