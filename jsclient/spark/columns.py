"""The columns of a stream as Spark sees them, and which of them a query wants."""

from __future__ import annotations

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

__all__ = ["COLUMNS", "check_schema"]

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


def check_schema(schema: StructType) -> None:
    """Refuses columns that a stream does not have, or not of that type."""
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
