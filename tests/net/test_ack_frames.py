"""Acks on the wire: which bytes, how often, and what happens without a link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

import jsclient
from jsclient import events
from jsclient._core import Msg
from tests.net.client import TIMEOUT, Recorder
from tests.net.pull_peer import Desk, consuming

ACK = "$JS.ACK.S.C.1.1.1.1794822688406701443.0"


def one() -> Desk:
    """A desk that has a message for every pull."""
    return Desk(lambda pull: [pull.message(1)])


def is_acked(msg: Msg) -> bool:
    """It changes, which a type checker does not expect of a property."""
    return msg.is_acked


@pytest.mark.parametrize(
    ("acknowledge", "payload"),
    [
        (lambda msg: msg.ack(), b"+ACK"),
        (lambda msg: msg.nak(), b"-NAK"),
        (lambda msg: msg.nak(0), b"-NAK"),
        (lambda msg: msg.nak(-1.5), b"-NAK"),
        (lambda msg: msg.nak(1.5), b'-NAK {"delay": 1500000000}'),
        (lambda msg: msg.nak(timedelta(days=3)), b'-NAK {"delay": 259200000000000}'),
        (lambda msg: msg.nak(1e-9), b'-NAK {"delay": 1}'),
        (lambda msg: msg.term(), b"+TERM"),
        (lambda msg: msg.term("bad data"), b"+TERM bad data"),
        (lambda msg: msg.term("schön"), b"+TERM sch\xc3\xb6n"),
    ],
)
def test_a_terminal_ack_is_sent_once_and_nothing_after_it(
    acknowledge: Callable[[Msg], None], payload: bytes
) -> None:
    desk = one()
    with consuming(desk) as scene:
        msg = scene.consumer.next()
        msg.in_progress()
        msg.in_progress()
        assert not is_acked(msg)
        acknowledge(msg)
        assert is_acked(msg)
        for again in (msg.ack, msg.nak, msg.term, msg.in_progress, msg.ack_sync):
            again()
        scene.heard()
        assert [ack.payload for ack in desk.acks] == [b"+WPI", b"+WPI", payload]
        assert {ack.subject for ack in desk.acks} == {ACK}


@pytest.mark.parametrize(
    ("version", "payload"), [("2.10.3", b"+TERM"), ("2.10.4", b"+TERM bad data")]
)
def test_a_reason_is_left_out_where_the_server_would_ignore_the_whole_ack(
    version: str, payload: bytes
) -> None:
    desk = one()
    desk.version = version
    with consuming(desk) as scene:
        scene.consumer.next().term("bad data")
        assert desk.wait_ack().payload == payload


def test_threads_that_ack_at_once_send_one_terminal_ack() -> None:
    desk = one()
    with consuming(desk) as scene:
        for _ in range(20):
            msg = scene.consumer.next()
            barrier = threading.Barrier(8)

            def acknowledge(
                number: int, msg: Msg = msg, barrier: threading.Barrier = barrier
            ) -> None:
                barrier.wait(TIMEOUT)
                (msg.ack, msg.nak, msg.term, msg.ack)[number % 4]()

            threads = [
                threading.Thread(target=acknowledge, args=(number,))
                for number in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(TIMEOUT)
        scene.heard()
        assert len(desk.acks) == 20


def test_an_ack_without_room_for_it_may_be_repeated() -> None:
    desk = one()
    told = Recorder()
    with consuming(desk, links=2, on_event=told, reconnect_buffer=0) as scene:
        msg = scene.consumer.next()
        desk.is_open.clear()
        scene.cue("cut")
        told.wait_for(events.Disconnected)
        with pytest.raises(jsclient.DisconnectedError):
            msg.ack()
        assert not is_acked(msg)
        desk.is_open.set()
        told.wait_for(events.Reconnected)
        msg.ack()
        assert is_acked(msg)
        scene.heard()
        assert [ack.payload for ack in desk.acks] == [b"+ACK"]


def test_an_ack_is_kept_for_the_next_link() -> None:
    desk = one()
    told = Recorder()
    with consuming(desk, links=2, on_event=told) as scene:
        msg = scene.consumer.next()
        desk.is_open.clear()
        scene.cue("cut")
        told.wait_for(events.Disconnected)
        msg.ack()
        desk.is_open.set()
        told.wait_for(events.Reconnected)
        scene.heard()
        assert [ack.payload for ack in desk.acks] == [b"+ACK"]


def test_an_ack_that_nobody_confirms_is_a_timeout_and_may_be_repeated() -> None:
    desk = one()
    with consuming(desk) as scene:
        msg = scene.consumer.next()
        begun = time.monotonic()
        with pytest.raises(jsclient.TimeoutError):
            msg.ack_sync(0.2)
        assert time.monotonic() - begun >= 0.2
        assert not is_acked(msg)
        desk.on_ack = lambda ack: [ack.confirmed()]
        msg.ack_sync()
        assert is_acked(msg)
        msg.ack_sync()
        assert [ack.payload for ack in desk.acks] == [b"+ACK", b"+ACK"]
        assert desk.acks[0].reply != desk.acks[1].reply


def test_nobody_there_to_confirm_is_told_at_once() -> None:
    desk = one()
    desk.on_ack = lambda ack: [
        b"HMSG %s %s 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
        % (ack.reply.encode(), ack.sid.encode())
    ]
    with consuming(desk) as scene, pytest.raises(jsclient.NoRespondersError):
        scene.consumer.next().ack_sync(30.0)


def test_a_consumer_without_acks_sends_none() -> None:
    desk = Desk(lambda pull: [pull.message(1)], config={"ack_policy": "none"})
    with consuming(desk) as scene:
        msg = scene.consumer.next()
        for call in (msg.in_progress, msg.ack, msg.nak, msg.term, msg.ack_sync):
            call()
        scene.heard()
        assert desk.acks == []


def test_closed_connections_take_no_acks() -> None:
    with consuming(one()) as scene:
        msg = scene.consumer.next()
        scene.nc.close()
        for call in (msg.ack, msg.nak, msg.term, msg.in_progress, msg.ack_sync):
            with pytest.raises(jsclient.ConnectionClosedError):
                call()


@pytest.mark.parametrize("delay", ["1", True, None, float("nan"), float("inf")])
def test_a_delay_must_be_a_time(delay: object) -> None:
    with consuming(one()) as scene:
        msg = scene.consumer.next()
        if delay is None:
            msg.nak(delay)
            return
        with pytest.raises((TypeError, ValueError), match="delay"):
            msg.nak(delay)  # type: ignore[arg-type]
        assert not is_acked(msg)


def test_a_message_that_is_worked_on_for_long_is_reported_by_itself() -> None:
    desk = Desk(
        lambda pull: [pull.message(1)] if len(desk.pulls) == 1 else [],
        config={"ack_wait": 200_000_000},
    )
    done = threading.Event()

    def work(msg: Msg) -> None:
        desk.wait_ack(3)
        msg.ack()
        done.set()

    with consuming(desk) as scene:
        with scene.consumer.consume(work, auto_in_progress=True):
            assert done.wait(TIMEOUT)
            scene.heard()
            time.sleep(0.25)
        *before, last = [ack.payload for ack in desk.acks]
        assert last == b"+ACK", "nothing is reported after it"
        assert len(before) >= 3
        assert set(before) == {b"+WPI"}
