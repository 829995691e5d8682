"""`jsclient pipeline run FILE`: what it prints and how it ends."""

from __future__ import annotations

import sys
from argparse import Namespace

from ...errors import Error
from .description import Pipeline, PipelineError
from .reasons import is_data_loss, reason, spark_errors
from .report import Report
from .run import run, schemas
from .session import is_remote, session
from .toml import load

__all__ = ["FAILED", "LOST", "WRONG", "main"]

# The exit status. It is 0 after a clean end, also when a signal asked for it.
FAILED, WRONG, LOST = 1, 2, 3


def main(options: Namespace) -> int:
    """Runs the command; the exit status is that of the process."""
    try:
        pipeline = load(options.file)
        unchecked = _unchecked(pipeline, options) if options.validate else []
        status = _with_spark(pipeline, options)
        for problem in unchecked:
            _say(f"{options.file}: not checked: {problem}", status)
        return status
    except PipelineError as error:
        status = LOST if is_data_loss(error) else WRONG
        return _say(f"{options.file}: {error}", status)
    except Error as error:
        return _say(str(error), FAILED)


def _unchecked(pipeline: Pipeline, options: Namespace) -> list[str]:
    """What nobody could tell about streams and servers; PipelineError is for the rest.

    It is asked first: an answer takes a moment, and Spark some seconds to start.
    """
    try:
        from .streams import check_streams
    except ImportError:  # without PySpark: told when it is to be started
        return []
    return check_streams(pipeline, is_here=not is_remote(pipeline, options.master))


def _with_spark(pipeline: Pipeline, options: Namespace) -> int:
    log = None if options.validate else options.log or pipeline.log
    with Report(log, name=pipeline.name) as report:
        report.say("starting Spark")
        with session(pipeline, options.master) as spark:
            try:
                if options.validate:
                    found = schemas(spark, pipeline)
                    report.clear()
                    for name, columns in found.items():
                        sys.stdout.write(f"{name}: {columns}\n")
                    return 0
                run(spark, pipeline, report, once=options.once)
                report.clear()
                if report.skipped:
                    said = f"{report.skipped:,} rows were refused and skipped"
                    _say(f"{said}; the logs of the tasks have the reasons", 0)
            except spark_errors() as error:
                report.clear()
                return _say(reason(error), LOST if is_data_loss(error) else FAILED)
    return 0


def _say(text: str, status: int) -> int:
    sys.stderr.write(f"jsclient: {text}\n")
    return status
