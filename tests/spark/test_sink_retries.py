"""Tasks of the sink that fail or are killed while they publish: every row once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import jsclient
from jsclient.server import run
from jsclient.stream import Stream
from tests.spark.conftest import ROOT
from tests.spark.readers import since_41
from tests.spark.sink_driver import ROWS

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(180)]


def payloads(stream: Stream) -> Counter[int]:
    count = stream.info().state.messages
    with stream.ordered_consumer().messages(stop_after=count) as messages:
        return Counter(int(msg.data) for msg in messages)


@since_41  # the driver has writers of Arrow batches
def test_failed_and_killed_tasks_with_changed_orders_store_every_row_once(
    no_search: dict[str, str], tmp_path: Path
) -> None:
    with run(jetstream=True) as server, jsclient.connect(server.url) as nc:
        js = nc.jetstream()
        batch = js.create_stream(name="BATCH", subjects=["b.>"], storage="memory")
        # The ids are forgotten between two attempts: only the ledger helps.
        query = js.create_stream(
            name="QUERY", subjects=["q.>"], storage="memory", duplicate_window=0.2
        )
        js.create_stream(name="IN", subjects=["i.>"], storage="memory")
        for _ in js.publish_all(("i.1", b"%d" % (n // 3)) for n in range(10_000)):
            pass
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.sink_driver", server.url, tmp_path],
            cwd=ROOT,
            env={**os.environ, **no_search},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout[-5000:]
        expected = Counter(number - number % 2 for number in range(ROWS))
        assert payloads(batch) == expected
        assert payloads(query) == Counter(n // 3 for n in range(10_000))
        # The attempts had stored rows, else this has shown nothing.
        found = [int(line) for line in (tmp_path / "found").read_text().split()]
        assert len(found) == 2
        assert min(found) > 0
