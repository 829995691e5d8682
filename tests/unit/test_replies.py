"""The inbox of all requests: every answer finds its own request."""

import math
import re
import socket
import time
from collections.abc import Iterator

import pytest

from jsclient._core import (
    Awaited,
    Helm,
    Link,
    Outbox,
    Parser,
    Replies,
    Reply,
    Routes,
    live_objects,
)
from jsclient.errors import (
    ConnectionClosedError,
    DisconnectedError,
    PermissionsViolationError,
)

PREFIX = "_INBOX.abc."


class Desk:
    """Replies behind a parser."""

    def __init__(self) -> None:
        self.replies = Replies(PREFIX)
        routes = Routes()
        routes.add(1, self.replies)
        self.parser = Parser(routes)

    def answer(self, subject: str, data: bytes = b"x") -> None:
        size = len(data)
        self.parser.feed(b"MSG %b 1 %d\r\n%b\r\n" % (subject.encode(), size, data))


def data_of(reply: Reply) -> bytes:
    assert reply.msg is not None
    return reply.msg.data


def test_each_request_has_an_unguessable_inbox_of_its_own() -> None:
    desk = Desk()
    inboxes = {desk.replies.open("s").inbox for _ in range(5000)}
    assert len(inboxes) == len(desk.replies) == 5000
    assert all(re.fullmatch(r"_INBOX\.abc\.[0-9A-Za-z]{10}", name) for name in inboxes)
    assert {Desk().replies.open("s").inbox for _ in range(3)}.isdisjoint(inboxes)


def test_answers_find_their_requests_in_any_order() -> None:
    desk = Desk()
    opened = [desk.replies.open(f"s{i}") for i in range(10)]
    assert not any(reply.ready for reply in opened)
    for i in reversed(range(10)):
        desk.answer(opened[i].inbox, b"%d" % i)
    assert [data_of(reply) for reply in opened] == [b"%d" % i for i in range(10)]
    assert [reply.subject for reply in opened] == [f"s{i}" for i in range(10)]
    assert all(reply.ready for reply in opened)
    assert (len(desk.replies), desk.replies.unclaimed) == (0, 0)


def test_a_second_answer_is_ignored_and_counted() -> None:
    desk = Desk()
    reply = desk.replies.open("s")
    desk.answer(reply.inbox, b"first")
    desk.answer(reply.inbox, b"second")
    assert data_of(reply) == b"first"
    assert desk.replies.unclaimed == 1


def test_an_answer_after_its_request_was_dropped_is_ignored() -> None:
    desk = Desk()
    late, other = desk.replies.open("s"), desk.replies.open("s")
    desk.replies.drop(late)
    desk.replies.drop(late)
    desk.answer(late.inbox)
    assert (late.msg, other.msg, desk.replies.unclaimed) == (None, None, 1)
    assert len(desk.replies) == 1


@pytest.mark.parametrize(
    "subject",
    [
        PREFIX + "0123456789",
        PREFIX + "short",
        PREFIX + "much-longer-than-a-token",
        PREFIX[:-1],
        "other",
    ],
)
def test_an_answer_to_a_forged_token_reaches_nobody(subject: str) -> None:
    desk = Desk()
    opened = [desk.replies.open("s") for _ in range(2)]
    desk.answer(subject)
    assert [reply.msg for reply in opened] == [None, None]
    assert desk.replies.unclaimed == 1


def test_a_rewritten_subject_answers_the_only_request() -> None:
    desk = Desk()
    reply = desk.replies.open("s")
    desk.answer("rewritten.subject", b"x")
    assert data_of(reply) == b"x"
    assert len(desk.replies) == 0


def test_a_wrong_token_does_not_answer_the_only_request() -> None:
    desk = Desk()
    reply = desk.replies.open("s")
    desk.answer(PREFIX + "0123456789")
    assert not reply.ready
    assert (len(desk.replies), desk.replies.unclaimed) == (1, 1)


def test_the_oldest_request_to_a_subject_fails() -> None:
    desk = Desk()
    other, first, second = (desk.replies.open(s) for s in ("other", "s", "s"))
    error = PermissionsViolationError("denied")
    assert desk.replies.fail_subject("s", error)
    assert (other.error, first.error, second.error) == (None, error, None)
    assert desk.replies.fail_subject("s", error)
    assert second.error is error
    assert not desk.replies.fail_subject("s", error)
    assert not desk.replies.fail_subject("unknown", error)


def test_an_answer_to_a_failed_request_is_ignored() -> None:
    desk = Desk()
    reply = desk.replies.open("s")
    error = ConnectionClosedError("closed")
    reply.fail(error)
    reply.fail(ConnectionClosedError("again"))
    desk.answer(reply.inbox)
    assert (reply.msg, reply.error, reply.ready) == (None, error, True)
    assert desk.replies.unclaimed == 1


def test_an_answered_request_cannot_fail() -> None:
    desk = Desk()
    reply = desk.replies.open("s")
    desk.answer(reply.inbox)
    reply.fail(ConnectionClosedError("closed"))
    assert reply.error is None


def test_all_waiting_requests_fail_at_once() -> None:
    desk = Desk()
    opened = [desk.replies.open("s") for _ in range(3)]
    desk.answer(opened[0].inbox)
    error = ConnectionClosedError("closed")
    desk.replies.fail_all(error)
    assert [reply.error for reply in opened] == [None, error, error]
    assert len(desk.replies) == 0


def test_a_request_opened_after_all_failed_fails_too() -> None:
    desk = Desk()
    error = ConnectionClosedError("closed")
    desk.replies.fail_all(error)
    reply = desk.replies.open("s")
    assert reply.error is error
    assert desk.replies.reason is error
    assert len(desk.replies) == 0


def test_only_requests_that_are_tied_to_their_link_fail_with_it() -> None:
    desk = Desk()
    free, tied = desk.replies.open("s"), desk.replies.open("s")
    outbox = Outbox(1000, 1000)
    near, far = socket.socketpair()
    with near, far:
        outbox.attach(Link(near.fileno()), b"")
        outbox.publish("s", b"x", tied.inbox, None, ticket=tied)
    error = DisconnectedError("lost")
    desk.replies.fail_tied(error)
    assert (free.error, tied.error, len(desk.replies)) == (None, error, 1)


def test_finished_requests_leave_nothing_behind() -> None:
    before = live_objects()
    desk = Desk()
    for _ in range(300):
        desk.answer(desk.replies.open("s").inbox)
    assert live_objects()["messages"] == before["messages"]
    del desk
    assert live_objects() == before


def test_the_prefix_is_text() -> None:
    with pytest.raises(TypeError):
        Replies(b"_INBOX.")  # type: ignore[arg-type]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_an_exchange_sends_the_request_and_returns_the_answer(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    desk, outbox = Desk(), Outbox(1 << 16, 0)
    outbox.attach(Link(near.fileno()), b"")
    sent: list[bytes] = []

    def answer(_what: Awaited | None, _deadline: float) -> None:
        sent.append(far.recv(1000))
        desk.answer(sent[0].split()[2].decode(), b"pong")

    helm = Helm(answer, time.monotonic, outbox)
    helm.start()
    reply = desk.replies.draft("s")
    msg = desk.replies.exchange(reply, helm, b"ping", None, math.inf)
    assert msg is reply.msg
    assert msg is not None
    assert msg.data == b"pong"
    assert sent == [b"PUB s %b 4\r\nping\r\n" % reply.inbox.encode()]
    assert (reply.asked, len(desk.replies)) == (0, 0)


def test_an_exchange_that_is_not_over_with_one_wait_is_left_to_others(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    desk, outbox = Desk(), Outbox(1 << 16, 0)
    helm = Helm(lambda what, deadline: None, time.monotonic, outbox)
    helm.start()
    unsent, silent = desk.replies.draft("s"), desk.replies.draft("s")
    assert desk.replies.exchange(unsent, helm, b"", None, math.inf) is None
    assert (unsent.asked, unsent.is_begun) == (3, False)
    outbox.attach(Link(ends[0].fileno()), b"")
    assert desk.replies.exchange(silent, helm, b"", None, 0.0) is None
    assert (silent.asked, silent.is_begun) == (0, True)
    for reply in (unsent, silent):
        desk.replies.drop(reply)
    assert len(desk.replies) == 0
    outbox.detach()
