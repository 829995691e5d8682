"""Signal handlers may raise, at any moment, and may use the connection themselves."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.process import children

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        not hasattr(signal, "setitimer"), reason="this system has no interval timers"
    ),
]

# A timer that raises in the main thread at random moments, while it works.
STORM = """
    import itertools, json, logging, random, signal, sys, threading, time
    import jsclient

    class Storm(Exception):
        pass

    raised = 0

    def handler(signum, frame):
        global raised
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.004))
        while frame is not None and frame.f_code is not at_work:
            frame = frame.f_back
        if frame is not None:  # the test's own loop is left in peace
            raised += 1
            raise KIND("storm")

    def weather(work, done=lambda: True, seconds=1.2):
        "Works again and again, whatever the handler interrupts."
        global at_work
        at_work = work.__code__
        end = time.monotonic() + seconds
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        while time.monotonic() < end or not done():
            assert time.monotonic() < end + 15, "it never ended"
            try:
                work()
            except KIND:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    KIND = {"Exception": Storm, "TimeoutError": TimeoutError,
            "KeyboardInterrupt": KeyboardInterrupt}[sys.argv[2]]
    events = []
    nc = jsclient.connect(sys.argv[1], on_event=events.append)
    other = jsclient.connect(sys.argv[1])
"""
END = """
    nc.flush(timeout=5)
    assert raised > 50, raised
    assert nc.stats().reconnects == 0, events
    assert nc.request("echo", b"well", timeout=5).data == b"well"
    assert len(nc._loop.request_inbox()) <= LEFT, len(nc._loop.request_inbox())
    nc.close()
    other.close()
"""

KINDS = ["Exception", "TimeoutError", "KeyboardInterrupt"]

# No library can do anything about it, nor can this test's own code.
returns_whole = pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="Python 3.10 runs handlers between a return and the use of its result",
)


def storm(text: str, *, left: int = 0) -> str:
    """A script whose work is done in the storm; `left` requests may lie about."""
    echo = """
    echo = other.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
    other.flush()
    """
    return STORM + echo + text + END.replace("LEFT", str(left))


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_is_lost_or_repeated_when_a_handler_raises_in_a_for_loop(
    url: str, kind: str
) -> None:
    children.run(
        storm(
            """
    sub = nc.subscribe("storm")
    nc.flush()
    total = 20_000
    sent = threading.Event()

    def publish():
        for number in range(total):
            other.publish("storm", b"%d" % number)
            if number % 500 == 0:
                time.sleep(0.02)
        other.flush()
        sent.set()

    threading.Thread(target=publish, daemon=True).start()
    got = []

    def read():
        # extend takes each message and keeps it without a step of Python in between.
        got.extend(sub.messages(timeout=0.2))

    weather(read, lambda: sent.is_set() and len(got) >= total)
    got.extend(sub.messages(timeout=0.2))
    numbers = [int(msg.data) for msg in got]
    assert numbers == list(range(total)), len(numbers)
    """
        ),
        url,
        kind,
        timeout=40,
    ).check()


@returns_whole
@pytest.mark.parametrize("kind", KINDS)
def test_no_message_is_lost_or_repeated_when_a_handler_raises_in_next(
    url: str, kind: str
) -> None:
    children.run(
        storm(
            """
    sub = nc.subscribe("storm")
    nc.flush()
    total = 5_000
    threading.Thread(
        target=lambda: [
            (other.publish("storm", b"%d" % n), n % 50 == 0 and time.sleep(0.02))
            for n in range(total)
        ],
        daemon=True,
    ).start()
    got = []

    def read():
        while True:
            # What next returns is on the stack until append has it; a handler that
            # raises between the two raises before append is called, or after.
            msg = None
            try:
                msg = sub.next(timeout=0.2)
            finally:
                if msg is not None:
                    got.append(msg)

    def guarded():
        try:
            read()
        except jsclient.TimeoutError:
            pass

    weather(guarded, lambda: len(got) >= total)
    numbers = [int(msg.data) for msg in got]
    assert numbers == list(range(total)), len(numbers)
    assert sub.pending_messages == 0 and sub.delivered == total
    """
        ),
        url,
        kind,
        timeout=40,
    ).check()


@pytest.mark.parametrize("kind", KINDS)
def test_publishes_requests_and_flushes_survive_a_handler_that_raises(
    url: str, kind: str
) -> None:
    children.run(
        storm(
            """
    heard = other.subscribe("ledger")
    other.flush()
    published = []
    answered = 0
    numbers = itertools.count()

    def work():
        global answered
        for number in numbers:
            # Before and after, so that each number is known to be in, out or in doubt.
            published.append((number, "begun"))
            nc.publish("ledger", b"%d" % number + bytes(random.randrange(2000)))
            published.append((number, "done"))
            if number % 7 == 0:
                data = b"%d" % number
                assert nc.request("echo", data, timeout=5).data == data
                answered += 1
            if number % 11 == 0:
                nc.flush(timeout=5)

    weather(work)
    nc.flush(timeout=5)
    other.flush(timeout=5)
    got = [int(msg.data.rstrip(b"\\0")) for msg in heard.messages(timeout=0.3)]
    done = {number for number, state in published if state == "done"}
    begun = {number for number, state in published}
    assert got == sorted(set(got)), "repeated or out of order"
    assert done <= set(got) <= begun, (done - set(got), set(got) - begun)
    assert answered > 10
    """,
            left=2,
        ),
        url,
        kind,
        timeout=40,
    ).check()


def test_subscriptions_made_and_ended_in_a_storm_leave_nothing_behind(url: str) -> None:
    children.run(
        storm(
            """
    # Python itself prints and drops what a handler raises in a finalizer.
    sys.unraisablehook = lambda what: None

    def work():
        while True:
            with nc.subscribe("made") as sub:
                nc.publish("made", b"x")
                sub.next(timeout=5)

    weather(work)
    nc.flush(timeout=5)
    deadline = time.monotonic() + 5
    while len(nc._loop.entries) > 1 or len(nc._loop.routes) > 1:
        assert time.monotonic() < deadline, (nc._loop.entries, len(nc._loop.routes))
        time.sleep(0.01)
    """,
            left=2,
        ),
        url,
        "KeyboardInterrupt",
        timeout=40,
    ).check()


BLOCKED = {
    "next": "sub.next(timeout=30)",
    "for": "next(iter(sub))",
    "request": "nc.request('silent', timeout=30)",
    "flush": "nc.flush(timeout=30)",
    "drain": "nc.drain(timeout=30)",
    "publish": "[nc.publish('x', bytes(500_000), timeout=30) for _ in range(200)]",
}


@pytest.mark.parametrize("call", BLOCKED)
def test_ctrl_c_ends_a_blocking_call_at_once(url: str, call: str) -> None:
    script = f"""
    import logging, os, signal, sys, threading, time
    import jsclient
    from tests.harness.proxy import FaultProxy

    logging.disable()
    host, port = sys.argv[1].removeprefix("nats://").rsplit(":", 1)
    with FaultProxy(host, int(port)) as proxy, jsclient.connect(proxy.url) as nc:
        sub = nc.subscribe("quiet")
        silent = nc.subscribe("silent")
        nc.publish("quiet")
        if {call!r} in ("next", "for"):
            sub.next()
        nc.flush()
        if {call!r} in ("flush", "drain", "publish"):
            proxy.set("c2s", stall=True)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        begun = time.monotonic()
        timer.start()
        try:
            {BLOCKED[call]}
        except KeyboardInterrupt:
            print(time.monotonic() - begun)
        timer.join()
        proxy.set("c2s")
        if not nc.is_closed:
            nc.flush(timeout=10)
            assert nc.stats().reconnects == 0
    """
    took = float(children.run(script, url).check().out)
    assert 0.25 < took < 10.0


def test_ctrl_c_ends_connect_and_leaves_nothing_open() -> None:
    script = """
    import os, signal, socket, threading
    import jsclient

    with socket.create_server(("127.0.0.1", 0)) as dumb:
        files = len(os.listdir("/proc/self/fd"))
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            jsclient.connect("127.0.0.1:%d" % dumb.getsockname()[1], connect_timeout=30)
        except KeyboardInterrupt:
            print("interrupted")
        timer.join()
        assert len(os.listdir("/proc/self/fd")) == files
        assert threading.active_count() == 1
    """
    flags = ("-W", "error")
    assert children.run(script, flags=flags).check().out == "interrupted\n"


def test_a_handler_may_publish_and_request_while_its_thread_waits(url: str) -> None:
    children.run(
        """
    import itertools, signal, sys, threading, time
    import jsclient

    nc = jsclient.connect(sys.argv[1])
    other = jsclient.connect(sys.argv[1])
    numbers = itertools.count()
    echo = other.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
    other.flush()
    sub = nc.subscribe("handled")
    nc.flush()
    answers = []
    running = []  # handlers, which may interrupt each other, but not without end
    is_over = False

    def rearm():
        signal.setitimer(signal.ITIMER_REAL, 0 if is_over else 0.01)

    def handler(signum, frame):
        running.append(None)
        if len(running) < 4:
            rearm()
        nc.publish("handled", b"%d" % next(numbers))
        answers.append(nc.request("echo", b"?", timeout=60).data)
        running.pop()
        rearm()

    signal.signal(signal.SIGALRM, handler)
    rearm()
    begun = time.monotonic()
    got = [sub.next(timeout=60).data for _ in range(100)]
    for number in range(300):
        assert nc.request("echo", b"%d" % number, timeout=60).data == b"%d" % number
        nc.flush(timeout=60)
    is_over = True
    rearm()
    # A wait whose end the handler's own wait has swallowed would last to its deadline.
    assert time.monotonic() - begun < 45
    assert len(set(got)) == 100, got
    assert set(answers) == {b"?"}
    nc.close()
    other.close()
    """,
        url,
        timeout=100,
    ).check()


def test_a_handler_may_end_the_subscription_that_its_thread_waits_on(url: str) -> None:
    ended = children.run(
        """
    import signal, sys, time
    import jsclient

    with jsclient.connect(sys.argv[1]) as nc:
        sub = nc.subscribe("ended")
        nc.flush()
        signal.signal(signal.SIGALRM, lambda signum, frame: sub.unsubscribe())
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        begun = time.monotonic()
        try:
            sub.next(timeout=20)
        except jsclient.SubscriptionClosedError:
            print(time.monotonic() - begun)
    """,
        url,
    ).check()
    assert float(ended.out) < 10.0


@pytest.mark.parametrize("call", ["sub.next(timeout=20)", "next(iter(sub))"])
def test_a_handler_may_close_the_connection_that_its_thread_waits_on(
    url: str, call: str
) -> None:
    ended = children.run(
        f"""
    import signal, sys, time
    import jsclient

    nc = jsclient.connect(sys.argv[1])
    sub = nc.subscribe("closed")
    nc.flush()
    signal.signal(signal.SIGALRM, lambda signum, frame: nc.close())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    begun = time.monotonic()
    try:
        {call}
    except jsclient.ConnectionClosedError:
        print(time.monotonic() - begun)
    """,
        url,
    ).check()
    assert float(ended.out) < 10.0


def test_what_a_handler_of_the_standard_library_raises_is_no_loss_of_the_link(
    url: str,
) -> None:
    children.run(
        """
    import fractions, signal, sys
    import jsclient

    # Called with a number and a frame it raises a TypeError.
    signal.signal(signal.SIGALRM, fractions.Fraction)
    with jsclient.connect(sys.argv[1]) as nc:
        sub = nc.subscribe("quiet")
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            sub.next(timeout=5)
        except TypeError:
            pass
        else:
            raise AssertionError("the handler was not heard")
        nc.flush(timeout=5)
        assert nc.stats().reconnects == 0
    """,
        url,
        timeout=40,
    ).check()
