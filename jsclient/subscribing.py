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

from . import _consumer_verbs as consumers_api
from . import _stream_verbs as streams_api
from . import errors
from ._api import Api
from ._engine.arguments import (
    check_callback,
    flag,
    integer,
    pending_limit,
    text,
    unique_name,
)
from ._engine.fields import nearest
from ._engine.subscribe_rules import Wish, check_wish, filters_of, find_mismatch
from .config import AckPolicy, ConsumerConfig, consumer_config, differences
from .config_fields import ConsumerFields
from .consumer import Consumer
from .info import ConsumerInfo
from .jetstream_errors import (
    ApiError,
    ConfigMismatchError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    JetStreamNotEnabledError,
    NoMatchingStreamError,
)
from .ordered_push import OrderedPushSubscription, ordered_config, ordered_push
from .ownership import Ownership
from .pull_subscription import PullSubscription
from .push import HEARTBEATS, PushSubscription, check_alarm
from .subscribe_options import PushOptions, ReadingOptions, SubscribeOptions

# As `subscribe_options` describes them: those of a PushOptions.
Options = Mapping[str, Any]

# How long the server keeps a pull consumer without a durable name that nobody fetches
# from: five seconds, its own default, are less than a pause between two fetches may be.
INACTIVE_THRESHOLD = 300.0

# Of a consumer with flow control that nobody gave one.
HEARTBEAT = 5.0

# Options that are no fields of a configuration.
_NO_FIELDS = {*PushOptions.__annotations__} - {*ConsumerFields.__annotations__}
_PULL_OPTIONS = {*SubscribeOptions.__annotations__, "durable"}

# These have rules of their own.
_COMPARED_ELSEWHERE = ("name", "filter_subject", "filter_subjects", "deliver_group")


class Plan:
    """What a call asks for, checked, and the steps that both kinds of it take."""

    def __init__(
        self,
        api: Api,
        subject: str | None,
        options: Options,
        *,
        is_pull: bool,
        is_ordered: bool = False,
    ) -> None:
        known = _PULL_OPTIONS if is_pull else {*PushOptions.__annotations__}
        if unknown := {*options} - known:
            hint = nearest(min(unknown), known)
            raise TypeError(f"there is no option {min(unknown)!r}{hint}")
        fields = {
            name: value for name, value in options.items() if name not in _NO_FIELDS
        }
        names = {
            "durable_name": options.get("durable"),
            "deliver_group": options.get("queue"),
        }
        asked = merged(options.get("config"), fields, names)
        given = asked.to_api()
        if asked.ack_policy is None:
            given.pop("ack_policy", None)  # which to_api sets
        self.asked = asked
        self.wish = Wish(
            subject=text(subject, "subject") or asked.filter_subject or "",
            stream=text(options.get("stream"), "stream") or "",
            consumer=text(options.get("consumer"), "consumer") or "",
            is_pull=is_pull,
            is_ordered=is_ordered,
            fields=given,
        )
        check_wish(self.wish)
        deletes = options.get("delete_on_close")
        # Other members of a queue may still use what the first of them has made.
        self._deletes = flag(
            not self.wish.queue if deletes is None else deletes, "delete_on_close"
        )
        self._api = api
        self.left = api.countdown(options.get("timeout"))

    def find_stream(self) -> str:
        """The stream that was named, or the only one that has the subject."""
        wish = self.wish
        if wish.stream:
            return wish.stream
        found = streams_api.names(self._api, subject=wish.subject, timeout=self.left())
        if len(found) != 1:
            raise NoMatchingStreamError(wish.subject, found)
        return found[0]

    def look_up(self, stream: str) -> ConsumerInfo | None:
        """The consumer that is there, if it fits; None if there is none yet."""
        wish = self.wish
        if not wish.name:
            return None
        try:
            info = consumers_api.fetch_settled_info(
                self._api, stream, wish.name, timeout=self.left()
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
                self._api, stream, config, {}, timeout=self.left()
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


def pull_subscribe(api: Api, subject: str | None, options: Options) -> PullSubscription:
    """See `JetStream.pull_subscribe`."""
    plan = Plan(api, subject, options, is_pull=True)
    wish = plan.wish
    wanted = plan.new_config()
    if wanted.durable_name is None and wanted.inactive_threshold is None:
        wanted = wanted.with_changes(inactive_threshold=INACTIVE_THRESHOLD)
    name = plan.find_stream()
    try:
        info = plan.look_up(name)
    except (
        JetStreamNotEnabledError,
        errors.TimeoutError,
        errors.PermissionsViolationError,
    ):
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


def check_reading(options: Options, *, is_ordered: bool) -> dict[str, Any]:
    """How a push subscription is read; raises for what it would refuse later."""
    callback = options.get("callback")
    if callback is not None:
        check_callback(callback)
    flag(options.get("raw_status", False), "raw_status")
    check_alarm(options.get("heartbeat_alarm", HEARTBEATS))
    pending_limit(options.get("max_pending_messages"), "max_pending_messages")
    pending_limit(options.get("max_pending_bytes"), "max_pending_bytes")
    if (resets := options.get("max_resets")) is not None:
        integer(resets, "max_resets", least=0)
    for option, needs_ordered in (("max_resets", True), ("raw_status", False)):
        if options.get(option) and is_ordered != needs_ordered:
            kind = "an ordered" if needs_ordered else "no ordered"
            raise errors.InvalidArgumentError(f"{option} is for {kind} subscription")
    names = ReadingOptions.__annotations__
    return {name: value for name, value in options.items() if name in names}


def subscribe_ordered(
    api: Api, subject: str | None, options: Options, keeps: object
) -> OrderedPushSubscription:
    """See `JetStream.subscribe`, with `ordered`."""
    reading = check_reading(options, is_ordered=True)
    plan = Plan(api, subject, options, is_pull=False, is_ordered=True)
    # Raises for fields that are not for the caller to say.
    ordered_config(plan.asked)
    wanted = plan.asked
    if not filters_of(plan.wish.fields) and plan.wish.subject:
        wanted = wanted.with_changes(filter_subject=plan.wish.subject)
    return ordered_push(
        api,
        plan.find_stream(),
        wanted,
        max_resets=options.get("max_resets"),
        timeout=plan.left(),
        keeps=keeps,
        **reading,
    )


def subscribe(
    api: Api, subject: str | None, options: Options, keeps: object
) -> PushSubscription:
    """See `JetStream.subscribe`."""
    reading = check_reading(options, is_ordered=False)
    is_raw = options.get("raw_status", False)
    plan = Plan(api, subject, options, is_pull=False)
    wanted = push_config(plan, f"{api.loop.options.inbox_prefix}.{unique_name()}")
    name = plan.find_stream()

    def listen(config: ConsumerConfig, *, is_new: bool) -> PushSubscription:
        return PushSubscription(
            api,
            name,
            config,
            is_new=is_new,
            keeps=keeps,
            raw_status=is_raw,
            **reading,
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
