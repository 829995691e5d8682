"""Consumers on a real server: made, changed, listed, paused, reset and deleted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import jsclient
from jsclient import config
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.live.support import PATIENCE, until

pytestmark = pytest.mark.live


@pytest.fixture
def stream(js: JetStream) -> Stream:
    """A stream on `s.>` with messages on s.0, s.1, s.2 in turn."""
    made = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(6):
        js.publish(f"s.{number % 3}", b"%d" % number)
    return made


@pytest.fixture
def api(stream: Stream, jetstream_server: Server) -> Iterator[jsclient.Subscription]:
    """All requests about consumers, as another connection sees them."""
    with jsclient.connect(jetstream_server.url) as spy:
        requests = spy.subscribe("$JS.API.CONSUMER.>")
        spy.flush()
        yield requests


# Making -------------------------------------------------------------------------------


def test_a_consumer_is_made_of_fields_or_of_a_config(
    js: JetStream, stream: Stream
) -> None:
    one = stream.create_consumer(durable_name="one", filter_subject="s.1")
    other = js.create_consumer("S", config.ConsumerConfig(name="other"), max_deliver=3)
    assert (one.name, one.stream_name) == ("one", "S")
    assert repr(one) == "<Consumer 'one' of 'S'>"
    assert one.cached_info.config.ack_policy == "explicit"
    assert one.cached_info.num_pending == 2
    assert other.cached_info.config.durable_name is None
    assert other.cached_info.config.max_deliver == 3
    assert other.info().num_pending == 6
    for consumer in (one, other):
        found = stream.consumer(consumer.name)
        assert found.cached_info.config == consumer.cached_info.config
        assert js.consumer("S", consumer.name).name == consumer.name


def test_a_consumer_without_a_name_gets_one(stream: Stream) -> None:
    one, other = stream.create_consumer(), stream.create_consumer()
    assert len(one.name) == len(other.name) == 8
    assert one.name != other.name
    assert one.cached_info.config.inactive_threshold == 5


def test_the_filter_stands_in_the_subject_if_it_is_only_one(
    stream: Stream, api: jsclient.Subscription
) -> None:
    stream.create_consumer(name="one", filter_subject="s.*")
    stream.create_consumer(name="two", filter_subjects=["s.0", "s.1"])
    stream.create_consumer(name="all")
    prefix = "$JS.API.CONSUMER.CREATE.S"
    asked = [api.next(PATIENCE) for _ in range(3)]
    assert [request.subject for request in asked] == [
        f"{prefix}.one.s.*",
        f"{prefix}.two",
        f"{prefix}.all",
    ]
    configs = [json.loads(request.data)["config"] for request in asked]
    assert [config.get("filter_subject") for config in configs] == ["s.*", None, None]
    assert configs[1]["filter_subjects"] == ["s.0", "s.1"]
    assert stream.consumer("one").cached_info.num_pending == 6
    assert stream.consumer("two").cached_info.num_pending == 4
    two = stream.consumer("two").cached_info.config
    assert (two.filter_subject, two.filter_subjects) == (None, ["s.0", "s.1"])


def test_the_same_consumer_may_be_made_again_but_not_a_different_one(
    stream: Stream,
) -> None:
    first = stream.create_consumer(durable_name="C", max_deliver=5)
    again = stream.create_consumer(durable_name="C", max_deliver=5)
    assert again.cached_info.created == first.cached_info.created
    with pytest.raises(failures.ConsumerExistsError) as caught:
        stream.create_consumer(durable_name="C", max_deliver=6)
    assert caught.value.err_code == 10148
    assert "create consumer 'C' of stream 'S'" in str(caught.value)


def test_a_consumer_can_only_be_made_of_a_stream_that_exists(js: JetStream) -> None:
    for call in (
        lambda: js.create_consumer("NONE", name="C"),
        lambda: js.consumer_names("NONE"),
        lambda: js.consumers("NONE"),
    ):
        with pytest.raises(failures.StreamNotFoundError, match="stream 'NONE'"):
            call()


def test_every_field_comes_back_as_it_was_given(stream: Stream) -> None:
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    pull = config.ConsumerConfig(
        durable_name="pull",
        description="all of it",
        deliver_policy="by_start_sequence",
        opt_start_seq=3,
        ack_policy="explicit",
        max_deliver=4,
        backoff=[1, 2.5, timedelta(seconds=10)],
        filter_subjects=["s.1", "s.2"],
        replay_policy="original",
        sample_freq="50%",
        max_waiting=7,
        max_ack_pending=20,
        headers_only=True,
        max_batch=10,
        max_expires=30,
        max_bytes=1 << 16,
        inactive_threshold=timedelta(minutes=5),
        num_replicas=1,
        mem_storage=True,
        metadata={"owner": "me"},
        pause_until=later,
        priority_groups=["g"],
        priority_policy="pinned_client",
        priority_timeout=60,
    )
    push = config.ConsumerConfig(
        name="push",
        deliver_policy="by_start_time",
        opt_start_time="2024-01-01T00:00:00.123456789Z",
        ack_policy="all",
        ack_wait=12.5,
        filter_subject="s.*",
        rate_limit_bps=1_000_000,
        deliver_subject="deliver.here",
        deliver_group="workers",
        flow_control=True,
        idle_heartbeat=5,
    )
    for wanted in (pull, push):
        made = stream.create_consumer(wanted).info().config
        assert config.differences(wanted, made) == {}
        # What the server told can be sent to it again.
        assert stream.create_consumer(made).cached_info.config == made


@pytest.mark.parametrize("policy", ["all", "last", "new", "last_per_subject"])
def test_a_consumer_begins_where_its_policy_says(stream: Stream, policy: str) -> None:
    pending = {"all": 6, "last": 1, "new": 0, "last_per_subject": 3}
    made = stream.create_consumer(deliver_policy=policy, filter_subject="s.*")
    assert made.cached_info.num_pending == pending[policy]
    assert made.cached_info.config.deliver_policy == policy


def test_what_only_the_server_can_know_is_refused_by_it(stream: Stream) -> None:
    with pytest.raises(failures.ApiError) as caught:
        stream.create_consumer(name="C", num_replicas=3)
    assert caught.value.err_code == 10074
    stream.update(retention="interest")
    with pytest.raises(failures.PedanticError) as refused:
        stream.create_consumer(name="C", backoff=[1, 2], ack_wait=30, pedantic=True)
    assert refused.value.err_code == 10157


def test_limits_of_the_stream_hold_for_its_consumers(stream: Stream) -> None:
    stream.update(consumer_limits={"max_ack_pending": 10, "inactive_threshold": 60})
    made = stream.create_consumer(name="C").cached_info.config
    assert (made.max_ack_pending, made.inactive_threshold) == (10, 60)
    with pytest.raises(failures.ApiError, match="create consumer 'D'") as caught:
        stream.create_consumer(name="D", max_ack_pending=11)
    assert caught.value.err_code == 10121


# Changing -----------------------------------------------------------------------------


def test_an_update_changes_what_it_names_and_nothing_else(
    js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(
        durable_name="C", filter_subject="s.1", max_deliver=5, metadata={"a": "1"}
    )
    before = consumer.info().config
    assert consumer.update(description="new", max_ack_pending=7) is consumer
    assert config.differences(before, consumer.info().config) == {
        "max_ack_pending": (1000, 7)
    }
    assert consumer.cached_info.config.description == "new"
    stream.update_consumer("C", max_deliver=9)
    js.update_consumer("S", "C", filter_subject="s.*")
    after = consumer.info()
    assert after.config.max_deliver == 9
    assert after.config.filter_subject == "s.*"
    assert after.config.metadata is not None
    assert after.config.metadata["a"] == "1"
    assert after.num_pending == 6
    consumer.update(filter_subject=None, filter_subjects=["s.0", "s.2"])
    assert consumer.info().num_pending == 4


def test_create_or_update_does_either(js: JetStream, stream: Stream) -> None:
    made = stream.create_or_update_consumer(durable_name="C", max_deliver=5)
    assert made.cached_info.config.max_deliver == 5
    changed = js.create_or_update_consumer("S", durable_name="C", max_deliver=6)
    assert changed.cached_info.created == made.cached_info.created
    assert made.info().config.max_deliver == 6
    # What is not given stays, as with streams.
    made.update(ack_wait=5, filter_subject="s.1")
    stream.create_or_update_consumer(durable_name="C", max_deliver=7)
    after = made.info().config
    assert (after.max_deliver, after.ack_wait, after.filter_subject) == (7, 5, "s.1")
    stream.create_or_update_consumer(durable_name="C", filter_subjects=["s.0", "s.2"])
    assert made.info().num_pending == 4
    js.create_or_update_consumer("S", durable_name="C", filter_subject="s.*")
    assert made.info().config.filter_subjects is None


def test_a_consumer_is_updated_by_a_config_and_pedantically(
    js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(durable_name="C", max_deliver=5)
    changed = config.ConsumerConfig(durable_name="C", description="new")
    js.update_consumer("S", "C", changed, max_ack_pending=7)
    stream.update_consumer("C", changed.with_changes(description="newer"))
    made = consumer.info().config
    assert (made.max_deliver, made.max_ack_pending) == (5, 7)
    assert made.description == "newer"
    with pytest.raises(failures.PedanticError):
        consumer.update(ack_wait=9, backoff=[1, 2], pedantic=True)
    with pytest.raises(failures.PedanticError):
        stream.update_consumer("C", backoff=[1, 2], pedantic=True)
    with pytest.raises(failures.PedanticError):
        js.update_consumer("S", "C", backoff=[1, 2], pedantic=True)


def test_an_update_that_cannot_be_is_refused(js: JetStream, stream: Stream) -> None:
    consumer = stream.create_consumer(durable_name="C")
    with pytest.raises(failures.ConsumerCreateError, match="deliver policy") as caught:
        consumer.update(deliver_policy="new")
    assert caught.value.err_code == 10012
    with pytest.raises(failures.ConsumerNotFoundError):
        stream.update_consumer("NONE", max_deliver=1)
    # Between the look-up and the update it may be gone: the server says so as well.
    with pytest.raises(failures.ConsumerNotFoundError) as gone:
        js._api.call(
            "CONSUMER.CREATE.S.NONE",
            {"stream_name": "S", "action": "update", "config": {"name": "NONE"}},
            doing="update",
        )
    assert gone.value.err_code == 10149


# Finding and deleting -----------------------------------------------------------------


def test_all_consumers_are_listed_over_pages(stream: Stream) -> None:
    wanted = [f"C{number:03}" for number in range(300)]
    for name in wanted:
        stream.create_consumer(name=name, inactive_threshold=60, mem_storage=True)
    assert sorted(stream.consumer_names()) == wanted
    found = stream.consumers()
    assert sorted(consumer.name for consumer in found) == wanted
    assert found.missing == ()
    assert all(consumer.cached_info.num_pending == 6 for consumer in found)
    assert stream.info().state.consumer_count == 300


def test_a_deleted_consumer_is_gone(js: JetStream, stream: Stream) -> None:
    one = stream.create_consumer(name="one")
    stream.create_consumer(name="two")
    stream.create_consumer(name="three")
    one.delete()
    stream.delete_consumer("two")
    js.delete_consumer("S", "three")
    assert js.consumer_names("S") == []
    assert js.consumers("S") == []
    for call in (
        one.info,
        one.delete,
        lambda: stream.consumer("two"),
        lambda: js.consumer("S", "three"),
        lambda: one.pause("2040-01-01T00:00:00Z"),
    ):
        with pytest.raises(failures.ConsumerNotFoundError, match="of stream 'S'"):
            call()


def test_a_consumer_that_nobody_uses_is_deleted_by_the_server(stream: Stream) -> None:
    consumer = stream.create_consumer(inactive_threshold=0.2)
    until(lambda: consumer.name not in stream.consumer_names(), "it expired")


# Pausing, resetting, unpinning --------------------------------------------------------


def test_a_consumer_is_paused_and_resumed(js: JetStream, stream: Stream) -> None:
    consumer = stream.create_consumer(durable_name="C")
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    pause = consumer.pause(later)
    assert pause.paused
    assert 3500 < pause.pause_remaining <= 3600
    assert pause.pause_until == later
    info = consumer.info()
    assert info.paused
    assert 3500 < info.pause_remaining <= 3600
    assert info.config.pause_until == later
    resumed = consumer.resume()
    assert not resumed.paused
    assert resumed.pause_remaining == 0
    assert not consumer.info().paused
    assert js.pause_consumer("S", "C", later.isoformat()).paused
    assert not js.resume_consumer("S", "C").paused
    assert stream.pause_consumer("C", later).paused
    assert not stream.resume_consumer("C").paused
    assert not consumer.pause("2020-01-01T00:00:00Z").paused


def test_a_reset_goes_back_to_what_is_not_acknowledged(
    js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(
        durable_name="C", deliver_policy="by_start_sequence", opt_start_seq=3
    )
    info = consumer.reset()
    assert info is consumer.cached_info
    assert info.reset_seq == info.ack_floor.stream_seq + 1 == 3
    info = consumer.reset(5)
    assert info.reset_seq == 5
    assert info.num_pending == 2
    with pytest.raises(failures.InvalidConsumerResetError) as caught:
        consumer.reset(2)
    assert caught.value.err_code == 10204
    assert "reset consumer 'C' of stream 'S'" in str(caught.value)
    assert js.reset_consumer("S", "C", 4).reset_seq == 4
    assert js.reset_consumer("S", "C").reset_seq == 4
    assert stream.reset_consumer("C", 6).reset_seq == 6
    assert stream.reset_consumer("C").num_pending == 1


def test_a_group_is_unpinned_if_there_is_one(js: JetStream, stream: Stream) -> None:
    consumer = stream.create_consumer(
        name="C", priority_groups=["g"], priority_policy="pinned_client"
    )
    consumer.unpin("g")
    stream.unpin_consumer("C", "g")
    js.unpin_consumer("S", "C", "g")
    with pytest.raises(failures.PriorityGroupError) as caught:
        consumer.unpin("other")
    assert caught.value.err_code == 10160
    assert "unpin group 'other' of consumer 'C'" in str(caught.value)


# Handles ------------------------------------------------------------------------------


def test_a_handle_cannot_be_pickled_but_its_info_can(stream: Stream) -> None:
    consumer = stream.create_consumer(name="C")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(consumer)
    info: Any = pickle.loads(pickle.dumps(consumer.info()))
    assert info == consumer.cached_info
    assert "stream_name='S'" in repr(info)


def test_a_wrong_field_is_told_with_the_nearest_right_one(
    js: JetStream, stream: Stream
) -> None:
    with pytest.raises(TypeError, match="'durable'; did you mean 'durable_name'"):
        stream.create_consumer(durable="C")  # type: ignore[call-arg]
    consumer = stream.create_consumer(name="C")
    with pytest.raises(TypeError, match="'ack_wai'; did you mean 'ack_wait'"):
        consumer.update(ack_wai=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="config must be a ConsumerConfig, not str"):
        js.create_consumer("S", "C")  # type: ignore[arg-type]
