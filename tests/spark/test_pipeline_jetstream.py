"""Pipelines from and to streams: exact results, lost messages, freed messages."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jsclient
from jsclient.__main__ import main
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.spark.pipeline import run as running
from jsclient.spark.pipeline.report import Report
from jsclient.spark.pipeline.run import run
from jsclient.spark.pipeline.toml import parse
from tests.spark.readers import since_42

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., list[dict[str, Any]]]

ORDERS = 600
PIPELINE = """
[pipeline]
name = "orders"
checkpoint = "checkpoints"

[jetstream]
servers = "${NATS_URL}"

[source.orders]
stream = "ORDERS"
json_schema = "id BIGINT, total BIGINT"
maxRecordsPerTrigger = 250

[transform.lines]
sql = "select sequence, value.* from orders"

[sink.files]
from = "lines"
format = "parquet"
path = "lines"
"""


@pytest.fixture
def run_here(spark: SparkSession, jetstream_server: Server, tmp_path: Path) -> Run:
    """Runs a pipeline once; the result is what it said of each batch."""

    def run_it(text: str = PIPELINE) -> list[dict[str, Any]]:
        screen = io.StringIO()
        env = {"NATS_URL": jetstream_server.url}
        pipeline = parse(text, folder=tmp_path, env=env)
        with Report(None, screen) as report:
            run(spark, pipeline, report, once=True)
        return [json.loads(line) for line in screen.getvalue().splitlines()]

    return run_it


NEWS = """
[transform.big]
sql = '''
  select concat('news.', value.id % 2) as subject, to_json(value) as data
  from orders where value.total >= 50
'''

[sink.news]
from = "big"
stream = "NEWS"
"""
SUMS = """
[transform.sums]
sql = '''
  select concat('sums.', value.id % 2) as subject, string(sum(value.total)) as data
  from orders group by value.id % 2
'''

[sink.sums]
from = "sums"
stream = "SUMS"
output_mode = "update"
"""


def payloads(js: JetStream, name: str) -> list[str]:
    """What a stream holds, in its order."""
    stream = js.stream(name)
    count = stream.info().state.messages
    if not count:
        return []
    with stream.ordered_consumer().messages(stop_after=count) as messages:
        return [msg.data.decode() for msg in messages]


def publish(js: JetStream, first: int, count: int) -> None:
    messages = (
        ("orders.new", json.dumps({"id": n, "total": n % 100}).encode())
        for n in range(first, first + count)
    )
    for ack in js.publish_all(messages):
        assert isinstance(ack, jsclient.PubAck)


def ids(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(folder)).collect())


@since_42
def test_every_message_becomes_one_row_and_the_lag_falls(
    spark: SparkSession, js: JetStream, run_here: Run, tmp_path: Path
) -> None:
    js.create_stream(name="ORDERS", subjects=["orders.*"], storage="memory")
    publish(js, 1, ORDERS)
    said = run_here()
    assert [(line["batch"], line["rows"], line["lag"]) for line in said] == [
        (0, 250, 350),
        (1, 250, 100),
        (2, 100, 0),
    ]
    publish(js, ORDERS + 1, 10)
    assert [line["rows"] for line in run_here()] == [10]
    assert ids(spark, tmp_path / "lines") == list(range(1, ORDERS + 11))


@since_42
def test_rows_are_published_once_and_sums_whenever_they_change(
    js: JetStream, run_here: Run
) -> None:
    js.create_stream(name="ORDERS", subjects=["orders.*"], storage="memory")
    js.create_stream(name="NEWS", subjects=["news.*"], storage="memory")
    js.create_stream(name="SUMS", subjects=["sums.*"], storage="memory")
    publish(js, 1, ORDERS)
    said = run_here(PIPELINE + NEWS + SUMS)
    told = [(line["query"], line["batch"]) for line in said]
    names = ("orders.files", "orders.news", "orders.sums")
    assert sorted(told) == [(name, batch) for name in names for batch in range(3)]
    news = [json.loads(data) for data in payloads(js, "NEWS")]
    assert sorted(order["id"] for order in news) == [
        n for n in range(1, ORDERS + 1) if n % 100 >= 50
    ]
    sums = payloads(js, "SUMS")
    assert len(sums) == 6  # of even and odd ones, after each batch
    assert {int(data) for data in sums[-2:]} == {
        sum(n % 100 for n in range(first, ORDERS + 1, 2)) for first in (1, 2)
    }


@pytest.mark.parametrize("mode", ["stream", "shared", "batch"])
def test_rows_that_a_sink_skips_are_told_with_their_batch(
    js: JetStream,
    spark: SparkSession,
    jetstream_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    js.create_stream(name="ORDERS", subjects=["orders.*"], storage="memory")
    js.create_stream(name="NEWS", subjects=["news.1"], storage="memory")
    publish(js, 1, 100)
    text = PIPELINE.partition("[sink.files]")[0] + NEWS + 'onError = "skip"\n'
    setting = {"shared": "shared = true", "batch": 'mode = "batch"', "stream": ""}[mode]
    file = tmp_path / "orders.toml"
    file.write_text(text.replace("[pipeline]", f"[pipeline]\n{setting}"))
    monkeypatch.setenv("NATS_URL", jetstream_server.url)
    assert main(["pipeline", "run", str(file), "--once"]) == 0
    *lines, last = capsys.readouterr().err.splitlines()
    told = [json.loads(line) for line in lines]
    assert [line["skipped"] for line in told] == [25]
    assert last.startswith("jsclient: 25 rows were refused and skipped")
    assert len(payloads(js, "NEWS")) == 25


def test_a_shared_batch_that_is_done_again_is_published_once(
    spark: SparkSession, js: JetStream, run_here: Run, tmp_path: Path
) -> None:
    js.create_stream(name="ORDERS", subjects=["orders.*"], storage="memory")
    js.create_stream(name="NEWS", subjects=["news.*"], storage="memory")
    publish(js, 1, 100)
    text = (PIPELINE + NEWS).replace("[pipeline]", "[pipeline]\nshared = true")
    # The very same rows a second time: they are not taken for the first.
    text += '[sink.again]\nfrom = "big"\nstream = "NEWS"\nexactlyOnce = "ledger"\n'
    assert [line["rows"] for line in run_here(text)] == [100]
    before = sorted(payloads(js, "NEWS"))
    assert len(before) == 100  # fifty, by two sinks
    for file in (tmp_path / "checkpoints" / "_shared" / "commits").glob("*0*"):
        file.unlink()
    assert [line["rows"] for line in run_here(text)] == [100]
    assert sorted(payloads(js, "NEWS")) == before
    assert ids(spark, tmp_path / "lines") == list(range(1, 101))


def test_lost_messages_end_the_command_with_their_range_and_a_status_of_their_own(
    spark: SparkSession,
    js: JetStream,
    run_here: Run,
    tmp_path: Path,
    jetstream_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = js.create_stream(name="ORDERS", subjects=["orders.*"], storage="memory")
    publish(js, 1, 100)
    run_here()
    publish(js, 101, 100)
    stream.purge(sequence=151)
    file = tmp_path / "orders.toml"
    file.write_text(PIPELINE)
    monkeypatch.setenv("NATS_URL", jetstream_server.url)
    assert main(["pipeline", "run", str(file), "--once"]) == 3
    assert capsys.readouterr().err.startswith(
        "jsclient: DATA_LOSS: stream 'ORDERS': messages 101..150 are gone"
    )
    careless = PIPELINE.replace("maxRecords", "failOnDataLoss = false\nmaxRecords")
    assert [line["rows"] for line in run_here(careless)] == [50]


@since_42
def test_a_clean_end_frees_the_last_batch_of_a_work_queue_too(
    spark: SparkSession, js: JetStream, run_here: Run, tmp_path: Path
) -> None:
    stream = js.create_stream(
        name="ORDERS",
        subjects=["orders.*"],
        retention="workqueue",
        allow_direct=True,
        storage="memory",
    )
    publish(js, 1, ORDERS)
    text = PIPELINE.replace("[source.orders]", '[source.orders]\nconsume = "purge"')
    assert [line["rows"] for line in run_here(text)] == [250, 250, 100]
    assert stream.info().state.messages == 0
    assert ids(spark, tmp_path / "lines") == list(range(1, ORDERS + 1))
    assert run_here(text) == []


@since_42
def test_what_a_run_could_not_free_any_more_is_freed_by_the_next(
    spark: SparkSession,
    js: JetStream,
    run_here: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = js.create_stream(
        name="ORDERS",
        subjects=["orders.*"],
        retention="workqueue",
        allow_direct=True,
        storage="memory",
    )
    publish(js, 1, 100)
    text = PIPELINE.replace("[source.orders]", '[source.orders]\nconsume = "purge"')
    with monkeypatch.context() as killed:
        killed.setattr(running, "_free_last", lambda *given: None)
        assert [line["rows"] for line in run_here(text)] == [100]
    assert stream.info().state.messages == 100
    assert run_here(text) == []
    assert stream.info().state.messages == 0
