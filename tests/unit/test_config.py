"""Configurations of streams and consumers, between Python and the wire."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient import InvalidArgumentError, config
from jsclient._engine.values import Timestamp
from jsclient.config import (
    AckPolicy,
    ConsumerConfig,
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
    StreamConfig,
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
    consumer_config,
    differences,
    stream_config,
)
from jsclient.config_fields import (
    ConsumerFields,
    ConsumerSettings,
    StreamFields,
    StreamSettings,
)

# Every field, as a server of 2.15 tells it.
STREAM_WIRE: dict[str, Any] = {
    "name": "FULL",
    "description": "d",
    "subjects": ["full.>"],
    "retention": "limits",
    "max_consumers": 5,
    "max_msgs": 100,
    "max_bytes": 1000000,
    "max_age": 60_000_000_000,
    "max_msgs_per_subject": 10,
    "max_msg_size": 1000,
    "discard": "new",
    "discard_new_per_subject": True,
    "storage": "file",
    "num_replicas": 1,
    "no_ack": False,
    "duplicate_window": 1_500_000_001,
    "placement": {"cluster": "C", "tags": ["ssd"], "preferred": "n1"},
    "mirror": {
        "name": "ORIGIN",
        "opt_start_seq": 5,
        "opt_start_time": "2024-01-01T00:00:00.123456789Z",
        "filter_subject": "a",
        "subject_transforms": [{"src": "a", "dest": "b"}],
        "external": {"api": "$JS.hub.API", "deliver": "d"},
        "consumer": {"name": "c", "deliver_subject": "x"},
    },
    "sources": [{"name": "A"}, {"name": "B"}],
    "sealed": False,
    "deny_delete": True,
    "deny_purge": False,
    "allow_rollup_hdrs": True,
    "republish": {"src": "full.>", "dest": "re.>", "headers_only": True},
    "allow_direct": True,
    "mirror_direct": False,
    "compression": "s2",
    "first_seq": 10,
    "subject_transform": {"src": "full.>", "dest": "fx.>"},
    "consumer_limits": {"inactive_threshold": 10_000_000_000, "max_ack_pending": 50},
    "metadata": {"a": "b", "_nats.ver": "2.15.0"},
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 2_000_000_000,
    "allow_msg_counter": False,
    "allow_atomic": True,
    "allow_msg_schedules": False,
    "persist_mode": "async",
    "allow_batched": True,
}
CONSUMER_WIRE: dict[str, Any] = {
    "name": "C",
    "durable_name": "C",
    "description": "x",
    "deliver_policy": "by_start_time",
    "opt_start_seq": 4,
    "opt_start_time": "2024-01-01T00:00:00.123456789Z",
    "ack_policy": "explicit",
    "ack_wait": 1_000_000_000,
    "max_deliver": 5,
    "backoff": [1_000_000_000, 2_500_000_000],
    "filter_subject": "a",
    "filter_subjects": ["a", "b"],
    "replay_policy": "original",
    "rate_limit_bps": 18446744073709551615,
    "sample_freq": "50%",
    "max_waiting": 10,
    "max_ack_pending": 20,
    "headers_only": True,
    "max_batch": 10,
    "max_expires": 2_000_000_000,
    "max_bytes": 1000,
    "inactive_threshold": 5_000_000_000,
    "num_replicas": 1,
    "mem_storage": True,
    "metadata": {"q": "r"},
    "pause_until": "2099-01-01T00:00:00Z",
    "priority_groups": ["A"],
    "priority_policy": "pinned_client",
    "priority_timeout": 60_000_000_000,
    "deliver_subject": "p",
    "deliver_group": "g",
    "flow_control": True,
    "idle_heartbeat": 1_000_000_000,
}
PARTS: list[Any] = [
    *(Placement, SubjectTransform, Republish, ConsumerLimits, ExternalStream),
    *(StreamConsumerSource, StreamSource),
]
CONFIGS: list[Any] = [*PARTS, StreamConfig, ConsumerConfig]
ENUMS: list[type[Enum]] = [
    *(RetentionPolicy, StorageType, DiscardPolicy, StoreCompression, PersistMode),
    *(DeliverPolicy, AckPolicy, ReplayPolicy, PriorityPolicy),
]


# To the wire and back


@pytest.mark.parametrize(
    ("kind", "wire"), [(StreamConfig, STREAM_WIRE), (ConsumerConfig, CONSUMER_WIRE)]
)
def test_every_field_comes_back_to_the_server_as_it_came(
    kind: Any, wire: dict[str, Any]
) -> None:
    read = kind.from_api(wire)
    assert read.extra == {}
    assert {entry.name for entry in fields(kind)} == {*wire, "extra"}
    assert read.to_api() == wire
    json.dumps(read.to_api())


def test_what_is_not_set_is_not_sent() -> None:
    made = StreamConfig(name="ORDERS", subjects=["orders.>"], storage="memory")
    assert made.to_api() == {
        "name": "ORDERS",
        "subjects": ["orders.>"],
        "storage": "memory",
    }


def test_what_is_set_to_be_empty_is_sent() -> None:
    made = StreamConfig(name="S", subjects=[], sources=[], metadata={}, description="")
    assert made.to_api() == {
        "name": "S",
        "description": "",
        "subjects": [],
        "sources": [],
        "metadata": {},
    }


def test_null_is_unset() -> None:
    assert StreamConfig.from_api({"name": "S", "subjects": None}) == StreamConfig(
        name="S"
    )


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_fields_that_nobody_here_knows_are_sent_back(future: dict[str, Any]) -> None:
    future = {f"future_{name}": value for name, value in future.items()}
    wire = {"name": "S", "placement": {"cluster": "C", **future}, **future}
    read = StreamConfig.from_api(wire)
    assert read.extra == future
    changed = read.with_changes(max_msgs=5)
    assert changed.to_api() == {**wire, "max_msgs": 5}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention", "moonlight"),
        ("retention", 5),
        ("max_age", -1),
        ("max_age", "1h"),
        ("max_msgs", 1.5),
        ("max_msgs", True),
        ("subjects", "a"),
        ("subjects", ["a", 5]),
        ("metadata", {"a": 5}),
        ("placement", "here"),
        ("sources", {}),
        ("no_ack", 1),
        ("name", 7),
    ],
)
def test_a_value_that_nobody_here_understands_is_sent_back(
    name: str, value: object
) -> None:
    read = StreamConfig.from_api({name: value})
    assert getattr(read, name) is None
    assert read.to_api() == {name: value}


def test_a_known_value_takes_the_place_of_one_not_understood() -> None:
    read = StreamConfig.from_api({"name": "S", "retention": "moonlight"})
    assert read.with_changes(retention="limits").to_api()["retention"] == "limits"


def test_fields_that_servers_keep_to_themselves_are_not_sent_back() -> None:
    stream = StreamConfig.from_api({"name": "S", "template_owner": "t"})
    assert stream.to_api() == {"name": "S"}
    consumer = ConsumerConfig.from_api(
        {"ack_policy": "none", "direct": True, "sourcing": True}
    )
    assert consumer.to_api() == {"ack_policy": "none"}


def test_an_instant_comes_back_to_the_nanosecond() -> None:
    read = ConsumerConfig.from_api(CONSUMER_WIRE)
    assert isinstance(read.opt_start_time, Timestamp)
    assert read.opt_start_time.ns == 1704067200_123456789


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_survives_a_pickle(kind: Any) -> None:
    made = kind(extra={"x": 1})
    assert pickle.loads(pickle.dumps(made)) == made
    assert kind.from_api({"x": 1}) == made
    assert repr(made) == f"{kind.__name__}(extra={{'x': 1}})"


# Arguments


@pytest.mark.parametrize("enum", ENUMS)
def test_every_choice_is_its_text(enum: type[Enum]) -> None:
    for member in enum:
        assert member == member.value
        assert str(member) == member.value
        assert member.name.lower() == member.value


@pytest.mark.parametrize(
    ("kind", "name", "enum"),
    [
        (StreamConfig, "retention", RetentionPolicy),
        (StreamConfig, "storage", StorageType),
        (StreamConfig, "discard", DiscardPolicy),
        (StreamConfig, "compression", StoreCompression),
        (StreamConfig, "persist_mode", PersistMode),
        (ConsumerConfig, "deliver_policy", DeliverPolicy),
        (ConsumerConfig, "ack_policy", AckPolicy),
        (ConsumerConfig, "replay_policy", ReplayPolicy),
        (ConsumerConfig, "priority_policy", PriorityPolicy),
    ],
)
def test_a_choice_is_taken_as_member_or_as_text_of_any_case(
    kind: Any, name: str, enum: type[Enum]
) -> None:
    for member in enum:
        for given_as in (member, member.value, member.value.upper()):
            made = kind(**{name: given_as})
            assert getattr(made, name) is member
            assert made.to_api()[name] == member.value
            assert type(made.to_api()[name]) is str
    with pytest.raises(InvalidArgumentError, match=f"{name} must be one of '"):
        kind(**{name: "moonlight"})
    with pytest.raises(TypeError, match=f"{name} must be a {enum.__name__} or a str"):
        kind(**{name: 5})


@pytest.mark.parametrize(
    ("given_as", "kept", "sent"),
    [
        (5, 5, 5_000_000_000),
        (0.25, 0.25, 250_000_000),
        (timedelta(minutes=1), 60.0, 60_000_000_000),
    ],
)
def test_a_duration_is_taken_as_seconds_or_timedelta(
    given_as: Any, kept: float, sent: int
) -> None:
    made = StreamConfig(max_age=given_as)
    assert made.max_age == kept
    assert made.to_api() == {"max_age": sent}
    assert ConsumerConfig(backoff=[given_as]).to_api()["backoff"] == [sent]


def test_a_duration_that_would_be_no_limit_at_all_is_refused() -> None:
    assert StreamConfig(max_age=0).to_api() == {"max_age": 0}
    with pytest.raises(InvalidArgumentError, match="max_age is less than a nanosec"):
        StreamConfig(max_age=1e-10)


def test_an_instant_is_taken_as_datetime_or_text() -> None:
    moment = datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    for given_as in (moment, "2024-01-01T00:00:00+02:00"):
        made = ConsumerConfig(opt_start_time=given_as)
        assert made.opt_start_time == moment
        assert made.to_api()["opt_start_time"] == "2023-12-31T22:00:00Z"


@pytest.mark.parametrize(
    ("kind", "name", "value", "text"),
    [
        (StreamConfig, "name", 5, "name must be a str, not int"),
        (StreamConfig, "extra", 5, "extra must be a dict, not int"),
        (StreamConfig, "max_msgs", "5", "max_msgs must be an int, not str"),
        (StreamConfig, "max_msgs", True, "max_msgs must be an int, not bool"),
        (StreamConfig, "no_ack", 1, "no_ack must be a bool, not int"),
        (StreamConfig, "max_age", "1h", "max_age must be a number of seconds"),
        (StreamConfig, "subjects", "a", "subjects must be a list, not str"),
        (StreamConfig, "subjects", 5, "subjects must be a list, not int"),
        (StreamConfig, "subjects", {"a": 1}, "subjects must be a list, not dict"),
        (StreamConfig, "subjects", ["a", 5], r"subjects\[1\] must be a str, not int"),
        (StreamConfig, "metadata", ["a"], "metadata must be a dict, not list"),
        (StreamConfig, "metadata", {"a": 5}, r"metadata\['a'\] must be a str"),
        (StreamConfig, "metadata", {5: "a"}, "a key of metadata must be a str"),
        (StreamConfig, "placement", "x", "placement must be a Placement, not str"),
        (StreamConfig, "mirror", 5, "mirror must be a StreamSource, not int"),
        (ConsumerConfig, "opt_start_time", 5, "opt_start_time must be a datetime"),
        (ConsumerConfig, "backoff", ["x"], r"backoff\[0\] must be a number of seconds"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_its_field(
    kind: Any, name: str, value: object, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        kind(**{name: value})


def test_a_field_that_is_assigned_later_is_checked_when_it_is_sent() -> None:
    made = StreamConfig(name="S")
    made.max_age = timedelta(seconds=2)
    made.storage = "MEMORY"
    assert made.to_api() == {"name": "S", "max_age": 2_000_000_000, "storage": "memory"}
    made.max_age = -1
    with pytest.raises(InvalidArgumentError, match="max_age"):
        made.to_api()


def test_lists_may_be_any_iterable_and_are_copied() -> None:
    subjects = ["a"]
    made = StreamConfig(subjects=subjects)
    subjects.append("b")
    assert made.subjects == ["a"]
    assert stream_config(subjects=("a", "b")).subjects == ["a", "b"]


def test_a_part_may_be_a_dict_of_its_fields() -> None:
    made = stream_config(
        placement={"cluster": "C"}, consumer_limits={"inactive_threshold": 5}
    )
    assert made.placement == Placement(cluster="C")
    assert made.to_api()["consumer_limits"] == {"inactive_threshold": 5_000_000_000}


def test_a_source_may_be_the_name_of_a_stream() -> None:
    made = stream_config(mirror="A", sources=["B", StreamSource(name="C")])
    assert made.mirror == StreamSource(name="A")
    assert made.to_api()["sources"] == [{"name": "B"}, {"name": "C"}]


def test_an_unknown_field_of_a_part_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        TypeError, match="Placement has no field 'clster'; did you mean"
    ):
        stream_config(placement={"clster": "C"})


def test_text_shows_only_what_is_set() -> None:
    made = StreamConfig(name="S", storage="memory", placement=Placement(cluster="C"))
    assert repr(made) == (
        "StreamConfig(name='S', storage='memory', placement=Placement(cluster='C'))"
    )


# Sources in other domains


def test_a_domain_is_sent_as_the_prefix_of_its_api() -> None:
    source = StreamSource(name="S", domain="hub")
    assert source.to_api() == {"name": "S", "external": {"api": "$JS.hub.API"}}


def test_a_domain_and_an_external_stream_exclude_each_other() -> None:
    with pytest.raises(InvalidArgumentError, match="domain cannot go with external"):
        StreamSource(name="S", domain="hub", external=ExternalStream(api="x"))
    source = StreamSource(name="S", domain="hub")
    source.external = ExternalStream(api="x")
    with pytest.raises(InvalidArgumentError, match="domain cannot go with external"):
        source.to_api()


def test_a_domain_is_a_name() -> None:
    with pytest.raises(InvalidArgumentError, match="domain"):
        StreamSource(name="S", domain="a.b")


# Ack policies


def test_a_pull_consumer_acks_each_message_unless_told_otherwise() -> None:
    assert ConsumerConfig(durable_name="w").to_api() == {
        "durable_name": "w",
        "ack_policy": "explicit",
    }
    assert ConsumerConfig(ack_policy="none").to_api() == {"ack_policy": "none"}


def test_a_push_consumer_has_the_policy_of_the_server() -> None:
    assert ConsumerConfig(deliver_subject="p").to_api() == {"deliver_subject": "p"}


def test_a_policy_that_nobody_here_understands_stays() -> None:
    read = ConsumerConfig.from_api({"ack_policy": "wink"})
    assert read.to_api() == {"ack_policy": "wink"}


# Building


def test_a_configuration_is_built_from_keywords() -> None:
    assert stream_config(name="S", max_msgs=5) == StreamConfig(name="S", max_msgs=5)
    assert consumer_config(durable_name="C") == ConsumerConfig(durable_name="C")


def test_keywords_change_a_given_configuration_in_a_copy() -> None:
    stream = StreamConfig(name="S", max_msgs=5, extra={"x": 1})
    changed = stream_config(stream, max_msgs=6)
    assert changed == StreamConfig(name="S", max_msgs=6, extra={"x": 1})
    changed.extra["y"] = 2
    assert stream == StreamConfig(name="S", max_msgs=5, extra={"x": 1})
    consumer = ConsumerConfig(name="C", ack_wait=5)
    assert consumer_config(consumer, ack_wait=None) == ConsumerConfig(name="C")


@pytest.mark.parametrize(
    ("build", "name", "hint"),
    [
        (stream_config, "subject", "'subjects'"),
        (stream_config, "replicas", "'num_replicas'"),
        (stream_config, "max_mesages", "'max_msgs'"),
        (consumer_config, "durable", "'durable_name'"),
        (consumer_config, "filter_subjet", "'filter_subject'"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(
    build: Any, name: str, hint: str
) -> None:
    with pytest.raises(TypeError, match=f"no field '{name}'; did you mean {hint}"):
        build(**{name: 5})


def test_an_unknown_field_without_a_near_name_is_refused_as_well() -> None:
    with pytest.raises(TypeError, match=r"StreamConfig has no field 'zzz'$"):
        stream_config(zzz=5)


def test_every_public_name_exists() -> None:
    assert all(hasattr(config, name) for name in config.__all__)


# Releases


def test_a_configuration_for_every_server_needs_nothing() -> None:
    made = StreamConfig(name="S", subjects=["s"], max_age=5, allow_direct=True)
    assert made.needs() == []
    assert ConsumerConfig(name="C", filter_subject="s").needs() == []


@pytest.mark.parametrize(
    ("field", "value", "release"),
    [
        ("discard_new_per_subject", True, (2, 9, 1)),
        ("compression", "s2", (2, 10, 0)),
        ("first_seq", 5, (2, 10, 0)),
        ("subject_transform", {"dest": "a"}, (2, 10, 0)),
        ("consumer_limits", {"max_ack_pending": 5}, (2, 10, 0)),
        ("metadata", {"a": "b"}, (2, 10, 0)),
        ("allow_msg_ttl", True, (2, 11, 0)),
        ("subject_delete_marker_ttl", 5, (2, 11, 0)),
        ("allow_msg_counter", True, (2, 12, 0)),
        ("allow_atomic", True, (2, 12, 0)),
        ("allow_msg_schedules", True, (2, 12, 0)),
        ("persist_mode", "async", (2, 12, 0)),
        ("allow_batched", True, (2, 14, 0)),
    ],
)
def test_a_stream_needs_the_release_of_its_fields(
    field: str, value: object, release: tuple[int, int, int]
) -> None:
    assert stream_config(name="S", **{field: value}).needs() == [(field, release)]


def test_a_stream_needs_the_release_of_inner_fields() -> None:
    made = stream_config(
        placement={"preferred": "n1"},
        mirror={"name": "A", "consumer": {"name": "c"}},
        sources=["B", {"name": "C", "subject_transforms": [{"dest": "x"}]}],
    )
    assert made.needs() == [
        ("placement.preferred", (2, 11, 0)),
        ("mirror.consumer", (2, 14, 0)),
        ("sources.subject_transforms", (2, 10, 0)),
    ]


@pytest.mark.parametrize(
    ("field", "value", "release"),
    [
        ("filter_subjects", ["a", "b"], (2, 10, 0)),
        ("metadata", {"a": "b"}, (2, 10, 0)),
        ("pause_until", "2099-01-01T00:00:00Z", (2, 11, 0)),
        ("priority_groups", ["A"], (2, 11, 0)),
        ("priority_policy", "overflow", (2, 11, 0)),
        ("priority_policy", "prioritized", (2, 12, 0)),
        ("priority_timeout", 5, (2, 11, 0)),
        ("ack_policy", "flow_control", (2, 14, 0)),
    ],
)
def test_a_consumer_needs_the_release_of_its_fields(
    field: str, value: object, release: tuple[int, int, int]
) -> None:
    assert consumer_config(name="C", **{field: value}).needs() == [(field, release)]


def test_a_field_that_asks_for_nothing_needs_nothing() -> None:
    made = stream_config(
        name="S",
        compression="none",
        persist_mode="default",
        allow_msg_ttl=False,
        first_seq=0,
        metadata={},
    )
    assert made.needs() == []
    assert consumer_config(priority_policy="none", filter_subjects=[]).needs() == []


# Differences


def test_what_the_server_fills_in_is_no_difference() -> None:
    wanted = StreamConfig(name="S", subjects=["b", "a"], max_msgs=0, retention="limits")
    actual = StreamConfig.from_api(
        {
            "name": "S",
            "subjects": ["a", "b"],
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "storage": "file",
            "num_replicas": 1,
            "duplicate_window": 120_000_000_000,
            "metadata": {"_nats.ver": "2.15.0"},
            "future_x": 1,
        }
    )
    assert differences(wanted, actual) == {}


@pytest.mark.parametrize("limit", [None, 0, -1, -7])
def test_no_limit_has_many_spellings(limit: int | None) -> None:
    wanted = StreamConfig(name="S", max_msgs=limit)
    assert differences(wanted, StreamConfig(name="S", max_msgs=-1)) == {}
    different = differences(wanted, StreamConfig(name="S", max_msgs=5))
    assert different == ({} if limit is None else {"max_msgs": (limit, 5)})


def test_a_field_that_is_otherwise_is_told_with_both_values() -> None:
    wanted = stream_config(name="S", max_age=5, storage="memory", mirror="A")
    actual = stream_config(name="S", max_age=6, storage="file", mirror="B")
    assert differences(wanted, actual) == {
        "max_age": (5, 6),
        "storage": ("memory", "file"),
        "mirror": (StreamSource(name="A"), StreamSource(name="B")),
    }


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [
        ({"placement": Placement()}, {}),
        ({"allow_direct": False, "description": ""}, {}),
        ({"duplicate_window": 0, "num_replicas": 0}, {"duplicate_window": 120}),
        ({"republish": {"dest": "x"}}, {"republish": {"src": ">", "dest": "x"}}),
        ({"sources": [StreamSource(name="A", domain="h")]}, {"sources": [
            {"name": "A", "external": {"api": "$JS.h.API", "deliver": ""}}]}),
        ({"metadata": {"a": "b"}}, {"metadata": {"a": "b", "_nats.level": "5"}}),
    ],
)  # fmt: skip
def test_what_means_the_same_is_no_difference(
    wanted: dict[str, Any], actual: dict[str, Any]
) -> None:
    assert differences(stream_config(**wanted), stream_config(**actual)) == {}


def test_a_consumer_that_the_server_completed_is_no_different() -> None:
    wanted = consumer_config(durable_name="C", ack_wait=60, backoff=[1, 2])
    actual = consumer_config(
        durable_name="C",
        name="C",
        ack_policy="explicit",
        ack_wait=1,
        backoff=[1, 2],
        max_deliver=-1,
        max_waiting=512,
        max_ack_pending=1000,
        deliver_policy="all",
        replay_policy="instant",
        num_replicas=0,
    )
    assert differences(wanted, actual) == {}


def test_filters_are_compared_without_order() -> None:
    wanted = ConsumerConfig(filter_subjects=["a", "b"])
    assert differences(wanted, ConsumerConfig(filter_subjects=["b", "a"])) == {}
    assert list(differences(wanted, ConsumerConfig(filter_subjects=["a"]))) == [
        "filter_subjects"
    ]


def test_values_that_nobody_here_understands_are_compared_as_they_are() -> None:
    wanted = StreamConfig(name="S", extra={"x": 1, "max_msgs": "many", "metadata": 5})
    actual = StreamConfig(name="S", extra={"x": 2, "max_msgs": "many", "metadata": 5})
    assert differences(wanted, actual) == {"x": (1, 2)}


# Their keywords take more than the fields, which are what it becomes.
WIDER = {
    *("subjects", "filter_subjects", "priority_groups", "backoff"),
    *("mirror", "sources", "placement", "republish", "subject_transform"),
    "consumer_limits",
}


@pytest.mark.parametrize(
    ("kind", "offered", "changeable"),
    [
        (StreamConfig, StreamFields, StreamSettings),
        (ConsumerConfig, ConsumerFields, ConsumerSettings),
    ],
)
def test_every_field_of_a_configuration_can_be_given_as_a_keyword(
    kind: type, offered: type, changeable: type
) -> None:
    known = {field.name: field.type for field in fields(kind)}
    hints = {name: hint.__forward_arg__ for name, hint in hints_of(offered).items()}
    assert set(hints) == set(known)
    assert set(hints_of(changeable)) == set(known) - {"name"}
    different = {name for name in known if hints[name] != known[name]}
    assert different == WIDER & set(known)


def hints_of(kind: type) -> dict[str, Any]:
    return kind.__annotations__
