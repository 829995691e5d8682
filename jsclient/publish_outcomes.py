"""What became of a publish: the three ways in which it ends.

It is stored: there is a PubAck. It is refused: an error other than
PublishOutcomeUnknownError, and the message is not and will not be stored. Or nobody can
know: PublishOutcomeUnknownError.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import errors
from ._core import Msg, PubAck, Slots, parse_pub_ack
from ._io.exchange import UnansweredError, UnsentError
from .jetstream_errors import (
    InvalidAckError,
    NoStreamResponseError,
    PublishDisconnectedError,
    PublishOutcomeUnknownError,
    PublishTimeoutError,
    api_error,
)

if TYPE_CHECKING:
    from ._core import _OddOutcome


def read_ack(msg: Msg, subject: str) -> PubAck:
    """The PubAck that a stream answered, or the error that it told."""
    ack = parse_pub_ack(msg.data)
    if ack is not None:
        return ack
    if msg.status == 503 and not msg.data:
        raise NoStreamResponseError(subject)
    try:
        # Any JSON may come here: the answer of a plain service, say.
        answer: Any = json.loads(msg.data)
    except (ValueError, RecursionError):
        answer = None
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        refusal = api_error(error, doing=f"publish to {subject!r}")
        stream, seq = answer.get("stream"), answer.get("seq")
        refusal.stream = stream if isinstance(stream, str) else None
        refusal.seq = seq if isinstance(seq, int) else None
        raise refusal
    try:
        seq = answer.get("seq", 0)
        if error is None and answer["stream"] and isinstance(seq, int):
            return PubAck(
                answer["stream"],
                seq,
                duplicate=bool(answer.get("duplicate")),
                domain=answer.get("domain"),
                value=None if answer.get("val") is None else int(answer["val"]),
                batch=answer.get("batch"),
                count=answer.get("count", 0),
            )
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        pass  # the core takes only what a stream may say
    raise InvalidAckError(subject, msg.data[:200])


def failure(
    error: UnsentError | UnansweredError, subject: str, msg_id: str | None
) -> errors.Error:
    """What a publish raises that got no answer."""
    if isinstance(error, UnansweredError):
        kind = PublishDisconnectedError if error.is_lost else PublishTimeoutError
        return kind(subject, str(error), msg_id=msg_id)
    text = f"the message to {subject!r} was not sent: {error}"
    return (
        errors.DisconnectedError(text) if error.is_lost else errors.TimeoutError(text)
    )


def certain(error: errors.Error, subject: str, msg_id: str | None) -> errors.Error:
    """The error of a publish that is not stored.

    Where the server refuses us the inbox of the acks, it took the message all the same.
    """
    if (
        isinstance(error, errors.PermissionsViolationError)
        and error.operation == "subscribe"
    ):
        unknown = PublishOutcomeUnknownError(subject, str(error), msg_id=msg_id)
        unknown.__cause__ = error
        return unknown
    return error


def odd_outcome(
    window: Slots, odd: _OddOutcome, msg_id: str | None = None
) -> PubAck | Exception:
    """What became of a publish that got no usual ack."""
    what, answer, subject = odd
    if what == "answered":
        assert isinstance(answer, Msg)
        try:
            return read_ack(answer, subject)
        except errors.Error as error:
            return error
    if what == "failed":
        assert isinstance(answer, Exception)
        if isinstance(answer, errors.Error):
            return certain(answer, subject, msg_id)
        return answer
    if what == "overdue":
        late = UnansweredError("no answer came in time", is_lost=False)
        return failure(late, subject, msg_id)
    if what == "late":
        return failure(UnsentError("the link did not take it in time"), subject, msg_id)
    reason = window.reason
    if reason is None:
        gone = str(window.gone)
        if what == "lost":
            return failure(UnansweredError(gone, is_lost=True), subject, msg_id)
        return failure(UnsentError(gone, is_lost=True), subject, msg_id)
    if what == "unsent":
        return reason
    if isinstance(reason, errors.PermissionsViolationError):
        return certain(reason, subject, msg_id)
    return failure(UnansweredError(str(reason), is_lost=True), subject, msg_id)
