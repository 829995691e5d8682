"""Acknowledgements, as a real server understands them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

import jsclient
from jsclient._core import Msg
from jsclient.consumer import Consumer
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.stream import Stream
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import PATIENCE, until

pytestmark = pytest.mark.live


@pytest.fixture
def stream(js: JetStream) -> Iterator[Stream]:
    """A stream of three messages on `s.>`."""
    made = stream_of(js)
    fill(js, 3)
    yield made
    assert_nothing_left(js)


def next_within(consumer: Consumer, seconds: float) -> Msg:
    """The next message, which comes within that time."""
    begun = time.monotonic()
    msg = consumer.next(timeout=PATIENCE)
    assert time.monotonic() - begun <= seconds
    return msg


def test_a_confirmed_ack_is_known_at_once(stream: Stream) -> None:
    consumer = stream.create_consumer(name="C")
    for msg in consumer.fetch(3):
        msg.ack_sync()
        msg.ack_sync()
    info = consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 3)


def test_an_ack_without_confirmation_arrives_by_itself(
    stream: Stream, jetstream_server: Server
) -> None:
    consumer = stream.create_consumer(name="C")
    batch = consumer.fetch(3)
    with jsclient.connect(jetstream_server.url) as nc:
        acks = nc.subscribe("$JS.ACK.S.C.>")
        nc.flush()
        for msg in batch:
            msg.ack()
        # Nobody turns the loop for it but the keeper: this is another connection.
        assert [acks.next(PATIENCE).data for _ in range(3)] == [b"+ACK"] * 3


def test_a_message_that_was_not_acknowledged_comes_again(stream: Stream) -> None:
    consumer = stream.create_consumer(name="C", ack_wait=0.3)
    assert seqs(consumer.fetch(3)) == [1, 2, 3]
    again = consumer.fetch(3, timeout=PATIENCE)
    assert sorted(seqs(again)) == [1, 2, 3]
    assert {msg.metadata.num_delivered for msg in again} == {2}


def test_a_refused_message_comes_again_at_once(stream: Stream) -> None:
    consumer = stream.create_consumer(name="C", ack_wait=60.0)
    consumer.fetch(3)[0].nak()
    msg = next_within(consumer, 5.0)
    assert msg.metadata.stream_seq == 1
    assert msg.metadata.num_delivered == 2


def test_a_message_refused_with_a_delay_comes_again_after_it(stream: Stream) -> None:
    consumer = stream.create_consumer(name="C", ack_wait=60.0)
    first, second, third = consumer.fetch(3)
    begun = time.monotonic()
    first.nak(0.7)
    second.ack()
    third.ack()
    msg = next_within(consumer, 10.0)
    assert time.monotonic() - begun >= 0.7
    assert msg.metadata.stream_seq == 1
    assert msg.metadata.num_delivered == 2


def test_work_in_progress_puts_the_redelivery_off(stream: Stream) -> None:
    consumer = stream.create_consumer(name="C", ack_wait=0.6, max_ack_pending=1)
    msg = consumer.next()
    for _ in range(5):
        with pytest.raises(jsclient.TimeoutError):
            consumer.next(timeout=0.3)
        msg.in_progress()
    msg.ack_sync()
    msg.in_progress()
    after = consumer.next()
    assert (after.metadata.stream_seq, after.metadata.num_delivered) == (2, 1)


def test_a_terminated_message_never_comes_again_and_the_reason_is_told(
    js: JetStream, stream: Stream, jetstream_server: Server
) -> None:
    consumer = stream.create_consumer(name="C", ack_wait=0.3)
    with jsclient.connect(jetstream_server.url) as nc:
        advisories = nc.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.C")
        nc.flush()
        first, second, third = consumer.fetch(3)
        first.term("not a number")
        second.term()
        third.ack()
        told = [json.loads(advisories.next(PATIENCE).data) for _ in range(2)]
    assert told[0]["reason"] == "not a number"
    assert [event["stream_seq"] for event in told] == [1, 2]
    assert len(consumer.fetch(1, timeout=0.6)) == 0
    assert consumer.info().num_ack_pending == 0


def test_acks_of_all_acknowledge_what_came_before(stream: Stream) -> None:
    consumer = stream.create_consumer(name="C", ack_policy="all")
    consumer.fetch(3)[2].ack_sync()
    info = consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 3)


def test_a_consumer_without_acks_is_sent_none(
    js: JetStream, stream: Stream, jetstream_server: Server
) -> None:
    consumer = stream.create_consumer(name="C", ack_policy="none")
    with jsclient.connect(jetstream_server.url) as nc:
        acks = nc.subscribe("$JS.ACK.>")
        nc.flush()
        for msg in consumer.fetch(3):
            msg.in_progress()
            msg.ack()
            msg.nak(1.0)
            msg.term("why")
            msg.ack_sync(1.0)
        js._connection.flush()
        nc.flush()
        assert acks.pending_messages == 0


def test_an_ack_that_nobody_takes_is_told_at_once(
    js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(name="C")
    msg = consumer.next()
    consumer.delete()
    begun = time.monotonic()
    with pytest.raises(jsclient.NoRespondersError):
        msg.ack_sync(PATIENCE)
    assert time.monotonic() - begun < 5.0


def test_odd_names_are_kept(js: JetStream) -> None:
    stream = js.create_stream(name="TE%ST", subjects=["odd.>"], storage="memory")
    js.publish("odd.1", b"")
    consumer = stream.create_consumer(name="a@b-c$")
    msg = consumer.next()
    assert (msg.metadata.stream, msg.metadata.consumer) == ("TE%ST", "a@b-c$")
    msg.ack_sync()
    assert consumer.info().num_ack_pending == 0


ACCOUNTS = """
  A { jetstream: enabled, users: [{user: a, password: a}], exports: [
    {service: "$JS.API.>", response: stream}, {service: "$JS.ACK.>"} ] }
  B { users: [{user: b, password: b}], imports: [
    {service: {account: A, subject: "$JS.API.>"}, to: "jsa.API.>"},
    {service: {account: A, subject: "$JS.ACK.>"}, to: "jsa.ACK.>"} ] }
"""


def test_acks_may_go_to_subjects_of_another_name() -> None:
    with (
        run(jetstream=True, accounts=ACCOUNTS) as server,
        jsclient.connect(server.url, user="a", password="a") as theirs,
        jsclient.connect(server.url, user="b", password="b") as ours,
    ):
        stream_of(theirs.jetstream())
        fill(theirs.jetstream(), 2)
        js = ours.jetstream(prefix="jsa.API")
        js.create_consumer("S", name="C")
        first = js.consumer("S", "C").next()
        assert (first.metadata.stream, first.metadata.stream_seq) == ("S", 1)
        with pytest.raises(jsclient.NoRespondersError):
            first.ack_sync()
        renamed = ours.jetstream(prefix="jsa.API", ack_prefix="jsa.ACK")
        consumer = renamed.consumer("S", "C")
        msg = consumer.next()
        msg.in_progress()
        msg.ack_sync()
        # What a message tells of itself is the same.
        assert (msg.reply or "").startswith("$JS.ACK.S.C.1.2.2.")
        assert (msg.metadata.stream, msg.metadata.stream_seq) == ("S", 2)
        assert consumer.info().num_ack_pending == 1
        for wrong in ("jsa.*", "a b", ""):
            with pytest.raises(ValueError, match="ack_prefix"):
                ours.jetstream(ack_prefix=wrong)


BLIND = """
  A { jetstream: enabled, users: [{user: a, password: a}], exports: [
    {service: "$JS.API.CONSUMER.MSG.NEXT.>", response: stream},
    {service: "$JS.ACK.>"} ] }
  B { users: [{user: b, password: b}], imports: [
    {service: {account: A, subject: "$JS.API.CONSUMER.MSG.NEXT.>"}},
    {service: {account: A, subject: "$JS.ACK.>"}} ] }
"""


@pytest.mark.parametrize("policy", ["none", "explicit"])
def test_who_cannot_know_the_ack_policy_sends_acks_and_is_told_if_nobody_takes_them(
    policy: str,
) -> None:
    with (
        run(jetstream=True, accounts=BLIND) as server,
        jsclient.connect(server.url, user="a", password="a") as theirs,
        jsclient.connect(server.url, user="b", password="b") as ours,
    ):
        js = theirs.jetstream()
        stream_of(js)
        fill(js, 1)
        consumer = js.create_consumer("S", name="C", ack_policy=policy)
        # The consumer cannot be looked up, but pulled from.
        sub = ours.jetstream(timeout=1.0).pull_subscribe(stream="S", consumer="C")
        msg = sub.next(PATIENCE)
        assert msg.metadata.stream_seq == 1
        if policy == "none":
            begun = time.monotonic()
            with pytest.raises(jsclient.NoRespondersError):
                msg.ack_sync(600.0)
            assert time.monotonic() - begun < PATIENCE
        else:
            msg.ack_sync(PATIENCE)
            assert consumer.info().ack_floor.stream_seq == 1


def test_acks_ride_with_what_is_sent_anyway(js: JetStream, stream: Stream) -> None:
    fill(js, 2000)
    consumer = stream.create_consumer(name="C", max_ack_pending=-1)
    before = js._connection.stats().out_msgs
    with consumer.messages(200, stop_after=2000) as messages:
        for msg in messages:
            msg.ack()
    until(lambda: consumer.info().ack_floor.stream_seq == 2000, "all arrived")
    assert js._connection.stats().out_msgs - before >= 2000
