"""`jsclient pipeline run` as a process: its lines, its signals, its exit status."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jsclient
from jsclient.__main__ import main
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.spark.pipeline.description import PipelineError
from jsclient.spark.pipeline.session import is_remote
from jsclient.spark.pipeline.streams import check_streams
from jsclient.spark.pipeline.toml import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATES = """
[pipeline]
name = "rates"
checkpoint = "checkpoints"
master = "local[2]"
trigger = "100 milliseconds"

[spark]
ui.enabled = false

[source.rates]
stream = "RATES"
servers = "${NATS_URL}"
maxRecordsPerTrigger = 10
schema = "sequence BIGINT"

[sink.files]
from = "rates"
format = "parquet"
path = "rates"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rates.toml"
    path.write_text(RATES)
    return path


def test_a_signal_ends_it_after_the_running_batch_and_the_rest_is_done_next_time(
    spark: SparkSession,
    js: JetStream,
    jetstream_server: Server,
    spark_environment: dict[str, str],
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def publish(count: int) -> None:
        for ack in js.publish_all(("rates", b"") for _ in range(count)):
            assert isinstance(ack, jsclient.PubAck)

    js.create_stream(name="RATES", subjects=["rates"], storage="memory")
    publish(9_000)
    monkeypatch.setenv("NATS_URL", jetstream_server.url)
    with subprocess.Popen(
        [sys.executable, "-m", "jsclient", "pipeline", "run", str(file)],
        env={**os.environ, **spark_environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        batches = []
        try:
            for line in process.stderr:
                if line.startswith("{"):
                    batches.append(json.loads(line))
                    if len(batches) == 1:
                        publish(1_000)  # before Spark 4.2 the first batch had all
                    if len(batches) == 2:
                        # As a terminal does it: Spark's processes get it too.
                        os.killpg(process.pid, signal.SIGINT)
                assert "Traceback" not in line
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # else it would be waited for
            raise
    assert process.returncode == 0
    assert [batch["batch"] for batch in batches] == list(range(len(batches)))
    folder = file.parent / "checkpoints" / "files"
    assert (folder / "commits" / str(len(batches) - 1)).exists()

    text = file.read_text().replace("Trigger = 10\n", "Trigger = 10000\n")
    file.write_text(text)
    # Before Spark 4.2 a batch that was cut short is one of its own.
    for _ in range(2 if spark.version < "4.2" else 1):
        assert main(["pipeline", "run", str(file), "--once"]) == 0
    rows = spark.read.parquet(str(file.parent / "rates")).collect()
    assert sorted(row.sequence for row in rows) == list(range(1, 10_001))


@pytest.mark.parametrize("line", ["", "Setting Spark log level"])
def test_ctrl_c_ends_a_spark_that_starts_with_one_line(
    jetstream_server: Server, spark_environment: dict[str, str], file: Path, line: str
) -> None:
    env = {**os.environ, **spark_environment, "NATS_URL": jetstream_server.url}
    with subprocess.Popen(
        [sys.executable, "-m", "jsclient", "pipeline", "run", str(file)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            # The JVM speaks as soon as it runs, and of its logs when it has a context.
            for said in process.stdout:
                if line in said:
                    break
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
            # This has an end when no process is left that could say something.
            rest = process.stdout.read()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 130
    assert rest.endswith("\ninterrupted\n")
    assert not re.search("Traceback|Exception|ERROR|^\\s+at ", rest, re.MULTILINE), rest


SCREEN = """
[pipeline]
name = "screen"
checkpoint = "checkpoints"
master = "local[2]"

[spark]
ui.enabled = false

[source.words]
stream = "WORDS"
servers = "${NATS_URL}"

[transform.texts]
sql = "select string(data) as word from words"

[sink.screen]
from = "texts"
format = "console"
"""


def test_a_console_sink_prints_the_rows_of_each_batch(
    js: JetStream,
    jetstream_server: Server,
    no_search: dict[str, str],
    tmp_path: Path,
) -> None:
    js.create_stream(name="WORDS", subjects=["words"], storage="memory")
    for word in (b"first", b"second"):
        js.publish("words", word)
    file = tmp_path / "screen.toml"
    file.write_text(SCREEN)
    env = {**os.environ, **no_search, "NATS_URL": jetstream_server.url}
    del env["SPARK_HOME"]  # once, Spark is as pip has installed it
    # The rows are printed by the JVM, which has its output from the command. That Spark
    # finds no formats by itself does not matter.
    answer = subprocess.run(
        [sys.executable, "-m", "jsclient", "pipeline", "run", str(file), "--once"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert "Batch: 0" in answer.stdout
    printed = re.findall(r"^\| *(\w+) *\|$", answer.stdout, re.MULTILINE)
    assert printed == ["word", "first", "second"]
    told = [json.loads(line) for line in answer.stderr.splitlines() if line[:1] == "{"]
    assert [(line["query"], line["rows"]) for line in told] == [("screen.screen", 2)]


def test_a_file_with_a_mistake_is_told_in_one_line_without_starting_spark(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(RATES.replace("checkpoint", "chekpoint").replace("${", "$${"))
    assert main(["pipeline", "run", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"jsclient: {file}: [pipeline] chekpoint: there is no such key; "
        "did you mean checkpoint?\n"
    )


COPIES = """
[sink.copies]
from = "rates"
stream = "COPIES"
servers = "${NATS_URL}"
"""
Validate = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def validate(
    spark: SparkSession,
    js: JetStream,
    jetstream_server: Server,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Validate:
    """Validates a text: the exit status, and what was said about it."""

    def command(text: str, *words: str, url: str = jetstream_server.url) -> Any:
        file.write_text(text)
        monkeypatch.setenv("NATS_URL", url)
        status = main(["pipeline", "run", str(file), "--validate", *words])
        said = capsys.readouterr()
        return status, said.out, said.err.replace(f"jsclient: {file}: ", "")

    return command


def test_validating_prints_the_columns_of_all_tables(
    js: JetStream, validate: Validate
) -> None:
    js.create_stream(name="RATES", subjects=["rates"], storage="memory")
    assert validate(RATES) == (0, "rates: struct<sequence:bigint>\n", "")


def test_validating_names_the_table_whose_stream_is_missing(
    js: JetStream, validate: Validate
) -> None:
    said = "[source.rates] stream: there is no stream 'RATES'\n"
    assert validate(RATES) == (2, "", said)
    js.create_stream(name="RATES", subjects=["rates"], storage="memory")
    said = "[sink.copies] stream: there is no stream 'COPIES'\n"
    assert validate(RATES + COPIES) == (2, "", said)


def test_validating_names_the_sink_whose_rows_no_stream_could_store(
    js: JetStream, validate: Validate
) -> None:
    for name in ("RATES", "COPIES"):
        js.create_stream(name=name, subjects=[name.lower()], storage="memory")
    status, out, err = validate(RATES + COPIES)
    assert (status, out) == (2, "")
    assert err == "[sink.copies] from: there is no column 'data'\n"


def test_validating_without_servers_says_what_was_not_checked(
    validate: Validate,
) -> None:
    text = RATES.replace('schema = "sequence BIGINT"\n', "") + COPIES
    status, out, err = validate(text, url="nats://127.0.0.1:1")
    assert status == 0
    assert out.startswith("rates: struct<subject:string,")
    first, second = err.splitlines()
    assert first.startswith("not checked: [source.rates] servers: no server answers")
    assert second.startswith("not checked: [sink.copies] servers: no server answers")


def test_validating_tells_credentials_that_are_refused(validate: Validate) -> None:
    with run(jetstream=True, users={"u": "hidden-password"}) as server:
        url = f"nats://u:hidden-mistake@127.0.0.1:{server.port}"
        status, out, err = validate(RATES, url=url)
    assert (status, out) == (2, "")
    assert err.startswith("[source.rates] servers: the server refuses us: ")
    assert "hidden" not in err


def test_for_a_driver_elsewhere_only_a_missing_stream_is_wrong(
    js: JetStream, jetstream_server: Server
) -> None:
    env = {"NATS_URL": jetstream_server.url}
    pipeline = parse(RATES, env=env)
    assert not is_remote(pipeline)
    assert is_remote(pipeline, "sc://spark.example.com")
    with pytest.raises(PipelineError, match="there is no stream 'RATES'"):
        check_streams(pipeline, is_here=False)
    text = RATES.replace("[source.rates]", '[source.rates]\ncreds = "/there/creds"')
    with pytest.raises(PipelineError, match=r"^\[source.rates\] creds: "):
        check_streams(parse(text, env=env))
    (unchecked,) = check_streams(parse(text, env=env), is_here=False)
    assert unchecked.startswith("[source.rates] creds: ")


def test_without_java_it_says_how_to_get_it(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    spark_environment: dict[str, str],
) -> None:
    env = {**os.environ, "JAVA_HOME": "/nowhere", "NATS_URL": "nats://127.0.0.1:1"}
    answer = subprocess.run(
        [sys.executable, "-m", "jsclient", "pipeline", "run", str(file)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("jsclient: Spark needs Java 17 or newer")
    assert answer.stderr.count("\n") == 1


@pytest.mark.skipif(
    importlib.util.find_spec("delta") is not None, reason="delta is installed"
)
def test_a_table_of_delta_needs_its_package(
    file: Path, spark_environment: dict[str, str]
) -> None:
    file.write_text(RATES.replace("parquet", "delta"))
    answer = subprocess.run(
        [sys.executable, "-m", "jsclient", "pipeline", "run", str(file)],
        env={**os.environ, **spark_environment, "NATS_URL": "nats://127.0.0.1:1"},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 2
    assert answer.stderr == (
        f"jsclient: {file}: [sink.files] format: delta needs a package: "
        "pip install delta-spark\n"
    )
