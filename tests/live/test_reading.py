"""Messages read out of streams without a consumer, directly and through the API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.live.support import PATIENCE, Events, until

pytestmark = pytest.mark.live


@pytest.fixture(params=[True, False], ids=["direct", "api"])
def stream(js: JetStream, request: pytest.FixtureRequest) -> Stream:
    """A stream on `s.>`, read in one of the two ways."""
    return made(js, allow_direct=request.param)


def made(js: JetStream, **fields: Any) -> Stream:
    return js.create_stream(
        **{
            "name": "S",
            "subjects": ["s.>"],
            "storage": "memory",
            "allow_direct": True,
            **fields,
        }
    )


@pytest.fixture
def api(jetstream_server: Server) -> Iterator[jsclient.Subscription]:
    """All requests to the API, as another connection sees them."""
    with jsclient.connect(jetstream_server.url) as spy:
        requests = spy.subscribe("$JS.API.>")
        spy.flush()
        yield requests


# One message --------------------------------------------------------------------------


def test_a_message_is_read_as_it_was_published(js: JetStream, stream: Stream) -> None:
    headers = [
        ("Trace", "1"),
        ("trace", "2"),
        ("Trace", "3"),
        ("Empty", ""),
        ("Text", "grün"),
        ("Nats-Last-Sequence", "77"),
        ("Nats-Sequence", "99"),
        ("Nats-Num-Pending", "5"),
    ]
    before = datetime.now(timezone.utc) - timedelta(seconds=60)
    js.publish("s.a", b"\x00\xffdata", headers=headers)
    msg = stream.get_msg(1)
    assert (msg.stream, msg.subject, msg.seq) == ("S", "s.a", 1)
    assert msg.data == b"\x00\xffdata"
    assert msg.headers is not None
    assert msg.headers.multi_items() == headers
    assert msg.timestamp is not None
    assert before < msg.timestamp < before + timedelta(seconds=120)
    first = stream.info().state.first_ts
    assert first is not None
    assert msg.timestamp_ns == first.ns
    assert repr(msg).startswith("StoredMessage(stream='S', subject='s.a', seq=1, data=")


def test_a_message_may_be_empty(js: JetStream, stream: Stream) -> None:
    js.publish("s.a")
    js.publish("s.b", headers={"Only": "headers"})
    assert (stream.get_msg(1).data, stream.get_msg(1).headers) == (b"", None)
    msg = stream.get_msg(last_for="s.b")
    assert msg.data == b""
    assert msg.headers == {"Only": "headers"}


def test_a_large_message_is_read(js: JetStream, stream: Stream) -> None:
    # In JSON it is a third larger than the largest payload.
    data = bytes(1_000_000)
    js.publish("s.a", data)
    assert stream.get_msg(1).data == data


def test_a_message_is_found_by_its_place(js: JetStream, stream: Stream) -> None:
    for number in range(6):
        js.publish(f"s.{number % 2}.x", b"%d" % number)
    assert stream.get_msg(3).data == b"2"
    assert stream.get_msg(last_for="s.0.x").seq == 5
    assert stream.get_msg(last_for="s.>").seq == 6
    assert stream.get_msg(last_for="s.*.x").seq == 6
    assert stream.get_msg(next_for="s.1.x").seq == 2
    assert stream.get_msg(3, next_for="s.1.x").seq == 4
    assert stream.get_msg(5, next_for="s.0.*").seq == 5
    third = stream.get_msg(3).timestamp
    assert third is not None
    assert stream.get_msg(start_time=third).seq == 3
    assert stream.get_msg(start_time=third, next_for="s.1.x").seq == 4
    assert stream.get_msg(start_time="2020-01-01T00:00:00+02:00").seq == 1


def test_a_message_that_is_not_there_is_not_found(
    js: JetStream, stream: Stream
) -> None:
    js.publish("s.a")
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    calls: list[Callable[[], object]] = [
        lambda: stream.get_msg(2),
        lambda: stream.get_msg(last_for="s.none"),
        lambda: stream.get_msg(next_for="s.none"),
        lambda: stream.get_msg(2, next_for="s.a"),
        lambda: stream.get_msg(start_time=later),
    ]
    for call in calls:
        with pytest.raises(failures.MessageNotFoundError) as caught:
            call()
        assert (caught.value.code, caught.value.err_code) == (404, 10037)
        assert "read a message of stream 'S'" in str(caught.value)


def test_the_last_of_a_literal_subject_is_one_request_without_a_body(
    js: JetStream, api: jsclient.Subscription
) -> None:
    stream = made(js)
    js.publish("s.a")
    assert api.next(PATIENCE).subject == "$JS.API.STREAM.CREATE.S"
    stream.get_msg(last_for="s.a")
    asked = api.next(PATIENCE)
    assert (asked.subject, asked.data) == ("$JS.API.DIRECT.GET.S.s.a", b"")
    stream.get_msg(last_for="s.*")
    asked = api.next(PATIENCE)
    assert asked.subject == "$JS.API.DIRECT.GET.S"
    assert asked.data == b'{"last_by_subj": "s.*"}'


def test_a_stream_that_is_no_longer_read_directly_is_read_by_the_api(
    js: JetStream,
) -> None:
    stream = made(js)
    js.publish("s.a", b"x")
    js.update_stream(name="S", allow_direct=False)
    assert stream.cached_info.config.allow_direct
    assert stream.get_msg(1).data == b"x"
    assert stream.get_msg(last_for="s.a").data == b"x"
    with pytest.raises(ValueError, match="allow_direct"):
        next(stream.get_msgs())
    js.delete_stream("S")
    with pytest.raises(failures.StreamNotFoundError):
        stream.get_msg(1)
    with pytest.raises(failures.StreamNotFoundError):
        next(stream.get_msgs())


def test_headers_of_a_republished_message_do_not_hide_its_own_place(
    js: JetStream,
) -> None:
    js.create_stream(
        name="ORIGIN",
        subjects=["o.>"],
        storage="memory",
        first_seq=500,
        republish={"src": "o.>", "dest": "s.>"},
    )
    stream = made(js)
    js.publish("o.a", b"x", headers={"Mine": "1"})
    until(lambda: stream.info().state.messages == 1, "it was republished")
    msg = stream.get_msg(1)
    assert (msg.stream, msg.subject, msg.seq) == ("S", "s.a", 1)
    assert msg.headers is not None
    assert msg.headers["Mine"] == "1"
    assert msg.headers["Nats-Stream"] == "ORIGIN"
    assert msg.headers["Nats-Sequence"] == "500"
    stream.update(allow_direct=False)
    assert stream.get_msg(1) == msg
    stream.update(allow_direct=True)
    assert list(stream.get_msgs()) == [msg]


def test_a_mirror_answers_for_its_origin(js: JetStream) -> None:
    made(js)
    js.publish("s.a", b"x")
    mirror = js.create_stream(
        name="M", mirror="S", mirror_direct=True, allow_direct=True, storage="memory"
    )
    until(lambda: mirror.info().state.messages == 1, "the mirror has it")
    assert mirror.get_msg(1).stream == "M"
    assert js.stream("S").get_msg(1).stream in ("S", "M")


def test_of_places_only_one_may_be_given(js: JetStream) -> None:
    stream = made(js)
    wrong: list[dict[str, Any]] = [
        {},
        {"seq": 1, "last_for": "s.a"},
        {"seq": 1, "start_time": "2020-01-01T00:00:00Z"},
        {"last_for": "s.a", "next_for": "s.a"},
        {"start_time": "2020-01-01T00:00:00Z", "last_for": "s.a"},
        {"seq": 1, "start_time": "2020-01-01T00:00:00Z", "next_for": "s.a"},
    ]
    for places in wrong:
        with pytest.raises(ValueError, match="give one of seq, start_time"):
            stream.get_msg(**places)


# Many messages ------------------------------------------------------------------------


def test_messages_are_read_in_batches(
    js: JetStream, api: jsclient.Subscription
) -> None:
    stream = made(js)
    for _ in js.publish_all((f"s.{n % 7}", b"%d" % n) for n in range(2500)):
        pass
    assert api.next(PATIENCE).subject == "$JS.API.STREAM.CREATE.S"
    got = list(stream.get_msgs())
    assert [msg.seq for msg in got] == list(range(1, 2501))
    assert [int(msg.data) for msg in got] == list(range(2500))
    assert all(msg.headers is None for msg in got)
    assert [api.next(PATIENCE).subject for _ in range(3)] == [
        "$JS.API.DIRECT.GET.S"
    ] * 3
    assert api.pending_messages == 0


def test_a_batch_begins_and_ends_where_it_is_told_to(js: JetStream) -> None:
    stream = made(js)
    for number in range(5):
        js.publish(f"s.{number % 2}", b"%d" % number)
    assert [msg.seq for msg in stream.get_msgs(limit=3)] == [1, 2, 3]
    assert [msg.seq for msg in stream.get_msgs(seq=4)] == [4, 5]
    assert [msg.seq for msg in stream.get_msgs(seq=2, limit=2)] == [2, 3]
    assert [msg.seq for msg in stream.get_msgs(next_for="s.1")] == [2, 4]
    assert [msg.seq for msg in stream.get_msgs(seq=3, next_for="s.*")] == [3, 4, 5]
    start = stream.get_msg(4).timestamp
    assert start is not None
    assert [msg.seq for msg in stream.get_msgs(start_time=start)] == [4, 5]
    assert list(stream.get_msgs(seq=6)) == []
    assert list(stream.get_msgs(next_for="s.none")) == []
    stream.purge()
    assert list(stream.get_msgs()) == []


def test_batches_go_on_over_small_ones_and_gaps(js: JetStream) -> None:
    stream = made(js)
    for _ in range(20):
        js.publish("s.a", bytes(1000))
    for seq in (1, 5, 6, 20):
        stream.delete_msg(seq)
    wanted = [seq for seq in range(1, 21) if seq not in (1, 5, 6, 20)]
    assert [msg.seq for msg in stream.get_msgs(max_bytes=2500)] == wanted
    assert [msg.seq for msg in stream.get_msgs(max_bytes=1)] == wanted
    assert [msg.seq for msg in stream.get_msgs(max_bytes=1, limit=5)] == wanted[:5]
    moment = stream.get_msg(7).timestamp
    assert moment is not None
    later = stream.get_msgs(start_time=moment, max_bytes=1)
    assert [msg.seq for msg in later] == list(range(7, 20))


def test_the_last_message_of_each_subject_is_read(js: JetStream) -> None:
    stream = made(js)
    for number in range(10):
        js.publish(f"s.{number % 4}", b"%d" % number)
    assert [msg.seq for msg in stream.get_msgs(last_for=["s.*"])] == [7, 8, 9, 10]
    some = stream.get_msgs(last_for=["s.0", "s.3", "s.none"])
    assert [(msg.subject, msg.data) for msg in some] == [("s.3", b"7"), ("s.0", b"8")]
    some = stream.get_msgs(last_for=(f"s.{number}" for number in (1, 2)))
    assert [msg.seq for msg in some] == [7, 10]
    old = stream.get_msgs(last_for=["s.*"], up_to_seq=5)
    assert [msg.seq for msg in old] == [2, 3, 4, 5]
    moment = stream.get_msg(6).timestamp
    assert moment is not None
    old = stream.get_msgs(last_for=["s.0", "s.1"], up_to_time=moment)
    assert [msg.seq for msg in old] == [2, 5]  # before that moment
    old = stream.get_msgs(last_for=["s.0", "s.1"], up_to_time=moment, max_bytes=1)
    assert [msg.seq for msg in old] == [2, 5]
    assert list(stream.get_msgs(last_for=["s.none"])) == []


def test_the_last_messages_are_of_one_moment_whatever_is_written_meanwhile(
    js: JetStream,
) -> None:
    stream = made(js)
    for number in range(10):
        js.publish(f"s.{number}", b"old")
    # One message to a page.
    reading = stream.get_msgs(last_for=["s.>"], max_bytes=1)
    first = next(reading)
    for number in range(10):
        js.publish(f"s.{number}", b"new")
    js.publish("s.late", b"new")
    rest = list(reading)
    assert [(msg.seq, msg.subject, msg.data) for msg in (first, *rest)] == [
        (number + 1, f"s.{number}", b"old") for number in range(10)
    ]


def test_too_many_subjects_are_refused(js: JetStream) -> None:
    stream = made(js)
    for _ in js.publish_all((f"s.{n}", b"") for n in range(2000)):
        pass
    with pytest.raises(failures.TooManyResultsError) as caught:
        next(stream.get_msgs(last_for=["s.>"]))
    assert caught.value.code == 413
    assert len(list(stream.get_msgs(last_for=["s.2", "s.3"]))) == 2


def test_wrong_arguments_of_batches_are_refused_at_the_call(js: JetStream) -> None:
    stream = made(js)
    start = "2020-01-01T00:00:00Z"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("seq or start_time", {"seq": 1, "start_time": start}),
        ("up_to_seq or up_to_time", {"up_to_seq": 1, "up_to_time": start}),
        ("need last_for", {"up_to_seq": 1}),
        ("last_for", {"last_for": "s.a"}),
        ("last_for", {"last_for": []}),
        ("last_for", {"last_for": ["s.a"], "next_for": "s.a"}),
        ("last_for", {"last_for": ["s..a"]}),
        ("next_for", {"next_for": "s a"}),
        ("seq", {"seq": 0}),
        ("limit", {"limit": 0}),
        ("max_bytes", {"max_bytes": 0}),
        ("timeout", {"timeout": -1}),
        ("start_time", {"start_time": datetime(2020, 1, 1)}),
    ]
    for name, arguments in wrong:
        with pytest.raises(ValueError, match=name):
            stream.get_msgs(**arguments)
    with pytest.raises(TypeError, match="last_for must be a list"):
        stream.get_msgs(last_for=5)  # type: ignore[arg-type]


def test_an_iterator_that_is_left_leaves_nothing_behind(
    js: JetStream, jetstream_server: Server
) -> None:
    stream = made(js)
    for _ in range(5):
        js.publish("s.a")
    with jsclient.connect(jetstream_server.url) as nc:
        own = nc.jetstream().stream("S")
        before = nc.stats()
        messages = own.get_msgs(max_bytes=1)
        assert next(messages).seq == 1
        del messages
        assert len(list(own.get_msgs())) == 5
        assert len(nc._loop.entries) == 1  # the inbox of requests
        assert nc.stats().reconnects == before.reconnects
    assert stream.get_msg(1).seq == 1


def test_many_threads_read_at_once(js: JetStream) -> None:
    stream = made(js)
    for number in range(50):
        js.publish("s.a", b"%d" % number)
    got: list[list[int]] = []

    def read() -> None:
        got.append([msg.seq for msg in stream.get_msgs(max_bytes=100)])
        got.append([stream.get_msg(seq).seq for seq in range(1, 51)])

    workers = [threading.Thread(target=read) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert got == [list(range(1, 51))] * 8


def test_reading_goes_on_when_the_server_comes_back(told: Events) -> None:
    with (
        jsclient.server.run(jetstream=True) as server,
        jsclient.connect(server.url, reconnect_wait=0.05, on_event=told) as nc,
    ):
        js = nc.jetstream(timeout=PATIENCE)
        stream = made(js, storage="file")
        for _ in range(30):
            js.publish("s.a", bytes(100))
        reading = stream.get_msgs(max_bytes=300)
        got = [next(reading).seq]
        server.restart()
        got += [msg.seq for msg in reading]
        assert got == list(range(1, 31))
        assert stream.get_msg(30).seq == 30
        told.wait(jsclient.Reconnected)


# Many messages in columns -------------------------------------------------------------


def test_a_batch_of_columns_has_what_reading_one_by_one_finds(js: JetStream) -> None:
    stream = made(js)
    for n in range(20):
        headers = {"Number": [str(n), "x"], "Nats-Sequence": "77"} if n % 3 else None
        js.publish(f"s.{n % 2}", b"x" * n, headers=headers)
    stream.delete_msg(9)
    batch = stream.get_batch(4, max_messages=10)
    assert batch.stream_seqs.tolist() == [4, 5, 6, 7, 8, 10, 11, 12, 13, 14]
    assert batch.num_pending == 6
    for n, msg in enumerate(batch):
        told = stream.get_msg(batch.stream_seqs[n])
        assert (msg.subject, msg.data) == (told.subject, told.data)
        assert msg.headers == told.headers
        assert batch.timestamps_ns[n] == told.timestamp_ns
    some = stream.get_batch(15, next_for="s.1")
    assert some.stream_seqs.tolist() == [16, 18, 20]
    assert some.num_pending == 0
    assert len(stream.get_batch(21)) == 0


def test_a_batch_of_columns_ends_with_the_message_that_reaches_max_bytes(
    js: JetStream,
) -> None:
    stream = made(js)
    for _ in range(10):
        js.publish("s.1", b"x" * 1000)
    assert 1 <= len(stream.get_batch(max_bytes=2500)) < 10


def test_columns_need_a_stream_that_allows_it(js: JetStream) -> None:
    stream = made(js, allow_direct=False)
    with pytest.raises(jsclient.InvalidArgumentError, match="allow_direct"):
        stream.get_batch()
    js.delete_stream("S")
    with pytest.raises(failures.StreamNotFoundError):
        stream.get_batch()


@pytest.mark.parametrize("is_direct", [True, False])
def test_columns_come_while_another_thread_reads_the_socket(
    js: JetStream, is_direct: bool
) -> None:
    stream = made(js, allow_direct=is_direct)
    js.publish("s.1", b"x")
    nc = js._connection
    nc.subscribe("x", callback=lambda msg: None)
    until(lambda: not nc._loop.helm.is_free, "it waits for messages")
    ended: list[object] = []

    def read() -> None:
        try:
            ended.append(len(stream.get_batch(timeout=600.0)))
        except jsclient.InvalidArgumentError as error:
            ended.append(type(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(PATIENCE)
    assert ended == [1 if is_direct else jsclient.InvalidArgumentError]


def test_the_leader_can_be_asked_for_a_message(
    js: JetStream, api: jsclient.Subscription
) -> None:
    stream = made(js)
    js.publish("s.1", b"x")
    assert stream.get_msg(1, from_leader=True).data == b"x"
    asked = []
    while (msg := api.next(PATIENCE)).subject != "$JS.API.STREAM.MSG.GET.S":
        asked.append(msg.subject)
    assert not [subject for subject in asked if "DIRECT" in subject]
