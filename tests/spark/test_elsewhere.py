"""The format in SQL, through Spark Connect and in declarative pipelines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Server
from tests.spark.readers import HAS_LIMITS, since_41

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
MESSAGES = 1000


@pytest.fixture
def filled(js: JetStream) -> JetStream:
    """The stream IN with numbers, and an empty stream OUT."""
    js.create_stream(name="IN", subjects=["in"], storage="memory")
    js.create_stream(name="OUT", subjects=["out"], storage="memory")
    js.create_stream(name="SUMS", subjects=["sums"], storage="memory")
    for ack in js.publish_all(("in", b'{"n": %d}' % n) for n in range(MESSAGES)):
        assert isinstance(ack, jsclient.PubAck)
    return js


def payloads(js: JetStream, name: str) -> list[str]:
    stream = js.stream(name)
    with stream.ordered_consumer().messages(
        stop_after=stream.info().state.messages
    ) as messages:
        return sorted(msg.data.decode() for msg in messages)


@since_41  # it inserts only what has all columns
def test_sql_reads_and_writes_streams(
    spark: SparkSession, filled: JetStream, jetstream_server: Server
) -> None:
    place = f"servers '{jetstream_server.url}'"
    spark.sql(
        "create or replace temporary view numbers using jetstream "
        f"options ({place}, stream 'IN')"
    )
    spark.sql(
        "create or replace temporary view results using jetstream "
        f"options ({place}, stream 'OUT', subject 'out')"
    )
    (row,) = spark.sql(
        "select count(*) as count, sum(get_json_object(string(data), '$.n')) as sum "
        "from numbers"
    ).collect()
    assert (row["count"], row["sum"]) == (MESSAGES, MESSAGES * (MESSAGES - 1) / 2)
    spark.sql("insert into results (data) select data from numbers")
    assert payloads(filled, "OUT") == payloads(filled, "IN")


def run_there(
    command: list[str], environment: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return answer


@pytest.fixture(scope="module")
def remote(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a Spark Connect server."""
    pytest.importorskip("grpc")
    import pyspark

    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    folder = tmp_path_factory.mktemp("connect")
    # As the guide says, only that it stays in the foreground and leaves nothing behind.
    places = {
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOG_DIR": str(folder),
        "SPARK_PID_DIR": str(folder),
    }
    script = home / "sbin" / "start-connect-server.sh"
    program, what = [str(script)], []
    if not script.exists():  # before 4.3
        program = [str(home / "bin" / "spark-submit"), "--class", CONNECT_SERVER]
        what = ["spark-internal"]
    with subprocess.Popen(
        [
            *(*program, "--master", "local[2]"),
            *(f"--conf={name}={value}" for name, value in settings.items()),
            *what,
        ],
        env={**os.environ, **spark_environment, **places},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            started = re.search(r"Spark Connect server started at: .*:(\d+)", line)
            if started is not None:
                break
        else:
            pytest.fail("".join(said))
        # Nobody is held up because nobody reads what it says.
        drain = threading.Thread(target=server.stdout.read)
        drain.start()
        yield f"sc://127.0.0.1:{started[1]}"
        os.killpg(server.pid, signal.SIGTERM)  # with what the script has started
        drain.join()


@pytest.mark.slow
def test_a_remote_session_reads_writes_and_runs_pipelines(
    remote: str,
    filled: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    job = [sys.executable, str(HERE / "connect_job.py"), remote]
    job += [jetstream_server.url, str(tmp_path)]
    answer = run_there(job, spark_environment, tmp_path)
    total = MESSAGES * (MESSAGES - 1) // 2
    assert json.loads(answer.stdout.splitlines()[-1]) == {
        "read": [MESSAGES, total],
        "lag": [400, 0] if HAS_LIMITS else [None],
        "copies": MESSAGES,
    }
    assert payloads(filled, "OUT") == payloads(filled, "IN")
    assert f'{{"n":{total}}}' in payloads(filled, "SUMS")


SPEC = """
name: numbers
storage: file://{folder}/storage
libraries:
  - glob:
      include: flows.py
configuration:
  spark.sql.shuffle.partitions: "2"
"""
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
options = {"servers": "NATS_URL"}


@dp.table
def numbers():
    return (
        spark.readStream.format("jetstream").options(stream="IN", **options).load()
    )


dp.create_sink("out", "jetstream", {"stream": "OUT", "subject": "out", **options})


@dp.append_flow(target="out")
def copies():
    return spark.readStream.table("numbers").select("data")
"""


@pytest.mark.slow
def test_declarative_pipelines_read_and_write_streams(
    remote: str,
    filled: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    pytest.importorskip("yaml")
    import pyspark

    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    flows = FLOWS.replace("NATS_URL", jetstream_server.url)
    (tmp_path / "flows.py").write_text(flows)
    program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    command = [str(program), "--remote", remote, "run"]
    run_there(command, spark_environment, tmp_path)
    assert payloads(filled, "OUT") == payloads(filled, "IN")
