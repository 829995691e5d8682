"""Publishing the rows of a DataFrame to a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from .options import SinkOptions


def batch_writer(
    options: SinkOptions, schema: StructType, overwrite: bool
) -> DataSourceWriter:
    """Publishes the rows of one DataFrame."""
    raise NotImplementedError


def stream_writer(
    options: SinkOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Publishes the rows of micro-batches."""
    raise NotImplementedError
