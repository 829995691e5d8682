"""What servers report: streams, consumers, accounts, and the acks of publishes.

Attributes have the names of the wire. Durations are seconds, instants are UTC datetimes
that know their nanoseconds, lists are tuples. A server of another release may leave out
a field or add one: what is missing has its zero value, what is unknown is in `raw`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ._core import PubAck
from ._engine import reading
from ._engine.reading import Raw, read
from ._engine.values import Timestamp
from .config import ConsumerConfig, ExternalStream, StreamConfig, SubjectTransform
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
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostData:
    """Messages that a server found damaged: their sequences, and bytes altogether."""

    msgs: tuple[int, ...] = ()
    bytes: int = 0

    @classmethod
    def from_api(cls, raw: Raw) -> LostData:
        """The losses that a server's JSON tells of."""
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAlternate:
    """A stream with the same messages, a mirror or its origin; the nearest is first."""

    name: str = ""
    domain: str | None = None
    cluster: str = ""

    @classmethod
    def from_api(cls, raw: Raw) -> StreamAlternate:
        """The alternate that a server's JSON tells of."""
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInfo:
    """A place in a stream, as the consumer and as the stream count it."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: Timestamp | None = None

    @classmethod
    def from_api(cls, raw: Raw) -> SequenceInfo:
        """The place that a server's JSON tells."""
        return read(cls, raw, _READERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityGroupInfo:
    """A priority group of a consumer and the client that is pinned to it."""

    group: str = ""
    pinned_client_id: str = ""
    pinned_ts: Timestamp | None = None

    @classmethod
    def from_api(cls, raw: Raw) -> PriorityGroupInfo:
        """The group that a server's JSON tells of."""
        return read(cls, raw, _READERS)


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
    reset_seq: int = 0  # where it goes on, in the answer to a reset
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_api(cls, raw: Raw) -> ConsumerInfo:
        """The consumer that a server's JSON tells of."""
        return read(cls, raw, _READERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseInfo:
    """What a server answers to a pause of a consumer, or the end of one."""

    paused: bool = False
    pause_until: Timestamp | None = None
    pause_remaining: float = 0.0

    @classmethod
    def from_api(cls, raw: Raw) -> PauseInfo:
        """The pause that a server's JSON tells of."""
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


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
        return read(cls, raw, _READERS)


def _source_error(raw: Raw, name: str) -> ApiError | None:
    error = reading.mapping(raw, name)
    doing = f"take messages from stream {reading.text(raw, 'name')}"
    return api_error(error, doing=doing) if error else None


_READERS: dict[str, reading.Reader] = {
    "Raw": lambda raw, _name: raw,
    "int": reading.integer,
    "str": reading.text,
    "str | None": reading.text_or_none,
    "bool": reading.flag,
    "float": reading.seconds,
    "float | None": reading.seconds_or_none,
    "Timestamp | None": reading.time,
    "tuple[int, ...]": reading.integers,
    "Mapping[str, int]": reading.mapping,
    "ApiError | None": _source_error,
    "StreamConfig": reading.one(StreamConfig.from_api),
    "ConsumerConfig": reading.one(ConsumerConfig.from_api),
    "ExternalStream | None": reading.one_or_none(ExternalStream.from_api),
    "tuple[SubjectTransform, ...]": reading.several(SubjectTransform.from_api),
    "tuple[PeerInfo, ...]": reading.several(PeerInfo.from_api),
    "ClusterInfo | None": reading.one_or_none(ClusterInfo.from_api),
    "SourceInfo | None": reading.one_or_none(SourceInfo.from_api),
    "tuple[SourceInfo, ...]": reading.several(SourceInfo.from_api),
    "LostData | None": reading.one_or_none(LostData.from_api),
    "StreamState": reading.one(StreamState.from_api),
    "tuple[StreamAlternate, ...]": reading.several(StreamAlternate.from_api),
    "SequenceInfo": reading.one(SequenceInfo.from_api),
    "tuple[PriorityGroupInfo, ...]": reading.several(PriorityGroupInfo.from_api),
    "AccountLimits": reading.one(AccountLimits.from_api),
    "Mapping[str, AccountTier]": reading.by_key(AccountTier.from_api),
    "ApiStats": reading.one(ApiStats.from_api),
}
