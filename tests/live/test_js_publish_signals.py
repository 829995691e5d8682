"""Publishers in a storm of signals whose handlers raise."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from jsclient import errors
from jsclient.ack_future import AckFuture
from jsclient.jetstream import JetStream

pytestmark = pytest.mark.live

SECONDS = 1.5


class Interrupted(Exception):
    """What the handler raises."""


class Storm:
    """A timer that interrupts the main thread every millisecond or so, while armed."""

    def __init__(self) -> None:
        self.is_armed = False
        self.strikes = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_armed:
            self.is_armed = False
            self.strikes += 1
            raise Interrupted


@pytest.fixture
def storm() -> Iterator[Storm]:
    made = Storm()
    # Callbacks of the collector, which test tools have, cannot be interrupted in peace.
    gc.disable()
    before = signal.signal(signal.SIGALRM, made)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0013)
    yield made
    made.is_armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


def test_interrupted_publishers_lose_no_outcome_and_leave_nothing_behind(
    js: JetStream, storm: Storm
) -> None:
    made = js.create_stream(
        name="S", subjects=["a"], storage="memory", allow_direct=True
    )
    narrow = js._connection.jetstream(max_pending=20)
    acked: dict[int, int] = {}
    futures: list[tuple[int, AckFuture]] = []
    number = 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        number += 1
        data = b"%d" % number
        try:
            storm.is_armed = True
            if number % 3 == 0:
                acked[number] = js.publish("a", data).seq
            elif number % 3 == 1:
                futures.append((number, narrow.publish_async("a", data)))
            else:
                for ack in js.publish_all([("a", data)]):
                    assert not isinstance(ack, errors.Error)
                    acked[number] = ack.seq
            storm.is_armed = False
        except Interrupted:
            continue
    narrow.flush_publishes()
    for number, future in futures:
        acked[number] = future.result(0).seq
    stored: dict[int, list[int]] = {}
    for msg in made.get_msgs():
        stored.setdefault(int(msg.data), []).append(msg.seq)
    assert storm.strikes > 100
    assert acked.items() <= {n: seqs[0] for n, seqs in stored.items()}.items()
    assert all(len(seqs) == 1 for seqs in stored.values())
    nc = js._connection
    assert (narrow.pending_publishes, len(nc._loop.request_inbox())) == (0, 0)
    assert nc.stats().reconnects == 0
