"""Messages in columns: Arrow tables, or plain buffers, as rows to publish.

`publish_columns` takes a `pyarrow.RecordBatch` or `Table` with these columns:

    subject                    text; not needed when one subject is given for all
    data                       binary or text; null is an empty payload
    headers                    map of text to text, or to lists of text
    msg_id                     text: the id by which a stream knows a message again
    expected_last_seq, expected_last_subject_seq     whole numbers, null for none
    expected_last_msg_id       text, null for none

An id, or a stream that is expected, overrules what the headers of a row say of it: so
messages can be copied with their headers.

Without Arrow, make `Rows` of plain buffers: a `Column` is its bytes and `Offsets`, the
places where each value ends, as 32 or 64 bit numbers. Nothing is copied: the buffers
must not change before their rows are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ._core import Column, Offsets, Rows, Seen, encode_headers
from .errors import Error, InvalidArgumentError

if TYPE_CHECKING:
    from typing import TypeAlias

    import pyarrow as pa

    # What `publish_columns` takes; pyarrow has no types.
    ColumnsLike: TypeAlias = Any | Rows

__all__ = ["Column", "Offsets", "Rows"]

EXPECTATIONS = {
    "expected_last_seq": "Nats-Expected-Last-Sequence",
    "expected_last_subject_seq": "Nats-Expected-Last-Subject-Sequence",
    "expected_last_msg_id": "Nats-Expected-Last-Msg-Id",
}
NAMES = ("subject", "data", "headers", "msg_id", *EXPECTATIONS)


class Identities(NamedTuple):
    """How rows get ids of their content: all of one publish share it."""

    prefix: str
    key: bytes
    seen: Seen

    @classmethod
    def of(cls, prefix: str) -> Identities:
        """Ids that begin with the prefix; no other prefix has the same."""
        key = blake2b(prefix.encode(errors="surrogateescape"), digest_size=16).digest()
        return cls(prefix, key, Seen())


def all_rows(
    columns: ColumnsLike | Iterable[ColumnsLike],
    *,
    subject: str | None,
    expected_stream: str | None,
    identities: Identities | None,
) -> Iterator[Rows]:
    """The rows of everything that `publish_columns` takes, batch by batch."""
    fields = None
    if expected_stream is not None:
        fields = encode_headers({"Nats-Expected-Stream": expected_stream})
    # The fields alone: without the version line and the empty line at the end.
    constant = b"" if fields is None else fields[10:-2]
    for batch in _batches(columns):
        if isinstance(batch, Rows):
            rows = batch
            rows.constant = constant
        else:
            rows = arrow_rows(batch, subject=subject, constant=constant)
        if identities is not None:
            rows.identify(*identities)
            rows.is_repeatable = not rows.has_expectations
        yield rows


def _batches(columns: ColumnsLike | Iterable[ColumnsLike]) -> Iterator[pa.RecordBatch]:
    if isinstance(columns, Rows) or hasattr(columns, "schema"):
        columns = (columns,)
    elif not hasattr(columns, "__iter__"):
        raise TypeError(
            "columns must be a pyarrow.RecordBatch or Table, Rows, or an iterable of "
            f"these, not {type(columns).__name__}"
        )
    for one in columns:
        if hasattr(one, "to_batches"):
            yield from one.to_batches()
        elif isinstance(one, Rows) or hasattr(one, "schema"):
            yield one
        else:
            raise TypeError(
                "each of columns must be a pyarrow.RecordBatch or Table, or Rows, not "
                f"{type(one).__name__}"
            )


def arrow_rows(
    batch: pa.RecordBatch, *, subject: str | None, constant: bytes = b""
) -> Rows:
    """The rows of an Arrow table, on its own memory."""
    pa = _arrow()
    names = batch.schema.names
    for name in names:
        if name not in NAMES or names.count(name) > 1:
            problem = "is there twice" if name in NAMES else "has no meaning"
            raise InvalidArgumentError(
                f"column {name!r} {problem}; the columns are {', '.join(NAMES)}"
            )
    if "data" not in names:
        raise InvalidArgumentError("there is no column 'data'")
    if ("subject" in names) is (subject is not None):
        raise InvalidArgumentError(
            "give a column 'subject' or one subject for all rows"
            + (", not both" if subject is not None else "")
        )
    arrays = dict(zip(names, batch.columns, strict=True))
    fields = []
    for name, key in {"msg_id": "Nats-Msg-Id", **EXPECTATIONS}.items():
        if name not in arrays:
            continue
        array = arrays[name]
        if name.endswith("_seq"):
            if not pa.types.is_integer(array.type):
                raise _wrong_type(name, "a whole number", array.type)
            array = array.cast(pa.large_string())
        fields.append((key, _column(array, name, is_text=True)))
    rows = Rows(
        batch.num_rows,
        _column(arrays["data"], "data", is_text=False),
        subject or _column(arrays["subject"], "subject", is_text=True),
        headers=_headers(arrays["headers"]) if "headers" in arrays else None,
        fields=fields,
        constant=constant,
    )
    has_ids = "msg_id" in arrays and not arrays["msg_id"].null_count
    rows.has_expectations = any(
        arrays[name].null_count < len(arrays[name])
        for name in EXPECTATIONS
        if name in arrays
    )
    rows.is_repeatable = has_ids and not rows.has_expectations
    return rows


def _column(array: pa.Array, name: str, *, is_text: bool) -> Column:
    """A column of texts or binary values; others that can be are made such."""
    types = _arrow().types
    kind = array.type
    if types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if types.is_null(kind) or types.is_string_view(kind):
        array = array.cast(_arrow().large_string())
    elif types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        array = array.cast(_arrow().large_binary())
    is_large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    is_binary = types.is_binary(array.type) or types.is_large_binary(array.type)
    if not (is_large or is_binary or types.is_string(array.type)):
        wanted = "text" if is_text else "binary or text"
        raise _wrong_type(name, wanted, kind)
    if is_text and is_binary:
        raise _wrong_type(name, "text", kind)
    return Column(_offsets(array, is_large=is_large), array.buffers()[2])


def _offsets(array: pa.Array, *, is_large: bool) -> Offsets:
    validity, offsets = array.buffers()[:2]
    return Offsets(
        offsets,
        len(array),
        validity=validity if array.null_count else None,
        first=array.offset,
        is_large=is_large,
    )


def _headers(array: pa.Array) -> tuple[Offsets, Column, Offsets | None, Column]:
    types = _arrow().types
    if not types.is_map(array.type):
        raise _wrong_type("headers", "a map of text to lists of text", array.type)
    keys, items = array.keys, array.items
    lists = None
    if types.is_list(items.type) or types.is_large_list(items.type):
        lists = _offsets(items, is_large=types.is_large_list(items.type))
        items = items.values
    return (
        _offsets(array, is_large=False),
        _column(keys, "headers", is_text=True),
        lists,
        _column(items, "headers", is_text=True),
    )


def _wrong_type(name: str, wanted: str, kind: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"column {name!r} must be {wanted}, not {kind}")


def _arrow() -> pa:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise Error(
            "columns of Arrow need the package pyarrow: pip install 'jsclient[arrow]'"
        ) from error
    return pa
