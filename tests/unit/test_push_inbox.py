"""The inbox of push deliveries: order of messages and statuses, gaps, places."""

from __future__ import annotations

import math
import threading

import pytest

from jsclient._core import Gate, Helm, MessageIterator, Msg, Outbox, PushInbox
from tests.harness.deliveries import PushRig, delivery, flow_control, heartbeat, status
from tests.harness.helms import PATIENCE, Deck
from tests.harness.lanes import MIB, Delivery, courier


def rig(
    max_messages: int = -1,
    max_bytes: int = -1,
    *,
    is_new: bool = False,
    checks_gaps: bool = True,
    keeps_place: bool = False,
    is_raw: bool = False,
    last_seq: int | None = None,
) -> PushRig:
    return PushRig(
        PushInbox(
            courier(),
            max_messages,
            max_bytes,
            is_new=is_new,
            checks_gaps=checks_gaps,
            keeps_place=keeps_place,
            is_raw=is_raw,
            last_seq=last_seq,
        )
    )


def idle_helm() -> Helm:
    """A helm at which nothing ever comes."""
    return Helm(lambda what, deadline: None, lambda: 0.0, Outbox(MIB, MIB))


# Gaps


def test_deliveries_that_follow_each_other_have_no_gap() -> None:
    push = rig().feed(7, 8, heartbeat(8), 9)
    assert push.inbox.gaps == []
    assert push.inbox.deliveries == 9
    assert push.taken() == [7, 8, 9]
    assert push.parser.notices == []


def test_a_missing_delivery_is_a_gap_and_the_next_one_is_delivered() -> None:
    push = rig().feed(1, 2, 4, 5)
    assert push.inbox.gaps == [(3, 4)]
    assert push.parser.notices == [push.inbox]
    assert push.taken() == [1, 2, 4, 5]


def test_a_heartbeat_tells_of_deliveries_that_did_not_arrive() -> None:
    push = rig().feed(1, 2, 3, 4, heartbeat(5), 6)
    assert push.inbox.gaps == [(4, 5)]


def test_a_heartbeat_that_says_nothing_of_deliveries_is_none() -> None:
    push = rig().feed(1, heartbeat(), status("100 Idle Heartbeat", {"X": 5}), 2)
    assert push.inbox.gaps == []


def test_before_the_first_message_of_a_new_consumer_a_heartbeat_may_find_a_gap() -> (
    None
):
    push = rig(is_new=True).feed(heartbeat(0))
    assert push.inbox.gaps == []
    push.feed(heartbeat(2))
    assert push.inbox.gaps == [(0, 2)]


def test_the_first_message_of_a_new_consumer_is_number_one() -> None:
    assert rig(is_new=True).feed(1).inbox.gaps == []
    assert rig(is_new=True).feed(3).inbox.gaps == [(1, 3)]


def test_an_old_consumer_may_begin_anywhere() -> None:
    assert rig().feed(900).inbox.gaps == []
    push = rig().feed(heartbeat(900), 901)
    assert push.inbox.gaps == []
    assert push.feed(heartbeat(902)).inbox.gaps == [(901, 902)]


def test_a_consumer_that_counts_anew_is_told_once() -> None:
    push = rig().feed(8, 9, 1, 2, 3)
    assert push.inbox.gaps == [(10, 1)]


def test_members_of_a_queue_group_have_no_gaps() -> None:
    push = rig(checks_gaps=False).feed(1, 5, heartbeat(9), 20)
    assert push.inbox.gaps == []
    assert push.taken() == [1, 5, 20]


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.0",
        b"$JS.ACK._.hash.S.C.1.%d.%d.1700000000000000000.0",
        b"$JS.ACK.hub.hash.S.C.1.%d.%d.1700000000000000000.0.extra.more",
    ],
)
def test_every_form_of_an_ack_subject_is_read(reply: bytes) -> None:
    push = rig()
    for number in (9, 10, 11, 13):
        push.feed(Delivery(b"s", reply % (number + 1000, number)))
    assert push.inbox.gaps == [(12, 13)]


def test_names_may_change_between_two_deliveries() -> None:
    push = rig()
    push.feed(
        Delivery(b"s", b"$JS.ACK.S.C.1.5.1.1700000000000000000.0"),
        Delivery(b"s", b"$JS.ACK._.h.S.C.1.6.2.1700000000000000000.0"),
        Delivery(b"s", b"$JS.ACK.S.C2.1.7.3.1700000000000000000.0"),
        Delivery(b"s", b"$JS.ACK.S.C.1.8.%d.1700000000000000000.0" % (1 << 63)),
    )
    assert push.inbox.gaps == [(4, 1 << 63)]


@pytest.mark.parametrize(
    "reply", [b"$JS.ACK.x", b"$JS.ACK.S.C.1.5.x.4.0", b"$JS.ACK.S.C.1.5"]
)
def test_a_message_with_a_bad_ack_subject_is_a_message(reply: bytes) -> None:
    push = rig().feed(1, Delivery(b"s", reply), 2)
    assert push.inbox.gaps == []
    assert push.inbox.count == 3


def test_notes_of_gaps_are_bounded() -> None:
    push = rig()
    for number in range(1, 5000, 2):
        push.feed(number)
    assert len(push.inbox.gaps) == 1024
    assert push.inbox.count == 2500


# Statuses


def test_a_request_comes_between_the_messages_around_it() -> None:
    push = rig().feed(1, 2, flow_control("fc.1"), 3)
    assert push.inbox.status is None
    assert push.inbox.take() is not None
    assert push.inbox.status is None
    assert push.inbox.take() is not None
    due = push.due()
    assert due is not None
    assert (due.status, due.reply) == (100, "fc.1")
    assert push.due() is None
    assert push.taken() == [3]


def test_a_request_without_a_message_before_it_is_due_at_once() -> None:
    push = rig().feed(flow_control("fc.1"), 1)
    due = push.due()
    assert due is not None
    assert due.reply == "fc.1"
    assert push.taken() == [1]


def test_statuses_are_not_counted_as_messages() -> None:
    push = rig().feed(1, flow_control("fc.1"), status("409 Conflict"), heartbeat(1))
    inbox = push.inbox
    assert (inbox.count, inbox.arrived, inbox.heard) == (1, 1, 4)
    assert inbox.bytes == delivery(1).size


def test_a_message_that_is_put_back_comes_before_the_request_again() -> None:
    push = rig().feed(1, flow_control("fc.1"))
    msg = push.inbox.take()
    assert msg is not None
    assert push.inbox.is_due
    push.inbox.put_back(msg)
    assert push.inbox.status is None
    assert push.taken() == [1]
    assert push.due() is not None


def test_messages_that_a_limit_cuts_off_do_not_hold_up_a_request() -> None:
    push = rig().feed(1, 2, 3, flow_control("fc.1"))
    push.inbox.set_limit(1)
    assert push.taken() == [1]
    assert push.due() is not None


def test_putting_away_twice_does_no_harm() -> None:
    push = rig().feed(flow_control("fc.1"), flow_control("fc.2"))
    first = push.inbox.status
    assert first is not None
    push.inbox.put_away(first)
    push.inbox.put_away(first)
    second = push.due()
    assert second is not None
    assert second.reply == "fc.2"


def test_a_stalled_consumer_is_noticed_at_once() -> None:
    push = rig().feed(1, 2, heartbeat(2, stalled="fc.1"))
    assert push.parser.notices == [push.inbox]
    (stall,) = push.inbox.stalls
    assert stall.headers is not None
    assert stall.headers["Nats-Consumer-Stalled"] == "fc.1"
    assert push.inbox.status is None


@pytest.mark.parametrize(
    "header",
    [
        b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
        b"NATS/1.0\r\nStatus: 409\r\n\r\n",
    ],
)
def test_a_message_that_looks_like_a_status_is_a_message(header: bytes) -> None:
    push = rig().feed(delivery(1, header=header), 2)
    assert push.inbox.status is None
    assert push.taken() == [1, 2]


def test_what_nobody_knows_is_a_message() -> None:
    push = rig().feed(b"MSG d 1 2\r\nhi\r\n", b"HMSG d 1 12 12\r\nNATS/1.0\r\n\r\n\r\n")
    assert push.inbox.count == 2
    assert push.inbox.gaps == []


def test_waiting_statuses_are_bounded() -> None:
    push = rig().feed(1)
    for number in range(2000):
        push.feed(flow_control(f"fc.{number}"), heartbeat(1, stalled="fc"))
    assert len(push.inbox.stalls) == 1024
    assert push.taken() == [1]
    count = 0
    while push.due() is not None:
        count += 1
    assert count == 1024


def test_what_is_dropped_takes_its_statuses_along() -> None:
    push = rig().feed(1, flow_control("fc.1"), 2, heartbeat(2, stalled="fc"))
    assert push.inbox.clear() == 2
    assert push.inbox.status is None
    assert not push.inbox.stalls
    assert (push.inbox.taken, push.inbox.count) == (0, 0)


def test_a_raw_inbox_takes_statuses_for_messages() -> None:
    frames = (flow_control("fc.1"), heartbeat(9, stalled="fc"), status("409 Conflict"))
    push = rig(is_raw=True, is_new=True).feed(3, *frames)
    assert push.inbox.gaps == []
    assert push.inbox.status is None
    assert not push.inbox.stalls
    found = [push.inbox.take() for _ in range(4)]
    assert [msg.status for msg in found if msg is not None] == [None, 100, 100, 409]


# Taking


class Bell:
    """What a reader calls when a status is due."""

    def __init__(self, push: PushRig) -> None:
        self.heard: list[tuple[str | None, int]] = []
        self._push = push
        push.inbox.on_due = self

    def __call__(self) -> None:
        while (status := self._push.inbox.status) is not None:
            self.heard.append((status.reply, self._push.inbox.taken))
            self._push.inbox.put_away(status)


def test_whoever_takes_a_message_reaches_the_statuses_before_it() -> None:
    push = rig().feed(1, flow_control("fc.1"), flow_control("fc.2"), 2, 3)
    bell = Bell(push)
    hand: list[Msg | None] = [None]
    for number in (1, 2, 3):
        assert push.inbox.take_into(hand, idle_helm(), 0.0)
        assert hand[0] is not None
        assert hand[0].metadata.consumer_seq == number
    assert bell.heard == [("fc.1", 1), ("fc.2", 1)]


def test_an_iteration_reaches_the_statuses_too() -> None:
    push = rig().feed(1, flow_control("fc.1"), 2, flow_control("fc.2"))
    bell = Bell(push)
    messages = MessageIterator(push.inbox, idle_helm(), 0.0)
    assert [msg.metadata.consumer_seq for msg in messages] == [1, 2]
    assert bell.heard == [("fc.1", 1), ("fc.2", 2)]


def test_a_status_wakes_whoever_waits_without_using_up_the_wait() -> None:
    push = rig()
    bell = Bell(push)
    frames = [flow_control("fc.1"), delivery(1).frame(1)]

    def drive(what: object, deadline: float) -> None:
        push.feed(frames.pop(0))

    helm = Helm(drive, lambda: 0.0, Outbox(MIB, MIB))
    helm.start()
    hand: list[Msg | None] = [None]
    assert push.inbox.take_into(hand, helm, 1.0)
    assert bell.heard == [("fc.1", 0)]
    assert frames == []


def test_a_status_wakes_a_reader_who_sleeps_while_another_thread_reads() -> None:
    deck, push, gate, seen = Deck(), rig(), Gate(), threading.Event()

    def answer() -> None:
        assert push.due() is not None
        seen.set()

    push.inbox.on_due = answer
    hand: list[Msg | None] = [None]
    driver = deck.driver(lambda: deck.helm.wait(gate, math.inf))
    reader = deck.sleeper(lambda: push.inbox.take_into(hand, deck.helm, math.inf))
    deck.order(lambda: [push.feed(flow_control("fc.1"))].clear())
    assert seen.wait(PATIENCE), "it is answered before the next message comes"
    deck.order(lambda: [push.feed(1)].clear())
    assert reader.result()
    deck.order(gate.open)
    assert driver.result()


def test_what_a_status_raises_reaches_the_reader_and_reading_goes_on() -> None:
    push = rig().feed(1, status("409 Conflict"), 2)

    def fail() -> None:
        push.due()
        raise KeyError("conflict")

    push.inbox.on_due = fail
    messages = MessageIterator(push.inbox, idle_helm(), 0.0)
    assert next(messages).metadata.consumer_seq == 1
    with pytest.raises(KeyError):
        next(messages)
    assert next(messages).metadata.consumer_seq == 2


# Limits


@pytest.mark.parametrize("limits", [(2, -1), (-1, 2 * delivery(1).size)])
def test_messages_without_room_are_dropped_and_counted(
    limits: tuple[int, int],
) -> None:
    push = rig(*limits).feed(1, 2, 3, 4)
    inbox = push.inbox
    assert (inbox.count, inbox.dropped, inbox.arrived) == (2, 2, 4)
    assert inbox.report_drop()
    assert inbox.gaps == [], "they have arrived"
    assert push.taken() == [1, 2]
    assert push.feed(5).inbox.gaps == []


def test_a_request_behind_dropped_messages_is_due_when_the_others_are_taken() -> None:
    push = rig(2).feed(1, 2, 3, 4, flow_control("fc.1"))
    assert push.inbox.status is None
    push.taken()
    assert push.due() is not None


# Places


def test_the_place_is_that_of_the_last_message_taken() -> None:
    push = rig(keeps_place=True)
    push.feed(*(delivery(n, stream_seq=10 * n) for n in (1, 2)))
    assert push.inbox.last is None
    assert push.inbox.take() is push.inbox.last
    assert push.inbox.last_seq == 10
    msg = push.inbox.take()
    assert msg is not None
    push.inbox.put_back(msg)
    assert push.inbox.last_seq == 10


def test_without_need_no_message_is_kept() -> None:
    push = rig().feed(1)
    push.taken()
    assert push.inbox.last is None


# Ordered


def test_an_ordered_inbox_ends_before_a_gap() -> None:
    push = rig(last_seq=0).feed(1, 2, 4, 3, 5)
    assert push.inbox.is_ended
    assert push.inbox.gap == 4
    assert push.inbox.gaps == []
    assert push.taken() == [1, 2]
    assert push.inbox.last_seq == 2


@pytest.mark.parametrize("last", [0, 3])
def test_an_ordered_inbox_ends_with_a_heartbeat_that_does_not_fit(last: int) -> None:
    push = rig(last_seq=0).feed(1, 2, heartbeat(2))
    assert not push.inbox.is_ended
    push.feed(heartbeat(last), 3)
    assert push.inbox.gap == last
    assert push.taken() == [1, 2]


def test_an_ordered_inbox_begins_with_number_one() -> None:
    assert rig(last_seq=40).feed(2).inbox.gap == 2
    push = rig(last_seq=40).feed(heartbeat(1))
    assert (push.inbox.gap, push.inbox.last_seq) == (1, 40)


def test_an_ordered_inbox_ends_before_a_message_without_room() -> None:
    push = rig(2, last_seq=0).feed(1, 2, 3)
    assert push.inbox.gap == 3
    assert (push.inbox.dropped, push.inbox.deliveries) == (0, 2)
    assert push.taken() == [1, 2]
    assert push.inbox.last_seq == 2, "the next consumer brings it again"


def test_an_ordered_inbox_ends_with_a_delivery_without_numbers() -> None:
    push = rig(last_seq=0).feed(1, Delivery(b"s", b"$JS.ACK.S.C.1.x.2.3.4"))
    assert push.inbox.gap == 0


def test_an_ordered_inbox_has_no_use_for_what_is_of_no_consumer() -> None:
    push = rig(last_seq=0).feed(1, b"MSG d 1 2\r\nhi\r\n", 2)
    assert not push.inbox.is_ended
    assert push.taken() == [1, 2]


def test_an_ordered_inbox_has_its_statuses_in_order() -> None:
    push = rig(last_seq=0).feed(1, flow_control("fc.1"), 2)
    assert push.inbox.take() is not None
    assert push.due() is not None
    assert push.taken() == [2]
