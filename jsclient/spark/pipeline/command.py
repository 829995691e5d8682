"""`jsclient pipeline run FILE`: what it prints and how it ends."""

from __future__ import annotations

import sys
from argparse import Namespace

from ...errors import Error
from .description import Pipeline, PipelineError
from .reasons import is_data_loss, reason, spark_errors
from .report import Report
from .run import run, schemas
from .session import session
from .toml import load

__all__ = ["FAILED", "LOST", "WRONG", "main"]

# The exit status. It is 0 after a clean end, also when a signal asked for it.
FAILED, WRONG, LOST = 1, 2, 3


def main(options: Namespace) -> int:
    """Runs the command; the exit status is that of the process."""
    try:
        pipeline = load(options.file)
        return _with_spark(pipeline, options)
    except PipelineError as error:
        status = LOST if is_data_loss(error) else WRONG
        return _say(f"{options.file}: {error}", status)
    except Error as error:
        return _say(str(error), FAILED)


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
