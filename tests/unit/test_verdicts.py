"""What each status means: every status that servers send, and others."""

import pytest

from jsclient._engine.verdicts import Row, Verdict, judge
from jsclient.jetstream_errors import (
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

# Code, description as it is sent, what a consume does, what went wrong, whether nothing
# more can come of the pull.
STATUSES: list[tuple[int, str, Verdict, type[PullError] | None, bool]] = [
    (404, "No Messages", Verdict.DONE, None, True),
    (408, "Request Timeout", Verdict.DONE, None, True),
    (408, "Interest Expired", Verdict.DONE, None, True),
    (408, "Requests Pending", Verdict.RETRY, None, True),
    (409, "Batch Completed", Verdict.DONE, None, True),
    (409, "Message Size Exceeds MaxBytes", Verdict.SIZE, None, True),
    (409, "Consumer Deleted", Verdict.GONE, ConsumerDeletedError, True),
    (409, "Consumer is push based", Verdict.FATAL, PushConsumerError, True),
    (409, "Exceeded MaxRequestBatch of 5", Verdict.RETRY, PullLimitError, True),
    (409, "Exceeded MaxRequestExpires of 1.5s", Verdict.RETRY, PullLimitError, True),
    (409, "Exceeded MaxRequestMaxBytes of 100", Verdict.RETRY, PullLimitError, True),
    (409, "Exceeded MaxWaiting", Verdict.RETRY, PullLimitError, True),
    (409, "Leadership Change", Verdict.AGAIN, LeadershipChangedError, False),
    (409, "Server Shutdown", Verdict.RELINK, ServerShutdownError, False),
    (400, "Bad Request", Verdict.FATAL, BadPullError, True),
    (
        400,
        "Bad Request - heartbeat value too large",
        Verdict.FATAL,
        BadPullError,
        True,
    ),
    (400, "Bad Request - Priority Group missing", Verdict.FATAL, BadPullError, True),
    (400, "Bad Request - Invalid Priority Group", Verdict.FATAL, BadPullError, True),
    (
        400,
        "Bad Request - Not a Overflow Priority consumer",
        Verdict.KEEP,
        BadPullError,
        False,
    ),
    (
        400,
        "Bad Request - Not a Pinned Client Priority consumer",
        Verdict.KEEP,
        BadPullError,
        False,
    ),
    (400, "json: cannot unmarshal", Verdict.FATAL, BadPullError, True),
    (412, "Required Api Level", Verdict.FATAL, RequiredApiLevelPullError, True),
    (423, "Nats-Pin-Id mismatch", Verdict.UNPIN, UnpinnedError, True),
    (423, "Nats-Wrong-Pin-Id", Verdict.UNPIN, UnpinnedError, True),
    (503, "", Verdict.LOOK_UP, UnreachableConsumerError, True),
    (503, "No Responders", Verdict.LOOK_UP, UnreachableConsumerError, True),
    # Nobody knows what these will mean.
    (409, "Something New", Verdict.RETRY, PullError, False),
    (409, "", Verdict.RETRY, PullError, False),
    (499, "Something Else", Verdict.RETRY, PullError, False),
    (0, "", Verdict.RETRY, PullError, False),
]


def told(row: Row) -> tuple[Verdict, type[PullError] | None, bool]:
    return row.verdict, row.error, row.is_over


@pytest.mark.parametrize(
    ("code", "description", "verdict", "error", "is_over"),
    STATUSES,
    ids=[f"{code} {description}".strip() for code, description, *_ in STATUSES],
)
def test_a_status_has_one_meaning_in_any_letter_case(
    code: int,
    description: str,
    verdict: Verdict,
    error: type[PullError] | None,
    is_over: bool,
) -> None:
    meant = (verdict, error, is_over)
    assert told(judge(code, description)) == meant
    assert told(judge(code, description.upper())) == meant
    assert told(judge(code, description.lower())) == meant


def test_every_verdict_is_reached_by_some_status() -> None:
    assert {verdict for _, _, verdict, *_ in STATUSES} == set(Verdict)


def test_a_text_counts_only_with_its_code() -> None:
    assert judge(404, "Consumer Deleted").verdict is Verdict.DONE
    assert judge(410, "Consumer Deleted").verdict is Verdict.RETRY
    assert judge(409, "The Consumer Deleted").verdict is Verdict.RETRY
