"""Consumers: handles to what reads a stream on the server."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from ._api import Api, Listing, Needs
from ._engine.arguments import Seconds, integer, unique_name
from ._engine.values import check_group, check_name, check_time, format_time
from .config import ConsumerConfig, consumer_config
from .errors import ServerError
from .info import ConsumerInfo, PauseInfo
from .jetstream_errors import UnsupportedByServerError

PAUSE: Needs = [("pausing a consumer", (2, 11, 0))]
UNPIN: Needs = [("unpinning a priority group", (2, 11, 0))]
RESET: Needs = [("resetting a consumer", (2, 14, 0))]


class Consumer:
    """A consumer of a stream, made by `Stream.consumer` or `create_consumer`."""

    def __init__(self, api: Api, info: ConsumerInfo) -> None:
        self._api = api
        self._info = info

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The stream that it reads."""
        return self._info.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """What the server said of it last; `info` asks again."""
        return self._info

    def info(self, *, timeout: Seconds | None = None) -> ConsumerInfo:
        """What the server says of it now."""
        self._info = fetch_info(self._api, self.stream_name, self.name, timeout=timeout)
        return self._info

    def update(self, *, timeout: Seconds | None = None, **fields: Any) -> Consumer:
        """Changes fields of its configuration; all others stay as they are."""
        self._info = update(
            self._api, self.stream_name, self.name, fields, timeout=timeout
        )
        return self

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """Deletes it."""
        delete(self._api, self.stream_name, self.name, timeout=timeout)

    def pause(
        self, until: datetime | str, *, timeout: Seconds | None = None
    ) -> PauseInfo:
        """Stops deliveries until that time."""
        return pause(self._api, self.stream_name, self.name, until, timeout=timeout)

    def resume(self, *, timeout: Seconds | None = None) -> PauseInfo:
        """Ends a pause."""
        return pause(self._api, self.stream_name, self.name, None, timeout=timeout)

    def reset(
        self, seq: int | None = None, *, timeout: Seconds | None = None
    ) -> ConsumerInfo:
        """Goes back to what is not acknowledged yet, or to a sequence of the stream."""
        self._info = reset(self._api, self.stream_name, self.name, seq, timeout=timeout)
        return self._info

    def unpin(self, group: str, *, timeout: Seconds | None = None) -> None:
        """Takes the pin of a priority group from the client that has it."""
        unpin(self._api, self.stream_name, self.name, group, timeout=timeout)

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self.stream_name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Consumer cannot be pickled: pickle its names, and ask a JetStream of "
            "the other process for it"
        )


# The verbs, which streams and the JetStream context offer as well ---------------------


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
    fields: dict[str, Any],
    *,
    action: str,
    pedantic: bool = False,
    timeout: Seconds | None = None,
) -> ConsumerInfo:
    """Makes a consumer: `action` is "create", or "" to make or change it."""
    check_name(stream, "stream name")
    return _send(
        api, stream, consumer_config(config, **fields), action, pedantic, timeout
    )


def update(
    api: Api,
    stream: str,
    name: str,
    fields: dict[str, Any],
    *,
    timeout: Seconds | None = None,
) -> ConsumerInfo:
    """Changes fields of a consumer; what is not named, known to us or not, stays."""
    # Raises for what cannot be a field, before anything is sent.
    consumer_config(**fields)
    left = api.countdown(timeout)
    current = fetch_info(api, stream, name, timeout=left()).config
    return _send(api, stream, current.with_changes(**fields), "update", False, left())


def _send(
    api: Api,
    stream: str,
    config: ConsumerConfig,
    action: str,
    pedantic: bool,
    timeout: Seconds | None,
) -> ConsumerInfo:
    config.validate()
    api.refuse_too_new(config.needs())
    name = config.name or config.durable_name or unique_name()[:8]
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
    answer = api.call(subject, body, doing=doing, timeout=timeout, is_safe=True)
    info = info_of(answer, doing)
    if config.filter_subjects and not info.config.filter_subjects:
        # Servers before 2.10 drop the field silently: this consumer gets everything.
        raise UnsupportedByServerError(
            "filter_subjects", (2, 10, 0), api.loop.info.version
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
    api: Api, stream: str, *, timeout: Seconds | None = None
) -> Listing[Consumer]:
    """Every consumer of a stream."""
    check_name(stream, "stream name")
    doing = f"list the consumers of stream {stream!r}"
    return api.pages(
        f"CONSUMER.LIST.{stream}",
        "consumers",
        lambda entry: Consumer(api, info_of(entry, doing)),
        doing=doing,
        timeout=timeout,
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
        None if seq is None else {"seq": integer(seq, "seq", least=0)},
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
        is_safe=True,
    )
