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
from jsclient.server import Server, run
from jsclient.spark import standalone

ROOT = Path(jsclient.__file__).parents[1]
EXAMPLE = ROOT / "examples" / "spark" / "cluster.py"
ORDERS = 20_000
NUMBERS = 80_000
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


class Processes:
    """What runs on this machine now."""

    def __init__(self) -> None:
        command = ["ps", "-axww", "-o", "pid=,ppid=,command="]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = [line.split(maxsplit=2) for line in answer.stdout.splitlines()]
        self.parents = {int(pid): int(above) for pid, above, *_ in lines}
        self.words = {int(pid): " ".join(words) for pid, _, *words in lines}

    def is_below(self, pid: int, parent: int) -> bool:
        while pid in self.parents and pid != parent:
            pid = self.parents[pid]
        return pid == parent

    def executors_below(self, parent: int) -> list[int]:
        """The executors among the descendants of a process."""
        name = "CoarseGrainedExecutorBackend"
        found = [pid for pid, words in self.words.items() if name in words]
        return [pid for pid in found if self.is_below(pid, parent)]


def test_an_executor_that_is_killed_costs_no_order_and_doubles_none(
    spark_environment: dict[str, str],
) -> None:
    # The example starts a cluster of its own.
    size = ["--orders", str(ORDERS)]
    with (
        run(jetstream=True) as server,
        jsclient.connect(server.url) as nc,
        nc.subscribe("news.*") as news,
        subprocess.Popen(
            [sys.executable, str(EXAMPLE), *size],
            env={**os.environ, **spark_environment, "NATS_URL": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        for _ in range(100):  # the first batch is in the middle
            news.next(timeout=120.0)
        before = Processes().executors_below(process.pid)
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


def rows_so_far(rows: jsclient.Subscription) -> Iterator[int]:
    """The numbers that were published and not taken yet."""
    with suppress(TimeoutError):
        while True:
            yield int(rows.next(timeout=0.0).data)


def test_an_executor_that_is_killed_while_it_publishes_doubles_no_row(
    cluster: standalone.StandaloneCluster,
    js: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    stream = js.create_stream(name="OUT", subjects=["out"], storage="memory")
    url, file = jetstream_server.url, tmp_path / "task"
    job = [str(JOB), "numbers", url, str(NUMBERS), str(file)]
    published: Counter[int] = Counter()
    with (
        jsclient.connect(url) as nc,
        nc.subscribe("out") as rows,
        submitted(cluster, spark_environment, *job) as process,
    ):
        # The task that stops is in the middle when something of its half came.
        number = NUMBERS
        while number >= NUMBERS // 2:
            number = int(rows.next(timeout=120.0).data)
            published[number] += 1
        while not (told := file.read_text() if file.exists() else ""):
            assert process.poll() is None, "the job has ended by itself"
        now = Processes()
        (its,) = [p for p in cluster.executor_pids() if now.is_below(int(told), p)]
        os.kill(its, signal.SIGKILL)
        _, errors = process.communicate(timeout=120.0)
        nc.flush()
        published.update(rows_so_far(rows))
    assert process.returncode == 0, errors[-5000:]
    assert max(published.values()) > 1, "nothing was published twice"
    with stream.ordered_consumer().messages(
        stop_after=stream.info().state.messages
    ) as messages:
        stored = [(int(msg.data), id_of(msg)) for msg in messages]
    assert sorted(number for number, _ in stored) == list(range(NUMBERS))
    assert len({msg_id for _, msg_id in stored}) == NUMBERS


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
    tmp_path: Path,
) -> None:
    stream = js.create_stream(name="OUT", subjects=["out"], storage="memory")
    url = jetstream_server.url
    settings = {
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    words = [f"--conf={name}={value}" for name, value in settings.items()]
    job = [str(JOB), "numbers", url, str(NUMBERS), str(tmp_path / "task")]
    with (
        jsclient.connect(url) as nc,
        nc.subscribe("out") as rows,
        submitted(cluster, spark_environment, *words, *job) as process,
    ):
        _, errors = process.communicate(timeout=120.0)
        nc.flush()
        published = Counter(rows_so_far(rows))
    assert process.returncode == 0, errors[-5000:]
    assert max(published.values()) > 1, "no task was started a second time"
    with stream.ordered_consumer().messages(
        stop_after=stream.info().state.messages
    ) as messages:
        stored = sorted(int(msg.data) for msg in messages)
    assert stored == list(range(NUMBERS))


def id_of(msg: jsclient.Msg) -> str:
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
