"""Drivers that are killed in the middle of a batch, and what they tell of secrets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import jsclient
from jsclient.server import run
from tests.spark.conftest import ROOT
from tests.spark.readers import fill, made, since_42

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

MANY = 200_000
PATIENCE = 120.0
Driver = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def driver(spark_environment: dict[str, str], tmp_path: Path) -> Iterator[Driver]:
    """Starts drivers in process groups of their own; none is left at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *queries: dict[str, Any], env: dict[str, str] | None = None, **conf: Any
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.spark.driver", json.dumps(conf)]
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [*command, str(tmp_path), *map(json.dumps, queries)],
                cwd=ROOT,
                env={**os.environ, **spark_environment, **(env or {})},
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """Kills a driver with its JVM and all its workers."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last(folder: Path) -> int:
    """The highest batch in a log of the checkpoint."""
    names = [path.name for path in folder.glob("*") if path.name.isdecimal()]
    return max(map(int, names), default=-1)


def kill_within_a_batch(
    process: subprocess.Popen[str], checkpoint: Path, *, after: int
) -> int:
    """Kills it when a batch is planned and not committed; which one that was."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, "the driver has ended by itself"
        assert time.monotonic() < deadline, "the driver came to no such batch"
        planned = last(checkpoint / "offsets")
        if planned >= after and last(checkpoint / "commits") < planned:
            break
        time.sleep(0.005)  # files tell nobody that they are there
    kill(process)
    return planned


@since_42  # before, there is but one batch to be killed in
def test_a_driver_that_is_killed_within_batches_loses_and_doubles_nothing(
    spark: SparkSession, driver: Driver, tmp_path: Path
) -> None:
    with run(jetstream=True) as server:
        with jsclient.connect(server.url) as nc:
            js = nc.jetstream()
            made(js)
            fill(js, MANY, data=b"%d")
        options = {
            "servers": server.url,
            "stream": "S",
            "maxRecordsPerTrigger": "20000",
            "recordsPerPartition": "10000",
        }
        checkpoint = tmp_path / "checkpoint"
        cut = kill_within_a_batch(driver(options), checkpoint, after=3)
        assert cut < 9, "the query was nearly over"
        process = driver(options)
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    assert last(checkpoint / "commits") == 9
    found = spark.read.parquet(str(tmp_path / "out"))
    (row,) = found.selectExpr(
        "count(*) AS n",
        "count(distinct sequence) AS different",
        "sum(cast(cast(data as string) as bigint)) AS total",
    ).collect()
    assert tuple(row) == (MANY, MANY, MANY * (MANY - 1) // 2)


@since_42  # before, there is but one batch to be killed before
def test_a_driver_that_is_killed_before_it_notes_a_batch_loses_and_doubles_nothing(
    spark: SparkSession, driver: Driver, tmp_path: Path
) -> None:
    count, size, file = 3000, 1000, tmp_path / "held"
    env = {"HELD_AT": str(2 * size + 1), "HELD_FILE": str(file)}
    with run(jetstream=True) as server:
        with jsclient.connect(server.url) as nc:
            js = nc.jetstream()
            made(js)
            fill(js, count)
            options = {"servers": server.url, "stream": "S"}
            options["maxRecordsPerTrigger"] = str(size)
            process = driver({**options, "format": "held"}, env=env)
            deadline = time.monotonic() + PATIENCE
            while not file.exists():  # files tell nobody that they are there
                assert process.poll() is None, "the driver has ended by itself"
                assert time.monotonic() < deadline, "no third batch was planned"
                time.sleep(0.005)
            kill(process)
            # Two batches are done, and nothing is noted of the one that was planned.
            checkpoint = tmp_path / "checkpoint"
            assert last(checkpoint / "offsets") == last(checkpoint / "commits") == 1
            # The third is planned anew, with what has come since.
            fill(js, size)
        process = driver(options)
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    assert last(checkpoint / "commits") == 3
    rows = spark.read.parquet(str(tmp_path / "out")).select("sequence").collect()
    assert sorted(row.sequence for row in rows) == list(range(1, count + size + 1))


@since_42  # before, there is but one batch to be killed in
def test_a_driver_that_is_killed_while_it_publishes_stores_every_row_once(
    driver: Driver, tmp_path: Path
) -> None:
    count, size = 30_000, 10_000
    with run(jetstream=True) as server, jsclient.connect(server.url) as nc:
        js = nc.jetstream()
        made(js)
        fill(js, count, data=b"%d")
        # By the time of the next start it has forgotten all ids: the ledger knows them.
        out = made(js, "OUT", subjects=["out"], duplicate_window=0.2)
        sink = {"stream": "OUT", "subject": "out", "exactlyOnce": "ledger"}
        options = {
            "servers": server.url,
            "stream": "S",
            "maxRecordsPerTrigger": str(size),
            "recordsPerPartition": str(size // 2),
            "sink": {"servers": server.url, **sink},
        }
        rows = nc.subscribe("out")
        stored, wanted = 0, size + 500  # so the second batch is in the middle
        # A batch that was whole before the signal came shows little: then once more.
        while stored % size == 0:
            assert stored < count, "no batch was cut"
            cut = driver(options)
            for _ in range(wanted):
                rows.next(PATIENCE)
            kill(cut)
            stored, wanted = out.info().state.messages, 500
        rows.unsubscribe()
        process = driver(options)
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
        with out.ordered_consumer().messages(
            stop_after=out.info().state.messages
        ) as messages:
            found = sorted(int(msg.data) for msg in messages)
    assert found == list(range(count))


def test_no_secret_is_told_anywhere(driver: Driver, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    with run(jetstream=True, users={"u": "hidden-password"}) as server:
        url = f"nats://127.0.0.1:{server.port}"
        with jsclient.connect(url, user="u", password="hidden-password") as nc:
            js = nc.jetstream()
            made(js)
            fill(js, 10)
            out = made(js, "OUT", subjects=["out"])
            options = {"servers": url, "stream": "S", "user": "u"}
            right = {**options, "password": "hidden-password"}
            wrong = {**options, "password": "hidden-mistake"}
            sink = {"stream": "OUT", "subject": "out"}
            process = driver(
                right,
                wrong,
                {**right, "at": "one", "sink": {**right, **sink}},
                {**right, "at": "two", "sink": {**wrong, **sink}},
                **conf,
            )
            assert process.wait(PATIENCE) == 2
            assert out.info().state.messages == 10
    log = (tmp_path / "log").read_text()
    assert len(re.findall("OptionError: option servers: .*check user", log)) >= 2
    assert len(re.findall(r'"numInputRows" ?: ?10\b', log)) >= 2
    told = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in told if path.is_relative_to(events)]
    for path in told:
        assert not re.search(rb"hidden", path.read_bytes()), path
