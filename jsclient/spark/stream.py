"""What the driver asks a server about a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

import jsclient

from .errors import OptionError
from .offsets import Bounds

if TYPE_CHECKING:
    from ..jetstream import JetStream
    from ..stream import Stream

__all__ = [
    "bounds_of",
    "caught_up",
    "certain",
    "count_of",
    "filters",
    "find_stream",
    "next_of",
    "place_of_time",
]


_T = TypeVar("_T")

PAUSE = 0.05  # between two looks at a leader that is behind
COUNTED_FOR = 5.0  # how long a consumer that only counts outlives its maker


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


def caught_up(
    stream: Stream, end: int, timeout: float, *, info: jsclient.StreamInfo | None = None
) -> jsclient.StreamInfo:
    """What the server says of a stream that is known to reach up to before `end`.

    A leader that was elected just now may not have come to know all that is stored: it
    gets some time for it. If it still tells less then, the messages are gone.
    """
    deadline = monotonic() + timeout
    found = stream.info() if info is None else info
    while (
        found.state.last_seq + 1 < end
        and _replicas(found)
        and (left := deadline - monotonic()) > 0
    ):
        sleep(min(PAUSE, left))  # nobody tells when it has
        found = stream.info()
    return found


def certain(
    stream: Stream, end: int, timeout: float, ask: Callable[[], _T | None]
) -> _T | None:
    """The answer of a leader that knows all messages before `end`.

    Only the answer that there is nothing is doubtful: of a leader that is new, or was
    replaced meanwhile.
    """
    found = ask()
    if found is not None or not _replicas(stream.cached_info):
        return found
    deadline = monotonic() + timeout
    while True:
        before = caught_up(stream, end, deadline - monotonic())
        found = ask()
        if found is not None:
            return found
        after = stream.info()
        if _leader(before) == _leader(after) and before.state.last_seq + 1 >= end:
            return None
        if monotonic() >= deadline:
            raise jsclient.TimeoutError(
                f"stream {stream.name!r}: no leader knew the messages up to {end - 1} "
                "in time"
            )


def _leader(info: jsclient.StreamInfo) -> str:
    return "" if info.cluster is None else info.cluster.leader


def _replicas(info: jsclient.StreamInfo) -> bool:
    return info.cluster is not None and bool(info.cluster.replicas)


def filters(subjects: Sequence[str] | None) -> dict[str, Any]:
    """The fields of a consumer that gets only these subjects."""
    if subjects is not None and len(subjects) == 1:
        return {"filter_subject": subjects[0]}
    return {"filter_subjects": list(subjects)} if subjects else {}


def next_of(stream: Stream, subjects: Sequence[str], start: int) -> int | None:
    """The next sequence of some subjects, as the leader knows it, None without one."""
    found = []
    for subject in subjects:
        with contextlib.suppress(jsclient.MessageNotFoundError):
            msg = stream.get_msg(start, next_for=subject, from_leader=True)
            found.append(msg.seq)
    return min(found, default=None)


def count_of(stream: Stream, subjects: Sequence[str], start: int) -> int | None:
    """How many messages of some subjects there are from a sequence on.

    None if the server cannot tell: a work queue without direct gets.
    """
    config = stream.cached_info.config
    if config.allow_direct:
        with contextlib.suppress(
            jsclient.UnsupportedByServerError, jsclient.NoRespondersError
        ):
            found = [
                stream.get_batch(start, next_for=subject, max_messages=1)
                for subject in subjects
            ]
            return sum(len(one) + (one.num_pending or 0) for one in found)
    if config.retention == "workqueue":
        return None
    try:
        consumer = stream.create_consumer(
            deliver_policy="by_start_sequence",
            opt_start_seq=start,
            ack_policy="none",
            inactive_threshold=COUNTED_FOR,
            mem_storage=True,
            num_replicas=1,
            **filters(subjects),
        )
    except (jsclient.JetStreamError, jsclient.PermissionsViolationError):
        return None
    # If the server cannot be told, it forgets the consumer by itself.
    with contextlib.suppress(jsclient.Error):
        consumer.delete()
    return consumer.cached_info.num_pending


def place_of_time(stream: Stream, moment: datetime) -> int | None:
    """The sequence of the first message that is not older, None if all are."""
    try:
        return stream.get_msg(start_time=moment, from_leader=True).seq
    except jsclient.MessageNotFoundError:
        return None
    except jsclient.UnsupportedByServerError:  # before 2.11
        return search_time(stream, moment)


def search_time(stream: Stream, moment: datetime) -> int | None:
    """The same, by messages in the middle of what is left: all kinds of streams do."""
    bounds = bounds_of(stream.info())
    low, high = bounds.first, bounds.next  # no message from `high` on is older
    found = None
    while low < high:
        middle = (low + high) // 2
        try:
            msg = stream.get_msg(middle, next_for=">", from_leader=True)
        except jsclient.MessageNotFoundError:
            high = middle
            continue
        if msg.timestamp is None or msg.timestamp < moment:
            low = msg.seq + 1
        else:
            found, high = msg.seq, middle
    return found
