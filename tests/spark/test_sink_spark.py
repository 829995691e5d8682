"""The sink in a real Spark: batches, micro-batches, what is refused and told."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.spark import OptionError, read, write, write_stream
from jsclient.spark.options import sink_options
from jsclient.spark.pipeline.session import DEFAULTS
from jsclient.spark.sink import Written, batch_writer
from jsclient.stream import Stream
from tests.spark.readers import made, since_42
from tests.spark.row_source import RowSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(180)]


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Rows with the numbers as payloads, for s.0 to s.3."""
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('s.', id % 4) AS subject", "CAST(id AS STRING) AS data"
    )


def payloads(stream: Stream) -> list[int]:
    """All that the stream has, in order."""
    count = stream.info().state.messages
    if not count:
        return []
    with stream.ordered_consumer().messages(stop_after=count) as messages:
        return [int(msg.data) for msg in messages]


@pytest.fixture
def sink(js: JetStream) -> Stream:
    return made(js, "OUT", subjects=["s.>", "o.>"])


def test_a_frame_is_stored_whole(
    spark: SparkSession, jetstream_server: Server, sink: Stream
) -> None:
    write(numbers(spark, 20_000), "OUT", servers=jetstream_server.url)
    assert sorted(payloads(sink)) == list(range(20_000))
    assert sink.info().state.num_subjects == 4


def test_writing_twice_stores_twice(
    spark: SparkSession, jetstream_server: Server, sink: Stream
) -> None:
    for _ in range(2):
        write(numbers(spark, 10), "OUT", servers=jetstream_server.url)
    assert sorted(payloads(sink)) == sorted([*range(10), *range(10)])


def test_all_columns_reach_the_stream(
    spark: SparkSession, jetstream_server: Server, sink: Stream
) -> None:
    frame = spark.createDataFrame(
        [
            ("s.1", bytearray(b"one"), {"K": ["x", "y"]}, "i1", 0),
            (None, None, None, "i2", None),
            ("s.1", bytearray(b"again"), {}, "i1", None),
        ],
        "subject STRING, data BINARY, headers MAP<STRING,ARRAY<STRING>>, "
        "msg_id STRING, expected_last_subject_seq BIGINT",
    ).coalesce(1)
    write(frame, "OUT", subject="o.default", servers=jetstream_server.url)
    first, second = sink.get_msg(1), sink.get_msg(2)
    assert (first.subject, first.data) == ("s.1", b"one")
    assert first.headers is not None
    assert first.headers.get_all("K") == ["x", "y"]
    assert first.headers["Nats-Msg-Id"] == "i1"
    assert first.headers["Nats-Expected-Stream"] == "OUT"
    assert (second.subject, second.data) == ("o.default", b"")
    assert sink.info().state.messages == 2, "the third is known by its id"


def test_a_refused_row_fails_the_write_with_its_subject_and_the_reason(
    spark: SparkSession, jetstream_server: Server, sink: Stream
) -> None:
    frame = spark.createDataFrame(
        [("s.1", "fits"), ("elsewhere.1", "x")], "subject STRING, data STRING"
    ).coalesce(1)
    with pytest.raises(Exception, match=r"'elsewhere\.1'") as told:
        write(frame, "OUT", servers=jetstream_server.url)
    assert "no stream answers" in str(told.value)
    assert "1 rows are stored" in str(told.value)
    assert payloads_text(sink) == [b"fits"]


def payloads_text(stream: Stream) -> list[bytes]:
    count = stream.info().state.messages
    with stream.ordered_consumer().messages(stop_after=count) as messages:
        return [msg.data for msg in messages]


def test_refused_rows_can_be_skipped(
    spark: SparkSession, jetstream_server: Server, sink: Stream
) -> None:
    frame = spark.createDataFrame(
        [("s.1", "1"), ("nowhere", "x"), ("a..b", "x"), ("s.2", "2")],
        "subject STRING, data STRING",
    )
    write(frame, "OUT", onError="skip", servers=jetstream_server.url)
    assert sorted(payloads(sink)) == [1, 2]


def test_the_driver_tells_how_many_rows_its_tasks_have_skipped(
    jetstream_server: Server, sink: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    options = sink_options({"servers": jetstream_server.url, "stream": "OUT"})
    columns = StructType([StructField(n, StringType()) for n in ("subject", "data")])
    writer = batch_writer(options, columns, False)
    with caplog.at_level(logging.WARNING, "jsclient"):
        writer.commit([Written(None, 0, 5), None])
        assert not caplog.messages
        writer.commit([Written(None, 0, 5, refused=2), Written(None, 0, refused=1)])
    (message,) = caplog.messages
    assert message.startswith("3 rows of the batch were refused")


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("'x' AS data", {}, "option subject: give it"),
        ("'s' AS subject", {}, "no column 'data'"),
        ("'s' AS subject, 1 AS data", {}, "must be binary or string, not int"),
        ("'s' AS subject, 'x' AS data, 1 AS msg_id", {}, "must be string, not int"),
        ("'s' AS subject, 'x' AS data, 1 AS offset", {}, "'offset' has no meaning"),
        ("'s' AS subject, 'x' AS data, 'x' AS msgid", {}, "did you mean msg_id"),
        ("'s' AS subject, 'x' AS data, 'h' AS headers", {}, "must be map<string"),
        ("'s' AS subject, 'x' AS data", {"dedup": "column"}, "no column 'msg_id'"),
        (
            "'s' AS subject, 'x' AS data, 'i' AS msg_id",
            {"dedup": "none"},
            "would ignore",
        ),
        ("'s' AS subject, 'x' AS data", {"stream": "MISSING"}, "no stream 'MISSING'"),
        ("'s' AS subject, 'x' AS data", {"dedupe": "none"}, "did you mean dedup"),
        ("'s' AS subject, 'x' AS data", {"maxInflight": "0"}, "option maxInflight"),
        ("'s' AS subject, 'x' AS data", {"mode": "overwrite"}, "overwrite is not for"),
        (
            "'s' AS subject, 'x' AS data",
            {"exactlyOnce": "ledger", "ledger": "l", "dedup": "none"},
            "needs ids",
        ),
        (
            "'s' AS subject, 'x' AS data",
            {"servers": "nats://127.0.0.1:1", "connectTimeout": "1s"},
            "option servers: no server answers",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_stored(
    spark: SparkSession,
    jetstream_server: Server,
    sink: Stream,
    columns: str,
    options: dict[str, str],
    problem: str,
) -> None:
    given = {"servers": jetstream_server.url, "stream": "OUT", **options}
    mode = given.pop("mode", "append")
    frame = spark.sql(f"SELECT {columns}")
    with pytest.raises(Exception, match=problem):
        frame.write.format("jetstream").options(**given).mode(mode).save()
    assert sink.info().state.messages == 0


def test_a_ledger_is_not_for_one_frame(
    spark: SparkSession, jetstream_server: Server, sink: Stream
) -> None:
    with pytest.raises(Exception, match="a ledger is for streaming queries"):
        write(
            numbers(spark, 1),
            "OUT",
            exactlyOnce="ledger",
            ledger="books",
            servers=jetstream_server.url,
        )


def test_wrong_options_are_told_at_the_call(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="maxInflight"):
        write(numbers(spark, 1), "OUT", maxInflight=-1)


@pytest.fixture
def source(spark: SparkSession, jetstream_server: Server, js: JetStream) -> Any:
    """Makes streaming frames of a stream IN with some messages."""

    def frame(count: int, **options: Any) -> DataFrame:
        made(js, "IN", subjects=["i.>"])
        fill_in(js, count)
        return (
            spark.readStream.format("jetstream")
            .options(servers=jetstream_server.url, stream="IN", **options)
            .load()
            .selectExpr("'s.1' AS subject", "data")
        )

    return frame


def fill_in(js: JetStream, count: int) -> None:
    for _ in js.publish_all(("i.1", b"%d" % number) for number in range(count)):
        pass


Source = Callable[..., "DataFrame"]


@pytest.mark.parametrize("exactly_once", ["window", "ledger"])
def test_a_query_stores_every_row_once_and_a_replay_stores_nothing(
    source: Source,
    jetstream_server: Server,
    sink: Stream,
    tmp_path: Path,
    exactly_once: Any,
) -> None:
    frame = source(5000, maxRecordsPerTrigger=2000, numPartitions=2)
    for run in range(2):
        query = write_stream(
            frame,
            "OUT",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
            exactlyOnce=exactly_once,
            servers=jetstream_server.url,
        )
        query.awaitTermination()
        assert sorted(payloads(sink)) == list(range(5000))
        # Spark forgets that the last batch was done, and does it again.
        commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
        if run == 0:
            for path in (
                commits[-1],
                commits[-1].with_name(f".{commits[-1].name}.crc"),
            ):
                path.unlink(missing_ok=True)


def test_the_ledger_covers_what_the_stream_has_forgotten(
    source: Source, jetstream_server: Server, js: JetStream, tmp_path: Path
) -> None:
    sink = made(js, "OUT", duplicate_window=0.1)
    frame = source(3000, maxRecordsPerTrigger=1000)
    checkpoint = tmp_path / "checkpoint"

    def run(**options: Any) -> None:
        query = write_stream(
            frame,
            "OUT",
            checkpoint=str(checkpoint),
            once=True,
            servers=jetstream_server.url,
            **options,
        )
        query.awaitTermination()

    def forget_last_commit() -> int:
        """Its batch."""
        path = max((checkpoint / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        return int(path.name)

    run(exactlyOnce="ledger", ledger="books")
    assert sorted(payloads(sink)) == list(range(3000))
    # The batch is whole, and the ledger knows it.
    forget_last_commit()
    run(exactlyOnce="ledger", ledger="books")
    assert sorted(payloads(sink)) == list(range(3000))
    # The batch was stored in part when its driver died: the ledger has the one before.
    last = forget_last_commit()
    books = js.stream("KV_books")
    subject = books.get_msg(books.info().state.last_seq).subject
    created = sink.info().raw["created"]
    entry = {"batch": last - 1, "seq": 1000 * last, "created": created}
    js.publish(subject, json.dumps(entry).encode())
    for seq in range(2001, 3001, 3):
        sink.delete_msg(seq)
    run(exactlyOnce="ledger", ledger="books")
    assert sorted(payloads(sink)) == list(range(3000))
    # Without it they are stored again.
    forget_last_commit()
    run()
    assert len(payloads(sink)) == 3000 + (3000 - 1000 * last)


def test_rows_that_come_one_by_one_are_stored_once_too(
    spark: SparkSession,
    source: Source,
    jetstream_server: Server,
    js: JetStream,
    tmp_path: Path,
) -> None:
    spark.dataSource.register(RowSource)
    sink = made(js, "OUT", subjects=["r.>"], duplicate_window=0.1)
    frame = source(25_000).selectExpr(
        "'r.1' AS subject", "data", "map('N', array(string(data))) AS headers"
    )

    def run() -> None:
        writer = frame.writeStream.format("jetstream-rows").trigger(availableNow=True)
        options = {"stream": "OUT", "servers": jetstream_server.url}
        writer.options(exactlyOnce="ledger", **options).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).start().awaitTermination()

    run()
    assert sorted(payloads(sink)) == list(range(25_000))
    stored = sink.get_msg(7)
    assert stored.headers is not None
    assert stored.headers["N"].encode() == stored.data
    # Spark forgets that the batch was done: the ledger knows, the stream does not.
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    run()
    assert sink.info().state.messages == 25_000


def test_in_a_foreach_batch_a_replay_stores_nothing(
    source: Source, jetstream_server: Server, sink: Stream, tmp_path: Path
) -> None:
    frame = source(500)
    seen: list[int] = []

    def store(rows: DataFrame, batch: int) -> None:
        seen.append(batch)
        write(rows, "OUT", servers=jetstream_server.url)
        if len(seen) == 1:
            raise RuntimeError("the driver fails behind the write")

    def run() -> None:
        writer = frame.writeStream.foreachBatch(store).trigger(availableNow=True)
        location = str(tmp_path / "checkpoint")
        writer.option("checkpointLocation", location).start().awaitTermination()

    with pytest.raises(Exception, match="the driver fails behind the write"):
        run()
    run()
    assert seen == [0, 0]
    assert sorted(payloads(sink)) == list(range(500))


def test_a_refused_row_fails_a_query_with_its_subject_and_the_reason(
    source: Source, jetstream_server: Server, sink: Stream, tmp_path: Path
) -> None:
    subject = "if(data = '7', 'elsewhere.7', subject) AS subject"
    query = write_stream(
        source(10).selectExpr(subject, "data"),
        "OUT",
        checkpoint=str(tmp_path / "checkpoint"),
        once=True,
        servers=jetstream_server.url,
    )
    with pytest.raises(PySparkException, match=r"'elsewhere\.7'.*no stream answers"):
        query.awaitTermination()
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()


@since_42
def test_the_mode_complete_publishes_the_whole_result(
    source: Source, jetstream_server: Server, sink: Stream, tmp_path: Path
) -> None:
    frame = source(300, maxRecordsPerTrigger=100)
    counts = (
        frame.groupBy("subject")
        .count()
        .selectExpr("subject", "CAST(count AS STRING) AS data")
    )
    query = (
        counts.writeStream.format("jetstream")
        .options(servers=jetstream_server.url, stream="OUT")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert payloads(sink) == [100, 200, 300]


def test_a_stream_is_copied_with_its_headers(
    spark: SparkSession, jetstream_server: Server, js: JetStream, sink: Stream
) -> None:
    made(js, "IN", subjects=["i.>"], subject_transform={"src": "i.>", "dest": "s.>"})
    headers = {"K": "v", "Nats-Msg-Id": "old", "Nats-Expected-Stream": "IN"}
    js.publish("i.1", b"1", headers=headers)
    frame = read(spark, "IN", servers=jetstream_server.url)
    write(frame, "OUT", servers=jetstream_server.url)
    msg = sink.get_msg(1)
    assert (msg.subject, msg.data) == ("s.1", b"1")
    assert msg.headers is not None
    assert msg.headers["K"] == "v"
    assert msg.headers.get_all("Nats-Expected-Stream") == ["OUT"]
    assert msg.headers["Nats-Msg-Id"] != "old"


def test_sql_inserts_into_a_stream(
    spark: SparkSession, jetstream_server: Server, sink: Stream
) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW out USING jetstream OPTIONS "
        f"(servers '{jetstream_server.url}', stream 'OUT')"
    )
    spark.sql(
        "INSERT INTO out SELECT 's.1', CAST('7' AS BINARY), NULL, NULL, NULL, NULL"
    )
    assert payloads(sink) == [7]


def test_secrets_are_in_no_failure(
    spark: SparkSession, js: JetStream, jetstream_server: Server
) -> None:
    url = f"nats://me:hidden-word@127.0.0.1:{jetstream_server.port}"
    frame = spark.createDataFrame([("none", "x")], "subject STRING, data STRING")
    with pytest.raises(Exception, match="no stream answers") as told:
        write(frame, servers=url, password="hidden-word", user="me")
    assert "hidden-word" not in f"{told.value!r} {told.value}"


@pytest.mark.parametrize(
    "secret",
    [
        {"nkey": "SUhidden"},
        {"creds": "-----BEGIN NATS USER JWT-----\nhidden\n------END"},
        {"token": "hidden", "servers": "nats://me:hidden@127.0.0.1:1"},
    ],
    ids=lambda secret: "-".join(secret),
)
def test_secrets_are_in_no_failure_of_a_query(
    spark: SparkSession,
    source: Source,
    js: JetStream,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    secret: dict[str, str],
) -> None:
    # What pipelines have by themselves: before 4.2 Spark shows the options of a sink.
    key = "spark.sql.redaction.options.regex"
    before = spark.conf.get(key)
    spark.conf.set(key, DEFAULTS[key])
    frame = source(1)
    writer = frame.writeStream.format("jetstream").trigger(availableNow=True)
    given = {"servers": "nats://127.0.0.1:1", "stream": "OUT", **secret}
    writer = writer.options(connectTimeout="1s", **given)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    try:
        query = writer.start()
        with pytest.raises(PySparkException, match="option ") as told:
            query.awaitTermination()
        shown = [str(told.value), repr(told.value), repr(query.recentProgress)]
        shown.append(str(query.exception()))
        query.explain(extended=True)
        shown.append(capfd.readouterr().out)
        assert "WriteToMicroBatchDataSource" in shown[0]
        assert not [text for text in shown if "hidden" in text]
    finally:
        spark.conf.set(key, str(before))
