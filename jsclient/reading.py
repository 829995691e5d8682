"""Reading messages out of a stream without a consumer: one, or many in batches.

A stream with `allow_direct` is read directly: any replica answers with the message
itself. Others are read through the API, where the leader answers with JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from time import monotonic
from typing import Any

from . import errors, stored
from ._api import Api, Needs
from ._core import Inbox, Msg, check_filter, check_subject
from ._engine.arguments import Seconds, integer, seconds, unique_name
from ._engine.values import check_name, check_time, format_time
from .jetstream_errors import UnsupportedByServerError
from .stored import StoredMessage

BATCHES: Needs = [("reading messages in batches", (2, 11, 0))]
START_TIME: Needs = [("reading by start_time", (2, 11, 0))]
# Messages asked for at once; the server sends them without flow control.
PAGE = 1000


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
    if not is_direct:
        answer = api.call(
            f"STREAM.MSG.GET.{stream}", body, doing=doing, timeout=timeout, is_safe=True
        )
        return stored.from_api(stream, answer.get("message") or {})
    verb = f"DIRECT.GET.{stream}"
    data = json.dumps(body).encode()
    if last_for is not None and "*" not in last_for and ">" not in last_for:
        verb, data = f"{verb}.{last_for}", b""
    msg = api.ask(verb, data, doing=doing, timeout=timeout)
    return stored.from_direct(msg, doing)


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
        body["seq"] = integer(seq, "seq", least=1)
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
    last_for: Sequence[str] | None,
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
        body["seq"] = 1 if seq is None else integer(seq, "seq", least=1)
    if next_for is not None:
        check_filter(next_for, "next_for")
        body["next_by_subj"] = next_for
    if last_for is not None:
        if next_for is not None or isinstance(last_for, str) or not last_for:
            raise errors.InvalidArgumentError(
                "last_for must be a sequence of subjects, without next_for"
            )
        for subject in last_for:
            check_filter(subject, "last_for")
        body["multi_last"] = list(last_for)
    if up_to_seq is not None:
        body["up_to_seq"] = integer(up_to_seq, "up_to_seq", least=1)
    if up_to_time is not None:
        body["up_to_time"] = format_time(check_time(up_to_time, "up_to_time"))
    if max_bytes is not None:
        body["max_bytes"] = integer(max_bytes, "max_bytes", least=1)
    if limit is not None:
        integer(limit, "limit", least=1)
    wait = api.timeout if timeout is None else seconds(timeout)
    return _read_all(api, stream, body, limit, wait)


def _read_all(
    api: Api, stream: str, body: dict[str, Any], limit: int | None, timeout: float
) -> Iterator[StoredMessage]:
    left = limit
    while left is None or left > 0:
        body["batch"] = PAGE if left is None else min(PAGE, left)
        end: Msg | None = None
        for msg in _batch(api, stream, body, timeout):
            if msg.status == 204:
                end = msg
                break
            found = stored.from_direct(msg, f"read messages of stream {stream!r}")
            if left is not None:
                left -= 1
            yield found
        if end is None or not _continue_after(end, body):
            return


def _continue_after(end: Msg, body: dict[str, Any]) -> bool:
    """Whether there is more, and the body of the next request."""
    headers = end.headers
    assert headers is not None  # a status has them
    if headers.get("Nats-Num-Pending", "0") == "0":
        return False
    body.pop("start_time", None)
    body["seq"] = int(headers.get("Nats-Last-Sequence", "0")) + 1
    up_to = headers.get("Nats-UpTo-Sequence")
    if up_to is not None:
        # The next page shows the same moment.
        body["up_to_seq"] = int(up_to)
        body.pop("up_to_time", None)
    return True


def _batch(
    api: Api, stream: str, body: dict[str, Any], timeout: float
) -> Iterator[Msg]:
    """The answers to one batch request, the end of the batch included."""
    loop = api.loop
    loop.check_open()
    deadline = monotonic() + timeout
    doing = f"read messages of stream {stream!r}"
    inbox = Inbox(loop)
    reply = f"{loop.options.inbox_prefix}.{unique_name()}"
    check_subject(reply, "inbox")
    sid = loop.subscribe(reply, None, inbox)
    try:
        loop.publish(
            f"{api.prefix}DIRECT.GET.{stream}", json.dumps(body).encode(), reply=reply
        )
        is_first = True
        while True:
            msg = inbox.take()
            if msg is None:
                if not loop.wait(inbox, deadline):
                    raise errors.TimeoutError(f"{doing}: the batch did not end in time")
                continue
            if msg.status == 204:
                yield msg
                return
            if is_first and msg.status is not None and not msg.data:
                if msg.status == 404:
                    return
                if msg.status == 503:
                    raise errors.InvalidArgumentError(
                        f"{doing}: nobody answers; does the stream have allow_direct?"
                    )
                stored.refuse_status(msg, doing)
            headers = msg.headers
            if headers is None or "Nats-Num-Pending" not in headers:
                raise UnsupportedByServerError(
                    BATCHES[0][0], BATCHES[0][1], loop.info.version
                )
            is_first = False
            yield msg
    finally:
        if not loop.is_closing:
            loop.unsubscribe(sid)
        inbox.end()
