"""Fetches: so many messages of a consumer, in so much time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, overload

from . import errors
from ._core import Batch, BatchInbox, LonePull, Msg
from ._io.lone_pull import Order, run_fetch
from ._io.pulling import Lanes
from .jetstream_errors import MessageSizeError, MissedHeartbeatError

if TYPE_CHECKING:
    from .consumer import Consumer

# The first release that answers a pull from a consumer that is not there.
TELLS_MISSING = (2, 10, 26)
# How long a fetch whose time is over may still ask whether there is a consumer.
LAST_QUESTION = 0.08


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
    consumer: Consumer, lanes: Lanes, order: Order, lone: LonePull, finish_at: float
) -> FetchResult:
    """Runs a fetch to its end. Raises its error only when no message came."""

    def take() -> FetchResult:
        messages = lone.take_all()
        return FetchResult(messages, fetch_error(consumer, lone, len(messages)))

    return run_fetch(lanes, order, lone, consumer._converse, finish_at, take)


def fetch_after(
    lanes: Lanes,
    order: Order,
    finish_at: float,
    run: Callable[[Order, float], FetchResult],
) -> FetchResult:
    """A fetch that begins with what came too late for those before."""
    policy, leftovers = order.policy, lanes.leftovers
    lanes.await_leftovers(finish_at)
    found: list[Msg] = []
    error = None
    try:
        leftovers.take_into(found, policy.max_messages, policy.max_bytes)
        size = sum(msg.size for msg in found)
        rest = order.rest(len(found), size, finish_at - monotonic())
        if rest is not None:
            try:
                fresh = run(rest, finish_at)
                found.extend(fresh._messages)
                error = fresh.error
            except errors.Error as failure:
                if not found:
                    raise
                # That the next message is too large for the rest is no error.
                if not isinstance(failure, MessageSizeError):
                    error = failure
        return FetchResult(found, error)
    except BaseException:
        leftovers.put_back(found)
        raise


def fetch_batch(
    consumer: Consumer, lanes: Lanes, order: Order, inbox: BatchInbox, finish_at: float
) -> Batch:
    """Runs a fetch into columns to its end; an empty batch if nothing came."""
    lone = LonePull(lanes.pool, order.draft, inbox)

    def take() -> Batch:
        found = lone.take_batch()
        batch = Batch() if found is None else found
        batch.error = fetch_error(consumer, lone, len(batch))
        return batch

    return run_fetch(lanes, order, lone, consumer._converse, finish_at, take)


def fetch_error(consumer: Consumer, lone: LonePull, count: int) -> errors.Error | None:
    """Why a fetch ended early; raised if it brought nothing."""
    if lone.heir is None:
        return None
    error: errors.Error | None = lone.heir.error
    is_silence = error is None or isinstance(error, MissedHeartbeatError)
    is_silence = is_silence and lone.heir.is_unanswered and not lone.is_cut
    if error is None and not count and consumer._api.loop.live is None:
        error = errors.DisconnectedError("there was no link to the server in time")
    elif is_silence and lone.heir.has_time and consumer._api.is_before(TELLS_MISSING):
        error = consumer._find_missing(LAST_QUESTION) or error
    if error is not None and not count:
        raise error
    return error
