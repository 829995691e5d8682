"""A program that fails every single allocation of some work of the core, one by one.

It runs in a process of its own, because a mistake here is a crash. Each piece of work
is done again and again, with the n-th allocation failing (and, a second time, every one
from the n-th on) for n = 0, 1, 2 … until nothing fails. Only MemoryError may come of
it, and the objects must be in order afterwards.
"""

from __future__ import annotations

import importlib
import math
import sys
import threading
import time
from array import array
from collections.abc import Callable
from socket import socketpair
from typing import Any, NamedTuple

from jsclient._core import (
    Awaited,
    Batch,
    BatchInbox,
    Column,
    Gate,
    Headers,
    Helm,
    Inbox,
    Link,
    Msg,
    Offsets,
    OrderedInbox,
    Outbox,
    Pledge,
    Pledges,
    PullInbox,
    Replies,
    Rows,
    Seen,
    Window,
    encode_headers,
    live_objects,
    rebuild_msg,
)
from jsclient.ack_future import AckFuture
from tests.harness.compiled import Rig, metadata_of, parts, take_all
from tests.harness.deliveries import PushRig, flow_control, heartbeat, status
from tests.harness.lanes import LaneRig, courier, delivery

testcapi: Any = importlib.import_module("_testcapi")  # it has no stub
BLOCK = b"NATS/1.0 100 Idle\r\nKey-%d: value\r\n\r\n"
ACK = "$JS.ACK.hub.hash.STREAM%d.CONSUMER%d.1.2.3.4.5"
GLUE = b"MSG glue 1 4\r\nnext\r\n"


class Work(NamedTuple):
    """Something to do while memory fails, and what must hold afterwards."""

    run: Callable[[], object]
    check: Callable[[bool], None]  # whether it was done to its end


def fresh_parser_works() -> None:
    rig = Rig()
    assert rig.feed(GLUE * 3)
    assert rig.inboxes[1].count == 3


def feeding_small_frames(n: int) -> Work:
    rig = Rig()
    block = BLOCK % n
    wire = b"INFO {}\r\nPING\r\nMSG s%d 1 2\r\nhi\r\n" % n
    wire += b"HMSG s%d 1 r %d %d\r\n" % (n, len(block), len(block) + 2) + block
    wire += b"ab\r\n-ERR 'x'\r\nMSG unknown 7 1\r\nx\r\nPONG\r\n"
    wire += b"".join(
        b"MSG s 1 %d\r\n%b\r\n" % (size, b"x" * size) for size in range(20)
    )
    feed = rig.parser.feed

    def check(done: bool) -> None:
        # The bytes are in the parser's buffer: the next ones wake it to go on.
        feed(GLUE)
        got = [parts(msg) for msg in take_all(rig.inboxes[1])]
        name = b"s%d" % n
        assert got[:2] == [(name, None, None, b"hi"), (name, b"r", block, b"ab")]
        assert [len(data) for *_, data in got[2:]] == [*range(20), 4]
        assert rig.parser.control == [("INFO", b"{}"), ("ERR", b"'x'")]
        assert (rig.parser.pings, rig.parser.pongs) == (1, 1)
        assert (rig.parser.messages, rig.parser.unrouted) == (24, 1)
        assert rig.inboxes[1].arrived == 23

    return Work(lambda: feed(wire), check)


def feeding_a_large_frame(n: int) -> Work:
    rig = Rig()
    block, payload = BLOCK % n, b"x" * 100_000
    size = len(block) + len(payload)
    line = b"HMSG s%d 1 r %d %d\r\n" % (n, len(block), size)
    rest = block + payload + b"\r\n"
    feed = rig.parser.feed
    unfed = [rest]

    def run() -> None:
        feed(line)
        feed(unfed.pop())

    def check(done: bool) -> None:
        # What was fed is in the parser, also when memory failed on the way.
        for wire in (*unfed, GLUE):
            feed(wire)
        got = [parts(msg) for msg in take_all(rig.inboxes[1])]
        large = (b"s%d" % n, b"r", block, payload)
        assert got == [large, (b"glue", None, None, b"next")]
        assert rig.parser.payload_bytes == size + 4

    return Work(run, check)


def publishing(n: int) -> Work:
    outbox = Outbox(1 << 20, 1 << 20)
    publish, data = outbox.publish, b"x" * 10_000
    headers, subject, reply = {f"K{n}": "v"}, f"subject.{n}", f"reply.\udcff.{n}"
    size = len(data) + len(encode_headers(headers) or b"")

    def check(done: bool) -> None:
        assert (outbox.frames, outbox.messages) == (int(done), int(done))
        publish(subject, data, reply, headers)
        frame = outbox.unsent()
        assert frame.count(b"HPUB ") == outbox.frames == 1 + done
        assert frame.count(b" %d\r\nNATS/1.0\r\n" % size) == outbox.frames
        assert frame.endswith(data + b"\r\n")

    return Work(lambda: publish(subject, data, reply, headers), check)


def decoding(n: int) -> Work:
    msg = rebuild_msg(b"s%d" % n, (ACK % (n, n)).encode(), BLOCK % n, b"x")

    def run() -> None:
        _ = msg.subject, msg.reply, msg.headers, msg.metadata, msg.description

    def check(done: bool) -> None:
        assert (msg.subject, msg.reply) == (f"s{n}", ACK % (n, n))
        assert msg.headers == Headers(
            {f"Key-{n}": "value"}, status=100, description="Idle"
        )
        assert msg.metadata.stream == f"STREAM{n}"

    return Work(run, check)


class Sleeper:
    """A thread that is asleep, waiting for something, from the first moment on."""

    def __init__(self, what: Awaited) -> None:
        helm = Helm(lambda what, deadline: None, time.monotonic, Outbox(1, 1))
        self._thread = threading.Thread(target=helm.wait, args=(what, math.inf))
        self._thread.start()
        while not helm.is_wanted:
            time.sleep(0.001)

    def join(self) -> None:
        """It was woken."""
        self._thread.join(60.0)
        assert not self._thread.is_alive()


def waiting(n: int) -> Work:
    helm = Helm(lambda what, deadline: None, time.monotonic, Outbox(1000, 1000))
    gate = Gate()

    def check(done: bool) -> None:
        assert not helm.is_wanted
        gate.open()

    return Work(lambda: helm.wait(gate, 0.0), check)


def asking(n: int) -> Work:
    replies = Replies(f"_INBOX.{n}.")

    def run() -> None:
        replies.open("subject")

    return Work(run, lambda done: None)


def answering(n: int) -> Work:
    replies = Replies(f"_INBOX.{n}.")
    rig = Rig()
    rig.routes.add(1, replies)
    reply = replies.open("subject")
    # With one request waiting, a server may have rewritten the subject.
    to = reply.inbox.encode() if n % 2 else b"rewritten"
    wire = b"MSG %b 1 2\r\nhi\r\n" % to
    sleeper = Sleeper(reply)

    def check(done: bool) -> None:
        rig.parser.feed(b"PING\r\n")
        assert reply.msg is not None
        assert (len(replies), replies.unclaimed) == (0, 0)
        sleeper.join()

    return Work(lambda: rig.parser.feed(wire), check)


def feeding_a_window(n: int) -> Work:
    rig, outbox = Rig(), Outbox(1 << 20, 1 << 20)
    near, far = socketpair()
    outbox.attach(Link(near.fileno()), b"")
    window = Window(f"W{n}.", outbox, 64, True)
    rig.routes.add(1, window)
    source = iter([(f"s.{n}.{number}", b"x" * 999) for number in range(64)])
    acks = b"".join(
        b'MSG W%d.%d 1 22\r\n{"stream":"S","seq":7}\r\n' % (n, number)
        for number in range(63)
    )
    acks += b"MSG W%d.63 1 3\r\nodd\r\n" % n
    taken: list[Any] = []

    def run() -> None:
        window.feed(source, 60.0)
        rig.parser.feed(acks)
        taken.extend(window.take())
        taken.append(window.take_odd())
        window.withdraw()  # frames that wait hold their window, and it the outbox

    def check(done: bool) -> None:
        near.close()
        far.close()
        # A message for which there was no memory has that as its outcome.
        assert not done or len(taken) == 64 or taken[-1][0] == "failed"
        assert window.outstanding <= len(window) <= 64
        window.fail_all(ValueError("over"))
        assert window.outstanding == 0
        while window.take() or window.take_odd():
            pass
        assert len(window) == 0
        outbox.abandon(RuntimeError)

    return Work(run, check)


def pledging(n: int) -> Work:
    rig, outbox = Rig(), Outbox(1 << 20, 1 << 20)
    near, far = socketpair()
    outbox.attach(Link(near.fileno()), b"")
    acks = b"".join(
        b'MSG P%d.%d 1 22\r\n{"stream":"S","seq":7}\r\n' % (n, number)
        for number in range(7)
    )
    acks += b"MSG P%d.7 1 3\r\nodd\r\n" % n
    made: list[Pledges[Pledge]] = []
    owner: Any = None  # nobody waits

    def attend(has_unsent: bool) -> None:
        pass

    def run() -> None:
        window = Pledges(f"P{n}.", outbox, 8, Pledge, owner, attend, timeout=60.0)
        made.append(window)
        rig.routes.add(1, window)
        for _ in range(8):
            window.launch(f"s.{n}", b"x")
        rig.parser.feed(acks)
        window.withdraw()  # frames that wait hold their window, and it the outbox

    def check(done: bool) -> None:
        near.close()
        far.close()
        for window in made:
            assert not done or window.pending == 1
            window.fail_all(ValueError("over"))
            assert window.outstanding == 0
            while (odd := window.odd) is not None:
                window.put_away(odd[0])
            assert window.pending == 0
        outbox.abandon(RuntimeError)

    return Work(run, check)


def publishing_rows(n: int) -> Work:
    outbox = Outbox(1 << 20, 1 << 20)
    near, far = socketpair()
    outbox.attach(Link(near.fileno()), b"")
    window = Window(f"W{n}.", outbox, 64)
    count = 40
    places = array("i", range(0, 10 * count + 1, 10))
    data = b"".join(b"%010d" % number for number in range(count))

    def run() -> None:
        seen = Seen()
        rows = Rows(count, Column(Offsets(places, count), data), f"s.{n}")
        rows.identify(f"id-{n}-", bytes(16), seen)
        window.fill(rows, frozenset({b"none"}))
        assert len(seen) == count
        window.withdraw()
        # No generator: CPython 3.13 breaks when there is no memory for one.
        for outcome in window.sweep():
            assert outcome[2] in ("unsent", "lost")

    def check(done: bool) -> None:
        near.close()
        far.close()
        assert window.outstanding <= len(window) <= count
        outbox.abandon(RuntimeError)

    return Work(run, check)


def acknowledging_a_window(n: int) -> Work:
    rig, outbox = Rig(), Outbox(1 << 20, 1 << 20)
    near, far = socketpair()
    outbox.attach(Link(near.fileno()), b"")
    window = Window(f"W{n}.", outbox, 64, True)
    rig.routes.add(1, window)
    window.feed(iter([("s", b""), ("s", b"")]), 60.0)
    outbox.send()
    window.await_some(True)
    sleeper = Sleeper(window)
    wire = b'MSG W%d.0 1 22\r\n{"stream":"S","seq":7}\r\n' % n
    wire += b"MSG W%d.1 1 3\r\nodd\r\n" % n

    def check(done: bool) -> None:
        rig.parser.feed(b"PING\r\n")
        assert window.outstanding == 0
        sleeper.join()
        assert [ack.seq for ack in window.take()] == [7]
        odd = window.take_odd()
        assert odd is not None
        assert (odd[0], window.unclaimed) == ("answered", 0)
        near.close()
        far.close()

    return Work(lambda: rig.parser.feed(wire), check)


class Promises:
    """A window of pledges, with some of them on their way."""

    def __init__(self, n: int, count: int = 0) -> None:
        self.rig, self.outbox = Rig(), Outbox(1 << 20, 1 << 20)
        self.near, self.far = socketpair()
        self.outbox.attach(Link(self.near.fileno()), b"")
        # Who is the owner does not matter here, nor who attends to what is unsent.
        owner: Any = None
        self.prefix = f"P{n}."
        self.window = Pledges(
            self.prefix,
            self.outbox,
            64,
            AckFuture,
            owner,
            lambda is_alert: None,
            timeout=60.0,
            retries=2,
        )
        self.rig.routes.add(1, self.window)
        self.futures = [self.launch() for _ in range(count)]
        self.outbox.send()

    def launch(self) -> AckFuture:
        future = self.window.launch("s", b"x" * 99)
        assert future is not None
        return future

    def answer(self, number: int, body: bytes) -> bytes:
        head = f"MSG {self.prefix}{number} 1 {len(body)}\r\n"
        return head.encode() + body + b"\r\n"

    def odd_ends(self) -> list[str]:
        """The outcomes that somebody has to look at."""
        ends: list[str] = []
        while (odd := self.window.odd) is not None:
            ends.append(odd[1])
            self.window.put_away(odd[0])
        return ends

    def close(self) -> None:
        self.window.fail_all(ValueError("over"))
        self.odd_ends()
        assert self.window.pending == 0
        self.outbox.abandon(RuntimeError)
        self.near.close()
        self.far.close()


def promising(n: int) -> Work:
    made = Promises(n)
    subject, data = f"s.{n}", b"x" * 9999

    def run() -> None:
        assert made.window.launch(subject, data, b"NATS/1.0\r\n\r\n") is not None

    def check(done: bool) -> None:
        # It may be on its way, and only who attends to that fail.
        assert done <= made.window.pending <= 1
        assert made.outbox.messages == made.window.pending
        made.launch()
        made.close()

    return Work(run, check)


def keeping_promises(n: int) -> Work:
    made = Promises(n, 2)
    for future in made.futures:
        future.is_observed = True
    sleepers = [Sleeper(future) for future in made.futures]
    wire = made.answer(0, b'{"stream":"S","seq":7}')
    wire += made.answer(1, b'{"stream":"S","seq":8}')

    def check(done: bool) -> None:
        made.rig.parser.feed(b"PING\r\n")
        assert [future.ack.seq for future in made.futures if future.ack] == [7, 8]
        assert list(made.window.observed) == made.futures
        assert made.rig.parser.notices == [made.window]
        for sleeper in sleepers:
            sleeper.join()
        assert (made.window.pending, made.window.unclaimed) == (0, 0)
        made.close()

    return Work(lambda: made.rig.parser.feed(wire), check)


def opening_the_gate_of_promises(n: int) -> Work:
    made = Promises(n, 2)
    gate = made.window.await_pending(0)
    wire = made.answer(0, b'{"stream":"S","seq":7}')
    wire += made.answer(1, b'{"stream":"S","seq":8}')

    def check(done: bool) -> None:
        made.rig.parser.feed(b"PING\r\n")
        assert made.rig.parser.notices == [made.window]
        made.window.open_gates()
        assert gate.is_open
        made.close()

    return Work(lambda: made.rig.parser.feed(wire), check)


def breaking_promises(n: int) -> Work:
    made = Promises(n, 2)
    wire = made.answer(0, b"odd") + made.answer(1, b"odder")

    def check(done: bool) -> None:
        made.rig.parser.feed(b"PING\r\n")
        assert made.rig.parser.notices == [made.window]
        assert made.window.outstanding == made.window.unclaimed == 0
        assert made.odd_ends() == ["answered", "answered"]
        made.close()

    return Work(lambda: made.rig.parser.feed(wire), check)


def promising_again(n: int) -> Work:
    made = Promises(n, 1)
    (future,) = made.futures
    made.rig.parser.feed(made.answer(0, b"odd"))

    def run() -> None:
        made.window.rest(future, 1.0)
        made.window.send_again(future, 2.0)
        made.outbox.send()  # frames that wait hold their window, and it the outbox

    def check(done: bool) -> None:
        assert made.window.pending == 1
        assert not future.is_settled
        if made.window.odd is not None:
            made.window.rest(future, 1.0)
        assert made.window.send_again(future, 2.0) is (future not in made.window.again)
        made.rig.parser.feed(made.answer(1, b'{"stream":"S","seq":7}'))
        assert future.ack is not None
        made.close()

    return Work(run, check)


def failing_promises(n: int) -> Work:
    made = Promises(n, 3)
    made.rig.parser.feed(made.answer(0, b"odd"))
    made.window.rest(made.futures[0], 1.0)
    error = ValueError("over")

    def check(done: bool) -> None:
        made.window.fail_all(error)
        assert (made.window.outstanding, len(made.window.again)) == (0, 0)
        assert sorted(made.odd_ends()) == ["lost", "lost", "unsent"]
        made.close()

    return Work(lambda: made.window.fail_all(error), check)


def making(n: int) -> Work:
    def run() -> None:
        Rig()
        Outbox(1000, 1000)
        Msg(f"s{n}", b"x", reply="r", headers={"K": "v"})
        metadata_of((ACK % (n, n)).encode())

    return Work(run, lambda done: None)


def putting_back(n: int) -> Work:
    rig = Rig()
    inbox: Inbox = rig.inboxes[1]
    rig.feed(GLUE * 17)
    msg = inbox.take()
    assert msg is not None
    rig.feed(GLUE * 16)

    def check(done: bool) -> None:
        if not done:
            inbox.put_back(msg)
        assert inbox.take() is msg
        assert inbox.clear() == 32

    return Work(lambda: inbox.put_back(msg), check)


def pulled(inbox: PullInbox, n: int) -> tuple[LaneRig, Callable[[], object]]:
    """The messages of a whole pull, small ones and a large one."""
    count = 6
    rig = LaneRig(inbox, batch=count)
    sizes = [0, 300, 40_000, 1, 2, 3]
    wire = b"".join(
        delivery(
            number, data=b"x" * size, header=BLOCK % n if number % 2 else b""
        ).frame(1)
        for number, size in enumerate(sizes, 1)
    )
    feed = rig.parser.feed
    return rig, lambda: feed(wire)


def filling_columns(n: int) -> Work:
    inbox = BatchInbox(courier())
    rig, run = pulled(inbox, n)

    def check(done: bool) -> None:
        rig.parser.feed(b"PING\r\n")
        found = (inbox.count, inbox.arrived, inbox.owed)
        assert found == (6, 6, 0), (n, found)
        assert rig.lanes[0].messages == 6
        # The pull is over: whoever drives the loop is told, once or again.
        assert rig.lanes[0] in rig.parser.notices
        batch = inbox.take_batch()
        assert batch is not None
        assert batch.sizes == [0, 300, 40_000, 1, 2, 3]
        assert batch.consumer_seqs.tolist() == [1, 2, 3, 4, 5, 6]
        assert [msg.raw_headers is not None for msg in batch] == 3 * [True, False]

    return Work(run, check)


def following_in_order(n: int) -> Work:
    inbox = OrderedInbox(courier())
    rig, run = pulled(inbox, n)

    def check(done: bool) -> None:
        rig.parser.feed(b"PING\r\n")
        assert inbox.gap is None
        assert [msg.metadata.consumer_seq for msg in take_all(inbox)] == [
            *(1, 2, 3, 4, 5, 6)
        ]
        assert rig.lanes[0] in rig.parser.notices

    return Work(run, check)


def pushing(n: int) -> Work:
    push = PushRig()
    frames = [
        *(delivery(1).frame(1), flow_control("fc.1"), delivery(2).frame(1)),
        *(delivery(4, data=b"x" * 40_000).frame(1), heartbeat(4, stalled="fc.2")),
        *(status("409 Conflict"), delivery(5).frame(1)),
    ]
    wire = b"".join(frames)

    def check(done: bool) -> None:
        push.parser.feed(b"PING\r\n")
        assert push.inbox.gaps == [(3, 4)]
        assert [msg.status for msg in push.inbox.stalls] == [100]
        seen: list[int | None] = []
        while push.inbox.count:
            msg = push.due() or push.inbox.take()
            assert msg is not None
            seen.append(msg.status or msg.metadata.consumer_seq)
        assert seen == [1, 100, 2, 4, 409, 5]

    return Work(lambda: push.parser.feed(wire), check)


def taking_a_batch(n: int) -> Work:
    inbox = BatchInbox(courier())
    run = pulled(inbox, n)[1]
    run()
    taken: list[Batch | None] = [None]

    def take() -> None:
        taken[0] = inbox.take_batch()

    def check(done: bool) -> None:
        batch = taken[0] if done else inbox.take_batch()
        assert batch is not None
        assert len(batch) == 6
        assert inbox.take_batch() is None

    return Work(take, check)


def acknowledging_a_batch(n: int) -> Work:
    outbox = Outbox(1 << 20, 1 << 20)
    # Without a prefix nothing is allocated.
    inbox = BatchInbox(courier(outbox, ack_prefix="other"))
    pulled(inbox, n)[1]()
    batch = inbox.take_batch()
    assert batch is not None

    def check(done: bool) -> None:
        assert batch.is_acked == done
        batch.ack()
        assert outbox.frames == 6

    return Work(batch.ack, check)


def fails(n: int, stop: int, run: Callable[[], object]) -> bool:
    """Whether an allocation failed when the n-th was made to."""
    testcapi.set_nomemory(n, stop)
    try:
        run()
    except MemoryError:
        return True
    finally:
        testcapi.remove_mem_hooks()
    return False


def try_all(make: Callable[[int], Work], only_one: bool) -> int:
    """How many allocations were failed until the work was done."""
    # Python 3.10 allocates a function's frame at the first call, and keeps it.
    make(0).run()
    quiet = 0  # some allocations may fail without harm: go on for a while
    n = 0
    while quiet < 20:
        work = make(n)
        failed = fails(n, n + 1 if only_one else 0, work.run)
        quiet = 0 if failed else quiet + 1
        work.check(not failed)
        fresh_parser_works()
        n += 1
    return n - quiet


def main() -> None:
    # A woken thread does not run before the memory is back.
    sys.setswitchinterval(1000.0)
    before = live_objects()
    for make in (
        feeding_small_frames,
        feeding_a_large_frame,
        publishing,
        decoding,
        waiting,
        asking,
        answering,
        feeding_a_window,
        pledging,
        publishing_rows,
        acknowledging_a_window,
        promising,
        keeping_promises,
        opening_the_gate_of_promises,
        breaking_promises,
        promising_again,
        failing_promises,
        making,
        putting_back,
        filling_columns,
        following_in_order,
        pushing,
        taking_a_batch,
        acknowledging_a_batch,
    ):
        for only_one in (True, False):
            count = try_all(make, only_one)
            sys.stdout.write(f"{make.__name__}: {count}\n")
            assert count > 0
    assert live_objects() == before


if __name__ == "__main__":
    main()
