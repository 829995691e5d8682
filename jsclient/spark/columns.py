"""The columns of a stream as Spark sees them, and which of them a query wants."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import OptionError

__all__ = ["COLUMNS", "check_schema", "chosen"]

COLUMNS = StructType(
    [
        StructField("subject", StringType()),
        StructField("data", BinaryType()),
        StructField("headers", MapType(StringType(), ArrayType(StringType()))),
        StructField("sequence", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("stream", StringType()),
    ]
)
# What a query may have a column as, beside its own type.
OTHER_TYPES: dict[str, tuple[DataType, ...]] = {"data": (StringType(),)}


def chosen(columns: Sequence[str] | None) -> StructType:
    """The columns of these names; all if there are none."""
    if columns is None:
        return COLUMNS
    names = COLUMNS.fieldNames()
    for name in columns:
        if name not in names:
            raise OptionError(
                "columns",
                f"there is no column {name!r}; the columns are {', '.join(names)}",
            )
    if len(set(columns)) < len(columns):
        raise OptionError("columns", "one is named twice")
    return StructType([COLUMNS[name] for name in columns])


def check_schema(schema: StructType, columns: Sequence[str] | None = None) -> None:
    """Refuses columns that a stream does not have, or not of that type.

    columns: those that the option has, which say the same or nothing.
    """
    if columns is not None and chosen(columns).fieldNames() != schema.fieldNames():
        raise OptionError("columns", "give it or a schema, not both")
    known = {field.name: field for field in COLUMNS}
    seen = set()
    for field in schema:
        own = known.get(field.name)
        if own is None:
            raise OptionError(
                "schema",
                f"there is no column {field.name!r}; the columns are "
                f"{', '.join(known)}",
            )
        if field.name in seen:
            raise OptionError("schema", f"column {field.name!r} is named twice")
        seen.add(field.name)
        allowed = (own.dataType, *OTHER_TYPES.get(field.name, ()))
        if not any(_is_same(field.dataType, one) for one in allowed):
            names = " or ".join(one.simpleString() for one in allowed)
            raise OptionError(
                "schema",
                f"column {field.name!r} must be {names}, not "
                f"{field.dataType.simpleString()}",
            )
    if not seen:
        raise OptionError("schema", "it has no columns")


def _is_same(one: DataType, other: DataType) -> bool:
    """Whether the types are the same but for what may be null."""
    return one.simpleString() == other.simpleString()
