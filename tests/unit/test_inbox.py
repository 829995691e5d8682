"""Inboxes: limits, exact counts, ends, and the order of what they hold."""

import pytest

from jsclient._core import Gate, Inbox, MessageIterator, Msg, live_objects
from jsclient.errors import SubscriptionClosedError
from tests.harness.collector import amid_collection
from tests.harness.compiled import Rig, take_all
from tests.harness.helms import idle_helm


def rig_with(inbox: Inbox) -> Rig:
    rig = Rig()
    rig.routes.add(1, inbox)
    return rig


def frames(first: int, last: int, size: int = 4) -> bytes:
    """Messages on `a` whose payload is their number; each counts size + 1 bytes."""
    bodies = (b"%0*d" % (size, i) for i in range(first, last))
    return b"".join(b"MSG a 1 %d\r\n%b\r\n" % (size, body) for body in bodies)


def numbers(messages: list[Msg]) -> list[int]:
    return [int(msg.data) for msg in messages]


def test_messages_are_taken_in_the_order_of_their_arrival() -> None:
    inbox = Inbox()
    before = inbox.ready
    rig_with(inbox).feed(frames(0, 3))
    assert (before, inbox.ready) == (False, True)
    assert (inbox.count, inbox.bytes, inbox.arrived, inbox.taken) == (3, 15, 3, 0)
    assert numbers(take_all(inbox)) == [0, 1, 2]
    assert (inbox.count, inbox.bytes, inbox.arrived, inbox.taken) == (0, 0, 3, 3)
    assert inbox.take() is None
    assert inbox.taken == 3


def test_the_order_is_kept_while_the_ring_turns_and_grows() -> None:
    inbox = Inbox()
    rig = rig_with(inbox)
    seen: list[int] = []
    sent = 0
    for burst in (1, 15, 16, 17, 40, 7, 300, 1, 9000):
        rig.feed(frames(sent, sent + burst))
        sent += burst
        for _ in range(inbox.count // 2):
            msg = inbox.take()
            assert msg is not None
            seen.append(int(msg.data))
    seen += numbers(take_all(inbox))
    assert seen == list(range(sent))
    assert inbox.bytes == 0
    rig.feed(frames(sent, sent + 2))
    assert numbers(take_all(inbox)) == [sent, sent + 1]


def test_a_message_over_the_count_is_dropped_and_counted() -> None:
    inbox = Inbox(max_messages=10)
    rig = rig_with(inbox)
    rig.feed(frames(0, 15))
    assert (inbox.count, inbox.dropped, inbox.arrived) == (10, 5, 15)
    assert numbers(take_all(inbox)) == list(range(10))


@pytest.mark.parametrize(("limit", "held"), [(49, 9), (50, 10), (54, 10), (55, 11)])
def test_the_byte_limit_is_exact(limit: int, held: int) -> None:
    inbox = Inbox(max_bytes=limit)
    rig_with(inbox).feed(frames(0, 15))
    assert (inbox.count, inbox.bytes) == (held, 5 * held)
    assert inbox.dropped == 15 - held


def test_a_small_message_fits_where_a_large_one_was_dropped() -> None:
    inbox = Inbox(max_bytes=20)
    rig_with(inbox).feed(frames(0, 3) + frames(3, 4, size=9) + frames(4, 5))
    assert numbers(take_all(inbox)) == [0, 1, 2, 4]
    assert inbox.dropped == 1


@pytest.mark.parametrize("limits", [{"max_messages": 0}, {"max_bytes": 0}])
def test_an_inbox_of_size_zero_holds_nothing(limits: dict[str, int]) -> None:
    inbox = Inbox(None, **limits)
    rig_with(inbox).feed(frames(0, 2))
    assert (inbox.count, inbox.dropped) == (0, 2)


def test_a_negative_limit_is_none() -> None:
    assert Inbox(max_messages=-1).max_messages == (1 << 63) - 1
    assert Inbox(max_bytes=-5).max_bytes == (1 << 63) - 1


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_slowness_is_reported_once_until_the_inbox_was_half_empty(most: int) -> None:
    inbox = Inbox(max_messages=most)
    rig = rig_with(inbox)
    rig.feed(frames(0, most))
    assert (inbox.is_slow, inbox.report_drop()) == (False, False)
    rig.feed(frames(0, 5))
    assert (inbox.is_slow, rig.parser.notices) == (True, [inbox])
    assert (inbox.report_drop(), inbox.report_drop()) == (True, False)
    rig.parser.notices.clear()

    inbox.take()
    rig.feed(frames(0, 2))
    if most > 2:
        assert rig.parser.notices == [], "it was full again before it was half empty"
    take_all(inbox)
    rig.parser.notices.clear()
    rig.feed(frames(0, 1))
    assert not inbox.is_slow
    rig.feed(frames(0, most))
    assert rig.parser.notices == [inbox]
    assert inbox.report_drop()
    assert inbox.dropped == inbox.arrived - inbox.taken - inbox.count


def test_slowness_by_bytes_ends_when_half_of_them_were_taken() -> None:
    inbox = Inbox(max_bytes=50)
    rig = rig_with(inbox)
    rig.feed(frames(0, 11))
    for _ in range(4):
        inbox.take()
    rig.feed(frames(0, 1))
    assert inbox.is_slow
    for _ in range(2):
        inbox.take()
    rig.feed(frames(0, 1))
    assert not inbox.is_slow


# Ends


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("before", [3, 4, 5, 8, 40])
def test_an_inbox_ends_at_its_limit_in_all(before: int, taken: int) -> None:
    inbox = Inbox()
    rig = rig_with(inbox)
    rig.feed(frames(0, before))
    seen = numbers([msg for _ in range(taken) if (msg := inbox.take())])
    inbox.set_limit(5)
    assert inbox.limit == 5
    assert inbox.is_ended is (before >= 5)
    rig.feed(frames(before, 50))
    assert inbox.is_ended
    assert inbox.reason is None
    assert rig.parser.notices == ([inbox] if before < 5 else [])
    assert (inbox.count, inbox.bytes) == (5 - taken, 5 * (5 - taken))
    assert seen + numbers(take_all(inbox)) == [0, 1, 2, 3, 4]
    assert inbox.arrived == max(before, 5)


def test_a_limit_below_what_was_taken_drops_all_that_is_held() -> None:
    before = live_objects()["messages"]
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 10))
    for _ in range(4):
        inbox.take()
    emptied = inbox.await_empty()
    inbox.set_limit(2)
    assert (inbox.count, inbox.bytes, inbox.taken) == (0, 0, 4)
    assert emptied.is_open
    assert live_objects()["messages"] == before


def test_surplus_messages_are_gone_at_once() -> None:
    before = live_objects()["messages"]
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 10))
    inbox.set_limit(4)
    assert live_objects()["messages"] == before + 4


def test_a_gate_opens_when_the_last_held_message_is_taken() -> None:
    inbox = Inbox()
    assert inbox.await_empty().is_open
    rig_with(inbox).feed(frames(0, 2))
    gate = inbox.await_empty()
    assert inbox.await_empty() is gate
    inbox.take()
    assert not gate.is_open
    inbox.take()
    assert gate.is_open


def test_everybody_who_waits_for_an_empty_inbox_is_told() -> None:
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 1))
    gates: list[Gate] = []
    gates.append(
        amid_collection(inbox.await_empty, lambda: gates.append(inbox.await_empty()))
    )
    inbox.take()
    assert [gate.is_open for gate in gates] == [True, True]


def test_dropped_messages_count_towards_the_limit() -> None:
    inbox = Inbox(max_messages=2)
    inbox.set_limit(4)
    rig_with(inbox).feed(frames(0, 6))
    assert inbox.is_ended
    assert (inbox.arrived, inbox.dropped, inbox.count) == (4, 2, 2)


def test_what_is_held_can_be_taken_after_the_end() -> None:
    inbox = Inbox()
    rig = rig_with(inbox)
    rig.feed(frames(0, 2))
    inbox.end()
    rig.feed(frames(2, 4))
    assert (inbox.is_ended, inbox.ready) == (True, True)
    assert numbers(take_all(inbox)) == [0, 1]
    assert inbox.ready


def test_the_first_end_stays() -> None:
    inbox, first = Inbox(), SubscriptionClosedError("first")
    inbox.end(first)
    inbox.end(SubscriptionClosedError("second"))
    assert inbox.reason is first
    quiet = Inbox()
    quiet.end()
    quiet.end(first)
    assert quiet.reason is None


def test_clearing_drops_what_is_held_and_counts_nothing_as_taken() -> None:
    before = live_objects()["messages"]
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 5))
    inbox.take()
    assert inbox.clear() == 4
    assert (inbox.count, inbox.bytes, inbox.taken, inbox.arrived) == (0, 0, 1, 5)
    assert live_objects()["messages"] == before
    assert inbox.clear() == 0


# Putting back


@pytest.mark.parametrize("held", [0, 1, 15, 16, 17, 5000])
def test_a_message_that_is_put_back_is_the_next_again(held: int) -> None:
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, held + 1))
    msg = inbox.take()
    assert msg is not None
    inbox.put_back(msg)
    assert (inbox.count, inbox.bytes, inbox.taken) == (held + 1, 5 * (held + 1), 0)
    assert inbox.take() is msg
    assert numbers(take_all(inbox)) == list(range(1, held + 1))


def test_several_messages_are_put_back_in_reverse() -> None:
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 40))
    for msg in reversed(take_all(inbox)):
        inbox.put_back(msg)
    assert numbers(take_all(inbox)) == list(range(40))


# Waiting, as far as it needs no second thread


def test_taking_into_a_hand_leaves_the_message_there() -> None:
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 1))
    hand: list[Msg | None] = [None]
    assert inbox.take_into(hand, idle_helm(), 0.0)
    assert hand[0] is not None
    assert hand[0].data == b"0000"
    assert inbox.taken == 1
    assert not inbox.take_into(hand, idle_helm(), 0.0)
    inbox.end()
    assert not inbox.take_into(hand, idle_helm(), 100.0)


def test_an_iterator_gives_what_is_held_and_stops_at_its_timeout() -> None:
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 3))
    messages = MessageIterator(inbox, idle_helm(), 0.0)
    assert iter(messages) is messages
    assert numbers(list(messages)) == [0, 1, 2]
    assert list(messages) == []


def test_an_iterator_raises_the_reason_of_the_end_after_the_last_message() -> None:
    inbox = Inbox()
    rig_with(inbox).feed(frames(0, 2))
    inbox.end(SubscriptionClosedError("over"))
    messages = MessageIterator(inbox, idle_helm(), 100.0)
    assert [int(next(messages).data) for _ in range(2)] == [0, 1]
    with pytest.raises(SubscriptionClosedError, match="over"):
        next(messages)


def test_an_iterator_ends_quietly_with_an_inbox_that_ended_without_reason() -> None:
    inbox = Inbox()
    inbox.set_limit(2)
    rig_with(inbox).feed(frames(0, 5))
    messages = MessageIterator(inbox, idle_helm(), 100.0)
    assert numbers(list(messages)) == [0, 1]
