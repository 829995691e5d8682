"""Reports of servers: every field is read, and nothing is needed."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient import info
from jsclient.info import (
    AccountInfo,
    AccountLimits,
    AccountTier,
    ApiStats,
    ClusterInfo,
    ConsumerInfo,
    LostData,
    PauseInfo,
    PeerInfo,
    PriorityGroupInfo,
    SequenceInfo,
    SourceInfo,
    StreamAlternate,
    StreamInfo,
    StreamState,
)
from jsclient.jetstream_errors import ConsumerNotFoundError

REPORTS: list[Any] = [
    getattr(info, name) for name in info.__all__ if name not in ("PubAck", "Timestamp")
]

CLUSTER = {
    "name": "C1",
    "raft_group": "S-R3F-abc",
    "leader": "n1",
    "leader_since": "2026-01-02T03:04:05.000000006Z",
    "system_account": True,
    "traffic_account": "SYS",
    "replicas": [
        {"name": "n2", "current": True, "active": 500_000_000, "peer": "p2"},
        {"name": "n3", "offline": True, "active": -1, "lag": 7, "pending": True},
    ],
    "desired": {"name": "C2"},
}
STREAM = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "config": {"name": "S", "subjects": ["s.>"], "max_age": 1_500_000_000},
    "created": "2026-01-01T00:00:00.000000001Z",
    "state": {
        "messages": 3,
        "bytes": 120,
        "first_seq": 1,
        "first_ts": "2026-01-01T00:00:01Z",
        "last_seq": 18446744073709551615,
        "last_ts": "0001-01-01T00:00:00Z",
        "num_subjects": 2,
        "subjects": {"s.a": 1, "s.b": 2},
        "num_deleted": 2,
        "deleted": [2, 3],
        "lost": {"msgs": [4], "bytes": 9},
        "consumer_count": 1,
    },
    "domain": "hub",
    "cluster": CLUSTER,
    "mirror": {
        "name": "O",
        "external": {"api": "$JS.hub.API", "deliver": ""},
        "lag": 4,
        "active": 250_000_000,
        "filter_subject": "s.a",
        "error": {"code": 404, "err_code": 10014, "description": "consumer not found"},
    },
    "sources": [
        {"name": "P", "active": -1, "subject_transforms": [{"src": "a", "dest": "b"}]}
    ],
    "alternates": [{"name": "S", "domain": "hub", "cluster": "C1"}, {"name": "M"}],
    "ts": "2026-01-01T00:00:02Z",
    "future_x": 1,
}


def test_a_stream_is_read() -> None:
    stream = StreamInfo.from_api(STREAM)
    assert stream.config.name == "S"
    assert stream.config.max_age == 1.5
    assert stream.created is not None
    assert stream.created.ns == 1767225600_000000001
    assert stream.domain == "hub"
    assert stream.ts is not None
    assert stream.raw["future_x"] == 1
    assert [alternate.domain for alternate in stream.alternates] == ["hub", None]


def test_the_state_of_a_stream_is_read() -> None:
    state = StreamInfo.from_api(STREAM).state
    assert (state.messages, state.bytes, state.first_seq) == (3, 120, 1)
    assert state.first_ts is not None
    assert state.last_ts is None
    assert state.last_seq == 18446744073709551615
    assert (state.num_subjects, state.subjects) == (2, {"s.a": 1, "s.b": 2})
    assert (state.num_deleted, state.deleted) == (2, (2, 3))
    assert state.lost == LostData(msgs=(4,), bytes=9)
    assert state.consumer_count == 1


def test_where_a_stream_lives_is_read() -> None:
    cluster = StreamInfo.from_api(STREAM).cluster
    assert cluster is not None
    assert (cluster.name, cluster.leader, cluster.raft_group) == (
        "C1",
        "n1",
        "S-R3F-abc",
    )
    assert cluster.leader_since is not None
    assert cluster.leader_since.nanosecond == 6
    assert cluster.system_account
    assert cluster.traffic_account == "SYS"
    assert cluster.replicas == (
        PeerInfo(name="n2", current=True, active=0.5, peer="p2"),
        PeerInfo(name="n3", offline=True, active=None, lag=7, pending=True),
    )
    assert cluster.raw["desired"] == {"name": "C2"}


def test_what_a_stream_takes_from_is_read() -> None:
    stream = StreamInfo.from_api(STREAM)
    assert stream.mirror is not None
    assert stream.mirror.external is not None
    assert stream.mirror.external.api == "$JS.hub.API"
    assert (stream.mirror.lag, stream.mirror.active) == (4, 0.25)
    assert isinstance(stream.mirror.error, ConsumerNotFoundError)
    assert str(stream.mirror.error).startswith("take messages from stream O: ")
    (source,) = stream.sources
    assert source.active is None
    assert source.error is None
    assert source.subject_transforms[0].dest == "b"


def test_a_consumer_is_read() -> None:
    consumer = ConsumerInfo.from_api(
        {
            "stream_name": "S",
            "name": "C",
            "created": "2026-01-01T00:00:00Z",
            "config": {"durable_name": "C", "ack_policy": "explicit"},
            "delivered": {"consumer_seq": 5, "stream_seq": 9},
            "ack_floor": {
                "consumer_seq": 3,
                "stream_seq": 4,
                "last_active": "2026-01-01T00:00:00Z",
            },
            "num_ack_pending": 2,
            "num_redelivered": 1,
            "num_waiting": 4,
            "num_pending": 100,
            "cluster": CLUSTER,
            "push_bound": True,
            "paused": True,
            "pause_remaining": 1_500_000_000,
            "ts": "2026-01-01T00:00:00Z",
            "priority_groups": [
                {
                    "group": "A",
                    "pinned_client_id": "x",
                    "pinned_ts": "2026-01-01T00:00:00Z",
                }
            ],
        }
    )
    assert (consumer.stream_name, consumer.name) == ("S", "C")
    assert consumer.config.ack_policy == "explicit"
    assert consumer.delivered == SequenceInfo(consumer_seq=5, stream_seq=9)
    assert consumer.ack_floor.last_active is not None
    assert consumer.num_ack_pending == 2
    assert consumer.num_redelivered == 1
    assert consumer.num_waiting == 4
    assert consumer.num_pending == 100
    assert consumer.cluster is not None
    assert consumer.push_bound
    assert consumer.paused
    assert consumer.pause_remaining == 1.5
    assert consumer.priority_groups[0].pinned_client_id == "x"
    assert consumer.priority_groups[0].pinned_ts is not None


def test_a_pause_is_read() -> None:
    pause = PauseInfo.from_api(
        {
            "paused": True,
            "pause_until": "2099-01-01T00:00:00Z",
            "pause_remaining": 10**9,
        }
    )
    assert pause.paused
    assert pause.pause_until is not None
    assert pause.pause_remaining == 1.0
    assert PauseInfo.from_api({"paused": False}) == PauseInfo()


def test_an_account_is_read() -> None:
    tier = {
        "memory": 1,
        "storage": 2,
        "reserved_memory": 3,
        "reserved_storage": 4,
        "streams": 5,
        "consumers": 6,
        "limits": {
            "max_memory": -1,
            "max_storage": 10,
            "max_streams": 11,
            "max_consumers": 12,
            "max_ack_pending": 13,
            "memory_max_stream_bytes": 14,
            "storage_max_stream_bytes": 15,
            "max_bytes_required": True,
        },
    }
    account = AccountInfo.from_api(
        {
            **tier,
            "domain": "hub",
            "api": {"level": 4, "total": 100, "errors": 2, "inflight": 1},
            "tiers": {"R1": tier, "broken": 5},
        }
    )
    limits = AccountLimits(
        max_memory=-1,
        max_storage=10,
        max_streams=11,
        max_consumers=12,
        max_ack_pending=13,
        memory_max_stream_bytes=14,
        storage_max_stream_bytes=15,
        max_bytes_required=True,
    )
    assert account.limits == limits
    assert (account.memory, account.storage, account.streams) == (1, 2, 5)
    assert (account.reserved_memory, account.reserved_storage) == (3, 4)
    assert account.consumers == 6
    assert account.tiers == {"R1": AccountTier.from_api(tier)}
    assert account.tiers["R1"].limits == limits
    assert account.domain == "hub"
    assert account.api == ApiStats(level=4, total=100, errors=2, inflight=1)


# What all reports have in common


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_needs_no_field(report: Any) -> None:
    empty = report.from_api({})
    nulls = report.from_api(dict.fromkeys(_names(report)))
    assert empty == nulls


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("report", REPORTS)
@settings(deadline=None)
@given(data=st.data())
def test_a_report_takes_anything_for_a_field(report: Any, data: st.DataObject) -> None:
    names = st.sampled_from(sorted(_names(report)))
    report.from_api(data.draw(st.dictionaries(names, JSON)))


def test_lists_may_come_as_null_or_with_holes() -> None:
    state = StreamState.from_api({"deleted": None, "subjects": None})
    assert (state.deleted, state.subjects) == ((), {})
    assert StreamState.from_api({"deleted": [1, "x", None]}).deleted == (1,)
    assert ClusterInfo.from_api({"replicas": [None, {"name": "n"}]}).replicas == (
        PeerInfo(name="n"),
    )


def test_a_time_of_another_form_is_none() -> None:
    assert StreamInfo.from_api({"created": "yesterday"}).created is None


def test_a_report_cannot_be_changed() -> None:
    group = PriorityGroupInfo(group="A")
    with pytest.raises(FrozenInstanceError):
        group.group = "B"  # type: ignore[misc]


def test_a_report_survives_a_pickle() -> None:
    stream = StreamInfo.from_api({**STREAM, "mirror": None})
    assert pickle.loads(pickle.dumps(stream)) == stream


def test_reports_that_tell_the_same_are_equal_whatever_is_unknown() -> None:
    one = SourceInfo.from_api({"name": "S", "future_x": 1})
    assert one == SourceInfo.from_api({"name": "S"})
    assert "future_x" not in repr(one)
    assert StreamAlternate.from_api({"name": "S"}) == StreamAlternate(name="S")


def _names(report: Any) -> set[str]:
    return {entry.name for entry in fields(report)} - {"raw"} | {"val"}
