"""Consuming from other releases of the server, where they answer differently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import PATIENCE, Events, until
from tests.live.test_versions import VERSIONS, fetched

pytestmark = pytest.mark.live


# The last release that is silent for a consumer that is not there, and the last that
# may be for a pull that does not wait.
SILENT = ("2.10.25", "2.12.1")


@pytest.fixture(params=[*SILENT, *VERSIONS])
def old(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of another release."""
    with run(jetstream=True, binary=fetched(request.param)) as running:
        yield running


@pytest.fixture
def js(old: Server, told: Events) -> Iterator[JetStream]:
    with jsclient.connect(old.url, on_event=told) as nc:
        yield nc.jetstream()
        assert_nothing_left(nc.jetstream())


def test_all_ways_to_read_work(js: JetStream, old: Server, told: Events) -> None:
    stream = stream_of(js)
    consumer = stream.create_consumer(durable_name="C", max_waiting=1)
    fill(js, 1)
    begun = time.monotonic()
    # The server says that there is no more: nobody waits for the time to pass.
    batch = consumer.fetch_no_wait(5, timeout=600.0)
    assert (seqs(batch), batch.error) == ([1], None)
    assert len(consumer.fetch_no_wait(5, timeout=600.0)) == 0
    assert time.monotonic() - begun < PATIENCE
    assert len(consumer.fetch(5, timeout=0.2)) == 0
    fill(js, 60)
    assert seqs(consumer.fetch(10)) == list(range(2, 12))
    size = consumer.next().size
    assert seqs(consumer.fetch_bytes(2 * size, timeout=PATIENCE)) == [13, 14]
    with consumer.messages(max_bytes=10 * size) as messages:
        got = [messages.next(PATIENCE) for _ in range(47)]
        assert seqs(got) == list(range(15, 62))
    for msg in got:
        msg.ack_sync()
    # Who finds the queue of pulls full is told, or is told nothing: it goes on.
    with jsclient.connect(old.url) as nc:
        theirs = nc.jetstream().consumer("S", "C").messages()
        until(lambda: consumer.info().num_waiting == 1, "the place is taken")
        ours = consumer.messages(expires=1.0, idle_heartbeat=0.5)
        error = told.wait(events.ConsumerWarning).error
        is_told = js._connection.server_info.version_tuple < (2, 11, 5)
        kind = failures.PullLimitError if is_told else failures.MissedHeartbeatError
        assert isinstance(error, kind)
        theirs.stop()
        nc.flush()
    with ours:
        fill(js, 1)
        assert ours.next(PATIENCE).metadata.stream_seq == 62
    stream.delete_consumer("C")
    with pytest.raises(failures.ConsumerNotFoundError):
        consumer.next(timeout=PATIENCE)
    with pytest.raises(failures.ConsumerNotFoundError):
        consumer.messages(expires=1.0, idle_heartbeat=0.5).next(PATIENCE)


def test_a_paused_consumer_is_not_waited_for(js: JetStream, old: Server) -> None:
    consumer = stream_of(js).create_consumer(name="C")
    fill(js, 1)
    until = datetime.now(timezone.utc) + timedelta(minutes=5)
    if old.version.startswith("2.10."):
        with pytest.raises(failures.UnsupportedByServerError, match="paus"):
            consumer.pause(until)
        return
    consumer.pause(until)
    # Only some of them answer such a pull.
    is_silent = old.version == "2.12.1"
    begun = time.monotonic()
    batch = consumer.fetch_no_wait(5, timeout=0.5 if is_silent else 600.0)
    assert (len(batch), batch.error) == (0, None)
    assert time.monotonic() - begun < PATIENCE
    consumer.resume()
    assert seqs([consumer.next(PATIENCE)]) == [1]
