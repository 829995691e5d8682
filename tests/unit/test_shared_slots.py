"""Rows that share the subject of their acks, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jsclient._core import Rows
from tests.unit.test_window import Desk, column

MANY = 64


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk(MANY, keeps_acks=False)
    made.window.sharing = 4
    yield made
    made.close()


def numbered(count: int, *subjects: bytes) -> Rows:
    """Rows that may be published twice."""
    data = column(*(b"%d" % number for number in range(count)))
    made = Rows(count, data, column(*subjects) if subjects else "a.b")
    made.is_repeatable = True
    return made


def filled(desk: Desk, rows: Rows) -> list[str]:
    """Where the acks of the rows go."""
    desk.window.fill(rows)
    return [reply for reply, _ in desk.sent()]


def told(desk: Desk, *, is_last: bool = False) -> list[tuple[int, str]]:
    """The rows that are not stored, or may not be."""
    return [(row, what) for _, row, what, _, _ in desk.window.sweep(is_last)]


def counts(desk: Desk) -> tuple[int, int, int]:
    window = desk.window
    return window.stored, window.duplicates, len(window)


def test_so_many_rows_have_one_subject_for_their_acks(desk: Desk) -> None:
    replies = filled(desk, numbered(10))
    assert [replies.count(reply) for reply in dict.fromkeys(replies)] == [4, 4, 2]
    assert len(desk.window) == 10


def test_rows_that_share_are_stored_when_all_are_acknowledged(desk: Desk) -> None:
    first, *_ = filled(desk, numbered(4))
    for seq in (7, 8, 9):
        desk.ack(first, seq)
    assert told(desk) == []
    assert counts(desk) == (0, 0, 4)
    desk.ack(first, 3, is_duplicate=True)
    assert told(desk) == []
    assert counts(desk) == (3, 1, 0)
    assert (desk.window.first_seq, desk.window.last_seq) == (3, 9)


def test_a_window_is_full_of_rows_not_of_subjects(desk: Desk) -> None:
    rows = numbered(MANY + 8)
    replies = filled(desk, rows)
    assert (rows.position, desk.window.is_full) == (MANY, True)
    for seq in range(4):
        desk.ack(replies[0], seq + 1)
    assert told(desk) == []
    assert not desk.window.is_full
    filled(desk, rows)
    assert (rows.position, desk.window.is_full) == (MANY + 4, True)


@pytest.mark.parametrize("number", range(4))
def test_which_of_them_was_refused_nobody_knows(desk: Desk, number: int) -> None:
    rows = numbered(5)
    first, *_, last = filled(desk, rows)
    for seq in range(4):
        if seq == number:
            desk.answer(first, b'{"error":{"code":400},"stream":"S","seq":0}')
        else:
            desk.ack(first, seq + 1)
    desk.ack(last, 5)
    assert told(desk) == [(row, "mixed") for row in range(4)]
    assert counts(desk) == (1, 0, 0)
    desk.window.publish_row(rows, 0)
    desk.window.publish_row(rows, 1)
    assert len({reply for reply, _ in desk.sent()}) == 2


def test_with_the_last_sweep_those_that_are_stored_count(desk: Desk) -> None:
    first, *_ = filled(desk, numbered(4))
    desk.ack(first, 1)
    desk.ack(first, 1, is_duplicate=True)
    desk.answer(first, b"", b"NATS/1.0 503\r\n\r\n")
    desk.answer(first, b"odd")
    assert told(desk, is_last=True) == []
    assert counts(desk) == (1, 1, 0)


@pytest.mark.parametrize(
    "other",
    [
        b'{"stream":"T","seq":9}',
        b'{"stream":"S","domain":"d","seq":9}',
        b'{"stream":"S","seq":2}',  # it counts from somewhere else
    ],
)
def test_acks_of_two_streams_do_not_count_for_two_rows(
    desk: Desk, other: bytes
) -> None:
    first, *_ = filled(desk, numbered(3))
    desk.ack(first, 2)
    desk.answer(first, other)
    desk.ack(first, 3)
    assert told(desk) == [(0, "mixed"), (1, "mixed"), (2, "mixed")]


def test_where_two_answer_no_rows_share_any_more(desk: Desk) -> None:
    first, *_ = filled(desk, numbered(2))
    for seq in (1, 2, 3):
        desk.ack(first, seq)
    assert told(desk) == []
    assert len(set(filled(desk, numbered(3)))) == 3


def test_rows_of_different_subjects_do_not_share(desk: Desk) -> None:
    replies = filled(desk, numbered(4, b"a", b"a", b"b", b"a"))
    assert [replies.index(reply) for reply in replies] == [0, 0, 2, 3]


def test_rows_of_two_batches_do_not_share(desk: Desk) -> None:
    assert not set(filled(desk, numbered(1))) & set(filled(desk, numbered(1)))


def test_rows_that_must_not_be_sent_twice_do_not_share(desk: Desk) -> None:
    rows = numbered(4)
    rows.is_repeatable = False
    assert len(set(filled(desk, rows))) == 4


def test_a_lost_link_is_told_of_every_row(desk: Desk) -> None:
    first, *_ = filled(desk, numbered(6))
    desk.ack(first, 1)
    desk.lose_link()
    assert told(desk) == [(row, "lost") for row in range(6)]
    assert counts(desk) == (0, 0, 0)
    desk.new_link()
    desk.ack(first, 2)  # too late
    assert told(desk) == []


def test_what_was_given_up_is_told_of_every_row(desk: Desk) -> None:
    filled(desk, numbered(2))
    desk.window.give_up()
    assert told(desk) == [(0, "overdue"), (1, "overdue")]


def test_rows_that_were_not_sent_part_from_those_that_were(desk: Desk) -> None:
    size = 1 << 17  # more than the socket takes
    data = column(b"0", b"x" * size, b"2", b"3")
    rows = Rows(4, data, "a.b")
    rows.is_repeatable = True
    desk.window.fill(rows)
    assert desk.window.withdraw() == 2
    assert len(desk.window) == 4
    first, second = (reply for reply, _ in desk.sent())
    assert first == second
    desk.ack(first, 1)
    desk.ack(first, 2)
    assert told(desk) == [(2, "unsent"), (3, "unsent")]
    assert counts(desk) == (2, 0, 0)


def test_a_refused_subject_is_an_answer_to_each_row(desk: Desk) -> None:
    filled(desk, numbered(3))
    refusals = [desk.window.fail_subject("a.b", OSError("no")) for _ in range(4)]
    assert refusals == [True, True, True, False]
    assert told(desk) == [(0, "refused"), (1, "refused"), (2, "refused")]
