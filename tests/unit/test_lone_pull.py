"""Lone pulls: lanes that threads take by themselves, and the wait for all of a pull."""

import math
import socket
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from jsclient._core import (
    Awaited,
    BatchInbox,
    Draft,
    Gate,
    Helm,
    Lane,
    LanePool,
    Link,
    LonePull,
    Msg,
    Outbox,
    PullInbox,
)
from jsclient.errors import ConnectionClosedError, InvalidArgumentError
from tests.harness.compiled import Rig
from tests.harness.lanes import MIB, courier, delivery, status

TIMEOUT = b"NATS/1.0 408 Request Timeout\r\n\r\n"


def lane_of(number: int, pool: LanePool) -> Lane:
    """A lane that is free to be taken."""
    lane = Lane()
    lane.assign(number, number)
    pool.users[lane] = None
    pool.give_back(lane)
    return lane


def pull_on(pool: LanePool, lane: Lane) -> str:
    """The reply subject of a further pull on the lane, which is over at once."""
    reply = pool.new_reply(lane)
    assert pool.take(None) is lane
    lane.open(PullInbox(courier()), reply, 1, 0)
    pool.give_back(lane)
    return reply


# The pool -----------------------------------------------------------------------------


def test_a_lane_is_taken_once_until_it_is_given_back() -> None:
    pool = LanePool("_INBOX.x")
    lane = lane_of(1, pool)
    assert pool.take(None) is lane
    assert pool.take(None) is None
    pool.give_back(lane)
    assert pool.take(None) is lane


def test_a_lane_has_the_user_that_took_it() -> None:
    class User:
        inbox = PullInbox(courier())

    pool, user = LanePool("_INBOX.x"), User()
    lane = lane_of(1, pool)
    pool.take(user)
    assert pool.users == {lane: user}
    pool.give_back(lane)
    assert pool.users == {}


def test_nobody_gives_back_what_the_pool_does_not_have() -> None:
    pool = LanePool("_INBOX.x")
    pool.give_back(Lane())
    assert pool.free == []


def test_a_lane_that_is_given_back_twice_is_free_once() -> None:
    pool = LanePool("_INBOX.x")
    lane = lane_of(1, pool)
    pool.take(None)
    pool.give_back(lane)
    pool.give_back(lane)
    assert pool.free == [lane]


def test_the_lane_that_was_given_back_last_is_taken_first() -> None:
    pool = LanePool("_INBOX.x")
    first, second = lane_of(1, pool), lane_of(2, pool)
    assert pool.free == [first, second]
    assert [pool.take(None), pool.take(None), pool.take(None)] == [second, first, None]
    pool.give_back(second)
    pool.give_back(first)
    assert pool.free == [second, first]


def test_a_free_lane_that_is_dismissed_is_none_of_the_pool_any_more() -> None:
    pool = LanePool("_INBOX.x")
    first, second = lane_of(1, pool), lane_of(2, pool)
    pool.take(None)
    assert pool.dismiss() is first
    assert (pool.dismiss(), pool.free, pool.users) == (None, [], {second: None})


def test_the_subjects_of_a_lane_recur_but_not_soon() -> None:
    pool = LanePool("_INBOX.x")
    lane = lane_of(12, pool)
    replies = [pull_on(pool, lane) for _ in range(24)]
    assert replies[0] == "_INBOX.x.12.0"
    assert len(set(replies)) == 8
    assert replies[8:16] == replies[:8] == replies[16:]


def test_lanes_have_no_subject_in_common() -> None:
    pool = LanePool("_INBOX.x")
    first, second = lane_of(1, pool), lane_of(11, pool)
    assert pool.new_reply(first) == "_INBOX.x.1.0"
    assert pool.new_reply(second) == "_INBOX.x.11.0"


def test_a_renewed_pool_has_other_subjects_and_no_lanes() -> None:
    pool = LanePool("_INBOX.x")
    free, used = lane_of(1, pool), lane_of(2, pool)
    assert pool.take(None) is used
    assert pool.renew("_INBOX.y") == [free, used]
    assert (pool.free, pool.users, pool.prefix) == ([], {}, "_INBOX.y")
    pool.give_back(used)
    assert pool.free == []


def test_who_waits_for_a_lane_is_told_when_the_pool_is_renewed() -> None:
    pool = LanePool("_INBOX.x")
    lane = lane_of(1, pool)
    pool.take(None)
    lane.open(PullInbox(courier()), "_INBOX.x.1.0", 1, 0)
    lane.is_lone = True
    assert not lane.ready
    pool.renew("_INBOX.y")
    assert (lane.ready, lane.is_spent) == (True, False)


# A pull -------------------------------------------------------------------------------


class Scene:
    """A consumer's pool with a lane, and what happens when a thread turns the loop."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.time = 100.0
        self.rig = Rig()
        self.far = far
        self.outbox = Outbox(MIB, 0)
        self.outbox.attach(Link(near.fileno()), b"")
        self.pool = LanePool("_INBOX.x")
        self.lane = lane_of(7, self.pool)
        self.rig.routes.add(7, self.lane)
        self.then: list[Callable[[], object]] = []
        self.waits: list[float] = []
        self.helm = Helm(self._drive, lambda: self.time, self.outbox)
        self.helm.start()

    def _drive(self, what: Awaited | None, deadline: float) -> None:
        self.waits.append(deadline)
        while self.then and not (what is not None and what.ready):
            self.then.pop(0)()
        if what is not None and not what.ready:
            self.time = deadline

    def answers(self, *numbers: int) -> None:
        for number in numbers:
            self.then.append(partial(self.feed, delivery(number).frame(7)))

    def feed(self, frame: bytes) -> None:
        self.rig.parser.feed(frame)

    def pull(
        self,
        batch: int = 1,
        *,
        patience: float = math.inf,
        is_alone: bool = True,
        inbox: PullInbox | None = None,
    ) -> LonePull:
        draft = Draft(
            "$JS.API.NEXT",
            b'{"batch":%d}' % batch,
            courier(),
            batch=batch,
            max_bytes=0,
            limit=batch,
            patience=patience,
            is_alone=is_alone,
        )
        return LonePull(self.pool, draft, inbox)

    def sent(self) -> bytes:
        self.far.setblocking(False)
        try:
            return self.far.recv(4096)
        except BlockingIOError:
            return b""


@pytest.fixture
def scene() -> Iterator[Scene]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield Scene(near, far)


def taken(lone: LonePull) -> list[str | None]:
    return [msg.subject for msg in lone.inbox.take_all()]


def test_a_pull_is_sent_on_a_free_lane_and_all_of_it_waited_for(scene: Scene) -> None:
    lone = scene.pull(batch=2)
    scene.answers(1, 2)
    assert lone.run(scene.helm, 105.0)
    assert scene.sent() == b'PUB $JS.API.NEXT _INBOX.x.7.0 11\r\n{"batch":2}\r\n'
    assert (lone.asked_at, scene.waits) == (100.0, [105.0])
    assert taken(lone) == ["s.1", "s.2"]
    assert not lone.has_rest
    assert (lone.lane, scene.pool.free, scene.pool.users) == (None, [scene.lane], {})


def test_messages_know_who_sends_their_acks(scene: Scene) -> None:
    outbox = scene.outbox
    draft = Draft(
        "a",
        b"",
        courier(outbox),
        batch=1,
        max_bytes=0,
        limit=1,
        patience=math.inf,
    )
    lone = LonePull(scene.pool, draft)
    scene.answers(1)
    assert lone.run(scene.helm, 105.0)
    scene.sent()
    msg = lone.inbox.take()
    assert msg is not None
    msg.ack()
    outbox.send()
    assert scene.sent().endswith(b"4\r\n+ACK\r\n")


def test_the_next_pull_has_another_subject(scene: Scene) -> None:
    for _ in range(2):
        scene.answers(1)
        assert scene.pull().run(scene.helm, 105.0)
    assert scene.sent().split()[2::5] == [b"_INBOX.x.7.0", b"_INBOX.x.7.1"]


def test_what_was_not_taken_is_a_rest(scene: Scene) -> None:
    lone = scene.pull()
    scene.answers(1)
    assert lone.run(scene.helm, 105.0)
    assert lone.has_rest
    taken(lone)
    assert not lone.has_rest


def test_what_was_taken_in_vain_is_a_rest_in_its_order(scene: Scene) -> None:
    lone = scene.pull(batch=3)
    scene.answers(1, 2, 3)
    assert lone.run(scene.helm, 105.0)
    assert len(lone.take_all()) == 3
    lone.put_back()
    assert (lone.inbox.count, lone.has_rest) == (3, True)
    first = lone.take_one()
    assert first is not None
    assert first.subject == "s.1"
    lone.put_back()
    lone.put_back()  # once is enough
    assert taken(lone) == ["s.1", "s.2", "s.0"]


def test_a_pull_that_is_given_up_is_left_once_with_what_was_taken(scene: Scene) -> None:
    lone = scene.pull(batch=2)
    scene.answers(1, 2)
    assert lone.run(scene.helm, 105.0)
    lone.take_all()
    lone.give_up()
    lone.settled = Gate()
    lone.give_up()  # nobody knows how far it came
    settled: Gate | None = lone.settled
    assert settled is None
    assert scene.pool.left == [lone]
    assert (lone.is_given_up, lone.is_cut) == (True, True)
    assert taken(lone) == ["s.1", "s.2"]


def test_a_lane_has_its_lone_pull_as_long_as_that_waits(scene: Scene) -> None:
    lone = scene.pull()
    scene.then.append(lambda: found.update(scene.pool.users))
    found: dict[Lane, object] = {}
    assert not lone.run(scene.helm, 105.0)
    assert found == scene.pool.users == {scene.lane: lone}


def test_an_heir_is_a_rest(scene: Scene) -> None:
    class Heir:
        error = None
        has_time = True
        is_unanswered = True
        is_settled = False

        def end(self) -> None:
            raise AssertionError("nobody ends it")

    lone = scene.pull()
    lone.heir = Heir()
    assert lone.has_rest


def test_columns_that_were_taken_in_vain_are_a_rest(scene: Scene) -> None:
    lone = scene.pull(batch=2, inbox=BatchInbox(courier()))
    scene.answers(1, 2)
    assert lone.run(scene.helm, 105.0)
    assert len(lone.take_batch() or []) == 2
    assert lone.take_batch() is None
    lone.put_back()
    assert not lone.has_rest
    scene.answers(1, 2)
    lone = scene.pull(batch=2, inbox=BatchInbox(courier()))
    assert lone.run(scene.helm, 105.0)
    lone.take_batch()
    lone.put_back()
    assert (lone.has_rest, len(lone.take_batch() or [])) == (True, 2)


def test_only_columns_are_taken_as_such(scene: Scene) -> None:
    with pytest.raises(TypeError):
        scene.pull().take_batch()


def test_without_a_free_lane_nothing_is_asked(scene: Scene) -> None:
    scene.pool.take(None)
    lone = scene.pull()
    assert not lone.run(scene.helm, 105.0)
    assert (lone.lane, lone.has_rest, scene.sent()) == (None, False, b"")
    assert lone.may_ask(scene.outbox)


def test_a_pull_may_be_sent_on_a_lane_that_was_made_for_it(scene: Scene) -> None:
    lane = scene.pool.take(None)
    assert lane is not None
    lone = scene.pull()
    assert not lone.run(scene.helm, 105.0)
    lone.ask(lane, scene.outbox)
    assert lone.lane is lane
    scene.answers(1)
    assert lone.wait(scene.helm, 105.0)
    assert taken(lone) == ["s.1"]


def test_there_is_nothing_to_wait_for_before_it_is_asked(scene: Scene) -> None:
    assert not scene.pull().wait(scene.helm, 105.0)
    assert scene.waits == []


def test_a_pull_that_needs_a_conversation_is_not_sent(scene: Scene) -> None:
    lone = scene.pull(is_alone=False)
    assert not lone.may_ask(scene.outbox)
    assert not lone.run(scene.helm, 105.0)
    assert (lone.lane, scene.sent()) == (None, b"")


def test_without_a_link_nothing_is_asked_and_no_lane_taken(scene: Scene) -> None:
    scene.outbox.detach()
    lone = scene.pull()
    assert not lone.run(scene.helm, 105.0)
    assert (lone.lane, scene.pool.free) == (None, [scene.lane])


def test_a_closed_connection_is_found_by_who_takes_over(scene: Scene) -> None:
    scene.outbox.refuse(lambda: ConnectionClosedError("closed"))
    assert not scene.pull().run(scene.helm, 105.0)


def test_a_status_leaves_the_lane_to_who_takes_over(scene: Scene) -> None:
    lone = scene.pull(batch=2)
    scene.answers(1)
    scene.then.append(lambda: scene.feed(status(7, "_INBOX.x.7.0", TIMEOUT)))
    assert not lone.run(scene.helm, 105.0)
    assert lone.lane is scene.lane
    assert [msg.status for msg in scene.lane.statuses] == [408]
    assert lone.hand_over() is scene.lane
    assert lone.hand_over() is None
    assert taken(lone) == ["s.1"]


def test_a_pull_ends_with_its_time(scene: Scene) -> None:
    lone = scene.pull()
    assert not lone.run(scene.helm, 105.0)
    assert (scene.time, lone.lane, lone.has_rest) == (105.0, scene.lane, True)


def test_silence_is_waited_out_no_longer_than_a_thread_has_patience(
    scene: Scene,
) -> None:
    assert not scene.pull(patience=2.0).run(scene.helm, 105.0)
    assert scene.time == 102.0


def test_a_lost_link_ends_the_wait(scene: Scene) -> None:
    lone = scene.pull()
    scene.then.append(lambda: scene.pool.renew("_INBOX.y"))
    assert not lone.run(scene.helm, 105.0)
    assert (scene.time, lone.lane) == (100.0, scene.lane)
    assert scene.pool.free == []


def test_a_pull_that_is_cut_ends_with_what_came(scene: Scene) -> None:
    lone = scene.pull(batch=2)
    scene.answers(1)
    scene.then.append(lone.cut)
    assert not lone.run(scene.helm, 105.0)
    assert (scene.time, lone.is_cut, taken(lone)) == (100.0, True, ["s.1"])


def test_a_pull_that_was_cut_before_is_not_sent(scene: Scene) -> None:
    lone = scene.pull()
    lone.cut()
    assert not lone.run(scene.helm, 105.0)
    assert (lone.lane, scene.sent()) == (None, b"")


def test_a_lane_that_comes_too_late_is_given_back(scene: Scene) -> None:
    lane = scene.pool.take(None)
    assert lane is not None
    lone = scene.pull()
    assert not lone.run(scene.helm, 105.0)
    lone.cut()
    lone.ask(lane, scene.outbox)
    assert (lone.has_rest, scene.pool.free, scene.sent()) == (False, [lane], b"")


def test_a_cut_ends_the_conversation_that_has_taken_over(scene: Scene) -> None:
    class Heir:
        error = None
        has_time = True
        is_unanswered = True
        is_settled = False
        ends = 0

        def end(self) -> None:
            self.ends += 1

    lone = scene.pull()
    lone.heir = heir = Heir()
    lone.cut()
    assert heir.ends == 1


def test_nothing_beyond_its_limit_is_kept(scene: Scene) -> None:
    lone = scene.pull(batch=1)
    scene.then.append(lambda: scene.feed(delivery(1).frame(7) + delivery(2).frame(7)))
    assert lone.run(scene.helm, 105.0)
    assert (lone.inbox.dropped, taken(lone)) == (1, ["s.1"])


@pytest.mark.parametrize("subject", ["", "a b", "a..b"])
def test_a_draft_has_a_subject_that_can_be_sent(subject: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Draft(
            subject,
            b"",
            courier(),
            batch=1,
            max_bytes=0,
            limit=1,
            patience=1.0,
        )


# One message --------------------------------------------------------------------------


def test_one_message_is_asked_for_waited_for_and_taken(scene: Scene) -> None:
    lone = scene.pull()
    scene.answers(1)
    msg = lone.run_for_one(scene.helm, 5.0)
    assert msg is not None
    assert msg.subject == "s.1"
    assert scene.sent() == b'PUB $JS.API.NEXT _INBOX.x.7.0 11\r\n{"batch":1}\r\n'
    assert (lone.asked_at, scene.waits) == (100.0, [105.0])
    assert not lone.has_rest
    assert (lone.lane, scene.pool.free, scene.pool.users) == (None, [scene.lane], {})


def test_one_message_that_was_taken_in_vain_is_for_the_next(scene: Scene) -> None:
    lone = scene.pull()
    scene.answers(1)
    assert lone.run_for_one(scene.helm, 5.0) is not None
    lone.give_up()
    assert scene.pool.left == [lone]
    assert taken(lone) == ["s.1"]


@pytest.mark.parametrize("what", ["a fetch", "a message"])
def test_what_is_late_for_others_comes_before_one_message(
    scene: Scene, what: str
) -> None:
    if what == "a fetch":
        scene.pool.left.append(scene.pull())
    else:
        scene.pool.late.append(Msg("s"))
    lone = scene.pull()
    assert lone.run_for_one(scene.helm, 5.0) is None
    assert (lone.asked_at, lone.lane, scene.sent()) == (100.0, None, b"")
    assert scene.pool.free == [scene.lane]


def test_without_a_free_lane_no_message_is_asked_for(scene: Scene) -> None:
    scene.pool.take(None)
    lone = scene.pull()
    assert lone.run_for_one(scene.helm, 5.0) is None
    assert (lone.lane, scene.sent()) == (None, b"")


def test_whatever_comes_instead_of_one_message_leaves_the_lane(scene: Scene) -> None:
    lone = scene.pull()
    scene.then.append(lambda: scene.feed(status(7, "_INBOX.x.7.0", TIMEOUT)))
    assert lone.run_for_one(scene.helm, 5.0) is None
    assert lone.lane is scene.lane
    assert [msg.status for msg in scene.lane.statuses] == [408]
