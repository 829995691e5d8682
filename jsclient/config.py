"""How streams and consumers are configured: every field of servers 2.9 to 2.15.

Fields have the names of the wire. A field that is None is not sent: the server fills in
its default. Durations are seconds or a timedelta and read back as seconds; instants are
aware datetimes or RFC 3339 texts; choices are the members of the Enums here or their
texts in any case; lists and dicts that are set to be empty are sent, which clears them.

An update changes the fields that a configuration sets, and those that the call names:
named as None, a field goes back to the server's default. All others stay as they are.

A release in brackets is the first one that knows the field, if it is later than 2.9.
What a server tells and this module does not know is kept in `extra` and sent back; an
update puts the `extra` that it is given on top of that.

    StreamConfig(name="ORDERS", subjects=["orders.>"], storage="memory", max_age=3600)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from datetime import datetime, timedelta
from typing import Any, TypeVar

from ._config_parts import (
    BY_ANNOTATION,
    AckPolicy,
    ConsumerLimits,
    DeliverPolicy,
    DiscardPolicy,
    ExternalStream,
    PersistMode,
    Placement,
    PriorityPolicy,
    ReplayPolicy,
    Republish,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
)
from ._config_rules import check_consumer, check_stream
from ._engine import fields
from ._engine.defaults import different
from ._engine.releases import Version, needs

__all__ = [
    "AckPolicy",
    "ConsumerConfig",
    "ConsumerLimits",
    "DeliverPolicy",
    "DiscardPolicy",
    "ExternalStream",
    "PersistMode",
    "Placement",
    "PriorityPolicy",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "StorageType",
    "StoreCompression",
    "StreamConfig",
    "StreamConsumerSource",
    "StreamSource",
    "SubjectTransform",
    "changes",
    "consumer_config",
    "differences",
    "stream_config",
    "updated",
]


@dataclass(kw_only=True, slots=True, repr=False)
class StreamConfig:
    """How a stream is configured.

    name: the stream's name; cannot be changed
    description: for people, at most 4096 bytes
    subjects: what it stores; the name alone if unset; none for a mirror
    retention: when messages go, besides the limits; `limits`
    max_consumers: how many consumers it may have; -1, no limit
    max_msgs, max_bytes: how much it holds at most; -1, no limit
    max_age: how long messages stay, 0.1 seconds or more; 0, for ever
    max_msgs_per_subject: how many messages of one subject it holds; -1, no limit
    max_msg_size: how large headers and payload may be; -1, no limit
    discard: what it does when it is full; `old`
    discard_new_per_subject: refuse new messages of a subject that is full, which needs
        `discard` `new` and `max_msgs_per_subject`; False [2.9.1]
    storage: `file`; cannot be changed
    num_replicas: how many servers have it, 1 to 5; 1
    no_ack: publishers get no acks; False
    duplicate_window: how long message ids are remembered, 0.1 seconds or more; 120, or
        `max_age` if that is less, 0 for a mirror or with sources
    placement: which servers have it
    mirror: the stream that this one is a copy of; can only be removed
    sources: the streams that this one takes messages from
    sealed: nothing in it changes any more; False, cannot be taken back
    deny_delete, deny_purge: False, cannot be taken back
    allow_rollup_hdrs: messages may replace older ones (`Nats-Rollup`); False
    republish: what it publishes again once stored
    allow_direct: replicas and mirrors may answer reads; False
    mirror_direct: a mirror answers reads for its origin; as the origin's allow_direct
    compression: `none` [2.10]
    first_seq: the first sequence of a new stream; 1 [2.10]
    subject_transform: how subjects are rewritten before storing [2.10]
    consumer_limits: for all its consumers [2.10]
    metadata: texts by key, at most 128 KiB; keys with `_nats.` are the server's [2.10]
    allow_msg_ttl: messages may have a TTL; False, cannot be taken back [2.11]
    subject_delete_marker_ttl: how long a marker tells that `max_age` emptied a subject,
        1 second or more; 0, no markers [2.11]
    allow_msg_counter: it counts: messages are increments; False, fixed [2.12]
    allow_atomic: batches that are stored as a whole; False [2.12]
    allow_msg_schedules: messages for later; False, cannot be taken back [2.12]
    persist_mode: `default`; cannot be changed [2.12]
    allow_batched: fast batches; False [2.14]
    """

    name: str | None = None
    description: str | None = None
    subjects: list[str] | None = None
    retention: RetentionPolicy | str | None = None
    max_consumers: int | None = None
    max_msgs: int | None = None
    max_bytes: int | None = None
    max_age: float | timedelta | None = None
    max_msgs_per_subject: int | None = None
    max_msg_size: int | None = None
    discard: DiscardPolicy | str | None = None
    discard_new_per_subject: bool | None = None
    storage: StorageType | str | None = None
    num_replicas: int | None = None
    no_ack: bool | None = None
    duplicate_window: float | timedelta | None = None
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: list[StreamSource] | None = None
    sealed: bool | None = None
    deny_delete: bool | None = None
    deny_purge: bool | None = None
    allow_rollup_hdrs: bool | None = None
    republish: Republish | None = None
    allow_direct: bool | None = None
    mirror_direct: bool | None = None
    compression: StoreCompression | str | None = None
    first_seq: int | None = None
    subject_transform: SubjectTransform | None = None
    consumer_limits: ConsumerLimits | None = None
    metadata: dict[str, str] | None = None
    allow_msg_ttl: bool | None = None
    subject_delete_marker_ttl: float | timedelta | None = None
    allow_msg_counter: bool | None = None
    allow_atomic: bool | None = None
    allow_msg_schedules: bool | None = None
    persist_mode: PersistMode | str | None = None
    allow_batched: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[StreamConfig])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[StreamConfig])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server: the fields that are set."""
        return fields.to_api(self, _KINDS[StreamConfig])

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> StreamConfig:
        """The configuration that a server's JSON tells."""
        # Gone from the server in 2.14, which refuses requests that still have it.
        return cls(**fields.from_api(raw, _KINDS[StreamConfig], {"template_owner"}))

    def validate(self) -> None:
        """Raises an InvalidArgumentError for what every server would refuse."""
        check_stream(self)

    def needs(self) -> list[tuple[str, Version]]:
        """The fields in use that not every server knows, and the release of each."""
        return needs("StreamConfig", self.to_api())

    def with_changes(self, **changes: Any) -> StreamConfig:
        """A copy in which these fields are different."""
        fields.check_known(changes, StreamConfig)
        return replace(self, **changes)


@dataclass(kw_only=True, slots=True, repr=False)
class ConsumerConfig:
    """How a consumer is configured: a pull consumer unless it has a `deliver_subject`.

    name: the consumer's name; one is made up if unset; cannot be changed
    durable_name: the same, for a consumer that outlives its clients
    description: for people, at most 4096 bytes
    deliver_policy: where in the stream it begins; `all`, cannot be changed
    opt_start_seq, opt_start_time: where, if the policy is `by_start_…`
    ack_policy: `explicit` for pull, `none` for push; cannot be changed
    ack_wait: seconds until a message without an ack is delivered again; 30
    max_deliver: how often a message is delivered at most; -1, no limit
    backoff: seconds until each further delivery, instead of `ack_wait`; not more of
        them than `max_deliver`
    filter_subject: deliver only these subjects
    filter_subjects: the same, for more than one; they must not overlap [2.10]
    replay_policy: `instant`; cannot be changed
    rate_limit_bps: bits per second, push only; 0, no limit
    sample_freq: the share of acks that are reported, as "50%"
    max_waiting: how many pulls may wait, pull only; 512, cannot be changed
    max_ack_pending: how many messages may wait for acks; 1000, -1 is no limit
    headers_only: deliver without payloads; False
    max_batch, max_expires, max_bytes: the most that one pull may ask for; 0, no limit
    inactive_threshold: seconds until a consumer that nobody uses is deleted; 5 for
        those without a `durable_name`
    num_replicas: how many servers have it; 0, as the stream
    mem_storage: keep its state in memory; False, cannot be changed
    metadata: texts by key, at most 128 KiB; keys with `_nats.` are the server's [2.10]
    pause_until: deliver nothing before this instant [2.11]
    priority_groups: names of 1 to 16 letters, pull only [2.11]
    priority_policy: who of a group gets messages; `none` [2.11]
    priority_timeout: seconds after which a silent pinned client is replaced; 120 [2.11]
    deliver_subject: where a push consumer delivers to
    deliver_group: the queue group that shares the deliveries, push only
    flow_control: deliver only as fast as the client keeps up, push only; False
    idle_heartbeat: seconds of silence until a heartbeat, 0.1 or more, push only
    """

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: DeliverPolicy | str | None = None
    opt_start_seq: int | None = None
    opt_start_time: datetime | str | None = None
    ack_policy: AckPolicy | str | None = None
    ack_wait: float | timedelta | None = None
    max_deliver: int | None = None
    backoff: list[float | timedelta] | None = None
    filter_subject: str | None = None
    filter_subjects: list[str] | None = None
    replay_policy: ReplayPolicy | str | None = None
    rate_limit_bps: int | None = None
    sample_freq: str | None = None
    max_waiting: int | None = None
    max_ack_pending: int | None = None
    headers_only: bool | None = None
    max_batch: int | None = None
    max_expires: float | timedelta | None = None
    max_bytes: int | None = None
    inactive_threshold: float | timedelta | None = None
    num_replicas: int | None = None
    mem_storage: bool | None = None
    metadata: dict[str, str] | None = None
    pause_until: datetime | str | None = None
    priority_groups: list[str] | None = None
    priority_policy: PriorityPolicy | str | None = None
    priority_timeout: float | timedelta | None = None
    deliver_subject: str | None = None
    deliver_group: str | None = None
    flow_control: bool | None = None
    idle_heartbeat: float | timedelta | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[ConsumerConfig])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[ConsumerConfig])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server: the fields that are set, and always an ack policy."""
        result = fields.to_api(self, _KINDS[ConsumerConfig])
        # To the server an absent policy is `none`: messages of a pull would be lost.
        if not self.deliver_subject:
            result.setdefault("ack_policy", AckPolicy.EXPLICIT.value)
        return result

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> ConsumerConfig:
        """The configuration that a server's JSON tells."""
        # Marks of consumers that servers make for themselves; no client may send them.
        return cls(
            **fields.from_api(raw, _KINDS[ConsumerConfig], {"direct", "sourcing"})
        )

    def validate(self) -> None:
        """Raises an InvalidArgumentError for what every server would refuse."""
        check_consumer(self)

    def needs(self) -> list[tuple[str, Version]]:
        """The fields in use that not every server knows, and the release of each."""
        return needs("ConsumerConfig", self.to_api())

    def with_changes(self, **changes: Any) -> ConsumerConfig:
        """A copy in which these fields are different."""
        fields.check_known(changes, ConsumerConfig)
        return replace(self, **changes)


_Config = TypeVar("_Config", StreamConfig, ConsumerConfig)

_KINDS: dict[type, fields.Kinds] = {
    kind: fields.kinds_of(kind, BY_ANNOTATION)
    for kind in (StreamConfig, ConsumerConfig)
}


def stream_config(config: StreamConfig | None = None, /, **values: Any) -> StreamConfig:
    """A configuration of these fields, or the given one with these changes."""
    return _given(config, StreamConfig).with_changes(**values)


def consumer_config(
    config: ConsumerConfig | None = None, /, **values: Any
) -> ConsumerConfig:
    """A configuration of these fields, or the given one with these changes."""
    return _given(config, ConsumerConfig).with_changes(**values)


def _given(config: _Config | None, kind: type[_Config]) -> _Config:
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise TypeError(
            f"config must be a {kind.__name__}, not {type(config).__name__}; "
            "fields are given by their names"
        )
    return config


def changes(
    wanted: StreamConfig | ConsumerConfig, named: Iterable[str]
) -> dict[str, Any]:
    """What an update changes: the fields that are set, and None for those named so."""
    names = set(named)
    return {
        entry.name: value
        for entry in fields_of(wanted)
        if (value := getattr(wanted, entry.name)) is not None or entry.name in names
    }


def updated(current: _Config, changed: Mapping[str, Any]) -> _Config:
    """A configuration with these changes; all else stays, known to us or not."""
    extra = {**current.extra, **changed.get("extra", {})}
    left = {
        name: value
        for name, value in extra.items()
        if value is not None and name not in changed
    }
    return replace(current, **{**changed, "extra": left})


def differences(
    wanted: StreamConfig | ConsumerConfig, actual: StreamConfig | ConsumerConfig
) -> dict[str, tuple[Any, Any]]:
    """The fields in which `actual`, as a server tells it, is not as `wanted`.

    What the server fills in where `wanted` says nothing is no difference, nor is what
    it writes into the metadata. Both values are given as they stand in the fields.
    """
    return {
        name: (
            getattr(wanted, name, wanted.extra.get(name)),
            getattr(actual, name, actual.extra.get(name)),
        )
        for name in different(wanted.to_api(), actual.to_api())
    }
