"""Requests and their answers against a real server."""

from __future__ import annotations

import threading
import time

import pytest

import jsclient
from jsclient import errors, events, server
from tests.live.support import PATIENCE, Events, all_results, responder, until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]


def test_a_request_is_answered(url: str) -> None:
    with responder(url, "echo"), jsclient.connect(url) as nc:
        answer = nc.request("echo", b"hello", timeout=PATIENCE)
        assert answer.data == b"hello"
        assert nc.request("echo", timeout=PATIENCE).data == b""


def test_a_request_may_be_answered_by_the_same_connection(url: str) -> None:
    with jsclient.connect(url) as nc:
        nc_service = nc.subscribe("own", callback=lambda msg: msg.respond(b"me"))
        assert nc.request("own", timeout=PATIENCE).data == b"me"
        assert nc_service.delivered == 1


def test_headers_go_both_ways(url: str) -> None:
    def answer(msg: jsclient.Msg) -> None:
        assert msg.headers is not None
        msg.respond(b"", headers={"Seen": msg.headers.get_all("K")})

    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        service = other.subscribe("headers", callback=answer)
        other.flush()
        got = nc.request("headers", headers={"K": ["1", "2"]}, timeout=PATIENCE)
        assert got.headers is not None
        assert got.headers.get_all("Seen") == ["1", "2"]
        assert service.is_active


def test_nobody_who_listens_is_told_at_once(url: str) -> None:
    with jsclient.connect(url) as nc:
        for _ in range(3):
            with pytest.raises(errors.NoRespondersError) as caught:
                nc.request("nobody.home", b"?", timeout=None)
            assert caught.value.subject == "nobody.home"


def test_a_503_with_a_payload_is_an_answer(url: str) -> None:
    block = b"NATS/1.0 503\r\n\r\n"

    def answer(msg: jsclient.Msg) -> None:
        assert msg.reply is not None
        frame = b"HPUB %s %d %d\r\n%sno\r\n" % (
            msg.reply.encode(),
            len(block),
            len(block) + 2,
            block,
        )
        other._loop.outbox.control(frame)
        other._loop.outbox.send()

    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        service = other.subscribe("odd", callback=answer)
        other.flush()
        got = nc.request("odd", timeout=PATIENCE)
        assert (got.status, got.data) == (503, b"no")
        assert service.is_active


def test_an_own_inbox_is_told_of_nobody_too_unless_it_is_a_queue_groups(
    url: str,
) -> None:
    with jsclient.connect(url) as nc:
        plain, shared = nc.new_inbox(), nc.new_inbox()
        answers = nc.subscribe(plain)
        group = nc.subscribe(shared, queue="group")
        nc.publish("nobody.home", reply=plain)
        nc.publish("nobody.home", reply=shared)
        nc.flush()
        told = answers.next(0)
        assert (told.status, told.data) == (503, b"")
        assert group.pending_messages == 0


def test_without_echo_the_own_service_does_not_count(url: str) -> None:
    with jsclient.connect(url, echo=False) as nc:
        service = nc.subscribe("own", callback=lambda msg: msg.respond(b"me"))
        nc.flush()
        with pytest.raises(errors.NoRespondersError):
            nc.request("own", timeout=PATIENCE)
        assert service.delivered == 0


def test_silence_ends_with_the_timeout(url: str) -> None:
    with jsclient.connect(url) as nc:
        silent = nc.subscribe("silent")
        started = time.monotonic()
        with pytest.raises(errors.TimeoutError, match="silent"):
            nc.request("silent", timeout=0.1)
        assert time.monotonic() - started >= 0.1
        with pytest.raises(TimeoutError):
            nc.request("silent", timeout=0)
        assert silent.pending_messages <= 2


def test_a_late_answer_is_nobodys_and_the_next_request_gets_its_own(url: str) -> None:
    with jsclient.connect(url) as nc:
        service = nc.subscribe("late")
        with pytest.raises(errors.TimeoutError):
            nc.request("late", b"first", timeout=0.05)
        late = service.next(PATIENCE)

        def work(number: int) -> bytes:
            if number == 0:
                return nc.request("late", b"second", timeout=PATIENCE).data
            second = service.next(PATIENCE)
            late.respond(b"too late")
            second.respond(b"in time")
            second.respond(b"once more")
            return second.data

        assert all_results(2, work) == [b"in time", b"second"]
        nc.flush()
        replies = nc._loop.replies
        assert replies is not None
        assert len(replies) == 0
        assert replies.unclaimed == 2


def test_a_guessed_answer_reaches_nobody(url: str) -> None:
    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        service = other.subscribe("asked")
        other.flush()

        def work(number: int) -> bytes:
            if number == 0:
                return nc.request("asked", timeout=PATIENCE).data
            question = service.next(PATIENCE)
            assert question.reply is not None
            prefix = question.reply.rpartition(".")[0]
            for token in ("AAAAAAAA", "0", "x" * 100):
                other.publish(f"{prefix}.{token}", b"forged")
            question.respond(b"true")
            return b""

        assert all_results(2, work) == [b"true", b""]


def test_every_one_of_many_threads_gets_its_own_answer(url: str) -> None:
    with responder(url, "echo"), jsclient.connect(url) as nc:

        def ask(number: int) -> bool:
            return all(
                nc.request("echo", b"%d/%d" % (number, turn), timeout=60.0).data
                == b"%d/%d" % (number, turn)
                for turn in range(100)
            )

        assert all(all_results(200, ask))
        assert nc._loop.replies is not None
        assert len(nc._loop.replies) == 0


def test_threads_ask_and_read_and_publish_at_once(url: str) -> None:
    with responder(url, "echo"), jsclient.connect(url) as nc:
        sub = nc.subscribe("stream")

        def work(number: int) -> int:
            if number == 0:
                for turn in range(5000):
                    nc.publish("stream", b"%d" % turn)
                return 0
            if number == 1:
                return sum(int(sub.next(60.0).data) for _ in range(5000))
            return sum(
                int(nc.request("echo", b"%d" % turn, timeout=60.0).data)
                for turn in range(100)
            )

        total = sum(range(5000))
        assert all_results(10, work) == [0, total] + [sum(range(100))] * 8


def test_an_inbox_prefix_of_ones_own_is_used(url: str) -> None:
    with jsclient.connect(url, inbox_prefix="private.me") as nc:
        service = nc.subscribe(
            "who", callback=lambda msg: msg.respond(str(msg.reply).encode())
        )
        assert nc.request("who", timeout=PATIENCE).data.startswith(b"private.me.")
        assert nc.new_inbox().startswith("private.me.")
        assert service.is_active


def test_answers_come_again_after_a_reconnect(url: str, told: Events) -> None:
    with responder(url, "echo"), jsclient.connect(url, on_event=told) as nc:
        assert nc.request("echo", b"1", timeout=PATIENCE).data == b"1"
        nc.reconnect()
        told.wait(events.Reconnected)
        assert nc.request("echo", b"2", timeout=PATIENCE).data == b"2"
        with pytest.raises(errors.NoRespondersError):
            nc.request("nobody", timeout=PATIENCE)


def test_a_request_made_while_the_server_is_away_is_answered_when_it_is_back(
    told: Events,
) -> None:
    with (
        server.run() as running,
        jsclient.connect(running.url, reconnect_wait=0.05, on_event=told) as nc,
    ):
        # One connection, so that question and service come back in one order.
        service = nc.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
        assert nc.request("echo", b"1", timeout=PATIENCE).data == b"1"
        running.kill()
        told.wait(events.Disconnected)

        def work(number: int) -> bytes:
            if number:
                until(lambda: bool(nc._loop.replies), "the request waits")
                running.restart()
                return b""
            return nc.request("echo", b"2", timeout=PATIENCE).data

        assert all_results(2, work) == [b"2", b""]
        assert service.is_active


def test_a_request_in_flight_waits_out_a_lost_link(told: Events, url: str) -> None:
    with jsclient.connect(url, on_event=told) as nc, jsclient.connect(url) as other:
        service = other.subscribe("slow")
        other.flush()

        def work(number: int) -> bytes:
            if number:
                question = service.next(PATIENCE)
                nc.reconnect()
                told.wait(events.Reconnected)
                nc.flush()
                question.respond(b"after")
                return b""
            return nc.request("slow", timeout=PATIENCE).data

        assert all_results(2, work) == [b"after", b""]


def test_a_request_from_a_callback_of_the_same_connection_is_answered(url: str) -> None:
    answers: list[bytes] = []
    done = threading.Event()
    with jsclient.connect(url) as nc:
        inner = nc.subscribe("inner", callback=lambda msg: msg.respond(b"inner"))

        def outer(msg: jsclient.Msg) -> None:
            answers.append(nc.request("inner", timeout=PATIENCE).data)
            msg.respond(b"outer")

        service = nc.subscribe("outer", callback=outer)
        answers.append(nc.request("outer", timeout=PATIENCE).data)
        done.set()
        assert inner.is_active
        assert service.is_active
    assert answers == [b"inner", b"outer"]
