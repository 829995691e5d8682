"""Random lives of pull conversations against a model of the server.

Hypothesis prints the seed and the steps of a life that fails.

More examples: JSCLIENT_SIM_EXAMPLES=2000 JSCLIENT_SIM_STEPS=100.
"""

from __future__ import annotations

import itertools
import math
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from jsclient._engine.pull import MANY, Policy
from jsclient.jetstream_errors import (
    LostPullError,
    MessageSizeError,
    MissedHeartbeatError,
)

from .client import Client
from .server import TOO_LARGE, Consumer, Request, Waiting

EXAMPLES = int(os.environ.get("JSCLIENT_SIM_EXAMPLES", "250"))
STEPS = int(os.environ.get("JSCLIENT_SIM_STEPS", "50"))
# Statuses that a consume tells of, one warning for each.
TOLD = (400, 423, 499, 503)
ENDINGS = [
    (404, "No Messages"),
    (408, "Request Timeout"),
    (408, "Interest Expired"),
    (409, "Leadership Change"),
    (409, "Server Shutdown"),
    (423, "Nats-Wrong-Pin-Id"),
]
REFUSALS = [
    (408, "Requests Pending"),
    (409, "Exceeded MaxWaiting"),
    (409, "Exceeded MaxRequestBatch of 5"),
    (423, "Nats-Pin-Id mismatch"),
    (503, ""),
]
REMARKS = [
    (400, "Bad Request - Not a Overflow Priority consumer"),
    (499, "Nobody Knows"),
    (409, "Something New"),
]
MOODS = [*ENDINGS, *REFUSALS, *REMARKS[1:], TOO_LARGE]
SIZES = st.integers(0, 300)
INDEXES = st.integers(0, 20)


@st.composite
def consume_policies(draw: st.DrawFn) -> Policy:
    by_bytes = draw(st.booleans())
    # The smallest message has some 50 bytes, the largest some 400.
    limit = draw(st.integers(200, 3000) if by_bytes else st.integers(1, 20))
    threshold = draw(st.integers(0, limit - 1))
    expires = draw(st.sampled_from([1.0, 3.0, 10 / 3, 30.0]))
    return Policy(
        is_fetch=False,
        max_messages=MANY if by_bytes else limit,
        max_bytes=limit if by_bytes else 0,
        threshold_messages=0 if by_bytes else threshold,
        threshold_bytes=threshold if by_bytes else 0,
        expires=expires,
        heartbeat=expires / draw(st.sampled_from([2, 5])),
        stop_after=draw(st.sampled_from([0, 0, 1, 7, 30])),
        batch_limit=draw(st.sampled_from([0, 0, 3])) if by_bytes else 0,
        is_patient=draw(st.booleans()),
        awaits_ends=draw(st.booleans()),
    )


@st.composite
def fetch_policies(draw: st.DrawFn) -> Policy:
    by_bytes = draw(st.booleans())
    no_wait, no_wait_first = draw(
        st.sampled_from([(False, False), (False, True), (True, False)])
    )
    return Policy(
        is_fetch=True,
        max_messages=draw(st.integers(1, 20)),
        max_bytes=draw(st.integers(200, 2000)) if by_bytes else 0,
        heartbeat=0.0 if no_wait else draw(st.sampled_from([0.0, 0.5, 2.0])),
        no_wait=no_wait,
        no_wait_first=no_wait_first,
        expires_limit=draw(st.sampled_from([math.inf, math.inf, 0.3, 2.0])),
        batch_limit=draw(st.sampled_from([0, 3])) if by_bytes else 0,
    )


class PullModel(RuleBasedStateMachine):
    """The machine, the server and the user, each at a pace of their own."""

    @initialize(
        policy=consume_policies() | fetch_policies(), max_waiting=st.integers(1, 4)
    )
    def begin(self, policy: Policy, max_waiting: int) -> None:
        self.server = Consumer(max_waiting)
        self.client = Client(self.server)
        self.is_prompt = True  # the link: what is sent arrives at once
        self.is_eager = True  # the user: what arrives is taken at once
        self.is_steady = True  # the user: what has ended is begun anew
        self.start(policy)

    def start(self, policy: Policy) -> None:
        self.client.start(policy, 5.0 if policy.is_fetch else math.inf)
        self.go_on()

    def go_on(self) -> None:
        """What happens by itself after each step."""
        client = self.client
        if self.is_prompt:
            read_all(client, self.server)
        while self.is_eager and self.can_take():
            client.take()
            client.prepare()
            if self.is_prompt:
                read_all(client, self.server)

    @rule(is_prompt=st.booleans(), is_eager=st.booleans(), is_steady=st.booleans())
    def habits_change(self, is_prompt: bool, is_eager: bool, is_steady: bool) -> None:
        self.is_prompt, self.is_eager = is_prompt, is_eager
        self.is_steady = is_steady
        self.go_on()

    # The stream

    @rule(count=st.integers(1, 30), size=SIZES)
    def publish(self, count: int, size: int) -> None:
        for _ in range(count):
            self.server.publish(size)
        self.go_on()

    @rule(back=st.integers(-2, 2))
    @precondition(lambda self: self.server.pulls and not self.server.messages)
    def publish_what_fits_almost(self, back: int) -> None:
        """A message of exactly the bytes that a pull has left, or nearly."""
        server = self.server
        pull = server.pulls[0]
        if pull.has_bytes:
            bare = server.frame(pull, server.published + 1, 0).size
            server.publish(max(0, pull.bytes_left - bare + back))
        self.go_on()

    @rule()
    def redeliver(self) -> None:
        self.server.redeliver(self.arrived())
        self.go_on()

    def arrived(self) -> set[int]:
        """Messages that the user took, or that wait for the user."""
        client = self.client
        # A look into the inbox: what is taken out is put back in the same order.
        held = []
        while (msg := client.inbox.take()) is not None:
            held.append(msg)
        for msg in reversed(held):
            client.inbox.put_back(msg)
        return {*client.taken, *(int(msg.subject.split(".")[1]) for msg in held)}

    # The link

    @rule(count=st.integers(1, 10))
    def server_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.server.up))):
            self.server.read()
        self.go_on()

    @rule(is_busy=st.booleans())
    def server_is_busy(self, is_busy: bool) -> None:
        """What it delivers meanwhile it sends later."""
        self.server.is_busy = is_busy
        if not is_busy:
            self.server.flush()
        self.go_on()

    @rule(count=st.integers(1, 10))
    def client_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.server.down))):
            self.client.read()
        self.go_on()

    @rule()
    def all_read(self) -> None:
        read_all(self.client, self.server)

    @rule()
    @precondition(lambda self: self.server.is_linked)
    def cut(self) -> None:
        self.client.cut()

    @rule()
    @precondition(lambda self: not self.server.is_linked)
    def link(self) -> None:
        self.client.link()
        self.go_on()

    # The server's moods

    def one_of_the_pulls(self, index: int) -> Waiting:
        return self.server.pulls[index % len(self.server.pulls)]

    @rule(index=INDEXES)
    @precondition(lambda self: self.server.pulls)
    def lose_a_pull(self, index: int) -> None:
        self.server.lose(self.one_of_the_pulls(index))
        self.go_on()

    @rule(index=INDEXES)
    @precondition(lambda self: self.server.pulls)
    def fall_mute_and_speak(self, index: int) -> None:
        pull = self.one_of_the_pulls(index)
        pull.is_mute = not pull.is_mute
        self.server.serve()
        self.go_on()

    @rule(index=INDEXES, status=st.sampled_from(ENDINGS))
    @precondition(lambda self: self.server.pulls)
    def end_a_pull(self, index: int, status: tuple[int, str]) -> None:
        self.server.end(self.one_of_the_pulls(index), status)
        self.go_on()

    @rule(index=INDEXES, status=st.sampled_from(REMARKS))
    @precondition(lambda self: self.server.pulls)
    def make_a_remark(self, index: int, status: tuple[int, str]) -> None:
        """A status whose meaning nobody knows; the pull lives on."""
        self.server.send(self.one_of_the_pulls(index), status)
        self.go_on()

    @rule(index=INDEXES, status=st.sampled_from(ENDINGS + REFUSALS))
    @precondition(lambda self: self.server.ended and self.server.is_linked)
    def repeat_a_status(self, index: int, status: tuple[int, str]) -> None:
        """A status of a pull that ended long ago."""
        ended = self.server.ended
        self.server.send(ended[index % len(ended)], status)
        self.go_on()

    @rule(status=st.sampled_from(REFUSALS))
    def refuse(self, status: tuple[int, str]) -> None:
        self.server.refusals.append(status)
        self.go_on()

    @rule(status=st.none() | st.sampled_from(MOODS))
    def change_the_mood(self, status: tuple[int, str] | None) -> None:
        self.server.mood = status
        self.go_on()

    @rule()
    def delete_the_consumer(self) -> None:
        self.server.delete()
        self.go_on()

    # The user and the clock

    @rule(count=st.integers(1, 8))
    @precondition(lambda self: not self.client.policy.is_fetch)
    def user_takes(self, count: int) -> None:
        for _ in range(count):
            self.client.take()
        self.go_on()

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.3, 1.0, 5.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        client, server = self.client, self.server
        end = client.now + seconds
        while (due := min(client.machine.deadline, server.next_event())) <= end:
            client.now = max(client.now, due)
            server.tick(client.now)
            self.go_on()
            if client.machine.deadline <= client.now:
                client.tick()
                self.go_on()
        client.now = end
        server.tick(end)
        if seconds >= 1.0:
            self.troubles_end()
        self.go_on()
        if client.machine.is_ended and self.is_steady:
            self.start_again(client.policy)

    def troubles_end(self) -> None:
        server = self.server
        server.is_deleted = False
        server.mood = None
        server.refusals.clear()
        if not server.is_linked:
            self.client.link()

    @rule(timeout=st.sampled_from([0.01, 5.0, 100.0]))
    @precondition(lambda self: not self.client.policy.is_fetch)
    def drain(self, timeout: float) -> None:
        """It ends by itself; where that is wanted the server has ended all pulls."""
        client, server = self.client, self.server
        end, asked, told = client.now + timeout, client.pulls, len(client.warnings)
        was_parting = bool(client.parting)
        client.sync()
        given_up, wasted = client.pings, server.wasted
        client.drain(timeout)
        self.all_read()
        while not client.machine.is_ended:
            client.now = min(client.machine.deadline, server.next_event())
            assert client.now <= end, "it does not end"
            server.tick(client.now)
            self.all_read()
            if client.machine.deadline <= client.now:
                client.tick()
                self.all_read()
        assert client.pulls == asked
        machine = client.machine
        is_over = 0 < client.policy.stop_after <= client.inbox.arrived
        has_reason = is_over or machine.error or len(client.warnings) > told
        has_reason = has_reason or was_parting
        if client.policy.awaits_ends and not has_reason and not machine.is_cut_short:
            assert client.pings == given_up
            assert server.wasted == wasted

    @rule(policy=consume_policies() | fetch_policies())
    @precondition(lambda self: self.client.machine.is_ended)
    def start_again(self, policy: Policy) -> None:
        self.finish()
        self.start(policy)

    def finish(self) -> None:
        """What came last is the user's, and late frames find nobody."""
        self.all_read()
        client = self.client
        while client.inbox.count:
            client.take()
        for lane, _ in client.parting.values():
            client.put_away(lane)
        client.parting.clear()

    # What always holds

    @invariant()
    def the_ledger_agrees_with_the_server(self) -> None:
        """Of an open pull exactly that is owed which the server has or sent."""
        client, server = self.client, self.server
        waiting = {pull.reply: pull for pull in server.pulls}
        for number, lane in client.open.items():
            pull = waiting.get(client.replies[number])
            if pull is not None:
                frames = [f for f in server.under_way if f.reply == pull.reply]
                under_way = [f for f in frames if f.message is not None]
                assert lane.batch - lane.messages == pull.left + len(under_way)
                if pull.has_bytes:
                    on_wire = sum(frame.size for frame in under_way)
                    assert lane.max_bytes - lane.bytes == pull.bytes_left + on_wire

    @invariant()
    def a_pull_that_has_ended_is_closed_when_its_last_frame_came(self) -> None:
        client, server = self.client, self.server
        alive = {pull.reply for pull in server.pulls}
        alive |= {what.reply for what in server.up if isinstance(what, Request)}
        alive |= {frame.reply for frame in server.under_way}
        for number, lane in client.open.items():
            # One that brought all is seen to be over when more is asked for.
            has_all = lane.is_spent and client.inbox.threshold >= 0
            assert has_all or client.replies[number] in alive | server.lost

    @invariant()
    def owed_is_what_pulls_may_bring(self) -> None:
        machine, inbox = self.client.machine, self.client.inbox
        assert set(machine.open) == set(self.client.open)
        assert inbox.owed >= 0
        assert inbox.owed_bytes >= 0
        if not machine.open and not (self.client.parting and not machine.is_ended):
            assert (inbox.owed, inbox.owed_bytes) == (0, 0)
            assert (machine.owed_messages, machine.owed_bytes) == (0, 0)

    @invariant()
    def no_message_comes_twice(self) -> None:
        taken = self.client.taken
        assert len(taken) == len(set(taken))

    @invariant()
    def nobody_gets_more_than_was_wanted(self) -> None:
        policy, inbox = self.client.policy, self.client.inbox
        if policy.stop_after:
            assert inbox.arrived <= policy.stop_after
        if policy.is_fetch:
            assert inbox.arrived <= policy.max_messages
            if policy.counts_bytes:
                assert inbox.bytes <= policy.max_bytes

    @invariant()
    def never_more_than_the_limit_is_asked_or_held(self) -> None:
        policy, inbox = self.client.policy, self.client.inbox
        if policy.counts_bytes:
            assert inbox.owed_bytes + inbox.bytes <= policy.max_bytes
        else:
            assert inbox.owed + inbox.count <= policy.max_messages

    @invariant()
    def nothing_that_came_is_dropped(self) -> None:
        assert self.client.inbox.dropped == 0

    @invariant()
    def the_deadline_makes_sense(self) -> None:
        client = self.client
        if client.machine.is_ended:
            assert client.machine.deadline == math.inf
            assert not client.machine.open
        elif client.policy.is_fetch:
            assert client.machine.deadline <= client.finish_at
        assert client.ends == client.machine.is_ended

    @invariant()
    def each_trouble_is_told_once(self) -> None:
        client = self.client
        if client.policy.is_fetch:
            assert not client.warnings
            return
        codes = [error.code for error in client.warnings]
        for code in TOLD:
            assert codes.count(code) == client.statuses[code]
        own = (MissedHeartbeatError, LostPullError)
        for error in client.warnings:
            assert isinstance(error, own) == (error.code == 0)
        sizes = [e for e in client.warnings if isinstance(e, MessageSizeError)]
        assert len(sizes) <= 1 + client.inbox.arrived

    # What happens in the end

    def teardown(self) -> None:
        """When all troubles are over, everything arrives, and soon."""
        if not hasattr(self, "client"):
            return
        client, server = self.client, self.server
        self.troubles_end()
        self.is_prompt = self.is_eager = True
        server.is_busy = False
        server.max_waiting = 512
        for pull in server.pulls:
            pull.is_mute = False
        self.leave_out_what_cannot_fit()
        began = client.now
        while self.missing():
            assert client.now - began < 400.0, "it has stalled"
            self.all_read()
            client.prepare()
            while self.can_take():
                client.take()
            client.prepare()
            self.all_read()
            server.redeliver(self.arrived())
            if client.machine.is_ended:
                self.start_again(client.policy)
            elif not (server.up or server.under_way or self.can_take()):
                due = min(client.machine.deadline, server.next_event())
                assert due < math.inf, "nobody will ever do anything"
                self.time_passes(max(due - client.now, 0.0))
        self.each_trouble_is_told_once()

    def can_take(self) -> bool:
        """Whether the user has something to take before a fetch ends."""
        return self.client.inbox.count > 0 and not self.client.policy.is_fetch

    def leave_out_what_cannot_fit(self) -> None:
        """Somebody removes the messages that are larger than the limit of bytes."""
        limit = self.client.policy.max_bytes
        if limit:
            for sizes in (self.server.messages, self.server.sent):
                for number, size in list(sizes.items()):
                    if size + 100 > limit:
                        del sizes[number]
                        self.client.taken.append(number)

    def missing(self) -> set[int]:
        return set(range(1, self.server.published + 1)) - self.arrived()


PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    print_blob=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPullModel = PullModel.TestCase
TestPullModel.settings = PROFILE


def read_all(client: Client, server: Consumer) -> None:
    """Whatever is under way arrives, and what is answered to it."""
    pulls = client.pulls
    while server.up or server.under_way:
        while server.up:
            server.read()
        server.flush()
        while server.down:
            client.read()
        assert client.pulls - pulls < 100, "they run in circles"


@settings(PROFILE, max_examples=2 * EXAMPLES)
@given(
    policy=consume_policies(),
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=60),
    pace=st.lists(st.integers(1, 9), min_size=1),
)
def test_with_a_good_server_nothing_is_told_and_nothing_waits_for_time(
    policy: Policy, sizes: list[int], pace: list[int]
) -> None:
    server = Consumer(max_waiting=512)
    client = Client(server)
    for size in sizes:
        server.publish(size)
    client.start(policy)
    for count in itertools.cycle(pace):
        if client.machine.is_ended:
            client.start(policy)
        client.prepare()
        read_all(client, server)
        assert client.inbox.count or client.machine.is_ended
        for _ in range(count):
            client.take()
        if client.machine.is_ended:
            while client.inbox.count:
                client.take()
        if len(client.taken) == len(sizes):
            break
    assert client.taken == list(range(1, len(sizes) + 1))
    # And then nothing happens for a while.
    while not client.machine.is_ended and client.now < 100.0:
        client.prepare()
        read_all(client, server)
        client.now = min(client.machine.deadline, server.next_event(), 100.0)
        server.tick(client.now)
        read_all(client, server)
        if client.machine.deadline <= client.now:
            client.tick()
    assert client.warnings == []
