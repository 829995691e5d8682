"""The fields of configurations as keyword arguments, for checkers and editors.

`StreamConfig` and `ConsumerConfig` say what they mean. Names cannot be changed, so they
stand apart. What is a value with parts there may here be a dict of them, a stream that
is mirrored or sourced its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from .config import (
    AckPolicy,
    ConsumerLimits,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    Placement,
    PriorityPolicy,
    ReplayPolicy,
    Republish,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamSource,
    SubjectTransform,
)

Parts = Mapping[str, Any]


class StreamSettings(TypedDict, total=False):
    """The fields of a StreamConfig that an update may name."""

    description: str | None
    subjects: list[str] | tuple[str, ...] | None
    retention: RetentionPolicy | str | None
    max_consumers: int | None
    max_msgs: int | None
    max_bytes: int | None
    max_age: float | timedelta | None
    max_msgs_per_subject: int | None
    max_msg_size: int | None
    discard: DiscardPolicy | str | None
    discard_new_per_subject: bool | None
    storage: StorageType | str | None
    num_replicas: int | None
    no_ack: bool | None
    duplicate_window: float | timedelta | None
    placement: Placement | Parts | None
    mirror: StreamSource | Parts | str | None
    sources: Sequence[StreamSource | Parts | str] | None
    sealed: bool | None
    deny_delete: bool | None
    deny_purge: bool | None
    allow_rollup_hdrs: bool | None
    republish: Republish | Parts | None
    allow_direct: bool | None
    mirror_direct: bool | None
    compression: StoreCompression | str | None
    first_seq: int | None
    subject_transform: SubjectTransform | Parts | None
    consumer_limits: ConsumerLimits | Parts | None
    metadata: dict[str, str] | None
    allow_msg_ttl: bool | None
    subject_delete_marker_ttl: float | timedelta | None
    allow_msg_counter: bool | None
    allow_atomic: bool | None
    allow_msg_schedules: bool | None
    persist_mode: PersistMode | str | None
    allow_batched: bool | None
    extra: dict[str, Any]


class StreamFields(StreamSettings, total=False):
    """The fields of a StreamConfig."""

    name: str | None


class ConsumerSettings(TypedDict, total=False):
    """The fields of a ConsumerConfig that an update may name."""

    durable_name: str | None
    description: str | None
    deliver_policy: DeliverPolicy | str | None
    opt_start_seq: int | None
    opt_start_time: datetime | str | None
    ack_policy: AckPolicy | str | None
    ack_wait: float | timedelta | None
    max_deliver: int | None
    backoff: Sequence[float | timedelta] | None
    filter_subject: str | None
    filter_subjects: list[str] | tuple[str, ...] | None
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
    priority_groups: list[str] | tuple[str, ...] | None
    priority_policy: PriorityPolicy | str | None
    priority_timeout: float | timedelta | None
    deliver_subject: str | None
    deliver_group: str | None
    flow_control: bool | None
    idle_heartbeat: float | timedelta | None
    extra: dict[str, Any]


class ConsumerFields(ConsumerSettings, total=False):
    """The fields of a ConsumerConfig."""

    name: str | None


class OrderedFields(TypedDict, total=False):
    """The fields of a ConsumerConfig that are open to an ordered consumer."""

    description: str | None
    deliver_policy: DeliverPolicy | str | None
    opt_start_seq: int | None
    opt_start_time: datetime | str | None
    replay_policy: ReplayPolicy | str | None
    headers_only: bool | None
    metadata: dict[str, str] | None
    max_batch: int | None
    max_expires: float | timedelta | None
    max_bytes: int | None
