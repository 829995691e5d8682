"""Publishing the rows of DataFrames to a stream, each of them once.

A task publishes the record batches that Spark gives it as a pipeline and ends when all
rows are stored. It may run again: after a failure, on another executor, for a batch
that a restarted query repeats. So every row has an id that is the same whenever it is
published: the query, the batch, the partition, a hash of the row's content, and how
many equal rows came before it. The order of rows, which may change, does not count.
The stream drops what it knows; `ledger` covers what it has forgotten.

Columns: `subject`, `data`, `headers`, `msg_id`, and the expectations of
`jsclient.columns`; those of the source that say where a message was are left out, so
that one stream can be written to another.

Spark's mode `overwrite` is refused: a stream is appended to, and purged by its owner.
In the output mode `complete` every batch publishes the whole result again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

import jsclient

from ..columns import EXPECTATIONS, NAMES
from . import connecting, refusals
from .errors import OptionError
from .ledger import DEFAULT_BUCKET, Ledger, Memory, check_stream
from .options import SinkOptions
from .stream import find_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

    from ..jetstream import JetStream

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    HAS_ARROW_STREAMS = True
except ImportError:  # before 4.1: rows come one by one
    # Only something to derive from: `RowStreamWriter` is used there instead.
    DataSourceStreamArrowWriter = DataSourceStreamWriter  # type: ignore
    HAS_ARROW_STREAMS = False

__all__ = ["batch_writer", "check_columns", "check_options", "stream_writer"]

logger = logging.getLogger("jsclient")

# Columns of the source that say where a message was: they are left out.
PLACES = ("sequence", "timestamp", "stream")
# Rows that come one by one are put together to batches of so many.
ROWS = 10_000
# A run without an ack for so many times the time-out of a request has failed.
PATIENCE = 3.0


def batch_writer(
    options: SinkOptions, schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Publishes the rows of one DataFrame."""
    if overwrite:
        raise OptionError(
            "mode", "overwrite is not for streams: use append, or purge the stream"
        )
    if options.exactly_once == "ledger" and options.ledger is None:
        # Two writes of one foreachBatch would have the same entry: the second would
        # find its batch to be whole.
        raise OptionError(
            "ledger", "a batch needs it: a name for each write of a foreachBatch"
        )
    return BatchWriter(_planned(options, schema))


def stream_writer(
    options: SinkOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Publishes the rows of micro-batches; `overwrite` is the output mode complete."""
    plan = _planned(options, schema)
    return StreamWriter(plan) if HAS_ARROW_STREAMS else RowStreamWriter(plan, schema)


# What is checked before anything is published -----------------------------------------


@dataclass(frozen=True)
class Plan:
    """What tasks have to know."""

    options: SinkOptions
    has_subject: bool  # a column of them
    has_ids: bool  # likewise


def _planned(options: SinkOptions, schema: StructType) -> Plan:
    """Refuses what cannot work; done on the driver, before tasks start."""
    check_columns(options, schema)
    check_options(options)
    names = schema.fieldNames()
    return Plan(options, "subject" in names, "msg_id" in names)


def check_options(options: SinkOptions) -> None:
    """Refuses what does not fit the stream, or each other; asks the server."""
    if options.exactly_once == "ledger":
        if options.dedup == "none":
            raise OptionError("exactlyOnce", "a ledger needs ids, and dedup is none")
        if options.stream is None:
            raise OptionError("stream", "exactlyOnce=ledger needs it")
    if options.stream is None:
        connecting.connection(options.connection)
        return
    name = options.stream
    try:
        stream = connecting.ask(options.connection, lambda js: find_stream(js, name))
    except jsclient.PermissionsViolationError:
        if options.exactly_once == "ledger":
            raise
        return  # every message still names the stream that must store it
    if options.exactly_once == "ledger":
        check_stream(stream)


def check_columns(options: SinkOptions, schema: StructType) -> None:
    """Refuses columns that cannot be published."""
    names = [field.name for field in schema]
    for field in schema:
        if field.name in PLACES:
            continue
        if field.name not in NAMES or names.count(field.name) > 1:
            near = get_close_matches(field.name, NAMES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problem = "is there twice" if field.name in NAMES else "has no meaning"
            raise OptionError(
                "schema",
                f"column {field.name!r} {problem}; select some of "
                f"{', '.join(NAMES)}{hint}",
            )
        wanted = _wrong_type(field.name, field.dataType)
        if wanted is not None:
            raise OptionError(
                "schema",
                f"column {field.name!r} must be {wanted}, not "
                f"{field.dataType.simpleString()}",
            )
    if "data" not in names:
        raise OptionError("schema", "there is no column 'data'")
    if "subject" not in names and options.subject is None:
        raise OptionError("subject", "give it, or a column 'subject'")
    if options.dedup == "column" and "msg_id" not in names:
        raise OptionError("dedup", "there is no column 'msg_id'")
    is_by_batch = options.dedup == "content" and "msg_id" not in names
    if is_by_batch and options.has_async_progress:
        raise OptionError(
            "dedup",
            "with asyncProgressTrackingEnabled batches are others after a restart, so "
            "ids must not depend on them: give a column 'msg_id', or none",
        )
    if options.dedup == "none" and "msg_id" in names:
        raise OptionError("dedup", "none would ignore the column 'msg_id': drop it")


def _wrong_type(name: str, kind: DataType) -> str | None:
    """What the column must be, if it is something else."""
    is_text = isinstance(kind, StringType)
    if name == "data":
        is_right = is_text or isinstance(kind, BinaryType)
        return None if is_right else "binary or string"
    if name == "headers":
        if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
            values = kind.valueType
            if isinstance(values, ArrayType):
                values = values.elementType
            if isinstance(values, StringType):
                return None
        return "map<string,array<string>> or map<string,string>"
    if name in EXPECTATIONS and name.endswith("_seq"):
        return None if isinstance(kind, IntegralType) else "bigint"
    return None if is_text else "string"


# Writers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did."""

    query: str | None
    batch: int
    stored: int = 0
    duplicates: int = 0
    refused: int = 0


class BatchWriter(DataSourceArrowWriter):
    """Publishes one DataFrame; in a foreachBatch, for the batch of its query."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Spark gives the same writer, pickled, to all tasks and their retries.
        self.job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes what one task has."""
        return _write(self.plan, iterator, job=self.job)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have ended well."""
        _commit(self.plan.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The rows of tasks that had ended well are stored: that is told."""
        _tell_of_abort(messages)


class _MicroBatches:
    """What all writers of micro-batches do; Spark makes new ones for each of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """All tasks of the batch have ended well."""
        _commit(self.plan.options, messages)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """The batch is run again, or the query ends; ids keep its rows single."""


class StreamWriter(_MicroBatches, DataSourceStreamArrowWriter):
    """Publishes micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes what one task has."""
        return _write(self.plan, iterator, job=None)


class RowStreamWriter(_MicroBatches, DataSourceStreamWriter):
    """Publishes micro-batches of a Spark that gives rows one by one."""

    def __init__(self, plan: Plan, schema: StructType) -> None:
        super().__init__(plan)
        self.schema = schema

    def write(self, iterator: Iterator[Row]) -> Written:
        """Publishes what one task has."""
        return _write(self.plan, _arrow_batches(iterator, self.schema), job=None)


def _arrow_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)
    while some := [row.asDict() for row in islice(rows, ROWS)]:
        yield from pa.Table.from_pylist(some, schema=arrow).to_batches()


# What a task does ---------------------------------------------------------------------


def _write(
    plan: Plan, batches: Iterator[pa.RecordBatch], *, job: str | None
) -> Written:
    options = plan.options
    task = TaskContext.get()
    if task is None:
        raise jsclient.Error("rows are published by the tasks of Spark")
    query, batch, prefix = _identity(task, options, job)
    js = connecting.jetstream(options.connection)
    known_ids: set[bytes] | None = None
    if options.exactly_once == "ledger":
        if query is None or options.stream is None:
            raise OptionError("exactlyOnce", "a ledger is for streaming queries")
        stream = find_stream(js, options.stream)
        ledger = Ledger(js, options.ledger or DEFAULT_BUCKET, query, stream)
        memory = Memory(
            ledger,
            stream,
            batch,
            "" if plan.has_ids else prefix,
            timeout=PATIENCE * options.connection.request_timeout,
        )
        if memory.is_whole:
            for _ in batches:  # Spark wants them to be taken
                pass
            return Written(query, batch)
        if task.attemptNumber() > 0:
            memory.recall()
        known_ids, batches = memory.known_ids, memory.watch(batches)
    published = js.publish_columns(
        (_prepared(plan, one) for one in batches),
        subject=None if plan.has_subject else options.subject,
        content_ids=None if plan.has_ids or options.dedup == "none" else prefix,
        expected_stream=options.stream,
        window=options.max_inflight,
        timeout=PATIENCE * options.connection.request_timeout,
        on_error="skip" if options.on_error == "skip" else "raise",
        known_ids=known_ids,
    )
    if published.refused:
        logger.warning(
            "%d rows were refused and skipped; the first: %s",
            published.refused,
            published.first_refusal,
        )
    return Written(
        query, batch, published.stored, published.duplicates, published.refused
    )


def _identity(
    task: TaskContext, options: SinkOptions, job: str | None
) -> tuple[str | None, int, str]:
    """The query and the batch of a task, and what the ids of its rows begin with."""
    query = task.getLocalProperty("sql.streaming.queryId")
    batch = task.getLocalProperty("streaming.sql.batchId")
    part = task.partitionId()
    if query is not None and batch is not None:
        # Two writers of one foreachBatch are told apart by the names of their ledgers.
        name = "" if job is None or options.ledger is None else f"{options.ledger}-"
        return query, int(batch), f"{query}-{batch}-{name}{part}-"
    if job is None:
        raise jsclient.Error("this Spark does not tell its tasks their batch")
    return None, 0, f"{job}-{part}-"


def _prepared(plan: Plan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as it is published: no row is without a subject or an id."""
    if plan.has_ids and batch["msg_id"].null_count:
        raise jsclient.InvalidArgumentError(
            "column 'msg_id' is null in some row: each must have an id"
        )
    places = [name for name in PLACES if name in batch.schema.names]
    if places:
        batch = batch.drop_columns(places)
    subject = plan.options.subject
    if plan.has_subject and subject is not None and batch["subject"].null_count:
        place = batch.schema.get_field_index("subject")
        filled = batch["subject"].fill_null(subject)
        return batch.set_column(place, "subject", filled)
    return batch


def _commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Notes in the ledger, if there is one, that the batch is whole."""
    written = [one for one in messages if isinstance(one, Written)]
    refused = sum(one.refused for one in written)
    if refused:
        logger.warning(
            "%d rows of the batch were refused and skipped; the logs of the tasks have "
            "the reasons",
            refused,
        )
        if options.refusals is not None:
            query, batch = written[0].query, written[0].batch
            refusals.note(options.refusals, query, batch, refused)
    name = options.stream
    if options.exactly_once != "ledger" or name is None or not written:
        return
    query, batch = written[0].query, written[0].batch
    assert query is not None

    def note(js: JetStream) -> None:
        stream = find_stream(js, name)
        ledger = Ledger(js, options.ledger or DEFAULT_BUCKET, query, stream)
        ledger.commit(batch, stream.cached_info.state.last_seq)

    connecting.ask(options.connection, note)


def _tell_of_abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [one for one in messages if isinstance(one, Written)]
    stored = sum(one.stored for one in written)
    if stored:
        logger.warning(
            "a write was aborted: %d rows of the tasks that had ended are stored, and "
            "another write would store them again",
            stored,
        )
