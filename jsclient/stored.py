"""Messages read out of a stream without a consumer."""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime
from typing import Any, NamedTuple

from . import errors
from ._core import Headers, Msg, rebuild_msg
from ._engine.values import parse_time
from .jetstream_errors import (
    ApiError,
    MessageNotFoundError,
    RequiredApiLevelError,
    TooManyResultsError,
)

# What the server adds to a message that is read directly.
_ADDED = frozenset(
    (
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Num-Pending",
        "Nats-Last-Sequence",
        "Nats-UpTo-Sequence",
    )
)


class StoredMessage(NamedTuple):
    """A message as a stream holds it."""

    stream: str
    subject: str
    seq: int
    data: bytes
    headers: Headers | None
    timestamp: datetime | None
    timestamp_ns: int


def from_api(stream: str, raw: dict[str, Any]) -> StoredMessage:
    """The message of a STREAM.MSG.GET answer."""
    headers = None
    if raw.get("hdrs"):
        headers = rebuild_msg(b"", b"", b64decode(raw["hdrs"]), b"").headers
    moment = parse_time(raw.get("time") or "")
    return StoredMessage(
        stream,
        raw.get("subject") or "",
        raw.get("seq") or 0,
        b64decode(raw.get("data") or ""),
        headers,
        moment,
        0 if moment is None else moment.ns,
    )


def from_direct(msg: Msg, doing: str) -> StoredMessage:
    """The message of a direct get, or the error that its status tells."""
    refuse_status(msg, doing)
    headers = msg.headers
    if headers is None:
        raise errors.ServerError(f"{doing}: the answer has no headers")
    # The server appends its headers; a message that was republished has older ones of
    # the same names before them.
    added = {key: value for key, value in headers.multi_items() if key in _ADDED}
    own = _without_added(headers)
    try:
        seq = int(added["Nats-Sequence"])
        moment = parse_time(added["Nats-Time-Stamp"])
    except (KeyError, ValueError):
        raise errors.ServerError(f"{doing}: the answer lacks its sequence") from None
    return StoredMessage(
        added.get("Nats-Stream", ""),
        added.get("Nats-Subject", ""),
        seq,
        msg.data,
        own,
        moment,
        0 if moment is None else moment.ns,
    )


def _without_added(headers: Headers) -> Headers | None:
    """The headers that the message was stored with."""
    fields = headers.multi_items()
    own: list[tuple[str, str]] = []
    seen: set[str] = set()
    for key, value in reversed(fields):
        if key in _ADDED and key not in seen:
            seen.add(key)
        else:
            own.append((key, value))
    own.reverse()
    return Headers(own) if own else None


def refuse_status(msg: Msg, doing: str) -> None:
    """Raises what the inline status of an answer says."""
    status = msg.status
    if status is None or msg.data:
        return
    description = msg.description or ""
    kinds: dict[int, type[ApiError]] = {
        404: MessageNotFoundError,
        412: RequiredApiLevelError,
        413: TooManyResultsError,
    }
    if status == 503:
        raise errors.NoRespondersError(msg.subject)
    raise kinds.get(status, ApiError)(code=status, description=description, doing=doing)
