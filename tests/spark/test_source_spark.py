"""The source under a real Spark: every row once, clear errors, nothing left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PySparkException

import jsclient.spark
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.spark import OptionError, read, read_stream
from tests.spark.readers import HAS_LIMITS, expire, fill, made, since_41

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.live

MANY = 200_000
CHECKSUM = "count(*)", "sum(cast(cast(data as string) as bigint))", "sum(sequence)"
EXPECTED = (MANY, MANY * (MANY - 1) // 2, MANY * (MANY + 1) // 2)

Frame = Callable[..., "DataFrame"]
Query = Callable[..., "StreamingQuery"]


@pytest.fixture(scope="module")
def full() -> Iterator[Server]:
    """A server whose stream S has many messages; nobody changes it."""
    with run(jetstream=True) as server:
        with jsclient.connect(server.url) as nc:
            js = nc.jetstream()
            made(js)
            fill(js, MANY, subjects=16, data=b"%0128d")
        yield server


@pytest.fixture
def frame(spark: SparkSession, jetstream_server: Server) -> Frame:
    """A DataFrame of the stream S."""

    def load(*, schema: str | None = None, **options: Any) -> DataFrame:
        given = {"servers": jetstream_server.url, "stream": "S", **options}
        reader = spark.read.format("jetstream").options(**given)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def query(spark: SparkSession, jetstream_server: Server, tmp_path: Path) -> Query:
    """Runs a query over what is there, from its checkpoint, into files."""

    def start(*, schema: str | None = None, **options: Any) -> StreamingQuery:
        given = {"servers": jetstream_server.url, "stream": "S", **options}
        reader = spark.readStream.format("jetstream").options(**given)
        running = (
            (reader if schema is None else reader.schema(schema))
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        running.awaitTermination()
        return running

    return start


def written(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(str(folder / "out"))


def sizes(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress]


def sums(frame: DataFrame) -> tuple[int, ...]:
    (row,) = frame.selectExpr(*CHECKSUM).collect()
    return tuple(row)


def test_a_batch_has_every_message_once(
    spark: SparkSession, full: Server, frame: Frame
) -> None:
    found = frame(servers=full.url)
    assert sums(found) == EXPECTED
    subjects = found.groupBy("subject").count().collect()
    assert {row.subject: row["count"] for row in subjects} == {
        f"s.{n}": MANY // 16 for n in range(16)
    }


def test_a_stream_has_every_message_once(
    spark: SparkSession, full: Server, query: Query, tmp_path: Path
) -> None:
    running = query(servers=full.url, maxRecordsPerTrigger=60_000)
    limited = [60_000, 60_000, 60_000, 20_000]
    assert sizes(running) == (limited if HAS_LIMITS else [MANY])
    found = written(spark, tmp_path)
    assert sums(found) == EXPECTED
    assert found.select("sequence").distinct().count() == MANY
    assert jsclient.spark.lag(running) == (0 if HAS_LIMITS else None)


def test_several_streams_are_read_as_one(
    spark: SparkSession, js: JetStream, jetstream_server: Server, tmp_path: Path
) -> None:
    for name in ("A", "B"):
        made(js, name, subjects=[f"{name}.>"])
        for number in range(10):
            js.publish(f"{name}.1", b"%d" % number)
    expected = {(name, number) for name in "AB" for number in range(1, 11)}
    servers = jetstream_server.url
    some = read(
        spark, ["A", "B"], servers=servers, schema="stream STRING, sequence LONG"
    )
    rows = some.collect()
    assert len(rows) == 20
    assert {tuple(row) for row in rows} == expected
    arriving = read_stream(spark, ["A", "B"], servers=servers)
    query = (
        arriving.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    rows = written(spark, tmp_path).select("stream", "sequence").collect()
    assert len(rows) == 20
    assert {tuple(row) for row in rows} == expected
    with pytest.raises(OptionError, match="name one at least"):
        read(spark, [], servers=servers)


def test_a_job_that_is_cut_short_leaves_no_consumer(full: Server, frame: Frame) -> None:
    found = frame(servers=full.url, readMode="consumer").limit(5).collect()
    assert len(found) == 5
    with jsclient.connect(full.url) as nc:
        stream = nc.jetstream().stream("S")
        while stream.consumer_names():  # the worker is a moment behind
            pass


def test_a_frame_is_a_snapshot_and_filters_of_it_do_not_change_it(
    js: JetStream, frame: Frame
) -> None:
    made(js)
    fill(js, 100)
    found = frame()
    assert found.where("subject = 's.1'").count() == 25
    fill(js, 50)
    assert found.count() == 100
    assert frame().count() == 150


@since_41
def test_no_filter_is_pushed_down_even_if_spark_would_do_it(
    spark: SparkSession,
    js: JetStream,
    jetstream_server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made(js)
    fill(js, 100)
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    found = read(session, "S", servers=jetstream_server.url)
    odd, early = found.where("subject = 's.1'"), found.where("sequence <= 10")
    # By pushed filters, those of the last one would hold for all.
    assert (odd.count(), early.count(), found.count()) == (25, 10, 100)
    assert odd.union(early).count() == 35
    both = odd.join(early.select("sequence"), "sequence").collect()
    assert {row.sequence for row in both} == {2, 6, 10}
    odd.explain(True)
    plan = capsys.readouterr().out.partition("== Physical Plan ==")[2]
    assert re.search(r"Filter \(.*subject#\d+ = s\.1\)+\n.*BatchScan", plan), plan
    assert "Pushed" not in plan


def test_a_view_in_sql_reads_the_stream(
    spark: SparkSession, js: JetStream, jetstream_server: Server
) -> None:
    made(js)
    fill(js, 100)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW messages USING jetstream OPTIONS "
        f"(servers '{jetstream_server.url}', stream 'S', subject 's.1')"
    )
    found = spark.sql("SELECT count(*) AS n, max(sequence) AS last FROM messages")
    (row,) = found.collect()
    assert (row.n, row.last) == (25, 98)
    spark.catalog.dropTempView("messages")


def test_columns_are_chosen_by_the_schema(js: JetStream, frame: Frame) -> None:
    made(js)
    js.publish("s.1", b"text", headers={"A": ["1", "2"]})
    schema = "data STRING, headers MAP<STRING, ARRAY<STRING>>, sequence BIGINT"
    (row,) = frame(schema=schema).collect()
    assert tuple(row) == ("text", {"A": ["1", "2"]}, 1)


def test_a_session_that_was_told_of_the_format_finds_it(
    spark: SparkSession, js: JetStream, jetstream_server: Server
) -> None:
    made(js)
    fill(js, 7)
    session = spark.newSession()
    jsclient.spark.register(session)
    jsclient.spark.register(session)
    found = jsclient.spark.read(session, "S", servers=jetstream_server.url, start=3)
    assert found.count() == 5


def test_purged_messages_fail_a_query_or_are_passed_over(
    spark: SparkSession, js: JetStream, query: Query, tmp_path: Path
) -> None:
    stream = made(js)
    fill(js, 100)
    query()
    fill(js, 100)
    stream.purge(sequence=151)
    with pytest.raises(PySparkException, match=r"messages 101\.\.150 are gone"):
        query()
    assert sizes(query(failOnDataLoss="false")) == [50]
    seqs = [row.sequence for row in written(spark, tmp_path).collect()]
    assert sorted(seqs) == [*range(1, 101), *range(151, 201)]


def test_messages_that_expire_within_a_batch_fail_it_or_are_passed_over(
    spark: SparkSession, js: JetStream, jetstream_server: Server, tmp_path: Path
) -> None:
    stream = made(js)
    fill(js, 100)
    seen: list[list[int]] = []

    def take(rows: DataFrame, batch: int) -> None:
        seen.append([])
        for row in rows.select("sequence").toLocalIterator():
            seen[-1].append(row.sequence)
            if row.sequence == 50:
                expire(stream)  # before the second partition is read

    def run(**options: Any) -> None:
        given = {"servers": jetstream_server.url, "stream": "S", **options}
        reader = spark.readStream.format("jetstream").options(**given)
        writer = reader.load().writeStream.foreachBatch(take)
        location = str(tmp_path / "checkpoint")
        query = writer.option("checkpointLocation", location)
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match=r"DATA_LOSS.* messages 51\.\.100 are"):
        run(recordsPerPartition=50)
    # Done again, the batch has lost its first half too.
    with pytest.raises(PySparkException, match=r"DATA_LOSS.* messages 1\.\.100 are"):
        run(recordsPerPartition=50)
    fill(js, 100)
    run(recordsPerPartition=50, failOnDataLoss="false")
    assert seen == [list(range(1, 51)), [], list(range(101, 201))]
    (tmp_path / "checkpoint").rename(tmp_path / "first")
    js.delete_stream("S")
    stream = made(js)
    fill(js, 100)
    run(recordsPerPartition=50, failOnDataLoss="false")
    fill(js, 10)
    run(recordsPerPartition=50, failOnDataLoss="false")
    assert seen[3:] == [list(range(1, 51)), list(range(101, 111))]


def test_a_stream_that_was_made_again_fails_a_query(
    spark: SparkSession, js: JetStream, query: Query
) -> None:
    made(js)
    fill(js, 100)
    query()
    js.delete_stream("S")
    made(js)
    fill(js, 200)
    with pytest.raises(PySparkException, match="was deleted and made again"):
        query()
    assert sizes(query(failOnDataLoss="false")) == [200]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ('{"v":2,"stream":"S","next":11}', "option checkpointLocation: .* version 2"),
        ('{"v":1,"stream":"S","next":11}', "option checkpointLocation: .*created"),
        ('"next"', "option checkpointLocation: 'next' is no JSON of an offset"),
        # Spark itself reads it before we do.
        ('{"v":1,"stream":"S","ne', "JSONDecodeError"),
    ],
)
def test_an_offset_that_was_damaged_in_the_checkpoint_is_told(
    spark: SparkSession,
    js: JetStream,
    query: Query,
    tmp_path: Path,
    damage: str,
    says: str,
) -> None:
    made(js)
    fill(js, 10)
    query()
    fill(js, 10)
    kept = tmp_path / "checkpoint" / "offsets" / "0"
    *lines, _ = kept.read_text().splitlines()
    kept.write_text("\n".join([*lines, damage]))
    kept.with_name(".0.crc").unlink(missing_ok=True)
    with pytest.raises(PySparkException, match=says):
        query()
    assert written(spark, tmp_path).count() == 10


def test_a_work_queue_is_freed_as_batches_are_committed(
    spark: SparkSession, js: JetStream, query: Query, tmp_path: Path
) -> None:
    stream = made(js, retention="workqueue")
    fill(js, 1000)
    options = {"consume": "purge", "maxRecordsPerTrigger": 300}
    running = query(**options)
    assert sizes(running) == ([300, 300, 300, 100] if HAS_LIMITS else [1000])
    assert stream.info().state.first_seq == (901 if HAS_LIMITS else 1)
    progress = running.lastProgress
    assert progress is not None
    given = {"stream": "S", "servers": js._connection.connected_url or "", **options}
    strings = {name: str(value) for name, value in given.items()}
    jsclient.spark.commit_final(strings, progress.sources[0].endOffset)
    assert stream.info().state.messages == 0
    assert written(spark, tmp_path).select("sequence").distinct().count() == 1000


def test_an_interest_stream_is_freed_as_batches_are_committed(
    spark: SparkSession, js: JetStream, query: Query, tmp_path: Path
) -> None:
    stream = made(js, retention="interest")
    options = {"consume": "reset", "anchor": "a", "maxRecordsPerTrigger": 60}
    query(**options)  # from now on messages are kept
    fill(js, 100)
    assert sum(sizes(query(**options))) == 100
    assert stream.info().state.first_seq == (61 if HAS_LIMITS else 1)
    query(**options)
    assert stream.info().state.messages == 0
    seqs = [row.sequence for row in written(spark, tmp_path).collect()]
    assert sorted(seqs) == list(range(1, 101))


def test_a_filter_starts_no_batches_for_others_messages(
    js: JetStream, query: Query
) -> None:
    made(js)
    fill(js, 100)
    options = {"subject": "s.1,s.3", "maxRecordsPerTrigger": 30}
    assert sum(sizes(query(**options))) == 50
    js.publish("s.2", b"")
    assert sum(sizes(query(**options))) == 0


def test_small_batches_can_be_read_on_the_driver(
    spark: SparkSession, js: JetStream, query: Query, tmp_path: Path
) -> None:
    made(js)
    fill(js, 12_000)
    found = sizes(query(lowLatency="true"))
    assert found == ([10_000, 2000] if HAS_LIMITS else [12_000])
    fill(js, 50)
    query(lowLatency="true")
    seqs = [row.sequence for row in written(spark, tmp_path).collect()]
    assert sorted(seqs) == list(range(1, 12_051))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "NOWHERE"}, "option stream: there is no stream 'NOWHERE'"),
        ({"startingOffsets": "{"}, "option startingOffsets: '{' is no JSON"),
        ({"schema": "sequence INT"}, "option schema: .*must be bigint, not int"),
        ({"schema": "payload BINARY"}, "option schema: there is no column 'payload'"),
        ({"servers": "nats://127.0.0.1:1"}, "option servers: no server answers"),
    ],
)
def test_bad_input_is_told_once_and_by_its_name(
    js: JetStream,
    frame: Frame,
    query: Query,
    tmp_path: Path,
    options: dict[str, str],
    says: str,
) -> None:
    made(js)
    with pytest.raises(PySparkException, match=says):
        frame(**options).collect()
    with pytest.raises(PySparkException, match=says):
        query(**options)
    assert not list((tmp_path / "checkpoint").glob("offsets/*"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxRecordsPerTrigger": "-1"}, "option maxRecordsPerTrigger: .*at least 1"),
        ({"nunPartitions": "2"}, "did you mean numPartitions"),
        ({"readMode": "fast"}, "option readMode: "),
    ],
)
def test_a_bad_option_is_told_when_the_stream_is_loaded(
    spark: SparkSession, options: dict[str, str], says: str
) -> None:
    for reader in (spark.read, spark.readStream):
        source = reader.format("jetstream").options(stream="S", **options)
        with pytest.raises(AnalysisException, match=says):
            source.load()


def test_offsets_in_the_checkpoint_tell_the_stream_and_its_place(
    js: JetStream, query: Query, tmp_path: Path
) -> None:
    stream = made(js)
    fill(js, 10)
    query()
    kept = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(kept) == {
        "v": 1,
        "stream": "S",
        "created": stream.info().raw["created"],
        "next": 11,
        **({"origin": 1, "parts": 1} if HAS_LIMITS else {}),
    }
