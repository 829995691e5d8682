"""A bug inside the loop ends the link or the connection: it never stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import jsclient
from jsclient import events
from jsclient._io.links import Links
from jsclient._io.loop import Loop
from tests.harness.leaks import LeakMeter
from tests.live.support import Events, responder

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    """The bugs are logged, as they should be; not on the terminal."""
    caplog.set_level("CRITICAL", "jsclient")


class Bug(Exception):
    """What the tests let the loop stumble over."""


class Trap:
    """Raises once, when it is called for the first time after it was set."""

    def __init__(self) -> None:
        self.is_set = threading.Event()
        self.was_sprung = threading.Event()

    def __call__(self, *arguments: object) -> None:
        if self.is_set.is_set() and not self.was_sprung.is_set():
            self.was_sprung.set()
            raise Bug("a bug in the loop")


@pytest.mark.parametrize("step", ["_attend", "_rest", "_tick"])
def test_a_bug_in_a_turn_of_the_loop_costs_one_link(
    url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = Trap()
    real = getattr(Loop, step)

    def trapped(loop: Loop, *arguments: object) -> object:
        trap()
        return real(loop, *arguments)

    told = Events()
    with (
        LeakMeter(timeout=5.0),
        responder(url, "bug.echo"),
        jsclient.connect(
            url, reconnect_wait=0.05, ping_interval=0.2, on_event=told
        ) as nc,
    ):
        sub = nc.subscribe("bug")
        nc.flush()
        monkeypatch.setattr(Loop, step, trapped)
        trap.is_set.set()
        lost = told.wait(events.Disconnected)
        assert isinstance(lost.error, Bug)
        told.wait(events.Reconnected)
        nc.publish("bug", b"x")
        assert sub.next(timeout=5).data == b"x"
        assert nc.request("bug.echo", b"y", timeout=5).data == b"y"


@pytest.mark.parametrize(
    ("kind", "step"),
    [(Links, "end"), (Links, "_install"), (Loop, "forget_orphans")],
)
def test_a_bug_in_the_keeper_closes_the_connection_and_wakes_all(
    url: str, kind: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = Trap()
    real = getattr(kind, step)

    def trapped(one: object, *arguments: object) -> object:
        trap()
        return real(one, *arguments)

    told = Events()
    ended: list[BaseException] = []
    with LeakMeter(timeout=5.0):
        nc = jsclient.connect(url, reconnect_wait=0.05, on_event=told)
        sub = nc.subscribe("bug")
        silent = nc.subscribe("silent")
        nc.flush()
        calls: list[Callable[[], object]] = [
            lambda: sub.next(timeout=30),
            lambda: nc.request("silent", timeout=30),
            lambda: list(sub),
        ]

        def run(number: int) -> None:
            try:
                calls[number]()
            except jsclient.ConnectionClosedError as error:
                ended.append(error)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
        for thread in threads:
            thread.start()
        monkeypatch.setattr(kind, step, trapped)
        trap.is_set.set()
        nc.reconnect()
        closed = told.wait(events.Closed)
        assert isinstance(closed.error, Bug)
        for thread in threads:
            thread.join(10)
        assert len(ended) == len(calls)
        assert {type(error.__cause__) for error in ended} == {Bug}
        assert not silent.is_active
        with pytest.raises(jsclient.ConnectionClosedError):
            nc.publish("bug")
        nc.close()
        ended.clear()
        told.seen.clear()
        del closed


def test_a_callback_that_is_wrong_costs_its_own_messages_only(url: str) -> None:
    told = Events()

    def wrong(msg: jsclient.Msg) -> None:
        raise Bug(msg.data.decode())

    with jsclient.connect(url, on_event=told) as nc:
        bad = nc.subscribe("wrong", callback=wrong)
        good = nc.subscribe("wrong")
        for number in range(3):
            nc.publish("wrong", b"%d" % number)
        assert [good.next(timeout=5).data for _ in range(3)] == [b"0", b"1", b"2"]
        told.wait(events.ErrorEvent, 3)
        seen = told.of(events.ErrorEvent)
        assert [str(event.error) for event in seen] == ["0", "1", "2"]
        assert {event.subscription for event in seen} == {bad}
        assert nc.stats().reconnects == 0
