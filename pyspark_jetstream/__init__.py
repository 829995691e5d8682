"""Where Spark finds the format `jetstream` by itself.

Spark imports every installed package whose name begins with `pyspark_` and takes its
`DefaultSource`. If one of these imports failed Spark would find no format at all, so
that of this package does not: it then offers nothing.
"""

import logging

try:
    from jsclient.spark.data_source import JetStreamDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except ImportError as error:
    __all__ = []
    logging.getLogger("jsclient").warning(
        "the format jetstream cannot be used: %s; pip install 'jsclient[spark]'", error
    )
