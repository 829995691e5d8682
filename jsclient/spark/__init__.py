"""JetStream for Spark: a source that can be replayed, and a sink.

    df = spark.readStream.format("jetstream").option("stream", "ORDERS").load()

Needs PySpark 4.1 or newer: pip install 'jsclient[spark]'. Spark finds the format by
itself wherever the package is installed; `register` is for sessions that do not search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Error
from .errors import DataLossError, OptionError
from .frames import from_json, read, read_stream, write, write_stream
from .freeing import commit_final
from .progress import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DataLossError",
    "OptionError",
    "commit_final",
    "from_json",
    "lag",
    "read",
    "read_stream",
    "register",
    "write",
    "write_stream",
]


def register(spark: SparkSession) -> None:
    """Makes the format `jetstream` known to a session; doing it twice does no harm."""
    try:
        from .data_source import JetStreamDataSource
    except ImportError as error:
        raise Error(
            "the format jetstream needs PySpark 4.0 or newer and pyarrow: "
            "pip install 'jsclient[spark]'"
        ) from error
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(JetStreamDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses what it has found by itself.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
