"""A standalone cluster: executors that are lost cost nothing, and it ends with us."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.spark import standalone

ROOT = Path(jsclient.__file__).parents[1]
EXAMPLE = ROOT / "examples" / "spark" / "cluster.py"
ORDERS = 20_000
JOB = Path(__file__).with_name("cluster_job.py")

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


def executors_below(parent: int) -> list[int]:
    """The executors among the descendants of a process."""
    command = ["ps", "-axww", "-o", "pid=,ppid=,command="]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    known = {
        int(pid): (int(above), words)
        for pid, above, words in (
            line.split(maxsplit=2) for line in answer.stdout.splitlines()
        )
    }

    def is_below(pid: int) -> bool:
        while pid in known and pid != parent:
            pid = known[pid][0]
        return pid == parent

    name = "CoarseGrainedExecutorBackend"
    return [p for p, (_, words) in known.items() if name in words and is_below(p)]


def test_an_executor_that_is_killed_costs_no_order_and_doubles_none(
    js: JetStream, jetstream_server: Server, spark_environment: dict[str, str]
) -> None:
    # The example starts a cluster of its own.
    size = ["--orders", str(ORDERS)]
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
        before = executors_below(process.pid)
        os.kill(before[0], signal.SIGKILL)
        said, errors = process.communicate(timeout=120.0)
    assert len(before) == 2
    assert process.returncode == 0, errors
    assert "a master and two workers" in said
    assert f"files: {ORDERS:,} orders" in said
    assert said.endswith("all there, each once\n")


@contextmanager
def submitted(
    cluster: standalone.StandaloneCluster,
    env: dict[str, str],
    *words: str,
) -> Iterator[subprocess.Popen[str]]:
    """A run of spark-submit on the cluster, which is ended if the test is."""
    import pyspark

    settings = [f"--conf={name}={value}" for name, value in standalone.SETTINGS.items()]
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    with subprocess.Popen(
        [str(program), "--master", cluster.url, *settings, *words],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def test_an_executor_that_is_killed_while_it_publishes_doubles_no_row(
    cluster: standalone.StandaloneCluster,
    js: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
) -> None:
    count = 60_000
    stream = js.create_stream(name="OUT", subjects=["out"], storage="memory")
    published: Counter[int] = Counter()
    url = jetstream_server.url
    with (
        jsclient.connect(url) as nc,
        nc.subscribe("out") as rows,
        submitted(
            cluster,
            spark_environment,
            "--conf=spark.scheduler.minRegisteredResourcesRatio=1",
            *(str(JOB), "numbers", url, str(count)),
        ) as process,
    ):
        # Both tasks are in the middle: each executor has one of them.
        begun: set[bool] = set()
        while len(begun) < 2:
            number = int(rows.next(timeout=120.0).data)
            published[number] += 1
            begun.add(number < count // 2)
        executors = cluster.executor_pids()
        os.kill(executors[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=120.0)
        nc.flush()
        with suppress(TimeoutError):
            while True:
                published[int(rows.next(timeout=0.0).data)] += 1
    assert process.returncode == 0, errors
    assert len(executors) == 2
    assert max(published.values()) > 1, "the executor had published nothing"
    with stream.ordered_consumer().messages(stop_after=count) as messages:
        stored = [(int(msg.data), ids_of(msg)) for msg in messages]
    assert stream.info().state.messages == count
    assert sorted(number for number, _ in stored) == list(range(count))
    assert len({msg_id for _, msg_id in stored}) == count


@pytest.fixture
def elsewhere(cluster: standalone.StandaloneCluster) -> Iterator[None]:
    """A further worker: Spark starts no second attempt on the host of the first."""
    place = ["--host", "localhost", "--port", "0", "--webui-port", "0"]
    offer = ["--cores", "1", "--memory", "1g"]
    work = ["--work-dir", str(cluster.folder / "work-elsewhere")]
    words = [standalone._WORKER, *place, *offer, *work, cluster.url]
    with standalone._node("elsewhere", words, cluster.folder) as node:
        deadline = time.monotonic() + 60.0
        node.wait_for(r"(Successfully registered) with master", deadline)
        yield


def test_a_speculative_task_doubles_no_row(
    cluster: standalone.StandaloneCluster,
    elsewhere: None,
    js: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
) -> None:
    count = 80_000
    stream = js.create_stream(name="OUT", subjects=["out"], storage="memory")
    url = jetstream_server.url
    settings = {
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    words = [f"--conf={name}={value}" for name, value in settings.items()]
    published: Counter[int] = Counter()
    with (
        jsclient.connect(url) as nc,
        nc.subscribe("out") as rows,
        submitted(
            cluster, spark_environment, *words, str(JOB), "twice", url, str(count)
        ) as process,
    ):
        _, errors = process.communicate(timeout=120.0)
        nc.flush()
        with suppress(TimeoutError):
            while True:
                published[int(rows.next(timeout=0.0).data)] += 1
    assert process.returncode == 0, errors[-5000:]
    assert max(published.values()) > 1, "no task was started a second time"
    with stream.ordered_consumer().messages(
        stop_after=stream.info().state.messages
    ) as messages:
        stored = sorted(int(msg.data) for msg in messages)
    assert stored == list(range(count))


def ids_of(msg: jsclient.Msg) -> str:
    assert msg.headers is not None
    return msg.headers["Nats-Msg-Id"]


def test_packages_can_be_shipped_as_an_archive(
    cluster: standalone.StandaloneCluster,
    js: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    for package in ("jsclient", "pyspark_jetstream"):
        shutil.copytree(ROOT / package, tmp_path / "site" / package)
    with tarfile.open(tmp_path / "site.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "site", arcname=".")
    out = js.create_stream(name="OUT", subjects=["out"], storage="memory")
    js.create_stream(name="IN", subjects=["in"], storage="memory")
    for _ in js.publish_all(("in", b"%d" % number) for number in range(1000)):
        pass
    env = {**spark_environment, "PYTHONPATH": str(tmp_path / "site")}
    shipping = (
        f"--archives={tmp_path / 'site.tar.gz'}#site",
        "--conf=spark.executorEnv.PYTHONPATH=./site",
    )
    url = jetstream_server.url
    with submitted(cluster, env, *shipping, str(JOB), "where", url) as process:
        said, errors = process.communicate(timeout=120.0)
    assert process.returncode == 0, errors[-5000:]
    lines = [line.split(": ") for line in said.splitlines()]
    places = [line[1] for line in lines if line[0] == "package"]
    assert len(places) == 2
    assert all(place.startswith(str(cluster.folder)) for place in places), places
    assert out.info().state.messages == 1000


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
