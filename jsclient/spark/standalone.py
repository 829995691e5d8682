"""A Spark cluster on this machine: a master and workers, made of the pip package.

    from jsclient.spark import standalone

    with standalone.run(workers=2) as cluster:
        spark = SparkSession.builder.master(cluster.url).getOrCreate()

It is for trying out and testing what a cluster does that `local[2]` does not: executors
are processes of their own, and can be lost. It listens on the loopback only, on free
ports, and its processes end with the one that started it, even if that is killed. It
needs a POSIX system.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import Error, TimeoutError
from .java import find_java

__all__ = ["SETTINGS", "StandaloneCluster", "run"]

HOST = "127.0.0.1"
# What a session needs to use such a cluster.
SETTINGS: Mapping[str, str] = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
}
# Runs a program until it ends or stdin does, which happens when our process is gone.
_GUARD = """
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
(cat <&3; kill $child) >/dev/null 2>&1 &
wait $child
"""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class _Node:
    """One process of the cluster, with what it says in a file."""

    def __init__(self, words: list[str], log: Path, home: Path) -> None:
        self._said = threading.Condition()
        self._lines: list[str] = []
        self._has_ended = False
        self._log = log
        env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "512m",
        }
        self._popen = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", str(home / "bin" / "spark-class"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,  # a Ctrl-C is for us, who then end the cluster
        )
        self._thread = threading.Thread(
            target=self._listen, name=f"spark-{log.stem}", daemon=True
        )
        self._thread.start()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        with open(self._log, "a", encoding="utf-8") as log:
            for line in self._popen.stdout:
                log.write(line)
                log.flush()
                with self._said:
                    self._lines.append(line)
                    self._said.notify_all()
        with self._said:
            self._has_ended = True
            self._said.notify_all()

    def wait_for(self, pattern: str, deadline: float) -> str:
        """The first group of the first line that has it."""
        seen = 0
        with self._said:
            while True:
                for line in self._lines[seen:]:
                    found = re.search(pattern, line)
                    if found is not None:
                        return found[1]
                seen = len(self._lines)
                if self._has_ended:
                    raise Error("".join(["Spark did not start:\n", *self._lines[-12:]]))
                if not self._said.wait(max(deadline - time.monotonic(), 0.0)):
                    raise TimeoutError("Spark did not start in time")

    def stop(self) -> None:
        """Ends the process and what it has started. May be called again."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(10.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
        self._thread.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


class StandaloneCluster:
    """A running cluster; `run` makes one. A context manager, which ends it."""

    def __init__(
        self, url: str, folder: Path, workers: list[str], ending: ExitStack
    ) -> None:
        self.url = url  # what to give as master
        self.folder = folder  # with a log for each process, and work of the executors
        self._workers = workers  # their addresses
        self._ending = ending

    def executor_pids(self) -> list[int]:
        """The processes of executors that run now, to be killed for example."""
        command = ["ps", "-axww", "-o", "pid=,command="]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        return [
            int(line.split(maxsplit=1)[0])
            for line in answer.stdout.splitlines()
            if "CoarseGrainedExecutorBackend" in line
            and any(f"spark://Worker@{address}" in line for address in self._workers)
        ]

    def stop(self) -> None:
        """Ends all its processes and removes its folder. May be called again."""
        self._ending.close()

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<StandaloneCluster {self.url}>"


def run(
    *, workers: int = 2, cores: int = 1, memory: str = "1g", timeout: float = 60.0
) -> StandaloneCluster:
    """Starts a master and workers, and returns when all know each other.

    cores, memory: what each worker offers to executors.
    timeout: how many seconds that may take.

    Raises JavaNotFoundError, or Error with what Spark said when it does not start.
    """
    find_java()
    deadline = time.monotonic() + timeout
    with ExitStack() as ending:
        folder = Path(
            ending.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="jsclient-spark-", ignore_cleanup_errors=True
                )
            )
        )
        place = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        master = ending.enter_context(_node("master", [_MASTER, *place], folder))
        url = master.wait_for(r"Starting Spark master at (spark://\S+)", deadline)
        offer = ["--cores", str(cores), "--memory", memory]
        nodes = []
        for number in range(workers):
            work = ["--work-dir", str(folder / f"work-{number}")]
            words = [_WORKER, *place, *offer, *work, url]
            nodes.append(ending.enter_context(_node(f"worker-{number}", words, folder)))
        addresses = []
        for node in nodes:
            said = node.wait_for(r"Starting Spark worker (\S+:\d+)", deadline)
            addresses.append(said)
            node.wait_for(r"(Successfully registered) with master", deadline)
        return StandaloneCluster(url, folder, addresses, ending.pop_all())
    raise AssertionError("not reached")  # an ExitStack may swallow, this one does not


@contextmanager
def _node(name: str, words: list[str], folder: Path) -> Iterator[_Node]:
    import pyspark

    # The Spark that sessions of this process use too.
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    node = _Node(words, folder / f"{name}.log", home)
    try:
        yield node
    finally:
        node.stop()
