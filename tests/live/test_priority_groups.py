"""Priority groups: pinned clients, overflow and priorities."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient.consuming import Messages
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import PATIENCE, Events, until

pytestmark = pytest.mark.live


@pytest.fixture
def client(jetstream_server: Server, told: Events) -> Iterator[JetStream]:
    """A client whose events are recorded."""
    with jsclient.connect(jetstream_server.url, on_event=told) as nc:
        yield nc.jetstream()
        assert_nothing_left(nc.jetstream())


@pytest.fixture
def stream(js: JetStream) -> Stream:
    """An empty stream on `s.>`."""
    return stream_of(js)


@pytest.fixture
def requests(jetstream_server: Server) -> Iterator[jsclient.Subscription]:
    """All pulls, as another connection sees them."""
    with jsclient.connect(jetstream_server.url) as nc:
        pulls = nc.subscribe("$JS.API.CONSUMER.MSG.NEXT.>")
        nc.flush()
        yield pulls


PINNED = {"priority_policy": "pinned_client", "priority_groups": ["g"]}


def ids(requests: jsclient.Subscription) -> list[str | None]:
    """The pins that the pulls so far were sent with."""
    pulls = list(requests.messages(timeout=0.1))
    return [json.loads(pull.data).get("id") for pull in pulls]


def is_quiet(messages: Messages) -> bool:
    try:
        messages.next(0.2)
    except jsclient.TimeoutError:
        return True
    return False


# Pinned -------------------------------------------------------------------------------


def test_only_the_pinned_client_gets_messages_until_it_is_unpinned(
    client: JetStream,
    js: JetStream,
    stream: Stream,
    told: Events,
    requests: jsclient.Subscription,
) -> None:
    ours = stream.create_consumer(name="C", **PINNED)  # type: ignore[arg-type]
    theirs = client.consumer("S", "C")
    with theirs.messages(4, group="g", expires=2.0) as first:
        fill(js, 1)
        assert first.next(PATIENCE).metadata.stream_seq == 1
        with ours.messages(4, group="g", expires=2.0) as second:
            fill(js, 6)
            assert seqs(first.next(PATIENCE) for _ in range(6)) == [2, 3, 4, 5, 6, 7]
            assert is_quiet(second)
            pinned = ours.info().priority_groups
            sent = ids(requests)
            # The first pulls of both have no pin, later ones of the pinned client do.
            assert pinned is not None
            assert sent.count(None) == 2
            assert {one for one in sent if one} == {pinned[0].pinned_client_id}
            ours.unpin("g")
            fill(js, 1)
            assert second.next(PATIENCE).metadata.stream_seq == 8
            # A pull of the old client is told that its pin is not valid any more.
            fill(js, 3)
            assert seqs(second.next(PATIENCE) for _ in range(3)) == [9, 10, 11]
            warning = told.wait(events.ConsumerWarning)
            assert isinstance(warning.error, failures.UnpinnedError)
            assert is_quiet(first)
            assert first.is_active
        js._connection.flush()  # the server knows that the other one has left
        ours.unpin("g")
        fill(js, 1)
        assert first.next(PATIENCE).metadata.stream_seq == 12


def test_calls_one_after_the_other_are_the_same_client(
    js: JetStream, stream: Stream, requests: jsclient.Subscription
) -> None:
    fill(js, 6)
    consumer = stream.create_consumer(name="C", **PINNED)  # type: ignore[arg-type]
    assert consumer.next(group="g").metadata.stream_seq == 1
    assert consumer.next(group="g").metadata.stream_seq == 2
    assert seqs(consumer.fetch(2, group="g")) == [3, 4]
    with consumer.messages(group="g") as messages:
        assert messages.next(PATIENCE).metadata.stream_seq == 5
    sent = ids(requests)
    assert sent[0] is None
    assert None not in sent[1:]


def test_a_fetch_that_is_not_pinned_any_more_says_so_and_the_next_one_works(
    client: JetStream, js: JetStream, stream: Stream
) -> None:
    fill(js, 3)
    consumer = stream.create_consumer(name="C", **PINNED)  # type: ignore[arg-type]
    consumer.next(group="g")
    consumer.unpin("g")
    theirs = client.consumer("S", "C")
    assert theirs.next(group="g").metadata.stream_seq == 2
    with pytest.raises(failures.UnpinnedError):
        consumer.next(timeout=1.0, group="g")
    # As a standby it waits, quietly.
    with pytest.raises(jsclient.TimeoutError):
        consumer.next(timeout=0.2, group="g")
    consumer.unpin("g")
    assert consumer.next(timeout=5.0, group="g").metadata.stream_seq == 3


def test_the_last_pin_in_a_message_counts(
    js: JetStream, stream: Stream, requests: jsclient.Subscription
) -> None:
    for _ in range(3):
        js.publish("s.x", b"", headers={"Nats-Pin-Id": "stale"})
    consumer = stream.create_consumer(name="C", **PINNED)  # type: ignore[arg-type]
    for number in range(1, 4):
        msg = consumer.next(group="g")
        assert msg.metadata.stream_seq == number
        assert msg.headers is not None
        assert msg.headers.get_all("Nats-Pin-Id")[0] == "stale"
    assert "stale" not in ids(requests)


# Overflow and priorities --------------------------------------------------------------


def test_overflow_is_served_only_when_enough_is_pending(
    js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(
        name="C", priority_policy="overflow", priority_groups=["g"]
    )
    fill(js, 3)
    assert len(consumer.fetch(1, timeout=0.3, group="g", min_pending=4)) == 0
    with consumer.messages(
        1, group="g", min_pending=4, expires=1.0, idle_heartbeat=0.5
    ) as messages:
        assert is_quiet(messages)
        fill(js, 1)
        assert messages.next(PATIENCE).metadata.stream_seq == 1
    assert seqs(consumer.fetch(3, group="g")) == [2, 3, 4]


def test_overflow_counts_unacknowledged_messages(js: JetStream, stream: Stream) -> None:
    consumer = stream.create_consumer(
        name="C", priority_policy="overflow", priority_groups=["g"]
    )
    fill(js, 4)
    assert len(consumer.fetch(1, timeout=0.3, group="g", min_ack_pending=2)) == 0
    assert len(consumer.fetch(2, group="g")) == 2
    assert len(consumer.fetch(1, group="g", min_ack_pending=2)) == 1


def test_lower_priorities_are_served_first(
    client: JetStream, js: JetStream, stream: Stream
) -> None:
    consumer = stream.create_consumer(
        name="C", priority_policy="prioritized", priority_groups=["g"]
    )
    theirs = client.consumer("S", "C")
    with (
        consumer.messages(5, group="g", priority=9) as low,
        theirs.messages(5, group="g", priority=0) as high,
    ):
        until(lambda: consumer.info().num_waiting == 2, "both wait")
        fill(js, 5)
        assert seqs(high.next(PATIENCE) for _ in range(5)) == [1, 2, 3, 4, 5]
        assert low.pending_messages == 0


def test_the_group_is_checked_before_anything_is_sent(
    stream: Stream, requests: jsclient.Subscription
) -> None:
    consumer = stream.create_consumer(name="C", **PINNED)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="group"):
        consumer.next()
    with pytest.raises(ValueError, match="group"):
        consumer.next(group="other")
    with pytest.raises(ValueError, match="priority"):
        consumer.next(group="g", priority=10)
    with pytest.raises(ValueError, match="min_pending"):
        consumer.next(group="g", min_pending=1)
    assert ids(requests) == []
