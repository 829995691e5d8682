"""The Spark session of a pipeline: started here, given by spark-submit, or remote.

Ctrl-C ends a Spark that was started here, and the process, at once. What PySpark does
instead, an exception in the middle of a talk with the JVM, shows traces of both, and of
a JVM that was just starting it leaves a process behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from ...errors import Error
from ..java import find_java
from ..options import SECRETS
from .description import Pipeline, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_remote", "session"]

# What a pipeline has unless its file says otherwise. Spark's own bar of progress would
# be in the way of ours; of its log, what matters comes as an exception. In that, Spark
# before 4.2 shows the options of a sink but those whose names look like secrets.
DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",
    "spark.sql.redaction.options.regex": f"(?i)url|{'|'.join(SECRETS)}",
}

REMOTE = "sc://"  # what addresses of Spark Connect begin with
INTERRUPTED = 130  # the exit status that shells give it
# How many seconds a JVM may take to end before it is killed.
PATIENCE = 10.0


@contextmanager
def session(pipeline: Pipeline, master: str | None = None) -> Iterator[SparkSession]:
    """A session for the pipeline, on `master` or else where its file says.

    A session that this program has already is used as it is, and goes on afterwards.
    Whoever runs it with spark-submit has already chosen the master.
    """
    # Whoever installed pandas 3 is told of it by PySpark, which does not need it here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Error("pipelines need Spark: pip install 'jsclient[spark]'") from error
    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    master = _master(pipeline, master)
    builder = SparkSession.builder.appName(pipeline.name)
    for key, value in {**DEFAULTS, **pipeline.spark}.items():
        builder = builder.config(key, value)
    if master is not None and master.startswith(REMOTE):
        with _stopped(builder.remote(master).getOrCreate()) as spark:
            yield spark
        return
    find_java()
    builder = _local(builder, pipeline, master)
    with _interrupts() as take, _stopped(_started(builder, take)) as spark:
        yield spark


def is_remote(pipeline: Pipeline, master: str | None = None) -> bool:
    """Whether the driver of that session is elsewhere."""
    return (_master(pipeline, master) or "").startswith(REMOTE)


def _master(pipeline: Pipeline, master: str | None) -> str | None:
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    return master or (None if is_submitted else pipeline.master or "local[*]")


@contextmanager
def _stopped(spark: SparkSession) -> Iterator[SparkSession]:
    try:
        yield spark
    finally:
        spark.stop()


def _local(
    builder: SparkSession.Builder, pipeline: Pipeline, master: str | None
) -> SparkSession.Builder:
    """What a session needs whose driver is here."""
    # Workers need the interpreter that has this package, not the first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Nobody else takes part, so the machine's name need not lead anywhere.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if any(sink.format == "delta" for sink in pipeline.sinks):
        builder = _with_delta(builder, pipeline)
    return builder


def _with_delta(
    builder: SparkSession.Builder, pipeline: Pipeline
) -> SparkSession.Builder:
    try:
        from delta import configure_spark_with_delta_pip
    except ImportError:
        name = next(sink.name for sink in pipeline.sinks if sink.format == "delta")
        raise PipelineError(
            f"sink.{name}", "format", "delta needs a package: pip install delta-spark"
        ) from None
    extended = builder.config(
        "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
    ).config(
        "spark.sql.catalog.spark_catalog",
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    )
    configured: SparkSession.Builder = configure_spark_with_delta_pip(extended)
    return configured


# Starting, and being interrupted ------------------------------------------------------


def _started(builder: SparkSession.Builder, take: Callable[[], None]) -> SparkSession:
    """The session, in the two steps of `getOrCreate`."""
    from pyspark import SparkConf, SparkContext

    settings = SparkConf().setAll(list(builder._options.items()))
    SparkContext.getOrCreate(settings)
    take()  # it has just set a handler of its own
    return builder.getOrCreate()


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Lets Ctrl-C end us and what we start; what is given sets the handler again."""
    previous = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or previous == signal.SIG_IGN:
        yield lambda: None
        return
    before = _children()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nobody waits a second time
        _end(_children() - before)
        sys.stderr.write("\ninterrupted\n")
        sys.stderr.flush()
        # No step of what is going on now could be done any more.
        os._exit(INTERRUPTED)

    def take() -> None:
        signal.signal(signal.SIGINT, end)

    take()
    try:
        yield take
    finally:
        signal.signal(signal.SIGINT, previous)


def _children() -> set[int]:
    """The processes that this one has started."""
    command = ["ps", "-ax", "-o", "pid=,ppid="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        pairs = [line.split() for line in process.communicate()[0].splitlines()]
    own = str(os.getpid())
    return {int(pid) for pid, parent in pairs if parent == own} - {process.pid}


def _end(pids: set[int]) -> None:
    """Ends processes, which have a moment to put away their files."""
    left = set(pids)

    def send(number: int) -> None:
        for pid in list(left):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGTERM)
    patience = threading.Timer(PATIENCE, send, [signal.SIGKILL])
    patience.daemon = True
    patience.start()
    for pid in pids:
        with suppress(ChildProcessError):  # somebody else has waited for it
            os.waitpid(pid, 0)
        left.discard(pid)
    patience.cancel()
