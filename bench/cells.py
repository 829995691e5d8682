"""What is measured: one row of CELLS per cell, one Figure per number that it gives.

A worker returns a sample, a flat mapping of numbers with times in seconds and sizes in
bytes. A figure is computed from one sample; what the table shows is the median of the
figure over all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

Sample = Mapping[str, float]


class Beside(Enum):
    """What has to run beside the worker."""

    NOTHING = "nothing"
    LOAD = "load"  # the floor publishes when the worker says READY
    ECHO = "echo"  # the floor answers requests
    STREAM = "stream"  # the floor has made an empty stream
    FILLED = (
        "filled"  # the floor has made a stream with as many messages, and consumers
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a cell; `of` gives None when the sample cannot tell."""

    name: str
    of: Callable[[Sample], float | None]
    is_flag: bool = False  # shown as yes or no, without a ratio


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured piece of work."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    messages: int
    quick: int  # messages in a quick run
    beside: Beside = Beside.NOTHING
    # A module that does the work for every Python client; None: each client's worker.
    module: str | None = None


def field(name: str, factor: float = 1.0) -> Callable[[Sample], float | None]:
    """A field of the sample in another unit."""

    def of(sample: Sample) -> float | None:
        return sample[name] * factor if name in sample else None

    return of


def per_message(*names: str, factor: float = 1.0) -> Callable[[Sample], float | None]:
    """The sum of some fields, divided by the number of messages."""

    def of(sample: Sample) -> float | None:
        if not all(name in sample for name in names):
            return None
        return sum(sample[name] for name in names) / sample["messages"] * factor

    return of


RATE = Figure("messages/s", lambda sample: sample["messages"] / sample["seconds"])
# Only the sum of both is exact: the kernel tells user from system time by sampling.
CPU = Figure("CPU µs/message", per_message("cpu_user", "cpu_sys", factor=1e6))
NANOSECONDS = Figure("ns/message", per_message("cpu_user", "cpu_sys", factor=1e9))
P50 = Figure("p50 µs", field("p50", 1e6))
P99 = Figure("p99 µs", field("p99", 1e6))

CELLS = (
    Cell(
        "request",
        "one caller, one request after another",
        (P50, P99, CPU),
        messages=10_000,
        quick=2_000,
        beside=Beside.ECHO,
    ),
    Cell(
        "threads",
        "100 callers on one connection",
        (
            P50,
            Figure("max/p50", lambda sample: sample["max"] / sample["p50"]),
            CPU,
        ),
        messages=20_000,
        quick=5_000,
        beside=Beside.ECHO,
    ),
    Cell(
        "sub",
        "iterate a core subscription",
        (CPU, RATE),
        messages=500_000,
        quick=100_000,
        beside=Beside.LOAD,
    ),
    Cell(
        "pub",
        # The reply proves that the server has everything, however a client flushes.
        "core publish, and one request at the end",
        (CPU, RATE),
        messages=1_000_000,
        quick=200_000,
        beside=Beside.ECHO,
    ),
    Cell(
        "jspub",
        "publish to a stream, one ack after another",
        (P50, P99, CPU),
        messages=10_000,
        quick=2_000,
        beside=Beside.STREAM,
    ),
    Cell(
        "jsasync",
        "publish to a stream with futures, 1,000 without an ack",
        (CPU, RATE),
        messages=200_000,
        quick=50_000,
        beside=Beside.STREAM,
    ),
    Cell(
        "jsall",
        "publish an iterable to a stream, 1,000 without an ack",
        (CPU, RATE),
        messages=200_000,
        quick=50_000,
        beside=Beside.STREAM,
    ),
    Cell(
        "jsrows",
        "publish columns to a stream with ids, 1,000 without an ack",
        (CPU, RATE),
        messages=200_000,
        quick=50_000,
        beside=Beside.STREAM,
    ),
    Cell(
        "consume-500",
        "consume a stream, 500 messages at hand, no acks",
        (CPU, RATE),
        messages=500_000,
        quick=50_000,
        beside=Beside.FILLED,
    ),
    Cell(
        "consume-5000",
        "consume a stream, 5,000 messages at hand, no acks",
        (CPU, RATE),
        messages=500_000,
        quick=50_000,
        beside=Beside.FILLED,
    ),
    Cell(
        "batches-5000",
        "consume a stream in columns, 5,000 messages at hand, no acks",
        (CPU, RATE),
        messages=500_000,
        quick=50_000,
        beside=Beside.FILLED,
    ),
    Cell(
        "consume-500-ack",
        "consume a stream, 500 messages at hand, each acknowledged",
        (CPU, RATE),
        messages=200_000,
        quick=50_000,
        beside=Beside.FILLED,
    ),
    Cell(
        "push",
        "read the deliveries of a push consumer with flow control, no acks",
        (CPU, RATE),
        messages=200_000,
        quick=50_000,
        beside=Beside.FILLED,
    ),
    Cell(
        "fetch-100",
        "fetch 100 messages of a stream, again and again",
        (P50, CPU, RATE),
        messages=100_000,
        quick=20_000,
        beside=Beside.FILLED,
    ),
    Cell(
        "next",
        "one message of a stream after another",
        (P50, P99, CPU),
        messages=10_000,
        quick=2_000,
        beside=Beside.FILLED,
    ),
    Cell(
        "memory",
        "messages through one subscription, none kept",
        (Figure("peak RSS growth MiB", field("peak_rss_growth", 1 / (1 << 20))),),
        messages=1_000_000,
        quick=200_000,
        beside=Beside.LOAD,
    ),
    Cell(
        "held",
        "messages through one subscription, all kept",
        (Figure("bytes/held message", per_message("rss_growth")),),
        messages=200_000,
        quick=50_000,
        beside=Beside.LOAD,
    ),
    Cell(
        "parse",
        "MSG frames in memory to the client's own form",
        (NANOSECONDS,),
        messages=5_000_000,
        quick=500_000,
        module="bench.micro",
    ),
    Cell(
        "create",
        "one message object",
        (NANOSECONDS,),
        messages=5_000_000,
        quick=500_000,
        module="bench.micro",
    ),
    Cell(
        "gaps",
        "see that a delivery is the next one",
        (NANOSECONDS,),
        messages=5_000_000,
        quick=500_000,
        module="bench.micro",
    ),
    Cell(
        "import",
        "import in a new process",
        (
            Figure("ms over bare Python", field("over_bare", 1e3)),
            Figure("imports asyncio", field("asyncio"), is_flag=True),
            Figure("imports ssl", field("ssl"), is_flag=True),
        ),
        messages=20,
        quick=10,
        module="bench.imports",
    ),
)
