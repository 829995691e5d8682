"""The options of `JetStream.subscribe` and `pull_subscribe`, for checkers and editors.

What a consumer is configured by may be given directly, as `ack_wait=5`, or as `config`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypedDict

from ._core import Msg
from ._engine.arguments import Seconds
from .config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
)


class ConsumerFields(TypedDict, total=False):
    """The fields of a ConsumerConfig."""

    name: str | None
    durable_name: str | None
    description: str | None
    deliver_policy: DeliverPolicy | str | None
    opt_start_seq: int | None
    opt_start_time: datetime | str | None
    ack_policy: AckPolicy | str | None
    ack_wait: float | timedelta | None
    max_deliver: int | None
    backoff: list[float | timedelta] | None
    filter_subject: str | None
    filter_subjects: list[str] | None
    replay_policy: ReplayPolicy | str | None
    rate_limit_bps: int | None
    sample_freq: str | None
    max_waiting: int | None
    max_ack_pending: int | None
    headers_only: bool | None
    max_batch: int | None
    max_expires: float | timedelta | None
    max_bytes: int | None
    inactive_threshold: float | timedelta | None
    num_replicas: int | None
    mem_storage: bool | None
    metadata: dict[str, str] | None
    pause_until: datetime | str | None
    priority_groups: list[str] | None
    priority_policy: PriorityPolicy | str | None
    priority_timeout: float | timedelta | None
    deliver_subject: str | None
    deliver_group: str | None
    flow_control: bool | None
    idle_heartbeat: float | timedelta | None


class SubscribeOptions(ConsumerFields, total=False):
    """What both kinds of subscriptions have."""

    stream: str | None
    consumer: str | None
    config: ConsumerConfig | None
    delete_on_close: bool | None
    timeout: Seconds | None


class ReadingOptions(TypedDict, total=False):
    """How the messages of a push consumer are read."""

    callback: Callable[[Msg], object] | None
    heartbeat_alarm: float
    max_pending_messages: int | None
    max_pending_bytes: int | None


class PushOptions(SubscribeOptions, ReadingOptions, total=False):
    """What a push subscription has."""

    durable: str | None
    queue: str | None
    raw_status: bool
    max_resets: int | None
