"""The options of pulls, checked before anything is sent."""

from __future__ import annotations

import math
from typing import Literal, TypedDict

from ._engine.arguments import Seconds, count, integer, seconds, text
from ._engine.fields import nearest
from ._engine.pull import MANY, Policy
from ._engine.values import check_group, duration_ns
from .config import ConsumerConfig
from .errors import InvalidArgumentError

# What calls that take these options have besides.
_OTHERS = ("max_messages", "max_bytes", "timeout", "expires", "idle_heartbeat")

DEFAULT_MESSAGES = 500
LEAST_HEARTBEAT = 0.1  # of a fetch
# Of a pull whose end a drain waits for, by default: less than the 5 seconds of a drain.
SHORT_LIFE = 4.0

__all__ = [
    "MANY",
    "ConsumeOptions",
    "OrderedOptions",
    "PullOptions",
    "consume_policy",
    "fetch_policy",
    "pull_fields",
    "refuse_for_push",
]


class PullOptions(TypedDict, total=False):
    """What a pull may say to a consumer with priority groups."""

    group: str | None
    priority: int | None
    min_pending: int | None
    min_ack_pending: int | None


class OrderedOptions(TypedDict, total=False):
    """What `OrderedConsumer.messages` has, for those who hand it on."""

    max_messages: int | None
    max_bytes: int | None
    expires: Seconds | None
    idle_heartbeat: Seconds | None
    stop_after: int | None


class ConsumeOptions(OrderedOptions, PullOptions, total=False):
    """What `Consumer.messages` has, for those who hand it on."""

    threshold_messages: int | None
    threshold_bytes: int | None
    on_missing: Literal["raise", "wait"]


def refuse_unknown(pull: PullOptions) -> None:
    """Raises a TypeError for what is no option of a pull."""
    if unknown := set(pull) - set(PullOptions.__annotations__):
        hint = nearest(min(unknown), [*PullOptions.__annotations__, *_OTHERS])
        raise TypeError(f"there is no option {min(unknown)!r}{hint}")


def refuse_for_push(pull: PullOptions, **options: tuple[object, object]) -> None:
    """Raises for an option that is given, and is not as it is by default."""
    refuse_unknown(pull)
    given = {name for name, (value, default) in options.items() if value != default}
    if given := given | set(pull):
        raise InvalidArgumentError(
            f"{min(given)} is for pull consumers: a push consumer delivers by itself"
        )


def pull_fields(config: ConsumerConfig, pull: PullOptions) -> dict[str, int | str]:
    """The fields of a pull; ValueError for what the consumer would refuse."""
    refuse_unknown(pull)
    fields: dict[str, int | str] = {}
    group = text(pull.get("group"), "group")
    groups = config.priority_groups
    if group is not None:
        fields["group"] = check_group(group, "group")
    if groups and group not in groups:
        raise InvalidArgumentError(
            f"the consumer has priority groups: group must be one of {groups}, "
            f"not {group!r}"
        )
    priority = pull.get("priority")
    if priority is not None:
        if integer(priority, "priority", least=0) > 9:
            raise InvalidArgumentError(f"priority must be from 0 to 9: {priority}")
        fields["priority"] = priority
    overflow = {
        "min_pending": pull.get("min_pending"),
        "min_ack_pending": pull.get("min_ack_pending"),
    }
    for name, value in overflow.items():
        if value is not None:
            if config.priority_policy != "overflow":
                raise InvalidArgumentError(
                    f"{name} needs the priority policy 'overflow'"
                )
            fields[name] = count(value, name, least=0)
    return fields


def consume_policy(
    limits: ConsumerConfig,
    *,
    max_messages: int | None,
    max_bytes: int | None,
    threshold_messages: int | None,
    threshold_bytes: int | None,
    expires: Seconds | None,
    idle_heartbeat: Seconds | None,
    stop_after: int | None,
    on_missing: str = "raise",
    default_messages: int = DEFAULT_MESSAGES,
    default_heartbeat: float = 30.0,
    awaits_ends: bool = False,
    doing: str,
) -> Policy:
    """Checks the options of an endless pull against the consumer's limits.

    What is not given is as large as the limits allow. Who `awaits_ends` of pulls to
    drain has shorter ones by default.
    """
    if max_messages is not None and max_bytes is not None:
        raise InvalidArgumentError("give max_messages or max_bytes, not both")
    if on_missing not in ("raise", "wait"):
        raise InvalidArgumentError(
            f"on_missing must be 'raise' or 'wait': {on_missing!r}"
        )
    longest = seconds(limits.max_expires or None, "max_expires")
    usual = min(30.0, longest, _pin_limit(limits))
    if awaits_ends:
        beats = 2 * seconds(idle_heartbeat or 0, "idle_heartbeat")
        usual = min(usual, max(SHORT_LIFE, beats))
    life = usual if expires is None else seconds(expires, "expires")
    least = min(1.0, usual)
    if not least <= life < math.inf:
        raise InvalidArgumentError(
            f"expires must be at least {least:g} s, and finite: {life:g}"
        )
    if life > longest:
        raise InvalidArgumentError(
            f"expires is {life:g} s; the consumer allows {longest:g} s"
        )
    duration_ns(life, "expires")
    beat = min(life / 2, default_heartbeat)
    if idle_heartbeat is not None:
        beat = seconds(idle_heartbeat, "idle_heartbeat")
        if not min(0.5, life / 2) <= beat <= min(30.0, life / 2):
            raise InvalidArgumentError(
                "idle_heartbeat must be from 0.5 to 30 seconds and at most half of "
                f"expires: {idle_heartbeat}"
            )
    messages = (
        default_messages
        if max_messages is None
        else count(max_messages, "max_messages")
    )
    size = 0 if max_bytes is None else count(max_bytes, "max_bytes")
    if size and limits.max_bytes and size > limits.max_bytes:
        raise InvalidArgumentError(
            f"max_bytes is {size}; the consumer allows {limits.max_bytes}"
        )
    batch_limit = limits.max_batch or 0
    if not size and batch_limit and messages > batch_limit:
        if max_messages is not None:
            raise InvalidArgumentError(
                f"max_messages is {messages}; the consumer allows {batch_limit}"
            )
        messages = batch_limit
    low = _threshold(threshold_messages, "threshold_messages", messages)
    low_bytes = _threshold(threshold_bytes, "threshold_bytes", size) if size else 0
    if threshold_bytes is not None and not size:
        raise InvalidArgumentError("threshold_bytes needs max_bytes")
    if threshold_messages is not None and size:
        raise InvalidArgumentError("threshold_messages has no use beside max_bytes")
    return Policy(
        is_fetch=False,
        max_messages=MANY if size else messages,
        max_bytes=size,
        threshold_messages=low,
        threshold_bytes=low_bytes,
        expires=life,
        heartbeat=beat,
        stop_after=0 if stop_after is None else count(stop_after, "stop_after"),
        batch_limit=batch_limit,
        is_patient=on_missing == "wait",
        awaits_ends=awaits_ends,
        doing=doing,
    )


def fetch_policy(
    limits: ConsumerConfig,
    *,
    max_messages: int,
    max_bytes: int | None,
    timeout: float,
    no_wait: bool,
    idle_heartbeat: Seconds | None,
    doing: str,
) -> Policy:
    """Checks the options of a fetch against the consumer's limits."""
    count(max_messages, "max_messages")
    if max_bytes is not None:
        count(max_bytes, "max_bytes")
    if timeout == math.inf:
        raise InvalidArgumentError("timeout must be finite: the server must know it")
    duration_ns(timeout, "timeout")
    batch_limit = limits.max_batch or 0
    is_counted = max_bytes is None or max_messages != MANY
    if is_counted and batch_limit and max_messages > batch_limit:
        raise InvalidArgumentError(
            f"max_messages is {max_messages}; the consumer allows {batch_limit}"
        )
    if max_bytes is not None and limits.max_bytes and max_bytes > limits.max_bytes:
        raise InvalidArgumentError(
            f"max_bytes is {max_bytes}; the consumer allows {limits.max_bytes}"
        )
    beat = 5.0 if timeout >= 10 else 0.0
    if idle_heartbeat is not None:
        beat = seconds(idle_heartbeat, "idle_heartbeat")
        if beat and not LEAST_HEARTBEAT <= beat <= timeout / 2:
            raise InvalidArgumentError(
                f"idle_heartbeat must be at least {LEAST_HEARTBEAT} s and at most half "
                f"of timeout, or 0: {idle_heartbeat}"
            )
    return Policy(
        is_fetch=True,
        max_messages=max_messages,
        max_bytes=max_bytes or 0,
        expires=timeout,
        heartbeat=0.0 if no_wait else beat,
        no_wait=no_wait,
        batch_limit=batch_limit,
        expires_limit=min(
            seconds(limits.max_expires or None, "max_expires"), _pin_limit(limits)
        ),
        doing=doing,
    )


def _pin_limit(limits: ConsumerConfig) -> float:
    """How long a pull may live: the client that is pinned has to ask again in time."""
    if limits.priority_policy != "pinned_client" or not limits.priority_timeout:
        return math.inf
    return seconds(limits.priority_timeout, "priority_timeout") / 2


def _threshold(value: int | None, name: str, limit: int) -> int:
    """The level at which more is asked for: half of the limit by default."""
    if value is None:
        return limit // 2
    if integer(value, name, least=0) > limit:
        raise InvalidArgumentError(f"{name} must be at most {limit}: {value}")
    # At the very limit every message would be asked for by itself.
    return min(value, limit - 1)
