"""How fast Spark reads and writes a stream, and what that costs which process.

    python -m bench.spark                  # 200,000 and 2,000,000 messages of 128 bytes
    python -m bench.spark --messages 200000 --runs 5 --json bench/results/spark.json
    python -m bench.spark --only write --only batches

One server and one Spark on two cores. The cells of a part take turns, after one round
that is not counted, and each checks its result. The tables show medians, the slowest
and the fastest run, and whether a goal of the project is met.

read: each cell reads the whole stream into Spark's noop sink. `raw` drains it with the
client alone, `range` makes rows of the same columns inside the JVM. `plain` is a source
in plain Python, `tuples` one as one would write it first, with this client: a row
object per message.

write: `sink` writes as many rows with ids of their content to a stream on disk, `floor`
is the bare C program of the benchmark, which publishes messages with ids to the same
stream, and `columns` the client alone. All acks of the floor come to one subject, so
the server has less to do for it than for a client, which must know whose ack it is.

batches: what a micro-batch of five rows takes, from a source into a sink. `rate` is
Spark's own; `idle` is in Python and does nothing, so the rest is what we add to it.

A job of Spark begins and ends in about 0.1 s, which 200,000 rows show and 2,000,000 do
not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.facts import machine
from bench.spark_cells import Cell, Place, fill, reading, taken, writing
from jsclient.server import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
PARTS = ("read", "write", "batches")

Line = dict[str, Any]  # of a table: names and figures


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure of a cell is to be: at most or at least so much."""

    cell: str
    figure: str
    limit: float
    is_most: bool
    parts: int | None = None  # with so many; any without it

    def is_met(self, figure: float) -> bool:
        """Whether that is as good as it is to be."""
        return figure <= self.limit if self.is_most else figure >= self.limit


# Rates were asked for as 350 and 450 thousand rows a second where the client alone
# drains 450 to 490: they are ratios to the middle of that.
GOALS = (
    Goal("consumer", "client", 0.8, is_most=True),
    Goal("consumer", "of_raw", 350 / 470, is_most=False, parts=1),
    Goal("consumer", "of_raw", 450 / 470, is_most=False, parts=2),
    Goal("sink", "client", 3.0, is_most=True),
    Goal("sink", "of_floor", 0.85, is_most=False),
    Goal("jetstream>noop", "over_idle", 20.0, is_most=True),
    Goal("jetstream>jetstream", "over_idle", 20.0, is_most=True),
)


def judged(line: Line) -> Line:
    """The line with what is said about its goals; as it is if it has none."""
    goals = [
        goal
        for goal in GOALS
        if goal.cell == line["cell"] and goal.parts in (None, line["parts"])
    ]
    if not goals:
        return line
    missed = [
        f"{goal.figure} {line[goal.figure]:.2f} is to be at "
        f"{'most' if goal.is_most else 'least'} {goal.limit:.2f}"
        for goal in goals
        if not goal.is_met(line[goal.figure])
    ]
    return line | {"missed": missed}


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


def bench(
    spark: SparkSession,
    counts: Sequence[int],
    *,
    size: int = 128,
    runs: int = 3,
    splits: Sequence[int] = (1, 2),
    batches: int = 30,
    only: Sequence[str] = PARTS,
) -> dict[str, Any]:
    """Measures everything; prints each table when it is known."""
    from bench.spark_batches import IdleSource
    from bench.spark_plain import PlainSource
    from bench.spark_tuples import TupleSource

    for source in (TupleSource, PlainSource, IdleSource):
        spark.dataSource.register(source)
    results: list[Line] = []
    for count in counts:
        with started(spark, count, size) as place:
            if "read" in only:
                fill(place, count)
                results += shown(row_lines(place, reading(place, splits), runs, "raw"))
            if "write" in only:
                cells = writing(place, splits)
                results += shown(row_lines(place, cells, runs, "floor"))
    if "batches" in only:
        with tempfile.TemporaryDirectory() as folder, started(spark, 0, size) as place:
            results += shown(batch_lines(place, batches, runs, folder))
    return {"machine": machine(), "size": size, "runs": runs, "results": results}


@contextmanager
def started(spark: SparkSession, count: int, size: int) -> Iterator[Place]:
    """A place with a server of its own."""
    with run(jetstream=True) as server:
        assert server.pid is not None
        yield Place(spark, server.url, server.pid, count, size)


def row_lines(
    place: Place, cells: Sequence[Cell], runs: int, beside: str
) -> Iterator[Line]:
    """Rates and CPU times per row, and the rates beside that of one of the cells."""
    rates = f"{'rows/s':>9} {'slowest':>9} {'fastest':>9}"
    costs = f"{'client':>7} {'jvm':>7} {'server':>7}  us of CPU per row"
    print(f"{'messages':>9} {'cell':>9} {'parts':>5} {rates} {costs}")
    found = taken(cells, runs)
    (first,) = (
        place.count / statistics.median(sample["seconds"] for sample in samples)
        for (name, _), samples in found.items()
        if name == beside
    )
    for (name, parts), samples in found.items():
        seconds = [sample["seconds"] for sample in samples]
        rate = place.count / statistics.median(seconds)
        line = {
            "messages": place.count,
            "cell": name,
            "parts": parts,
            "rate": rate,
            "slowest": place.count / max(seconds),
            "fastest": place.count / min(seconds),
        }
        for who in ("client", "jvm", "server"):
            if who in samples[0]:
                spent = statistics.median(sample[who] for sample in samples)
                line[who] = spent / place.count * 1e6
        if name != beside:
            line[f"of_{beside}"] = rate / first
        yield judged(line)


def batch_lines(place: Place, batches: int, runs: int, folder: str) -> Iterator[Line]:
    """Milliseconds of a micro-batch and of its steps, and what we add to them."""
    from bench.spark_batches import STEPS, WHOLE, tiny_batches

    times = f"{'ms':>9} {'fastest':>9} {'slowest':>9}"
    steps = "".join(f" {step:>13}" for step in STEPS)
    print(f"{'source>sink':>25} {times}{steps}")
    found = taken(tiny_batches(place, batches, folder), runs)
    whole = {
        name: statistics.median(sample[WHOLE] for sample in samples)
        for (name, _), samples in found.items()
    }
    for (name, parts), samples in found.items():
        line = {
            "cell": name,
            "parts": parts,
            "ms": whole[name],
            "fastest": min(sample[WHOLE] for sample in samples),
            "slowest": max(sample[WHOLE] for sample in samples),
            **{
                step: statistics.median(sample[step] for sample in samples)
                for step in STEPS
            },
        }
        if "jetstream" in name:
            idle = whole[name.replace("jetstream", "idle")]
            line["over_idle"] = whole[name] - idle
        yield judged(line)


def shown(lines: Iterator[Line]) -> Iterator[Line]:
    """The same lines, printed."""
    for line in lines:
        print(batch_text(line) if "ms" in line else row_text(line), flush=True)
        yield line


def row_text(line: Line) -> str:
    """One line of the tables of rows."""
    rates = "".join(f" {line[name]:>9,.0f}" for name in ("rate", "slowest", "fastest"))
    costs = "".join(
        f" {line[who]:7.2f}" if who in line else f" {'':7}"
        for who in ("client", "jvm", "server")
    )
    beside = "".join(
        f"  {line[f'of_{name}']:.2f} x {name}"
        for name in ("raw", "floor")
        if f"of_{name}" in line
    )
    head = f"{line['messages']:>9} {line['cell']:>9} {line['parts']:>5}"
    return f"{head}{rates}{costs}{beside}{verdict(line)}"


def batch_text(line: Line) -> str:
    """One line of the table of batches."""
    from bench.spark_batches import STEPS

    times = "".join(f" {line[name]:>9.1f}" for name in ("ms", "fastest", "slowest"))
    steps = "".join(f" {line[step]:>13.1f}" for step in STEPS)
    over = f"  {line['over_idle']:+.1f} ms" if "over_idle" in line else ""
    return f"{line['cell']:>25}{times}{steps}{over}{verdict(line)}"


def verdict(line: Line) -> str:
    """What is said about the goals of a line."""
    if "missed" not in line:
        return ""
    return f"  MISSED: {'; '.join(line['missed'])}" if line["missed"] else "  met"


def asked(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, action="append", help="how many")
    parser.add_argument("--size", type=int, default=128, help="bytes of a payload")
    parser.add_argument("--runs", type=int, default=3, help="that count, per cell")
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="a part of it; may be repeated"
    )
    parser.add_argument("--json", type=Path, help="where all figures are written to")
    chosen = parser.parse_args(arguments)
    chosen.messages = chosen.messages or [200_000, 2_000_000]
    chosen.only = chosen.only or list(PARTS)
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark as the command line says."""
    chosen = asked(arguments)
    with tempfile.TemporaryDirectory() as folder:
        spark = start_spark(folder)
        document = bench(
            spark,
            chosen.messages,
            size=chosen.size,
            runs=chosen.runs,
            only=chosen.only,
        )
        spark.stop()
    if chosen.json is not None:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
