"""The pull machine with real lanes and a real parser, on the model's link and clock.

It does what the connection does with a conversation, without a loop: frames are parsed
one by one, notices are dealt with at once, and a lane is used again only after a
certain end.
"""

from __future__ import annotations

import math
from collections import Counter

from jsclient._core import Courier, Lane, Outbox, Parser, PullInbox, Routes
from jsclient._engine.pull import Ask, Close, Conversation, Policy, Signal, Warn
from jsclient.jetstream_errors import PullError

from .server import Consumer, Ping, Request, Unsubscribe


class Port:
    """What acks would be sent through."""


class Client:
    """One consumer's lanes, and one conversation after the other."""

    def __init__(self, server: Consumer) -> None:
        self.server = server
        self.now = 0.0
        self.taken: list[int] = []  # by the user, of all conversations
        self.routes = Routes()
        self.free: list[Lane] = []
        self.users: dict[Lane, bool] = {}  # lanes that are subscribed and not free
        self.epoch = 0
        self.sids = 0
        self.pulls = 0
        self.pings = 0
        self.pongs = 0
        self.parser = Parser(self.routes, 1 << 20)

    def start(self, policy: Policy, timeout: float = math.inf) -> None:
        """A new conversation; what the last one held is given up."""
        self.policy = policy
        self.machine = Conversation(policy)
        self.inbox = PullInbox(Courier(Port(), Outbox(1 << 20, 0)))  # type: ignore[arg-type]
        if most := policy.max_messages if policy.is_fetch else policy.stop_after:
            self.inbox.set_limit(most)
        if not policy.is_fetch:
            self.inbox.counts_bytes = policy.counts_bytes
        self.open: dict[int, Lane] = {}
        self.asks: dict[int, Ask] = {}
        self.replies: dict[int, str] = {}
        self.parting: dict[int, tuple[Lane, int]] = {}
        self.heard = 0
        self.warnings: list[PullError] = []
        self.ends = 0
        self.statuses: Counter[int] = Counter()  # that open pulls got
        self.finish_at = self.now + timeout
        self.machine.started(
            self.now, is_linked=self.server.is_linked, finish_at=self.finish_at
        )
        self.act()

    # What the connection tells

    def read(self) -> None:
        """Takes the oldest frame of the link."""
        frame = self.server.down.popleft()
        if frame.pong:
            self.pongs = frame.pong
            self.sweep()
            return
        self.parser.feed(frame.wire)
        while self.parser.notices:
            lane = self.parser.notices[0]
            assert isinstance(lane, Lane)
            if lane in self.users:
                self.noticed(lane)
            del self.parser.notices[0]

    def noticed(self, lane: Lane) -> None:
        self.sync()
        pull = next((pull for pull, known in self.open.items() if known is lane), None)
        while lane.statuses:
            msg = lane.statuses.popleft()
            if pull is not None and pull in self.machine.open:
                self.statuses[msg.status or 0] += 1
                self.machine.status(
                    pull, msg.status or 0, msg.description or "", self.now
                )
        self.machine.counted(self.now)
        self.act()

    def tick(self) -> None:
        self.sync()
        self.machine.tick(self.now)
        assert self.machine.deadline > self.now
        self.act()

    def cut(self) -> None:
        self.server.cut()
        for lane in [*self.free, *self.users]:
            self.routes.remove(lane.sid)
        self.free.clear()
        self.users.clear()
        self.epoch += 1
        self.parser = Parser(self.routes, 1 << 20)
        self.sync()
        for lane, _ in self.parting.values():
            lane.retire()
        self.parting.clear()
        self.machine.unlinked(self.now)
        self.act()

    def link(self) -> None:
        self.server.is_linked = True
        self.sync()
        self.machine.linked(self.now)
        self.act()

    # What the user does

    def take(self) -> None:
        """Takes one message, if there is one."""
        self.prepare()
        msg = self.inbox.take()
        if msg is not None:
            self.taken.append(int(msg.subject.split(".")[1]))

    def prepare(self) -> None:
        """Asks for more if that is due, as whoever waits for a message does."""
        if self.inbox.is_due:
            self.inbox.is_due = False
            self.sync()
            self.machine.counted(self.now)
            self.act()

    def stop(self) -> None:
        self.machine.stopped()
        self.act()

    def drain(self, timeout: float) -> None:
        self.sync()
        self.machine.drained(self.now, self.now + timeout)
        self.act()

    # What the machine wants

    def sync(self) -> None:
        for pull, lane in self.open.items():
            self.machine.brought(pull, lane.messages, lane.bytes)
        for pull, (lane, _) in self.parting.items():
            self.machine.brought(pull, lane.messages, lane.bytes)
        inbox = self.inbox
        self.machine.holds(inbox.count, inbox.bytes, inbox.arrived)
        if inbox.heard != self.heard:
            self.heard = inbox.heard
            self.machine.heard(self.now)

    def act(self) -> None:
        for output in self.machine.take_output():
            match output:
                case Ask():
                    self.ask(output)
                case Close(pull, is_certain):
                    self.close(pull, self.open.pop(pull), is_certain)
                case Warn(error):
                    self.warnings.append(error)
                case Signal.ENDED:
                    self.ends += 1
                    for lane, _ in self.parting.values():
                        lane.close()
                    self.inbox.end(self.machine.error)
                case Signal():
                    pass
        self.inbox.threshold = self.machine.refill_at
        assert self.inbox.owed == self.machine.owed_messages
        assert self.inbox.owed_bytes == self.machine.owed_bytes

    def ask(self, ask: Ask) -> None:
        assert self.server.is_linked
        assert not self.machine.is_ended
        self.check_room(ask)
        if self.free:
            lane = self.free.pop()
        else:
            lane = Lane()
            self.sids += 1
            lane.assign(self.sids, self.sids)
            self.routes.add(self.sids, lane)
        self.users[lane] = True
        self.pulls += 1
        reply = f"_INBOX.{self.epoch}.{lane.number}.{self.pulls}"
        lane.open(self.inbox, reply, ask.batch, ask.max_bytes)
        self.open[ask.pull] = lane
        self.asks[ask.pull] = ask
        self.replies[ask.pull] = reply
        self.server.up.append(Request(lane.sid, reply, ask.body({})))

    def check_room(self, ask: Ask) -> None:
        """No pull asks for more than there is room for."""
        policy, inbox, machine = self.policy, self.inbox, self.machine
        assert ask.batch > 0
        assert not policy.batch_limit or ask.batch <= policy.batch_limit
        if policy.counts_bytes:
            assert ask.max_bytes > 0
            assert machine.owed_bytes + inbox.bytes <= policy.max_bytes
        else:
            assert ask.max_bytes == 0
            assert machine.owed_messages + inbox.count <= policy.max_messages
        if policy.stop_after:
            assert machine.owed_messages + inbox.arrived <= policy.stop_after
        if policy.is_fetch:
            assert machine.owed_messages + inbox.arrived <= policy.max_messages

    def close(self, pull: int, lane: Lane, is_certain: bool) -> None:
        if lane not in self.users:  # its link is gone
            lane.retire()
        elif is_certain:
            lane.retire()
            del self.users[lane]
            self.free.append(lane)
        else:
            self.pings += 1
            self.parting[pull] = (lane, self.pings)
            self.server.up.append(Unsubscribe(lane.sid))
            self.server.up.append(Ping(self.pings))

    def sweep(self) -> None:
        """Lanes behind a fence get nothing more."""
        for pull, (lane, ping) in list(self.parting.items()):
            if ping <= self.pongs:
                self.sync()
                del self.parting[pull]
                self.put_away(lane)
                self.machine.parted(pull, self.now)
                self.act()

    def put_away(self, lane: Lane) -> None:
        lane.retire()
        self.users.pop(lane, None)
        self.routes.remove(lane.sid)
