"""The machine of a push delivery on a virtual clock."""

from __future__ import annotations

import math

import pytest

from jsclient._engine.push import Answer, Delivery, Place, Warn
from jsclient.jetstream_errors import (
    JetStreamError,
    MessageGapError,
    MissedHeartbeatError,
    PushError,
)


def started(patience: float = 3.0, *, is_linked: bool = True) -> Delivery:
    """A delivery that began at 100."""
    machine = Delivery("read")
    machine.started(100.0, patience=patience, is_linked=is_linked)
    return machine


def warnings(machine: Delivery) -> list[JetStreamError]:
    found = []
    for output in machine.take_output():
        assert isinstance(output, Warn)
        found.append(output.error)
    return found


def answers(machine: Delivery) -> list[Answer]:
    """The answers that are to be sent, which are sent then."""
    found = []
    for output in machine.take_output():
        assert isinstance(output, Answer)
        if not machine.is_answered(output.subject):
            found.append(output)
            machine.answered(output.subject)
    return found


# The clock


def test_silence_is_an_alarm_when_the_patience_is_over() -> None:
    machine = started(3.0)
    assert machine.deadline == 103.0
    machine.tick(102.999)
    assert machine.take_output() == []
    machine.tick(103.0)
    (error,) = warnings(machine)
    assert isinstance(error, MissedHeartbeatError)
    assert isinstance(error, PushError)
    assert str(error) == "read: nothing was heard for 3 s"


def test_the_alarm_is_repeated_while_the_silence_lasts() -> None:
    machine = started(3.0)
    for now in (103.0, 106.0, 109.5):
        assert machine.deadline <= now
        machine.tick(now)
    texts = [str(error) for error in warnings(machine)]
    assert texts == [f"read: nothing was heard for {n} s" for n in ("3", "6", "9.5")]
    assert machine.deadline == 112.5


def test_whatever_is_heard_starts_the_clock_anew() -> None:
    machine = started(3.0)
    machine.heard(102.0)
    assert machine.deadline == 105.0
    machine.heard(101.0)
    assert machine.deadline == 105.0, "what was heard before is no news"
    machine.tick(103.0)
    assert machine.take_output() == []


def test_a_consumer_that_speaks_again_is_watched_again() -> None:
    machine = started(3.0)
    machine.tick(103.0)
    machine.heard(104.0)
    machine.tick(106.9)
    assert len(warnings(machine)) == 1
    machine.tick(107.0)
    assert len(warnings(machine)) == 1


def test_without_heartbeats_there_is_no_alarm() -> None:
    machine = started(math.inf)
    assert machine.deadline == math.inf
    machine.heard(200.0)
    machine.tick(1e9)
    assert machine.take_output() == []


def test_the_clock_stands_still_without_a_link() -> None:
    machine = started(3.0)
    machine.unlinked()
    assert machine.deadline == math.inf
    machine.heard(101.0)
    assert machine.deadline == math.inf
    machine.tick(200.0)
    assert machine.take_output() == []
    machine.linked(200.0)
    assert machine.deadline == 203.0


def test_it_may_begin_without_a_link() -> None:
    machine = started(3.0, is_linked=False)
    assert machine.deadline == math.inf
    machine.linked(150.0)
    assert machine.deadline == 153.0


# Answers


def test_a_request_is_answered_once() -> None:
    machine = started()
    machine.asked("fc.1", None)
    machine.asked("fc.1", None)
    assert answers(machine) == [Answer("fc.1", None)]
    machine.asked("fc.1", None)
    assert answers(machine) == []


def test_each_subject_is_answered() -> None:
    machine = started()
    for subject in ("fc.1", "fc.2", "fc.2", "fc.3"):
        machine.asked(subject, None)
    assert [answer.subject for answer in answers(machine)] == ["fc.1", "fc.2", "fc.3"]


def test_on_a_new_link_the_same_subject_is_answered_again() -> None:
    machine = started()
    machine.asked("fc.1", None)
    assert len(answers(machine)) == 1
    machine.unlinked()
    machine.linked(120.0)
    assert answers(machine) == []
    machine.asked("fc.1", None)
    assert answers(machine) == [Answer("fc.1", None)]


def test_an_answer_that_could_not_be_sent_is_due_when_it_is_asked_for_again() -> None:
    machine = started()
    machine.asked("fc.1", None)
    machine.take_output()  # and nothing came of it
    machine.asked("fc.1", None)
    assert answers(machine) == [Answer("fc.1", None)]


def test_what_is_asked_before_it_begins_is_answered_then() -> None:
    machine = Delivery("read")
    machine.asked("fc.1", None)
    assert answers(machine) == []
    machine.started(100.0, patience=3.0, is_linked=True)
    assert answers(machine) == [Answer("fc.1", None)]


def test_what_is_asked_without_a_link_is_answered_on_the_next_one() -> None:
    machine = started()
    machine.unlinked()
    machine.asked("fc.1", None)
    machine.asked("fc.2", None)
    assert answers(machine) == []
    machine.linked(120.0)
    assert answers(machine) == [Answer("fc.2", None)], "only the last one counts"
    machine.unlinked()
    machine.linked(130.0)
    assert answers(machine) == []


def test_an_answer_says_what_the_user_has() -> None:
    machine = started()
    machine.asked("fc.1", Place(7, 9))
    assert answers(machine) == [Answer("fc.1", Place(7, 9))]


def test_an_answer_never_reaches_past_a_gap() -> None:
    machine = started()
    machine.asked("fc.1", Place(3, 3))
    machine.gap(5, 6)
    machine.take_output()
    machine.asked("fc.2", Place(4, 4))
    machine.asked("fc.3", Place(6, 6))
    machine.asked("fc.4", Place(60, 60))
    assert [answer.place for answer in answers(machine)] == [Place(4, 4)] * 3


def test_an_answer_before_any_message_acknowledges_none() -> None:
    machine = started()
    machine.gap(1, 2)
    machine.take_output()
    machine.asked("fc.1", Place(2, 2))
    assert answers(machine) == [Answer("fc.1", None)]


def test_a_message_without_room_is_never_acknowledged() -> None:
    machine = started()
    machine.asked("fc.1", Place(3, 3))
    machine.dropped()
    machine.asked("fc.2", Place(9, 9))
    assert [answer.place for answer in answers(machine)] == [Place(3, 3)] * 2


def test_a_consumer_that_was_reset_is_acknowledged_anew() -> None:
    machine = started()
    machine.asked("fc.1", Place(3, 3))
    machine.gap(5, 6)
    machine.gap(7, 1)
    machine.take_output()
    machine.asked("fc.2", Place(1, 4))
    assert answers(machine) == [Answer("fc.2", Place(1, 4))]


# Gaps and statuses


def test_a_gap_is_told_with_both_numbers() -> None:
    machine = started()
    machine.gap(3, 5)
    (error,) = warnings(machine)
    assert isinstance(error, MessageGapError)
    assert (error.expected, error.came, error.missing) == (3, 5, 2)
    assert str(error) == "read: delivery 3 was expected, 5 came"


def test_a_consumer_that_counts_anew_has_lost_nothing() -> None:
    machine = started()
    machine.gap(8, 1)
    (error,) = warnings(machine)
    assert isinstance(error, MessageGapError)
    assert error.missing == 0


@pytest.mark.parametrize("code", [404, 408])
def test_statuses_of_pulls_are_nobodys_concern(code: int) -> None:
    assert started().judge(code, "No Messages") is None


@pytest.mark.parametrize("code", [400, 409, 412, 423, 499, 503, 777])
def test_other_statuses_are_errors(code: int) -> None:
    error = started().judge(code, "Some Text")
    assert isinstance(error, PushError)
    assert (error.code, error.description) == (code, "Some Text")
    assert str(error) == f"read: {code} Some Text"


def test_a_status_without_a_text_says_so() -> None:
    error = started().judge(503, "")
    assert str(error) == "read: 503 a status without a text"
