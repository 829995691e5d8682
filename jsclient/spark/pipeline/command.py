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
    with session(pipeline, options.master) as spark:
        try:
            if options.validate:
                for name, columns in schemas(spark, pipeline).items():
                    sys.stdout.write(f"{name}: {columns}\n")
                return 0
            with Report(options.log or pipeline.log) as report:
                run(spark, pipeline, report, once=options.once)
        except spark_errors() as error:
            return _say(reason(error), LOST if is_data_loss(error) else FAILED)
    return 0


def _say(text: str, status: int) -> int:
    sys.stderr.write(f"jsclient: {text}\n")
    return status
