"""What the garbage collector does to connections and subscriptions, from any thread."""

from __future__ import annotations

import gc
import json
import threading
import warnings

import pytest

import jsclient
from jsclient.server import Server
from tests.harness.leaks import LeakMeter
from tests.live.support import PATIENCE, until
from tests.process import children

pytestmark = pytest.mark.live


def subscriptions(server: Server, name: str) -> int:
    """How many subscriptions the server has of the client with that name."""
    found = children.connection(server, name)
    return 0 if found is None else int(found["subscriptions"])


def test_a_dropped_subscription_is_ended_on_an_idle_connection(running: Server) -> None:
    with jsclient.connect(running.url, name="dropper") as nc:
        sub = nc.subscribe("dropped")
        nc.flush()
        assert subscriptions(running, "dropper") == 1
        # The keeper is in select by now, where nothing happens but this.
        until(lambda: not nc._loop.helm.is_free, "the keeper takes the helm")
        del sub
        until(lambda: subscriptions(running, "dropper") == 0, "it is unsubscribed")
        assert (len(nc._loop.entries), len(nc._loop.routes)) == (0, 0)


def test_a_subscription_lives_as_long_as_it_is_iterated(running: Server) -> None:
    with jsclient.connect(running.url, name="iterator") as nc:
        messages = nc.subscribe("held").messages(timeout=5)
        gc.collect()
        nc.publish("held", b"x")
        assert next(messages).data == b"x"
        assert subscriptions(running, "iterator") == 1
        del messages
        until(lambda: subscriptions(running, "iterator") == 0, "it is unsubscribed")


def test_a_subscription_in_a_cycle_is_ended_when_it_is_collected(
    running: Server,
) -> None:
    with jsclient.connect(running.url, name="cyclist") as nc:
        knot: dict[str, object] = {"sub": nc.subscribe("knot")}
        knot["self"] = knot
        nc.flush()
        del knot
        gc.collect()
        until(lambda: subscriptions(running, "cyclist") == 0, "it is unsubscribed")


@pytest.mark.parametrize("is_cyclic", [False, True])
def test_a_dropped_connection_warns_and_gives_everything_back(
    url: str, is_cyclic: bool
) -> None:
    def use() -> None:
        nc = jsclient.connect(url)
        sub = nc.subscribe("x")
        nc.publish("x", b"1")
        messages = [sub.next()]
        if is_cyclic:
            knot: list[object] = [nc, sub, messages]
            knot.append(knot)

    with LeakMeter(timeout=5.0), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
        gc.collect()
    said = [str(one.message) for one in caught]
    assert len(said) == 1
    assert f"unclosed jsclient connection, opened at {__file__}:" in said[0]


def test_a_message_outlives_its_connection(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("x")
        nc.publish("x", b"1", reply="y", headers={"A": "1"})
        msg = sub.next()
    del nc, sub
    gc.collect()
    assert (msg.data, msg.reply, dict(msg.headers or {})) == (b"1", "y", {"A": "1"})
    with pytest.raises(jsclient.ConnectionClosedError):
        msg.respond(b"late")


def test_a_storm_of_collections_disturbs_nothing(url: str) -> None:
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect(1)

    old = gc.get_threshold()
    collectors = [threading.Thread(target=collect) for _ in range(2)]
    try:
        with LeakMeter(timeout=5.0), jsclient.connect(url) as nc:
            gc.set_threshold(5)
            for thread in collectors:
                thread.start()
            echo = nc.subscribe("gc.echo", callback=lambda msg: msg.respond(msg.data))
            for number in range(120):
                knot: list[object] = [nc.subscribe(f"gc.{number}")]
                knot.append(knot)
                data = b"%d" % number
                assert nc.request("gc.echo", data, timeout=10).data == data
            del knot
            stop.set()
            for thread in collectors:
                thread.join(10)
            gc.collect()
            until(lambda: len(nc._loop.entries) == 2, "all but echo and inbox end")
            echo.unsubscribe()
    finally:
        stop.set()
        gc.set_threshold(*old)


def test_a_finalizer_may_use_the_connection(url: str) -> None:
    answers: list[str] = []

    class Asks:
        def __init__(self, nc: jsclient.Connection) -> None:
            self.nc = nc
            self.me = self  # collected, not counted out

        def __del__(self) -> None:
            self.nc.publish("fin", b"x")
            # The server itself answers: this may run in any thread, and one with a
            # callback could not answer itself.
            answer = self.nc.request("$SYS.REQ.USER.INFO", timeout=PATIENCE)
            answers.append(json.loads(answer.data)["data"]["account"])

    old = gc.get_threshold()
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("fin")
        nc.flush()
        gc.set_threshold(10)
        try:
            for _ in range(50):
                Asks(nc)
                nc.flush(timeout=10)
        finally:
            gc.set_threshold(*old)
        gc.collect()
        got = [sub.next(timeout=PATIENCE).data for _ in range(50)]
        assert got == [b"x"] * 50
        assert answers == ["$G"] * 50
