"""The calls that save words: their keywords are the options, mistakes are told."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import jsclient.spark
from jsclient.spark import OptionError
from jsclient.spark import frames as calls
from jsclient.spark.options import (
    ConnectionOptions,
    SinkOptions,
    SourceOptions,
    table,
)
from jsclient.spark.progress import lag_of
from tests.spark.readers import since_42

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_PARAMETERS = {
    *("stream", "subject"),
    *("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
}


@pytest.mark.parametrize(
    ("keywords", "part"),
    [(calls.ReadKeywords, SourceOptions), (calls.WriteKeywords, SinkOptions)],
)
def test_every_option_is_a_keyword_or_a_parameter(
    keywords: type[Any], part: type[Any]
) -> None:
    named = set(keywords.__annotations__) | set(
        calls.ConnectionKeywords.__annotations__
    )
    known = {row.name for each in (ConnectionOptions, part) for row in table(each)}
    assert named == known - OF_PARAMETERS


@pytest.mark.parametrize(
    ("place", "option"),
    [
        (17, ("startingOffsets", "17")),
        ("latest", ("startingOffsets", "latest")),
        ('{"stream": "2026-T"}', ("startingOffsets", '{"stream": "2026-T"}')),
        ("2026-11-01T00:00:00Z", ("startingTimestamp", "2026-11-01T00:00:00Z")),
        (
            datetime(2026, 11, 1, tzinfo=timezone.utc),
            ("startingTimestamp", "2026-11-01T00:00:00+00:00"),
        ),
    ],
)
def test_a_place_is_a_sequence_a_word_or_a_time(
    place: int | str | datetime, option: tuple[str, str]
) -> None:
    assert calls._place("starting", place) == dict([option])


def test_a_mistake_is_told_at_the_call(spark: SparkSession) -> None:
    frame = spark.range(1)
    with pytest.raises(OptionError, match="numPartitons: there is no such option"):
        jsclient.spark.read(spark, "S", numPartitons=2)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="option stream: "):
        jsclient.spark.read_stream(spark, "no.name")
    with pytest.raises(OptionError, match="option dedup: it must be one of"):
        jsclient.spark.write(frame, dedup="maybe")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="option subject: "):
        jsclient.spark.write_stream(frame, subject="a.*", checkpoint="x")


def test_payloads_become_a_struct_and_null_if_they_are_no_json(
    spark: SparkSession,
) -> None:
    rows = [(bytearray(b'{"id": 7, "total": 1.5}'),), (bytearray(b"what?"),)]
    frame = spark.createDataFrame(rows, "data BINARY")
    parsed = jsclient.spark.from_json(frame, "id BIGINT, total DOUBLE", into="order")
    assert parsed.columns == ["data", "order"]
    values = parsed.select("order.id", "order.total").collect()
    assert [tuple(row) for row in values] == [(7, 1.5), (None, None)]


def offsets(end: str | None, latest: str | None) -> SimpleNamespace:
    return SimpleNamespace(endOffset=end, latestOffset=latest)


@since_42
@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([('{"next": 10}', '{"next": 15}')], 5),
        ([('{"next": 10}', '{"next": 10}'), ('{"next": 1}', '{"next": 3}')], 2),
        ([('{"next": 10}', None)], None),
        ([('{"next": 10, "parts": 1}', '{"next": 10, "parts": 1}')], None),
        ([("{'next': 10}", "{'next': 15}")], 5),
        ([("7", "9")], None),
        ([("[1]", "{")], None),
        ([], None),
    ],
)
def test_the_lag_is_what_the_streams_had_beyond_the_batch(
    sources: list[tuple[str, str | None]], expected: int | None
) -> None:
    progress: Any = SimpleNamespace(sources=[offsets(*each) for each in sources])
    assert lag_of(progress) == expected
