"""A server that dies in the middle of a batch: its tasks go on with the next one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import jsclient
from jsclient.server import run
from jsclient.spark import write
from tests.spark.readers import fill, made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(180)]

COUNT = 50_000


@pytest.mark.parametrize("mode", ["direct", "consumer"])
def test_a_server_that_is_killed_in_a_batch_loses_and_doubles_nothing(
    spark: SparkSession, mode: str
) -> None:
    with run(jetstream=True) as server, jsclient.connect(server.url) as nc:
        js = nc.jetstream(timeout=60.0)
        made(js, storage="file")
        fill(js, COUNT, data=b"%0200d")
        out = made(js, "OUT", subjects=["out"], storage="file")
        # Small pieces, so that much is still to be read when much was published.
        pieces = {"numPartitions": "1", "fetchSize": "1000", "maxFetchBytes": "256k"}
        source = spark.read.format("jetstream").options(**pieces)
        frame = source.options(servers=server.url, stream="S", readMode=mode).load()

        rows = nc.subscribe("out")

        def restart_within() -> None:
            for _ in range(1000):
                rows.next(timeout=120.0)
            server.kill()
            server.restart()
            rows.unsubscribe()

        with ThreadPoolExecutor(1) as thread:
            restarted = thread.submit(restart_within)
            # A task has but one attempt here.
            write(frame.select("data"), "OUT", subject="out", servers=server.url)
            restarted.result()
        assert out.info().state.messages == COUNT
        with out.ordered_consumer().messages(stop_after=COUNT) as messages:
            found = sorted(int(msg.data) for msg in messages)
    assert found == list(range(COUNT))
