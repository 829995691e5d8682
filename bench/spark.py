"""How fast Spark reads and writes a stream, and what that costs which process.

    python -m bench.spark                  # 200,000 and 2,000,000 messages of 128 bytes
    python -m bench.spark --messages 200000 --runs 5 --json bench/results/spark.json
    python -m bench.spark --only write

One server and one Spark on two cores. Each cell reads the whole stream into Spark's
noop sink, after one run that is not counted; the table shows the best rate and the
median CPU time per row. `raw` drains the stream with the client alone, `rate` is a
source of Spark's own without Python, and `tuples` is a source as one would write it
first: a row object per message.

`sink` writes as many rows with ids of their content to a stream on disk, `floor` is the
bare C program of the benchmark, which publishes messages with ids to the same stream,
and `columns` the client alone. They take turns, and the last column is their rate
beside the floor's. All acks of the floor come to one subject, so the server has less to
do for it than for a client, which must know whose ack it is. A job of Spark begins and
ends in about 0.1 s, which 200,000 rows show and 2,000,000 do not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsclient
from bench.clients import compiled
from bench.facts import machine
from bench.peers.meter import STORED
from bench.peers.meter import STREAM as FLOOR_STREAM
from jsclient.server import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
STREAM = "BENCH"
PARTS = ("read", "write")


# CPU time of other processes ----------------------------------------------------------


def processes() -> dict[int, tuple[int, float, str]]:
    """Parent, CPU seconds with those of dead children, and name of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        seconds = sum(map(int, fields[11:15])) / TICKS
        found[int(folder.name)] = int(fields[1]), seconds, name
    return found


def cpu(jvm: int, server: int) -> dict[str, float]:
    """CPU seconds so far of the server, the JVM, and the Pythons that it started."""
    known = processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in known.items():
        children.setdefault(parent, []).append(pid)
    below, waiting = [], list(children.get(jvm, ()))
    while waiting:
        pid = waiting.pop()
        below.append(pid)
        waiting += children.get(pid, ())
    return {
        "python": sum(known[pid][1] for pid in below),
        "jvm": known[jvm][1],
        "server": known[server][1],
    }


# What is measured ---------------------------------------------------------------------


def cells(
    spark: SparkSession, url: str, count: int, splits: Sequence[int], folder: str
) -> Iterator[tuple[str, int, Callable[[], None]]]:
    """Name, partitions and work of every cell."""

    def read(name: str, parts: int, **options: Any) -> Callable[[], None]:
        given = {"servers": url, "stream": STREAM, "numPartitions": parts, **options}

        def work() -> None:
            frame = spark.read.format(name).options(**given).load()
            frame.write.format("noop").mode("overwrite").save()

        return work

    def rate(parts: int) -> Callable[[], None]:
        def work() -> None:
            source = spark.readStream.format("rate-micro-batch")
            options = {"rowsPerBatch": count, "numPartitions": parts}
            with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
                query = (
                    source.options(**options)
                    .load()
                    .writeStream.format("noop")
                    .option("checkpointLocation", checkpoint)
                    .trigger(once=True)
                    .start()
                )
                query.awaitTermination()

        return work

    for parts in splits:
        yield "consumer", parts, read("jetstream", parts, readMode="consumer")
        yield "direct", parts, read("jetstream", parts, readMode="direct")
        yield "tuples", parts, read("jetstream-tuples", parts)
        yield "rate", parts, rate(parts)


def store(
    spark: SparkSession, url: str, count: int, size: int, parts: int
) -> Callable[[], None]:
    """The work of writing rows of different content to the floor's stream."""
    rows = spark.range(0, count, 1, parts).selectExpr(
        f"lpad(CAST(id AS STRING), {size}, 'x') AS data"
    )
    given = {"servers": url, "stream": FLOOR_STREAM, "subject": STORED}

    def work() -> None:
        rows.write.format("jetstream").options(**given).mode("append").save()

    return work


def empty(url: str) -> None:
    """Makes the stream of the floor anew, on disk."""
    with jsclient.connect(url) as nc:
        js = nc.jetstream()
        if FLOOR_STREAM in js.stream_names():
            js.delete_stream(FLOOR_STREAM)
        js.create_stream(name=FLOOR_STREAM, subjects=[STORED])


def floor(url: str, count: int, size: int) -> tuple[float, float]:
    """Seconds and CPU seconds of the C program that publishes messages with ids."""
    command = [str(compiled("floor.c")), url, "jsrows", str(count), str(size)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300)
    found: dict[str, float] = json.loads(answer.stdout)
    return found["seconds"], found["cpu_user"] + found["cpu_sys"]


def store_alone(url: str, count: int, size: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process, to write them without Spark."""
    from bench.peers.jsclient_worker import ROWS, numbered_rows

    batches = [
        numbered_rows(first, min(ROWS, count - first), size)
        for first in range(0, count, ROWS)
    ]
    with jsclient.connect(url) as nc:
        began, spent = time.perf_counter(), time.process_time()
        nc.jetstream().publish_columns(
            batches, content_ids="bench-0-0-", expected_stream=FLOOR_STREAM
        )
        return time.perf_counter() - began, time.process_time() - spent


def drain(url: str, count: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process, to read the stream without Spark."""
    with jsclient.connect(url) as nc:
        consumer = nc.jetstream().stream(STREAM).create_consumer(ack_policy="none")
        began, spent = time.perf_counter(), time.process_time()
        with consumer.batches(max_bytes=8 << 20, stop_after=count) as batches:
            left = count
            while left:
                left -= len(batches.next(30))
        found = time.perf_counter() - began, time.process_time() - spent
        consumer.delete()
    return found


def measure(work: Callable[[], None], look: Callable[[], dict[str, float]]) -> Any:
    """Seconds of one run, and the CPU seconds of each kind of process."""
    before = look()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    after = look()
    return {"seconds": seconds, **{name: after[name] - before[name] for name in after}}


def fill(url: str, count: int, size: int) -> None:
    """Makes the stream anew, with so many messages."""
    with jsclient.connect(url) as nc:
        js = nc.jetstream()
        if STREAM in js.stream_names():
            js.delete_stream(STREAM)
        js.create_stream(name=STREAM, subjects=["b.>"], allow_direct=True)
        payload = b"x" * size
        for _ in js.publish_all((f"b.{n % 16}", payload) for n in range(count)):
            pass


def start_spark(folder: str) -> SparkSession:
    """A session on two cores, whose workers find this package."""
    from pyspark.sql import SparkSession

    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", folder)
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


# The table ----------------------------------------------------------------------------


def bench(
    spark: SparkSession,
    counts: Sequence[int],
    *,
    size: int = 128,
    runs: int = 3,
    splits: Sequence[int] = (1, 2),
    only: Sequence[str] = PARTS,
) -> dict[str, Any]:
    """Measures everything; prints each line when it is known."""
    from bench.spark_tuples import TupleSource

    spark.dataSource.register(TupleSource)
    results: list[Line] = []
    with tempfile.TemporaryDirectory() as folder, run(jetstream=True) as server:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        jvm = gateway.proc.pid
        assert server.pid is not None
        server_pid = server.pid

        def look() -> dict[str, float]:
            return cpu(jvm, server_pid)

        print(f"{'messages':>9} {'cell':>9} {'parts':>5} {'rows/s':>9}", end="")
        print(f" {'python':>7} {'jvm':>7} {'server':>7}  us of CPU per row")
        for count in counts:
            if "read" in only:
                lines = source_lines(
                    spark, server.url, count, size, runs, splits, look, folder
                )
                results += shown(lines)
            if "write" in only:
                lines = sink_lines(spark, server.url, count, size, runs, splits, look)
                results += shown(lines)
    return {"machine": machine(), "size": size, "runs": runs, "results": results}


Line = dict[str, Any]  # of the table: names and figures
Look = Callable[[], dict[str, float]]  # CPU seconds so far of each kind of process


def source_lines(
    spark: SparkSession,
    url: str,
    count: int,
    size: int,
    runs: int,
    splits: Sequence[int],
    look: Look,
    folder: str,
) -> Iterator[Line]:
    """What reading costs, cell by cell."""
    fill(url, count, size)
    yield alone(count, "raw", [drain(url, count) for _ in range(runs + 1)][1:])
    for name, parts, work in cells(spark, url, count, splits, folder):
        found = [measure(work, look) for _ in range(runs + 1)]
        yield summary(count, name, parts, found[1:])


def sink_lines(
    spark: SparkSession,
    url: str,
    count: int,
    size: int,
    runs: int,
    splits: Sequence[int],
    look: Look,
) -> Iterator[Line]:
    """What writing costs; runs begin with an empty stream, and the cells take turns."""
    works = {parts: store(spark, url, count, size, parts) for parts in splits}
    bare: list[tuple[float, float]] = []
    columns: list[tuple[float, float]] = []
    sinks: dict[int, list[dict[str, float]]] = {parts: [] for parts in splits}
    for _ in range(runs + 1):
        empty(url)
        bare.append(floor(url, count, size))
        empty(url)
        columns.append(store_alone(url, count, size))
        for parts, work in works.items():
            empty(url)
            sinks[parts].append(measure(work, look))
    first = alone(count, "floor", bare[1:])
    yield first
    for line in (
        alone(count, "columns", columns[1:]),
        *(summary(count, "sink", parts, found[1:]) for parts, found in sinks.items()),
    ):
        yield line | {"of_floor": line["rate"] / first["rate"]}


def alone(count: int, name: str, samples: Sequence[tuple[float, float]]) -> Line:
    """The best rate and the median CPU time of runs without Spark."""
    spent = statistics.median(cpu_time for _, cpu_time in samples)
    rate = count / min(seconds for seconds, _ in samples)
    line = {"messages": count, "cell": name, "parts": 1, "rate": rate}
    return line | {"python": spent / count * 1e6}


def summary(
    count: int, name: str, parts: int, samples: Sequence[dict[str, float]]
) -> Line:
    """The best rate and the median CPU times of some runs."""
    return {
        "messages": count,
        "cell": name,
        "parts": parts,
        "rate": count / min(sample["seconds"] for sample in samples),
        **{
            who: statistics.median(sample[who] for sample in samples) / count * 1e6
            for who in ("python", "jvm", "server")
        },
    }


def shown(lines: Iterator[Line]) -> Iterator[Line]:
    """The same lines, printed."""
    for line in lines:
        show(line)
        yield line


def show(line: Line) -> None:
    """One line of the table."""
    figures = "".join(
        f" {line[who]:7.2f}" if who in line else f" {'':7}"
        for who in ("python", "jvm", "server")
    )
    beside = f"  {line['of_floor']:.2f} x floor" if "of_floor" in line else ""
    head = f"{line['messages']:>9} {line['cell']:>9} {line['parts']:>5}"
    print(f"{head} {line['rate']:>9,.0f}{figures}{beside}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--messages", type=int, action="append", help="how many")
    parser.add_argument("--size", type=int, default=128, help="bytes of a payload")
    parser.add_argument("--runs", type=int, default=3, help="that count, per cell")
    parser.add_argument("--only", choices=PARTS, help="a part of it")
    parser.add_argument("--json", type=Path, help="where all figures are written to")
    chosen = parser.parse_args(arguments)
    counts = chosen.messages or [200_000, 2_000_000]
    with tempfile.TemporaryDirectory() as folder:
        spark = start_spark(folder)
        only = [chosen.only] if chosen.only else PARTS
        document = bench(spark, counts, size=chosen.size, runs=chosen.runs, only=only)
        spark.stop()
    if chosen.json is not None:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
