"""What is refused before it is sent, and what is left to the server."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient import InvalidArgumentError
from jsclient.config import consumer_config, stream_config

TRANSFORM = {"src": "a", "dest": "b"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": None}, "name must be given"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "a.b"}, "name must not have"),
        ({"name": "a b"}, "name must not have"),
        ({"name": "a/b"}, "name must not have"),
        ({"description": "é" * 2049}, "description has 4098 bytes"),
        ({"metadata": {"a": "b" * 131072}}, "metadata has 131073 bytes"),
        ({"subjects": [""]}, "subjects must not be empty"),
        ({"subjects": ["a..b"]}, "subjects must not have empty tokens"),
        ({"subjects": ["a.>.b"]}, "subjects must use"),
        ({"subjects": ["a", "a"]}, "subjects overlap: 'a' and 'a'"),
        ({"subjects": ["a.*", "x", "a.b"]}, r"subjects overlap: 'a\.\*' and 'a\.b'"),
        ({"subjects": [">"]}, "only with no_ack"),
        ({"subjects": [">"], "no_ack": True, "num_replicas": 3}, "one replica"),
        ({"subjects": ["$JS.API.>"]}, "only with no_ack"),
        ({"subjects": ["$SYS.>"]}, "only with no_ack"),
        ({"subjects": ["$NRG.x"]}, "only with no_ack"),
        ({"subjects": ["$JSC.x"]}, "only with no_ack"),
        ({"subjects": ["*.x"]}, "only with no_ack"),
        ({"max_age": 0.05}, "max_age must be 0.1 seconds or more"),
        ({"duplicate_window": 0.05}, "duplicate_window must be 0.1 seconds or more"),
        ({"max_age": 10, "duplicate_window": 20}, "duplicate_window .* max_age"),
        ({"subject_delete_marker_ttl": 0.5}, "subject_delete_marker_ttl must be 1"),
        ({"num_replicas": 6}, "num_replicas must be 0 to 5, not 6"),
        ({"num_replicas": -1}, "num_replicas must be 0 to 5, not -1"),
        ({"first_seq": -1}, "first_seq must be at least 0"),
        ({"placement": {"preferred": "x"}}, "placement"),
        ({"discard_new_per_subject": True}, "discard_new_per_subject needs discard"),
        (
            {"discard_new_per_subject": True, "discard": "new"},
            "discard_new_per_subject needs max_msgs_per_subject",
        ),
        ({"deny_purge": True, "allow_rollup_hdrs": True}, "deny_purge cannot go with"),
        ({"allow_msg_counter": True, "discard": "new"}, "discard cannot be 'new'"),
        ({"allow_msg_schedules": True, "discard": "new"}, "discard cannot be 'new'"),
        (
            {"allow_msg_counter": True, "allow_msg_ttl": True},
            "cannot go with allow_msg",
        ),
        ({"allow_msg_counter": True, "retention": "interest"}, "retention must be"),
        ({"allow_msg_schedules": True, "sources": ["Q"]}, "cannot go with sources"),
        ({"persist_mode": "async", "storage": "memory"}, "persist_mode"),
        ({"persist_mode": "async", "num_replicas": 3}, "persist_mode"),
        ({"persist_mode": "async", "allow_atomic": True}, "persist_mode"),
        ({"mirror": "Q", "subjects": ["m"]}, "mirror cannot go with subjects"),
        ({"mirror": "Q", "sources": ["Z"]}, "mirror cannot go with sources"),
        ({"mirror": "Q", "first_seq": 3}, "mirror cannot go with first_seq"),
        ({"mirror": "Q", "allow_msg_counter": True}, "mirror cannot go with allow_msg"),
        ({"mirror": "Q", "allow_atomic": True}, "mirror cannot go with allow_atomic"),
        ({"mirror": "Q", "allow_batched": True}, "mirror cannot go with allow_batched"),
        (
            {"mirror": "Q", "allow_msg_schedules": True},
            "mirror cannot go with allow_msg",
        ),
        ({"mirror": "Q", "subject_delete_marker_ttl": 1}, "mirror cannot go with subj"),
        ({"mirror": {}}, "mirror must have a name"),
        ({"mirror": "a.b"}, "mirror.name must not have"),
        ({"sources": ["a.b"]}, r"sources\[0\].name must not have"),
        ({"sources": ["Q", "R", "Q"]}, "sources must differ"),
        ({"mirror": {"name": "Q", "filter_subject": "a..b"}}, "mirror.filter_subject"),
        (
            {
                "mirror": {
                    "name": "Q",
                    "filter_subject": "a",
                    "subject_transforms": [TRANSFORM],
                }
            },
            "mirror.filter_subject cannot go with subject_transforms",
        ),
        (
            {"mirror": {"name": "Q", "subject_transforms": [{"src": "a..b"}]}},
            "mirror.subject_transforms must not have empty tokens",
        ),
        (
            {"mirror": {"name": "Q", "subject_transforms": [TRANSFORM, TRANSFORM]}},
            "mirror.subject_transforms overlap",
        ),
        ({"mirror": {"name": "Q", "external": {"api": "a.*"}}}, "external.api"),
        (
            {"mirror": {"name": "Q", "opt_start_seq": 4, "consumer": {"name": "c"}}},
            "mirror.consumer cannot go with a start",
        ),
        ({"mirror": {"name": "Q", "consumer": {}}}, "mirror.consumer.name"),
        (
            {"mirror": {"name": "Q", "consumer": {"name": "c"}}},
            "mirror.consumer.deliver_subject must not be empty",
        ),
        (
            {
                "mirror": {
                    "name": "Q",
                    "consumer": {"name": "c", "deliver_subject": "*"},
                }
            },
            "mirror.consumer.deliver_subject must not have wildcards",
        ),
        ({"subject_transform": {"src": "a..b", "dest": "c"}}, "subject_transform.src"),
        ({"republish": {"src": "a..b", "dest": "c"}}, "republish.src"),
        ({"republish": {"src": "X"}}, "republish.dest must be given"),
        ({"republish": {}}, "republish.dest must be given"),
        ({"mirror_direct": True}, "mirror_direct needs a mirror"),
        ({"republish": {"dest": "X"}}, "republish.dest overlaps .* 'X'"),
        ({"republish": {"dest": "a.b"}, "subjects": ["q", "a.>"]}, "republish.dest"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_by_its_field(
    values: dict[str, Any], text: str
) -> None:
    config = stream_config(**{"name": "X", **values})
    with pytest.raises(InvalidArgumentError, match=text):
        config.validate()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"subjects": ["a.>", "b.*.c", "b.*.d"], "max_age": 0.1, "num_replicas": 5},
        {"subjects": [">"], "no_ack": True},
        {"subjects": ["$JS.EVENT.ADVISORY.>", "$SYS.ACCOUNT.x.>"]},
        {"subjects": ["$KV.b.>"], "discard": "new", "max_msgs_per_subject": 1},
        {"discard_new_per_subject": True, "discard": "new", "max_msgs_per_subject": 1},
        {"duplicate_window": 0, "max_age": 0.5},
        {"max_msgs": -7},
        {"allow_msg_counter": True, "retention": "limits"},
        {"persist_mode": "async"},
        {"mirror": "Q", "subjects": [], "mirror_direct": True},
        {"mirror": {"name": "Q", "domain": "hub"}},
        {"mirror": {"name": "Q", "external": {"api": "$JS.hub.API"}}},
        {"mirror": {"name": "Q", "external": {}}},
        {"sources": ["Q", {"name": "Q", "filter_subject": "a"}]},
        {"sources": [{"name": "Q", "subject_transforms": [TRANSFORM, {"dest": "c"}]}]},
        {"mirror": {"name": "Q", "consumer": {"name": "c", "deliver_subject": "d"}}},
        {"subject_transform": {"dest": "a"}, "subjects": ["b"]},
        {"subject_transform": {"src": "b.*", "dest": "a.{{wildcard(1)}}"}},
        {"republish": {"src": "X", "dest": "again"}},
        {"republish": {"dest": "X"}, "mirror": "Q"},
        {"republish": {"dest": ">"}, "subject_transform": {"src": "X", "dest": "Y"}},
    ],
)
def test_a_stream_that_can_be_is_left_to_the_server(values: dict[str, Any]) -> None:
    stream_config(**{"name": "X", **values}).validate()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": "a.b"}, "name must not have"),
        ({"durable_name": ""}, "durable_name must not be empty"),
        ({"name": "a", "durable_name": "b"}, "durable_name must be the same as name"),
        ({"description": "x" * 4097}, "description"),
        ({"metadata": {"a": "b" * 131072}}, "metadata"),
        ({"num_replicas": -1}, "num_replicas"),
        ({"opt_start_seq": 4}, "opt_start_seq goes with"),
        ({"deliver_policy": "by_start_sequence"}, "opt_start_seq goes with"),
        ({"deliver_policy": "by_start_time"}, "opt_start_time goes with"),
        ({"opt_start_time": "2024-01-01T00:00:00Z"}, "opt_start_time goes with"),
        ({"deliver_policy": "last_per_subject"}, "deliver_policy .* filter_subject"),
        ({"filter_subject": "a", "filter_subjects": ["b"]}, "filter_subjects cannot"),
        ({"filter_subject": "a..b"}, "filter_subject must not have empty tokens"),
        ({"filter_subjects": [""]}, "filter_subjects must not be empty"),
        ({"filter_subjects": ["a.b", "a.>"]}, "filter_subjects overlap"),
        ({"filter_subjects": ["a.>", "a.b"]}, "filter_subjects overlap"),
        ({"backoff": [1, 2], "max_deliver": 1}, "backoff .* max_deliver"),
        ({"priority_policy": "overflow"}, "priority_policy needs priority_groups"),
        ({"priority_groups": ["A"]}, "priority_groups need a priority_policy"),
        ({"priority_timeout": 4}, "priority_timeout needs a priority_policy"),
        (
            {"priority_policy": "overflow", "priority_groups": ["a b"]},
            "priority_groups must be 1 to 16",
        ),
        ({"sample_freq": "x%"}, "sample_freq must be a number"),
        ({"max_expires": 0.0005}, "max_expires must be 0.001 seconds"),
        ({"rate_limit_bps": 4}, "rate_limit_bps is for push consumers only"),
        ({"idle_heartbeat": 4}, "idle_heartbeat is for push consumers only"),
        ({"flow_control": True}, "flow_control is for push consumers only"),
        ({"deliver_group": "g"}, "deliver_group is for push consumers only"),
        ({"ack_policy": "flow_control"}, "ack_policy .* push consumers only"),
    ],
)
def test_a_consumer_that_cannot_be_is_refused_by_its_field(
    values: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        consumer_config(**values).validate()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"deliver_subject": "a.*"}, "deliver_subject must not have wildcards"),
        ({"deliver_subject": "a.>"}, "deliver_subject must not have wildcards"),
        ({"deliver_subject": "a..b"}, "deliver_subject must not have empty tokens"),
        ({"deliver_group": "a b"}, "deliver_group must not contain blanks"),
        ({"max_waiting": 5}, "max_waiting is for pull consumers only"),
        (
            {"priority_policy": "overflow", "priority_groups": ["A"]},
            "priority_policy is for pull consumers only",
        ),
        ({"idle_heartbeat": 0.05}, "idle_heartbeat must be 0.1 seconds"),
        ({"flow_control": True}, "flow_control needs an idle_heartbeat"),
        ({"max_ack_pending": 4}, "max_ack_pending needs an ack_policy"),
        ({"ack_policy": "flow_control", "ack_wait": 3}, "cannot go with ack_wait"),
        ({"ack_policy": "flow_control", "backoff": [3]}, "cannot go with ack_wait"),
        ({"ack_policy": "flow_control", "max_deliver": 3}, "cannot go with ack_wait"),
    ],
)
def test_a_push_consumer_that_cannot_be_is_refused_by_its_field(
    values: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        consumer_config(**{"deliver_subject": "p", **values}).validate()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"name": "C", "durable_name": "C", "ack_policy": "none"},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 4},
        {"deliver_policy": "by_start_time", "opt_start_time": "2024-01-01T00:00:00Z"},
        {"deliver_policy": "last_per_subject", "filter_subjects": ["a", "b"]},
        {"filter_subjects": ["a.b.*", "a.*.c"]},
        {"filter_subject": "", "filter_subjects": ["a"]},
        {"backoff": [1, 2], "max_deliver": 2},
        {"backoff": [1, 2], "max_deliver": -1},
        {"priority_policy": "prioritized", "priority_groups": ["A"]},
        {"priority_policy": "none", "priority_groups": []},
        {"sample_freq": "50%", "max_expires": 0.001, "max_waiting": 5},
        {"deliver_subject": "p", "flow_control": True, "idle_heartbeat": 0.1},
        {"deliver_subject": "p", "ack_policy": "flow_control", "flow_control": True},
        {"deliver_subject": "p", "ack_policy": "all", "max_ack_pending": 5},
        {"deliver_subject": "p", "max_ack_pending": -1, "rate_limit_bps": 5},
    ],
)
def test_a_consumer_that_can_be_is_left_to_the_server(values: dict[str, Any]) -> None:
    consumer_config(**values).validate()
