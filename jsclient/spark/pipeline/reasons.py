"""Why something failed in Spark, in one line.

Errors of Python code come back from Spark as texts that hold a traceback of the worker,
errors of a query as texts that hold its plan.
"""

from __future__ import annotations

import re

__all__ = ["is_data_loss", "reason", "spark_errors"]

# The last line of a traceback that names one of our errors.
_OURS = re.compile(r"^(?:.*?: )?jsclient(?:\.\w+)*\.\w+: (.+)$", re.MULTILINE)
_SPARKS = re.compile(r"(\[[A-Z][A-Z_.]+\] .+)$", re.MULTILINE)
_PYTHONS = re.compile(
    r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:: .+)?)$", re.MULTILINE
)


def reason(error: BaseException) -> str:
    """The line of the text that says what happened, the most telling first."""
    text = str(error).strip() or type(error).__name__
    for sign in (_OURS, _PYTHONS, _SPARKS):
        found = sign.findall(text)
        if found:
            # Python prints first what an error came from; Spark prints it last.
            line = found[0] if sign is _SPARKS else found[-1]
            return _tidy(line)
    return _tidy(text.splitlines()[0])


def _tidy(line: str) -> str:
    return re.split(r"[.;]? SQLSTATE:|; line \d", line)[0].strip()


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises; not all of it has a class of PySpark."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


def is_data_loss(error: BaseException) -> bool:
    """Whether messages are gone that were still to be read."""
    return "DATA_LOSS" in str(error)
