"""The window of publishes: slots, numbers, outcomes, and what a lost link leaves."""

from __future__ import annotations

import contextlib
import gc
import socket
from array import array
from collections.abc import Iterator

import pytest

from jsclient._core import (
    Column,
    Link,
    Msg,
    Offsets,
    Outbox,
    Parser,
    Routes,
    Rows,
    Window,
    live_objects,
)
from jsclient._core import PubAck as Ack
from jsclient.errors import (
    ConnectionClosedError,
    DisconnectedError,
    InvalidArgumentError,
)
from tests.harness.outbound import answer, arrived, publishes

PREFIX = "_INBOX.w."
MIB = 1 << 20


class Desk:
    """A window on an outbox with a link, and a parser for the answers."""

    def __init__(self, limit: int, *, keeps_acks: bool = True) -> None:
        self.outbox = Outbox(64 * MIB, MIB)
        self.window = Window(PREFIX, self.outbox, limit, keeps_acks)
        self.near, self.far = socket.socketpair()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.outbox.attach(Link(self.near.fileno()), b"")
        routes = Routes()
        routes.add(1, self.window)
        self.parser = Parser(routes)

    def close(self) -> None:
        # Frames that wait hold their window, and it the outbox.
        self.outbox.abandon(lambda: ConnectionClosedError("closed"))
        self.near.close()
        self.far.close()

    def publish(self, *payloads: bytes) -> None:
        """Publishes these, from a source that has not ended."""

        def source() -> Iterator[tuple[str, bytes]]:
            for payload in payloads:
                yield "a.b", payload
            raise EOFError

        with contextlib.suppress(EOFError):
            self.window.feed(source(), 60.0)

    def sent(self) -> list[tuple[str, bytes]]:
        """Where the acks of the sent messages go, and the payloads."""
        return publishes(arrived(self.outbox, self.far))

    def answer(self, reply: str, body: bytes, headers: bytes = b"") -> None:
        answer(self.parser, reply, body, headers)

    def ack(self, reply: str, seq: int, *, is_duplicate: bool = False) -> None:
        tail = b',"duplicate": true}' if is_duplicate else b"}"
        self.answer(reply, b'{"stream":"S","seq":%d%b' % (seq, tail))

    def lose_link(self) -> None:
        self.outbox.detach()
        self.window.fail_tied(DisconnectedError("gone"))

    def new_link(self) -> None:
        self.near.close()
        self.far.close()
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.outbox.attach(Link(self.near.fileno()), b"")


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk(4)
    yield made
    made.close()


def column(*values: bytes | None) -> Column:
    places = array("i", [0])
    bits = bytearray((len(values) + 7) // 8)
    for number, value in enumerate(values):
        places.append(places[-1] + len(value or b""))
        if value is not None:
            bits[number // 8] |= 1 << number % 8
    data = b"".join(value or b"" for value in values)
    return Column(Offsets(places, len(values), validity=bits), data)


def rows(*payloads: bytes) -> Rows:
    return Rows(len(payloads), column(*payloads), "a.b")


def test_acks_are_taken_in_the_order_of_the_publishes(desk: Desk) -> None:
    desk.publish(b"0", b"1", b"2")
    replies = [reply for reply, _ in desk.sent()]
    assert len(set(replies)) == 3
    desk.ack(replies[1], 11)
    desk.ack(replies[2], 12)
    assert not desk.window.has_outcome
    assert desk.window.take() == []
    desk.ack(replies[0], 10)
    assert desk.window.take() == [Ack("S", 10), Ack("S", 11), Ack("S", 12)]
    assert (len(desk.window), desk.window.outstanding) == (0, 0)


def test_no_more_is_taken_from_the_source_than_there_are_places(desk: Desk) -> None:
    source = iter([("a.b", b"%d" % number) for number in range(6)])
    desk.window.feed(source, 60.0)
    assert desk.window.is_full
    assert next(source) == ("a.b", b"4")
    assert not desk.window.is_exhausted


def test_feeding_stops_as_soon_as_there_is_an_outcome(desk: Desk) -> None:
    desk.publish(b"0")
    desk.ack(desk.sent()[0][0], 1)
    source = iter([("a.b", b"1")])
    desk.window.feed(source, 60.0)
    assert desk.sent() == []
    assert desk.window.take() == [Ack("S", 1)]


def test_a_source_that_raises_is_heard_at_once(desk: Desk) -> None:
    def source() -> Iterator[tuple[str, bytes]]:
        yield "a.b", b"0"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        desk.window.feed(source(), 60.0)
    assert len(desk.window) == 1


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (("a..b", b""), InvalidArgumentError),
        (("a.b", "text"), TypeError),
        (("a.b",), TypeError),
        (7, TypeError),
        (("a.b", b"", {"no key": "x"}), InvalidArgumentError),
    ],
)
def test_what_is_wrong_with_a_message_is_its_outcome(
    desk: Desk, message: tuple[str, bytes], kind: type[Exception]
) -> None:
    source = iter([("a.b", b"0"), message, ("a.b", b"2")])
    with pytest.raises(kind) as told:
        desk.window.feed(source, 60.0)
    assert desk.window.pending is message
    desk.window.refuse_pending(told.value)
    desk.window.feed(source, 60.0)
    replies = [reply for reply, _ in desk.sent()]
    assert len(replies) == 2
    desk.ack(replies[1], 2)
    desk.ack(replies[0], 1)
    assert desk.window.take() == [Ack("S", 1)]
    odd = desk.window.take_odd()
    assert odd is not None
    assert (odd[0], type(odd[1])) == ("failed", kind)
    assert desk.window.take() == [Ack("S", 2)]


def test_an_unusual_answer_is_kept_as_a_message(desk: Desk) -> None:
    desk.publish(b"0", b"1")
    first, second = (reply for reply, _ in desk.sent())
    desk.answer(first, b"", b"NATS/1.0 503\r\n\r\n")
    desk.answer(second, b'{"error":{"code":400}}')
    for text in (b"", b'{"error":{"code":400}}'):
        assert desk.window.take() == []
        odd = desk.window.take_odd()
        assert odd is not None
        what, answer, subject = odd
        assert (what, subject) == ("answered", "a.b")
        assert isinstance(answer, Msg)
        assert answer.data == text
    assert desk.window.take_odd() is None


def test_subjects_are_used_again_but_not_soon(desk: Desk) -> None:
    seen = []
    for number in range(1100):
        desk.publish(b"%d" % number)
        ((reply, payload),) = desk.sent()
        assert payload == b"%d" % number
        seen.append(reply)
        desk.ack(reply, number)
        assert desk.window.take() == [Ack("S", number)]
    assert len(set(seen)) == 480
    assert seen[:480] == seen[480:960]


def test_a_second_answer_ends_the_reuse_of_subjects(desk: Desk) -> None:
    desk.publish(b"0")
    ((first, _),) = desk.sent()
    desk.ack(first, 1)
    desk.ack(first, 1)
    assert desk.window.unclaimed == 1
    assert desk.window.stray is None
    seen = {first}
    for number in range(1100):
        desk.window.take()
        desk.publish(b"%d" % number)
        ((reply, _),) = desk.sent()
        assert reply not in seen
        seen.add(reply)
        desk.ack(first, 99)
        assert not desk.window.has_outcome
        desk.ack(reply, number)


def test_a_second_answer_that_refuses_is_told(desk: Desk) -> None:
    desk.publish(b"0")
    ((reply, _),) = desk.sent()
    desk.ack(reply, 1)
    desk.answer(reply, b'{"error":{"code":400}}')
    assert desk.window.stray is not None
    assert desk.window.stray.data == b'{"error":{"code":400}}'


@pytest.mark.parametrize("reply", [f"{PREFIX}x", f"{PREFIX}7", f"{PREFIX}1", "other"])
def test_answers_to_nothing_are_ignored(desk: Desk, reply: str) -> None:
    desk.publish(b"0", b"1", b"2")
    replies = [reply for reply, _ in desk.sent()]
    desk.ack(replies[1], 1)
    desk.ack(reply, 9)
    assert desk.window.unclaimed == 1
    assert desk.window.outstanding == 2


def test_an_ack_under_another_subject_belongs_to_the_only_publish(desk: Desk) -> None:
    desk.publish(b"0")
    desk.sent()
    desk.ack("renamed.by.an.import", 5)
    assert desk.window.take() == [Ack("S", 5)]


def test_a_lost_link_tells_sent_from_unsent(desk: Desk) -> None:
    desk.publish(b"0", b"x" * (1 << 17), b"2", b"3")
    desk.lose_link()
    assert desk.outbox.frames == 0
    assert desk.window.outstanding == 0
    outcomes = []
    while (odd := desk.window.take_odd()) is not None:
        outcomes.append(odd[0])
    assert outcomes == ["lost", "lost", "unsent", "unsent"]


def test_a_late_ack_of_a_lost_publish_is_not_that_of_the_next(desk: Desk) -> None:
    desk.publish(b"0")
    ((before, _),) = desk.sent()
    desk.lose_link()
    assert desk.window.take_odd() is not None
    desk.new_link()
    desk.publish(b"1", b"2", b"3", b"4")
    assert before not in [reply for reply, _ in desk.sent()]
    desk.ack(before, 1)
    assert (desk.window.outstanding, desk.window.unclaimed) == (4, 1)


def test_without_a_link_the_message_waits_for_its_turn(desk: Desk) -> None:
    desk.lose_link()
    source = iter([("a.b", b"0"), ("a.b", b"1")])
    with pytest.raises(DisconnectedError):
        desk.window.feed(source, 60.0)
    assert desk.window.pending == ("a.b", b"0")
    assert len(desk.window) == 0
    desk.new_link()
    assert desk.window.feed(source, 60.0) in (0, 1)
    assert [payload for _, payload in desk.sent()] == [b"0", b"1"]


def test_a_message_that_found_no_room_can_be_refused() -> None:
    desk = Desk(4)
    desk.outbox = Outbox(1, MIB)
    desk.window = Window(PREFIX, desk.outbox, 4, True)
    desk.outbox.attach(Link(desk.near.fileno()), b"")
    source = iter([("a.b", b"x" * (1 << 17)), ("a.b", b"1")])
    assert desk.window.feed(source, 60.0) == 2
    assert desk.window.pending == ("a.b", b"1")
    desk.window.refuse_pending(TimeoutError("no room"))
    assert len(desk.window) == 2
    desk.close()


def test_an_overdue_publish_is_withdrawn_or_its_ack_ignored(desk: Desk) -> None:
    desk.publish(b"0", b"x" * (1 << 17), b"2")
    desk.window.give_up_oldest()
    odd = desk.window.take_odd()
    assert odd is not None
    assert odd[0] == "overdue"
    desk.window.give_up_oldest()
    assert desk.window.take_odd() == ("overdue", None, "a.b")
    desk.window.give_up_oldest()
    assert desk.window.take_odd() == ("late", None, "a.b")
    assert desk.window.take_odd() is None
    first, second = desk.sent()
    assert second[1] == b"x" * (1 << 17)
    desk.ack(first[0], 1)
    assert desk.window.unclaimed == 1


def test_what_was_not_sent_can_be_taken_back(desk: Desk) -> None:
    desk.publish(b"x" * (1 << 17), b"1", b"2")
    desk.outbox.publish("other", b"kept", None, None)
    assert desk.window.withdraw() == 2
    assert desk.window.outstanding == 1
    desk.ack(f"{PREFIX}0", 1)
    assert desk.window.take() == [Ack("S", 1)]
    assert desk.window.take_odd() == ("unsent", None, "a.b")
    assert desk.outbox.unsent().endswith(b"PUB other 4\r\nkept\r\n")


def test_closing_tells_sent_from_unsent_and_refuses_the_rest(desk: Desk) -> None:
    desk.publish(b"x" * (1 << 17), b"1")
    closed = ConnectionClosedError("closed")
    desk.window.fail_all(closed)
    assert desk.window.reason is closed
    odds = [desk.window.take_odd(), desk.window.take_odd()]
    assert [odd and odd[0] for odd in odds] == ["lost", "unsent"]
    with pytest.raises(ConnectionClosedError):
        desk.window.feed(iter([("a.b", b"2")]), 60.0)
    assert len(desk.window) == 0


def test_a_refused_subject_fails_its_oldest_publish(desk: Desk) -> None:
    desk.window.feed(iter([("a.b", b""), ("a.c", b""), ("a.c", b"")]), 60.0)
    error = InvalidArgumentError("not allowed")
    assert not desk.window.fail_subject("a.c", error), "it was not sent yet"
    desk.outbox.send()
    assert not desk.window.fail_subject("a", error)
    assert desk.window.fail_subject("a.c", error)
    assert desk.window.fail_subject("a.c", error)
    assert not desk.window.fail_subject("a.c", error)
    assert desk.window.outstanding == 1
    desk.ack(desk.sent()[0][0], 1)
    assert desk.window.take() == [Ack("S", 1)]
    assert desk.window.take_odd() == ("failed", error, "a.c")


def test_a_message_that_was_never_sent_does_not_hide_those_behind_it(
    desk: Desk,
) -> None:
    source = iter([("a.b", b""), ("a..b", b""), ("a.c", b"")])
    with pytest.raises(InvalidArgumentError) as told:
        desk.window.feed(source, 60.0)
    desk.window.refuse_pending(told.value)
    desk.window.feed(source, 60.0)
    desk.outbox.send()
    assert desk.window.fail_subject("a.c", InvalidArgumentError("not allowed"))


def test_a_wait_is_over_when_an_eighth_was_answered() -> None:
    desk = Desk(16)
    desk.publish(*(b"%d" % number for number in range(16)))
    replies = [reply for reply, _ in desk.sent()]
    desk.window.await_some()
    desk.ack(replies[3], 1)
    waits = [desk.window.ready]
    desk.ack(replies[0], 1)
    waits.append(desk.window.ready)
    desk.window.await_some(True)
    waits.append(desk.window.ready)
    for reply in replies:
        desk.ack(reply, 1)
    waits.append(desk.window.ready)
    assert waits == [False, True, False, True]
    desk.close()


def test_rows_are_counted_and_not_kept() -> None:
    desk = Desk(4, keeps_acks=False)
    made = rows(b"0", b"1", b"2", b"3", b"x" * (1 << 17), b"5")
    desk.window.fill(made)
    assert (made.position, desk.window.is_full) == (4, True)
    replies = [reply for reply, _ in desk.sent()]
    desk.ack(replies[2], 7)
    desk.ack(replies[0], 5)
    desk.ack(replies[1], 2, is_duplicate=True)
    assert desk.window.sweep() == []
    window = desk.window
    assert (window.stored, window.duplicates) == (2, 1)
    assert (window.first_seq, window.last_seq) == (2, 7)
    desk.window.fill(made)
    assert made.position == 6
    desk.lose_link()
    assert [(row, what) for _, row, what, _, _ in desk.window.sweep()] == [
        (3, "lost"),
        (4, "lost"),
        (5, "unsent"),
    ]
    desk.close()


def test_rows_are_sent_when_the_window_is_filled() -> None:
    desk = Desk(4, keeps_acks=False)
    assert desk.window.fill(rows(b"0", b"1")) == 0
    assert desk.window.is_sent
    assert len(desk.outbox) == 0
    desk.close()


def test_a_row_can_be_published_once_more() -> None:
    desk = Desk(4, keeps_acks=False)
    made = rows(b"0", b"1")
    desk.window.fill(made)
    desk.sent()
    desk.lose_link()
    desk.new_link()
    for odd_rows, row, *_ in desk.window.sweep():
        desk.window.publish_row(odd_rows, row)
    assert [payload for _, payload in desk.sent()] == [b"0", b"1"]
    with pytest.raises(IndexError):
        desk.window.publish_row(made, 2)
    desk.close()


def test_a_wrong_row_stops_in_front_of_itself() -> None:
    desk = Desk(4, keeps_acks=False)
    made = Rows(3, column(b"0", b"1", b"2"), column(b"a", b"b..c", b"d"))
    with pytest.raises(InvalidArgumentError, match="empty tokens"):
        desk.window.fill(made)
    assert (made.position, len(desk.window)) == (1, 1)
    made.position += 1
    desk.window.fill(made)
    assert [payload for _, payload in desk.sent()] == [b"0", b"2"]
    desk.close()


def test_rows_with_known_ids_are_passed_over() -> None:
    desk = Desk(4, keeps_acks=False)
    made = Rows(
        3,
        column(b"0", b"1", b"2"),
        "a.b",
        fields=[("Nats-Msg-Id", column(b"x", None, b"y"))],
    )
    desk.window.fill(made, {b"y"})
    assert [payload[-1:] for _, payload in desk.sent()] == [b"0", b"1"]
    assert (made.position, desk.window.duplicates) == (3, 1)
    desk.close()


def test_a_cleared_window_has_no_publishes_and_wants_no_acks(desk: Desk) -> None:
    desk.publish(b"0", b"1", b"2")
    replies = [reply for reply, _ in desk.sent()]
    desk.ack(replies[0], 1)
    desk.window.clear()
    desk.window.clear()
    assert (len(desk.window), desk.window.outstanding) == (0, 0)
    desk.ack(replies[1], 2)
    desk.answer(replies[2], b"odd")
    desk.ack("renamed.by.an.import", 5)
    assert (len(desk.window), desk.window.unclaimed) == (0, 3)
    desk.publish(b"3")
    ((reply, _),) = desk.sent()
    desk.ack(reply, 3)
    assert desk.window.take() == [Ack("S", 3)]


def test_a_cleared_window_keeps_no_error_that_leads_back_to_it() -> None:
    def refuse_one() -> None:
        window = Window(PREFIX, Outbox(MIB, MIB), 4, True)
        try:
            window.feed(iter([("a..b", b"")]), 60.0)
        except InvalidArgumentError as error:
            # Its traceback has this frame, and this frame the window.
            window.refuse_pending(error)
        window.clear()

    gc.collect()
    before = live_objects()["routes"]
    for _ in range(3):
        refuse_one()
    gc.collect()
    assert live_objects()["routes"] <= before


def test_a_window_that_goes_leaves_nothing() -> None:
    gc.collect()
    before = live_objects()
    for _ in range(3):
        desk = Desk(4)
        desk.publish(b"0", b"1")
        desk.ack(f"{PREFIX}0", 1)
        desk.answer(f"{PREFIX}1", b"odd")
        desk.close()
        del desk
    gc.collect()
    # What tests before this one left behind may go meanwhile.
    assert all(count <= before[name] for name, count in live_objects().items())
