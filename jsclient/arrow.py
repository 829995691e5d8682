"""Batches as Arrow tables, without copying; needs the package pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import Error

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from ._core import Batch


def record_batch(batch: Batch) -> RecordBatch:
    """A `pyarrow.RecordBatch` on the batch's own memory.

    Its columns: subject, data, headers (the block as it came, empty for none),
    stream_seq, consumer_seq, timestamp (UTC, nanoseconds), num_delivered. Subjects that
    are no UTF-8 are copied, with U+FFFD for what they have of that.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise Error(
            "to_arrow() needs the package pyarrow: pip install 'jsclient[arrow]'"
        ) from error

    count = len(batch)

    def column(kind: pa.DataType, *buffers: memoryview) -> pa.Array:
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
