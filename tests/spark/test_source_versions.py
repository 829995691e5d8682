"""Other releases of the server, which cannot do all that the newest can."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.spark import connecting
from tests.harness.streams import lent_jetstream
from tests.live.test_versions import VERSIONS, fetched
from tests.spark.readers import Readers, fill, made, since_42
from tests.spark.test_source_freeing import run_query

pytestmark = pytest.mark.live


@pytest.fixture(params=VERSIONS, scope="module")
def old(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of another release."""
    with run(jetstream=True, binary=fetched(request.param)) as running:
        yield running


@pytest.fixture
def js(old: Server) -> Iterator[JetStream]:
    with lent_jetstream(old.url) as context:
        yield context
    connecting.close_all()


@since_42
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_streams_are_read_whole(old: Server, js: JetStream, retention: str) -> None:
    stream = made(js, retention=retention)
    fill(js, 300)
    stream.delete_msg(100)
    readers = Readers(old.url)
    expected = [n for n in range(1, 301) if n != 100]
    assert readers.seqs(recordsPerPartition=100) == expected
    assert readers.seqs(subject="s.1") == [n for n in expected if n % 4 == 2]
    found, _ = run_query(readers, subject="s.1,s.2", maxRecordsPerTrigger=40)
    assert sum(map(len, found)) == 150


def test_a_time_is_a_place(old: Server, js: JetStream) -> None:
    made(js)
    fill(js, 5)
    time.sleep(0.01)
    middle = dt.datetime.now(dt.timezone.utc).isoformat()
    time.sleep(0.01)
    fill(js, 5)
    assert Readers(old.url).seqs(startingTimestamp=middle) == [6, 7, 8, 9, 10]
    late = (dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)).isoformat()
    assert len(Readers(old.url).seqs(endingTimestamp=late)) == 10


@since_42
def test_an_interest_stream_is_freed(old: Server, js: JetStream) -> None:
    stream = made(js, retention="interest")
    options = {"consume": "reset", "anchor": "a", "maxRecordsPerTrigger": 30}
    readers = Readers(old.url)
    readers.stream(**options).initialOffset()
    fill(js, 100)
    found, _ = run_query(readers, **options)
    assert sum(map(len, found)) == 100
    assert stream.info().state.first_seq == 91
