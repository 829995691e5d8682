"""The format `jetstream` as Spark before 4.1 has it: it writes streams row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsclient.spark.data_source import JetStreamDataSource
from jsclient.spark.options import sink_options
from jsclient.spark.sink import RowStreamWriter, _planned

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RowSource(JetStreamDataSource):
    """Spark gives its writers rows, because they are not of those for Arrow."""

    @classmethod
    def name(cls) -> str:
        return "jetstream-rows"

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> RowStreamWriter:
        return RowStreamWriter(_planned(sink_options(self.options), schema), schema)
