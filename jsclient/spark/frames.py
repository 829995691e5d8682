"""DataFrames of streams, in one call and with types.

    import jsclient.spark

    orders = jsclient.spark.read(spark, "ORDERS", subject="orders.eu.>")
    rows = jsclient.spark.from_json(orders, "id BIGINT, total DOUBLE")

These only save words: each is what `spark.read.format("jetstream")` and its like do
with the same options. Keywords are the options by their names; wrong ones are told by
OptionError, at the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Literal, TypedDict

from .errors import OptionError
from .options import sink_options, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

__all__ = ["from_json", "read", "read_stream", "write", "write_stream"]

Place = int | str | datetime


class ConnectionKeywords(TypedDict, total=False):
    """Where the servers are and who we are."""

    servers: str | Sequence[str]
    context: str
    creds: str
    nkey: str
    token: str
    user: str
    password: str
    tls: bool
    tlsFirst: bool
    tlsCa: str
    tlsCert: str
    tlsKey: str
    tlsHostname: str
    connectTimeout: float | str
    requestTimeout: float | str
    name: str
    domain: str
    apiPrefix: str
    inboxPrefix: str


class ReadKeywords(ConnectionKeywords, total=False):
    """Options of a source, but those that have parameters of their own."""

    columns: str | Sequence[str]
    startingTimestampStrategy: Literal["error", "latest"]
    maxRecordsPerTrigger: int
    maxBytesPerTrigger: int | str
    minRecordsPerTrigger: int
    maxTriggerDelay: float | str
    numPartitions: int
    recordsPerPartition: int
    failOnDataLoss: bool
    readMode: Literal["auto", "direct", "consumer"]
    fetchSize: int
    maxFetchBytes: int | str
    consume: Literal["none", "purge", "reset"]
    anchor: str
    lowLatency: bool


class WriteKeywords(ConnectionKeywords, total=False):
    """Options of a sink, but those that have parameters of their own."""

    dedup: Literal["content", "column", "none"]
    exactlyOnce: Literal["window", "ledger"]
    ledger: str
    maxInflight: int
    onError: Literal["fail", "skip"]


def read(
    spark: SparkSession,
    stream: str | Sequence[str],
    *,
    subject: str | Sequence[str] | None = None,
    start: Place | None = None,
    end: Place | None = None,
    schema: str | StructType | None = None,
    **options: Unpack[ReadKeywords],
) -> DataFrame:
    """What a stream holds now, as a DataFrame; of several streams, one after another.

    subject: only messages of these subjects, which may have wildcards.
    start: the first message, by its sequence or by its time (a datetime, or a string in
        ISO 8601), "earliest" or "latest"; without it the first that there is.
    end: the message to end before, likewise; without it the last is the last.
    schema: the columns to read, in that order, as in `"subject STRING, data STRING"`.
    """
    given = {
        **_keywords({**options, "subject": subject}),
        **_place("starting", start),
        **_place("ending", end),
    }
    return _loaded(lambda: spark.read, stream, given, schema)


def read_stream(
    spark: SparkSession,
    stream: str | Sequence[str],
    *,
    subject: str | Sequence[str] | None = None,
    start: Place | None = None,
    schema: str | StructType | None = None,
    **options: Unpack[ReadKeywords],
) -> DataFrame:
    """A stream and what is still to come, as a streaming DataFrame.

    The parameters are those of `read`. A query that finds a checkpoint goes on from
    there, whatever `start` says.
    """
    given = {
        **_keywords({**options, "subject": subject}),
        **_place("starting", start),
    }
    return _loaded(lambda: spark.readStream, stream, given, schema)


def _loaded(
    make_reader: Callable[[], DataFrameReader | DataStreamReader],
    streams: str | Sequence[str],
    given: Mapping[str, str],
    schema: str | StructType | None,
) -> DataFrame:
    frames = []
    for stream in [streams] if isinstance(streams, str) else streams:
        source_options({**given, "stream": stream})  # tells mistakes here, not later
        reader = make_reader().format("jetstream").options(**given)
        if schema is not None:
            reader = reader.schema(schema)
        frames.append(reader.option("stream", stream).load())
    if not frames:
        raise OptionError("stream", "name one at least")
    return reduce(lambda all_before, frame: all_before.unionByName(frame), frames)


def write(
    frame: DataFrame,
    stream: str | None = None,
    *,
    subject: str | None = None,
    **options: Unpack[WriteKeywords],
) -> None:
    """Publishes the rows of a DataFrame and returns when they are stored.

    stream: which stream has to store them; without it, any that listens.
    subject: of rows without a column `subject`.
    """
    given = _sink_keywords(options, stream, subject)
    frame.write.format("jetstream").options(**given).mode("append").save()


def write_stream(
    frame: DataFrame,
    stream: str | None = None,
    *,
    checkpoint: str,
    subject: str | None = None,
    every: str | None = None,
    once: bool = False,
    query_name: str | None = None,
    **options: Unpack[WriteKeywords],
) -> StreamingQuery:
    """Starts a query that publishes the rows of a streaming DataFrame.

    checkpoint: the folder where the query notes what is done.
    every: how often to look for new rows, as in "5 seconds"; else as soon as possible.
    once: publish what is there now, then end.

    The other parameters are those of `write`.
    """
    given = _sink_keywords(options, stream, subject)
    writer = frame.writeStream.format("jetstream").options(**given)
    writer = writer.option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every is not None:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def from_json(
    frame: DataFrame, schema: str | StructType, *, into: str = "value"
) -> DataFrame:
    """The DataFrame with payloads read as JSON into a struct column.

    schema: what the payloads hold, as in `"id BIGINT, total DOUBLE"`.
    into: the name of the new column, which is null where the payload is no JSON.
    """
    from pyspark.sql import functions

    text = frame["data"].cast("string")
    return frame.withColumn(into, functions.from_json(text, schema))


def _sink_keywords(
    options: Mapping[str, object], stream: str | None, subject: str | None
) -> dict[str, str]:
    given = {**_keywords(options), **_keywords({"stream": stream, "subject": subject})}
    sink_options(given)
    return given


def _keywords(given: Mapping[str, object]) -> dict[str, str]:
    """Options as the strings that Spark hands on; None is none."""
    return {name: _text(value) for name, value in given.items() if value is not None}


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case Sequence():
            return json.dumps(list(value))
        case _:
            return str(value)


def _place(which: str, place: Place | None) -> dict[str, str]:
    """The option that says where to start or to end."""
    match place:
        case None:
            return {}
        case datetime():
            return {f"{which}Timestamp": place.isoformat()}
        case str() if re.match(r"\d{4}-", place):
            return {f"{which}Timestamp": place}
        case _:
            return {f"{which}Offsets": str(place)}
