"""Links that break, or trickle, at every place of a frame."""

from __future__ import annotations

import threading

import pytest

import jsclient
from tests.harness.proxy import FaultProxy
from tests.harness.scripted import (
    Script,
    ScriptedServer,
    answer_ping,
    close,
    expect,
    handshake,
    reset,
    send,
    stall,
    wait,
)
from tests.net.client import TIMEOUT, Recorder, connected
from tests.net.frames import client_frames, published

BLOCK = b"NATS/1.0\r\nK: v\r\n\r\n"
SUB = b"SUB a 1\r\n"


def hmsg(payload: bytes) -> bytes:
    sizes = b"%d %d" % (len(BLOCK), len(BLOCK) + len(payload))
    return b"HMSG a 1 re.ply " + sizes + b"\r\n" + BLOCK + payload + b"\r\n"


FRAME = hmsg(b"cut")


def test_a_reset_at_any_byte_of_a_frame_loses_that_message_only() -> None:
    def script(number: int) -> Script:
        return [handshake(), expect(SUB), wait(f"go {number}"), send(FRAME)]

    scripts = [script(number) for number in range(len(FRAME))]
    last = [handshake(), expect(SUB), send(hmsg(b"whole"))]
    with (
        ScriptedServer(*scripts, last) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        connected(proxy.url, reconnect_wait=0.0) as nc,
    ):
        sub = nc.subscribe("a")
        read: list[jsclient.Msg] = []
        reader = threading.Thread(target=lambda: read.append(sub.next(timeout=30.0)))
        reader.start()
        for cut_after in range(len(FRAME)):
            server.wait_for(SUB, connection=cut_after)
            proxy.set("s2c", cut_after=cut_after)
            server.release(f"go {cut_after}")
        reader.join(30.0)
        assert read[0].data == b"whole"
        assert read[0].reply == "re.ply"
        assert sub.pending_messages == 0
        assert nc.stats().reconnects == len(FRAME)


def test_an_end_at_any_byte_of_a_frame_loses_that_message_only() -> None:
    scripts = [
        [handshake(), expect(SUB), send(FRAME[:size]), close()]
        for size in range(len(FRAME))
    ]
    last = [handshake(), expect(SUB), send(hmsg(b"whole"))]
    with (
        ScriptedServer(*scripts, last) as server,
        connected(server.url, reconnect_wait=0.0) as nc,
    ):
        sub = nc.subscribe("a")
        assert sub.next().data == b"whole"
        assert sub.pending_messages == 0


def test_an_end_inside_a_large_payload_loses_that_message_only() -> None:
    frame = b"MSG a 1 200000\r\n" + b"x" * 200_000 + b"\r\n"
    sizes = (20, 50_000, 200_010, len(frame) - 1)
    scripts = [[handshake(), expect(SUB), send(frame[:n]), close()] for n in sizes]
    last = [handshake(), expect(SUB), send(frame)]
    with (
        ScriptedServer(*scripts, last) as server,
        connected(server.url, reconnect_wait=0.0) as nc,
    ):
        sub = nc.subscribe("a")
        assert sub.next().data == b"x" * 200_000
        assert sub.pending_messages == 0


SIZE = 100_000
WHOLE = len(b"PUB a %d\r\n\r\n" % SIZE) + SIZE


@pytest.mark.parametrize(
    "cut_after",
    [1, 20, WHOLE // 2, WHOLE - 1, WHOLE, WHOLE + 1, 3 * WHOLE + 7],
)
def test_a_publish_that_was_cut_is_never_resumed_or_repeated(cut_after: int) -> None:
    payloads = [b"%08d" % number * (SIZE // 8) for number in range(20)]
    with (
        ScriptedServer([handshake()], [handshake(), answer_ping()]) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        connected(proxy.url) as nc,
    ):
        # The proxy counts from here: CONNECT and PING are through.
        proxy.set("c2s", cut_after=cut_after)
        for payload in payloads:
            nc.publish("a", payload)
        server.wait_for(b"CONNECT", connection=1)
        nc.publish("a", b"last")
        nc.flush()
        before = published(server.received(0), may_be_cut=True)
        after = published(server.received(1))
        arrived = [*before, *after]
        assert arrived[-1] == b"last"
        assert len(before) <= cut_after // WHOLE
        # In order, each at most once, none changed.
        places = [payloads.index(payload) for payload in arrived[:-1]]
        assert places == sorted(set(places))


def test_a_publisher_that_is_faster_than_the_link_waits_for_room_and_goes_on() -> None:
    payloads = [b"%08d" % number * 1000 for number in range(1000)]
    with (
        ScriptedServer([handshake(), answer_ping(timeout=30.0)]) as server,
        connected(server.url, write_buffer=65536) as nc,
    ):
        for payload in payloads:
            nc.publish("a", payload, timeout=TIMEOUT)
        nc.flush(timeout=20.0)
        assert published(server.received()) == payloads


def test_a_publisher_that_waits_for_room_goes_on_when_the_link_is_reset() -> None:
    told = Recorder()
    with (
        ScriptedServer(
            [handshake(), stall("full"), reset()],
            [handshake(), expect(b"PUB b 4\r\n"), answer_ping()],
            receive_buffer=4096,
        ) as server,
        connected(server.url, write_buffer=65536, on_event=told) as nc,
    ):
        timer = threading.Timer(0.3, server.release, ["full"])
        timer.start()
        while nc.is_connected and not told.of(jsclient.Disconnected):
            nc.publish("a", b"x" * 8192, timeout=TIMEOUT)
        timer.join()
        nc.publish("b", b"last")
        nc.flush()
        assert nc.stats().reconnects == 1
        client_frames(server.received(1))


def test_single_bytes_in_both_directions_change_nothing() -> None:
    frames = b"".join(hmsg(b"%d" % number) for number in range(20))
    with (
        ScriptedServer(
            [handshake(), expect(SUB), send(frames), answer_ping(), answer_ping()]
        ) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
    ):
        proxy.set("s2c", chunk=1)
        proxy.set("c2s", chunk=1)
        with connected(proxy.url) as nc:
            sub = nc.subscribe("a")
            messages = [sub.next() for _ in range(20)]
            assert [m.data for m in messages] == [b"%d" % n for n in range(20)]
            assert all(m.headers is not None for m in messages)
            nc.flush()
            nc.publish("b", b"payload" * 20, headers={"K": "v"})
            nc.flush()
            body = BLOCK + b"payload" * 20
            assert b"HPUB b 18 158\r\n" + body + b"\r\n" in server.received()
            assert nc.stats().reconnects == 0


def test_ten_thousand_frames_in_one_segment_come_in_order() -> None:
    frames = b"".join(b"MSG a 1 5\r\n%05d\r\n" % number for number in range(10_000))
    with (
        ScriptedServer([handshake(), expect(SUB), send(frames)]) as server,
        connected(server.url) as nc,
    ):
        sub = nc.subscribe("a")
        numbers = [int(sub.next().data) for _ in range(10_000)]
        assert numbers == list(range(10_000))
        assert (sub.pending_messages, sub.pending_bytes, sub.dropped) == (0, 0, 0)


def test_what_does_not_fit_the_limits_is_dropped_counted_and_told_once() -> None:
    frames = b"".join(b"MSG a 1 5\r\n%05d\r\n" % number for number in range(1000))
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), expect(SUB), send(frames), answer_ping()]
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a", max_pending_messages=10)
        nc.flush()
        assert (sub.pending_messages, sub.dropped) == (10, 990)
        with pytest.raises(jsclient.SlowConsumerError):
            sub.next()
        assert [int(sub.next().data) for _ in range(10)] == list(range(10))
        assert sub.pending_bytes == 0
        assert recorder.wait_for(jsclient.SlowConsumer).subscription is sub
        assert len(recorder.of(jsclient.SlowConsumer)) == 1


def test_a_waiting_request_goes_on_when_the_answer_comes_by_the_next_link() -> None:
    # The request itself was lost with the link; only its time-out ends it.
    with (
        ScriptedServer([handshake(), expect(b"PUB q "), close()], [handshake()]) as s,
        connected(s.url) as nc,
    ):
        raised: list[Exception] = []

        def ask() -> None:
            try:
                nc.request("q", timeout=0.5)
            except jsclient.Error as error:
                raised.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(TIMEOUT)
        assert [type(error) for error in raised] == [jsclient.TimeoutError]
        s.wait_for(b"SUB _INBOX.", connection=1)
