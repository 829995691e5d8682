"""Fetches: so many messages of a consumer, in so much time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TypeVar, overload

from . import errors
from ._core import Batch, BatchInbox, Msg, PullInbox
from ._io.leftovers import Leftovers
from ._io.lone_pull import LonePull, Order
from ._io.loop import Loop
from ._io.pulling import Pulling

_T = TypeVar("_T")

# Makes the conversation of a fetch that is not over with its first pull.
Converse = Callable[[], Pulling]


class FetchResult(Sequence[Msg]):
    """The messages of a fetch, possibly fewer than asked for, possibly none.

    `error` says why it ended early; None if there were no more or the time was over.
    """

    def __init__(self, messages: list[Msg], error: errors.Error | None) -> None:
        self._messages = messages
        self.error = error

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Msg: ...
    @overload
    def __getitem__(self, index: slice) -> list[Msg]: ...
    def __getitem__(self, index: int | slice) -> Msg | list[Msg]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Msg]:
        return iter(self._messages)

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error={self.error!r}"
        return f"<FetchResult of {len(self)} messages{error}>"


def fetch(
    loop: Loop, lone: LonePull, inbox: PullInbox, converse: Converse, timeout: float
) -> FetchResult:
    """Runs a fetch to its end. Raises its error only when no message came."""

    def take() -> list[Msg]:
        messages: list[Msg] = []
        while (msg := inbox.take()) is not None:
            messages.append(msg)
        return messages

    messages, pulling = run_fetch(loop, lone, converse, timeout, take)
    return FetchResult(messages, fetch_error(loop, pulling, len(messages)))


def fetch_after(
    loop: Loop,
    leftovers: Leftovers,
    order: Order,
    timeout: float,
    run: Callable[[Order, float], FetchResult],
) -> FetchResult:
    """A fetch that begins with what came too late for those before."""
    deadline = monotonic() + timeout
    policy = order.policy
    leftovers.await_all(loop, deadline)
    late = leftovers.take(policy.max_messages, policy.max_bytes)
    rest = order.rest(len(late), sum(msg.size for msg in late), deadline - monotonic())
    if rest is None:
        return FetchResult(late, None)
    try:
        found = run(rest, deadline - monotonic())
    except errors.Error as error:
        if not late:
            raise
        return FetchResult(late, error)
    except BaseException:
        leftovers.put_back(late)
        raise
    return FetchResult([*late, *found], found.error)


def fetch_batch(
    loop: Loop, lone: LonePull, inbox: BatchInbox, converse: Converse, timeout: float
) -> Batch:
    """Runs a fetch into columns to its end; an empty batch if nothing came."""

    def take() -> Batch:
        return inbox.take_batch() or Batch()

    batch, pulling = run_fetch(loop, lone, converse, timeout, take)
    batch.error = fetch_error(loop, pulling, len(batch))
    return batch


def run_fetch(
    loop: Loop,
    lone: LonePull,
    converse: Converse,
    timeout: float,
    take: Callable[[], _T],
) -> tuple[_T, Pulling | None]:
    """Asks, waits, takes what came, and takes leave of the server.

    What comes after that is left to the next fetch. Also returns the conversation, if
    one was needed.
    """
    now = monotonic()
    finish_at = now + timeout
    pulling = None
    try:
        if not lone.run(now, finish_at):
            pulling = converse()
            pulling.start(finish_at, lone)
            loop.wait(pulling.over, finish_at)
            if not pulling.is_ended:
                pulling.stop()
            pulling.settle(finish_at)
        return take(), pulling
    finally:
        if not loop.is_closing:
            if pulling is not None:
                pulling.finish()
            lone.leave()


def fetch_error(loop: Loop, pulling: Pulling | None, count: int) -> errors.Error | None:
    """Why a fetch ended early; raised if it brought nothing."""
    if pulling is None:
        return None
    error: errors.Error | None = pulling.error
    if error is None and not count and loop.live is None:
        error = errors.DisconnectedError("there was no link to the server in time")
    if error is not None and not count:
        raise error
    return error
