"""The parts of configurations: the choices, and what is nested in them.

They are public as names of `jsclient.config`, which says what fields have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from ._config_rules import check_domain
from ._engine import fields


class RetentionPolicy(str, Enum):
    """When a stream lets go of messages, besides its limits."""

    LIMITS = "limits"  # never
    INTEREST = "interest"  # when all consumers have acked
    WORKQUEUE = "workqueue"  # when the one consumer of the subject has acked

    __str__ = str.__str__


class StorageType(str, Enum):
    """Where a stream keeps messages."""

    FILE = "file"
    MEMORY = "memory"

    __str__ = str.__str__


class DiscardPolicy(str, Enum):
    """What a full stream does: delete old messages or refuse new ones."""

    OLD = "old"
    NEW = "new"

    __str__ = str.__str__


class StoreCompression(str, Enum):
    """How a stream's files are compressed."""

    NONE = "none"
    S2 = "s2"

    __str__ = str.__str__


class PersistMode(str, Enum):
    """Whether an ack waits until the message is written."""

    DEFAULT = "default"
    ASYNC = "async"  # acked before: what is not written yet is lost with the server

    __str__ = str.__str__


class DeliverPolicy(str, Enum):
    """Where in the stream a consumer begins."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"  # at opt_start_seq
    BY_START_TIME = "by_start_time"  # at opt_start_time
    LAST_PER_SUBJECT = "last_per_subject"

    __str__ = str.__str__


class AckPolicy(str, Enum):
    """What an ack of a consumer's message acknowledges."""

    NONE = "none"  # messages need no ack
    ALL = "all"  # this message and all before it
    EXPLICIT = "explicit"  # this message
    FLOW_CONTROL = "flow_control"  # what flow control has passed (2.14)

    __str__ = str.__str__


class ReplayPolicy(str, Enum):
    """How fast a consumer delivers: at once, or at the pace of the publishers."""

    INSTANT = "instant"
    ORIGINAL = "original"

    __str__ = str.__str__


class PriorityPolicy(str, Enum):
    """Which clients of a pull consumer's priority group get messages."""

    NONE = "none"
    OVERFLOW = "overflow"  # those whose conditions on the backlog are met
    PINNED_CLIENT = "pinned_client"  # one of them
    PRIORITIZED = "prioritized"  # those of the best priority (2.12)

    __str__ = str.__str__


@dataclass(kw_only=True, slots=True, repr=False)
class Placement:
    """Where servers put a stream.

    cluster: the name of the cluster
    tags: what the servers must all be tagged with
    preferred: the server to lead; only for requests that move a leader [2.11]
    """

    cluster: str | None = None
    tags: list[str] | None = None
    preferred: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[Placement])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[Placement])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server."""
        return fields.to_api(self, _KINDS[Placement])

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> Placement:
        """The placement that a server's JSON tells."""
        return cls(**fields.from_api(raw, _KINDS[Placement]))


@dataclass(kw_only=True, slots=True, repr=False)
class SubjectTransform:
    """How subjects are rewritten.

    src: the subjects to rewrite, with wildcards; empty is all
    dest: what they become; `{{wildcard(1)}}` and the like stand for parts of src
    """

    src: str | None = None
    dest: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[SubjectTransform])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[SubjectTransform])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server."""
        return fields.to_api(self, _KINDS[SubjectTransform])

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> SubjectTransform:
        """The transform that a server's JSON tells."""
        return cls(**fields.from_api(raw, _KINDS[SubjectTransform]))


@dataclass(kw_only=True, slots=True, repr=False)
class Republish:
    """What a stream publishes again, once it is stored.

    src: the stored subjects, with wildcards; empty is all
    dest: the subjects to publish to, none of the stream's own
    headers_only: without the payloads
    """

    src: str | None = None
    dest: str | None = None
    headers_only: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[Republish])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[Republish])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server."""
        return fields.to_api(self, _KINDS[Republish])

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> Republish:
        """The setting that a server's JSON tells."""
        return cls(**fields.from_api(raw, _KINDS[Republish]))


@dataclass(kw_only=True, slots=True, repr=False)
class ConsumerLimits:
    """What a stream's consumers have when they do not say, and at most.

    inactive_threshold: seconds
    max_ack_pending: messages
    """

    inactive_threshold: float | timedelta | None = None
    max_ack_pending: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[ConsumerLimits])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[ConsumerLimits])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server."""
        return fields.to_api(self, _KINDS[ConsumerLimits])

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> ConsumerLimits:
        """The limits that a server's JSON tells."""
        return cls(**fields.from_api(raw, _KINDS[ConsumerLimits]))


@dataclass(kw_only=True, slots=True, repr=False)
class ExternalStream:
    """How a stream of another account or domain is reached.

    api: the prefix of its API, as `$JS.hub.API`
    deliver: the prefix of the subjects that its messages are delivered to
    """

    api: str | None = None
    deliver: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[ExternalStream])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[ExternalStream])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server."""
        return fields.to_api(self, _KINDS[ExternalStream])

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> ExternalStream:
        """The address that a server's JSON tells."""
        return cls(**fields.from_api(raw, _KINDS[ExternalStream]))


@dataclass(kw_only=True, slots=True, repr=False)
class StreamConsumerSource:
    """A consumer made beforehand, by which a stream takes from another one [2.14].

    name: the consumer
    deliver_subject: the subject that it delivers to
    """

    name: str | None = None
    deliver_subject: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[StreamConsumerSource])

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[StreamConsumerSource])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server."""
        return fields.to_api(self, _KINDS[StreamConsumerSource])

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> StreamConsumerSource:
        """The consumer that a server's JSON tells of."""
        return cls(**fields.from_api(raw, _KINDS[StreamConsumerSource]))


@dataclass(kw_only=True, slots=True, repr=False)
class StreamSource:
    """A stream that another one mirrors or takes messages from.

    name: the stream
    opt_start_seq: begin at this sequence
    opt_start_time: begin at this instant
    filter_subject: take only these subjects
    subject_transforms: take only these subjects, and rewrite them [2.10]
    external: where the stream is, if in another account or domain
    consumer: take by this consumer [2.14]
    domain: a short way to set `external` for a domain; never sent
    """

    name: str | None = None
    opt_start_seq: int | None = None
    opt_start_time: datetime | str | None = None
    filter_subject: str | None = None
    subject_transforms: list[SubjectTransform] | None = None
    external: ExternalStream | None = None
    consumer: StreamConsumerSource | None = None
    domain: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.clean_fields(self, _KINDS[StreamSource])
        check_domain(self)

    def __repr__(self) -> str:
        return fields.show(self, _KINDS[StreamSource])

    def to_api(self) -> dict[str, Any]:
        """The JSON for a server."""
        check_domain(self)
        result = fields.to_api(self, _KINDS[StreamSource])
        domain = result.pop("domain", None)
        if domain is not None:
            result["external"] = {"api": f"$JS.{domain}.API"}
        return result

    @classmethod
    def from_api(cls, raw: Mapping[str, Any]) -> StreamSource:
        """The source that a server's JSON tells."""
        return cls(**fields.from_api(raw, _KINDS[StreamSource]))


# The kind of a field, by its annotation.
BY_ANNOTATION: fields.Kinds = {
    "str | None": fields.TEXT,
    "int | None": fields.NUMBER,
    "bool | None": fields.FLAG,
    "float | timedelta | None": fields.DURATION,
    "datetime | str | None": fields.TIME,
    "list[str] | None": fields.many(fields.TEXT),
    "list[float | timedelta] | None": fields.many(fields.DURATION),
    "dict[str, str] | None": fields.TEXTS_BY_KEY,
    "RetentionPolicy | str | None": fields.choice(RetentionPolicy),
    "StorageType | str | None": fields.choice(StorageType),
    "DiscardPolicy | str | None": fields.choice(DiscardPolicy),
    "StoreCompression | str | None": fields.choice(StoreCompression),
    "PersistMode | str | None": fields.choice(PersistMode),
    "DeliverPolicy | str | None": fields.choice(DeliverPolicy),
    "AckPolicy | str | None": fields.choice(AckPolicy),
    "ReplayPolicy | str | None": fields.choice(ReplayPolicy),
    "PriorityPolicy | str | None": fields.choice(PriorityPolicy),
    "Placement | None": fields.part(Placement),
    "SubjectTransform | None": fields.part(SubjectTransform),
    "list[SubjectTransform] | None": fields.many(fields.part(SubjectTransform)),
    "Republish | None": fields.part(Republish),
    "ConsumerLimits | None": fields.part(ConsumerLimits),
    "ExternalStream | None": fields.part(ExternalStream),
    "StreamConsumerSource | None": fields.part(StreamConsumerSource),
    "StreamSource | None": fields.part(StreamSource, short="name"),
    "list[StreamSource] | None": fields.many(fields.part(StreamSource, short="name")),
}

_KINDS: dict[type, fields.Kinds] = {
    kind: fields.kinds_of(kind, BY_ANNOTATION)
    for kind in (
        *(Placement, SubjectTransform, Republish, ConsumerLimits, ExternalStream),
        *(StreamConsumerSource, StreamSource),
    )
}
