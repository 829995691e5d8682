"""The format `jetstream` as Spark sees it: which class reads and writes what.

Nothing here connects. Options are checked when Spark asks for the schema, because an
exception in one of the factories would be hidden by one of Spark's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .options import sink_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        SimpleDataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

__all__ = ["JetStreamDataSource"]


class JetStreamDataSource(DataSource):
    """`spark.read.format("jetstream")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """What the format is called."""
        return "jetstream"

    def schema(self) -> StructType:
        """Every column that a stream has."""
        from . import source

        return source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a part of a stream as one batch."""
        from . import source

        return source.BatchReader(self.options, schema)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Reads a stream as micro-batches."""
        from . import source

        if str(self.options.get("lowLatency", "")).strip().lower() == "true":
            # Spark then asks for the simple one.
            return super().streamReader(schema)
        return source.StreamReader(self.options, schema)

    def simpleStreamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> SimpleDataSourceStreamReader:
        """Reads a stream on the driver."""
        from . import source

        return source.LowLatencyReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publishes the rows of a DataFrame."""
        from . import sink

        return sink.batch_writer(sink_options(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Publishes the rows of micro-batches."""
        from . import sink

        return sink.stream_writer(sink_options(self.options), schema, overwrite)
