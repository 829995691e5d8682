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
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from . import consumer as consumers_api
from . import errors
from . import stream as streams_api
from ._api import Api
from ._core import Msg
from ._engine.arguments import Seconds, flag, pending_limit, text, unique_name
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
from .push import HEARTBEATS, PushSubscription, check_alarm

# How long the server keeps a pull consumer without a durable name that nobody fetches
# from: five seconds, its own default, are less than a pause between two fetches may be.
INACTIVE_THRESHOLD = 300.0

# Of a consumer with flow control that nobody gave one.
HEARTBEAT = 5.0

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
        delete_on_close: bool | None,
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
        if delete_on_close is None:
            # Other members of a queue may still use what the first of them has made.
            delete_on_close = not self.wish.queue
        self._deletes = flag(delete_on_close, "delete_on_close")
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

    def ownership(self, info: ConsumerInfo, *, is_made: bool) -> Ownership:
        """Whether the consumer goes with the subscription, made by this call or not."""
        return Ownership(
            self._api, info.stream_name, info.name, is_ours=is_made and self._deletes
        )

    def new_config(self, **changes: Any) -> ConsumerConfig:
        """The configuration of the consumer that is made if there is none."""
        wish, asked = self.wish, self.asked
        if asked.ack_policy is None:
            changes["ack_policy"] = AckPolicy.EXPLICIT
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
        delete_on_close=delete_on_close,
        timeout=timeout,
    )
    wish = plan.wish
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
    ownership = plan.ownership(info, is_made=is_made)
    return PullSubscription(Consumer(api, info), ownership, wish.subject)


class PushOptions(TypedDict, total=False):
    """How a push subscription is read."""

    callback: Callable[[Msg], object] | None
    raw_status: bool
    heartbeat_alarm: float
    max_pending_messages: int | None
    max_pending_bytes: int | None


def check_push_options(options: PushOptions) -> None:
    """Raises for what the subscription would refuse later."""
    callback = options.get("callback")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")
    flag(options.get("raw_status", False), "raw_status")
    check_alarm(options.get("heartbeat_alarm", HEARTBEATS))
    pending_limit(options.get("max_pending_messages"), "max_pending_messages")
    pending_limit(options.get("max_pending_bytes"), "max_pending_bytes")


def subscribe(
    api: Api,
    subject: str | None,
    *,
    stream: str | None,
    consumer: str | None,
    config: ConsumerConfig | None,
    options: Mapping[str, Any],
    fields: Mapping[str, Any],
    reading: PushOptions,
    delete_on_close: bool | None,
    timeout: Seconds | None,
    keeps: object,
) -> PushSubscription:
    """See `JetStream.subscribe`."""
    check_push_options(reading)
    plan = Plan(
        api,
        subject,
        stream=stream,
        consumer=consumer,
        config=config,
        options=options,
        fields=fields,
        is_pull=False,
        delete_on_close=delete_on_close,
        timeout=timeout,
    )
    wanted = push_config(plan, f"{api.loop.options.inbox_prefix}.{unique_name()}")
    name = plan.find_stream()

    def listen(config: ConsumerConfig, *, is_new: bool) -> PushSubscription:
        return PushSubscription(
            api, name, config, is_new=is_new, keeps=keeps, **reading
        )

    info = plan.look_up(name)
    if info is not None:
        return listen(info.config, is_new=False).bound(info)
    is_made = False
    sub = listen(wanted, is_new=True)
    try:
        info, is_made = plan.create(name, wanted)
        if not is_made:
            sub.unsubscribe()
            sub = listen(info.config, is_new=False)
        ownership = plan.ownership(info, is_made=is_made)
        return sub.bound(info, ownership.release if ownership.is_ours else None)
    except BaseException:
        with contextlib.suppress(errors.Error):
            sub.unsubscribe()
        if is_made:
            plan.discard(name, wanted.durable_name or wanted.name or "")
        raise


def push_config(plan: Plan, inbox: str) -> ConsumerConfig:
    """The configuration of a push consumer that delivers there, if not elsewhere."""
    asked = plan.asked
    changes: dict[str, Any] = {"deliver_subject": asked.deliver_subject or inbox}
    if asked.flow_control and asked.idle_heartbeat is None:
        # The server wants one beside it: a lost answer is noticed by it.
        changes["idle_heartbeat"] = HEARTBEAT
    return plan.new_config(**changes)
