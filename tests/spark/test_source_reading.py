"""Ranges of a stream are read whole, in order, and once, by every way of reading."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.spark import connecting, reading
from jsclient.spark.columns import COLUMNS
from jsclient.spark.errors import DataLossError, OptionError
from jsclient.spark.source import BatchReader, StreamReader, schema
from tests.harness.proxy import FaultProxy
from tests.spark.readers import SEQUENCE, Readers, columns, expire, fill, made, read

pytestmark = pytest.mark.live


@pytest.fixture
def readers(jetstream_server: Server, js: JetStream) -> Iterator[Readers]:
    yield Readers(jetstream_server.url)
    for name in js.stream_names():
        assert not ephemerals(js, name), "a reader has left its consumer behind"
    connecting.close_all()


def ephemerals(js: JetStream, stream: str) -> list[str]:
    names = js.stream(stream).consumer_names()
    return [name for name in names if name.startswith("spark-")]


# What is read -------------------------------------------------------------------------


def test_executors_ask_the_servers_of_the_driver(
    js: JetStream, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(js)
    fill(js, 3)
    monkeypatch.setenv("NATS_URL", readers.url)
    for reader in (
        BatchReader({"stream": "S"}, SEQUENCE),
        StreamReader({"stream": "S"}, SEQUENCE),
    ):
        sent = pickle.dumps(reader)  # as Spark does, before it asks for anything
        with monkeypatch.context() as there:
            there.setenv("NATS_URL", "nats://127.0.0.1:1")
            copy = pickle.loads(sent)
            offset = readers.stream().initialOffset()
            (part,) = readers.stream().partitions(offset, {**offset, "next": 4})
            (batch,) = copy.read(part)
        assert batch.to_pylist() == [{"sequence": n} for n in (1, 2, 3)]


def test_columns_are_chosen_by_their_names(js: JetStream, readers: Readers) -> None:
    made(js)
    js.publish("s.1", b"x")
    for names in ("data, sequence", '["data", "sequence"]'):
        given = readers.given({"columns": names})
        chosen = schema(given)
        assert chosen.fieldNames() == ["data", "sequence"]
        reader = BatchReader(given, chosen)
        (row,) = read(reader, reader.partitions()[0])
        assert row == {"data": b"x", "sequence": 1}
    for names, says in (("data,bytes", "no column 'bytes'"), ("data,data", "twice")):
        with pytest.raises(OptionError, match=f"option columns: .*{says}"):
            schema(readers.given({"columns": names}))
    with pytest.raises(OptionError, match="option columns: give it or a schema"):
        readers.batch(SEQUENCE, columns="data").partitions()


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_every_column_is_as_it_was_published(
    js: JetStream, readers: Readers, mode: str
) -> None:
    stream = made(js)
    js.publish("s.1", b"\x00\xff", headers={"A": ["1", "2"], "b": "x"})
    js.publish("s.ü", b"")
    rows = readers.rows(readMode=mode)
    stored = [stream.get_msg(seq) for seq in (1, 2)]
    assert [list(row) for row in rows] == [COLUMNS.fieldNames()] * 2
    assert [row["subject"] for row in rows] == ["s.1", "s.ü"]
    assert [row["data"] for row in rows] == [b"\x00\xff", b""]
    assert rows[0]["headers"] == [("A", ["1", "2"]), ("b", ["x"])]
    assert rows[1]["headers"] == []
    assert [row["sequence"] for row in rows] == [1, 2]
    assert [row["stream"] for row in rows] == ["S", "S"]
    for row, msg in zip(rows, stored, strict=True):
        assert row["timestamp"].tzinfo is not None
        micros = row["timestamp"] - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        assert micros // dt.timedelta(microseconds=1) == msg.timestamp_ns // 1000


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "auto"),
        ({}, "direct"),
        ({}, "consumer"),
        ({"allow_direct": False}, "auto"),
        ({"allow_direct": False}, "consumer"),
        ({"retention": "workqueue"}, "auto"),
        ({"retention": "workqueue"}, "direct"),
        ({"retention": "workqueue", "allow_direct": False}, "auto"),
    ],
)
def test_every_kind_of_stream_is_read_whole(
    js: JetStream, readers: Readers, fields: dict[str, Any], mode: str
) -> None:
    stream = made(js, **fields)
    fill(js, 300)
    for seq in (1, 2, 77, 78, 150, 299, 300):
        stream.delete_msg(seq)
    expected = [n for n in range(3, 299) if n not in (77, 78, 150)]
    options = {"readMode": mode, "numPartitions": 3, "recordsPerPartition": 10}
    assert readers.seqs(**options) == expected
    # Nothing was taken away.
    assert stream.info().state.messages == len(expected)


@pytest.mark.parametrize(
    ("count", "subject", "by"),
    [
        (100, "s.>", "DIRECT.GET.S"),
        (101, "s.>", "CONSUMER.CREATE.S"),
        (100, "s.0,s.1", "CONSUMER.CREATE.S"),  # a direct get takes one filter
    ],
)
def test_small_ranges_are_read_directly_and_large_ones_by_a_consumer(
    js: JetStream,
    readers: Readers,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    subject: str,
    by: str,
) -> None:
    monkeypatch.setattr(reading, "SMALL", 100)
    made(js)
    fill(js, count, subjects=2)
    with js._connection.subscribe("$JS.API.>") as asked:
        js._connection.flush()
        assert len(readers.seqs(subject=subject)) == count
        js._connection.flush()
        subjects = [msg.subject.removeprefix("$JS.API.") for msg in taken(asked)]
    ways = [s for s in subjects if s.startswith(("DIRECT.GET", "CONSUMER.CREATE"))]
    assert ways
    assert all(way.startswith(by) for way in ways), ways


def test_a_consumer_that_is_silent_is_noticed_before_a_request_is_given_up(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 100)
    with js._connection.subscribe("$JS.API.CONSUMER.MSG.NEXT.S.*") as asked:
        js._connection.flush()
        assert len(readers.seqs(readMode="consumer")) == 100
        js._connection.flush()
        pulls = [json.loads(msg.data) for msg in taken(asked)]
    assert pulls
    for pull in pulls:
        assert 0 < 2 * pull["idle_heartbeat"] <= 2e9


def taken(subscription: jsclient.Subscription) -> Iterator[jsclient.Msg]:
    """What has come so far."""
    with contextlib.suppress(jsclient.TimeoutError):
        while True:
            yield subscription.next(timeout=0.0)


def test_a_mirror_is_read_under_its_own_name(js: JetStream, readers: Readers) -> None:
    made(js, "ORIGIN")
    fill(js, 50)
    mirrors: dict[str, Any] = {
        "name": "S",
        "subjects": None,
        "mirror": {"name": "ORIGIN"},
    }
    kinds: tuple[dict[str, Any], ...] = (
        {"allow_direct": False, "mirror_direct": True},
        {},
    )
    for fields in kinds:
        js.create_stream(**{"storage": "memory", **mirrors, **fields})
        mirror = js.stream("S")
        while mirror.info().state.last_seq < 50:
            pass
        assert readers.seqs() == list(range(1, 51))
        js.delete_stream("S")


def test_an_interest_stream_is_read_and_left_as_it_is(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js, retention="interest")
    held = stream.create_consumer(durable_name="C")
    fill(js, 40)
    for mode in ("direct", "consumer"):
        assert readers.seqs(readMode=mode) == list(range(1, 41))
    assert held.info().num_pending == 40


@pytest.mark.parametrize("mode", ["direct", "consumer", "auto"])
def test_ranges_without_messages_are_empty(
    js: JetStream, readers: Readers, mode: str
) -> None:
    stream = made(js)
    assert readers.seqs(readMode=mode) == []
    fill(js, 20)
    for seq in range(5, 16):
        stream.delete_msg(seq)
    some = {"startingOffsets": 5, "endingOffsets": 16, "readMode": mode}
    assert readers.seqs(**some) == []
    assert readers.seqs(**{**some, "endingOffsets": 17}) == [16]
    assert readers.seqs(**{**some, "startingOffsets": 4}) == [4]
    assert readers.seqs(startingOffsets="latest", readMode=mode) == []
    stream.purge()
    assert readers.seqs(readMode=mode) == []


def test_a_large_range_is_gathered_into_large_batches(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, reading.SMALL + 5_000)
    reader = readers.batch(SEQUENCE, numPartitions=1, fetchSize=4000)
    (part,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(part)]
    assert sum(sizes) == reading.SMALL + 5_000
    assert all(size >= 4000 for size in sizes[:-1])


# Filters ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["direct", "consumer", "auto"])
@pytest.mark.parametrize(
    ("subject", "numbers"),
    [
        ("s.1", {1}),
        ("s.*", {0, 1, 2, 3}),
        ("s.1,s.3", {1, 3}),
        ('["s.0", "s.2"]', {0, 2}),
        ("nobody", set()),
        ("nobody,s.2", {2}),
    ],
)
def test_subjects_are_filtered(
    js: JetStream, readers: Readers, mode: str, subject: str, numbers: set[int]
) -> None:
    made(js, subjects=["s.>", "nobody"])
    fill(js, 200)
    js.publish("s.x.y", b"")
    expected = [n + 1 for n in range(200) if n % 4 in numbers]
    options = {"subject": subject, "readMode": mode, "recordsPerPartition": 70}
    assert readers.seqs(**options) == expected


def test_filters_that_overlap_are_read_where_a_consumer_refuses_them(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 20)
    assert readers.seqs(subject="s.1,s.*") == list(range(1, 21))
    with pytest.raises(OptionError, match="option subject: "):
        readers.seqs(subject="s.1,s.*", readMode="consumer")


def test_a_filter_is_no_regular_expression(js: JetStream, readers: Readers) -> None:
    made(js)
    for subject in ("s.a+b", "s.aab", "s.a$", "s.a", "s.x.a", "s.(ü)"):
        js.publish(subject, b"")
    options = {"readMode": "direct"}
    assert readers.seqs(subject="s.a+b,s.a$", **options) == [1, 3]
    assert readers.seqs(subject="s.(ü),s.*.a", **options) == [5, 6]
    assert readers.seqs(subject="s.x.>,nobody", **options) == [5]


# Columns ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_only_the_columns_that_are_asked_for_are_made(
    js: JetStream, readers: Readers, mode: str
) -> None:
    made(js)
    js.publish("s.1", b"text")
    assert readers.rows(columns("stream sequence"), readMode=mode) == [
        {"stream": "S", "sequence": 1}
    ]
    text = StructType([StructField("data", StringType()), COLUMNS["subject"]])
    assert readers.rows(text, readMode=mode) == [{"data": "text", "subject": "s.1"}]


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_messages_become_columns_without_a_step_for_each(
    js: JetStream, readers: Readers, mode: str
) -> None:
    count = 50_000
    made(js)
    fill(js, count)
    reader = readers.batch(readMode=mode)
    (part,) = reader.partitions()
    next(reader.read(part))  # what is imported at first does not count
    calls: list[str] = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        batches = list(reader.read(part))
    finally:
        sys.setprofile(None)
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == count
    assert len(calls) < count  # and a step has two, its call and its return


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("payload", BinaryType()), "there is no column 'payload'"),
        (StructField("sequence", IntegerType()), "'sequence' must be bigint, not int"),
        (StructField("data", IntegerType()), "'data' must be binary or string"),
    ],
)
def test_columns_that_a_stream_does_not_have_are_refused(
    js: JetStream, readers: Readers, field: StructField, says: str
) -> None:
    made(js)
    schema = StructType([COLUMNS["subject"], field])
    with pytest.raises(OptionError, match=f"option schema: .*{says}"):
        readers.batch(schema).partitions()
    with pytest.raises(OptionError, match=f"option schema: .*{says}"):
        readers.stream(schema).initialOffset()


def test_messages_that_become_large_are_asked_for_in_smaller_numbers(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 20_000)
    fill(js, 200, data=b"%0100000d")
    options = {"readMode": "consumer", "numPartitions": 1, "maxFetchBytes": "2MB"}
    assert readers.seqs(**options) == list(range(1, 20_201))
    rows = readers.rows(columns("data"), **options)
    assert [len(row["data"]) for row in rows[-200:]] == [100_000] * 200


@given(st.integers(1, 50), st.sets(st.integers(0, 30)))
def test_the_first_hole_is_the_first_number_that_is_missing(
    start: int, distances: set[int]
) -> None:
    seqs = sorted(start + distance for distance in distances)
    missing = next(n for n in range(start, start + 40) if n not in seqs)
    assert reading.first_hole(seqs, start) == missing


# Faults -------------------------------------------------------------------------------


def test_a_consumer_that_is_deleted_meanwhile_is_replaced(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 30_000)
    options = {"readMode": "consumer", "numPartitions": 1, "maxFetchBytes": "64k"}
    reader = readers.batch(SEQUENCE, fetchSize=100, **options)
    (part,) = reader.partitions()
    batches = reader.read(part)
    seqs = next(batches).column("sequence").to_pylist()
    for name in ephemerals(js, "S"):
        js.delete_consumer("S", name)
    seqs += [seq for batch in batches for seq in batch.column("sequence").to_pylist()]
    assert seqs == list(range(1, 30_001))


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_a_link_that_is_cut_meanwhile_loses_and_doubles_nothing(
    js: JetStream, jetstream_server: Server, mode: str
) -> None:
    made(js)
    fill(js, 20_000)
    with FaultProxy("127.0.0.1", jetstream_server.port) as proxy:
        readers = Readers(proxy.url)
        options = {"readMode": mode, "numPartitions": 1, "maxFetchBytes": "128k"}
        reader = readers.batch(SEQUENCE, fetchSize=500, **options)
        (part,) = reader.partitions()
        seqs = []
        for number, batch in enumerate(reader.read(part)):
            seqs += batch.column("sequence").to_pylist()
            if number in (0, 5, 6):
                proxy.cut()
        assert seqs == list(range(1, 20_001))
        connecting.close_all()


@pytest.mark.parametrize(
    ("count", "data", "options"),
    [
        # The bytes that are asked for do not count the headers that a server adds.
        (100_000, b"%d", {"fetchSize": 1_000_000}),
        (3000, b"%010000d", {"maxFetchBytes": "1MB"}),
    ],
)
def test_a_reader_that_is_held_up_is_not_cut_off(
    count: int, data: bytes, options: dict[str, Any]
) -> None:
    # No more than this, and what the sockets take, may ever be on its way to us.
    with (
        run(jetstream=True, config="max_pending: 4MB") as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
    ):
        with jsclient.connect(server.url) as nc:
            js = nc.jetstream()
            made(js)
            fill(js, count, data=data)
        proxy.set("s2c", rate=16 << 20)
        readers = Readers(proxy.url)
        found = readers.seqs(readMode="direct", numPartitions=1, **options)
        assert found == list(range(1, count + 1))
        assert proxy.connections == 1
        connecting.close_all()


def test_a_reader_that_is_given_up_leaves_no_consumer(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 5000)
    reader = readers.batch(readMode="consumer", fetchSize=100, maxFetchBytes="64k")
    batches = reader.read(reader.partitions()[0])
    next(batches)
    assert len(ephemerals(js, "S")) == 1
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert ephemerals(js, "S") == []


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_two_attempts_at_the_same_time_read_the_same_and_change_nothing(
    js: JetStream, readers: Readers, mode: str
) -> None:
    stream = made(js)
    fill(js, 5000)
    # What a speculative task is: the same partition, in another process.
    reader = readers.batch(SEQUENCE, readMode=mode, fetchSize=500, maxFetchBytes="64k")
    (part,) = reader.partitions()
    attempts = zip(read(reader, part), read(reader, part), strict=True)
    seqs = [(one["sequence"], other["sequence"]) for one, other in attempts]
    assert seqs == [(seq, seq) for seq in range(1, 5001)]
    state = stream.info().state
    assert (state.messages, state.first_seq, state.consumer_count) == (5000, 1, 0)


def test_messages_that_went_between_planning_and_reading_are_missed(
    js: JetStream, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made(js)
    fill(js, 100)
    reader = readers.batch(SEQUENCE)
    (part,) = reader.partitions()
    stream.purge(sequence=41)
    with pytest.raises(DataLossError, match=r"messages 1\.\.40 are gone"):
        list(read(reader, part))
    calm = readers.batch(SEQUENCE, failOnDataLoss="false")
    with caplog.at_level("WARNING", "jsclient"):
        assert [row["sequence"] for row in read(calm, part)] == list(range(41, 101))
    (warning,) = caplog.messages
    assert "messages 1..40 are gone" in warning


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_messages_that_go_while_we_read_are_missed(
    js: JetStream, readers: Readers, mode: str
) -> None:
    stream = made(js)
    fill(js, 20_000)
    options = {"readMode": mode, "maxFetchBytes": "64k", "numPartitions": 1}
    reader = readers.batch(SEQUENCE, fetchSize=100, **options)
    batches = reader.read(reader.partitions()[0])
    next(batches)
    stream.purge(sequence=19_001)
    with pytest.raises(DataLossError, match=r"\.\.19000 are gone"):
        list(batches)


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_who_does_not_mind_what_goes_while_he_reads_is_warned_once(
    js: JetStream, readers: Readers, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made(js)
    fill(js, 20_000)
    options = {"readMode": mode, "maxFetchBytes": "64k", "numPartitions": 1}
    reader = readers.batch(SEQUENCE, fetchSize=100, failOnDataLoss="false", **options)
    batches = reader.read(reader.partitions()[0])
    with caplog.at_level("WARNING", "jsclient"):
        next(batches)
        stream.purge(sequence=19_001)
        *_, last = batches
    assert last["sequence"][-1].as_py() == 20_000
    (warning,) = caplog.messages
    assert "..19000 are gone" in warning


@pytest.mark.parametrize("mode", ["direct", "consumer"])
@pytest.mark.parametrize("is_fatal", [True, False])
def test_messages_that_expire_while_we_read_are_missed(
    js: JetStream,
    readers: Readers,
    mode: str,
    is_fatal: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = made(js)
    fill(js, 20_000)
    options = {"readMode": mode, "maxFetchBytes": "64k", "numPartitions": 1}
    options |= {"fetchSize": 100, "failOnDataLoss": str(is_fatal).lower()}
    reader = readers.batch(SEQUENCE, **options)
    batches = reader.read(reader.partitions()[0])
    seqs = next(batches)["sequence"].to_pylist()
    expire(stream)
    fill(js, 10)  # they are behind the end of the range
    if is_fatal:
        with pytest.raises(DataLossError, match=r"messages \d+\.\.20000 are gone"):
            list(batches)
        return
    with caplog.at_level("WARNING", "jsclient"):
        for batch in batches:
            seqs += batch["sequence"].to_pylist()
    # What was on its way is read, and nothing beyond.
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) < 20_000
    (warning,) = caplog.messages
    assert f"messages {len(seqs) + 1}..20000 are gone" in warning


def test_a_stream_that_is_made_again_is_not_taken_for_the_old_one(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 10)
    reader = readers.batch(SEQUENCE)
    (part,) = reader.partitions()
    js.delete_stream("S")
    made(js)
    fill(js, 10)
    with pytest.raises(DataLossError, match="was deleted and made again"):
        list(read(reader, part))
    calm = readers.batch(SEQUENCE, failOnDataLoss="false")
    assert list(read(calm, part)) == []


@pytest.mark.parametrize(
    ("fields", "mode", "says"),
    [
        ({"allow_direct": False}, "direct", "allow_direct"),
        ({"retention": "workqueue"}, "consumer", "work queue"),
    ],
)
def test_a_way_that_the_stream_does_not_have_is_refused(
    js: JetStream, readers: Readers, fields: dict[str, Any], mode: str, says: str
) -> None:
    made(js, **fields)
    fill(js, 5)
    with pytest.raises(OptionError, match=f"option readMode: .*{says}"):
        readers.seqs(readMode=mode)


def test_a_stream_without_room_for_consumers_is_read_directly(
    js: JetStream, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = made(js, max_consumers=1)
    stream.create_consumer(durable_name="C")
    fill(js, 100)
    monkeypatch.setattr(reading, "SMALL", 10)
    assert readers.seqs(numPartitions=1) == list(range(1, 101))


def test_a_user_who_may_make_no_consumers_reads_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = {
        "user": "u",
        "password": "p",
        "permissions": {"publish": {"deny": ["$JS.API.CONSUMER.>"]}},
    }
    admin = {"user": "a", "password": "a"}
    monkeypatch.setattr(reading, "SMALL", 10)
    with run(jetstream=True, users=[admin, limited]) as server:
        url = f"nats://127.0.0.1:{server.port}"
        with jsclient.connect(url, user="a", password="a") as nc:
            js = nc.jetstream()
            made(js)
            fill(js, 100)
        readers = Readers(url)
        assert readers.seqs(user="u", password="p") == list(range(1, 101))
        connecting.close_all()


def test_a_cluster_is_read_whole_while_its_leaders_move() -> None:
    with run(cluster=3, jetstream=True) as cluster:
        with jsclient.connect(cluster.url) as nc:
            js = nc.jetstream(timeout=20.0)
            stream = made(js, num_replicas=3)
            readers = Readers(cluster.url)
            for _ in range(4):
                while True:  # until there is a leader that all servers know of
                    with contextlib.suppress(jsclient.NoStreamResponseError):
                        fill(js, 500)
                        break
                last = stream.info().state.last_seq
                nc.request("$JS.API.STREAM.LEADER.STEPDOWN.S", timeout=20.0)
                # A new leader may not know all at once: the end is given.
                given = {"endingOffsets": last + 1, "requestTimeout": 20}
                for mode in ("direct", "consumer"):
                    found = readers.seqs(readMode=mode, **given)
                    assert found == list(range(1, last + 1))
        connecting.close_all()


def test_a_cluster_is_read_whole_with_a_follower_that_is_behind() -> None:
    with run(cluster=3, jetstream=True) as cluster:
        with jsclient.connect(cluster.url) as nc:
            js = nc.jetstream(timeout=20.0)
            stream = made(js, num_replicas=3)
            fill(js, 500)
            told = stream.info().cluster
            assert told is not None
            leader = next(one for one in cluster.servers if one.name == told.leader)
            follower = next(one for one in cluster.servers if one is not leader)
        readers = Readers(leader.url)
        with jsclient.connect(leader.url) as nc:
            js = nc.jetstream(timeout=20.0)
            follower.pause()
            try:
                fill(js, 500)
                # What asks the one that does not answer is tried in another way.
                for _ in range(5):
                    found = readers.seqs(requestTimeout="1s")
                    assert found == list(range(1, 1001))
            finally:
                follower.resume()
            # It answers again, and does not have all yet.
            for mode in ("direct", "consumer"):
                found = readers.seqs(readMode=mode, requestTimeout="20s")
                assert found == list(range(1, 1001))
        connecting.close_all()
