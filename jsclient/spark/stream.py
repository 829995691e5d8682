"""What the driver asks a server about a stream."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jsclient

from .errors import OptionError
from .offsets import Bounds

if TYPE_CHECKING:
    from ..jetstream import JetStream
    from ..stream import Stream

__all__ = [
    "bounds_of",
    "filters",
    "find_stream",
    "matching",
    "place_of_time",
]


def find_stream(js: JetStream, name: str) -> Stream:
    """The stream; OptionError if there is none, or no JetStream."""
    try:
        return js.stream(name)
    except jsclient.StreamNotFoundError:
        raise OptionError("stream", f"there is no stream {name!r}") from None
    except jsclient.JetStreamNotEnabledError as error:
        raise OptionError(
            "servers",
            f"they have no JetStream for us: {error}; check domain, apiPrefix",
        ) from error


def bounds_of(info: jsclient.StreamInfo) -> Bounds:
    """What the stream holds, as the server told it."""
    state = info.state
    return Bounds(
        stream=info.config.name or "",
        created=str(info.raw.get("created", "")),
        first=max(state.first_seq, 1),
        next=state.last_seq + 1,
    )


def filters(subjects: Sequence[str] | None) -> dict[str, Any]:
    """The fields of a consumer that gets only these subjects."""
    if subjects is not None and len(subjects) == 1:
        return {"filter_subject": subjects[0]}
    return {"filter_subjects": list(subjects)} if subjects else {}


def matching(
    stream: Stream, subjects: Sequence[str], start: int, *, counted: bool
) -> tuple[int | None, int | None]:
    """The next sequence of some subjects, None if there is none, and perhaps how many.

    The number of messages from there on is None if the server cannot tell it.
    """
    first: int | None = None
    total: int | None = 0
    for subject in subjects:
        seq, count = _next(stream, subject, start, counted=counted)
        if seq is not None:
            first = seq if first is None else min(first, seq)
            total = None if total is None or count is None else total + count
    return first, total


def _next(
    stream: Stream, subject: str, start: int, *, counted: bool
) -> tuple[int | None, int | None]:
    if counted and stream.cached_info.config.allow_direct:
        try:
            batch = stream.get_batch(start, next_for=subject, max_messages=1)
        except (jsclient.UnsupportedByServerError, jsclient.NoRespondersError):
            pass
        else:
            if len(batch):
                return batch.stream_seqs[0], 1 + (batch.num_pending or 0)
            # Or only that replica has none: the leader knows.
    try:
        return stream.get_msg(start, next_for=subject, from_leader=True).seq, None
    except jsclient.MessageNotFoundError:
        return None, 0


def place_of_time(stream: Stream, moment: datetime) -> int | None:
    """The sequence of the first message that is not older, None if all are."""
    try:
        return stream.get_msg(start_time=moment, from_leader=True).seq
    except jsclient.MessageNotFoundError:
        return None
    except jsclient.UnsupportedByServerError:
        pass
    consumer = stream.create_consumer(
        deliver_policy="by_start_time", opt_start_time=moment, ack_policy="none"
    )
    try:
        info = consumer.cached_info
        return info.delivered.stream_seq + 1 if info.num_pending else None
    finally:
        consumer.delete()
