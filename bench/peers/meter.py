"""What the Python workers share: the meter, the arguments and the words to the runner.

Every worker is called as `worker URL CELL MESSAGES SIZE` and prints one line of JSON. A
worker that waits for the load prints READY before it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SUBJECT = "bench.load"  # what the publisher sends and the subscribers hear
SERVICE = "bench.echo"  # where the responder listens
STREAM = "BENCH"  # a stream in memory
STORED = "bench.stored"  # its subject
ACK_NONE = "none"  # its consumers, when it is filled
ACK_EACH = "explicit"
FETCH = 100  # messages of each fetch of the cell `fetch-100`
THREADS = 100  # callers of the cell `threads`
WINDOW = 1000  # publishes that wait for their acks

# A queue that never drops: the cells compare costs, and a lost message would end a run.
NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is asked to do."""

    url: str
    messages: int
    size: int


class Meter:
    """Clock and CPU time of the whole process, all threads, from its creation on."""

    def __init__(self) -> None:
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._start = time.perf_counter()

    def sample(self, messages: int) -> dict[str, float]:
        """What was used since the start, for so many messages."""
        seconds = time.perf_counter() - self._start
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "messages": messages,
            "seconds": seconds,
            "cpu_user": usage.ru_utime - self._usage.ru_utime,
            "cpu_sys": usage.ru_stime - self._usage.ru_stime,
        }


class Memory:
    """How the resident memory grows from its creation on, where /proc tells."""

    _start: int | None

    def __init__(self) -> None:
        # Not ru_maxrss: a process starts with the peak of the one that started it, and
        # it cannot be made to start again, so it has what the imports needed as well.
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
        except OSError:
            self._start = None
        else:
            self._start = _status_bytes()["VmRSS"]

    def sample(self) -> dict[str, float]:
        """Growth of the resident memory and of its peak, in bytes; else empty."""
        if self._start is None:
            return {}
        now = _status_bytes()
        return {
            "rss_growth": now["VmRSS"] - self._start,
            "peak_rss_growth": now["VmHWM"] - self._start,
        }


def _status_bytes() -> dict[str, int]:
    with open("/proc/self/status", encoding="ascii") as file:
        lines = [line.split() for line in file]
    return {
        words[0].rstrip(":"): int(words[1]) * 1024
        for words in lines
        if words[0] in ("VmRSS:", "VmHWM:")
    }


def latency_sample(latencies: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum of latencies in seconds."""
    ordered = sorted(latencies)
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[len(ordered) * 99 // 100],
        "max": ordered[-1],
    }


def check_size(total: int, job: Job) -> None:
    """Ends the worker if the payloads it saw are not those that were sent."""
    if total != job.messages * job.size:
        raise SystemExit(f"saw {total} bytes of payload, not {job.messages * job.size}")


def say_ready() -> None:
    """Tells the runner that the load may start."""
    print("READY", flush=True)


def main(cells: Mapping[str, Callable[[Job], Mapping[str, float]]]) -> None:
    """Runs the cell that the command line names and prints its sample."""
    url, cell, messages, size = sys.argv[1:]
    print(json.dumps(dict(cells[cell](Job(url, int(messages), int(size))))))
