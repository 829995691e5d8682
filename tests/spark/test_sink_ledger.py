"""The ledger of the sink: what it remembers, of which stream, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructField, StructType

from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.spark import OptionError, write, write_stream
from jsclient.spark.ledger import Ledger, Memory, stored_ids
from jsclient.spark.options import sink_options
from jsclient.spark.sink import batch_writer, stream_writer
from jsclient.stream import Stream
from tests.spark.readers import fill, made

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ROWS = StructType([StructField(name, StringType()) for name in ("subject", "data")])
WITH_IDS = StructType([*ROWS.fields, StructField("msg_id", StringType())])


def ids(js: JetStream, subject: str, numbers: range) -> None:
    """Publishes messages with ids."""
    for number in numbers:
        js.publish(subject, b"", msg_id=f"id-{number}")


# What the stream has ------------------------------------------------------------------


def test_the_ids_after_a_sequence_are_found(js: JetStream) -> None:
    stream = made(js)
    ids(js, "s.1", range(10))
    assert stored_ids(stream, 5, "id-") == {b"id-%d" % n for n in range(5, 10)}
    assert stored_ids(stream, 5, "other-") == set()
    assert stored_ids(stream, 10, "") == set()
    assert stored_ids(stream, 99, "") == set()


def test_nothing_is_awaited_where_messages_were_deleted(js: JetStream) -> None:
    stream = made(js)
    ids(js, "s.a", range(5))
    ids(js, "s.b", range(5, 10))
    stream.purge("s.b")
    assert stored_ids(stream, 5, "") == set()
    ids(js, "s.a", range(10, 12))
    stream.delete_msg(12)
    assert stored_ids(stream, 5, "") == {b"id-10"}


def test_what_is_deleted_while_it_is_awaited_ends_the_search(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = made(js)
    ids(js, "s.1", range(10))
    ask = stream.get_msg

    def asked(*args: Any, **options: Any) -> Any:
        found = ask(*args, **options)
        stream.purge()  # behind the answer that messages are left
        return found

    monkeypatch.setattr(stream, "get_msg", asked)
    assert stored_ids(stream, 5, "", timeout=0.5) == set()


# Of which stream ----------------------------------------------------------------------


def test_an_entry_of_a_stream_that_was_made_again_counts_for_nothing(
    js: JetStream,
) -> None:
    def memory(stream: Stream, batch: int) -> Memory:
        ledger = Ledger(js, "books", "query", stream)
        return Memory(ledger, stream, batch, "", timeout=10.0)

    stream = made(js, duplicate_window=0.1)
    fill(js, 100)
    Ledger(js, "books", "query", stream).commit(7, 100)
    assert memory(stream, 7).is_whole
    stream.delete()
    stream = made(js, duplicate_window=0.1)
    ids(js, "s.1", range(3))
    # The batch is to be stored, and what a first run of it stores is found.
    first = memory(js.stream("S"), 7)
    assert not first.is_whole
    ids(js, "s.1", range(3, 6))
    again = memory(js.stream("S"), 7)
    assert not again.is_whole
    again.recall()
    assert again.known_ids == {b"id-3", b"id-4", b"id-5"}
    Ledger(js, "books", "query", stream).commit(7, 6)
    assert memory(js.stream("S"), 7).is_whole


# What is refused ----------------------------------------------------------------------


def given(server: Server, **options: str) -> dict[str, str]:
    return {"servers": server.url, "stream": "S", **options}


def test_a_batch_with_a_ledger_needs_a_name_for_it(
    js: JetStream, jetstream_server: Server
) -> None:
    made(js)
    options = given(jetstream_server, exactlyOnce="ledger")
    with pytest.raises(OptionError, match="option ledger: a batch needs it"):
        batch_writer(sink_options(options), ROWS, False)
    batch_writer(sink_options({**options, "ledger": "one"}), ROWS, False)
    stream_writer(sink_options(options), ROWS, False)


def test_with_asynchronous_progress_ids_do_not_depend_on_batches(
    js: JetStream, jetstream_server: Server
) -> None:
    made(js)
    options = given(jetstream_server, asyncProgressTrackingEnabled="true")
    with pytest.raises(OptionError, match="option exactlyOnce: a ledger counts"):
        sink_options({**options, "exactlyOnce": "ledger"})
    with pytest.raises(OptionError, match="option dedup: with asyncProgressTracking"):
        stream_writer(sink_options(options), ROWS, False)
    stream_writer(sink_options(options), WITH_IDS, False)
    stream_writer(sink_options({**options, "dedup": "none"}), ROWS, False)
    others = {**options, "asyncProgressTrackingEnabled": "false"}
    stream_writer(sink_options({**others, "exactlyOnce": "ledger"}), ROWS, False)


# Under Spark --------------------------------------------------------------------------


@pytest.fixture
def arriving(spark: SparkSession, js: JetStream, jetstream_server: Server) -> DataFrame:
    """A hundred messages of a stream."""
    made(js, "IN", subjects=["i.>"])
    for number in range(100):
        js.publish("i.1", b"%d" % number)
    return (
        spark.readStream.format("jetstream")
        .options(servers=jetstream_server.url, stream="IN")
        .load()
        .selectExpr("'s.1' AS subject", "data")
    )


def forget_commits(checkpoint: Path) -> None:
    """Spark does its last batches again."""
    for path in (checkpoint / "commits").iterdir():
        path.unlink()


@pytest.mark.slow
def test_two_writes_of_one_foreach_batch_are_both_stored_once(
    arriving: DataFrame, js: JetStream, jetstream_server: Server, tmp_path: Path
) -> None:
    stream = made(js, duplicate_window=0.1)

    def store(rows: DataFrame, batch: int) -> None:
        for name in ("one", "two"):
            write(
                rows,
                "S",
                exactlyOnce="ledger",
                ledger=name,
                servers=jetstream_server.url,
            )

    for _ in range(2):
        writer = arriving.writeStream.foreachBatch(store).trigger(availableNow=True)
        location = str(tmp_path / "checkpoint")
        writer.option("checkpointLocation", location).start().awaitTermination()
        assert stream.info().state.messages == 200
        forget_commits(tmp_path / "checkpoint")


@pytest.mark.slow
def test_a_batch_is_stored_again_in_a_stream_that_was_made_again(
    arriving: DataFrame, js: JetStream, jetstream_server: Server, tmp_path: Path
) -> None:
    stream = made(js)

    def run() -> None:
        query = write_stream(
            arriving,
            "S",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
            exactlyOnce="ledger",
            servers=jetstream_server.url,
        )
        query.awaitTermination()

    run()
    stream.delete()
    stream = made(js)
    for _ in range(2):
        forget_commits(tmp_path / "checkpoint")
        run()
        assert stream.info().state.messages == 100
