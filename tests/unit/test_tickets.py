"""Tickets: what a request knows of its frame, wherever the frame is."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._core import Link, Outbox, Replies, Reply, live_objects
from jsclient.errors import (
    ConnectionClosedError,
    DisconnectedError,
    InvalidArgumentError,
)
from tests.harness.outbound import arrived

MIB = 1 << 20
LARGE = 1 << 16  # far more than the link takes at once


class Desk:
    """An outbox with tickets, a link, and the peer at its other end."""

    def __init__(self) -> None:
        self.outbox = Outbox(64 * MIB, MIB)
        self.replies = Replies("_INBOX.")
        self.near, self.far = socket.socketpair()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.outbox.attach(Link(self.near.fileno()), b"")

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def ask(self, data: bytes) -> Reply:
        ticket = self.replies.open("a")
        self.outbox.publish("a", data, None, None, True, ticket)
        return ticket

    def stall(self) -> bytes:
        """Fills the link with the first part of a frame without a ticket; the frame."""
        self.outbox.publish("b", b"x" * LARGE, None, None, True)
        return b"PUB b %d\r\n" % LARGE + b"x" * LARGE + b"\r\n"

    def arrived(self) -> bytes:
        """All that the link brings once the peer reads."""
        return arrived(self.outbox, self.far)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def frame(data: bytes) -> bytes:
    return b"PUB a %d\r\n%b\r\n" % (len(data), data)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.data())
def test_any_frames_withdrawn_in_any_order_never_arrive_and_all_others_do(
    sizes: list[int], data: st.DataObject
) -> None:
    desk = Desk()
    try:
        begun = desk.stall()
        payloads = [b"%02d" % i + b"." * size for i, size in enumerate(sizes)]
        tickets = [desk.ask(payload) for payload in payloads]
        chosen = data.draw(st.permutations(range(len(sizes))))
        chosen = chosen[: data.draw(st.integers(0, len(sizes)))]
        for i in chosen:
            assert desk.outbox.withdraw(tickets[i])
            assert not desk.outbox.withdraw(tickets[i]), "once"
        kept = [i for i in range(len(sizes)) if i not in chosen]
        assert desk.outbox.frames == 1 + len(kept)
        assert desk.arrived() == begun + b"".join(frame(payloads[i]) for i in kept)
        for i, ticket in enumerate(tickets):
            assert (ticket.is_begun, ticket.is_withdrawn) == (i in kept, i in chosen)
    finally:
        desk.close()


def test_a_frame_behind_a_partly_sent_one_is_withdrawn_without_a_trace(
    desk: Desk,
) -> None:
    partly = desk.ask(b"x" * LARGE)
    behind, last = desk.ask(b"behind"), desk.ask(b"last")
    desk.far.recv(1 << 12)  # the sent part of the first frame is somewhere inside
    desk.outbox.send()
    assert partly.is_begun
    assert not desk.outbox.withdraw(partly)
    assert desk.outbox.withdraw(behind)
    arrived = desk.arrived()
    assert arrived.endswith(b"x\r\n" + frame(b"last"))
    assert b"behind" not in arrived
    assert last.is_begun


def test_a_sent_frame_cannot_be_withdrawn(desk: Desk) -> None:
    ticket = desk.ask(b"1")
    assert not desk.outbox.withdraw(ticket)
    assert (ticket.is_begun, ticket.is_withdrawn) == (True, False)


def test_a_ticket_that_was_never_used_has_no_frame(desk: Desk) -> None:
    ticket = desk.replies.open("a")
    assert not desk.outbox.withdraw(ticket)
    assert (ticket.is_begun, ticket.is_withdrawn) == (False, False)


def test_after_a_lost_link_every_ticket_knows_its_end(desk: Desk) -> None:
    sent, partly, waiting = desk.ask(b"1"), desk.ask(b"x" * LARGE), desk.ask(b"2")
    desk.outbox.detach()
    ends = [(one.is_begun, one.is_withdrawn) for one in (sent, partly, waiting)]
    assert ends == [(True, False), (True, False), (False, True)]
    assert not desk.outbox.withdraw(waiting)
    late = desk.replies.open("a")
    with pytest.raises(DisconnectedError):
        desk.outbox.publish("a", b"3", None, None, True, late)
    assert (late.is_begun, late.is_withdrawn) == (False, False)


def test_an_abandoned_outbox_sends_none_of_its_frames_later(desk: Desk) -> None:
    desk.stall()
    waiting = desk.ask(b"2")
    desk.outbox.abandon(lambda: ConnectionClosedError("closed"))
    assert (waiting.is_begun, waiting.is_withdrawn) == (False, True)


def test_withdrawing_all_frames_makes_the_outbox_empty_but_for_the_begun_one(
    desk: Desk,
) -> None:
    begun = desk.stall()
    size = len(desk.outbox)
    for ticket in [desk.ask(b"%d" % i) for i in range(300)]:
        assert desk.outbox.withdraw(ticket)
    assert (desk.outbox.frames, len(desk.outbox)) == (1, size)
    assert desk.arrived() == begun
    assert desk.ask(b"next").is_begun


def test_a_draft_takes_no_place_before_it_enters() -> None:
    replies = Replies("_INBOX.")
    drafts = [replies.draft("a") for _ in range(3)]
    assert (len(replies), len({one.inbox for one in drafts})) == (0, 3)
    replies.enter(drafts[0])
    replies.drop(drafts[1])
    assert len(replies) == 1


def test_a_request_of_a_closed_inbox_takes_no_place() -> None:
    replies = Replies("_INBOX.")
    replies.fail_all(ConnectionClosedError("closed"))
    reply = replies.open("a")
    assert isinstance(reply.error, ConnectionClosedError)
    assert len(replies) == 0


def test_tickets_leave_no_objects_behind() -> None:
    before = live_objects()
    desk = Desk()
    desk.stall()
    tickets = [desk.ask(b"x") for _ in range(50)]
    for ticket in tickets[:25]:
        desk.outbox.withdraw(ticket)
    desk.outbox.detach()
    desk.close()
    del desk, tickets, ticket
    assert live_objects() == before


def test_a_request_is_asked_with_its_own_ticket(desk: Desk) -> None:
    reply = desk.replies.draft("a.b")
    assert desk.replies.ask(reply, desk.outbox, b"x") in (0, 1)
    assert (len(desk.replies), reply.is_begun) == (1, True)
    desk.outbox.detach()
    lost = DisconnectedError("lost")
    desk.replies.fail_tied(lost)
    assert reply.error is lost
    late = desk.replies.draft("a.b")
    assert desk.replies.ask(late, desk.outbox, b"x") == 3, "there is no link"
    assert (late.error, desk.outbox.frames) == (None, 0)
    desk.replies.drop(late)
    desk.replies.fail_all(ConnectionClosedError("closed"))
    with pytest.raises(ConnectionClosedError):
        desk.replies.ask(desk.replies.draft("a.b"), desk.outbox, b"x")
    with pytest.raises(InvalidArgumentError):
        Replies("_INBOX.").ask(Replies("_INBOX.").draft("a b"), desk.outbox, b"x")
    assert len(desk.replies) == 0
