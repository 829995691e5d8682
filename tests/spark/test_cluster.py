"""A standalone cluster: executors that are lost cost nothing, and it ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.spark import standalone

ROOT = Path(jsclient.__file__).parents[1]
EXAMPLE = ROOT / "examples" / "spark" / "cluster.py"
ORDERS = 20_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not EXAMPLE.exists(), reason="needs the source tree"),
]


@pytest.fixture(scope="module")
def cluster(
    spark_environment: dict[str, str],
) -> Iterator[standalone.StandaloneCluster]:
    """A master and two workers."""
    with standalone.run(workers=2) as running:
        yield running


def test_an_executor_that_is_killed_costs_no_order_and_doubles_none(
    cluster: standalone.StandaloneCluster,
    js: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
) -> None:
    size = ["--orders", str(ORDERS), "--master", cluster.url]
    with (
        jsclient.connect(jetstream_server.url) as nc,
        nc.subscribe("news.*") as news,
        subprocess.Popen(
            [sys.executable, str(EXAMPLE), *size],
            env={**os.environ, **spark_environment, "NATS_URL": jetstream_server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        for _ in range(100):  # the first batch is in the middle
            news.next(timeout=120.0)
        before = cluster.executor_pids()
        os.kill(before[0], signal.SIGKILL)
        said, errors = process.communicate(timeout=120.0)
    assert len(before) == 2
    assert process.returncode == 0, errors
    assert f"files: {ORDERS:,} orders" in said
    assert said.endswith("all there, each once\n")


STARTER = """
import sys
from jsclient.spark import standalone

cluster = standalone.run(workers=1)
print(cluster.url, flush=True)
sys.stdin.read()
"""


def test_a_cluster_ends_with_its_process_even_if_that_is_killed(
    spark_environment: dict[str, str],
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER],
        env={**os.environ, **spark_environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("spark://127.0.0.1:")
        assert mentions(url) == 1  # the worker
        process.kill()
    deadline = time.monotonic() + 60.0
    while mentions(url):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.1)


def mentions(url: str) -> int:
    """How many processes have the address of a master among their arguments."""
    command = ["ps", "-axww", "-o", "command="]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = answer.stdout.splitlines()
    return sum(url in line and "/java" in line for line in lines)
