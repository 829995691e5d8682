"""A connection belongs to the process that made it."""

from __future__ import annotations

import os
import pickle

import pytest

import jsclient
from jsclient.server import Server
from tests.harness.proxy import FaultProxy
from tests.process import children

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]

# What every forking script begins with: a connection in use, and `in_child`.
BEGIN = """
    import json, os, sys, threading, time, warnings
    import jsclient

    # Newer Pythons warn of forks beside threads: that is what is tried here.
    warnings.filterwarnings("ignore", "This process .* multi-threaded")

    nc = jsclient.connect(sys.argv[1], name="forker")
    sub = nc.subscribe("fork.>")
    nc.flush()

    def in_child(work):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            code = 1
            try:
                os.write(writer, json.dumps(work()).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with open(reader) as pipe:
            text = pipe.read()
        assert os.waitpid(pid, 0)[1] == 0
        return json.loads(text)
"""


def script(text: str) -> str:
    """The beginning and the rest, both indented as they stand."""
    return BEGIN + text


def test_every_call_in_a_forked_child_says_whose_connection_it_is(url: str) -> None:
    said = children.run(
        script(
            """
    calls = {
        "publish": lambda: nc.publish("fork.x", b"child"),
        "request": lambda: nc.request("fork.x", timeout=1),
        "subscribe": lambda: nc.subscribe("y"),
        "flush": lambda: nc.flush(timeout=1),
        "rtt": lambda: nc.rtt(timeout=1),
        "reconnect": nc.reconnect,
        "drain": nc.drain,
        "next": lambda: sub.next(timeout=1),
        "iterate": lambda: next(iter(sub)),
        "unsubscribe": sub.unsubscribe,
        "drain subscription": sub.drain,
        "respond": lambda: held.respond(b"child"),
    }
    nc.publish("fork.y", b"", reply="fork.answer")
    held = sub.next()

    def work():
        names = {}
        for name, call in calls.items():
            try:
                call()
                names[name] = "nothing"
            except Exception as error:
                names[name] = type(error).__name__
        nc.close()
        return names

    names = in_child(work)
    nc.publish("fork.after", b"parent")
    assert sub.next(timeout=5).data == b"parent"
    nc.close()
    print(json.dumps(names))
    """
        ),
        url,
    ).json()
    assert set(said.values()) == {"ForkedError"}, said


def test_a_child_writes_no_byte_whatever_it_does(running: Server) -> None:
    host, port = running.url.removeprefix("nats://").rsplit(":", 1)
    with FaultProxy(host, int(port)) as proxy:
        child = children.start(
            script(
                """
    nc.rtt()
    print("ready")
    sys.stdin.readline()

    def work():
        global nc, sub
        import gc
        for call in (lambda: nc.publish("fork.x", b"child"), nc.flush, nc.close):
            try:
                call()
            except jsclient.ForkedError:
                pass
        nc = sub = None
        gc.collect()
        return True

    in_child(work)
    print("forked")
    sys.stdin.readline()
    nc.publish("fork.z", b"parent")
    assert sub.next(timeout=5).data == b"parent"
    nc.close()
    """
            ),
            proxy.url,
        )
        assert child.stdin is not None
        children.told(child, "ready")
        before = proxy.forwarded("c2s")
        child.stdin.write("\n")
        child.stdin.flush()
        children.told(child, "forked")
        assert proxy.forwarded("c2s") == before
        assert proxy.open_connections == 1
        children.finish(child).check()


def test_a_child_that_exits_the_usual_way_does_not_disturb_its_parent(
    url: str,
) -> None:
    children.run(
        script(
            """
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # with atexit and the collection of everything
    assert os.waitpid(pid, 0)[1] == 0
    nc.publish("fork.a", b"1")
    assert sub.next(timeout=5).data == b"1"
    assert nc.stats().reconnects == 0
    nc.close()
    """
        ),
        url,
    ).check()


def test_a_fork_while_other_threads_wait_leaves_the_child_free(url: str) -> None:
    children.run(
        script(
            """
    answered = []
    threads = [
        threading.Thread(target=lambda: answered.append(sub.next(timeout=10).data))
        for _ in range(8)
    ]
    publisher_stops = threading.Event()

    def publish():
        while not publisher_stops.is_set():
            nc.publish("elsewhere", bytes(1000))

    threads.append(threading.Thread(target=publish))
    for thread in threads:
        thread.start()

    def work():
        own = jsclient.connect(sys.argv[1])
        heard = own.subscribe("child.>")
        own.publish("child.x", b"mine")
        data = heard.next(timeout=5).data.decode()
        own.close()
        try:
            nc.publish("fork.x")
        except jsclient.ForkedError:
            return data
        return "no ForkedError"

    for _ in range(5):
        assert in_child(work) == "mine"
    publisher_stops.set()
    for number in range(8):
        nc.publish("fork.%d" % number, b"%d" % number)
    for thread in threads:
        thread.join(10)
    assert sorted(answered) == [b"%d" % number for number in range(8)], answered
    nc.close()
    """
        ),
        url,
    ).check()


def test_a_fork_while_reconnecting_leaves_both_alone(url: str) -> None:
    children.run(
        script(
            """
    import logging
    logging.disable()  # that it was disconnected is no news here
    nc.reconnect()

    def work():
        try:
            nc.flush(timeout=1)
        except jsclient.ForkedError:
            return True
        return False

    assert in_child(work)
    try:
        nc.flush(timeout=5)
    except jsclient.DisconnectedError:
        nc.flush(timeout=5)  # the first was on the link that was being left
    nc.close()
    """
        ),
        url,
    ).check()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_connect_for_themselves(url: str, method: str) -> None:
    children.run(
        f"""
    import multiprocessing, sys
    import jsclient
    from tests.process.workers import ask

    if __name__ == "__main__":
        url = sys.argv[1]
        with jsclient.connect(url) as nc:
            sub = nc.subscribe("service", callback=lambda msg: msg.respond(b"yes"))
            nc.flush()
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                assert pool.map(ask, [url] * 4) == [b"yes"] * 4
                pool.close()
                pool.join()
            nc.flush()
            assert nc.stats().reconnects == 0
    """,
        url,
        flags=("-W", "error::ResourceWarning"),
    ).check()


def test_what_belongs_to_a_process_cannot_be_pickled(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("p")
        nc.publish("p", b"data", headers={"A": "b"})
        msg = sub.next()
        for thing in (nc, sub):
            with pytest.raises(TypeError, match="pickled"):
                pickle.dumps(thing)
        copy = pickle.loads(pickle.dumps(msg))
        assert (copy.subject, copy.data, dict(copy.headers)) == (
            "p",
            b"data",
            {"A": "b"},
        )
