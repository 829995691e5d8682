"""Streams on a real server: made, changed, listed, purged and deleted."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

import jsclient
from jsclient import config
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.live.support import until

pytestmark = pytest.mark.live


def filled(js: JetStream, count: int = 5, **fields: Any) -> Stream:
    """A stream in memory on `s.>`, with messages on s.0, s.1, s.2 in turn."""
    stream = js.create_stream(
        **{"name": "S", "subjects": ["s.>"], "storage": "memory", **fields}
    )
    for number in range(count):
        js.publish(f"s.{number % 3}", b"%d" % number)
    return stream


# Making -------------------------------------------------------------------------------


def test_a_stream_is_made_of_fields_or_of_a_config(js: JetStream) -> None:
    one = js.create_stream(name="ONE", subjects=["one.>"], storage="memory")
    other = js.create_stream(
        config.StreamConfig(name="OTHER", subjects=["other"]), storage="memory"
    )
    assert (one.name, other.name) == ("ONE", "OTHER")
    assert repr(one) == "<Stream 'ONE'>"
    for stream in (one, other):
        assert stream.cached_info.config.storage == "memory"
        assert js.stream(stream.name).cached_info.config == stream.cached_info.config
    assert other.cached_info.created is not None
    assert "subjects=['other']" in repr(other.cached_info.config)


def test_the_same_stream_may_be_made_again_but_not_a_different_one(
    js: JetStream,
) -> None:
    fields: dict[str, Any] = {
        "name": "S",
        "subjects": ["s.>"],
        "storage": "memory",
        "max_age": 3600,
    }
    first = js.create_stream(**fields)
    again = js.create_stream(**fields)
    assert again.cached_info.created == first.cached_info.created
    with pytest.raises(failures.StreamNameInUseError) as caught:
        js.create_stream(**{**fields, "max_age": 60})
    assert caught.value.err_code == 10058
    assert "create stream 'S'" in str(caught.value)


def test_subjects_of_another_stream_are_refused(js: JetStream) -> None:
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    with pytest.raises(failures.SubjectsOverlapError) as caught:
        js.create_stream(name="T", subjects=["s.a"], storage="memory")
    assert caught.value.err_code == 10065
    assert js.stream_names() == ["S"]


@pytest.mark.parametrize("given", [None, 0, -1])
def test_no_limit_may_be_said_in_three_ways(js: JetStream, given: int | None) -> None:
    stream = js.create_stream(
        name="S",
        storage="memory",
        max_msgs=given,
        max_bytes=given,
        max_msg_size=given,
        max_consumers=given,
        max_msgs_per_subject=given,
    )
    made = stream.cached_info.config
    assert (made.max_msgs, made.max_bytes, made.max_msg_size) == (-1, -1, -1)
    assert (made.max_consumers, made.max_msgs_per_subject) == (-1, -1)
    assert made.subjects == ["S"]
    assert made.duplicate_window == 120


def test_every_field_comes_back_as_it_was_given(js: JetStream) -> None:
    js.create_stream(name="ORIGIN", subjects=["origin.>"], storage="memory")
    wanted = config.StreamConfig(
        name="S",
        description="all of it",
        subjects=["s.>", "t"],
        retention="limits",
        max_consumers=7,
        max_msgs=1000,
        max_bytes=1 << 20,
        max_age=timedelta(hours=1),
        max_msgs_per_subject=10,
        max_msg_size=4096,
        discard="new",
        discard_new_per_subject=True,
        storage="file",
        num_replicas=1,
        no_ack=True,
        duplicate_window=0.5,
        sources=[config.StreamSource(name="ORIGIN", filter_subject="origin.a")],
        deny_delete=True,
        deny_purge=True,
        republish=config.Republish(src="s.>", dest="again.>", headers_only=True),
        allow_direct=True,
        compression="s2",
        first_seq=100,
        subject_transform=config.SubjectTransform(src="t", dest="s.t"),
        consumer_limits=config.ConsumerLimits(
            inactive_threshold=60, max_ack_pending=50
        ),
        metadata={"owner": "me"},
        allow_msg_ttl=True,
        allow_atomic=True,
        allow_batched=True,
    )
    stream = js.create_stream(wanted)
    assert config.differences(wanted, stream.info().config) == {}
    # What the server told can be sent to it again.
    assert js.create_stream(stream.cached_info.config).name == "S"


@pytest.mark.parametrize(
    "fields",
    [
        {"allow_msg_counter": True},
        {"allow_msg_schedules": True, "allow_msg_ttl": True},
        {"subject_delete_marker_ttl": 60, "allow_rollup_hdrs": True},
        {"storage": "file", "persist_mode": "async"},
        {"retention": "workqueue"},
        {"retention": "interest"},
        {"no_ack": True, "subjects": [">"]},
        {"no_ack": True, "subjects": ["$JS.>"]},
        {"subjects": ["$JS.EVENT.ADVISORY.>"]},
    ],
)
def test_less_common_streams_can_be_made(js: JetStream, fields: dict[str, Any]) -> None:
    wanted = config.StreamConfig(name="S", **{"storage": "memory", **fields})
    made = js.create_stream(wanted).info().config
    assert config.differences(wanted, made) == {}


def test_a_mirror_follows_its_origin_and_can_be_promoted(js: JetStream) -> None:
    filled(js, 4)
    mirror = js.create_stream(name="M", mirror="S", storage="memory")
    until(lambda: mirror.info().state.messages == 4, "the mirror has all")
    told = mirror.cached_info.mirror
    assert told is not None
    assert (told.name, told.lag, told.error) == ("S", 0, None)
    with pytest.raises(failures.MirrorNotUpdatableError):
        mirror.update(mirror=config.StreamSource(name="T"))
    mirror.update(mirror=None, subjects=["m.>"])
    assert js.publish("m.1").stream == "M"


def test_a_mirror_that_reads_for_its_origin_can_be_promoted(js: JetStream) -> None:
    filled(js, 4, allow_direct=True)
    mirror = js.create_stream(name="M", mirror="S", storage="memory")
    assert mirror.cached_info.config.mirror_direct
    promoted = js.update_stream(name="M", mirror=None, subjects=["m.>"])
    made = promoted.cached_info.config
    assert made.mirror is None
    assert not made.mirror_direct
    assert js.publish("m.1").stream == "M"


def test_pedantic_refuses_what_the_server_would_adjust(js: JetStream) -> None:
    with pytest.raises(failures.PedanticError) as caught:
        js.create_stream(name="S", storage="memory", max_msgs=-5, pedantic=True)
    assert caught.value.err_code == 10157
    stream = js.create_stream(name="S", storage="memory", max_msgs=-5)
    assert stream.cached_info.config.max_msgs == -1
    with pytest.raises(failures.PedanticError):
        stream.update(max_msgs=-5, pedantic=True)
    with pytest.raises(failures.PedanticError):
        js.update_stream(name="S", max_msgs=-5, pedantic=True)
    with pytest.raises(failures.PedanticError):
        js.create_or_update_stream(name="S", max_msgs=-5, pedantic=True)


def test_a_refusal_says_what_was_being_done_and_why(js: JetStream) -> None:
    with pytest.raises(failures.InvalidStreamConfigError) as caught:
        js.create_stream(name="S", num_replicas=3)
    assert (caught.value.code, caught.value.err_code) == (500, 10074)
    assert str(caught.value).startswith("create stream 'S': ")
    with pytest.raises(failures.StreamNotFoundError, match="look up stream 'NONE'"):
        js.stream("NONE")
    with pytest.raises(failures.StreamNotFoundError, match="delete stream 'NONE'"):
        js.delete_stream("NONE")


def test_new_fields_demand_the_api_level_that_knows_them(
    js: JetStream, jetstream_server: Server
) -> None:
    with jsclient.connect(jetstream_server.url) as spy:
        seen = spy.subscribe("$JS.API.*.CREATE.>")
        spy.flush()
        js.create_stream(name="S", storage="memory", metadata={"old": "enough"})
        js.create_stream(name="T", storage="memory", allow_msg_ttl=True)
        js.create_stream(name="U", storage="memory", allow_batched=True)
        js.create_consumer(
            "S", name="C", priority_groups=["g"], priority_policy="prioritized"
        )
        levels = []
        for _ in range(4):
            headers = seen.next(5).headers
            levels.append(headers and headers.get("Nats-Required-Api-Level"))
        assert levels == [None, "1", "4", "2"]


def test_an_api_level_that_the_server_does_not_have_is_refused(js: JetStream) -> None:
    with pytest.raises(failures.RequiredApiLevelError) as caught:
        js._api.call(
            "STREAM.CREATE.S",
            {"name": "S"},
            doing="create",
            headers={"Nats-Required-Api-Level": "99"},
        )
    assert (caught.value.code, caught.value.err_code) == (412, 10185)


# Changing -----------------------------------------------------------------------------


def test_an_update_changes_what_it_names_and_nothing_else(js: JetStream) -> None:
    stream = filled(
        js,
        max_age=3600,
        max_msgs=100,
        metadata={"a": "1"},
        description="before",
        allow_direct=True,
    )
    before = stream.info().config
    assert stream.update(description="after", max_msgs=200) is stream
    after = stream.info().config
    assert config.differences(before, after) == {
        "description": ("before", "after"),
        "max_msgs": (100, 200),
    }
    js.update_stream(name="S", max_consumers=3)
    assert stream.info().config.max_consumers == 3
    assert stream.cached_info.config.description == "after"
    assert stream.cached_info.state.messages == 5


def test_an_update_can_take_a_field_back(js: JetStream) -> None:
    stream = filled(js, max_age=3600, metadata={"a": "1"}, subjects=["s.>", "t"])
    stream.update(max_age=None, metadata={}, subjects=["s.>"])
    made = stream.info().config
    assert made.max_age in (None, 0)
    assert made.subjects == ["s.>"]
    assert "a" not in (made.metadata or {})
    js.update_stream(name="S", description="here", max_msgs=7)
    js.update_stream(name="S", description=None)
    made = stream.info().config
    assert (made.description, made.max_msgs) == (None, 7)


def test_the_name_of_a_stream_cannot_be_changed(js: JetStream) -> None:
    stream = filled(js)
    other = js.create_stream(name="V", subjects=["v"], storage="memory")
    with pytest.raises(ValueError, match="name cannot be changed"):
        stream.update(name="V")  # type: ignore[call-arg]
    assert other.info().config.subjects == ["v"]


def test_a_limit_per_subject_is_set_on_a_stream_that_refuses_new_messages(
    js: JetStream,
) -> None:
    filled(js, discard="new", max_msgs_per_subject=5)
    changed = js.create_or_update_stream(name="S", discard_new_per_subject=True)
    assert changed.cached_info.config.discard_new_per_subject


def test_a_shorter_age_shortens_what_the_server_had_filled_in(js: JetStream) -> None:
    stream = filled(js, max_age=3600)
    assert stream.cached_info.config.duplicate_window == 120
    stream.update(max_age=60)
    assert stream.info().config.duplicate_window == 60
    js.create_or_update_stream(name="S", max_age=30)
    assert stream.info().config.duplicate_window == 30
    with pytest.raises(ValueError, match="duplicate_window must not be longer"):
        stream.update(max_age=10, duplicate_window=20)


def test_an_update_that_cannot_be_is_refused(js: JetStream) -> None:
    stream = filled(js)
    with pytest.raises(failures.InvalidStreamConfigError) as caught:
        stream.update(storage="file")
    assert caught.value.err_code == 10052
    assert "update stream 'S'" in str(caught.value)
    with pytest.raises(failures.StreamNotFoundError):
        js.update_stream(name="NONE", max_msgs=1)


def test_create_or_update_does_either(js: JetStream) -> None:
    made = js.create_or_update_stream(
        name="S", subjects=["s"], storage="memory", max_msgs=5
    )
    assert made.cached_info.config.max_msgs == 5
    js.publish("s")
    changed = js.create_or_update_stream(
        config.StreamConfig(name="S", storage="memory", max_msgs=9)
    )
    assert changed.cached_info.config.max_msgs == 9
    assert changed.cached_info.config.subjects == ["s"]
    assert changed.info().state.messages == 1


def test_a_sealed_stream_stays_as_it_is(js: JetStream) -> None:
    stream = filled(js)
    stream.update(sealed=True)
    with pytest.raises(failures.StreamSealedError):
        js.publish("s.1")
    with pytest.raises(failures.StreamSealedError):
        stream.purge()
    assert stream.info().config.sealed


# Finding ------------------------------------------------------------------------------


def test_all_streams_are_listed_over_pages() -> None:
    with (
        jsclient.server.run(jetstream=True) as server,
        jsclient.connect(server.url) as nc,
    ):
        js = nc.jetstream()
        wanted = [f"S{number:03}" for number in range(300)]
        for name in wanted:
            js.create_stream(
                name=name, subjects=[f"{name}.>", f"x.{name}"], storage="memory"
            )
        assert sorted(js.stream_names()) == wanted
        found = js.streams()
        assert sorted(stream.name for stream in found) == wanted
        assert found.missing == ()
        assert js.stream_names("S007.a") == ["S007"]
        assert len(js.stream_names("x.*")) == 300
        assert [stream.name for stream in js.streams("x.S123")] == ["S123"]
        assert js.account_info().streams == 300


def test_streams_are_found_by_subjects_that_overlap(js: JetStream) -> None:
    js.create_stream(name="A", subjects=["a.*"], storage="memory")
    js.create_stream(name="B", subjects=["b.>"], storage="memory")
    assert js.stream_names("a.1") == ["A"]
    assert js.stream_names("*.1") == ["A", "B"]
    assert js.stream_names("c") == []
    assert [stream.name for stream in js.streams("b.1.2")] == ["B"]
    assert js.streams("c") == []


def test_info_counts_subjects_and_names_deleted_messages(js: JetStream) -> None:
    stream = filled(js, 7)
    state = stream.info().state
    assert (state.messages, state.first_seq, state.last_seq) == (7, 1, 7)
    assert (state.num_subjects, state.subjects, state.deleted) == (3, {}, ())
    assert state.first_ts is not None
    assert state.last_ts is not None
    assert state.first_ts <= state.last_ts
    assert stream.info(subjects=">").state.subjects == {"s.0": 3, "s.1": 2, "s.2": 2}
    assert stream.info(subjects="s.0").state.subjects == {"s.0": 3}
    assert stream.info(subjects="none").state.subjects == {}
    stream.delete_msg(3)
    stream.delete_msg(5)
    state = stream.info(deleted_details=True).state
    assert (state.num_deleted, state.deleted) == (2, (3, 5))
    assert stream.cached_info.state is state


def test_a_stream_of_another_moment_is_asked_again(js: JetStream) -> None:
    stream = filled(js, 0)
    assert stream.cached_info.state.messages == 0
    js.publish("s.1")
    assert stream.cached_info.state.messages == 0
    assert stream.info().state.messages == 1
    assert stream.cached_info.state.messages == 1
    stream.delete()
    with pytest.raises(failures.StreamNotFoundError):
        stream.info()


# Emptying -----------------------------------------------------------------------------


def test_a_purge_returns_how_many_messages_it_deleted(js: JetStream) -> None:
    stream = filled(js, 9)
    assert stream.purge("s.0") == 3
    assert stream.purge(sequence=5) == 2  # 2 and 3; 1 and 4 are gone already
    assert stream.purge("s.1", keep=1) == 1
    assert stream.info(subjects=">").state.subjects == {"s.1": 1, "s.2": 2}
    assert stream.purge(keep=2) == 1
    assert js.purge_stream("S") == 2
    assert stream.purge() == 0
    with pytest.raises(jsclient.InvalidArgumentError, match="sequence or keep"):
        stream.purge(sequence=3, keep=1)


def test_one_message_is_deleted(js: JetStream) -> None:
    stream = filled(js, 3, storage="file")
    stream.delete_msg(2)
    stream.delete_msg(3, secure=True)
    with pytest.raises(failures.MessageNotFoundError):
        stream.get_msg(2)
    with pytest.raises(failures.MessageNotFoundError, match="delete message 2 of"):
        stream.delete_msg(2)
    assert stream.get_msg(1).data == b"0"


def test_what_a_stream_denies_is_refused(js: JetStream) -> None:
    stream = filled(js, deny_delete=True, deny_purge=True)
    with pytest.raises(failures.MessageDeleteFailedError) as caught:
        stream.delete_msg(1)
    assert caught.value.err_code == 10057
    with pytest.raises(failures.PurgeFailedError) as refused:
        stream.purge()
    assert refused.value.err_code == 10110
    assert stream.info().state.messages == 5


def test_a_normal_delete_does_not_overwrite_and_a_secure_one_does(
    js: JetStream, jetstream_server: Server
) -> None:
    stream = filled(js)
    with jsclient.connect(jetstream_server.url) as spy:
        seen = spy.subscribe("$JS.API.STREAM.MSG.DELETE.S")
        spy.flush()
        stream.delete_msg(1)
        stream.delete_msg(2, secure=True)
        assert seen.next(5).data == b'{"seq":1,"no_erase":true}'
        assert seen.next(5).data == b'{"seq":2}'


# Handles ------------------------------------------------------------------------------


def test_contexts_and_handles_cannot_be_pickled_but_infos_can(js: JetStream) -> None:
    stream = filled(js)
    for handle in (js, stream):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(handle)
    info = stream.info()
    assert pickle.loads(pickle.dumps(info)) == info
    assert copy.deepcopy(info) == info
    listing = js.streams()
    assert [found.name for found in copy.copy(listing)] == ["S"]
    assert copy.copy(listing).missing == ()


def test_a_wrong_field_is_told_with_the_nearest_right_one(js: JetStream) -> None:
    with pytest.raises(TypeError, match="'subject'; did you mean 'subjects'"):
        js.create_stream(name="S", subject="s.>")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'max_mesgs'; did you mean 'max_msgs'"):
        js.update_stream(name="S", max_mesgs=5)  # type: ignore[call-arg]
    stream = filled(js)
    with pytest.raises(TypeError, match="'retension'; did you mean 'retention'"):
        stream.update(retension="limits")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="config must be a StreamConfig, not str"):
        js.create_stream("S")  # type: ignore[arg-type]
