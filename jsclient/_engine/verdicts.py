"""What a status means for the pull that it ends: one table for every operation."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..jetstream_errors import (
    BadPullError,
    ConsumerDeletedError,
    LeadershipChangedError,
    MessageSizeError,
    PullError,
    PullLimitError,
    PushConsumerError,
    RequiredApiLevelPullError,
    ServerShutdownError,
    UnreachableConsumerError,
)


class Verdict(Enum):
    """What a conversation does when one of its pulls has ended so."""

    DONE = "done"  # the pull is over as planned: ask for more
    SIZE = "size"  # the next message is larger than what the pull had left
    RETRY = "retry"  # refused for now: warn, ask again after a pause
    AGAIN = "again"  # lost: warn, ask again at once
    RELINK = "relink"  # the server goes away: warn, ask on the next link
    UNPIN = "unpin"  # we are not the pinned client any more: ask as a standby
    KEEP = "keep"  # warn; the pull lives on
    FATAL = "fatal"  # the conversation is over


class Row(NamedTuple):
    """A line of the table."""

    code: int | None  # None: any
    prefix: str  # of the description, lower case
    verdict: Verdict
    error: type[PullError] | None  # what a fetch raises and a consume reports
    # Whether a fetch ends with the error; else it ends quietly with what it has.
    is_error: bool = True


# First match wins.
_TABLE = (
    Row(404, "", Verdict.DONE, None, False),
    Row(408, "requests pending", Verdict.RETRY, PullLimitError, False),
    Row(408, "", Verdict.DONE, None, False),
    Row(409, "batch completed", Verdict.DONE, None, False),
    Row(409, "consumer deleted", Verdict.FATAL, ConsumerDeletedError),
    Row(409, "consumer is push based", Verdict.FATAL, PushConsumerError),
    Row(409, "exceeded max", Verdict.RETRY, PullLimitError),
    Row(409, "message size exceeds maxbytes", Verdict.SIZE, MessageSizeError, False),
    Row(409, "leadership change", Verdict.AGAIN, LeadershipChangedError),
    Row(409, "server shutdown", Verdict.RELINK, ServerShutdownError),
    Row(400, "bad request - not a ", Verdict.KEEP, BadPullError),
    Row(400, "", Verdict.FATAL, BadPullError),
    Row(412, "", Verdict.FATAL, RequiredApiLevelPullError),
    Row(423, "", Verdict.UNPIN, PullError),
    Row(503, "", Verdict.RETRY, UnreachableConsumerError),
    Row(None, "", Verdict.RETRY, PullError),
)


def judge(code: int, description: str) -> Row:
    """The line of the table for a status."""
    text = description.lower()
    return next(
        row
        for row in _TABLE
        if row.code in (None, code) and text.startswith(row.prefix)
    )
