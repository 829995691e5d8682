"""What servers report: streams, consumers, accounts, and the acks of publishes.

Attributes have the names of the wire. Durations are seconds, instants are UTC datetimes
that know their nanoseconds, lists are tuples. A server of another release may leave out
a field or add one: what is missing has its zero value, what is unknown is in `raw`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ._engine.values import Timestamp, duration_seconds, parse_time
from .config import ConsumerConfig, ExternalStream, StreamConfig, SubjectTransform
from .errors import InvalidArgumentError
from .jetstream_errors import ApiError, api_error

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "ApiStats",
    "ClusterInfo",
    "ConsumerInfo",
    "LostData",
    "PauseInfo",
    "PeerInfo",
    "PriorityGroupInfo",
    "PubAck",
    "SequenceInfo",
    "SourceInfo",
    "StreamAlternate",
    "StreamInfo",
    "StreamState",
    "Timestamp",
]

_T = TypeVar("_T")
# JSON of a server; any shape may hide behind a name.
Raw = Mapping[str, Any]


def _int(raw: Raw, name: str) -> int:
    value = raw.get(name)
    return value if isinstance(value, int) else 0


def _text(raw: Raw, name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def _time(raw: Raw, name: str) -> Timestamp | None:
    try:
        return parse_time(_text(raw, name))
    except InvalidArgumentError:
        return None  # missing, or in a form of another release


def _seconds(raw: Raw, name: str) -> float:
    return duration_seconds(_int(raw, name))


def _active(raw: Raw) -> float | None:
    """How long ago a peer was heard of; a negative number says never."""
    ns = _int(raw, "active")
    return None if ns < 0 else duration_seconds(ns)


def _map(raw: Raw, name: str) -> Raw:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _part(raw: Raw, name: str, make: Callable[[dict[str, Any]], _T]) -> _T | None:
    value = raw.get(name)
    return make(value) if isinstance(value, dict) else None


def _parts(raw: Raw, name: str, make: Callable[[dict[str, Any]], _T]) -> tuple[_T, ...]:
    value = raw.get(name)
    entries = value if isinstance(value, list) else ()
    return tuple(make(entry) for entry in entries if isinstance(entry, dict))


def _ints(raw: Raw, name: str) -> tuple[int, ...]:
    value = raw.get(name)
    return tuple(value) if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True)
class PubAck:
    """A stream's word that it has a message.

    `duplicate` says that the stream had a message of the same id already: `seq` is that
    one's. `value` is the counter after the message, on counter streams; `batch` and
    `count` tell of the batch that the message committed.
    """

    stream: str
    seq: int
    duplicate: bool = False
    domain: str | None = None
    value: int | None = None
    batch: str | None = None
    count: int | None = None

    @classmethod
    def from_api(cls, raw: Raw) -> PubAck:
        """The ack that a stream's JSON tells; `stream` is empty if it is none."""
        count = raw.get("count")
        return cls(
            _text(raw, "stream"),
            _int(raw, "seq"),
            raw.get("duplicate") is True,
            _text(raw, "domain") or None,
            _counter(raw),
            _text(raw, "batch") or None,
            count if isinstance(count, int) else None,
        )


def _counter(raw: Raw) -> int | None:
    """The value of a counter: a decimal text, for it may have any number of digits."""
    text = raw.get("val")
    try:
        return None if text is None else int(text)
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """A server that has a replica, and how far it is behind the leader."""

    name: str = ""
    current: bool = False
    offline: bool = False
    active: float | None = None  # seconds since it was heard of, None: never
    lag: int = 0
    peer: str = ""
    pending: bool = False
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> PeerInfo:
        """The peer that a server's JSON tells of."""
        return cls(
            name=_text(raw, "name"),
            current=raw.get("current") is True,
            offline=raw.get("offline") is True,
            active=_active(raw),
            lag=_int(raw, "lag"),
            peer=_text(raw, "peer"),
            pending=raw.get("pending") is True,
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """Where a stream or consumer lives: its leader and its other replicas."""

    name: str = ""
    raft_group: str = ""
    leader: str = ""
    leader_since: Timestamp | None = None
    system_account: bool = False
    traffic_account: str = ""
    replicas: tuple[PeerInfo, ...] = ()
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> ClusterInfo:
        """The cluster that a server's JSON tells of."""
        return cls(
            name=_text(raw, "name"),
            raft_group=_text(raw, "raft_group"),
            leader=_text(raw, "leader"),
            leader_since=_time(raw, "leader_since"),
            system_account=raw.get("system_account") is True,
            traffic_account=_text(raw, "traffic_account"),
            replicas=_parts(raw, "replicas", PeerInfo.from_api),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """How far a stream is behind the one that it mirrors or takes messages from."""

    name: str = ""
    external: ExternalStream | None = None
    lag: int = 0
    active: float | None = None  # seconds since it was heard of, None: never
    error: ApiError | None = field(default=None, compare=False)
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> SourceInfo:
        """The source that a server's JSON tells of."""
        name = _text(raw, "name")
        return cls(
            name=name,
            external=_part(raw, "external", ExternalStream.from_api),
            lag=_int(raw, "lag"),
            active=_active(raw),
            error=_part(
                raw, "error", lambda error: api_error(error, doing=f"source {name}")
            ),
            filter_subject=_text(raw, "filter_subject"),
            subject_transforms=_parts(
                raw, "subject_transforms", SubjectTransform.from_api
            ),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostData:
    """Messages that a server found damaged: their sequences, and bytes altogether."""

    msgs: tuple[int, ...] = ()
    bytes: int = 0

    @classmethod
    def from_api(cls, raw: Raw) -> LostData:
        """The losses that a server's JSON tells of."""
        return cls(msgs=_ints(raw, "msgs"), bytes=_int(raw, "bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """What a stream holds."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: Timestamp | None = None
    last_seq: int = 0
    last_ts: Timestamp | None = None
    num_subjects: int = 0
    subjects: Mapping[str, int] = field(default_factory=dict)  # only when asked for
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()  # only when asked for
    lost: LostData | None = None
    consumer_count: int = 0
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> StreamState:
        """The state that a server's JSON tells."""
        return cls(
            messages=_int(raw, "messages"),
            bytes=_int(raw, "bytes"),
            first_seq=_int(raw, "first_seq"),
            first_ts=_time(raw, "first_ts"),
            last_seq=_int(raw, "last_seq"),
            last_ts=_time(raw, "last_ts"),
            num_subjects=_int(raw, "num_subjects"),
            subjects=_map(raw, "subjects"),
            num_deleted=_int(raw, "num_deleted"),
            deleted=_ints(raw, "deleted"),
            lost=_part(raw, "lost", LostData.from_api),
            consumer_count=_int(raw, "consumer_count"),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAlternate:
    """A stream with the same messages, a mirror or its origin; the nearest is first."""

    name: str = ""
    domain: str | None = None
    cluster: str = ""

    @classmethod
    def from_api(cls, raw: Raw) -> StreamAlternate:
        """The alternate that a server's JSON tells of."""
        return cls(
            name=_text(raw, "name"),
            domain=_text(raw, "domain") or None,
            cluster=_text(raw, "cluster"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream: how it is configured, what it holds and where it lives."""

    config: StreamConfig
    created: Timestamp | None = None
    state: StreamState = field(default_factory=StreamState)
    domain: str | None = None
    cluster: ClusterInfo | None = None
    mirror: SourceInfo | None = None
    sources: tuple[SourceInfo, ...] = ()
    alternates: tuple[StreamAlternate, ...] = ()
    ts: Timestamp | None = None  # when the server gathered this, since 2.10
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> StreamInfo:
        """The stream that a server's JSON tells of."""
        return cls(
            config=StreamConfig.from_api(_map(raw, "config")),
            created=_time(raw, "created"),
            state=StreamState.from_api(_map(raw, "state")),
            domain=_text(raw, "domain") or None,
            cluster=_part(raw, "cluster", ClusterInfo.from_api),
            mirror=_part(raw, "mirror", SourceInfo.from_api),
            sources=_parts(raw, "sources", SourceInfo.from_api),
            alternates=_parts(raw, "alternates", StreamAlternate.from_api),
            ts=_time(raw, "ts"),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInfo:
    """A place in a stream, as the consumer and as the stream count it."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: Timestamp | None = None

    @classmethod
    def from_api(cls, raw: Raw) -> SequenceInfo:
        """The place that a server's JSON tells."""
        return cls(
            consumer_seq=_int(raw, "consumer_seq"),
            stream_seq=_int(raw, "stream_seq"),
            last_active=_time(raw, "last_active"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityGroupInfo:
    """A priority group of a consumer and the client that is pinned to it."""

    group: str = ""
    pinned_client_id: str = ""
    pinned_ts: Timestamp | None = None

    @classmethod
    def from_api(cls, raw: Raw) -> PriorityGroupInfo:
        """The group that a server's JSON tells of."""
        return cls(
            group=_text(raw, "group"),
            pinned_client_id=_text(raw, "pinned_client_id"),
            pinned_ts=_time(raw, "pinned_ts"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """A consumer: how it is configured, how far it is and what waits for acks."""

    stream_name: str = ""
    name: str = ""
    created: Timestamp | None = None
    config: ConsumerConfig
    delivered: SequenceInfo = field(default_factory=SequenceInfo)
    ack_floor: SequenceInfo = field(default_factory=SequenceInfo)
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    num_pending: int = 0
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    paused: bool = False
    pause_remaining: float = 0.0
    ts: Timestamp | None = None  # when the server gathered this, since 2.10
    priority_groups: tuple[PriorityGroupInfo, ...] = ()
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> ConsumerInfo:
        """The consumer that a server's JSON tells of."""
        return cls(
            stream_name=_text(raw, "stream_name"),
            name=_text(raw, "name"),
            created=_time(raw, "created"),
            config=ConsumerConfig.from_api(_map(raw, "config")),
            delivered=SequenceInfo.from_api(_map(raw, "delivered")),
            ack_floor=SequenceInfo.from_api(_map(raw, "ack_floor")),
            num_ack_pending=_int(raw, "num_ack_pending"),
            num_redelivered=_int(raw, "num_redelivered"),
            num_waiting=_int(raw, "num_waiting"),
            num_pending=_int(raw, "num_pending"),
            cluster=_part(raw, "cluster", ClusterInfo.from_api),
            push_bound=raw.get("push_bound") is True,
            paused=raw.get("paused") is True,
            pause_remaining=_seconds(raw, "pause_remaining"),
            ts=_time(raw, "ts"),
            priority_groups=_parts(raw, "priority_groups", PriorityGroupInfo.from_api),
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseInfo:
    """What a server answers to a pause of a consumer, or the end of one."""

    paused: bool = False
    pause_until: Timestamp | None = None
    pause_remaining: float = 0.0

    @classmethod
    def from_api(cls, raw: Raw) -> PauseInfo:
        """The pause that a server's JSON tells of."""
        return cls(
            paused=raw.get("paused") is True,
            pause_until=_time(raw, "pause_until"),
            pause_remaining=_seconds(raw, "pause_remaining"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits:
    """What an account may use; -1 is no limit."""

    max_memory: int = 0
    max_storage: int = 0
    max_streams: int = 0
    max_consumers: int = 0
    max_ack_pending: int = 0
    memory_max_stream_bytes: int = 0
    storage_max_stream_bytes: int = 0
    max_bytes_required: bool = False

    @classmethod
    def from_api(cls, raw: Raw) -> AccountLimits:
        """The limits that a server's JSON tells."""
        return cls(
            max_memory=_int(raw, "max_memory"),
            max_storage=_int(raw, "max_storage"),
            max_streams=_int(raw, "max_streams"),
            max_consumers=_int(raw, "max_consumers"),
            max_ack_pending=_int(raw, "max_ack_pending"),
            memory_max_stream_bytes=_int(raw, "memory_max_stream_bytes"),
            storage_max_stream_bytes=_int(raw, "storage_max_stream_bytes"),
            max_bytes_required=raw.get("max_bytes_required") is True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTier:
    """What an account uses and may use for streams of one number of replicas."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = field(default_factory=AccountLimits)

    @classmethod
    def from_api(cls, raw: Raw) -> AccountTier:
        """The tier that a server's JSON tells of."""
        return cls(
            memory=_int(raw, "memory"),
            storage=_int(raw, "storage"),
            reserved_memory=_int(raw, "reserved_memory"),
            reserved_storage=_int(raw, "reserved_storage"),
            streams=_int(raw, "streams"),
            consumers=_int(raw, "consumers"),
            limits=AccountLimits.from_api(_map(raw, "limits")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiStats:
    """The requests that an account made of the API, and the API's level (2.11)."""

    level: int = 0
    total: int = 0
    errors: int = 0
    inflight: int = 0

    @classmethod
    def from_api(cls, raw: Raw) -> ApiStats:
        """The numbers that a server's JSON tells."""
        return cls(
            level=_int(raw, "level"),
            total=_int(raw, "total"),
            errors=_int(raw, "errors"),
            inflight=_int(raw, "inflight"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountInfo:
    """What an account uses of JetStream and what it may use.

    With tiers (limits per number of replicas) the numbers here are their sums, and the
    limits are those in `tiers`.
    """

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = field(default_factory=AccountLimits)
    tiers: Mapping[str, AccountTier] = field(default_factory=dict)
    domain: str | None = None
    api: ApiStats = field(default_factory=ApiStats)
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> AccountInfo:
        """The account that a server's JSON tells of."""
        totals = AccountTier.from_api(raw)
        return cls(
            memory=totals.memory,
            storage=totals.storage,
            reserved_memory=totals.reserved_memory,
            reserved_storage=totals.reserved_storage,
            streams=totals.streams,
            consumers=totals.consumers,
            limits=totals.limits,
            tiers={
                name: AccountTier.from_api(tier)
                for name, tier in _map(raw, "tiers").items()
                if isinstance(tier, dict)
            },
            domain=_text(raw, "domain") or None,
            api=ApiStats.from_api(_map(raw, "api")),
            raw=raw,
        )
