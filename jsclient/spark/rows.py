"""Messages as the record batches that Spark expects: its very types, no row objects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow import header_maps

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .. import Batch, StoredMessage

__all__ = ["Rows"]


class Rows:
    """Makes the columns of one schema."""

    def __init__(
        self, schema: StructType, stream: str, subjects: Sequence[str]
    ) -> None:
        """Keeps only rows of `subjects`, if there are any; all others come as read."""
        self.schema = _arrow_schema(schema)
        self._stream = stream
        self._pattern = "|".join(map(_pattern, subjects))

    def of_batch(self, batch: Batch, end: int) -> pa.RecordBatch:
        """The messages of a batch whose sequences are less than `end`."""
        table = batch.to_arrow()
        count = bisect_left(batch.stream_seqs, end)
        columns = []
        for field in self.schema:
            if field.name == "headers":
                column = header_maps(batch).cast(field.type)
            elif field.name == "stream":
                column = pa.repeat(pa.scalar(self._stream, field.type), len(batch))
            else:
                column = _converted(table, field)
            columns.append(column)
        found = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if count < len(batch):
            found = found.slice(0, count)
        if self._pattern:
            subjects = table.column("subject").slice(0, count)
            found = found.filter(pc.match_substring_regex(subjects, self._pattern))
        return found

    def of_messages(self, messages: Sequence[StoredMessage]) -> pa.RecordBatch:
        """Messages that were read one by one."""
        values: dict[str, list[Any]] = {
            "subject": [msg.subject for msg in messages],
            "data": [msg.data for msg in messages],
            "headers": [
                [] if msg.headers is None else list(_lists(msg.headers.multi_items()))
                for msg in messages
            ],
            "sequence": [msg.seq for msg in messages],
            "timestamp": [msg.timestamp_ns // 1000 for msg in messages],
            "stream": [self._stream] * len(messages),
        }
        columns = [
            pa.array(values[field.name], pa.binary()).view(field.type)
            if field.name == "data"
            else pa.array(values[field.name], field.type)
            for field in self.schema
        ]
        found = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if self._pattern:
            subjects = pa.array(values["subject"], pa.string())
            found = found.filter(pc.match_substring_regex(subjects, self._pattern))
        return found


def _converted(table: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column as Spark's type of it; texts and payloads stay where they are."""
    if field.name == "sequence":
        return table.column("stream_seq").view(field.type)
    column = table.column(field.name)
    if field.name == "timestamp":
        return column.cast(field.type, safe=False)  # to microseconds, cut off
    if pa.types.is_string(field.type) and field.name == "data":
        # As a cast in SQL does: nobody looks whether it is UTF-8.
        column = column.view(pa.large_string())
    return column.cast(field.type)


def _lists(fields: Sequence[tuple[str, str]]) -> Sequence[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for key, value in fields:
        found.setdefault(key, []).append(value)
    return list(found.items())


def _pattern(subject: str) -> str:
    """A regular expression of the subjects that a filter lets through."""
    tokens = [
        {"*": r"[^.]+", ">": r".+"}.get(token, _escaped(token))
        for token in subject.split(".")
    ]
    return rf"(?s:^{'[.]'.join(tokens)}$)"


def _escaped(token: str) -> str:
    """Literally, for RE2: every character that could mean something."""
    return "".join(
        c if c.isalnum() or c in "_-" else f"\\x{{{ord(c):x}}}" for c in token
    )


def _arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark compares our batches with."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before 4.2, where it always is UTC
        return to_arrow_schema(schema)
