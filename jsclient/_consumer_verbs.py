"""What is asked of the server about consumers, for every handle that offers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

from ._api import PEDANTIC, Api, Listing, Needs, level_header
from ._config_rules import check_change
from ._core import Gate
from ._engine.arguments import Seconds, sequence_number, unique_name
from ._engine.values import check_group, check_name, check_time, format_time
from .config import ConsumerConfig, changes, consumer_config, differences, updated
from .errors import InvalidArgumentError, ServerError
from .info import ConsumerInfo, PauseInfo
from .jetstream_errors import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    UnsupportedByServerError,
)

T = TypeVar("T")

# How long a push consumer may seem to be subscribed to after its subscriber has left.
UNBINDING = 0.25
# The first release that can be told only to make a consumer, or only to change it.
ACTIONS = (2, 10, 0)
FILTERS = (
    ("filter_subject", "filter_subjects"),
    ("filter_subjects", "filter_subject"),
)
PAUSE: Needs = [("pausing a consumer", (2, 11, 0))]
UNPIN: Needs = [("unpinning a priority group", (2, 11, 0))]
RESET: Needs = [("resetting a consumer", (2, 14, 0))]


def fetch_info(
    api: Api, stream: str, name: str, *, timeout: Seconds | None = None
) -> ConsumerInfo:
    """What the server says of a consumer."""
    check_name(stream, "stream name")
    check_name(name, "consumer name")
    doing = f"look up consumer {name!r} of stream {stream!r}"
    answer = api.call(
        f"CONSUMER.INFO.{stream}.{name}", doing=doing, timeout=timeout, is_safe=True
    )
    return info_of(answer, doing)


def fetch_settled_info(
    api: Api, stream: str, name: str, *, timeout: Seconds | None = None
) -> ConsumerInfo:
    """The same, of a push consumer when its last subscriber may just have left.

    The server takes a moment to notice that, and tells nobody when it has.
    """
    left = api.countdown(timeout)
    deadline = monotonic() + UNBINDING
    while True:
        info = fetch_info(api, stream, name, timeout=left())
        is_bound = info.push_bound and not info.config.deliver_group
        if not is_bound or monotonic() >= deadline:
            return info
        api.loop.wait(Gate(), monotonic() + UNBINDING / 10)


def info_of(answer: Any, doing: str) -> ConsumerInfo:
    """The consumer that an answer tells of; ServerError if it tells of none."""
    if isinstance(answer, dict):
        info = ConsumerInfo.from_api(answer)
        if info.name and info.stream_name:
            return info
    raise ServerError(f"{doing}: the answer tells of no consumer")


def create(
    api: Api,
    stream: str,
    config: ConsumerConfig | None,
    fields: Mapping[str, Any],
    *,
    pedantic: bool = False,
    timeout: Seconds | None = None,
) -> ConsumerInfo:
    """Makes a consumer; making the same one again is fine."""
    check_name(stream, "stream name")
    wanted = consumer_config(config, **fields)
    return _send(api, stream, wanted, None, "create", pedantic, timeout)


def update(
    api: Api,
    stream: str,
    name: str,
    config: ConsumerConfig | None,
    fields: Mapping[str, Any],
    *,
    pedantic: bool = False,
    timeout: Seconds | None = None,
) -> ConsumerInfo:
    """Changes fields of a consumer; what is not named, known to us or not, stays."""
    changed = changes(consumer_config(config, **fields), fields)
    for field in ("name", "durable_name"):
        if changed.get(field, name) != name:
            raise InvalidArgumentError(
                f"{field} cannot be changed: this consumer is {name!r}"
            )
    # Two ways to say the same: one takes the place of the other.
    for one, other in FILTERS:
        if changed.get(one):
            changed.setdefault(other, None)
    left = api.countdown(timeout)
    current = fetch_info(api, stream, name, timeout=left()).config
    wanted = updated(current, changed)
    return _send(api, stream, wanted, current, "update", pedantic, left())


def create_or_update(
    api: Api,
    stream: str,
    config: ConsumerConfig | None,
    fields: Mapping[str, Any],
    *,
    pedantic: bool = False,
    timeout: Seconds | None = None,
) -> ConsumerInfo:
    """Changes a consumer, or makes it if there is none."""
    check_name(stream, "stream name")
    wanted = consumer_config(config, **fields)
    name = wanted.name or wanted.durable_name
    left = api.countdown(timeout)
    if name is not None:
        try:
            return update(
                api, stream, name, config, fields, pedantic=pedantic, timeout=left()
            )
        except ConsumerNotFoundError:
            pass
    return _send(api, stream, wanted, None, "", pedantic, left())


def _send(
    api: Api,
    stream: str,
    config: ConsumerConfig,
    current: ConsumerConfig | None,
    action: str,
    pedantic: bool,
    timeout: Seconds | None,
) -> ConsumerInfo:
    """Makes a consumer, or changes the current one."""
    check_change(config, current)
    needs = [*config.needs(), *(PEDANTIC if pedantic else ())]
    api.refuse_too_new(needs)
    name = config.name or config.durable_name or unique_name()[:8]
    left = api.countdown(timeout)
    if action == "create" and api.is_before(ACTIONS):
        standing = _standing(api, stream, name, config, left())
        if standing is not None:
            return standing
    wire = {**config.to_api(), "name": name}
    subject = f"CONSUMER.CREATE.{stream}.{name}"
    if wire.get("filter_subject"):
        subject += f".{wire['filter_subject']}"
    body: dict[str, Any] = {"stream_name": stream, "config": wire}
    if action:
        body["action"] = action
    if pedantic:
        body["pedantic"] = True
    verb = {"create": "create", "update": "update"}.get(action, "create or update")
    doing = f"{verb} consumer {name!r} of stream {stream!r}"
    # The name is fixed here: a second try finds what the first one made.
    answer = api.call(
        subject,
        body,
        doing=doing,
        timeout=left(),
        is_safe=True,
        headers=level_header(needs),
    )
    info = info_of(answer, doing)
    if config.filter_subjects and not info.config.filter_subjects:
        # Servers before 2.10 drop the field silently: this consumer gets everything.
        raise UnsupportedByServerError(
            "filter_subjects", (2, 10, 0), api.loop.info.version
        )
    return info


def _standing(
    api: Api, stream: str, name: str, wanted: ConsumerConfig, timeout: float
) -> ConsumerInfo | None:
    """The consumer of that name, if there is one and it is as wanted.

    ConsumerExistsError if it is not: a server that knows no actions would change it.
    """
    try:
        info = fetch_info(api, stream, name, timeout=timeout)
    except ConsumerNotFoundError:
        return None
    if differences(wanted, info.config):
        raise ConsumerExistsError(
            code=400,
            err_code=10148,
            description="consumer already exists",
            doing=f"create consumer {name!r} of stream {stream!r}",
        )
    return info


def delete(api: Api, stream: str, name: str, *, timeout: Seconds | None = None) -> None:
    """Deletes a consumer."""
    check_name(stream, "stream name")
    check_name(name, "consumer name")
    api.call(
        f"CONSUMER.DELETE.{stream}.{name}",
        doing=f"delete consumer {name!r} of stream {stream!r}",
        timeout=timeout,
    )


def listing(
    api: Api,
    stream: str,
    of: Callable[[ConsumerInfo], T],
    *,
    timeout: Seconds | None = None,
) -> Listing[T]:
    """The consumers of a stream, each as what `of` makes of it."""
    check_name(stream, "stream name")
    doing = f"list the consumers of stream {stream!r}"
    return api.pages(
        f"CONSUMER.LIST.{stream}",
        "consumers",
        lambda entry: of(info_of(entry, doing)),
        doing=doing,
        timeout=timeout,
        is_gathered=True,
    )


def names(api: Api, stream: str, *, timeout: Seconds | None = None) -> Listing[str]:
    """The names of every consumer of a stream."""
    check_name(stream, "stream name")
    return api.pages(
        f"CONSUMER.NAMES.{stream}",
        "consumers",
        str,
        doing=f"list the consumers of stream {stream!r}",
        timeout=timeout,
    )


def pause(
    api: Api,
    stream: str,
    name: str,
    until: datetime | str | None,
    *,
    timeout: Seconds | None = None,
) -> PauseInfo:
    """Pauses a consumer until that time; None resumes it."""
    check_name(stream, "stream name")
    check_name(name, "consumer name")
    api.refuse_too_new(PAUSE)
    body = None
    if until is not None:
        body = {"pause_until": format_time(check_time(until, "until"))}
    answer = api.call(
        f"CONSUMER.PAUSE.{stream}.{name}",
        body,
        doing=f"{'resume' if until is None else 'pause'} consumer {name!r} "
        f"of stream {stream!r}",
        timeout=timeout,
        is_safe=True,
    )
    return PauseInfo.from_api(answer)


def reset(
    api: Api,
    stream: str,
    name: str,
    seq: int | None,
    *,
    timeout: Seconds | None = None,
) -> ConsumerInfo:
    """Sets a consumer back to its ack floor, or to a sequence."""
    check_name(stream, "stream name")
    check_name(name, "consumer name")
    api.refuse_too_new(RESET)
    doing = f"reset consumer {name!r} of stream {stream!r}"
    answer = api.call(
        f"CONSUMER.RESET.{stream}.{name}",
        None if seq is None else {"seq": sequence_number(seq, "seq", least=0)},
        doing=doing,
        timeout=timeout,
    )
    return info_of(answer, doing)


def unpin(
    api: Api,
    stream: str,
    name: str,
    group: str,
    *,
    timeout: Seconds | None = None,
) -> None:
    """Takes the pin of a priority group from the client that has it."""
    check_name(stream, "stream name")
    check_name(name, "consumer name")
    check_group(group, "group")
    api.refuse_too_new(UNPIN)
    api.call(
        f"CONSUMER.UNPIN.{stream}.{name}",
        {"group": group},
        doing=f"unpin group {group!r} of consumer {name!r} of stream {stream!r}",
        timeout=timeout,
    )
