"""The source as Spark 4.1 calls it: the start of a batch is not told to the source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.spark import connecting
from jsclient.spark.errors import DataLossError
from tests.spark.readers import SEQUENCE, Readers, between, fill, made

pytestmark = pytest.mark.live


@pytest.fixture
def readers(jetstream_server: Server, js: JetStream) -> Iterator[Readers]:
    yield Readers(jetstream_server.url)
    connecting.close_all()


def test_available_now_is_one_batch_of_all_whatever_the_limit(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 10)
    reader = readers.stream(SEQUENCE, maxRecordsPerTrigger=3)
    end = reader.latestOffset()  # before anything else
    assert between(reader, reader.initialOffset(), end) == list(range(1, 11))
    fill(js, 10)
    again = readers.stream(SEQUENCE, maxRecordsPerTrigger=3)
    # A new process is told where the query is by a batch of nothing.
    assert between(again, end, end) == []
    assert between(again, end, again.latestOffset()) == list(range(11, 21))


def test_a_query_is_limited_after_its_first_batch(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 10)
    reader = readers.stream(SEQUENCE, maxRecordsPerTrigger=3)
    first = reader.latestOffset()
    assert between(reader, reader.initialOffset(), first) == list(range(1, 11))
    assert reader.latestOffset() == first
    fill(js, 5)
    second = reader.latestOffset()
    assert between(reader, first, second) == [11, 12, 13]
    assert between(reader, second, reader.latestOffset()) == [14, 15]


def test_messages_of_the_first_batch_may_be_gone_after_it(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js)
    fill(js, 10)
    reader = readers.stream(SEQUENCE)
    done = reader.latestOffset()
    assert between(reader, reader.initialOffset(), done) == list(range(1, 11))
    fill(js, 10)
    stream.purge(sequence=11)
    again = readers.stream(SEQUENCE)
    end = again.latestOffset()
    assert between(again, done, done) == []
    assert between(again, done, end) == list(range(11, 21))


@pytest.mark.parametrize("is_made_again", [False, True])
def test_what_is_lost_is_found_out_when_the_start_is_told(
    js: JetStream, readers: Readers, is_made_again: bool
) -> None:
    stream = made(js)
    fill(js, 10)
    reader = readers.stream(SEQUENCE)
    done = reader.latestOffset()
    if is_made_again:
        stream.delete()
        made(js)
        fill(js, 5)
        left = [1, 2, 3, 4, 5]
    else:
        fill(js, 10)
        stream.purge(sequence=16)
        left = [16, 17, 18, 19, 20]
    strict = readers.stream(SEQUENCE)
    end = strict.latestOffset()
    with pytest.raises(DataLossError, match="DATA_LOSS"):
        strict.partitions(done, end)
    careless = readers.stream(SEQUENCE, failOnDataLoss=False)
    assert between(careless, done, careless.latestOffset()) == left
