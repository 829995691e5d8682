"""What the benchmark of Spark measures: reading a stream whole, and writing one.

A run of a cell says how long it took and what it cost whom. One whose result is wrong
is no run: it raises. The cells take turns, so that a slow minute meets all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import jsclient
from bench.clients import compiled
from bench.peers.meter import STORED
from bench.peers.meter import STREAM as FLOOR_STREAM
from bench.runner import show_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "READ"
UNCOUNTED = 1  # rounds before those that count
TICKS = os.sysconf("SC_CLK_TCK")

Sample = dict[str, float]  # of one run: seconds, and CPU seconds by kind of process


class WrongResultError(Exception):
    """A run did not do what it was measured for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Work that is measured."""

    name: str
    parts: int
    take: Callable[[], Sample]  # one run


@dataclass(frozen=True, slots=True)
class Place:
    """Where cells run, and how much they do."""

    spark: SparkSession
    url: str
    server: int  # its process
    count: int
    size: int


def taken(cells: Sequence[Cell], runs: int) -> dict[tuple[str, int], list[Sample]]:
    """The samples of all cells, which take turns; the first round is not counted."""
    found: dict[tuple[str, int], list[Sample]] = {
        (cell.name, cell.parts): [] for cell in cells
    }
    for number in range(1 - UNCOUNTED, runs + 1):
        turn = number % len(cells)
        for cell in [*cells[turn:], *cells[:turn]]:
            show_progress(f"{cell.name}, {cell.parts}, run {number} of {runs}")
            sample = cell.take()
            if number > 0:
                found[cell.name, cell.parts].append(sample)
    show_progress("")
    return found


def check(what: str, found: int, expected: int) -> None:
    """Raises if something is not as many as it must be."""
    if found != expected:
        raise WrongResultError(f"{what}: {found}, not {expected}")


# CPU time of other processes ----------------------------------------------------------


def processes() -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds, with those of dead children, of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = text.rpartition(")")[2].split()
        found[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    return found


def cpu(place: Place) -> Sample:
    """CPU seconds so far of the server, the JVM, and the Pythons that it started."""
    gateway = place.spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc.pid
    known = processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    below, waiting = [], list(children.get(jvm, ()))
    while waiting:
        pid = waiting.pop()
        below.append(pid)
        waiting += children.get(pid, ())
    return {
        "client": sum(known[pid][1] for pid in below),
        "jvm": known[jvm][1],
        "server": known[place.server][1],
    }


def measured(work: Callable[[], None], place: Place) -> Sample:
    """Seconds of one run, and the CPU seconds of each kind of process."""
    before = cpu(place)
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    after = cpu(place)
    return {"seconds": seconds, **{name: after[name] - before[name] for name in after}}


# Reading ------------------------------------------------------------------------------


def reading(place: Place, splits: Sequence[int]) -> list[Cell]:
    """The cells that read the stream into Spark's noop sink, and the client alone."""
    spark = place.spark

    def stream(name: str, parts: int, **options: Any) -> Cell:
        where = {"servers": place.url, "stream": STREAM}
        given: dict[str, Any] = {**where, "numPartitions": parts, **options}
        return into_noop(
            options.get("readMode", name.removeprefix("jetstream-")),
            parts,
            lambda: spark.read.format(name).options(**given).load(),
        )

    def into_noop(name: str, parts: int, frame: Callable[[], DataFrame]) -> Cell:
        def work() -> None:
            frame().write.format("noop").mode("overwrite").save()

        def take() -> Sample:
            group = new_group(spark)
            sample = measured(work, place)
            check(f"rows of {name}", rows_read(spark, group), place.count)
            return sample

        return Cell(name, parts, take)

    def rows(parts: int) -> DataFrame:
        return spark.range(1, place.count + 1, 1, parts).selectExpr(
            "'b.1' AS subject",
            f"CAST(repeat('x', {place.size}) AS BINARY) AS data",
            "CAST(map() AS MAP<STRING, ARRAY<STRING>>) AS headers",
            "id AS sequence",
            "timestamp_millis(0) AS timestamp",
            f"'{STREAM}' AS stream",
        )

    cells = [Cell("raw", 1, lambda: drained(place))]
    for parts in splits:
        cells += [
            stream("jetstream", parts, readMode="consumer"),
            stream("jetstream", parts, readMode="direct"),
            stream("jetstream-plain", parts),
            stream("jetstream-tuples", parts),
            into_noop("range", parts, partial(rows, parts)),
        ]
    return cells


def fill(place: Place, count: int) -> None:
    """Makes the stream that is read, with so many messages."""
    with jsclient.connect(place.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name=STREAM, subjects=["b.>"], allow_direct=True)
        payload = b"x" * place.size
        for _ in js.publish_all((f"b.{n % 16}", payload) for n in range(count)):
            pass
        check("messages to read", stream.info().state.messages, count)


def drained(place: Place) -> Sample:
    """One run of the client alone, in this process."""
    with jsclient.connect(place.url) as nc:
        consumer = nc.jetstream().stream(STREAM).create_consumer(ack_policy="none")
        began, spent = time.perf_counter(), time.process_time()
        left, total = place.count, 0
        with consumer.batches(max_bytes=8 << 20, stop_after=left) as batches:
            while left:
                batch = batches.next(30)
                left -= len(batch)
                total += len(batch.data)
        sample = alone(began, spent)
        consumer.delete()
    check("bytes of raw", total, place.count * place.size)
    return sample


def alone(began: float, spent: float) -> Sample:
    """What this process has used since then."""
    return {
        "seconds": time.perf_counter() - began,
        "client": time.process_time() - spent,
    }


def new_group(spark: SparkSession) -> str:
    """A name for the jobs from now on, by which Spark finds them again."""
    name = f"bench-{uuid4().hex}"
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", name)
    return name


def rows_read(spark: SparkSession, group: str) -> int:
    """How many rows those jobs read, as Spark counts them anyway."""
    context = spark.sparkContext
    java = context._jsc.sc()
    java.listenerBus().waitUntilEmpty()
    jobs = [
        context.statusTracker().getJobInfo(job)
        for job in context.statusTracker().getJobIdsForGroup(group)
    ]
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    store = java.statusStore()
    return sum(store.lastStageAttempt(stage).inputRecords() for stage in stages)


# Writing ------------------------------------------------------------------------------


def writing(place: Place, splits: Sequence[int]) -> list[Cell]:
    """The cells that publish messages with ids, each run to an empty stream."""

    def into_stream(name: str, parts: int, work: Callable[[], Sample]) -> Cell:
        def take() -> Sample:
            with jsclient.connect(place.url) as nc:
                js = nc.jetstream()
                # Not one that was just read: a server that is still deleting its
                # consumers may fail to make it anew.
                if FLOOR_STREAM in js.stream_names():
                    js.delete_stream(FLOOR_STREAM)
                stream = js.create_stream(name=FLOOR_STREAM, subjects=[STORED])
                sample = work()
                stored = stream.info().state.messages
            check(f"messages of {name}", stored, place.count)
            return sample

        return Cell(name, parts, take)

    def sink(parts: int) -> Callable[[], Sample]:
        rows = place.spark.range(0, place.count, 1, parts).selectExpr(
            f"lpad(CAST(id AS STRING), {place.size}, 'x') AS data"
        )
        given = {"servers": place.url, "stream": FLOOR_STREAM, "subject": STORED}

        def work() -> None:
            rows.write.format("jetstream").options(**given).mode("append").save()

        return lambda: measured(work, place)

    return [
        into_stream("floor", 1, lambda: floor(place)),
        into_stream("columns", 1, lambda: stored_alone(place)),
        *(into_stream("sink", parts, sink(parts)) for parts in splits),
    ]


def floor(place: Place) -> Sample:
    """One run of the C program that publishes messages with ids."""
    numbers = [str(place.count), str(place.size)]
    command = [str(compiled("floor.c")), place.url, "jsrows", *numbers]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300)
    found: Sample = json.loads(answer.stdout)
    spent = found["cpu_user"] + found["cpu_sys"]
    return {"seconds": found["seconds"], "client": spent}


def stored_alone(place: Place) -> Sample:
    """One run of the client alone, in this process."""
    from bench.peers.jsclient_worker import ROWS, numbered_rows

    batches = [
        numbered_rows(first, min(ROWS, place.count - first), place.size)
        for first in range(0, place.count, ROWS)
    ]
    with jsclient.connect(place.url) as nc:
        began, spent = time.perf_counter(), time.process_time()
        nc.jetstream().publish_columns(
            batches, content_ids="bench-0-0-", expected_stream=FLOOR_STREAM
        )
        return alone(began, spent)
