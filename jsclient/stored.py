"""Messages read out of a stream without a consumer."""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime
from typing import Any, NamedTuple

from . import errors
from ._core import Headers, Msg, rebuild_msg
from ._engine.values import parse_time
from .jetstream_errors import status_error

# What the server adds to a message that is read directly, and in a batch of them.
ADDED = frozenset(("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"))
ADDED_IN_BATCH = ADDED | {"Nats-Num-Pending", "Nats-Last-Sequence"}


class StoredMessage(NamedTuple):
    """A message as a stream holds it."""

    stream: str
    subject: str
    seq: int
    data: bytes
    headers: Headers | None
    timestamp: datetime | None
    timestamp_ns: int


def from_api(stream: str, answer: dict[str, Any], doing: str) -> StoredMessage:
    """The message of a STREAM.MSG.GET answer."""
    raw = answer.get("message")
    if not isinstance(raw, dict):
        raise errors.ServerError(f"{doing}: the answer has no message")
    try:
        headers = None
        if raw.get("hdrs"):
            headers = rebuild_msg(
                b"", b"", b64decode(raw["hdrs"], validate=True), b""
            ).headers
        moment = parse_time(raw["time"])
        return StoredMessage(
            stream,
            str(raw["subject"]),
            int(raw["seq"]),
            b64decode(raw.get("data") or "", validate=True),
            headers,
            moment,
            0 if moment is None else moment.ns,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise errors.ServerError(f"{doing}: the message is malformed") from error


def from_direct(msg: Msg, doing: str, added: frozenset[str] = ADDED) -> StoredMessage:
    """The message of a direct get, or the error that its status tells.

    The server appends the headers `added`; a message that was republished has older
    ones of the same names before them.
    """
    refuse_status(msg, doing)
    own: list[tuple[str, str]] = []
    told: dict[str, str] = {}
    for key, value in reversed(msg.headers.multi_items() if msg.headers else []):
        if key in added and key not in told:
            told[key] = value
        else:
            own.append((key, value))
    try:
        moment = parse_time(told["Nats-Time-Stamp"])
        return StoredMessage(
            told["Nats-Stream"],
            told["Nats-Subject"],
            int(told["Nats-Sequence"]),
            msg.data,
            Headers(own[::-1]) if own else None,
            moment,
            0 if moment is None else moment.ns,
        )
    except (KeyError, ValueError) as error:
        raise errors.ServerError(f"{doing}: the message is malformed") from error


def refuse_status(msg: Msg, doing: str) -> None:
    """Raises what the inline status of an answer says."""
    # A status has no payload; a stored message may have an empty one but no status.
    if msg.status is not None and not msg.data:
        raise status_error(msg.status, msg.description or "", doing=doing)
