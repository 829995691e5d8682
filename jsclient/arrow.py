"""Batches as Arrow tables, without copying; needs the package pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import HeaderColumns
from .errors import Error

if TYPE_CHECKING:
    from pyarrow import Array, DataType, MapArray, RecordBatch

    from ._core import Batch


def record_batch(batch: Batch) -> RecordBatch:
    """A `pyarrow.RecordBatch` on the batch's own memory.

    Its columns: subject, data, headers (the block as it came, empty for none),
    stream_seq, consumer_seq, timestamp (UTC, nanoseconds), num_delivered. Subjects that
    are no UTF-8 are copied, with U+FFFD for what they have of that.
    """
    pa = _pyarrow()
    count = len(batch)

    def column(kind: DataType, *buffers: memoryview) -> Array:
        # The first buffer is the validity bitmap: nothing is null.
        return pa.Array.from_buffers(
            kind, count, [None, *(pa.py_buffer(buffer) for buffer in buffers)]
        )

    subjects = column(pa.large_string(), batch.subject_offsets, batch.subject_data)
    try:
        subjects.validate(full=True)
    except pa.ArrowInvalid:
        texts = [
            text.encode(errors="surrogateescape").decode(errors="replace")
            for text in batch.subjects
        ]
        subjects = pa.array(texts, pa.large_string())
    columns = {
        "subject": subjects,
        "data": column(pa.large_binary(), batch.offsets, batch.data),
        "headers": column(pa.large_binary(), batch.header_offsets, batch.header_data),
        "stream_seq": column(pa.uint64(), batch.stream_seqs),
        "consumer_seq": column(pa.uint64(), batch.consumer_seqs),
        "timestamp": column(pa.timestamp("ns", tz="UTC"), batch.timestamps_ns),
        "num_delivered": column(pa.uint64(), batch.num_delivered),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def header_maps(batch: Batch) -> MapArray:
    """The headers of a batch as maps from keys to lists of values.

    A message without headers has an empty map. The fields of a malformed block count up
    to its fault; what is no UTF-8 is replaced by U+FFFD.
    """
    pa = _pyarrow()
    columns = HeaderColumns(batch)

    def texts(offsets: memoryview, data: memoryview) -> Array:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        count = len(offsets) - 1
        found = pa.Array.from_buffers(pa.string(), count, buffers)
        if columns.is_ascii:
            return found
        raw = pa.Array.from_buffers(pa.binary(), count, buffers).to_pylist()
        return pa.array([text.decode(errors="replace") for text in raw], pa.string())

    keys = texts(columns.key_offsets, columns.keys)
    values = texts(columns.value_offsets, columns.values)
    lists = pa.Array.from_buffers(
        pa.list_(pa.string()),
        len(keys),
        [None, pa.py_buffer(columns.lists)],
        children=[values],
    )
    rows = pa.Array.from_buffers(
        pa.int32(), len(columns.rows), [None, pa.py_buffer(columns.rows)]
    )
    return pa.MapArray.from_arrays(rows, keys, lists)


def _pyarrow() -> Any:  # the module: it has no types
    try:
        import pyarrow
    except ImportError as error:
        raise Error(
            "to_arrow() needs the package pyarrow: pip install 'jsclient[arrow]'"
        ) from error
    return pyarrow
