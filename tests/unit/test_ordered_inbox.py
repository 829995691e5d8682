"""The inbox of an ordered consumer: it ends before a gap and knows its place."""

from __future__ import annotations

import pytest

from jsclient._core import Helm, Msg, OrderedInbox, OrderedIterator, Outbox
from tests.harness.compiled import take_all
from tests.harness.lanes import MIB, Delivery, LaneRig, courier, delivery


def new(last_seq: int = 0) -> tuple[OrderedInbox, LaneRig]:
    inbox = OrderedInbox(courier(), last_seq)
    return inbox, LaneRig(inbox)


def seqs(inbox: OrderedInbox) -> list[int]:
    return [msg.metadata.consumer_seq for msg in take_all(inbox)]


def test_deliveries_that_follow_each_other_are_kept() -> None:
    inbox, rig = new()
    rig.feed(delivery(n) for n in (1, 2, 3))
    assert not inbox.is_ended
    assert inbox.deliveries == 3
    assert seqs(inbox) == [1, 2, 3]


@pytest.mark.parametrize("number", [0, 1, 2, 4, 100, (1 << 64) - 1])
def test_a_delivery_that_does_not_follow_ends_it(number: int) -> None:
    inbox, rig = new()
    rig.feed([delivery(1), delivery(2), delivery(number), delivery(3), delivery(4)])
    assert inbox.is_ended
    assert inbox.reason is None
    assert inbox.gap == number
    assert inbox.deliveries == 2
    assert seqs(inbox) == [1, 2]


def test_the_first_delivery_is_number_one() -> None:
    inbox, rig = new(last_seq=41)
    rig.feed([delivery(42)])
    assert (inbox.gap, inbox.count, inbox.last_seq) == (42, 0, 41)


def test_a_delivery_without_numbers_ends_it() -> None:
    inbox, rig = new()
    rig.feed([delivery(1), Delivery(b"s", b"$JS.ACK.S.C.1.x.2.3.4")])
    assert inbox.gap == 0
    assert seqs(inbox) == [1]


@pytest.mark.parametrize("last", [0, 1, 3])
def test_a_heartbeat_tells_of_deliveries_that_did_not_arrive(last: int) -> None:
    inbox, rig = new()
    rig.feed([delivery(1), delivery(2)])
    fields = b"Nats-Last-Consumer: %d\r\nNats-Last-Stream: 9\r\n" % last
    rig.beat(1, fields)
    assert inbox.is_ended
    assert inbox.gap == last
    assert seqs(inbox) == [1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        b"Nats-Last-Consumer: 2\r\n",
        b"Nats-Last-Stream: 7\r\nNats-Last-Consumer:2\r\n",
        b"",
        b"Nats-Last-Stream: 7\r\n",
        b"Nats-Last-Consumer: x\r\n",
        b"Nats-Last-Consumer:\r\n",
        b"Nats-Last-Consumer-Not: 3\r\n",
    ],
)
def test_a_heartbeat_that_fits_or_says_nothing_is_fine(fields: bytes) -> None:
    inbox, rig = new()
    rig.feed([delivery(1), delivery(2)])
    rig.beat(1, fields)
    assert not inbox.is_ended
    assert inbox.heard == 3


def test_a_heartbeat_before_the_first_delivery_may_find_one_missing() -> None:
    inbox, rig = new()
    rig.beat(1, b"Nats-Last-Consumer: 0\r\n")
    assert inbox.gap is None
    rig.beat(1, b"Nats-Last-Consumer: 1\r\n")
    assert inbox.gap == 1


def test_the_place_is_that_of_the_last_message_taken() -> None:
    inbox, rig = new(last_seq=5)
    rig.feed(delivery(n, stream_seq=10 * n) for n in (1, 2, 3))
    places = [inbox.last_seq]
    while inbox.take() is not None:
        places.append(inbox.last_seq)
    assert places == [5, 10, 20, 30]


def test_a_message_that_is_put_back_was_not_taken() -> None:
    inbox, rig = new(last_seq=5)
    rig.feed(delivery(n, stream_seq=10 * n) for n in (1, 2))
    for before in (5, 10):
        msg = inbox.take()
        assert msg is not None
        inbox.put_back(msg)
        assert inbox.last_seq == before
        again = inbox.take()
        assert again is msg
    assert (inbox.last_seq, inbox.taken) == (20, 2)


def test_what_is_dropped_does_not_move_the_place() -> None:
    inbox, rig = new()
    rig.feed(delivery(n, stream_seq=10 * n) for n in (1, 2, 3))
    assert inbox.take() is not None
    assert inbox.clear() == 2
    assert (inbox.last_seq, inbox.taken, inbox.count) == (10, 1, 0)


def test_the_place_can_be_set_back() -> None:
    inbox, rig = new()
    rig.feed(delivery(n, stream_seq=10 * n) for n in (1, 2))
    assert inbox.take() is not None
    inbox.last_seq = 3
    assert inbox.last_seq == 3
    assert inbox.take() is not None
    assert inbox.last_seq == 20


def test_taking_into_a_hand_moves_the_place() -> None:
    inbox, rig = new()
    rig.feed([delivery(1, stream_seq=7)])
    hand: list[Msg | None] = [None]
    helm = Helm(lambda what, deadline: None, lambda: 0.0, Outbox(MIB, MIB))
    assert inbox.take_into(hand, helm, 0.0)
    assert inbox.last_seq == 7


def test_an_iterator_goes_from_inbox_to_inbox() -> None:
    first, rig = new()
    rig.feed([delivery(1), delivery(2)])
    second, rig = new(last_seq=2)
    rig.feed([delivery(1, stream_seq=3)])
    inboxes = [first, second]
    iterator = OrderedIterator(lambda: inboxes.pop(0) if inboxes else None)
    assert [msg.metadata.stream_seq for msg in iterator] == [1, 2, 3]
    assert list(iterator) == []
    assert (first.last_seq, second.last_seq) == (2, 3)


def test_an_iterator_passes_on_what_ends_the_wait() -> None:
    def fail() -> OrderedInbox:
        raise KeyError("over")

    with pytest.raises(KeyError, match="over"):
        next(OrderedIterator(fail))


def test_an_iterator_asks_for_more_when_that_is_due() -> None:
    asked: list[int] = []
    inbox, rig = new()
    inbox.threshold = 1_000_000
    inbox.on_due = lambda: asked.append(inbox.count)
    rig.feed([delivery(1), delivery(2)])
    iterator = OrderedIterator(lambda: inbox)
    next(iterator)
    next(iterator)
    assert asked == [1]
