"""JetStream on other releases of the server: what they know works, the rest is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient import server
from jsclient.config import StreamConfig, differences
from jsclient.consumer import Consumer
from jsclient.jetstream import JetStream
from jsclient.stream import Stream
from tests.harness.streams import lent_jetstream
from tests.live.test_versions import VERSIONS, fetched

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", params=VERSIONS)
def old(request: pytest.FixtureRequest) -> Iterator[server.Server]:
    """A server of another release, with JetStream."""
    with server.run(binary=fetched(request.param), jetstream=True) as running:
        yield running


@pytest.fixture
def js(old: server.Server) -> Iterator[JetStream]:
    """A JetStream without streams; those that the test makes are deleted after it."""
    with lent_jetstream(old.url) as context:
        yield context


@pytest.fixture
def stream(js: JetStream) -> Stream:
    """A stream that every release can have, with messages on s.0, s.1, s.2 in turn."""
    made = js.create_stream(
        name="S",
        subjects=["s.>"],
        storage="memory",
        allow_direct=True,
        compression="none",
        metadata={"a": "1"},
    )
    for number in range(6):
        js.publish(f"s.{number % 3}", b"%d" % number, msg_id=f"{number}")
    return made


def release(old: server.Server) -> tuple[int, ...]:
    return tuple(map(int, old.version.split(".")[:2]))


def test_streams_are_managed(js: JetStream, stream: Stream) -> None:
    before = stream.info().config
    stream.update(max_msgs=100)
    assert differences(before, stream.info().config) == {"max_msgs": (-1, 100)}
    js.create_or_update_stream(name="S", max_age=60)
    assert stream.info().config.max_age == 60
    assert js.stream_names("s.1") == ["S"]
    assert [found.name for found in js.streams()] == ["S"]
    assert stream.info(subjects=">").state.subjects == {"s.0": 2, "s.1": 2, "s.2": 2}
    stream.delete_msg(1)
    assert stream.purge("s.1") == 2
    assert js.account_info().streams == 1
    with pytest.raises(failures.StreamNameInUseError):
        js.create_stream(name="S", subjects=["other"])
    with pytest.raises(failures.StreamNotFoundError):
        js.stream("NONE")


def test_consumers_are_managed(stream: Stream) -> None:
    consumer = stream.create_consumer(durable_name="C", filter_subjects=["s.0", "s.1"])
    assert consumer.info().num_pending == 4
    consumer.update(max_deliver=7)
    assert consumer.info().config.max_deliver == 7
    with pytest.raises(failures.ConsumerExistsError):
        stream.create_consumer(durable_name="C", max_deliver=8)
    assert stream.consumer_names() == ["C"]
    assert [found.name for found in stream.consumers()] == ["C"]
    consumer.delete()
    with pytest.raises(failures.ConsumerNotFoundError):
        consumer.info()


def test_messages_are_read(stream: Stream) -> None:
    assert stream.get_msg(2).data == b"1"
    assert stream.get_msg(last_for="s.0").seq == 4
    assert stream.get_msg(3, next_for="s.1").seq == 5
    assert stream.get_msg(1).headers == {"Nats-Msg-Id": "0"}
    with pytest.raises(failures.MessageNotFoundError):
        stream.get_msg(99)
    stream.update(allow_direct=False)
    assert stream.get_msg(2).data == b"1"
    assert stream.get_msg(last_for="s.*").seq == 6


def test_what_came_later_works_or_is_told(old: server.Server, stream: Stream) -> None:
    consumer = stream.create_consumer(durable_name="C")
    later: list[tuple[tuple[int, int], Callable[[Stream, Consumer], object]]] = [
        ((2, 11), lambda _, c: c.pause("2040-01-01T00:00:00Z")),
        ((2, 11), lambda _, c: c.resume()),
        ((2, 11), lambda s, _: list(s.get_msgs(limit=3))),
        ((2, 11), lambda s, _: s.get_batch(1, max_messages=3)),
        ((2, 11), lambda s, _: list(s.get_msgs(last_for=["s.*"]))),
        ((2, 11), lambda s, _: s.get_msg(start_time="2020-01-01T00:00:00Z")),
        ((2, 11), lambda s, _: s.update(description="x", pedantic=True)),
        ((2, 11), lambda _, c: c.update(description="x", pedantic=True)),
        ((2, 11), lambda s, _: s.create_consumer(name="D", pedantic=True)),
        ((2, 14), lambda _, c: c.reset()),
    ]
    for since, call in later:
        if release(old) >= since:
            call(stream, consumer)
            continue
        with pytest.raises(failures.UnsupportedByServerError) as caught:
            call(stream, consumer)
        assert caught.value.needed[:2] == since
        assert caught.value.server_version == old.version


PUBLISH_OPTIONS: list[tuple[tuple[int, int], str, dict[str, Any]]] = [
    (
        (2, 11),
        "expected_last_subject",
        {"expected_last_subject_seq": 6, "expected_last_subject": "s.2"},
    ),
    ((2, 11), "ttl", {"ttl": 60}),
    ((2, 12), "increment", {"increment": 1}),
    ((2, 12), "schedule", {"schedule": "@at 2040-01-01T00:00:00Z"}),
    ((2, 14), "cancel_schedule", {"cancel_schedule": "s.plan"}),
]


@pytest.mark.parametrize(("since", "name", "options"), PUBLISH_OPTIONS)
def test_options_of_a_publish_that_a_release_does_not_know_are_refused(
    old: server.Server,
    js: JetStream,
    stream: Stream,
    since: tuple[int, int],
    name: str,
    options: Any,
) -> None:
    stored = stream.info().state.last_seq
    if release(old) >= since:
        # It is stored, or the stream says why not.
        with contextlib.suppress(failures.ApiError):
            assert js.publish("s.0", b"", **options).seq == stored + 1
        return
    for publish in (js.publish, js.publish_async):
        with pytest.raises(
            failures.UnsupportedByServerError,
            match=rf"{name} needs nats-server {since[0]}\.{since[1]}\.0 or later",
        ):
            publish("s.0", b"", **options)
    assert stream.info().state.last_seq == stored


def test_batches_work_or_are_told(old: server.Server, js: JetStream) -> None:
    if release(old) < (2, 12):
        with pytest.raises(failures.UnsupportedByServerError, match="atomic batch"):
            js.atomic_batch()
    else:
        made = js.create_stream(name="A", subjects=["a.>"], allow_atomic=True)
        with js.atomic_batch() as batch:
            batch.add("a.1", b"1")
            batch.add("a.2", b"2")
            assert batch.commit().count == 2
        assert made.info().state.messages == 2
        # An end marker of its own is later than batches are.
        marks = {"Nats-Batch-Id": "mine", "Nats-Batch-Sequence": "1"}
        assert js._connection.request("a.3", b"3", headers=marks).data == b""
        ending = {**marks, "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "eob"}
        if release(old) >= (2, 14):
            assert js.publish("a.3", headers=ending).count == 1
        else:
            with pytest.raises(failures.AtomicBatchError) as caught:
                js.publish("a.3", headers=ending)
            assert caught.value.err_code == 10200
            assert made.info().state.messages == 2
    if release(old) < (2, 14):
        with pytest.raises(failures.UnsupportedByServerError, match="fast batch"):
            js.fast_batch()
    else:
        js.create_stream(name="F", subjects=["f.>"], allow_batched=True)
        with js.fast_batch() as fast:
            for number in range(300):
                fast.add("f.1", b"%d" % number)
            assert fast.commit().count == 300


STREAM_FIELDS: list[tuple[tuple[int, int], str, dict[str, Any]]] = [
    ((2, 10), "first_seq", {"first_seq": 10}),
    ((2, 10), "subject_transform", {"subject_transform": {"src": "n", "dest": "m"}}),
    ((2, 11), "allow_msg_ttl", {"allow_msg_ttl": True}),
    ((2, 12), "allow_msg_counter", {"allow_msg_counter": True}),
    ((2, 12), "allow_atomic", {"allow_atomic": True}),
    ((2, 12), "allow_msg_schedules", {"allow_msg_schedules": True}),
    ((2, 12), "persist_mode", {"persist_mode": "async", "storage": "file"}),
    ((2, 14), "allow_batched", {"allow_batched": True}),
]
CONSUMER_FIELDS: list[tuple[tuple[int, int], str, dict[str, Any]]] = [
    ((2, 11), "pause_until", {"pause_until": "2040-01-01T00:00:00Z"}),
    (
        (2, 11),
        "priority_",
        {"priority_groups": ["g"], "priority_policy": "overflow"},
    ),
    (
        (2, 12),
        "priority_",
        {"priority_groups": ["g"], "priority_policy": "prioritized"},
    ),
]


def test_fields_that_a_release_knows_are_set_and_others_refused(
    old: server.Server, js: JetStream, stream: Stream
) -> None:
    with jsclient.connect(old.url) as spy:
        seen = spy.subscribe("$JS.API.*.CREATE.>")
        spy.flush()
        for since, field, fields in STREAM_FIELDS:
            if release(old) >= since:
                wanted = StreamConfig(name="N", **{"storage": "memory", **fields})
                made = js.create_stream(wanted)
                assert differences(wanted, made.info().config) == {}
                made.delete()
                seen.next(5.0)
                continue
            with pytest.raises(
                failures.UnsupportedByServerError,
                match=rf"{field} needs nats-server {since[0]}\.{since[1]}\.0 or later",
            ):
                js.create_stream(name="N", **fields)
        for since, field, fields in CONSUMER_FIELDS:
            if release(old) >= since:
                stream.create_consumer(**fields).delete()
                seen.next(5.0)
                continue
            with pytest.raises(
                failures.UnsupportedByServerError, match=f"{field}.* needs nats-server"
            ):
                stream.create_consumer(**fields)
        spy.flush()
        assert seen.pending_messages == 0
