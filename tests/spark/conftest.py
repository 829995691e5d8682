"""One Spark for all tests that need it, and servers with JetStream.

Spark's workers are processes that the JVM starts: they find the package by PYTHONPATH,
which therefore is set before the JVM is. These tests run after all others: the threads
and sockets of the bridge to the JVM would be in the way of those that count them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.spark.java import JavaNotFoundError, find_java
from tests.harness.streams import lent_jetstream
from tests.spark import quick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = Path(jsclient.__file__).parents[1]
# Any test may be the first, which waits for Spark to start.
PATIENCE = 240


def why_no_spark() -> str | None:
    """What is missing to start Spark here, and how to get it."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark needs PySpark: pip install 'jsclient[spark]'"
    try:
        find_java()
    except JavaNotFoundError as error:
        return str(error)
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is here, and puts it last."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("spark")
            # Py4J leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(PATIENCE))
    items.sort(key=lambda item: HERE in item.path.parents)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly that nothing of Spark was tested."""
    missing = why_no_spark()
    if missing is not None:
        terminalreporter.write_line(f"SPARK WAS NOT TESTED: {missing}", red=True)


@pytest.fixture(scope="session")
def spark_environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What Spark's processes need in their environment, beside what is there."""
    missing = why_no_spark()
    if missing is not None:
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(quick.home(tmp_path_factory.mktemp("home"))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path_factory.mktemp("spark")),
    }
    cache = getattr(request.config, "cache", None)
    folder = tmp_path_factory.mktemp("classes") if cache is None else cache.mkdir("jvm")
    classes = quick.archive(folder, found)
    flags = [] if classes is None else [f"-XX:SharedArchiveFile={classes}"]
    return found | quick.environment(*flags)


@pytest.fixture
def no_search(spark_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """That with a broken package, which hides the formats of all others from Spark."""
    broken = tmp_path / "packages" / "pyspark_broken"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken')")
    path = os.pathsep.join([str(broken.parent), spark_environment["PYTHONPATH"]])
    return {**spark_environment, "PYTHONPATH": path}


@pytest.fixture(scope="session")
def spark(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session on two cores, for all tests."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("jsclient tests")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("tables")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def jetstream_server() -> Iterator[Server]:
    """A server with JetStream, shared by tests that do it no harm."""
    with run(jetstream=True) as running:
        yield running


@pytest.fixture
def js(jetstream_server: Server) -> Iterator[JetStream]:
    """A JetStream without streams; those that the test makes are deleted after it."""
    with lent_jetstream(jetstream_server.url) as context:
        yield context
