"""The window of futures: places, acks in any order, odd ends, and who is told."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from jsclient._core import (
    Gate,
    Link,
    Msg,
    Outbox,
    Parser,
    Pledge,
    Pledges,
    PubAck,
    Routes,
    live_objects,
)
from jsclient.ack_future import AckFuture
from jsclient.errors import (
    ConnectionClosedError,
    DisconnectedError,
    InvalidArgumentError,
    MaxPayloadError,
    PermissionsViolationError,
)
from tests.harness.collector import amid_collection
from tests.harness.outbound import answer, arrived, publishes

PREFIX = "_INBOX.p."
MIB = 1 << 20


class Unused:
    """A loop that no pledge of these tests needs."""

    @property
    def dispatch(self) -> Unused:
        raise NotImplementedError

    def call(self, job: object, /) -> None:
        raise NotImplementedError

    def wait(self, what: object, deadline: float, /) -> bool:
        raise NotImplementedError


class Desk:
    """A window on an outbox with a link, and a parser for the answers."""

    def __init__(
        self, limit: int = 4, *, timeout: float = 60.0, high_water: int = 64 * MIB
    ) -> None:
        self.outbox = Outbox(high_water, MIB)
        self.attended: list[bool] = []
        self.window = Pledges(
            PREFIX,
            self.outbox,
            limit,
            AckFuture,
            Unused(),
            self.attended.append,
            timeout=timeout,
            retries=2,
        )
        self.new_link()
        routes = Routes()
        routes.add(1, self.window)
        self.parser = Parser(routes)

    def new_link(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.outbox.attach(Link(self.near.fileno()), b"")

    def lose_link(self) -> None:
        self.outbox.detach()
        self.near.close()
        self.far.close()
        self.window.fail_tied(DisconnectedError("gone"))

    def close(self) -> None:
        # Frames that wait hold their window, and it the outbox.
        self.outbox.abandon(lambda: ConnectionClosedError("closed"))
        self.near.close()
        self.far.close()

    def launch(self, *payloads: bytes) -> list[AckFuture]:
        futures = [self.window.launch("a.b", payload) for payload in payloads]
        assert None not in futures
        return [future for future in futures if future is not None]

    def sent(self) -> list[tuple[str, bytes]]:
        """Where the acks of the sent messages go, and the payloads."""
        return publishes(arrived(self.outbox, self.far))

    def answer(self, reply: str, body: bytes, headers: bytes = b"") -> None:
        answer(self.parser, reply, body, headers)

    def ack(self, reply: str, seq: int) -> None:
        self.answer(reply, b'{"stream":"S","seq":%d}' % seq)

    def notices(self) -> int:
        """How many there were since the last look."""
        count = len(self.parser.notices)
        self.parser.notices.clear()
        self.window.look()
        return count

    def odd_ends(self) -> list[tuple[AckFuture, str]]:
        """Every odd outcome; each future gets an error."""
        ends: list[tuple[AckFuture, str]] = []
        while (odd := self.window.odd) is not None:
            future, what, _ = odd
            ends.append((future, what))
            future.settle(None, ValueError(what))
            self.window.put_away(future)
        return ends


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


# Acks ---------------------------------------------------------------------------------


def test_an_ack_settles_its_future_in_whatever_order_it_comes(desk: Desk) -> None:
    futures = desk.launch(b"0", b"1", b"2")
    replies = [reply for reply, _ in desk.sent()]
    for number in (1, 2, 0):
        assert not futures[number].done()
        desk.ack(replies[number], 10 + number)
        assert futures[number].done()
    assert [future.result(0) for future in futures] == [
        PubAck("S", 10),
        PubAck("S", 11),
        PubAck("S", 12),
    ]
    assert (desk.window.pending, desk.notices()) == (0, 0), "nobody had to be told"


def test_an_ack_says_what_came_and_is_made_once(desk: Desk) -> None:
    futures = desk.launch(b"0", b"1", b"2", b"3")
    bodies = [
        b'{"stream":"S","seq":1}',
        b'{"stream":"T","seq":7,"duplicate": true}',
        b'{"stream":"TT","domain":"D","seq":8}',
        b'{"stream":"S","seq":2}',
    ]
    for (reply, _), body in zip(desk.sent(), bodies, strict=True):
        desk.answer(reply, body)
    assert [future.result(0) for future in futures] == [
        PubAck("S", 1),
        PubAck("T", 7, duplicate=True),
        PubAck("TT", 8, domain="D"),
        PubAck("S", 2),
    ]
    assert futures[0].result(0) is futures[0].result(0)


def test_a_future_is_a_future_and_a_pledge(desk: Desk) -> None:
    (future,) = desk.launch(b"0")
    assert isinstance(future, Future)
    assert isinstance(future, Pledge)
    assert (future.subject, future.msg_id, future.retries) == ("a.b", None, 2)
    assert (future.running(), future.done(), future.cancel()) == (True, False, False)
    assert "running" in repr(future)
    ((reply, _),) = desk.sent()
    desk.ack(reply, 1)
    assert "finished returned PubAck" in repr(future)


def test_one_that_waits_long_holds_up_none_of_the_others(desk: Desk) -> None:
    (slow,) = desk.launch(b"slow")
    ((held, _),) = desk.sent()
    for number in range(2000):
        (future,) = desk.launch(b"%d" % number)
        ((reply, payload),) = desk.sent()
        assert payload == b"%d" % number
        assert reply != held
        desk.ack(reply, number)
        assert future.result(0).seq == number
    desk.ack(held, 5)
    assert slow.result(0).seq == 5


def test_subjects_are_used_again_but_not_soon(desk: Desk) -> None:
    seen = []
    for number in range(1100):
        desk.launch(b"x")
        ((reply, _),) = desk.sent()
        seen.append(reply)
        desk.ack(reply, number)
    assert seen[:480] == seen[480:960]
    assert len(set(seen)) == 480


def test_a_second_answer_ends_the_reuse_and_changes_nothing(desk: Desk) -> None:
    (future,) = desk.launch(b"0")
    ((first, _),) = desk.sent()
    desk.ack(first, 1)
    desk.answer(first, b'{"error":{"code":400}}')
    assert (future.result(0).seq, desk.window.unclaimed) == (1, 1)
    seen = {first}
    for number in range(1100):
        (future,) = desk.launch(b"x")
        ((reply, _),) = desk.sent()
        assert reply not in seen
        seen.add(reply)
        desk.ack(first, 99)
        is_fooled = future.done()
        desk.ack(reply, number)
        assert (is_fooled, future.done()) == (False, True)


def test_an_ack_under_another_subject_belongs_to_the_only_publish(desk: Desk) -> None:
    (future,) = desk.launch(b"0")
    desk.ack("renamed.by.an.import", 5)
    assert future.result(0).seq == 5
    desk.ack("renamed.by.an.import", 6)
    desk.launch(b"1", b"2")
    desk.ack("renamed.by.an.import", 7)
    assert (desk.window.outstanding, desk.window.unclaimed) == (2, 2)


# Places -------------------------------------------------------------------------------


def test_a_full_window_takes_no_more_and_an_ack_makes_a_place(desk: Desk) -> None:
    desk.launch(b"0", b"1", b"2", b"3")
    full = [desk.window.is_full]
    assert desk.window.launch("a.b", b"4") is None
    replies = [reply for reply, _ in desk.sent()]
    assert len(replies) == 4
    desk.ack(replies[2], 1)
    full.append(desk.window.is_full)
    desk.launch(b"4")
    full.append(desk.window.is_full)
    assert full == [True, False, True]


def test_a_wide_window_is_used_when_acks_take_long_and_not_for_ever() -> None:
    desk = Desk(1500)
    desk.launch(*[b"x"] * 480)
    widths = [desk.window.width]
    assert desk.window.launch("a.b", b"x") is None
    for _ in range(3):
        desk.window.widen()
        widths.append(desk.window.width)
    desk.launch(*[b"x"] * 1020)
    assert desk.window.launch("a.b", b"x") is None
    seen = {reply for reply, _ in desk.sent()}
    assert len(seen) == 1500
    for reply in seen:
        desk.ack(reply, 1)
    widths.append(desk.window.width)
    assert widths == [480, 960, 1500, 1500, 480]
    for _ in range(500):
        desk.launch(b"x")
        ((reply, _),) = desk.sent()
        assert reply not in seen, "late answers find nobody"
        desk.ack(reply, 1)
    assert (desk.window.pending, desk.window.unclaimed) == (0, 0)
    desk.close()


def test_an_outbox_without_room_takes_no_message_and_no_place() -> None:
    desk = Desk(high_water=1000)
    desk.launch(b"x" * (1 << 17))
    assert desk.window.launch("a.b", b"y") is None
    assert (desk.window.pending, desk.window.is_full) == (1, False)
    assert [len(payload) for _, payload in desk.sent()] == [1 << 17]
    desk.launch(b"y")
    assert [payload for _, payload in desk.sent()] == [b"y"]
    desk.close()


def test_what_is_wrong_is_raised_and_takes_no_place(desk: Desk) -> None:
    desk.outbox.set_max_payload(100)
    with pytest.raises(InvalidArgumentError):
        desk.window.launch("a..b", b"")
    with pytest.raises(InvalidArgumentError):
        desk.window.launch("a" * 5000, b"")
    with pytest.raises(MaxPayloadError):
        desk.window.launch("a.b", b"x" * 101)
    with pytest.raises(TypeError):
        desk.window.launch(5, b"")  # type: ignore[arg-type]
    assert desk.window.launch("a.b", bytearray(b"x")) is None, "it is copied first"
    desk.lose_link()
    assert desk.window.launch("a.b", b"") is None, "there is no link"
    assert (desk.window.pending, desk.outbox.frames) == (0, 0)


def test_a_window_has_at_least_one_place() -> None:
    for limit in (0, -1):
        with pytest.raises(InvalidArgumentError, match="places"):
            Desk(limit)
    with pytest.raises(TypeError, match="kind of Pledge"):
        Pledges(
            PREFIX,
            Outbox(MIB, MIB),
            1,
            Gate,  # type: ignore[type-var]
            Unused(),
            print,
            timeout=1.0,
        )


# Odd ends -----------------------------------------------------------------------------


def test_any_other_answer_waits_to_be_looked_at_and_keeps_its_place(
    desk: Desk,
) -> None:
    futures = desk.launch(b"0", b"1")
    replies = [reply for reply, _ in desk.sent()]
    desk.answer(replies[1], b"", b"NATS/1.0 503\r\n\r\n")
    desk.answer(replies[0], b"hello")
    assert desk.notices() == 1
    assert (desk.window.outstanding, desk.window.pending) == (0, 2)
    found = []
    while (odd := desk.window.odd) is not None:
        future, what, answer = odd
        assert desk.window.odd == odd, "until it is put away"
        assert isinstance(answer, Msg)
        found.append((future, what, answer.status, answer.data))
        assert not future.done()
        future.settle(PubAck("S", 1))
        desk.window.put_away(future)
        desk.window.put_away(future)  # as after an exception of a signal handler
    assert found == [
        (futures[1], "answered", 503, b""),
        (futures[0], "answered", None, b"hello"),
    ]
    assert desk.window.pending == 0


def test_a_lost_link_tells_sent_from_unsent(desk: Desk) -> None:
    futures = desk.launch(b"0", b"x" * (1 << 17), b"2", b"3")
    desk.lose_link()
    assert desk.outbox.frames == 0
    assert desk.odd_ends() == list(
        zip(futures, ["lost", "lost", "unsent", "unsent"], strict=True)
    )
    assert (desk.window.pending, desk.window.time_left) == (0, float("inf"))
    assert str(desk.window.gone) == "gone"


def test_a_late_ack_of_a_lost_publish_is_not_that_of_the_next(desk: Desk) -> None:
    desk.launch(b"0")
    ((before, _),) = desk.sent()
    desk.lose_link()
    desk.odd_ends()
    desk.new_link()
    desk.launch(b"1", b"2", b"3")
    assert before not in [reply for reply, _ in desk.sent()]
    desk.ack(before, 1)
    assert (desk.window.outstanding, desk.window.unclaimed) == (3, 1)


def test_an_overdue_publish_is_withdrawn_or_its_ack_ignored() -> None:
    desk = Desk(timeout=0.0)
    futures = desk.launch(b"0", b"x" * (1 << 17), b"2", b"3")
    for _ in futures:
        assert desk.window.time_left <= 0
        desk.window.give_up_oldest()
    desk.window.give_up_oldest()  # there is none
    assert [what for _, what in desk.odd_ends()] == [
        "overdue",
        "overdue",
        "late",
        "late",
    ]
    replies = desk.sent()
    assert [payload[:1] for _, payload in replies] == [b"0", b"x"]
    for reply, _ in replies:
        desk.ack(reply, 1)
    assert desk.window.unclaimed == 2
    # The count of frames is right all the same.
    (future,) = desk.launch(b"4")
    desk.outbox.send()
    desk.lose_link()
    assert desk.odd_ends() == [(future, "lost")]
    desk.close()


def test_closing_tells_sent_from_unsent_and_refuses_the_rest(desk: Desk) -> None:
    futures = desk.launch(b"0", b"x" * (1 << 17), b"2")
    closed = ConnectionClosedError("closed")
    desk.window.fail_all(closed)
    ends = dict(desk.odd_ends())
    assert [ends[future] for future in futures] == ["lost", "lost", "unsent"]
    assert desk.outbox.frames == 1, "the one that was begun"
    with pytest.raises(ConnectionClosedError):
        desk.window.launch("a.b", b"")
    assert desk.window.reason is closed


def test_a_refused_subject_fails_the_oldest_publish_that_was_sent(desk: Desk) -> None:
    error = PermissionsViolationError("denied")
    first, filler, unsent = desk.launch(b"0", b"x" * (1 << 17), b"2")
    assert not desk.window.fail_subject("b", error)
    assert desk.window.fail_subject("a.b", error)
    assert desk.window.odd == (first, "failed", error)
    assert desk.window.fail_subject("a.b", error)
    assert not desk.window.fail_subject("a.b", error), "it was not sent yet"
    assert [future for future, _ in desk.odd_ends()] == [first, filler]
    assert not unsent.done()


# Another try --------------------------------------------------------------------------


def test_a_message_is_sent_again_from_its_own_place(desk: Desk) -> None:
    futures = desk.launch(b"0", b"1", b"2", b"3")
    ((reply, _), *_) = desk.sent()
    desk.answer(reply, b"", b"NATS/1.0 503\r\n\r\n")
    desk.window.rest(futures[0], 7.0)
    desk.window.rest(futures[0], 8.0)  # as after an exception of a signal handler
    assert (desk.window.again, futures[0].retries) == ({futures[0]: 7.0}, 1)
    assert (desk.window.pending, desk.window.is_full) == (4, True)
    assert desk.window.launch("a.b", b"4") is None
    assert desk.window.send_again(futures[0], 9.0)
    assert desk.window.send_again(futures[0], 9.0), "once"
    ((again, payload),) = desk.sent()
    assert (payload, again != reply, desk.window.again) == (b"0", True, {})
    desk.ack(again, 9)
    assert (futures[0].result(0).seq, desk.window.pending) == (9, 3)


def test_headers_and_odd_subjects_are_sent_again_as_they_were(desk: Desk) -> None:
    future = desk.window.launch("a.\udcff", b"x", b"NATS/1.0\r\nK: v\r\n\r\n", "me")
    assert future is not None
    assert future.msg_id == "me"
    desk.outbox.send()
    first = desk.far.recv(1000)
    reply = first.split(b" ")[2].decode()
    desk.answer(reply, b"", b"NATS/1.0 503\r\n\r\n")
    desk.window.rest(future, 7.0)
    desk.window.send_again(future, 9.0)
    desk.outbox.send()
    second = desk.far.recv(1000)
    assert second.split(b" ")[3:] == first.split(b" ")[3:]
    assert second.startswith(b"HPUB a.\xff ")


def test_another_try_waits_for_room_and_a_link() -> None:
    desk = Desk(high_water=1000)
    (future,) = desk.launch(b"0")
    ((reply, _),) = desk.sent()
    desk.answer(reply, b"", b"NATS/1.0 503\r\n\r\n")
    desk.window.rest(future, 7.0)
    desk.launch(b"x" * (1 << 17))
    assert not desk.window.send_again(future, 8.0)
    assert desk.window.again == {future: 8.0}
    desk.outbox.detach()
    assert not desk.window.send_again(future, 9.0)
    assert desk.window.again == {future: 9.0}
    future.settle(None, ValueError("given up"))
    assert desk.window.send_again(future, 9.0), "a settled one is only taken away"
    assert desk.window.again == {}
    desk.close()


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_was_to_be_sent_again_ends_with_the_link(
    desk: Desk, is_closed: bool
) -> None:
    (future,) = desk.launch(b"0")
    ((reply, _),) = desk.sent()
    desk.answer(reply, b"", b"NATS/1.0 503\r\n\r\n")
    desk.window.rest(future, 7.0)
    if is_closed:
        desk.window.fail_all(ConnectionClosedError("closed"))
    else:
        desk.lose_link()
    assert desk.odd_ends() == [(future, "unsent")]
    assert desk.window.pending == 0


def test_a_link_that_is_about_to_be_left_takes_only_what_has_its_place(
    desk: Desk,
) -> None:
    (future,) = desk.launch(b"0")
    ((reply, _),) = desk.sent()
    desk.outbox.leave()
    assert desk.window.launch("a.b", b"1") is None
    desk.answer(reply, b"", b"NATS/1.0 503\r\n\r\n")
    desk.window.rest(future, 7.0)
    assert desk.window.is_awaited
    assert desk.window.send_again(future, 9.0)
    ((again, payload),) = desk.sent()
    assert payload == b"0"
    desk.ack(again, 9)
    assert future.result(0).seq == 9
    assert not desk.window.is_awaited


# Who is told --------------------------------------------------------------------------


def test_a_gate_opens_when_few_enough_have_no_outcome(desk: Desk) -> None:
    assert desk.window.await_pending(0).is_open
    desk.launch(b"0", b"1", b"2", b"3")
    replies = [reply for reply, _ in desk.sent()]
    some, none = desk.window.await_pending(2), desk.window.await_pending(0)
    given_up = desk.window.await_pending(3)
    desk.window.forget(given_up)
    opened = []
    for reply in replies:
        desk.ack(reply, 1)
        # What was given up may still be noticed once.
        if desk.notices():
            desk.window.open_gates()
        opened.append((some.is_open, none.is_open))
    assert opened == [(False, False), (True, False), (True, False), (True, True)]
    assert (desk.window.gates, given_up.is_open) == ({}, False)


def test_only_a_future_that_is_observed_is_told_of(desk: Desk) -> None:
    quiet, watched, called = desk.launch(b"0", b"1", b"2")
    assert watched._condition is watched._condition
    called.add_done_callback(print)
    for reply, _ in desk.sent():
        desk.ack(reply, 1)
    assert desk.notices() == 1
    assert list(desk.window.observed) == [watched, called]
    assert quiet.done()


def test_the_first_publish_and_unsent_bytes_are_attended_to(desk: Desk) -> None:
    desk.launch(b"0", b"1")
    for reply, _ in desk.sent():
        desk.ack(reply, 1)
    desk.attended.clear()
    desk.outbox.look_after()
    desk.launch(b"2", b"3")
    assert desk.attended == [False], "the first of them only"


# Memory -------------------------------------------------------------------------------


def test_a_settled_future_keeps_nothing_of_its_message(desk: Desk) -> None:
    (future,) = desk.launch(b"0")
    ((reply, _),) = desk.sent()
    payload = b"payload of one message"
    before = gc.get_referrers(payload)
    other = desk.window.launch("a.b", payload)
    desk.ack(reply, 1)
    ((reply, _),) = desk.sent()
    desk.ack(reply, 2)
    assert other is not None
    assert (future.done(), other.done()) == (True, True)
    assert gc.get_referrers(payload) == before


def test_the_collector_sees_a_future_when_it_is_settled_and_not_before(
    desk: Desk,
) -> None:
    futures = desk.launch(b"0", b"1")
    assert [gc.is_tracked(future) for future in futures] == [False, False]
    replies = [reply for reply, _ in desk.sent()]
    desk.ack(replies[0], 1)
    assert [gc.is_tracked(future) for future in futures] == [True, False]
    futures[1].settle(None, ValueError("odd"))
    assert gc.is_tracked(futures[1])


def test_a_cycle_of_a_settled_future_is_collected(desk: Desk) -> None:
    (future,) = desk.launch(b"0")
    future.add_done_callback(lambda _, me=future: None)  # type: ignore[misc]
    future.own = future  # type: ignore[attr-defined]
    watch = weakref.ref(future)
    ((reply, _),) = desk.sent()
    desk.ack(reply, 1)
    desk.window.observed.clear()
    del future
    assert watch() is not None
    gc.collect()
    assert watch() is None


def test_a_window_that_goes_leaves_nothing() -> None:
    before = live_objects()["routes"]
    desk = Desk()
    futures = desk.launch(b"0", b"1", b"2")
    replies = [reply for reply, _ in desk.sent()]
    desk.answer(replies[0], b"odd")
    desk.ack(replies[1], 1)
    watch = [weakref.ref(future) for future in futures]
    futures.clear()
    assert [ref() is None for ref in watch] == [False, True, False]
    desk.close()
    del desk
    gc.collect()
    assert [ref() for ref in watch] == [None] * 3
    assert live_objects()["routes"] <= before


def test_an_odd_outcome_may_be_put_away_while_another_thread_looks_at_it(
    desk: Desk,
) -> None:
    (future,) = desk.launch(b"0")
    ((reply, _),) = desk.sent()
    desk.answer(reply, b"odd")
    odd = amid_collection(
        partial(getattr, desk.window, "odd"), lambda: desk.window.put_away(future)
    )
    assert odd is not None
    assert (odd[0], odd[1]) == (future, "answered")
    assert desk.window.odd is None
