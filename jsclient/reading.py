"""Reading messages out of a stream without a consumer: one, or many in batches.

A stream with `allow_direct` is read directly: any replica answers with the message
itself. Others are read through the API, where the leader answers with JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from time import monotonic
from typing import Any, NoReturn

from . import errors, stored
from ._api import Api, Needs
from ._core import Batch, Msg, check_filter
from ._engine.arguments import Seconds, count, seconds, sequence_number
from ._engine.reading import mapping
from ._engine.values import check_name, check_time, format_time
from ._io.exchange import UnansweredError, UnsentError, answers, stored_answers
from .jetstream_errors import UnsupportedByServerError
from .stored import StoredMessage

BATCHES: Needs = [("reading messages in batches", (2, 11, 0))]
START_TIME: Needs = [("reading by start_time", (2, 11, 0))]
# What is asked for at once: the server sends it without flow control, and it has to
# come within the time of one call.
PAGE = 1000
PAGE_BYTES = 4 * 1024 * 1024


def get_message(
    api: Api,
    stream: str,
    *,
    is_direct: bool,
    seq: int | None,
    last_for: str | None,
    next_for: str | None,
    start_time: datetime | str | None,
    timeout: Seconds | None,
) -> StoredMessage:
    """One message of the stream."""
    check_name(stream, "stream name")
    doing = f"read a message of stream {stream!r}"
    body = _position(api, seq, last_for, next_for, start_time)
    left = api.countdown(timeout)
    if is_direct:
        verb, data = f"DIRECT.GET.{stream}", json.dumps(body).encode()
        if last_for is not None and "*" not in last_for and ">" not in last_for:
            verb, data = f"{verb}.{last_for}", b""
        msg = api.ask(verb, data, doing=doing, timeout=left())
        if msg.status != 503 or msg.data:
            return stored.from_direct(msg, doing)
        # Nobody answers: the stream is gone or was changed, as the API knows.
    answer = api.call(
        f"STREAM.MSG.GET.{stream}", body, doing=doing, timeout=left(), is_safe=True
    )
    return stored.from_api(stream, answer, doing)


def _position(
    api: Api,
    seq: int | None,
    last_for: str | None,
    next_for: str | None,
    start_time: datetime | str | None,
) -> dict[str, Any]:
    """Which message is meant; exactly one way of saying it."""
    ways = (
        (seq is not None or start_time is not None) and next_for is None,
        last_for is not None,
        next_for is not None,
    )
    if sum(ways) != 1 or (seq is not None and start_time is not None):
        raise errors.InvalidArgumentError(
            "give one of seq, start_time, last_for and next_for; only next_for may "
            "have a seq or a start_time beside it"
        )
    body: dict[str, Any] = {}
    if seq is not None:
        body["seq"] = sequence_number(seq, "seq")
    if start_time is not None:
        api.refuse_too_new(START_TIME)
        body["start_time"] = format_time(check_time(start_time, "start_time"))
    if last_for is not None:
        check_filter(last_for, "last_for")
        body["last_by_subj"] = last_for
    if next_for is not None:
        check_filter(next_for, "next_for")
        body["next_by_subj"] = next_for
    return body


def get_messages(
    api: Api,
    stream: str,
    *,
    seq: int | None,
    start_time: datetime | str | None,
    next_for: str | None,
    last_for: Iterable[str] | None,
    limit: int | None,
    max_bytes: int | None,
    up_to_seq: int | None,
    up_to_time: datetime | str | None,
    timeout: Seconds | None,
) -> Iterator[StoredMessage]:
    """Checks the arguments at once and returns the iterator of the messages."""
    check_name(stream, "stream name")
    api.refuse_too_new(BATCHES)
    body: dict[str, Any] = {}
    if seq is not None and start_time is not None:
        raise errors.InvalidArgumentError("give seq or start_time, not both")
    if up_to_seq is not None and up_to_time is not None:
        raise errors.InvalidArgumentError("give up_to_seq or up_to_time, not both")
    if last_for is None and (up_to_seq is not None or up_to_time is not None):
        raise errors.InvalidArgumentError("up_to_seq and up_to_time need last_for")
    if start_time is not None:
        body["start_time"] = format_time(check_time(start_time, "start_time"))
    elif seq is not None or last_for is None:
        body["seq"] = 1 if seq is None else sequence_number(seq, "seq")
    if next_for is not None:
        check_filter(next_for, "next_for")
        body["next_by_subj"] = next_for
    if last_for is not None:
        if not isinstance(last_for, Iterable):
            raise TypeError(
                f"last_for must be a list of subjects, not {type(last_for).__name__}"
            )
        subjects = list(last_for)
        if next_for is not None or isinstance(last_for, str) or not subjects:
            raise errors.InvalidArgumentError(
                "last_for must be a list of subjects, without next_for"
            )
        for subject in subjects:
            check_filter(subject, "last_for")
        body["multi_last"] = subjects
    if up_to_seq is not None:
        body["up_to_seq"] = sequence_number(up_to_seq, "up_to_seq")
    if up_to_time is not None:
        body["up_to_time"] = format_time(check_time(up_to_time, "up_to_time"))
    body["max_bytes"] = (
        PAGE_BYTES if max_bytes is None else count(max_bytes, "max_bytes")
    )
    if limit is not None:
        count(limit, "limit")
    wait = api.timeout if timeout is None else seconds(timeout)
    return _read_all(api, stream, body, limit, wait)


def _read_all(
    api: Api, stream: str, body: dict[str, Any], limit: int | None, timeout: float
) -> Iterator[StoredMessage]:
    left = limit
    while left is None or left > 0:
        body["batch"] = PAGE if left is None else min(PAGE, left)
        messages, end = _page(api, stream, body, timeout)
        yield from messages
        if not messages or not end.get("Nats-Num-Pending", "0").strip("0"):
            return
        if left is not None:
            left -= len(messages)
        body.pop("start_time", None)
        body["seq"] = messages[-1].seq + 1
        up_to = end.get("Nats-UpTo-Sequence")
        if up_to is not None and up_to.isdecimal():
            # The next page shows the same moment.
            body["up_to_seq"] = int(up_to)
            body.pop("up_to_time", None)


def _page(
    api: Api, stream: str, body: dict[str, Any], timeout: float
) -> tuple[list[StoredMessage], Mapping[str, str]]:
    """The messages of one batch, and the headers that end it.

    They are given out together: a batch that its link did not finish is read again.
    """
    deadline = monotonic() + timeout
    doing = f"read messages of stream {stream!r}"
    subject = f"{api.prefix}DIRECT.GET.{stream}"
    data = json.dumps(body).encode()
    while True:
        try:
            with closing(answers(api.loop, subject, data, deadline)) as batch:
                found = _until_end(batch, doing, api)
        except (UnsentError, UnansweredError) as error:
            api.loop.check_open()
            if monotonic() >= deadline:
                raise errors.TimeoutError(f"{doing}: {error}") from error
        else:
            if found is None:
                _refuse_silence(api, stream, subject, doing, deadline)
            return found


def get_batch(
    api: Api,
    stream: str,
    *,
    seq: int,
    next_for: str | None,
    max_messages: int,
    max_bytes: int | None,
    timeout: Seconds | None,
) -> Batch:
    """Messages in columns, from a sequence on."""
    check_name(stream, "stream name")
    api.refuse_too_new(BATCHES)
    body: dict[str, Any] = {
        "seq": sequence_number(seq, "seq"),
        "batch": count(max_messages, "max_messages"),
        "max_bytes": PAGE_BYTES if max_bytes is None else count(max_bytes, "max_bytes"),
    }
    if next_for is not None:
        check_filter(next_for, "next_for")
        body["next_by_subj"] = next_for
    deadline = monotonic() + (api.timeout if timeout is None else seconds(timeout))
    doing = f"read messages of stream {stream!r}"
    subject = f"{api.prefix}DIRECT.GET.{stream}"
    data = json.dumps(body).encode()
    while True:
        try:
            batch, end = stored_answers(api.loop, subject, data, deadline)
        except (UnsentError, UnansweredError) as error:
            api.loop.check_open()
            if monotonic() >= deadline:
                raise errors.TimeoutError(f"{doing}: {error}") from error
            continue  # a batch that its link did not finish is read again
        if end.status is None or end.data:
            if "Nats-Num-Pending" not in (end.headers or {}):
                raise UnsupportedByServerError(*BATCHES[0], api.loop.info.version)
            raise errors.ServerError(f"{doing}: a message is malformed")
        if end.status == 503:
            _refuse_silence(api, stream, subject, doing, deadline)
        if end.status != 204 and not (end.status == 404 and not len(batch)):
            stored.refuse_status(end, doing)
        return batch


def _until_end(
    batch: Iterator[Msg], doing: str, api: Api
) -> tuple[list[StoredMessage], Mapping[str, str]] | None:
    """The messages of a batch and the headers of its end; None if nobody answers."""
    found: list[StoredMessage] = []
    for msg in batch:
        headers: Mapping[str, str] = msg.headers or {}
        if msg.status is not None and not msg.data:
            if msg.status == 204 or (msg.status == 404 and not found):
                return found, headers
            if msg.status == 503:
                return None
            stored.refuse_status(msg, doing)
        if "Nats-Num-Pending" not in headers:
            # Older servers take it for the request of a single message.
            raise UnsupportedByServerError(*BATCHES[0], api.loop.info.version)
        found.append(stored.from_direct(msg, doing, stored.ADDED_IN_BATCH))
    return None


def _refuse_silence(
    api: Api, stream: str, subject: str, doing: str, deadline: float
) -> NoReturn:
    """Says why nobody answers for a stream: it is gone, or not for direct reading."""
    answer = api.call(
        f"STREAM.INFO.{stream}",
        doing=doing,
        timeout=max(0.0, deadline - monotonic()),
        is_safe=True,
    )
    if mapping(answer, "config").get("allow_direct"):
        raise errors.NoRespondersError(subject)
    raise errors.InvalidArgumentError(
        f"{doing}: it must have allow_direct to be read in batches"
    )
