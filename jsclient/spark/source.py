"""Reading a stream with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        SimpleDataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from .options import SourceOptions


def schema(options: SourceOptions) -> StructType:
    """The columns of the stream."""
    return COLUMNS


def batch_reader(options: SourceOptions, schema: StructType) -> DataSourceReader:
    """Reads a part of the stream once."""
    raise NotImplementedError


def stream_reader(options: SourceOptions, schema: StructType) -> DataSourceStreamReader:
    """Reads the stream in micro-batches."""
    raise NotImplementedError


def simple_reader(
    options: SourceOptions, schema: StructType
) -> SimpleDataSourceStreamReader:
    """Reads the stream on the driver."""
    raise NotImplementedError
