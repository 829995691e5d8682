"""Many threads on one connection: nobody starves, nothing is lost or mixed up."""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable

import pytest

import jsclient
from jsclient import events
from jsclient.server import Server
from tests.harness.proxy import FaultProxy
from tests.live.support import Events, all_results, responder, until

pytestmark = pytest.mark.live


def test_every_waiting_thread_learns_at_once_that_one_has_closed(url: str) -> None:
    nc = jsclient.connect(url)
    sub = nc.subscribe("never")
    others = [nc.subscribe(f"never.{number}") for number in range(25)]
    silent = nc.subscribe("silent")
    nc.flush()
    closed_at: list[float] = []
    waiting = threading.Barrier(101)

    def publish_for_ever() -> None:
        while True:
            nc.publish("busy", bytes(100))

    def use(number: int) -> tuple[str, float]:
        calls: tuple[Callable[[], object], ...] = (
            lambda: sub.next(timeout=60),
            lambda: list(others[number // 4].messages()),
            lambda: nc.request("silent", timeout=60),
            publish_for_ever,
        )
        waiting.wait(20)
        try:
            calls[number % 4]()
        except jsclient.ConnectionClosedError as error:
            return type(error).__name__, time.monotonic()
        return "nothing", time.monotonic()

    def close() -> None:
        waiting.wait(20)
        time.sleep(0.3)
        closed_at.append(time.monotonic())
        nc.close()

    closer = threading.Thread(target=close)
    closer.start()
    ended = all_results(100, use)
    closer.join(10)
    assert {name for name, _ in ended} == {"ConnectionClosedError"}
    assert not silent.is_active
    # A hundred threads share the interpreter; they are told at once and then queue.
    assert max(when for _, when in ended) - closed_at[0] < 30.0


def test_each_message_goes_to_exactly_one_of_the_threads_that_read(url: str) -> None:
    total = 4000
    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        sub = nc.subscribe("shared")
        nc.flush()

        def read(number: int) -> list[int]:
            if number == 0:
                for one in range(total):
                    other.publish("shared", b"%d" % one)
                    if one % 100 == 0:
                        time.sleep(0.005)
                other.flush()
                nc.flush()
                sub.drain()
                return []
            if number % 2:
                return [int(msg.data) for msg in sub]
            got = []
            try:
                while True:
                    got.append(int(sub.next(timeout=60).data))
            except jsclient.SubscriptionClosedError:
                return got

        parts = all_results(9, read)
    assert all(part == sorted(part) for part in parts)
    everything = sorted(one for part in parts for one in part)
    assert everything == list(range(total))


def test_two_hundred_threads_get_the_answers_to_their_own_questions(url: str) -> None:
    with responder(url, "many"), jsclient.connect(url) as nc:

        def ask(number: int) -> int:
            for turn in range(50):
                data = b"%d.%d" % (number, turn)
                assert nc.request("many", data, timeout=30).data == data
            return 50

        assert sum(all_results(200, ask)) == 200 * 50
        assert len(nc._loop.request_inbox()) == 0


def test_the_first_requests_of_many_threads_use_one_inbox(url: str) -> None:
    for _ in range(10):
        with responder(url, "first"), jsclient.connect(url) as nc:
            all_results(16, lambda number: nc.request("first", b"", timeout=30))
            assert len(nc._loop.entries) == 1


def test_threads_that_wait_for_rare_messages_do_not_starve(url: str) -> None:
    stop = threading.Event()
    with (
        responder(url, "busy.echo"),
        jsclient.connect(url) as nc,
        jsclient.connect(url) as other,
    ):
        subs = [nc.subscribe(f"rare.{number}") for number in range(10)]
        flood = nc.subscribe("flood")
        nc.flush()

        def work(number: int) -> float:
            if number < 10:  # sees its one message soon, whoever is at the helm
                sent = float(subs[number].next(timeout=30).data)
                return time.monotonic() - sent
            if number == 10:
                for one in range(10):
                    time.sleep(0.05)
                    other.publish(f"rare.{one}", b"%.6f" % time.monotonic())
                    other.flush()
                stop.set()
            elif number == 11:
                while not stop.is_set():
                    other.publish("flood", bytes(100))
                other.publish("flood", b"end")
            elif number == 12:
                for msg in flood:
                    if msg.data == b"end":
                        break
            else:
                while not stop.is_set():
                    nc.request("busy.echo", b"x", timeout=30)
            return 0.0

        assert max(all_results(14, work)) < 20.0


def test_what_each_thread_publishes_arrives_whole_and_in_order(url: str) -> None:
    count = 3000
    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        sub = other.subscribe("order.>")
        other.flush()

        def publish(number: int) -> None:
            rng = random.Random(number)
            for turn in range(count):
                # A torn or mixed frame would show in the repeated number.
                body = b"%d " % turn * rng.choice((1, 1, 1, 20, 2000))
                nc.publish(f"order.{number}", body, timeout=60)
            nc.flush(timeout=60)

        all_results(8, publish)
        other.flush(timeout=60)
        seen: dict[str, list[int]] = collections.defaultdict(list)
        for _ in range(8 * count):
            msg = sub.next(timeout=10)
            numbers = set(msg.data.split())
            assert len(numbers) == 1
            seen[msg.subject].append(int(numbers.pop()))
        assert all(turns == list(range(count)) for turns in seen.values())
        assert nc.stats().reconnects == 0


def test_answers_stay_with_their_questions_while_the_link_is_reset(
    running: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "jsclient")
    host, port = running.url.removeprefix("nats://").rsplit(":", 1)
    told = Events()
    with (
        FaultProxy(host, int(port)) as proxy,
        responder(running.url, "reset.echo"),
        jsclient.connect(proxy.url, reconnect_wait=0.05, on_event=told) as nc,
    ):
        end = time.monotonic() + 3.0

        def work(number: int) -> tuple[int, int]:
            if number == 0:
                while time.monotonic() < end:
                    time.sleep(0.5)
                    proxy.cut()
                return 0, 0
            right = failed = turn = 0
            while time.monotonic() < end:
                turn += 1
                data = b"%d.%d" % (number, turn)
                try:
                    assert nc.request("reset.echo", data, timeout=0.5).data == data
                    right += 1
                except (jsclient.TimeoutError, jsclient.NoRespondersError):
                    failed += 1
            return right, failed

        results = all_results(41, work)
        assert sum(right for right, _ in results) > 100
        told.wait(events.Reconnected, 3)
        until(lambda: nc.is_connected, "the last cut is mended")
        assert nc.request("reset.echo", b"well", timeout=10).data == b"well"


def test_links_that_are_left_by_many_threads_at_once_are_replaced(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "jsclient")
    with jsclient.connect(url, reconnect_wait=0.0) as nc:
        sub = nc.subscribe("left")

        def work(number: int) -> None:
            for _ in range(15):
                nc.reconnect()
                with nc.subscribe(f"short.{number}"):
                    nc.publish("elsewhere", bytes(100))

        all_results(8, work)
        # No link is stopped on account of an older one: the last of them is alive.
        for _ in range(20):
            try:
                nc.flush(timeout=10)
                break
            except jsclient.DisconnectedError:
                continue
        nc.publish("left", b"x")
        assert sub.next(timeout=10).data == b"x"
        until(lambda: len(nc._loop.entries) == 1, "nothing is left behind")


def test_flushes_of_many_threads_all_return(url: str) -> None:
    with jsclient.connect(url) as nc:

        def flush(number: int) -> float:
            slowest = 0.0
            for _ in range(100):
                nc.publish("f", b"%d" % number)
                begun = time.monotonic()
                nc.flush(timeout=20)
                slowest = max(slowest, time.monotonic() - begun)
            return slowest

        # A PONG that came before its fence was built would let it wait for the next.
        assert max(all_results(16, flush)) < 10.0
