"""What is asked of the server about streams, for every handle that offers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._api import PEDANTIC, Api, Listing, level_header
from ._config_rules import check_change, stream_name
from ._core import check_filter
from ._engine import reading
from ._engine.arguments import Seconds, count, sequence_number
from ._engine.values import check_name, duration_ns
from .config import StreamConfig, changes, stream_config, updated
from .errors import InvalidArgumentError, ServerError
from .info import StreamInfo
from .jetstream_errors import StreamNotFoundError

T = TypeVar("T")


def fetch_info(
    api: Api,
    name: str,
    *,
    subjects: str | None = None,
    deleted_details: bool = False,
    timeout: Seconds | None = None,
) -> StreamInfo:
    """What the server says of a stream; all pages of its subjects, if asked for."""
    check_name(name, "stream name")
    body: dict[str, Any] = {}
    if deleted_details:
        body["deleted_details"] = True
    if subjects is not None:
        check_filter(subjects, "subjects")
        body["subjects_filter"] = subjects
    doing = f"look up stream {name!r}"
    left = api.countdown(timeout)
    counts: dict[str, Any] = {}
    offset = 0
    while True:
        page = {**body, "offset": offset} if offset else body
        answer = api.call(
            f"STREAM.INFO.{name}",
            page or None,
            doing=doing,
            timeout=left(),
            is_safe=True,
        )
        state = reading.mapping(answer, "state")
        found = reading.mapping(state, "subjects")
        counts.update(found)
        offset += len(found)
        if subjects is None or not found or offset >= reading.integer(answer, "total"):
            break
    if subjects is not None:
        answer = {**answer, "state": {**state, "subjects": counts}}
    return info_of(answer, doing)


def info_of(answer: Any, doing: str) -> StreamInfo:
    """The stream that an answer tells of; ServerError if it tells of none."""
    if isinstance(answer, dict):
        info = StreamInfo.from_api(answer)
        if info.config.name:
            return info
    raise ServerError(f"{doing}: the answer tells of no stream")


def create(
    api: Api,
    config: StreamConfig | None,
    fields: Mapping[str, Any],
    *,
    pedantic: bool = False,
    timeout: Seconds | None = None,
) -> StreamInfo:
    """Makes a stream; making the same one again is fine."""
    return _send(api, stream_config(config, **fields), None, pedantic, timeout)


def update(
    api: Api,
    name: str | None,
    config: StreamConfig | None,
    fields: Mapping[str, Any],
    *,
    pedantic: bool = False,
    timeout: Seconds | None = None,
) -> StreamInfo:
    """Changes fields of the stream of that name, or of the one that they name.

    What is not among them, known to us or not, stays.
    """
    wanted = stream_config(config, **fields)
    changed = changes(wanted, fields)
    if name is None:
        name = stream_name(wanted)
    elif changed.get("name", name) != name:
        raise InvalidArgumentError(f"name cannot be changed: this stream is {name!r}")
    left = api.countdown(timeout)
    current = fetch_info(api, name, timeout=left()).config
    wanted = updated(current, changed)
    age = duration_ns(wanted.max_age or 0, "max_age")
    window = duration_ns(wanted.duplicate_window or 0, "duplicate_window")
    if "duplicate_window" not in changed and 0 < age < window:
        # It cannot be longer than the new age: the server fills it in again.
        wanted.duplicate_window = None
    if current.mirror and not wanted.mirror and "mirror_direct" not in changed:
        # Only mirrors have it: it goes with the mirror that is taken away.
        wanted.mirror_direct = None
    return _send(api, wanted, current, pedantic, left())


def create_or_update(
    api: Api,
    config: StreamConfig | None,
    fields: Mapping[str, Any],
    *,
    pedantic: bool = False,
    timeout: Seconds | None = None,
) -> StreamInfo:
    """Changes a stream, or makes it if there is none."""
    left = api.countdown(timeout)
    try:
        return update(api, None, config, fields, pedantic=pedantic, timeout=left())
    except StreamNotFoundError:
        return create(api, config, fields, pedantic=pedantic, timeout=left())


def _send(
    api: Api,
    config: StreamConfig,
    current: StreamConfig | None,
    pedantic: bool,
    timeout: Seconds | None,
) -> StreamInfo:
    """Makes a stream, or changes the current one."""
    check_change(config, current)
    if current is None and config.sealed:
        raise InvalidArgumentError("sealed is for a stream that is there: update it")
    verb = "CREATE" if current is None else "UPDATE"
    needs = [*config.needs(), *(PEDANTIC if pedantic else ())]
    api.refuse_too_new(needs)
    body = config.to_api()
    if pedantic:
        body["pedantic"] = True
    doing = f"{verb.lower()} stream {config.name!r}"
    answer = api.call(
        f"STREAM.{verb}.{config.name}",
        body,
        doing=doing,
        timeout=timeout,
        is_safe=True,
        headers=level_header(needs),
    )
    return info_of(answer, doing)


def delete(api: Api, name: str, *, timeout: Seconds | None = None) -> None:
    """Deletes a stream."""
    check_name(name, "stream name")
    api.call(f"STREAM.DELETE.{name}", doing=f"delete stream {name!r}", timeout=timeout)


def purge(
    api: Api,
    name: str,
    *,
    subject: str | None = None,
    sequence: int | None = None,
    keep: int | None = None,
    timeout: Seconds | None = None,
) -> int:
    """Deletes messages of a stream and returns how many.

    Up to a `sequence` it may be done twice, when the first answer is lost: then the
    number is what the second one found, perhaps nothing.
    """
    check_name(name, "stream name")
    if sequence is not None and keep is not None:
        raise InvalidArgumentError("give sequence or keep, not both")
    body: dict[str, Any] = {}
    if subject is not None:
        check_filter(subject, "subject")
        body["filter"] = subject
    if sequence is not None:
        body["seq"] = sequence_number(sequence, "sequence", least=0)
    if keep is not None:
        body["keep"] = count(keep, "keep", least=0)
    answer = api.call(
        f"STREAM.PURGE.{name}",
        body or None,
        doing=f"purge stream {name!r}",
        timeout=timeout,
        # A second purge would also delete what was stored since the first.
        is_safe=sequence is not None,
    )
    return reading.integer(answer, "purged")


def delete_msg(
    api: Api,
    name: str,
    seq: int,
    *,
    secure: bool = False,
    timeout: Seconds | None = None,
) -> None:
    """Deletes one message of a stream."""
    check_name(name, "stream name")
    body: dict[str, Any] = {"seq": sequence_number(seq, "seq")}
    if not secure:
        body["no_erase"] = True
    api.call(
        f"STREAM.MSG.DELETE.{name}",
        body,
        doing=f"delete message {seq} of stream {name!r}",
        timeout=timeout,
    )


def listing(
    api: Api,
    of: Callable[[StreamInfo], T],
    *,
    subject: str | None = None,
    timeout: Seconds | None = None,
) -> Listing[T]:
    """The streams, each as what `of` makes of it; only those of a subject, if given."""
    doing = "list the streams"
    return api.pages(
        "STREAM.LIST",
        "streams",
        lambda entry: of(info_of(entry, doing)),
        body=_overlapping(subject),
        doing=doing,
        timeout=timeout,
        is_gathered=True,
    )


def names(
    api: Api, *, subject: str | None = None, timeout: Seconds | None = None
) -> Listing[str]:
    """The names of every stream, or of those whose subjects overlap one."""
    return api.pages(
        "STREAM.NAMES",
        "streams",
        str,
        body=_overlapping(subject),
        doing="list the streams",
        timeout=timeout,
    )


def _overlapping(subject: str | None) -> dict[str, str] | None:
    if subject is None:
        return None
    check_filter(subject, "subject")
    return {"subject": subject}
