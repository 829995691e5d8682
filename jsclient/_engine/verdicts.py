"""What a status means for its pull: one table for every operation."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..jetstream_errors import (
    BadPullError,
    ConsumerDeletedError,
    LeadershipChangedError,
    PullError,
    PullLimitError,
    PushConsumerError,
    RequiredApiLevelPullError,
    ServerShutdownError,
    UnpinnedError,
    UnreachableConsumerError,
)


class Verdict(Enum):
    """What a consume does when one of its pulls got such a status.

    A fetch ends with its pull, except when its server or its link goes away, or nobody
    answers for the consumer yet.
    """

    DONE = "done"  # the pull ended as planned: ask for more
    SIZE = "size"  # the next message is larger than what the pull had left
    AGAIN = "again"  # the pull was lost: ask again
    UNPIN = "unpin"  # we are not the pinned client any more: ask as a standby
    RETRY = "retry"  # refused for now: ask again after a pause
    LOOK_UP = "look up"  # the same, and see whether there still is a consumer
    RELINK = "relink"  # the server goes away: ask on the next link
    KEEP = "keep"  # the pull lives on
    # There is no consumer: over, unless one is waited for; its stream may be gone, too.
    GONE = "gone"
    FATAL = "fatal"  # the conversation is over


class Row(NamedTuple):
    """A line of the table."""

    code: int | None  # None: any
    prefix: str  # of the description, lower case
    verdict: Verdict
    # What a fetch ends with and a consume reports; None: nothing went wrong.
    error: type[PullError] | None
    is_over: bool = True  # nothing more can come of the pull


# First match wins.
_TABLE = (
    Row(404, "", Verdict.DONE, None),
    Row(408, "requests pending", Verdict.RETRY, None),
    Row(408, "", Verdict.DONE, None),
    Row(409, "batch completed", Verdict.DONE, None),
    Row(409, "consumer deleted", Verdict.GONE, ConsumerDeletedError),
    Row(409, "consumer is push based", Verdict.FATAL, PushConsumerError),
    Row(409, "exceeded max", Verdict.RETRY, PullLimitError),
    Row(409, "message size exceeds maxbytes", Verdict.SIZE, None),
    # What the old leader sent may still be under way.
    Row(409, "leadership change", Verdict.AGAIN, LeadershipChangedError, False),
    Row(409, "server shutdown", Verdict.RELINK, ServerShutdownError, False),
    # Servers of some releases say so and serve the pull nevertheless.
    Row(400, "bad request - not a ", Verdict.KEEP, BadPullError, False),
    Row(400, "", Verdict.FATAL, BadPullError),
    Row(412, "", Verdict.FATAL, RequiredApiLevelPullError),
    Row(423, "", Verdict.UNPIN, UnpinnedError),
    Row(503, "", Verdict.LOOK_UP, UnreachableConsumerError),
    Row(None, "", Verdict.RETRY, PullError, False),
)


def judge(code: int, description: str) -> Row:
    """The line of the table for a status."""
    text = description.lower()
    return next(
        row
        for row in _TABLE
        if row.code in (None, code) and text.startswith(row.prefix)
    )
