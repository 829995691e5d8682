"""The pull conversation on a virtual clock: what it asks for, and when it ends."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jsclient._engine.pull import (
    ENQUIRY,
    FIRST_PAUSE,
    GRACE,
    LAST_PAUSE,
    MANY,
    RELINK_PAUSE,
    Ask,
    Close,
    Conversation,
    Policy,
    Pull,
    Signal,
    Warn,
)
from jsclient.jetstream_errors import (
    ApiError,
    BadPullError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    LeadershipChangedError,
    LostPullError,
    MessageSizeError,
    MissedHeartbeatError,
    PullError,
    PullLimitError,
    PushConsumerError,
    RequiredApiLevelPullError,
    ServerShutdownError,
    StreamDeletedError,
    StreamNotFoundError,
    UnpinnedError,
    UnreachableConsumerError,
)

SIZE = (409, "Message Size Exceeds MaxBytes")
TIMEOUT = (408, "Request Timeout")
COMPLETED = (409, "Batch Completed")
LEADERSHIP = (409, "Leadership Change")
SHUTDOWN = (409, "Server Shutdown")
DELETED = (409, "Consumer Deleted")
WAITING = (409, "Exceeded MaxWaiting")
NOBODY = (503, "")


class Desk:
    """A conversation, its clock, and what a connection would know of it."""

    def __init__(self, policy: Policy) -> None:
        self.machine = Conversation(policy)
        self.now = 100.0
        self.asks: list[Ask] = []  # all of them
        self.closes: list[Close] = []
        self.warnings: list[PullError] = []
        self.signals: list[Signal] = []
        self.came: dict[int, list[int]] = {}  # of a pull: messages, bytes
        self.held: list[int] = []  # sizes
        self.arrived = 0
        self.hears = True  # the server, at once, which pulls are given up
        self.parting: list[int] = []  # those of which it has not heard

    def start(self, *, is_linked: bool = True, timeout: float = math.inf) -> Desk:
        self.machine.started(
            self.now, is_linked=is_linked, finish_at=self.now + timeout
        )
        return self.act()

    def act(self) -> Desk:
        for output in self.machine.take_output():
            match output:
                case Ask():
                    self.asks.append(output)
                    self.came[output.pull] = [0, 0]
                case Close():
                    self.closes.append(output)
                    if not output.is_certain:
                        self.parting.append(output.pull)
                case Warn(error):
                    self.warnings.append(error)
                case Signal():
                    self.signals.append(output)
        return self.hear() if self.hears and self.parting else self

    def hear(self) -> Desk:
        """The server has heard which pulls are given up."""
        parting, self.parting = self.parting, []
        self.tell()
        for pull in parting:
            self.machine.parted(pull, self.now)
        return self.act()

    def tell(self) -> None:
        for pull, (messages, size) in self.came.items():
            self.machine.brought(pull, messages, size)
        self.machine.holds(len(self.held), sum(self.held), self.arrived)

    def deliver(self, count: int, *, pull: int | None = None, size: int = 1) -> Desk:
        """Messages of a pull, the last one by default, arrive."""
        came = self.came[self.asks[-1].pull if pull is None else pull]
        came[0] += count
        came[1] += count * size
        self.held += [size] * count
        self.arrived += count
        self.tell()
        self.machine.heard(self.now)
        self.machine.counted(self.now)
        return self.act()

    def take(self, count: int) -> Desk:
        """The user takes messages; the machine hears of it when more is due."""
        machine = self.machine
        del self.held[:count]
        if machine.policy.counts_bytes:
            in_view = machine.owed_bytes + sum(self.held)
        else:
            in_view = machine.owed_messages + len(self.held)
        if in_view <= machine.refill_at:
            self.tell()
            machine.counted(self.now)
        return self.act()

    def beat(self) -> Desk:
        """A heartbeat arrives."""
        self.tell()
        self.machine.heard(self.now)
        self.machine.counted(self.now)
        return self.act()

    def status(self, code: int, text: str, *, pull: int | None = None) -> Desk:
        self.tell()
        number = self.asks[-1].pull if pull is None else pull
        self.machine.status(number, code, text, self.now)
        return self.act()

    def wait(self, seconds: float) -> Desk:
        """Time passes; the machine is called whenever it wants to be."""
        end = self.now + seconds
        while self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            self.tell()
            self.machine.tick(self.now)
            assert self.machine.deadline > self.now
            self.act()
        self.now = end
        return self

    def link(self) -> Desk:
        self.tell()
        self.machine.linked(self.now)
        return self.act()

    def unlink(self) -> Desk:
        self.tell()
        self.machine.unlinked(self.now)
        return self.act()

    def drain(self, timeout: float) -> Desk:
        self.tell()
        self.machine.drained(self.now, self.now + timeout)
        return self.act()

    @property
    def batches(self) -> list[int]:
        return [ask.batch for ask in self.asks]

    @property
    def budgets(self) -> list[int]:
        return [ask.max_bytes for ask in self.asks]

    def has_ended(self) -> bool:
        assert self.signals.count(Signal.ENDED) == self.machine.is_ended
        return self.machine.is_ended

    @property
    def kinds(self) -> list[type[PullError]]:
        return [type(error) for error in self.warnings]


def consume(limit: int = 10, **options: Any) -> Desk:
    """A running consume with heartbeats every 5 seconds."""
    fields = {"threshold_messages": limit // 2, "expires": 30.0, "heartbeat": 5.0}
    return Desk(Policy(False, limit, **{**fields, **options})).start()


def consume_bytes(limit: int = 10_000, **options: Any) -> Desk:
    fields = {"threshold_bytes": limit // 2, "expires": 30.0, "heartbeat": 5.0}
    policy = Policy(False, MANY, max_bytes=limit, **{**fields, **options})
    return Desk(policy).start()


def fetch(wanted: int = 10, *, timeout: float = 2.0, **options: Any) -> Desk:
    return Desk(Policy(True, wanted, **options)).start(timeout=timeout)


# Asking -------------------------------------------------------------------------------


def test_the_first_pull_fills_the_buffer() -> None:
    policy = Policy(
        False, 500, threshold_messages=250, expires=30.0, heartbeat=15.0, doing="x"
    )
    desk = Desk(policy).start()
    assert desk.asks == [Ask(1, 500, 0, 30.0, 15.0, no_wait=False)]
    assert desk.machine.owed_messages == 500


def test_more_is_asked_for_at_the_threshold_and_no_more_than_fits() -> None:
    desk = consume(10)
    desk.deliver(10).take(4)
    assert desk.batches == [10]
    desk.take(1)
    assert desk.batches == [10, 5]
    desk.take(5)
    assert desk.batches == [10, 5, 5]
    assert desk.machine.owed_messages + len(desk.held) == 10


def test_taking_is_of_no_interest_once_all_that_is_wanted_was_asked_for() -> None:
    desk = consume(10, stop_after=12)
    assert desk.machine.refill_at == 5
    desk.deliver(10).take(5)
    assert desk.batches == [10, 2]
    assert desk.machine.refill_at == -1
    desk.wait(1.0).status(408, "Request Timeout")
    assert desk.batches == [10, 2, 2]
    assert desk.machine.refill_at == -1


def test_taking_is_of_no_interest_without_a_link_or_after_the_end() -> None:
    desk = consume(10).unlink()
    assert desk.machine.refill_at == -1
    desk.link()
    assert desk.machine.refill_at == 5
    desk.machine.stopped()
    assert desk.machine.refill_at == -1
    assert fetch(10).machine.refill_at == -1


def test_what_is_owed_counts_as_well_as_what_is_held() -> None:
    desk = consume(10)
    desk.deliver(5).take(4)
    assert desk.batches == [10]
    desk.take(1)  # 5 owed, none held
    assert desk.batches == [10, 5]
    assert desk.machine.owed_messages == 10


def test_a_limit_of_one_message_is_never_stuck() -> None:
    desk = consume(1, threshold_messages=0)
    for number in range(1, 101):
        assert desk.batches == [1] * number
        desk.deliver(1)
        assert desk.batches == [1] * number
        desk.take(1)
    assert desk.closes == [Close(number, True) for number in range(1, 101)]


@pytest.mark.parametrize("threshold", range(10))
def test_with_any_threshold_nothing_is_asked_for_above_the_limit(
    threshold: int,
) -> None:
    desk = consume(10, threshold_messages=threshold)
    for _ in range(40):
        pull = min(desk.machine.open, default=None)
        if pull is not None:
            desk.deliver(min(3, desk.machine.open[pull].owed_messages), pull=pull)
        desk.take(2)
        assert desk.machine.owed_messages + len(desk.held) <= 10
    assert desk.arrived >= 70


def test_a_pull_is_cut_to_what_the_consumer_accepts() -> None:
    desk = consume(10, batch_limit=3)
    assert desk.batches == [3]
    desk.deliver(3)
    assert desk.batches == [3, 3]
    desk.take(3)
    assert desk.batches == [3, 3, 3]
    by_bytes = consume_bytes(batch_limit=3)
    assert by_bytes.batches == [3]
    by_bytes.deliver(3, size=100).take(3)
    assert by_bytes.budgets == [10_000, 9700]


def test_a_spent_pull_is_closed_and_its_lane_free() -> None:
    desk = consume(10)
    desk.deliver(10)
    assert desk.closes == [Close(1, True)]
    assert desk.machine.owed_messages == 0
    assert not desk.machine.open


def test_the_ledger_never_owes_less_than_nothing() -> None:
    pull = Pull(3, 100, early_until=0.0, lost_at=9.0)
    pull.messages, pull.bytes = 5, 130
    assert (pull.owed_messages, pull.owed_bytes) == (0, 0)
    assert pull.is_spent


# Bytes --------------------------------------------------------------------------------


def test_bytes_are_asked_for_with_any_number_of_messages() -> None:
    desk = consume_bytes(10_000)
    assert desk.asks == [Ask(1, MANY, 10_000, 30.0, 5.0, no_wait=False)]
    desk.deliver(3, size=3000)
    assert (desk.machine.owed_bytes, desk.machine.held_bytes) == (1000, 9000)
    desk.status(*SIZE).take(1)
    assert desk.budgets == [10_000]
    desk.take(1)
    assert desk.budgets == [10_000, 7000]


def test_a_pull_whose_bytes_are_used_up_exactly_ends_without_a_word() -> None:
    desk = consume_bytes(10_000)
    desk.deliver(4, size=2500)
    assert desk.closes == [Close(1, True)]
    assert desk.machine.owed_messages == desk.machine.owed_bytes == 0
    desk.take(2)
    assert desk.budgets == [10_000, 5000]


def test_a_completed_batch_with_bytes_left_is_over_before_its_status_comes() -> None:
    desk = consume_bytes(10_000, batch_limit=1)
    desk.deliver(1, size=6000)
    assert desk.closes == [Close(1, True)]
    desk.status(*COMPLETED, pull=1)
    assert desk.budgets == [10_000]
    desk.take(1)
    assert desk.budgets == [10_000, 10_000]


def test_a_status_of_a_completed_batch_releases_the_bytes() -> None:
    desk = consume_bytes(10_000)
    desk.deliver(1, size=100).status(*COMPLETED)
    assert desk.closes == [Close(1, True)]
    assert desk.budgets == [10_000, 9900]


def test_a_message_that_needs_more_than_is_left_waits_for_all_the_room() -> None:
    desk = consume_bytes(10_000)
    desk.deliver(4, size=2000).status(*SIZE).take(2)
    assert desk.budgets == [10_000, 6000]
    desk.status(*SIZE)  # the next message has more than 6000
    assert desk.budgets == [10_000, 6000]
    desk.take(1)
    assert desk.budgets == [10_000, 6000]
    desk.take(1)
    assert desk.budgets == [10_000, 6000, 10_000]
    desk.deliver(1, size=9000).take(1)
    assert desk.warnings == []
    assert desk.machine.owed_bytes == 10_000


def test_after_the_large_message_the_threshold_counts_again() -> None:
    desk = consume_bytes(10_000)
    desk.deliver(4, size=2000).status(*SIZE).take(2).status(*SIZE).take(2)
    desk.deliver(1, size=7000).status(*SIZE).take(1).deliver(2, size=2500)
    assert desk.budgets[-1] == 10_000
    desk.deliver(2, size=2000).take(2)
    assert desk.budgets[-1] == 10_000 - 1000 - 4000


def test_a_message_that_can_never_fit_is_told_once_and_asked_for_rarely() -> None:
    desk = consume_bytes(10_000)
    for _ in range(4):
        desk.status(*SIZE).wait(10.0)
    assert desk.kinds == [MessageSizeError]
    assert "larger than 10000 bytes" in str(desk.warnings[0])
    assert desk.warnings[0].code == 409
    assert desk.budgets == [10_000] * 5


def test_after_other_messages_a_message_that_cannot_fit_is_told_again() -> None:
    desk = consume_bytes(10_000)
    desk.status(*SIZE).wait(1.0).deliver(4, size=2500).take(4)
    desk.status(*SIZE)
    assert desk.kinds == [MessageSizeError] * 2


# Endings of pulls ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "told", "pause", "is_certain"),
    [
        (*TIMEOUT, None, 0.0, True),
        (404, "No Messages", None, 0.0, True),
        (408, "Interest Expired", None, 0.0, True),
        (408, "Requests Pending", None, FIRST_PAUSE, True),
        (*COMPLETED, None, 0.0, True),
        (409, "Exceeded MaxRequestBatch of 5", PullLimitError, FIRST_PAUSE, True),
        (*WAITING, PullLimitError, FIRST_PAUSE, True),
        (*LEADERSHIP, LeadershipChangedError, 0.0, False),
        (*SHUTDOWN, ServerShutdownError, RELINK_PAUSE, False),
        (423, "Nats-Wrong-Pin-Id", UnpinnedError, 0.0, True),
        (*NOBODY, UnreachableConsumerError, FIRST_PAUSE, True),
        (409, "Something New", PullError, FIRST_PAUSE, False),
        (499, "Something Else", PullError, FIRST_PAUSE, False),
    ],
)
def test_a_consume_lives_on_after_a_status(
    code: int, text: str, told: type[PullError] | None, pause: float, is_certain: bool
) -> None:
    desk = consume(10).wait(1.0)
    desk.deliver(6).status(code, text)
    assert desk.closes == [Close(1, is_certain)]
    desk.take(6)
    if pause:
        assert desk.batches == [10]
        assert desk.machine.deadline == desk.now + pause
        desk.wait(pause)
    assert desk.batches == [10, 10]
    assert desk.kinds == ([] if told is None else [told])
    if told is not None:
        assert (desk.warnings[0].code, desk.warnings[0].description) == (code, text)
        assert "pull messages" in str(desk.warnings[0])
    assert not desk.has_ended()


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (409, "Consumer is push based", PushConsumerError),
        (400, "Bad Request - something", BadPullError),
        (412, "Required Api Level", RequiredApiLevelPullError),
    ],
)
def test_some_statuses_end_everything(
    code: int, text: str, error: type[PullError]
) -> None:
    desk = consume(10)
    desk.deliver(6).take(5).status(code, text, pull=1)
    assert desk.has_ended()
    assert type(desk.machine.error) is error
    assert desk.closes == [Close(1, True), Close(2, False)]
    assert desk.machine.deadline == math.inf
    assert desk.warnings == []


def test_a_patient_consume_waits_for_another_consumer() -> None:
    desk = consume(10, is_patient=True)
    desk.status(*DELETED)
    assert desk.kinds == [ConsumerDeletedError]
    desk.wait(FIRST_PAUSE)
    assert desk.batches == [10, 10]
    desk.status(409, "Consumer is push based")
    assert desk.has_ended()


def test_a_status_releases_only_its_own_pull() -> None:
    desk = consume(10)
    desk.deliver(5).take(5)
    assert desk.batches == [10, 5]
    desk.status(*LEADERSHIP, pull=1)
    assert desk.machine.owed_messages == 10
    assert desk.batches == [10, 5, 5]
    assert list(desk.machine.open) == [2, 3]


def test_a_status_of_a_pull_that_is_over_means_nothing() -> None:
    desk = consume(10)
    desk.deliver(10).status(*DELETED, pull=1).status(*NOBODY, pull=77)
    assert not desk.has_ended()
    assert desk.warnings == []
    assert desk.signals == []


def test_a_pull_that_was_said_to_be_bad_and_lives_is_kept() -> None:
    desk = consume(10)
    desk.status(400, "Bad Request - Not a Overflow Priority consumer")
    assert desk.kinds == [BadPullError]
    assert desk.closes == []
    desk.deliver(10).take(5)
    assert desk.batches == [10, 5]


NO_CONSUMER = ConsumerNotFoundError(code=404, err_code=10014, description="gone")
NO_STREAM = StreamNotFoundError(code=404, err_code=10059, description="gone")


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (NO_CONSUMER, ConsumerDeletedError),
        (NO_STREAM, StreamDeletedError),
        (None, ConsumerDeletedError),  # nobody knows in time
    ],
)
@pytest.mark.parametrize("is_fetch", [False, True])
def test_it_is_asked_whether_the_consumer_or_its_stream_was_deleted(
    found: ApiError | None, kind: type[PullError], is_fetch: bool
) -> None:
    desk = fetch(10) if is_fetch else consume(10)
    desk.deliver(2).take(2).status(*DELETED).status(*DELETED)
    assert desk.signals == [Signal.LOOK_UP]
    # Meanwhile nothing is asked for, whatever comes.
    desk.wait(0.1).take(0).unlink().link()
    desk.machine.heard(desk.now)
    desk.machine.counted(desk.now)
    assert desk.act().batches == [10]
    assert not desk.has_ended()
    if found is None:
        desk.wait(ENQUIRY)
    else:
        desk.machine.missing(found)
        desk.act()
    assert desk.has_ended()
    assert type(desk.machine.error) is kind
    assert desk.warnings == []
    if kind is StreamDeletedError:
        assert desk.machine.error.__cause__ is found


def test_one_that_is_stopped_while_it_asks_ends_with_what_it_knows() -> None:
    desk = fetch(10, timeout=0.2).status(*DELETED)
    desk.machine.stopped()
    assert type(desk.machine.error) is ConsumerDeletedError


def test_a_fragile_conversation_does_not_ask_what_was_deleted() -> None:
    desk = consume(10, is_fragile=True).status(*DELETED)
    assert desk.has_ended()
    assert type(desk.machine.error) is ConsumerDeletedError


def test_nobody_at_the_subject_has_the_consumer_looked_up() -> None:
    desk = consume(10).status(*NOBODY)
    assert desk.signals == [Signal.LOOK_UP]
    desk.machine.missing(
        ConsumerNotFoundError(code=404, err_code=10014, description="gone")
    )
    desk.act()
    assert desk.has_ended()
    assert isinstance(desk.machine.error, ConsumerNotFoundError)


def test_a_lost_pin_is_forgotten_before_the_next_pull() -> None:
    machine = Conversation(Policy(False, 10, heartbeat=5.0))
    machine.started(0.0, is_linked=True, finish_at=math.inf)
    machine.take_output()
    machine.status(1, 423, "Nats-Wrong-Pin-Id", 1.0)
    close, unpinned, warning, ask = machine.take_output()
    assert (close, unpinned) == (Close(1, True), Signal.UNPINNED)
    assert isinstance(warning, Warn)
    assert isinstance(ask, Ask)


def test_a_pull_that_is_given_up_is_owed_until_the_server_has_heard_of_it() -> None:
    desk = consume(10)
    desk.hears = False
    desk.wait(10.0)  # two heartbeats were missed
    assert desk.kinds == [MissedHeartbeatError]
    assert desk.closes == [Close(1, False)]
    assert desk.machine.owed_messages == 10
    assert desk.batches == [10]
    desk.deliver(4, pull=1)  # late
    assert (desk.machine.owed_messages, len(desk.held)) == (6, 4)
    desk.wait(100.0)
    assert desk.batches == [10]
    desk.hear()
    assert desk.batches == [10, 6]
    assert desk.machine.owed_messages + len(desk.held) == 10
    assert len(desk.warnings) == 1


def test_bytes_of_a_pull_that_is_given_up_are_never_asked_for_twice() -> None:
    desk = fetch(MANY, max_bytes=200, timeout=60.0)
    desk.hears = False
    desk.deliver(1, size=50).status(*SHUTDOWN)
    desk.deliver(1, size=100, pull=1)  # late
    assert desk.machine.owed_bytes == 50
    desk.wait(RELINK_PAUSE)
    assert desk.budgets == [200]
    desk.hear()
    assert desk.budgets == [200, 50]
    desk.deliver(1, size=50)
    assert desk.has_ended()
    assert sum(desk.held) == 200


def test_what_comes_late_may_be_all_that_a_fetch_wants() -> None:
    desk = fetch(MANY, max_bytes=200, timeout=60.0)
    desk.hears = False
    desk.status(*SHUTDOWN).deliver(2, size=100, pull=1)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert len(desk.asks) == 1


def test_a_link_that_is_lost_brings_nothing_of_pulls_that_were_given_up() -> None:
    desk = consume(10)
    desk.hears = False
    desk.wait(10.0).deliver(4, pull=1).unlink()
    assert desk.machine.owed_messages == 0
    desk.link()
    assert desk.batches == [10, 6]
    # Nobody says any more that the server has heard.
    desk.hear()
    assert desk.batches == [10, 6]


# Pauses -------------------------------------------------------------------------------


def test_pauses_double_up_to_a_heartbeat() -> None:
    desk = consume(10)
    pauses = []
    for _ in range(9):
        desk.status(*NOBODY)
        pauses.append(desk.machine.deadline - desk.now)
        desk.wait(pauses[-1])
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert len(desk.asks) == 10


def test_without_heartbeats_pauses_end_at_five_seconds() -> None:
    desk = consume(10, heartbeat=0.0)
    for _ in range(9):
        desk.status(*NOBODY)
        pause = desk.machine.deadline - desk.now
        desk.wait(pause)
    assert pause == pytest.approx(LAST_PAUSE)


@pytest.mark.parametrize("sign", ["message", "heartbeat", "link"])
def test_any_sign_of_life_makes_the_next_pause_short(sign: str) -> None:
    desk = consume(10)
    for _ in range(4):
        desk.status(*WAITING).wait(4.0)
    if sign == "message":
        desk.deliver(1)
    elif sign == "heartbeat":
        desk.beat()
    else:
        desk.unlink().link()
    desk.status(*WAITING)
    assert desk.machine.deadline == pytest.approx(desk.now + FIRST_PAUSE)


def test_a_refused_pull_pauses_also_while_others_bring_messages() -> None:
    desk = consume(10)
    desk.deliver(5).take(5).status(*WAITING)
    assert desk.batches == [10, 5]
    for _ in range(5):
        desk.deliver(1, pull=1).take(1)
    assert desk.batches == [10, 5]
    desk.wait(FIRST_PAUSE)
    assert desk.batches == [10, 5, 10]


@pytest.mark.parametrize("ending", [TIMEOUT, (404, ""), LEADERSHIP, (423, "x")])
def test_pulls_that_end_at_once_are_not_asked_for_in_circles(
    ending: tuple[int, str],
) -> None:
    desk = consume(10)
    for number in range(1, 8):
        assert len(desk.asks) == number
        desk.status(*ending)  # at once
        assert len(desk.asks) == number
        desk.wait(desk.machine.deadline - desk.now)
    assert desk.now > 100.0 + 5.0


def test_a_long_pause_is_not_cut_short_by_a_shorter_one() -> None:
    desk = consume(10)
    desk.deliver(5).take(5)
    desk.status(*SHUTDOWN, pull=1).status(*WAITING, pull=2)
    assert desk.machine.deadline == desk.now + RELINK_PAUSE
    desk.wait(RELINK_PAUSE)
    assert desk.batches == [10, 5, 10]


def test_a_pause_that_ends_when_nothing_is_due_asks_for_nothing() -> None:
    desk = consume(10)
    desk.deliver(8).status(*WAITING)
    assert desk.machine.deadline == math.inf
    desk.wait(1.0).take(2)
    assert desk.batches == [10]
    desk.take(1)
    assert desk.batches == [10, 5]


# Heartbeats ---------------------------------------------------------------------------


def test_silence_is_noticed_after_two_heartbeats_and_not_before() -> None:
    desk = consume(10)
    assert desk.machine.deadline == desk.now + 10.0
    desk.wait(9.999)
    assert desk.warnings == []
    desk.wait(0.001)
    assert desk.kinds == [MissedHeartbeatError]
    assert "10 s" in str(desk.warnings[0])
    assert desk.batches == [10, 10]
    assert desk.closes == [Close(1, False)]


def test_silence_has_the_consumer_looked_up() -> None:
    # Servers before 2.10.26 say nothing for one that is not there.
    assert consume(10).wait(10.0).signals == [Signal.LOOK_UP]
    assert consume(10, heartbeat=0.0).wait(30.0 + GRACE).signals == [Signal.LOOK_UP]
    assert consume(10, is_fragile=True).wait(10.0).signals == [Signal.ENDED]


def test_it_is_known_whether_the_server_has_said_anything() -> None:
    desk = fetch(10).wait(2.0)
    assert desk.has_ended()
    assert desk.machine.is_unanswered
    assert not fetch(10).deliver(1).machine.is_unanswered
    assert not fetch(10).beat().machine.is_unanswered
    assert not fetch(10).status(*TIMEOUT).machine.is_unanswered


def test_after_silence_only_what_was_owed_is_asked_for_again() -> None:
    desk = consume(10, threshold_messages=3)
    desk.deliver(3).wait(10.0)
    assert desk.batches == [10, 7]


def test_silence_is_noticed_again_and_again() -> None:
    desk = consume(10).wait(50.0)
    assert desk.kinds == [MissedHeartbeatError] * 5
    assert len(desk.asks) == 6
    assert not desk.has_ended()


def test_heartbeats_alone_are_no_reason_to_worry() -> None:
    desk = consume(10)
    for _ in range(5):
        desk.wait(5.0).beat()
    assert desk.warnings == []
    assert desk.batches == [10]


def test_every_kind_of_frame_breaks_the_silence() -> None:
    desk = consume(10)
    desk.wait(9.0).deliver(1)
    desk.wait(9.0).status(400, "Bad Request - Not a Overflow Priority consumer")
    desk.wait(9.0).beat()
    assert desk.kinds == [BadPullError]


def test_without_an_open_pull_silence_is_normal() -> None:
    desk = consume(10)
    desk.deliver(10)
    assert desk.machine.deadline == math.inf
    desk.wait(100.0)
    assert desk.warnings == []
    desk.take(10)
    assert desk.machine.deadline == desk.now + 10.0


def test_silence_is_measured_from_the_arrival_not_from_the_handling() -> None:
    desk = consume(10)
    desk.now += 4.0
    desk.machine.heard(desk.now - 3.0)
    desk.machine.counted(desk.now)
    assert desk.machine.deadline == desk.now - 3.0 + 10.0


def test_what_was_heard_before_a_pull_does_not_shorten_its_time() -> None:
    desk = consume(10)
    desk.deliver(5)
    desk.now += 6.0
    desk.take(5)
    desk.machine.heard(desk.now - 6.0)
    desk.machine.counted(desk.now)
    assert desk.machine.deadline == desk.now + 10.0


def test_a_pull_that_outlives_its_time_is_lost() -> None:
    desk = consume(10)
    desk.deliver(5).take(5)
    assert desk.batches == [10, 5]
    while desk.kinds == []:
        desk.wait(4.0).beat()
    # Both were open for too long; heartbeats came until the end.
    assert desk.now >= 100.0 + 30.0 + GRACE
    assert desk.kinds == [LostPullError] * 2
    assert desk.closes == [Close(1, False), Close(2, False)]
    assert desk.batches == [10, 5, 5, 5]


# Links --------------------------------------------------------------------------------


def test_without_a_link_nothing_is_asked_for() -> None:
    desk = Desk(Policy(False, 10, heartbeat=5.0)).start(is_linked=False)
    assert desk.asks == []
    desk.wait(100.0).link()
    assert desk.batches == [10]


def test_a_new_link_forgets_what_was_owed_but_not_what_is_held() -> None:
    desk = consume(10)
    desk.deliver(4).unlink()
    assert desk.closes == [Close(1, False)]
    assert desk.machine.owed_messages == 0
    assert desk.machine.deadline == math.inf
    desk.wait(60.0).link()
    assert desk.warnings == []
    assert desk.batches == [10, 6]


def test_a_new_link_without_a_word_about_the_old_one_is_a_new_link() -> None:
    desk = consume(10)
    desk.deliver(4).link()
    assert desk.closes == [Close(1, False)]
    assert desk.batches == [10, 6]


def test_a_pause_ends_with_a_new_link() -> None:
    desk = consume(10)
    desk.status(*SHUTDOWN).unlink().link()
    assert desk.batches == [10, 10]
    desk.wait(5.0)
    assert desk.batches == [10, 10]


def test_a_server_that_shuts_down_is_not_asked_until_the_link_is_new() -> None:
    desk = consume(10)
    desk.deliver(5).take(5)
    desk.status(*SHUTDOWN, pull=1).status(*SHUTDOWN, pull=2)
    desk.wait(0.05).unlink().wait(3.0)
    assert desk.batches == [10, 5]
    desk.link()
    assert desk.batches == [10, 5, 10]
    assert desk.kinds == [ServerShutdownError] * 2


def test_a_fragile_conversation_ends_with_its_link() -> None:
    desk = consume(10, is_fragile=True).unlink()
    assert desk.has_ended()
    assert isinstance(desk.machine.error, LostPullError)


def test_a_fragile_conversation_ends_with_the_first_trouble() -> None:
    silent = consume(10, is_fragile=True).wait(10.0)
    assert isinstance(silent.machine.error, MissedHeartbeatError)
    led = consume(10, is_fragile=True).status(*LEADERSHIP)
    assert isinstance(led.machine.error, LeadershipChangedError)
    assert led.has_ended()
    assert led.warnings == []
    lost = consume(10, is_fragile=True, heartbeat=0.0)
    lost.deliver(5).take(5).wait(60.0)
    assert isinstance(lost.machine.error, LostPullError)
    fine = consume(10, is_fragile=True).status(*TIMEOUT)
    assert not fine.has_ended()


# The end of a consume -----------------------------------------------------------------


def test_stop_after_is_never_asked_beyond() -> None:
    desk = consume(500, stop_after=10)
    assert desk.batches == [10]
    desk.deliver(3).wait(1.0).status(*TIMEOUT)
    assert desk.batches == [10, 7]
    desk.deliver(7)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert len(desk.held) == 10


def test_stop_after_with_bytes_is_never_asked_beyond() -> None:
    desk = consume_bytes(10_000, stop_after=10)
    assert [desk.batches, desk.budgets] == [[10], [10_000]]
    desk.deliver(3, size=3000).take(3).status(*SIZE)
    assert [desk.batches, desk.budgets] == [[10, 7], [10_000, 10_000]]
    desk.deliver(2, size=2500).take(2)  # at the threshold, but all 5 are owed
    assert desk.batches == [10, 7]
    desk.deliver(2, size=2500)  # exactly all bytes, so no status
    desk.take(2)
    assert desk.batches == [10, 7, 3]
    desk.deliver(3, size=10)
    assert desk.has_ended()


def test_stop_after_survives_a_reconnect() -> None:
    desk = consume(500, stop_after=10)
    desk.deliver(4).unlink().link()
    assert desk.batches == [10, 6]
    desk.take(4)
    assert desk.batches == [10, 6]


def test_stop_after_in_small_portions() -> None:
    desk = consume(4, stop_after=10)
    while not desk.has_ended():
        desk.deliver(1, pull=min(desk.machine.open)).take(1)
    assert desk.arrived == 10
    assert sum(desk.batches) == 10


def test_late_messages_count_towards_the_end() -> None:
    desk = consume(500, stop_after=10)
    desk.hears = False
    desk.wait(10.0).deliver(10, pull=1)
    assert desk.has_ended()
    assert desk.batches == [10]
    assert desk.closes == [Close(1, False)]


def test_stopping_ends_it_once_and_for_all() -> None:
    desk = consume(10)
    desk.machine.stopped()
    desk.machine.stopped()
    desk.act()
    assert desk.has_ended()
    assert desk.closes == [Close(1, False)]
    desk.take(0).unlink().link().status(*NOBODY, pull=1).wait(100.0)
    desk.machine.missing(PullError(code=0))
    desk.machine.drained(desk.now)
    desk.act()
    assert desk.batches == [10]
    assert desk.signals == [Signal.ENDED]
    assert desk.machine.error is None
    assert desk.machine.deadline == math.inf


def test_draining_asks_for_nothing_more_and_takes_what_comes() -> None:
    desk = consume(10)
    desk.hears = False
    desk.deliver(5).drain(5.0)
    assert desk.closes == [Close(1, False)]
    desk.deliver(2, pull=1).take(7)
    assert not desk.has_ended()
    desk.hear()
    assert desk.has_ended()
    assert desk.machine.error is None
    assert not desk.machine.is_cut_short
    assert desk.batches == [10]
    assert desk.warnings == []


def test_a_lost_link_ends_a_drain() -> None:
    desk = consume(10)
    desk.hears = False
    desk.drain(5.0).unlink()
    assert desk.has_ended()
    assert desk.machine.error is None


@pytest.mark.parametrize("ending", ["all came", "408", "404"])
def test_where_nothing_is_delivered_again_a_drain_waits_for_the_end_of_pulls(
    ending: str,
) -> None:
    desk = consume(10, awaits_ends=True).deliver(6).take(6)
    assert desk.batches == [10, 6]
    desk.drain(60.0)
    assert desk.closes == []
    desk.deliver(4, pull=1)
    assert desk.closes == [Close(1, True)]
    assert not desk.has_ended()
    desk.beat().deliver(2)
    if ending == "all came":
        desk.deliver(4)
    else:
        desk.status(int(ending), "whatever")
    assert desk.has_ended()
    assert desk.closes == [Close(1, True), Close(2, True)]
    assert not desk.machine.is_cut_short
    assert desk.batches == [10, 6]
    assert desk.warnings == []


def test_a_drain_gives_up_pulls_that_outlive_its_time() -> None:
    desk = consume(10, awaits_ends=True)
    desk.hears = False
    desk.drain(4.0).wait(3.9)
    assert desk.closes == []
    assert desk.machine.deadline == pytest.approx(104.0)
    desk.wait(0.1)
    assert desk.closes == [Close(1, False)]
    desk.deliver(2, pull=1).hear()
    assert desk.has_ended()
    assert desk.machine.is_cut_short
    assert len(desk.held) == 2


def test_a_drain_does_not_wait_for_pulls_that_are_lost() -> None:
    desk = consume(10, awaits_ends=True).drain(60.0).wait(9.9)
    assert not desk.has_ended()
    desk.wait(0.1)  # two heartbeats were missed
    assert desk.has_ended()
    assert desk.kinds == [MissedHeartbeatError]
    assert desk.machine.error is None


def test_a_consumer_that_is_deleted_while_it_is_drained_is_told() -> None:
    desk = consume(10, awaits_ends=True).drain(60.0).status(*DELETED).wait(ENQUIRY)
    assert desk.has_ended()
    assert isinstance(desk.machine.error, ConsumerDeletedError)


# Fetching -----------------------------------------------------------------------------


def test_a_fetch_ends_when_it_has_what_it_wants() -> None:
    desk = fetch(10, timeout=2.0)
    assert desk.asks == [
        Ask(1, 10, 0, pytest.approx(1.98), 0.0, no_wait=False)  # type: ignore[arg-type]
    ]
    assert desk.machine.deadline == 102.0
    desk.deliver(10)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert desk.closes == [Close(1, True)]


@pytest.mark.parametrize(
    ("timeout", "expires"), [(5.0, 4.98), (0.2, 0.18), (0.1, 0.09), (0.0001, 0.001)]
)
def test_the_server_ends_a_fetch_a_little_before_we_do(
    timeout: float, expires: float
) -> None:
    assert fetch(timeout=timeout).asks[0].expires == pytest.approx(expires)


def test_a_fetch_ends_at_its_deadline_with_what_it_has() -> None:
    desk = fetch(10, timeout=2.0).deliver(3).wait(1.999)
    assert not desk.has_ended()
    desk.wait(0.001)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert desk.closes == [Close(1, False)]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (404, "No Messages"),
        TIMEOUT,
        (408, "Requests Pending"),
        (408, "Interest Expired"),
        COMPLETED,
    ],
)
@pytest.mark.parametrize("came", [0, 2])
def test_a_fetch_ends_quietly_with_its_pull(code: int, text: str, came: int) -> None:
    desk = fetch(10).deliver(came).status(code, text)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert desk.closes == [Close(1, True)]


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (400, "Bad Request - x", BadPullError),
        (400, "Bad Request - Not a Overflow Priority consumer", BadPullError),
        (409, "Consumer is push based", PushConsumerError),
        (409, "Exceeded MaxRequestBatch of 5", PullLimitError),
        (*WAITING, PullLimitError),
        (*LEADERSHIP, LeadershipChangedError),
        (412, "Required Api Level", RequiredApiLevelPullError),
        (423, "Nats-Pin-Id mismatch", UnpinnedError),
        (409, "Something New", PullError),
        (499, "", PullError),
    ],
)
def test_a_fetch_ends_with_an_error(
    code: int, text: str, error: type[PullError]
) -> None:
    desk = fetch(10).deliver(2).status(code, text)
    assert desk.has_ended()
    assert type(desk.machine.error) is error
    assert desk.warnings == []
    assert (Signal.UNPINNED in desk.signals) == (code == 423)


def test_a_fetch_asks_again_while_nobody_answers_and_looks_the_consumer_up() -> None:
    desk = fetch(10, timeout=5.0).deliver(2).status(*NOBODY)
    assert not desk.has_ended()
    assert desk.signals == [Signal.LOOK_UP]
    assert desk.batches == [10]
    desk.wait(FIRST_PAUSE).status(*NOBODY).wait(FIRST_PAUSE)
    assert desk.batches == [10, 8]
    desk.wait(1.5 * FIRST_PAUSE).deliver(8)
    assert desk.has_ended()
    assert desk.machine.error is None
    assert desk.batches == [10, 8, 8]


def test_a_fetch_that_nobody_answers_in_time_says_so() -> None:
    desk = fetch(10, timeout=1.0)
    while not desk.has_ended():
        desk.status(*NOBODY).wait(0.05)
    assert type(desk.machine.error) is UnreachableConsumerError
    assert len(desk.asks) < 6
    # What is heard meanwhile is an answer.
    other = fetch(10, timeout=1.0).status(*NOBODY).wait(0.2).deliver(1).wait(1.0)
    assert other.has_ended()
    assert other.machine.error is None


def test_a_fetch_from_a_consumer_that_is_gone_for_certain_ends_with_that() -> None:
    desk = fetch(10).status(*NOBODY)
    gone = ConsumerNotFoundError(code=404, err_code=10014)
    desk.machine.missing(gone)
    assert desk.act().has_ended()
    assert desk.machine.error is gone


def test_a_fetch_goes_on_when_its_server_shuts_down() -> None:
    desk = fetch(10, timeout=5.0).deliver(2).status(*SHUTDOWN)
    assert not desk.has_ended()
    desk.unlink().wait(0.5).link()
    assert desk.batches == [10, 8]
    other = fetch(10, timeout=5.0).status(*SHUTDOWN).wait(RELINK_PAUSE)
    assert other.batches == [10, 10]
    assert other.warnings == []


def test_a_fetch_pulls_again_on_a_new_link_in_what_is_left_of_its_time() -> None:
    desk = fetch(10, timeout=5.0).deliver(4).wait(1.0).unlink().wait(2.0)
    assert not desk.has_ended()
    desk.link()
    assert desk.batches == [10, 6]
    assert desk.asks[-1].expires == pytest.approx(2.0 - 0.02)
    desk.deliver(6)
    assert desk.has_ended()


def test_a_fetch_whose_time_passed_without_a_link_asks_no_more() -> None:
    desk = fetch(10, timeout=1.0).unlink()
    desk.now += 1.5
    desk.link()
    assert desk.has_ended()
    assert desk.batches == [10]


def test_a_fetch_that_has_everything_when_the_link_breaks_is_over() -> None:
    desk = fetch(2)
    desk.came[1] = [2, 2]
    desk.arrived = 2
    desk.unlink()
    assert desk.has_ended()
    assert desk.machine.error is None


def test_a_fetch_without_waiting_asks_for_no_time() -> None:
    desk = fetch(10, timeout=5.0, no_wait=True)
    assert desk.asks == [Ask(1, 10, 0, 0.0, 0.0, no_wait=True)]
    desk.wait(5.0)  # servers may say nothing at all
    assert desk.has_ended()
    assert desk.machine.error is None


def test_a_fetch_of_bytes_ends_when_they_are_used_up() -> None:
    desk = fetch(MANY, max_bytes=1000)
    assert [desk.batches, desk.budgets] == [[MANY], [1000]]
    desk.deliver(4, size=250)
    assert desk.has_ended()
    assert desk.machine.error is None


def test_a_fetch_of_bytes_ends_at_a_message_that_does_not_fit() -> None:
    desk = fetch(MANY, max_bytes=1000).deliver(3, size=300).status(*SIZE)
    assert desk.has_ended()
    assert desk.machine.error is None


def test_a_fetch_of_bytes_that_gets_nothing_says_why() -> None:
    desk = fetch(MANY, max_bytes=1000).status(*SIZE)
    assert desk.has_ended()
    assert isinstance(desk.machine.error, MessageSizeError)
    assert "1000 bytes" in str(desk.machine.error)


def test_a_fetch_of_bytes_goes_on_with_the_rest_on_a_new_link() -> None:
    desk = fetch(MANY, max_bytes=1000, timeout=9.0).deliver(2, size=300)
    desk.unlink().link()
    assert desk.budgets == [1000, 400]
    desk.deliver(1, size=400)
    assert desk.has_ended()


def test_a_fetch_of_bytes_in_small_batches_asks_for_the_rest() -> None:
    desk = fetch(MANY, max_bytes=1000, batch_limit=2).deliver(2, size=300)
    assert [desk.batches, desk.budgets] == [[2, 2], [1000, 400]]
    desk.status(*SIZE)
    assert desk.has_ended()
    assert desk.machine.error is None


def test_a_fetch_with_both_limits_ends_at_the_first() -> None:
    by_count = fetch(2, max_bytes=1000).deliver(2, size=100)
    by_bytes = fetch(9, max_bytes=1000).deliver(2, size=500)
    assert by_count.has_ended()
    assert by_bytes.has_ended()


def test_missed_heartbeats_end_a_fetch_with_an_error() -> None:
    desk = fetch(10, timeout=30.0, heartbeat=5.0)
    assert desk.asks[0].heartbeat == 5.0
    desk.wait(8.0).deliver(2).wait(9.9)
    assert not desk.has_ended()
    desk.wait(0.1)
    assert desk.has_ended()
    assert isinstance(desk.machine.error, MissedHeartbeatError)
    assert len(desk.held) == 2


def test_a_heartbeat_is_at_most_half_of_the_time_left() -> None:
    desk = fetch(10, timeout=10.0, heartbeat=5.0)
    assert desk.asks[0].heartbeat == pytest.approx(4.99)
    again = fetch(10, timeout=30.0, heartbeat=5.0).wait(9.0).unlink().wait(15.0).link()
    assert [ask.heartbeat for ask in again.asks] == [5.0, pytest.approx(2.99)]


def test_a_heartbeat_that_may_well_be_late_is_not_asked_for() -> None:
    desk = fetch(10, timeout=30.0, heartbeat=5.0).wait(9.0).unlink().wait(20.95).link()
    assert [ask.heartbeat for ask in desk.asks] == [5.0, 0.0]


def test_a_fetch_is_longer_than_the_consumer_allows_a_pull_to_be() -> None:
    desk = fetch(10, timeout=5.0, expires_limit=2.0, heartbeat=2.0).deliver(3)
    assert (desk.asks[0].expires, desk.asks[0].heartbeat) == (2.0, 1.0)
    desk.wait(0.9).beat().wait(0.9).beat().wait(0.2).status(*TIMEOUT)
    assert not desk.has_ended()
    assert (desk.batches, desk.asks[1].expires) == ([10, 7], 2.0)
    desk.wait(0.9).beat().wait(0.9).beat().wait(0.2).deliver(1).status(*TIMEOUT)
    # The last one ends with the fetch.
    assert desk.batches == [10, 7, 6]
    assert desk.asks[2].expires == pytest.approx(1.0 - 0.02)
    desk.wait(0.5).beat().wait(0.48).status(*TIMEOUT)
    assert desk.has_ended()
    assert desk.machine.error is None


def test_a_cut_pull_that_ends_too_soon_is_not_asked_for_at_once_again() -> None:
    desk = fetch(10, timeout=5.0, expires_limit=2.0).status(408, "Interest Expired")
    assert desk.batches == [10]
    desk.wait(FIRST_PAUSE)
    assert desk.batches == [10, 10]
    tiny = fetch(10, timeout=5.0, expires_limit=0.01).wait(0.01).status(*TIMEOUT)
    assert tiny.batches == [10, 10]


def test_a_cut_pull_that_is_lost_is_asked_for_again() -> None:
    desk = fetch(10, timeout=60.0, expires_limit=2.0).wait(2.0 + GRACE)
    assert desk.batches == [10, 10]
    assert desk.signals == []


def test_a_cut_pull_that_is_refused_ends_the_fetch() -> None:
    desk = fetch(10, timeout=60.0, expires_limit=2.0).status(*WAITING)
    assert isinstance(desk.machine.error, PullLimitError)


def test_the_end_of_the_time_is_no_silence() -> None:
    desk = fetch(10, timeout=10.1, heartbeat=5.0)
    desk.now = 111.0
    desk.machine.tick(desk.now)
    desk.act()
    assert desk.has_ended()
    assert desk.machine.error is None


def test_a_fetch_is_stopped_like_anything_else() -> None:
    desk = fetch(10)
    desk.machine.stopped()
    desk.act()
    assert desk.has_ended()
    assert desk.closes == [Close(1, False)]


def test_outputs_are_taken_once() -> None:
    machine = consume(10).machine
    assert machine.take_output() == []
