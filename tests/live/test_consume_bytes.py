"""Bytes are counted as the server counts them, to the byte.

A second connection sees every status that pulls get: what the server says is left of
their bytes is compared with what the messages are worth to us.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg, PullInbox
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.stream import Stream
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import PATIENCE, Events, all_results, until

pytestmark = pytest.mark.live


class Status(NamedTuple):
    """What the server said of a pull, and what it had left."""

    reply: str
    text: str
    messages: int
    bytes: int


class Spy:
    """Sees the statuses of all pulls."""

    def __init__(self, nc: jsclient.Connection) -> None:
        self._nc = nc
        self._sub = nc.subscribe("_INBOX.>")
        self._seen: list[Status] = []
        nc.flush()

    def statuses(self) -> list[Status]:
        """Those so far that tell what is left."""
        self._nc.flush()
        while self._sub.pending_messages:
            msg = self._sub.next()
            if msg.status is not None and "Nats-Pending-Bytes" in (msg.headers or {}):
                assert msg.headers is not None
                self._seen.append(
                    Status(
                        msg.subject,
                        f"{msg.status} {msg.description}",
                        int(msg.headers["Nats-Pending-Messages"]),
                        int(msg.headers["Nats-Pending-Bytes"]),
                    )
                )
        return self._seen

    def wait(self, count: int) -> list[Status]:
        """As soon as there are so many."""
        until(lambda: len(self.statuses()) >= count, f"{count} statuses")
        return self._seen


@pytest.fixture
def spy(jetstream_server: Server) -> Iterator[Spy]:
    with jsclient.connect(jetstream_server.url) as nc:
        yield Spy(nc)


def variety(js: JetStream) -> None:
    """Five messages with and without payload and headers."""
    js.publish("s.a", b"")
    js.publish("s.b", b"some payload")
    js.publish("s.c", b"", headers={"Key": "value"})
    js.publish("s.d", b"x" * 300, headers={"A": "1", "B": "2"})
    js.publish("s." + "long" * 50, b"\x00\xff")


def assert_equal(stream: Stream, spy: Spy, count: int, **config: Any) -> None:
    """What the server charges for the stream's messages is what we count."""
    consumer = stream.create_consumer(name="C", **config)
    batch = consumer.fetch_bytes(50_000, timeout=0.3)
    assert len(batch) == count
    (status,) = spy.wait(1)
    assert status.text == "408 Request Timeout"
    assert sum(msg.size for msg in batch) == 50_000 - status.bytes
    assert status.messages == 1_000_000 - count


def size_of(stream: Stream, **config: Any) -> int:
    """What the next message is worth to a consumer whose name has one letter."""
    return stream.create_consumer(name="X", **config).next().size


# Sizes --------------------------------------------------------------------------------


def test_messages_of_all_shapes(js: JetStream, spy: Spy) -> None:
    stream = stream_of(js)
    variety(js)
    assert_equal(stream, spy, 5)


def test_messages_without_their_payload(js: JetStream, spy: Spy) -> None:
    stream = stream_of(js)
    variety(js)
    assert_equal(stream, spy, 5, headers_only=True)


def test_sequences_that_get_another_digit(js: JetStream, spy: Spy) -> None:
    stream = stream_of(js)
    fill(js, 102)
    assert_equal(stream, spy, 102)


def test_a_consumer_with_a_longer_name_is_charged_more(js: JetStream, spy: Spy) -> None:
    stream = stream_of(js)
    fill(js, 5)
    for number, name in enumerate(("C", "consumer-with-a-name"), 1):
        batch = stream.create_consumer(name=name).fetch_bytes(5000, timeout=0.3)
        status = spy.wait(number)[-1]
        assert sum(msg.size for msg in batch) == 5000 - status.bytes


def test_a_consumer_that_is_made_again_with_a_longer_name_is_charged_more(
    js: JetStream, spy: Spy
) -> None:
    stream = stream_of(js)
    options: dict[str, Any] = {"max_bytes": 5000, "expires": 1.0}
    with stream.ordered_consumer().messages(**options) as messages:
        got: list[Msg] = []
        for number in range(1, 11):
            if got:
                js.delete_consumer("S", got[-1].metadata.consumer)
            js.publish("s.x", b"data")
            got.append(messages.next(PATIENCE))
            assert got[-1].metadata.consumer.endswith(f"_{number}")
        before, last = got[-2:]
        # The name has another digit, and so has the sequence in the stream.
        assert last.size == before.size + 2
        # The last pull expires; all others ended with their consumers.
        assert {status.bytes for status in spy.wait(1)} == {5000 - last.size}


def test_two_pulls_at_once(js: JetStream, spy: Spy) -> None:
    stream = stream_of(js)
    consumer = stream.create_consumer(name="C")

    def work(number: int) -> int:
        if number == 2:
            until(lambda: js.consumer("S", "C").info().num_waiting == 2, "both wait")
            variety(js)
            return 0
        return sum(msg.size for msg in consumer.fetch_bytes(5000, timeout=0.7))

    first, second, _ = all_results(3, work)
    assert first > 0
    assert second > 0
    left = sorted(5000 - status.bytes for status in spy.wait(2))
    assert left == sorted([first, second])


def test_a_pinned_client_is_charged_without_its_pin(js: JetStream, spy: Spy) -> None:
    stream = stream_of(js)
    for headers in (None, {"Key": "value"}, None):
        js.publish("s.x", b"payload", headers=headers)
    consumer = stream.create_consumer(
        name="C", priority_policy="pinned_client", priority_groups=["g"]
    )
    batch = consumer.fetch_bytes(5000, timeout=0.3, group="g")
    charged = 5000 - spy.wait(1)[0].bytes
    # Two carry a header block only for the pin.
    assert sum(msg.size for msg in batch) == charged + 37 + 2 * 49
    # With exactly that budget the server says nothing: the count must be right.
    again = stream.create_consumer(
        name="D", priority_policy="pinned_client", priority_groups=["g"]
    )
    begun = time.monotonic()
    assert len(again.fetch_bytes(charged, timeout=20.0, group="g")) == 3
    assert time.monotonic() - begun < 5.0


# Budgets ------------------------------------------------------------------------------


def test_a_budget_that_is_used_up_exactly_ends_without_a_status(
    js: JetStream, spy: Spy
) -> None:
    stream = stream_of(js)
    fill(js, 9, b"x" * 100)
    size = size_of(stream)
    consumer = stream.create_consumer(name="C")
    begun = time.monotonic()
    assert seqs(consumer.fetch_bytes(size, timeout=20.0)) == [1]
    with consumer.messages(max_bytes=size) as messages:
        # The count of what is pending has one digit in each of them.
        assert [messages.next(PATIENCE).metadata.stream_seq for _ in range(8)][-1] == 9
    assert time.monotonic() - begun < 5.0
    assert spy.statuses() == []


def test_a_budget_of_one_byte_less_brings_nothing_and_loses_nothing(
    js: JetStream, spy: Spy
) -> None:
    stream = stream_of(js)
    fill(js, 1, b"x" * 100)
    size = size_of(stream)
    consumer = stream.create_consumer(name="C")
    with pytest.raises(failures.MessageSizeError):
        consumer.fetch(10, max_bytes=size - 1)
    (status,) = spy.wait(1)
    assert status[1:] == ("409 Message Size Exceeds MaxBytes", 10, size - 1)
    assert seqs(consumer.fetch(10, max_bytes=size, timeout=20.0)) == [1]


def test_bytes_that_are_left_after_the_last_message_are_given_back(
    js: JetStream, spy: Spy
) -> None:
    stream = stream_of(js)
    fill(js, 3, b"x" * 100)
    consumer = stream.create_consumer(name="C")
    for number in range(1, 4):
        batch = consumer.fetch(1, max_bytes=5000)
        status = spy.wait(number)[-1]
        assert status.text == "409 Batch Completed"
        assert batch[0].size == 5000 - status.bytes
    assert_nothing_left(js)


def test_a_consume_never_has_more_bytes_under_way_than_its_limit(
    js: JetStream, jetstream_server: Server
) -> None:
    stream = stream_of(js)
    fill(js, 200, b"x" * 3000)
    consumer = stream.create_consumer(name="C")
    with jsclient.connect(jetstream_server.url) as nc:
        seen = nc.subscribe("_INBOX.>")
        nc.flush()
        with consumer.messages(max_bytes=10_000) as messages:
            inbox = messages._feed.inbox
            assert isinstance(inbox, PullInbox)
            for number in range(1, 201):
                msg = messages.next(PATIENCE)
                assert msg.metadata.stream_seq == number
                msg.ack()
                assert inbox.owed_bytes + inbox.bytes <= 10_000
                assert inbox.owed_bytes >= 0
        nc.flush()
        frames = [seen.next() for _ in range(seen.pending_messages)]
    # A pull ends when there is no room for the next message: then some have come.
    ends = [
        msg.description == "Message Size Exceeds MaxBytes"
        for msg in frames
        if msg.status == 409 or (msg.reply or "").startswith("$JS.ACK.")
    ]
    assert ends.count(False) == 200
    assert ends.count(True) > 10
    assert (True, True) not in pairwise(ends)


def test_a_message_that_can_never_come_is_told_once_and_asked_for_rarely(
    jetstream_server: Server, js: JetStream, told: Events, spy: Spy
) -> None:
    stream = stream_of(js)
    fill(js, 1, b"small")
    fill(js, 1, b"x" * 20_000, first=2)
    fill(js, 1, b"small", first=3)
    with jsclient.connect(jetstream_server.url, on_event=told) as nc:
        consumer = nc.jetstream().create_consumer("S", name="C")
        with consumer.messages(max_bytes=10_000) as messages:
            assert messages.next(PATIENCE).metadata.stream_seq == 1
            with pytest.raises(jsclient.TimeoutError):
                messages.next(1.5)
            (warning,) = told.of(events.ConsumerWarning)
            assert isinstance(warning.error, failures.MessageSizeError)
            assert "10000 bytes" in str(warning.error)
            assert len(spy.statuses()) <= 8
            stream.delete_msg(2)
            assert messages.next(PATIENCE).metadata.stream_seq == 3


# Other replies ------------------------------------------------------------------------


@pytest.mark.parametrize("domain", [None, "hub"])
def test_longer_ack_subjects_count_as_well(domain: str | None) -> None:
    flags = "feature_flags { js_ack_fc_v2: true }"
    jetstream = {} if domain is None else {"domain": domain}
    with (
        run(jetstream=jetstream or True, config=flags) as server,
        jsclient.connect(server.url) as nc,
        jsclient.connect(server.url) as other,
    ):
        spy = Spy(other)
        js = nc.jetstream(domain=domain)
        stream = stream_of(js)
        variety(js)
        assert_equal(stream, spy, 5)
        msg = stream.create_consumer(name="D").next()
        assert (msg.reply or "").startswith(f"$JS.ACK.{domain or '_'}.")
        assert msg.metadata.domain == domain
        assert (msg.metadata.stream, msg.metadata.consumer) == ("S", "D")
        # It is accepted as it came.
        msg.ack_sync()
        assert stream.consumer("D").info().num_ack_pending == 0


ACCOUNTS = """
  A { jetstream: enabled, users: [{user: a, password: a}], exports: [
    {service: "$JS.API.>", response: %(response)s}, {service: "$JS.ACK.>"},
    {service: "s.>"}, {stream: "_INBOX.>"} ] }
  B { users: [{user: b, password: b}], imports: [
    {service: {account: A, subject: "$JS.API.>"}, to: "jsa.API.>"},
    {service: {account: A, subject: "$JS.ACK.>"}} ] }
"""


def test_through_the_import_of_another_account_bytes_are_the_same() -> None:
    with (
        run(jetstream=True, accounts=ACCOUNTS % {"response": "stream"}) as server,
        jsclient.connect(server.url, user="a", password="a") as theirs,
        jsclient.connect(server.url, user="b", password="b") as ours,
        jsclient.connect(server.url, user="b", password="b") as other,
    ):
        spy = Spy(other)
        stream_of(theirs.jetstream())
        # No empty one: the server takes that for the end of all answers.
        for number, size in enumerate((1, 20, 300), 1):
            theirs.jetstream().publish(f"s.{number}", b"x" * size)
        js = ours.jetstream(prefix="jsa.API")
        consumer = js.create_consumer("S", name="C")
        batch = consumer.fetch_bytes(5000, timeout=0.5)
        assert len(batch) == 3
        (status,) = spy.wait(1)
        assert sum(msg.size for msg in batch) == 5000 - status.bytes
        for msg in batch:
            msg.ack_sync()
        assert consumer.info().num_ack_pending == 0


def test_an_import_that_passes_one_answer_only_is_survived(told: Events) -> None:
    with (
        run(jetstream=True, accounts=ACCOUNTS % {"response": "singleton"}) as server,
        jsclient.connect(server.url, user="a", password="a") as theirs,
        jsclient.connect(server.url, user="b", password="b", on_event=told) as ours,
    ):
        stream_of(theirs.jetstream())
        fill(theirs.jetstream(), 2)
        consumer = ours.jetstream(prefix="jsa.API").create_consumer(
            "S", name="C", ack_wait=0.5
        )
        with consumer.messages(5, expires=1.0, idle_heartbeat=0.5) as messages:
            msg = messages.next(PATIENCE)
            assert msg.metadata.stream_seq == 1
            msg.ack()
            # The second one was sent as well, to nobody; it comes again.
            again = messages.next(PATIENCE)
            assert again.metadata.stream_seq == 2
            assert again.metadata.num_delivered > 1
            event = told.wait(events.ConsumerWarning)
            assert isinstance(event.error, failures.MissedHeartbeatError)
