"""PINGs, PONGs, and peers that fall silent."""

from __future__ import annotations

import threading
import time

import pytest

import jsclient
from tests.harness.proxy import Direction, FaultProxy
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    close,
    expect,
    handshake,
    send,
    stall,
    wait,
)
from tests.net.client import TIMEOUT, Recorder, answer_pings, connected
from tests.net.frames import client_frames


def test_a_ping_is_answered_while_the_application_is_idle() -> None:
    script = [handshake(), *([send(b"PING\r\n"), expect(b"PONG\r\n")] * 3)]
    with ScriptedServer(script) as server, connected(server.url):
        server.finish()


def test_a_ping_is_answered_during_heavy_publishing() -> None:
    pings = [expect(b"PUB ")] + [send(b"PING\r\n"), expect(b"PONG\r\n")] * 5
    with ScriptedServer([handshake(), *pings]) as server, connected(server.url) as nc:
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                nc.publish("a", b"x" * 100)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            server.finish(timeout=20.0)
        finally:
            is_over.set()
            thread.join(TIMEOUT)


def test_ten_thousand_pings_get_as_many_pongs() -> None:
    script = [handshake(), send(b"PING\r\n" * 10_000), answer_ping()]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        server.wait_for(b"PONG\r\n" * 10_000)
        nc.flush()
        frames = client_frames(server.received())
        assert sum(frame.verb == b"PONG" for frame in frames) == 10_000


def test_an_unanswered_server_is_stale_after_the_allowed_pings() -> None:
    silent = [handshake(), expect(b"PING\r\n"), expect(b"PING\r\n")]
    recorder = Recorder()
    with (
        ScriptedServer(silent) as first,
        ScriptedServer([handshake()]) as second,
        connected(
            [first.url, second.url],
            ping_interval=0.1,
            max_pings_out=2,
            on_event=recorder,
        ) as nc,
    ):
        lost = recorder.wait_for(jsclient.Disconnected)
        assert isinstance(lost.error, jsclient.StaleConnectionError)
        assert first.url in str(lost.error)
        assert recorder.wait_for(jsclient.Reconnected).server == second.url
        assert nc.connected_url == second.url
        first.wait_closed()
        assert first.received().count(b"PING\r\n") == 3  # with that of the handshake


def test_any_pong_in_between_clears_the_account() -> None:
    twice = [expect(b"PING\r\n"), expect(b"PING\r\n"), send(b"PONG\r\n")]
    with (
        ScriptedServer([handshake(), *twice, *twice, *twice]) as server,
        connected(server.url, ping_interval=0.05, max_pings_out=2) as nc,
    ):
        server.finish()
        assert nc.stats().reconnects == 0


def test_no_interval_sends_no_pings() -> None:
    with (
        ScriptedServer([handshake()]) as server,
        connected(server.url, ping_interval=0) as nc,
    ):
        with pytest.raises(jsclient.TimeoutError):
            nc.subscribe("a").next(timeout=0.2)
        assert server.received().count(b"PING\r\n") == 1


@pytest.mark.parametrize("direction", ["c2s", "s2c"])
def test_a_link_that_is_dead_in_one_direction_is_given_up(
    direction: Direction,
) -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), answer_pings]) as first,
        FaultProxy("127.0.0.1", first.port) as proxy,
        ScriptedServer([handshake(), answer_pings]) as second,
        connected(
            [proxy.url, second.url],
            ping_interval=0.1,
            max_pings_out=2,
            on_event=recorder,
        ),
    ):
        proxy.set(direction, stall=True)
        lost = recorder.wait_for(jsclient.Disconnected)
        assert isinstance(lost.error, jsclient.StaleConnectionError)
        assert recorder.wait_for(jsclient.Reconnected).server == second.url


def test_a_peer_that_stops_reading_is_stale_although_a_publisher_waits() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), stall("end")], receive_buffer=4096) as first,
        ScriptedServer([handshake(), expect(b"PUB ")]) as second,
        connected(
            [first.url, second.url],
            ping_interval=0.2,
            max_pings_out=2,
            write_buffer=65536,
            on_event=recorder,
        ) as nc,
    ):
        # The last of these waits for room until the link is given up.
        while nc.connected_url == first.url:
            nc.publish("a", b"x" * 8192, timeout=10.0)
        lost = recorder.wait_for(jsclient.Disconnected)
        assert isinstance(lost.error, jsclient.StaleConnectionError)
        nc.publish("a", b"y")
        second.finish()
        first.release("end")


def test_a_publisher_that_finds_no_room_gives_up_at_its_deadline() -> None:
    with (
        ScriptedServer([handshake(), stall("end")], receive_buffer=4096) as server,
        connected(server.url, write_buffer=65536) as nc,
    ):
        start = time.monotonic()

        def publish_for_ever() -> None:
            while True:
                nc.publish("a", b"x" * 8192, timeout=0.2)

        with pytest.raises(jsclient.TimeoutError):
            publish_for_ever()
        nc.close()
        assert time.monotonic() - start < TIMEOUT
        server.release("end")


def test_a_late_pong_does_not_answer_the_next_flush() -> None:
    script = [
        handshake(),
        expect(b"PING\r\n"),
        wait("late"),
        send(b"PONG\r\nMSG a 1 4\r\nlate\r\n"),
        expect(b"PING\r\n"),
        wait("answer"),
        send(b"PONG\r\n"),
    ]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        sub = nc.subscribe("a")
        with pytest.raises(jsclient.TimeoutError):
            nc.flush(timeout=0.1)
        server.release("late")
        assert sub.next().data == b"late"
        start = time.monotonic()
        threading.Timer(0.2, server.release, ["answer"]).start()
        nc.flush()
        assert time.monotonic() - start > 0.1


def test_a_late_pong_that_comes_after_the_next_flush_began_is_not_its_own() -> None:
    script = [
        handshake(),
        expect(b"PING\r\n"),
        expect(b"PING\r\n"),
        send(b"PONG\r\n"),
        wait("answer"),
        send(b"PONG\r\n"),
    ]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        for _ in range(2):
            with pytest.raises(jsclient.TimeoutError):
                nc.flush(timeout=0.1)
        server.release("answer")
        server.finish()


def test_pongs_that_nobody_asked_for_are_ignored() -> None:
    script = [
        handshake(),
        expect(b"SUB a 1\r\n"),
        send(b"PONG\r\nPONG\r\nMSG a 1 2\r\nhi\r\n"),
        expect(b"PING\r\n"),
        wait("answer"),
        send(b"PONG\r\n"),
        answer_ping(),
    ]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        assert nc.subscribe("a").next().data == b"hi"
        with pytest.raises(jsclient.TimeoutError):
            nc.flush(timeout=0.1)
        server.release("answer")
        nc.flush()
        server.finish()


def test_a_flush_whose_link_is_lost_says_so() -> None:
    with (
        ScriptedServer(
            [handshake(), expect(b"PING\r\n"), close()], [handshake(), answer_ping()]
        ) as server,
        connected(server.url) as nc,
    ):
        with pytest.raises(jsclient.DisconnectedError):
            nc.flush()
        nc.flush()
        server.finish()


def test_a_flush_without_a_link_waits_for_the_next_one() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), close()], [handshake(), answer_ping()]) as server,
        connected(server.url, reconnect_wait=0.2, on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.Disconnected)
        nc.flush()
        server.finish()


def test_a_round_trip_is_measured_and_needs_a_link() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), answer_ping(), close()]) as server,
        connected(server.url, on_event=recorder, reconnect_wait=10.0) as nc,
    ):
        assert 0.0 < nc.rtt() < 5.0
        recorder.wait_for(jsclient.Disconnected)
        with pytest.raises(jsclient.DisconnectedError):
            nc.rtt()
