"""However a process ends: soon, without a traceback, without losing publishes."""

from __future__ import annotations

import time

import pytest

import jsclient
from tests.process import children

pytestmark = pytest.mark.live

BEGIN = """
    import os, sys, threading, time
    import jsclient

    nc = jsclient.connect(sys.argv[1])
    sub = nc.subscribe("exit.>")
    nc.flush()
"""
# How it ends, and the exit code of that.
ENDINGS = {
    "the end of the script": ("pass", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "with a thread blocked in next": (
        "threading.Thread(target=sub.next, args=(None,), daemon=True).start()",
        0,
    ),
    "with many threads blocked": (
        """[
        threading.Thread(target=call, args=(None,), daemon=True).start()
        for call in [sub.next] * 5 + [lambda _: list(sub)] * 5
        + [lambda _: nc.request("exit.silent", timeout=60)] * 5
    ]
    time.sleep(0.1)""",
        0,
    ),
    "with a callback at work": (
        """slow = nc.subscribe("slow", callback=lambda msg: time.sleep(60))
    nc.publish("slow")
    nc.flush()""",
        0,
    ),
    "with a thread that publishes": (
        """
    def publish():
        while True:
            nc.publish("exit.busy", bytes(100))

    threading.Thread(target=publish, daemon=True).start()
    time.sleep(0.1)""",
        0,
    ),
    "with everything in a reference cycle": (
        """class Knot:
        pass
    knot = Knot()
    knot.self, knot.sub, knot.nc = knot, sub, nc
    del sub, nc""",
        0,
    ),
    "after close": ("nc.close()", 0),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_does_not_close_ends_soon_and_quietly(
    url: str, ending: str
) -> None:
    how, code = ENDINGS[ending]
    ended = children.run(
        BEGIN + f"    began = time.monotonic()\n    {how}\n", url, flags=()
    )
    assert (ended.code, ended.err) == (code, "")
    assert ended.seconds < 15.0  # with the start of the interpreter


def test_an_uncaught_exception_is_the_only_traceback(url: str) -> None:
    ended = children.run(BEGIN + "    raise RuntimeError('mine')\n", url, flags=())
    assert ended.code == 1
    assert ended.err.count("Traceback") == 1
    assert ended.err.endswith("RuntimeError: mine\n")


def test_a_process_that_is_reconnecting_ends_soon() -> None:
    script = """
    import logging, sys, time
    import jsclient
    from jsclient import server

    logging.disable()
    with server.run() as running:
        nc = jsclient.connect(running.url, reconnect_wait=30)
        sub = nc.subscribe("x")
        nc.flush()
    while nc.is_connected:
        time.sleep(0.01)
    nc.publish("kept", b"never sent")
    print(time.monotonic())
    """
    ended = children.run(script, flags=())
    assert (ended.code, ended.err) == (0, "")
    assert time.monotonic() - float(ended.out) < 15.0


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)"])
def test_publishes_that_were_not_sent_yet_arrive(url: str, ending: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("last.words")
        nc.flush()
        children.run(
            f"""
    import sys
    import jsclient

    nc = jsclient.connect(sys.argv[1])
    for number in range(5000):
        nc.publish("last.words", b"%d" % number)
    {ending}
    """,
            url,
            flags=(),
        ).check()
        got = [int(sub.next(timeout=5).data) for _ in range(5000)]
        assert got == list(range(5000))


def test_the_warning_of_an_unclosed_connection_says_where_it_was_opened(
    url: str,
) -> None:
    script = "import sys\nimport jsclient\nnc = jsclient.connect(sys.argv[1])\n"
    for flags in (("-X", "dev"), ("-W", "always::ResourceWarning")):
        ended = children.run(script, url, flags=flags)
        assert ended.code == 0
        assert "ResourceWarning: unclosed jsclient connection" in ended.err
        assert "opened at <string>:3" in ended.err
        assert "Traceback" not in ended.err


def test_a_dropped_connection_is_closed_although_its_warning_is_an_error(
    url: str,
) -> None:
    script = """
    import gc, sys, threading
    import jsclient

    said = []
    sys.unraisablehook = lambda what: said.append(str(what.exc_value))
    def use():
        nc = jsclient.connect(sys.argv[1])
        return nc._loop
    loop = use()
    gc.collect()
    assert loop.finished.sleep(5) or loop.finished.is_open
    assert said and "opened at <string>:8" in said[0], said
    """
    children.run(script, url, flags=("-W", "error")).check()


def test_a_closed_connection_warns_of_nothing(url: str) -> None:
    script = BEGIN + "    nc.close()\n"
    children.run(script, url, flags=("-X", "dev", "-W", "error")).check()
