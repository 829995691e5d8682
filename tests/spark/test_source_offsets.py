"""What the driver of a query plans: offsets, limits, partitions, and what is lost."""

from __future__ import annotations

import datetime as dt
import json
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark before 4.2")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.spark import connecting
from jsclient.spark.errors import DataLossError, OptionError
from jsclient.spark.offsets import split
from jsclient.spark.planning import farthest
from jsclient.spark.source import LowLatencyReader
from jsclient.spark.stream import search_time
from tests.spark.readers import SEQUENCE, Readers, between, fill, made

pytestmark = pytest.mark.live


@pytest.fixture
def readers(jetstream_server: Server, js: JetStream) -> Iterator[Readers]:
    yield Readers(jetstream_server.url)
    connecting.close_all()


def batches(readers: Readers, start: Any = None, **options: Any) -> list[Any]:
    """The micro-batches of an AvailableNow query, each by its sequences."""
    reader = readers.stream(SEQUENCE, **options)
    reader.prepareForTriggerAvailableNow()
    found = []
    position = reader.initialOffset() if start is None else start
    while (end := reader.latestOffset(position, reader.getDefaultReadLimit())) != (
        position
    ):
        found.append(between(reader, position, end))
        position = end
    return found


# Where a query starts and ends --------------------------------------------------------


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 50))
def test_parts_cover_a_range_evenly(start: int, size: int, parts: int) -> None:
    found = split(start, start + size, parts)
    assert [n for lo, hi in found for n in range(lo, hi)] == list(
        range(start, start + size)
    )
    sizes = [hi - lo for lo, hi in found]
    assert len(found) == min(parts, size)
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (11, 40)),
        ({"startingOffsets": "earliest"}, (11, 40)),
        ({"startingOffsets": "LATEST"}, (41, 40)),
        ({"startingOffsets": "12"}, (12, 40)),
        ({"startingOffsets": "41"}, (41, 40)),
        ({"endingOffsets": "20"}, (11, 19)),
        ({"endingOffsets": "latest", "startingOffsets": "39"}, (39, 40)),
    ],
)
def test_a_batch_starts_and_ends_where_its_options_say(
    js: JetStream, readers: Readers, options: dict[str, str], expected: tuple[int, int]
) -> None:
    stream = made(js)
    fill(js, 40)
    stream.purge(sequence=11)
    assert readers.seqs(**options) == list(range(expected[0], expected[1] + 1))


def test_times_are_where_the_first_message_is_not_older(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js)
    fill(js, 5)
    time.sleep(0.01)
    middle = dt.datetime.now(dt.timezone.utc)
    time.sleep(0.01)
    fill(js, 5)
    exact = stream.get_msg(4).timestamp
    assert exact is not None
    millis = str(int(middle.timestamp() * 1000))
    local = middle.astimezone(dt.timezone(dt.timedelta(hours=5))).isoformat()
    naive = middle.replace(tzinfo=None).isoformat()
    for moment in (millis, middle.isoformat(), local, naive):
        assert readers.seqs(startingTimestamp=moment) == [6, 7, 8, 9, 10]
        assert readers.seqs(endingTimestamp=moment) == [1, 2, 3, 4, 5]
    late = (middle + dt.timedelta(hours=1)).isoformat()
    assert readers.seqs(endingTimestamp=late) == list(range(1, 11))
    with pytest.raises(OptionError, match="option startingTimestamp: no message"):
        readers.seqs(startingTimestamp=late)
    wait = {"startingTimestamp": late, "startingTimestampStrategy": "latest"}
    assert readers.seqs(**wait) == []
    assert readers.stream(**wait).initialOffset()["next"] == 11


def test_the_json_of_an_offset_is_a_place(js: JetStream, readers: Readers) -> None:
    made(js)
    fill(js, 20)
    reader = readers.stream(maxRecordsPerTrigger=5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(5))
    text = json.dumps(end)
    assert readers.seqs(startingOffsets=text) == list(range(6, 21))
    assert readers.seqs(endingOffsets=text) == list(range(1, 6))
    assert end == {**start, "next": 6, "parts": 1}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("yesterday", "earliest, latest, a sequence"),
        ("0", "a sequence from 1 on"),
        ("-5", "a sequence from 1 on"),
        ("22", "too far: the stream ends at 20"),
        ("{", "no JSON"),
        ('{"stream": "T"}', "of stream 'T', not 'S'"),
        ('{"stream": "S", "next": 1}', "created"),
        ('{"stream": "S", "created": "x", "next": 0}', "at least 1"),
        ('{"stream": "S", "created": "x", "next": 1}', "was created at x"),
        ('{"v": 2, "stream": "S", "created": "x", "next": 1}', "version 2"),
    ],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_bad_offset_is_refused_by_its_option(
    js: JetStream, readers: Readers, option: str, value: str, says: str
) -> None:
    made(js)
    fill(js, 20)
    with pytest.raises(OptionError, match=says) as caught:
        readers.batch(**{option: value}).partitions()
    assert caught.value.option == option


def test_an_end_before_the_start_is_refused_by_its_option(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js)
    fill(js, 20)
    with pytest.raises(OptionError, match=r"endingOffsets: it means 10, .* at 20"):
        readers.seqs(startingOffsets="20", endingOffsets="10")
    with pytest.raises(OptionError, match=r"endingTimestamp: it means 1, .* at 20"):
        readers.seqs(startingOffsets="20", endingTimestamp="1000")
    assert readers.seqs(startingOffsets="10", endingOffsets="10") == []
    # Without a start it is the first message, which may have passed the end.
    stream.purge(sequence=15)
    assert readers.seqs(endingOffsets="10") == []


@pytest.mark.parametrize(
    "fields", [{}, {"allow_direct": False}, {"retention": "workqueue"}]
)
def test_a_time_is_found_on_servers_that_do_not_look_for_it(
    js: JetStream, fields: dict[str, Any]
) -> None:
    stream = made(js, **fields)
    early = dt.datetime.now(dt.timezone.utc)
    assert search_time(stream, early) is None
    for _ in range(20):
        fill(js, 1)
        time.sleep(0.002)  # so that no two have the same time
    for seq in (1, 2, 7, 8, 12, 20):
        stream.delete_msg(seq)
    assert search_time(stream, early) == 3
    for seq, found in ((3, 3), (6, 6), (13, 13), (19, 19)):
        moment = stream.get_msg(seq).timestamp
        assert moment is not None
        assert search_time(stream, moment) == found
        after = moment + dt.timedelta(microseconds=1)
        assert search_time(stream, after) == {3: 4, 6: 9, 13: 14, 19: None}[seq]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"stream": "NOWHERE"}, "stream"),
        ({"endingOffsets": "5"}, "endingOffsets"),
        ({"startingTimestamp": "soon"}, "startingTimestamp"),
        ({"servers": "nats://127.0.0.1:1", "connectTimeout": "1s"}, "servers"),
        ({"consume": "purge"}, "consume"),
        ({"domain": "nowhere", "requestTimeout": "1s"}, "servers"),
    ],
)
def test_a_stream_query_names_the_option_that_is_wrong(
    js: JetStream, readers: Readers, options: dict[str, str], option: str
) -> None:
    made(js)
    with pytest.raises(OptionError) as caught:
        readers.stream(**options).initialOffset()
    assert caught.value.option == option


def test_a_batch_does_not_free_messages(js: JetStream, readers: Readers) -> None:
    made(js, retention="workqueue")
    with pytest.raises(OptionError, match="only streaming queries"):
        readers.batch(consume="purge").partitions()


# Micro-batches ------------------------------------------------------------------------


def test_micro_batches_follow_each_other_to_the_end(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 25)
    found = batches(readers, maxRecordsPerTrigger=10)
    assert found == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)]]
    assert batches(readers) == [[*range(1, 26)]]


def test_available_now_ends_where_the_stream_did(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 10)
    reader = readers.stream(maxRecordsPerTrigger=6)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(js, 10)
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(start, limit)
    second = reader.latestOffset(first, limit)
    assert (first["next"], second["next"]) == (7, 11)
    assert reader.latestOffset(second, limit) is second
    assert (reader.reportLatestOffset() or {})["next"] == 21


def test_a_trigger_of_once_has_no_limit(js: JetStream, readers: Readers) -> None:
    made(js)
    fill(js, 30)
    reader = readers.stream(maxRecordsPerTrigger=10)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["next"] == 31


def test_bytes_are_limited_by_the_mean_size(js: JetStream, readers: Readers) -> None:
    stream = made(js)
    fill(js, 100, data=b"%0200d")
    state = stream.info().state
    size = state.bytes // state.messages
    found = batches(readers, maxBytesPerTrigger=10 * size)
    assert [len(one) for one in found] == [10] * 10


def test_batches_on_the_driver_are_small_unless_a_limit_says_otherwise(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 12_000)

    def sizes(**options: Any) -> list[int]:
        reader = LowLatencyReader(readers.given(options), SEQUENCE)
        reader.prepareForTriggerAvailableNow()
        position = reader.initialOffset()
        found: list[int] = []
        while True:
            rows, end = reader.read(position)
            if end == position:
                return found
            found.append(sum(one.num_rows for one in rows))
            position = end

    assert sizes() == [10_000, 2000]
    assert sizes(maxRecordsPerTrigger=11_000) == [11_000, 1000]


def test_few_messages_wait_for_more_or_for_their_time(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 9)
    reader = readers.stream(minRecordsPerTrigger=10, maxTriggerDelay="1h")
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) is start
    fill(js, 1)
    assert reader.latestOffset(start, limit)["next"] == 11
    soon = readers.stream(minRecordsPerTrigger=100, maxTriggerDelay="1ms")
    begin = soon.initialOffset()
    time.sleep(0.002)
    assert soon.latestOffset(begin, limit)["next"] == 11
    # AvailableNow would wait for ever.
    assert batches(readers, minRecordsPerTrigger=100) == [list(range(1, 11))]


@pytest.mark.parametrize("direct", [True, False])
def test_a_filter_makes_no_empty_batches_and_scales_the_limit(
    js: JetStream, readers: Readers, direct: bool
) -> None:
    made(js, allow_direct=direct)
    fill(js, 400, subjects=20)
    options = {"subject": "s.3,s.5", "maxRecordsPerTrigger": 10}
    found = batches(readers, **options)
    assert all(found)
    expected = [n + 1 for n in range(400) if n % 20 in (3, 5)]
    assert [seq for one in found for seq in one] == expected
    assert [len(one) for one in found] == [10, 10, 10, 10]
    assert batches(readers, subject="nobody.*") == []
    reader = readers.stream(subject="nobody")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) is start


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("places", [range(100), range(900, 1000), range(450, 550)])
def test_a_limit_holds_where_messages_of_a_filter_come_together(
    js: JetStream, readers: Readers, direct: bool, places: range
) -> None:
    made(js, allow_direct=direct)
    subjects = ("s.mine" if n in places else "s.other" for n in range(1000))
    for _ in js.publish_all((subject, b"") for subject in subjects):
        pass
    found = batches(readers, subject="s.mine", maxRecordsPerTrigger=10)
    assert [seq for one in found for seq in one] == [n + 1 for n in places]
    assert max(map(len, found)) <= 10
    assert len(found) <= 12


@given(st.lists(st.integers(1, 300), min_size=1, unique=True), st.integers(1, 50))
def test_a_batch_is_nearly_as_full_as_it_may_be(seqs: list[int], most: int) -> None:
    seqs.sort()
    asked = []

    def count_before(place: int) -> int:
        asked.append(place)
        return bisect_left(seqs, place)

    if len(seqs) > most:
        end = farthest(count_before, seqs[0], 301, len(seqs), most)
        assert seqs[0] < end <= seqs[most]
        assert bisect_left(seqs, end) >= 0.9 * most or end == seqs[most]
        assert len(asked) <= 20


def test_what_a_filter_passed_over_is_no_loss(js: JetStream, readers: Readers) -> None:
    stream = made(js)
    fill(js, 100)
    reader = readers.stream(SEQUENCE, subject="s.x")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    stream.purge()
    # From here on only the offset knows that nothing of ours is gone.
    passed = reader.latestOffset(start, ReadAllAvailable())
    assert between(reader, start, passed) == []
    fill(js, 100)
    stream.purge(sequence=101)
    again = readers.stream(SEQUENCE, subject="s.x")
    assert again.latestOffset(passed, ReadAllAvailable()) == {
        **passed,
        "next": 201,
        "origin": 201,
    }
    js.publish("s.x", b"")
    end = again.latestOffset(passed, ReadAllAvailable())
    assert between(again, passed, end) == [201]


def test_a_filter_that_has_passed_everything_asks_for_nothing(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 10)
    reader = readers.stream(SEQUENCE, subject="s.x,s.y,s.z")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    connection = connecting.connection(reader._source.options.connection)
    before = connection.stats().out_msgs
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    assert connection.stats().out_msgs == before + 1  # for the state of the stream


def test_partitions_are_as_the_options_say(js: JetStream, readers: Readers) -> None:
    made(js)
    fill(js, 100)

    def count(**options: Any) -> int:
        return len(readers.batch(**options).partitions())

    assert count() == 1
    assert count(recordsPerPartition=30) == 4
    assert count(recordsPerPartition=30, numPartitions=2) == 2
    assert count(recordsPerPartition=1, numPartitions=1000) == 100
    assert count(startingOffsets="latest") == 1


# Replays ------------------------------------------------------------------------------


def test_a_batch_is_planned_again_as_it_was(js: JetStream, readers: Readers) -> None:
    made(js)
    fill(js, 100)
    reader = readers.stream(SEQUENCE, numPartitions=4, recordsPerPartition=10)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    fill(js, 100)
    again = readers.stream(SEQUENCE, numPartitions=7, recordsPerPartition=5)
    assert again.partitions(again.initialOffset(), end) == parts
    assert between(again, start, end) == list(range(1, 101))


def test_latest_means_the_first_answer_even_after_a_restart(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 10)
    reader = readers.stream(SEQUENCE, startingOffsets="latest")
    start = reader.initialOffset()
    fill(js, 10)
    assert reader.initialOffset() == start
    end = reader.latestOffset(start, ReadAllAvailable())
    fill(js, 10)
    again = readers.stream(SEQUENCE, startingOffsets="latest")
    assert between(again, again.initialOffset(), end) == list(range(11, 21))
    after = again.latestOffset(end, ReadAllAvailable())
    assert between(again, end, after) == list(range(21, 31))


def test_an_offset_of_another_stream_is_refused(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    reader = readers.stream()
    other = {**reader.initialOffset(), "stream": "T"}
    with pytest.raises(OptionError, match=r"checkpointLocation.*of stream 'T'"):
        reader.latestOffset(other, ReadAllAvailable())
    with pytest.raises(OptionError, match="checkpointLocation"):
        reader.partitions(other, other)


# Losses -------------------------------------------------------------------------------


def test_purged_messages_are_a_loss_with_their_range(
    js: JetStream, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made(js)
    fill(js, 200)
    reader = readers.stream(maxRecordsPerTrigger=100)
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    stream.purge(sequence=151)
    for _ in range(2):
        with pytest.raises(
            DataLossError, match=r"DATA_LOSS.*101\.\.150 are gone \(first_seq=151\)"
        ):
            readers.stream().latestOffset(start, ReadAllAvailable())
    with caplog.at_level("WARNING", "jsclient"):
        assert batches(readers, start, failOnDataLoss="false") == [[*range(151, 201)]]
    (warning,) = caplog.messages
    assert "101..150 are gone" in warning
    stream.purge()
    assert batches(readers, start, failOnDataLoss="false") == [[]]
    fill(js, 5)
    assert batches(readers, start, failOnDataLoss="false") == [[*range(201, 206)]]


def test_a_loss_under_a_planned_batch_is_found_when_it_is_done_again(
    js: JetStream, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made(js)
    fill(js, 100)
    reader = readers.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    stream.purge(sequence=31)
    with pytest.raises(DataLossError, match=r"messages 1\.\.30 are gone"):
        readers.stream().partitions(start, end)
    calm = readers.stream(SEQUENCE, failOnDataLoss="false")
    with caplog.at_level("WARNING", "jsclient"):
        assert between(calm, start, end) == list(range(31, 101))
    (warning,) = caplog.messages
    assert "1..30 are gone" in warning


def test_a_loss_under_the_start_of_a_batch_is_told(
    js: JetStream, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made(js)
    fill(js, 20)
    stream.purge(sequence=11)
    with pytest.raises(DataLossError, match=r"messages 5\.\.10 are gone"):
        readers.seqs(startingOffsets="5")
    with caplog.at_level("WARNING", "jsclient"):
        found = readers.seqs(startingOffsets="5", failOnDataLoss="false")
    assert found == list(range(11, 21))
    (warning,) = caplog.messages
    assert "5..10 are gone" in warning


def test_a_filter_on_a_stream_that_was_made_again_warns_once(
    js: JetStream, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    made(js)
    fill(js, 10)
    options = {"subject": "s.x", "failOnDataLoss": "false"}
    start = readers.stream(**options).initialOffset()
    js.delete_stream("S")
    made(js)
    fill(js, 20)
    with caplog.at_level("WARNING", "jsclient"):
        assert batches(readers, start, **options) == [[]]
    assert len(caplog.messages) == 1


def test_a_stream_that_was_made_again_is_a_loss(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 10)
    reader = readers.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    js.delete_stream("S")
    made(js)
    fill(js, 20)
    with pytest.raises(DataLossError, match="was deleted and made again"):
        readers.stream().latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossError, match="was deleted and made again"):
        readers.stream().partitions(start, end)
    calm = {"failOnDataLoss": "false"}
    assert batches(readers, end, **calm) == [list(range(1, 21))]
    # A batch of the old stream that is done again has nothing left.
    assert between(readers.stream(SEQUENCE, **calm), start, end) == []


def test_holes_are_no_loss(js: JetStream, readers: Readers) -> None:
    stream = made(js)
    fill(js, 20)
    reader = readers.stream(maxRecordsPerTrigger=5)
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
    for seq in range(6, 12):
        stream.delete_msg(seq)
    assert batches(readers, start) == [list(range(12, 21))]


def test_an_end_that_the_server_has_lost_is_a_loss(
    js: JetStream, readers: Readers
) -> None:
    made(js)
    fill(js, 20)
    reader = readers.stream(SEQUENCE)
    start = reader.initialOffset()
    # As after a server that crashed before it had written its last messages.
    end = {**start, "next": 31, "parts": 1}
    says = r"ends at 20, but it had messages up to 30: the server has lost 21\.\.30"
    with pytest.raises(DataLossError, match=says):
        readers.stream().partitions(start, end)
    with pytest.raises(DataLossError, match=says):
        readers.stream().latestOffset(end, ReadAllAvailable())
    calm = readers.stream(SEQUENCE, failOnDataLoss="false")
    assert between(calm, start, end) == list(range(1, 21))
    fill(js, 5)
    assert batches(readers, end, failOnDataLoss="false") == [[]]
    fill(js, 1)
    assert batches(readers, {**start, "next": 26}) == [[26]]
