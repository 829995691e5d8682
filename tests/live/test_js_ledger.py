"""The ledger: whatever happens to server and link, every publish has one true outcome.

Publishers of every kind write down what became of each message, while the server is
killed and restarted and the link is reset at random moments. Then the stream is read:
what was acknowledged is in it once and where the ack said, what was refused is not.

JSCLIENT_LEDGER_SECONDS makes it longer, JSCLIENT_LEDGER_SEED repeats the moments of a
run; a seed is part of the test's name.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal, NamedTuple

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient._core import PubAck
from jsclient.jetstream import JetStream
from jsclient.server import Cluster, Server, run
from jsclient.stream import Stream
from tests.harness.proxy import Direction, FaultProxy
from tests.live.support import PATIENCE, all_results

pytestmark = [pytest.mark.live, pytest.mark.slow]

SECONDS = float(os.environ.get("JSCLIENT_LEDGER_SECONDS", "10"))
SEED = int(os.environ.get("JSCLIENT_LEDGER_SEED", time.time_ns() % 1_000_000))
TIMEOUT = 2.0
PACE = 0.001  # between messages, so that the stream stays small

DIRECTIONS: list[Direction] = ["c2s", "s2c"]
Verdict = Literal["stored", "refused", "unknown"]


class Line(NamedTuple):
    """What became of one message, in the order in which a publisher published."""

    id: str
    verdict: Verdict
    ack: PubAck | None = None
    is_first_try: bool = True


def line(id_: str, end: PubAck | BaseException, is_first_try: bool = True) -> Line:
    """The entry for a message that ended this way; other errors are the test's."""
    if isinstance(end, PubAck):
        return Line(id_, "stored", end, is_first_try)
    if isinstance(end, failures.PublishOutcomeUnknownError):
        return Line(id_, "unknown")
    if isinstance(end, errors.Error):
        return Line(id_, "refused")
    raise end


def names(publisher: str, stop: threading.Event) -> Iterator[str]:
    """Ids of messages until it is time to stop."""
    number = 0
    while not stop.wait(PACE):
        yield f"{publisher}.{number}"
        number += 1


def one_by_one(
    js: JetStream, publisher: str, stop: threading.Event, *, has_id: bool
) -> list[Line]:
    lines = []
    for id_ in names(publisher, stop):
        try:
            ack = js.publish(
                "a.b", id_.encode(), msg_id=id_ if has_id else None, timeout=TIMEOUT
            )
            lines.append(line(id_, ack))
        except errors.Error as error:
            lines.append(line(id_, error))
    return lines


def by_futures(
    js: JetStream, publisher: str, stop: threading.Event, *, has_id: bool
) -> list[Line]:
    lines, futures = [], []
    for id_ in names(publisher, stop):
        try:
            future = js.publish_async(
                "a.b", id_.encode(), msg_id=id_ if has_id else None, timeout=TIMEOUT
            )
            futures.append((id_, future))
        except errors.Error as error:
            lines.append(line(id_, error))
    js.flush_publishes(PATIENCE)
    assert js.pending_publishes == 0
    for id_, future in futures:
        assert future.done()
        end = future.exception(0) or future.result(0)
        lines.append(line(id_, end, future.retries == 2))
    return lines


def by_pipeline(
    js: JetStream, publisher: str, stop: threading.Event, *, has_id: bool
) -> list[Line]:
    sent: list[str] = []

    def messages() -> Iterator[tuple[str, bytes, dict[str, str] | None]]:
        for id_ in names(publisher, stop):
            sent.append(id_)
            yield "a.b", id_.encode(), {"Nats-Msg-Id": id_} if has_id else None

    ends = list(
        js.publish_all(messages(), window=100, timeout=TIMEOUT, on_error="return")
    )
    assert len(ends) == len(sent), "one outcome each"
    return [line(id_, end) for id_, end in zip(sent, ends, strict=True)]


def trouble(
    rng: random.Random, server: Server, proxy: FaultProxy, until: float
) -> Counter[str]:
    """Kills the server and cuts links at random moments; what was done how often."""
    done: Counter[str] = Counter()

    def kill() -> None:
        server.kill()
        time.sleep(rng.choice([0.0, 0.1, 0.5]))
        server.restart()

    def cut_inside() -> None:
        proxy.set(rng.choice(DIRECTIONS), cut_after=rng.randrange(2000))

    def stall() -> None:
        direction = rng.choice(DIRECTIONS)
        proxy.set(direction, stall=True)
        time.sleep(rng.uniform(0.05, 0.3))
        proxy.set(direction)

    faults: list[Callable[[], None]] = [kill, proxy.cut, cut_inside, stall]
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.05, 0.6))
        fault = rng.choice(faults)
        fault()
        done[fault.__name__] += 1
    proxy.set("c2s")
    proxy.set("s2c")
    return done


def check(made: Stream, lines: list[list[Line]]) -> Counter[str]:
    """Compares the stream with the ledger; how many of each verdict there are."""
    places: dict[str, list[int]] = {}
    for msg in made.get_msgs():
        places.setdefault(msg.data.decode(), []).append(msg.seq)
    known: dict[str, Line] = {}
    for each in lines:
        for one in each:
            assert known.setdefault(one.id, one) is one, "one line per message"
    for one in known.values():
        found = places.get(one.id, [])
        if one.ack is not None:
            assert found == [one.ack.seq], f"{one} is stored at {found}"
        elif one.verdict == "refused":
            assert found == [], f"{one} is stored at {found}"
        else:
            assert len(found) <= 1, f"{one} is stored at {found}"
    assert places.keys() <= known.keys(), "nothing else was published"
    for each in lines:
        seqs = [
            one.ack.seq
            for one in each
            if one.ack is not None and one.is_first_try and not one.ack.duplicate
        ]
        assert seqs == sorted(seqs), "the messages of a publisher are in order"
    return Counter(one.verdict for one in known.values())


@pytest.mark.timeout(SECONDS + 110)
@pytest.mark.parametrize("seed", [SEED])
def test_every_publish_has_one_true_outcome_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    publishers = [
        (way, has_id)
        for way in (one_by_one, by_futures, by_pipeline)
        for has_id in (False, True)
    ]
    stop = threading.Event()
    with ExitStack() as stack:
        server = stack.enter_context(run(jetstream=True))
        with (
            FaultProxy("127.0.0.1", server.port) as proxy,
            jsclient.connect(proxy.url, reconnect_wait=0.02) as shared,
            jsclient.connect(proxy.url, reconnect_wait=0.02) as other,
        ):
            shared.jetstream().create_stream(
                name="S", subjects=["a.>"], allow_direct=True
            )

            def work(number: int) -> list[Line]:
                if number == len(publishers):
                    try:
                        done = trouble(rng, server, proxy, time.monotonic() + SECONDS)
                    finally:
                        stop.set()
                    assert done.total() > 5
                    return []
                way, has_id = publishers[number]
                # Two publishers of different kinds on one connection, and on another.
                nc = shared if number % 4 < 2 else other
                js = nc.jetstream(ack_timeout=TIMEOUT, max_pending=100)
                return way(js, f"p{number}", stop, has_id=has_id)

            lines = all_results(len(publishers) + 1, work, timeout=SECONDS + 60)
            for nc in (shared, other):
                assert len(nc._loop.request_inbox()) == 0
        # Nobody can send anything any more: this is how it stays.
        with jsclient.connect(server.url) as reader:
            verdicts = check(reader.jetstream().stream("S"), lines)
    assert verdicts["stored"] > 100
    assert verdicts["unknown"] > 0, "nothing was put to the test"


def elections(cluster: Cluster, made: Stream) -> None:
    """The stream's leader steps down, twice, and is killed; then there is no quorum."""
    for _ in range(2):
        made._api.call("STREAM.LEADER.STEPDOWN.S", doing="move the leader")
        time.sleep(0.3)
    info = made.info()
    assert info.cluster is not None
    leader = next(one for one in cluster.servers if one.name == info.cluster.leader)
    leader.kill()
    time.sleep(0.5)
    other = next(one for one in cluster.servers if one is not leader)
    other.kill()
    time.sleep(0.5)
    for one in (leader, other):
        one.restart(timeout=PATIENCE)
    cluster.wait_healthy(PATIENCE)
    time.sleep(0.5)


def test_publishes_to_a_replicated_stream_have_one_true_outcome() -> None:
    ways = (one_by_one, by_futures, by_pipeline)
    stop = threading.Event()
    with run(cluster=3, jetstream=True) as cluster:
        with jsclient.connect(cluster.urls, reconnect_wait=0.02) as nc:
            made = nc.jetstream(timeout=PATIENCE).create_stream(
                name="S", subjects=["a.>"], num_replicas=3, allow_direct=True
            )

            def work(number: int) -> list[Line]:
                if number == len(ways):
                    try:
                        elections(cluster, made)
                    finally:
                        stop.set()
                    return []
                js = nc.jetstream(ack_timeout=TIMEOUT, max_pending=100)
                return ways[number](js, f"p{number}", stop, has_id=True)

            lines = all_results(len(ways) + 1, work, timeout=90.0)
        with jsclient.connect(cluster.urls) as reader:
            js = reader.jetstream(timeout=PATIENCE)
            js.publish("a.last", b"p0.last", retries=-1)
            verdicts = check(js.stream("S"), [*lines, [Line("p0.last", "unknown")]])
    assert verdicts["stored"] > 100
