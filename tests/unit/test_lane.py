"""Lanes: whose messages these are, which pull a status is about, and what is owed."""

from __future__ import annotations

import math

import pytest

from jsclient._core import Gate, Lane, Msg, PullInbox
from tests.harness.compiled import take_all
from tests.harness.helms import Deck, idle_helm
from tests.harness.lanes import Delivery, LaneRig, courier, delivery, status

TIMEOUT = (
    b"NATS/1.0 408 Request Timeout\r\n"
    b"Nats-Pending-Messages: 1\r\nNats-Pending-Bytes: 0\r\n\r\n"
)
DELETED = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
PIN = b"Nats-Pin-Id: 0123456789abcdefghijkl\r\n"


def inbox() -> PullInbox:
    return PullInbox(courier())


def numbers(box: PullInbox) -> list[int]:
    return [msg.metadata.consumer_seq for msg in take_all(box)]


def feed(rig: LaneRig, sid: int, *deliveries: Delivery) -> None:
    """Deliveries on one lane."""
    for one in deliveries:
        rig.parser.feed(one.frame(sid))


def tell(rig: LaneRig, sid: int, block: bytes, *, reply: str | None = None) -> None:
    """A status, of the first pull of a lane by default."""
    rig.parser.feed(status(sid, rig.reply(sid) if reply is None else reply, block))


# Messages -----------------------------------------------------------------------------


def test_the_subscription_says_which_pull_a_message_is_of() -> None:
    box = inbox()
    rig = LaneRig(box, box, batch=10)
    first, second = rig.lanes
    feed(rig, 1, delivery(1), delivery(3))
    feed(rig, 2, delivery(2))
    assert (first.messages, second.messages) == (2, 1)
    assert (first.bytes, second.bytes) == (
        delivery(1).size + delivery(3).size,
        delivery(2).size,
    )
    assert box.owed == 17
    assert numbers(box) == [1, 3, 2]


def test_two_conversations_do_not_get_each_others_messages() -> None:
    one, other = inbox(), inbox()
    rig = LaneRig(one, other)
    feed(rig, 1, delivery(1))
    feed(rig, 2, delivery(2), delivery(3))
    assert (numbers(one), numbers(other)) == ([1], [2, 3])


@pytest.mark.parametrize("header", [b"", b"NATS/1.0\r\nA: b\r\n\r\n"])
@pytest.mark.parametrize("data", [b"", b"x" * 1000])
def test_a_message_is_charged_to_the_byte(header: bytes, data: bytes) -> None:
    box = inbox()
    rig = LaneRig(box, max_bytes=5000)
    one = delivery(1, header=header, data=data)
    feed(rig, 1, one)
    assert rig.lanes[0].bytes == one.size
    assert box.owed_bytes == 5000 - one.size
    assert box.bytes == one.size


def test_a_batch_that_is_complete_is_noticed() -> None:
    rig = LaneRig(inbox(), batch=2)
    feed(rig, 1, delivery(1))
    assert rig.parser.notices == []
    feed(rig, 1, delivery(2))
    assert rig.parser.notices == rig.lanes
    assert rig.lanes[0].is_spent


def test_bytes_that_are_used_up_exactly_are_noticed() -> None:
    whole = delivery(1).size + delivery(2).size
    rig = LaneRig(inbox(), max_bytes=whole)
    feed(rig, 1, delivery(1))
    assert rig.parser.notices == []
    feed(rig, 1, delivery(2))
    assert rig.lanes[0].is_spent
    assert rig.parser.notices == rig.lanes
    nearly = LaneRig(inbox(), max_bytes=whole + 1)
    feed(nearly, 1, delivery(1), delivery(2))
    assert not nearly.lanes[0].is_spent
    assert nearly.parser.notices == []


def test_a_message_that_looks_like_a_status_is_a_message() -> None:
    box = inbox()
    rig = LaneRig(box)
    fakes = [
        b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n",
        DELETED,
        TIMEOUT,
        b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    ]
    feed(rig, 1, *(delivery(n, header=fake) for n, fake in enumerate(fakes, 1)))
    assert numbers(box) == [1, 2, 3, 4]
    assert not rig.lanes[0].statuses
    assert rig.parser.notices == []


def test_a_message_of_a_newer_ack_subject_is_a_message() -> None:
    box = inbox()
    rig = LaneRig(box)
    reply = b"$JS.ACK._.szMpdrwD.S.C.1.1.7.1794822690692342458.2"
    feed(rig, 1, Delivery(b"s", reply))
    assert numbers(box) == [7]


def test_what_no_pull_can_have_brought_is_counted_and_dropped() -> None:
    box = inbox()
    rig = LaneRig(box)
    rig.parser.feed(b"MSG s 1 2\r\nhi\r\n")
    rig.parser.feed(b"MSG s 1 other.reply 2\r\nhi\r\n")
    rig.parser.feed(b"HMSG s 1 12 12\r\nNATS/1.0\r\n\r\n\r\n")
    assert (box.strays, box.count, box.arrived, box.heard) == (3, 0, 0, 0)
    assert box.owed == 1_000_000


def test_a_late_message_is_held_but_paid_by_nobody() -> None:
    box = inbox()
    rig = LaneRig(box, batch=5, max_bytes=1000)
    feed(rig, 1, delivery(1))
    rig.lanes[0].close()
    assert (box.owed, box.owed_bytes) == (0, 0)
    feed(rig, 1, delivery(2))
    assert (box.owed, box.owed_bytes, box.arrived) == (0, 0, 2)
    assert rig.lanes[0].messages == 1
    assert rig.parser.notices == []
    assert numbers(box) == [1, 2]


def test_more_than_was_asked_for_leaves_nothing_owed() -> None:
    box = inbox()
    rig = LaneRig(box, batch=1, max_bytes=delivery(1).size)
    feed(rig, 1, delivery(1), delivery(2))
    assert (box.owed, box.owed_bytes) == (0, 0)
    assert numbers(box) == [1, 2]


@pytest.mark.parametrize(("batch", "max_bytes"), [(2, 0), (1000, 2 * delivery(1).size)])
def test_a_server_that_sends_without_end_fills_no_memory(
    batch: int, max_bytes: int
) -> None:
    box = inbox()
    rig = LaneRig(box, batch=batch, max_bytes=max_bytes)
    feed(rig, 1, *[delivery(number) for number in range(1, 10)])
    assert (box.arrived, box.dropped, box.owed_bytes) == (4, 5, 0)
    assert numbers(box) == [1, 2, 3, 4]


def test_a_lane_that_nobody_uses_drops_messages() -> None:
    box = inbox()
    rig = LaneRig(box)
    rig.lanes[0].retire()
    feed(rig, 1, delivery(1))
    tell(rig, 1, TIMEOUT)
    assert (rig.parser.unrouted, box.count, box.owed) == (2, 0, 0)
    assert not rig.lanes[0].statuses


def test_a_new_lane_has_nobody() -> None:
    lane = Lane()
    assert lane.inbox is None
    assert not lane.is_open
    lane.close()
    lane.retire()


def test_beyond_the_limit_of_the_inbox_messages_are_left_to_the_server() -> None:
    box = inbox()
    box.set_limit(2)
    rig = LaneRig(box, batch=5)
    feed(rig, 1, delivery(1))
    assert rig.parser.notices == []
    feed(rig, 1, delivery(2), delivery(3))
    assert rig.parser.notices == rig.lanes
    assert (box.arrived, box.dropped) == (2, 1)
    assert numbers(box) == [1, 2]


def test_a_late_message_may_be_the_last_one_that_is_wanted() -> None:
    box = inbox()
    box.set_limit(2)
    rig = LaneRig(box, batch=5)
    rig.lanes[0].close()
    feed(rig, 1, delivery(1), delivery(2))
    assert rig.parser.notices == rig.lanes


# Statuses -----------------------------------------------------------------------------


def test_a_status_is_kept_for_its_pull() -> None:
    box = inbox()
    rig = LaneRig(box, box)
    tell(rig, 2, TIMEOUT)
    tell(rig, 2, DELETED)
    first, second = rig.lanes
    assert not first.statuses
    assert [(msg.status, msg.description) for msg in second.statuses] == [
        (408, "Request Timeout"),
        (409, "Consumer Deleted"),
    ]
    assert rig.parser.notices == [second]
    assert (box.count, box.heard) == (0, 0)


def test_a_status_without_a_text_is_one() -> None:
    rig = LaneRig(inbox())
    tell(rig, 1, b"NATS/1.0 503\r\n\r\n")
    assert [(msg.status, msg.description) for msg in rig.lanes[0].statuses] == [
        (503, None)
    ]


@pytest.mark.parametrize(
    "reply", ["_INBOX.x.1.0", "_INBOX.x.1.11", "_INBOX.x.1", "_INBOX.x.2.1"]
)
def test_a_status_of_another_pull_is_ignored(reply: str) -> None:
    box = inbox()
    rig = LaneRig(box)
    tell(rig, 1, DELETED, reply=reply)
    tell(rig, 1, b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", reply=reply)
    assert not rig.lanes[0].statuses
    assert rig.parser.notices == []
    assert box.heard == 0


def test_a_status_of_a_closed_pull_is_ignored() -> None:
    rig = LaneRig(inbox())
    rig.lanes[0].close()
    tell(rig, 1, DELETED)
    assert not rig.lanes[0].statuses


def test_a_lane_that_is_used_again_knows_only_its_new_pull() -> None:
    old, new = inbox(), inbox()
    rig = LaneRig(old, batch=5, max_bytes=1000)
    lane = rig.lanes[0]
    feed(rig, 1, delivery(1))
    tell(rig, 1, TIMEOUT)
    lane.retire()
    lane.open(new, "_INBOX.x.1.2", 3, 0)
    assert (lane.messages, lane.bytes, len(lane.statuses)) == (0, 0, 0)
    tell(rig, 1, DELETED)  # of the first pull
    assert not lane.statuses
    feed(rig, 1, delivery(2))
    tell(rig, 1, TIMEOUT, reply="_INBOX.x.1.2")
    assert [msg.status for msg in lane.statuses] == [408]
    assert (numbers(old), numbers(new)) == ([1], [2])
    assert (old.owed, old.owed_bytes, new.owed) == (0, 0, 2)


def test_heartbeats_and_messages_are_heard_and_statuses_are_not() -> None:
    box = inbox()
    rig = LaneRig(box)
    rig.beat(1)
    rig.beat(1, b"Nats-Last-Consumer: 6\r\nNats-Last-Stream: 6\r\n")
    feed(rig, 1, delivery(1))
    tell(rig, 1, TIMEOUT)
    assert box.heard == 3
    assert rig.parser.notices == rig.lanes
    assert 0.0 <= box.silence < 60.0


@pytest.mark.parametrize(
    "pending",
    [
        b"",
        b"Nats-Pending-Messages: -1\r\nNats-Pending-Bytes: abc\r\n",
        b"Nats-Pending-Messages: 99999999999999999999\r\nNats-Pending-Bytes: 7\r\n",
    ],
)
def test_what_a_status_says_of_the_rest_is_not_needed(pending: bytes) -> None:
    box = inbox()
    rig = LaneRig(box, batch=10, max_bytes=1000)
    feed(rig, 1, delivery(1))
    tell(rig, 1, b"NATS/1.0 408 Request Timeout\r\n" + pending + b"\r\n")
    rig.lanes[0].retire()
    assert (box.owed, box.owed_bytes) == (0, 0)


# What is due --------------------------------------------------------------------------


def test_more_is_due_when_owed_and_held_have_fallen_to_the_threshold() -> None:
    box = inbox()
    box.threshold = 5
    rig = LaneRig(box, batch=10)
    feed(rig, 1, *map(delivery, range(1, 11)))
    due = []
    while box.take() is not None:
        due.append(box.is_due)
    assert due == [False] * 4 + [True] * 6


def test_what_is_owed_is_not_due() -> None:
    box = inbox()
    box.threshold = 5
    rig = LaneRig(box, box, batch=10)
    feed(rig, 1, *map(delivery, range(1, 11)))
    take_all(box)
    assert not box.is_due
    rig.lanes[1].close()
    feed(rig, 1, delivery(11))
    take_all(box)
    assert box.is_due


def test_bytes_are_due_by_their_own_threshold() -> None:
    box = inbox()
    size = delivery(1).size
    box.threshold = 2 * size
    box.counts_bytes = True
    rig = LaneRig(box, max_bytes=4 * size)
    feed(rig, 1, *map(delivery, range(1, 5)))
    due = []
    while box.take() is not None:
        due.append(box.is_due)
    assert due == [False, True, True, True]


def test_without_a_threshold_nothing_is_due() -> None:
    box = inbox()
    rig = LaneRig(box, batch=1)
    feed(rig, 1, delivery(1))
    take_all(box)
    assert not box.is_due


def test_who_comes_for_the_next_message_asks_for_more() -> None:
    box = inbox()
    asked: list[int] = []

    def ask() -> None:
        asked.append(box.count)
        box.is_due = False

    box.threshold = 1
    box.on_due = ask
    rig = LaneRig(box, batch=3)
    feed(rig, 1, *map(delivery, range(1, 4)))
    helm = idle_helm()
    hand: list[Msg | None] = [None]
    for so_far in ([], [], [], [1]):
        assert asked == so_far
        box.take_into(hand, helm, 0.0)
    assert asked == [1, 0]


# Pins ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "overhead"),
    [
        (b"NATS/1.0\r\n" + PIN + b"\r\n", 49),
        (b"NATS/1.0\r\nA: b\r\n" + PIN + b"\r\n", 37),
        (b"NATS/1.0\r\nNats-Pin-Id: stale\r\n" + PIN + b"\r\n", 37),
        (b"NATS/1.0\r\nNats-Pin-Id-Not: x\r\n\r\n", 0),
        (b"NATS/1.0\r\nA: Nats-Pin-Id: x\r\n\r\n", 0),
        (b"NATS/1.0\r\nA: b\r\n\r\n", 0),
        (b"NATS/1.0\r\n\r\n", 0),
        (b"", 0),
    ],
)
def test_a_pin_is_not_charged_and_the_last_one_counts(
    header: bytes, overhead: int
) -> None:
    box = inbox()
    rig = LaneRig(box, max_bytes=5000)
    rig.lanes[0].is_pinned = True
    one = delivery(1, header=header, data=b"x")
    feed(rig, 1, one)
    assert rig.lanes[0].bytes == one.size - overhead
    assert box.owed_bytes == 5000 - one.size + overhead
    assert box.pin == ("0123456789abcdefghijkl" if overhead else None)
    assert box.bytes == one.size
    take_all(box)
    assert box.bytes == 0


def test_three_pinned_messages_are_charged_as_the_server_does() -> None:
    """Charged 162 for 309 received, as seen on the wire of a real server."""
    box = inbox()
    rig = LaneRig(box, max_bytes=162)
    rig.lanes[0].is_pinned = True
    header = b"NATS/1.0\r\n" + PIN + b"\r\n"
    reply = b"$JS.ACK.S.C.1.%d.%d.1794822688406701443.%d"
    for n in (1, 2, 3):
        one = Delivery(b"s.x", reply % (n, n, 3 - n), header, b"0123456789ab")
        feed(rig, 1, one)
    assert box.bytes == 309
    assert rig.lanes[0].bytes == 162
    assert rig.lanes[0].is_spent


def test_without_pinned_clients_a_pin_is_a_header_like_others() -> None:
    box = inbox()
    rig = LaneRig(box)
    one = delivery(1, header=b"NATS/1.0\r\n" + PIN + b"\r\n")
    feed(rig, 1, one)
    assert rig.lanes[0].bytes == one.size
    assert box.pin is None


# A lone pull --------------------------------------------------------------------------


def lone_rig(*, batch: int = 2, max_bytes: int = 0) -> tuple[PullInbox, LaneRig, Lane]:
    """A lane that a thread waits for by itself."""
    box = inbox()
    rig = LaneRig(box, batch=batch, max_bytes=max_bytes)
    (lane,) = rig.lanes
    lane.is_lone = True
    return box, rig, lane


def is_ready(lane: Lane) -> bool:
    return lane.ready


def test_a_lone_pull_is_ready_when_all_came_and_notices_nobody() -> None:
    box, rig, lane = lone_rig(batch=2)
    feed(rig, 1, delivery(1))
    assert not is_ready(lane)
    feed(rig, 1, delivery(2))
    assert is_ready(lane)
    assert lane.is_spent
    assert (numbers(box), rig.parser.notices) == ([1, 2], [])


def test_a_lone_pull_is_ready_when_its_bytes_came() -> None:
    _, rig, lane = lone_rig(batch=100, max_bytes=2 * delivery(1).size)
    feed(rig, 1, delivery(1))
    assert not is_ready(lane)
    feed(rig, 1, delivery(2))
    assert is_ready(lane)


def test_a_lone_pull_is_ready_with_a_status_which_waits_for_who_takes_over() -> None:
    _, rig, lane = lone_rig()
    tell(rig, 1, TIMEOUT)
    assert is_ready(lane)
    assert not lane.is_spent
    assert [msg.status for msg in lane.statuses] == [408]
    assert rig.parser.notices == []


def test_a_heartbeat_does_not_make_a_lone_pull_ready() -> None:
    box, rig, lane = lone_rig()
    rig.beat(1)
    assert not is_ready(lane)
    assert box.heard == 1


def test_a_lone_pull_is_ready_when_its_link_is_lost_and_owes_nothing_then() -> None:
    box, rig, lane = lone_rig(batch=3)
    feed(rig, 1, delivery(1))
    lane.lose()
    assert is_ready(lane)
    assert not lane.is_spent
    assert (box.owed, box.count) == (0, 1)


def test_who_sleeps_for_a_lone_pull_is_woken_by_its_last_message() -> None:
    _, rig, lane = lone_rig(batch=1)
    deck, gate = Deck(), Gate()
    driver = deck.driver(lambda: deck.helm.wait(gate, math.inf))
    sleeper = deck.sleeper(lambda: deck.helm.wait(lane, math.inf))
    deck.order(lambda: feed(rig, 1, delivery(1)))
    assert sleeper.result()
    deck.order(gate.open)
    assert driver.result()


# Rests --------------------------------------------------------------------------------

MICROSECOND = 1_000


def rest(came: int, took: int, owed: int, *, counts_bytes: bool = False) -> float:
    """The rest of a thread that got so many messages in so many microseconds."""
    box = PullInbox(courier())
    box.counts_bytes = counts_bytes
    rig = LaneRig(box, batch=came + owed)
    assert box.rest_after(10**9) == 0
    rig.feed(delivery(number) for number in range(came))
    assert box.owed == owed
    return box.rest_after(10**9 + took * MICROSECOND)


def test_in_a_flood_a_thread_rests_while_a_third_of_what_is_owed_comes() -> None:
    # 50 µs less: the system wakes up late.
    assert rest(100, took=100, owed=900) == pytest.approx(250e-6)
    assert rest(20, took=50, owed=400) == pytest.approx(283e-6, rel=0.01)


def test_a_rest_has_its_limits() -> None:
    assert rest(100, took=100, owed=10**9) == pytest.approx(500e-6)
    assert rest(100, took=100, owed=751) == pytest.approx(200e-6, rel=0.01)
    assert rest(100, took=100, owed=749) == 0


def test_few_messages_or_slow_ones_are_no_flood() -> None:
    assert rest(16, took=160, owed=10**6) > 0
    assert rest(15, took=15, owed=10**6) == 0
    assert rest(16, took=161, owed=10**6) == 0


def test_how_fast_the_server_is_cannot_be_told_of_most_of_what_was_owed() -> None:
    assert rest(500, took=1_000, owed=1_000) > 0
    assert rest(500, took=1_000, owed=999) == 0


def test_where_bytes_are_counted_nobody_rests() -> None:
    assert rest(100, took=100, owed=10**6, counts_bytes=True) == 0


def test_the_messages_of_a_flood_count_once() -> None:
    box = PullInbox(courier())
    rig = LaneRig(box, batch=10**6)
    box.rest_after(0)
    rig.feed(delivery(number) for number in range(100))
    assert box.rest_after(100 * MICROSECOND) > 0
    assert box.rest_after(200 * MICROSECOND) == 0
