"""The subscribe workflow (ADR-15): from the arguments to a subscription.

    arguments ─▶ Wish ─▶ stream ─▶ consumer found? ─ yes ─▶ does it fit? ─▶ subscription
                                        │ no                     ▲
                                        ▼                        │ it exists after all
                                     create it ──────────────────┘

Arguments that cannot be are refused before anything is sent. What a call has made is
removed again if the call fails. One deadline holds for all of its steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from . import consumer as consumers_api
from . import errors
from . import stream as streams_api
from ._api import Api
from ._engine.arguments import Seconds, flag, text, unique_name
from ._engine.subscribe_rules import Wish, check_wish, filters_of, find_mismatch
from .config import AckPolicy, ConsumerConfig, consumer_config, differences
from .consumer import Consumer
from .info import ConsumerInfo
from .jetstream_errors import (
    ApiError,
    ConfigMismatchError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    JetStreamError,
    NoMatchingStreamError,
    SubscriptionMismatchError,
)
from .ownership import Ownership
from .pull_subscription import PullSubscription

# How long the server keeps a pull consumer without a durable name that nobody fetches
# from: five seconds, its own default, are less than a pause between two fetches may be.
INACTIVE_THRESHOLD = 300.0

# These have rules of their own.
_COMPARED_ELSEWHERE = ("name", "filter_subject", "filter_subjects", "deliver_group")


class Plan:
    """What a call asks for, checked, and the steps that both kinds of it take."""

    def __init__(
        self,
        api: Api,
        subject: str | None,
        *,
        stream: str | None,
        consumer: str | None,
        config: ConsumerConfig | None,
        options: Mapping[str, Any],
        fields: Mapping[str, Any],
        is_pull: bool,
        is_ordered: bool = False,
        timeout: Seconds | None,
    ) -> None:
        asked = merged(config, fields, options)
        given = asked.to_api()
        if asked.ack_policy is None:
            given.pop("ack_policy", None)  # which to_api sets
        self.asked = asked
        self.wish = Wish(
            subject=text(subject, "subject") or asked.filter_subject or "",
            stream=text(stream, "stream") or "",
            consumer=text(consumer, "consumer") or "",
            is_pull=is_pull,
            is_ordered=is_ordered,
            fields=given,
        )
        check_wish(self.wish)
        self._api = api
        self._left = api.countdown(timeout)

    def find_stream(self) -> str:
        """The stream that was named, or the only one that has the subject."""
        wish = self.wish
        if wish.stream:
            return wish.stream
        found = streams_api.names(self._api, subject=wish.subject, timeout=self._left())
        if len(found) != 1:
            raise NoMatchingStreamError(wish.subject, found)
        return found[0]

    def look_up(self, stream: str) -> ConsumerInfo | None:
        """The consumer that is there, if it fits; None if there is none yet."""
        wish = self.wish
        if not wish.name:
            return None
        try:
            info = consumers_api.fetch_info(
                self._api, stream, wish.name, timeout=self._left()
            )
        except ConsumerNotFoundError:
            if wish.consumer:
                raise
            return None
        self._check_fits(stream, info)
        return info

    def _check_fits(self, stream: str, info: ConsumerInfo) -> None:
        wish = self.wish
        mismatch = find_mismatch(
            wish, stream, info.config.to_api(), is_bound=info.push_bound
        )
        if mismatch is not None:
            raise mismatch
        found = differences(self.asked, info.config)
        for field in _COMPARED_ELSEWHERE:
            found.pop(field, None)
        if self.asked.ack_policy is None:
            found.pop("ack_policy", None)
        if found:
            raise ConfigMismatchError(stream, wish.name, found)

    def create(self, stream: str, config: ConsumerConfig) -> tuple[ConsumerInfo, bool]:
        """A new consumer, and True; or the one that somebody made just before us."""
        try:
            info = consumers_api.create(
                self._api, stream, config, {}, action="create", timeout=self._left()
            )
        except ConsumerExistsError:
            found = self.look_up(stream)
            if found is None:
                raise
            return found, False
        except ApiError:
            raise
        except BaseException:
            # Nobody knows whether it was made. Only ours can have this name, unless it
            # is a durable one: that may be another's.
            if not config.durable_name:
                self.discard(stream, config.name or "")
            raise
        return info, True

    def discard(self, stream: str, name: str) -> None:
        """Deletes a consumer without waiting; that may be too late or for nothing."""
        loop = self._api.loop
        subject = f"{self._api.prefix}CONSUMER.DELETE.{stream}.{name}"
        with contextlib.suppress(errors.Error):
            if loop.outbox.publish(subject, b"", None, None) == 1:
                loop.alert()

    def new_config(self, **changes: Any) -> ConsumerConfig:
        """The configuration of the consumer that is made if there is none."""
        wish, asked = self.wish, self.asked
        if not filters_of(wish.fields) and wish.subject:
            changes["filter_subject"] = wish.subject
        if not wish.name:
            changes["name"] = unique_name()[:8]
        elif not asked.name:
            changes["durable_name"] = wish.name
        config = asked.with_changes(**changes)
        config.validate()
        self._api.refuse_too_new(config.needs())
        return config


def merged(config: ConsumerConfig | None, *given: Mapping[str, Any]) -> ConsumerConfig:
    """The configuration with what was given beside it; ValueError for two values."""
    result = consumer_config(config)
    for fields in given:
        values = {name: value for name, value in fields.items() if value is not None}
        base, result = result, result.with_changes(**values)
        for name in values:
            before, now = getattr(base, name), getattr(result, name)
            if before is not None and before != now:
                raise errors.InvalidArgumentError(
                    f"{name} is given twice: {before!r} and {now!r}"
                )
    return result


def pull_subscribe(
    api: Api,
    subject: str | None,
    *,
    stream: str | None,
    consumer: str | None,
    config: ConsumerConfig | None,
    options: Mapping[str, Any],
    fields: Mapping[str, Any],
    delete_on_close: bool | None,
    timeout: Seconds | None,
) -> PullSubscription:
    """See `JetStream.pull_subscribe`."""
    plan = Plan(
        api,
        subject,
        stream=stream,
        consumer=consumer,
        config=config,
        options=options,
        fields=fields,
        is_pull=True,
        timeout=timeout,
    )
    wish = plan.wish
    is_kept = delete_on_close is not None and not flag(
        delete_on_close, "delete_on_close"
    )
    wanted = plan.new_config()
    if wanted.durable_name is None and wanted.inactive_threshold is None:
        wanted = wanted.with_changes(inactive_threshold=INACTIVE_THRESHOLD)
    name = plan.find_stream()
    try:
        info = plan.look_up(name)
    except SubscriptionMismatchError:
        raise
    except (JetStreamError, errors.TimeoutError, errors.PermissionsViolationError):
        # A consumer that cannot be looked up may be read nevertheless, as through an
        # import: the first fetch tells.
        if not wish.consumer:
            raise
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT)
        info = ConsumerInfo(stream_name=name, name=wish.consumer, config=config)
    is_made = False
    if info is None:
        info, is_made = plan.create(name, wanted)
    ownership = Ownership(api, name, info.name, is_ours=is_made and not is_kept)
    return PullSubscription(Consumer(api, info), ownership, wish.subject)
