"""Draining a connection ends its consumers without losing what they have at hand."""

from __future__ import annotations

import threading
import time

import pytest

import jsclient
from jsclient import events
from jsclient._core import Msg
from jsclient.jetstream import JetStream
from jsclient.server import Server
from tests.live.pulls import fill, seqs, stream_of
from tests.live.support import PATIENCE, until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]


def test_a_drained_connection_has_handled_and_acknowledged_what_was_at_hand(
    js: JetStream, jetstream_server: Server
) -> None:
    stream = stream_of(js)
    fill(js, 300)
    consumer = stream.create_consumer(durable_name="C")
    handled: list[int] = []

    def handle(msg: Msg) -> None:
        time.sleep(0.002)  # slower than the server: messages wait at hand
        msg.ack()
        handled.append(msg.metadata.stream_seq)

    with jsclient.connect(jetstream_server.url) as nc:
        theirs = nc.jetstream().consumer("S", "C")
        handle_of_it = theirs.consume(handle, max_messages=40, workers=2)
        until(lambda: len(handled) >= 10, "it is at work")
        nc.drain(PATIENCE)
        assert not handle_of_it.is_active
        assert handle_of_it.error is None
    count = len(handled)
    assert sorted(handled) == list(range(1, count + 1))
    assert count < 300

    def is_acknowledged() -> bool:
        # What the server had on its way when the interest ended it delivers again.
        info = consumer.info()
        return info.num_ack_pending == info.delivered.stream_seq - count

    until(is_acknowledged, "what was handled is acknowledged")
    assert consumer.info().ack_floor.stream_seq == count


def test_a_callback_may_drain_its_connection(
    js: JetStream, jetstream_server: Server
) -> None:
    stream = stream_of(js)
    fill(js, 20)
    consumer = stream.create_consumer(durable_name="C")
    closed = threading.Event()

    def told(event: events.Event) -> None:
        if isinstance(event, events.Closed):
            closed.set()

    nc = jsclient.connect(jetstream_server.url, on_event=told)

    def handle(msg: Msg) -> None:
        if msg.metadata.stream_seq == 5:
            nc.drain(PATIENCE)
        msg.ack()

    nc.jetstream().consumer("S", "C").consume(handle)
    assert closed.wait(PATIENCE)
    until(lambda: consumer.info().num_ack_pending == 0, "all acks arrived")


@pytest.mark.parametrize("way", ["messages", "batches"])
def test_an_iteration_of_a_drained_connection_ends_with_what_was_at_hand(
    js: JetStream, jetstream_server: Server, way: str
) -> None:
    stream = stream_of(js)
    fill(js, 30)
    stream.create_consumer(durable_name="C", ack_policy="none")
    read: list[Msg] = []
    begun, go_on = threading.Event(), threading.Event()
    with jsclient.connect(jetstream_server.url) as nc:
        theirs = nc.jetstream().consumer("S", "C")

        def iterate() -> None:
            reading = theirs.messages if way == "messages" else theirs.batches
            for piece in reading(20, expires=1.0):
                read.extend([piece] if isinstance(piece, Msg) else piece)
                begun.set()
                assert go_on.wait(PATIENCE)

        thread = threading.Thread(target=iterate)
        thread.start()
        assert begun.wait(PATIENCE)
        threading.Timer(0.1, go_on.set).start()
        nc.drain(PATIENCE)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    delivered = js.consumer("S", "C").cached_info.delivered.stream_seq
    assert seqs(read) == list(range(1, delivered + 1))


@pytest.mark.parametrize("way", ["messages", "batches", "consume"])
def test_a_drain_without_acks_loses_nothing_that_the_server_has_delivered(
    js: JetStream, way: str
) -> None:
    stream = stream_of(js)
    fill(js, 20_000)
    read: list[int] = []
    expected = 0
    for round_ in range(3):
        consumer = stream.create_consumer(name=f"C{round_}", ack_policy="none")
        read.clear()
        if way == "consume":
            handle = consumer.consume(
                lambda msg: read.append(msg.metadata.stream_seq),
                max_messages=10_000,
            )
            until(lambda: len(read) > 10, "it is at work")
            handle.drain(PATIENCE)
        elif way == "messages":
            # Much is under way when it ends.
            messages = consumer.messages(20_000)
            read.append(messages.next().metadata.stream_seq)
            messages.drain(PATIENCE)
            read.extend(seqs(messages))
        else:
            batches = consumer.batches(20_000)
            read.extend(batches.next().stream_seqs)
            batches.drain(PATIENCE)
            for batch in batches:
                read.extend(batch.stream_seqs)
        expected = consumer.info().delivered.stream_seq
        assert read == list(range(1, expected + 1))
    assert expected > 100


def test_messages_that_nobody_reads_are_told_when_the_connection_is_drained(
    js: JetStream, jetstream_server: Server
) -> None:
    stream = stream_of(js)
    fill(js, 3)
    stream.create_consumer(durable_name="C")
    with jsclient.connect(jetstream_server.url) as nc:
        messages = nc.jetstream().consumer("S", "C").messages()
        until(lambda: messages.pending_messages == 3, "they have come")
        with pytest.raises(jsclient.DrainTimeoutError):
            nc.drain(0.1)
    # Those that were stopped, or have ended, are nobody's any more.
    with jsclient.connect(jetstream_server.url) as nc:
        held = nc.jetstream().consumer("S", "C").messages()
        held.stop()
        nc.drain(PATIENCE)


def test_ordered_consumers_of_a_drained_connection_are_deleted(
    js: JetStream, jetstream_server: Server
) -> None:
    stream = stream_of(js)
    fill(js, 5)
    handled: list[Msg] = []
    with jsclient.connect(jetstream_server.url) as nc:
        theirs = nc.jetstream()
        pulled = theirs.stream("S").ordered_consumer().messages()
        pushed = theirs.subscribe("s.>", ordered=True, callback=handled.append)
        assert [pulled.next(PATIENCE).metadata.stream_seq for _ in range(5)]
        until(lambda: len(handled) == 5, "all are handled")
        assert len(stream.consumer_names()) == 2
        nc.drain(PATIENCE)
        assert not pushed.is_active
    until(lambda: stream.consumer_names() == [], "they are deleted")
