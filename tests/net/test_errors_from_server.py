"""-ERR: each refusal reaches whom it concerns; only the link's end ends the link."""

from __future__ import annotations

import re
import threading
import time

import pytest

import jsclient
from tests.harness.scripted import (
    Peer,
    ScriptedServer,
    answer_ping,
    close,
    expect,
    expect_close,
    handshake,
    send,
)
from tests.net.client import Recorder, connected

PUBLISH = re.compile(rb"PUB q (_INBOX\.[^ ]+) 0\r\n")
DENIED = b"-ERR 'Permissions Violation for Subscription to "


def test_a_denied_subscription_is_found_by_subject_and_queue() -> None:
    script = [handshake(), answer_ping(), send(DENIED + b'"x" using queue "q"\'\r\n')]
    recorder = Recorder()
    with (
        ScriptedServer([*script, send(b"MSG x 1 2\r\nhi\r\n")]) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        plain, queued = nc.subscribe("x"), nc.subscribe("x", queue="q")
        nc.flush()
        with pytest.raises(jsclient.PermissionsViolationError) as caught:
            queued.next()
        assert (caught.value.subject, caught.value.queue) == ("x", "q")
        event = recorder.wait_for(jsclient.ErrorEvent)
        assert event.error is caught.value
        assert event.subscription is queued
        assert plain.next().data == b"hi"
        assert plain.is_active
        assert not queued.is_active
        assert nc.stats().reconnects == 0


def test_a_denied_subscription_is_found_by_its_sid() -> None:
    script = [handshake(), answer_ping(), send(DENIED + b'"x" (sid "2")\'\r\n')]
    with (
        ScriptedServer([*script, send(b"MSG x 1 2\r\nhi\r\n")]) as server,
        connected(server.url) as nc,
    ):
        first, second = nc.subscribe("x"), nc.subscribe("x")
        nc.flush()
        with pytest.raises(jsclient.PermissionsViolationError):
            second.next()
        assert first.next().data == b"hi"


def test_each_offence_ends_one_of_two_equal_subscriptions() -> None:
    with (
        ScriptedServer(
            [handshake(), answer_ping(), send((DENIED + b'"x"\'\r\n') * 2)]
        ) as server,
        connected(server.url) as nc,
    ):
        both = [nc.subscribe("x"), nc.subscribe("x")]
        nc.flush()
        for sub in both:
            with pytest.raises(jsclient.PermissionsViolationError):
                sub.next()


def test_an_iteration_and_a_callback_end_with_their_subscription() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [
                handshake(),
                answer_ping(),
                send(DENIED + b'"x"\'\r\n' + DENIED + b'"y"\'\r\n'),
            ]
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        iterated = nc.subscribe("x")
        called = nc.subscribe("y", callback=lambda msg: None)
        nc.flush()
        with pytest.raises(jsclient.PermissionsViolationError):
            next(iter(iterated))
        recorder.wait_for(jsclient.ErrorEvent, 2)
        assert not called.is_active


def test_a_denied_subscription_is_not_asked_for_again_on_the_next_link() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), answer_ping(), send(DENIED + b'"x"\'\r\n'), close()],
            [handshake(), expect(b"SUB y 2\r\n"), answer_ping()],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        denied, kept = nc.subscribe("x"), nc.subscribe("y")
        nc.flush()
        recorder.wait_for(jsclient.Reconnected)
        nc.flush()
        assert b"SUB x" not in server.received(1)
        assert (denied.is_active, kept.is_active) == (False, True)


def test_a_denied_publish_fails_the_request_that_waits_for_it_at_once() -> None:
    refusal = b'-ERR \'Permissions Violation for Publish to "q.\\"x\\""\'\r\n'
    script = [handshake(), expect(b'PUB q."x" '), send(refusal)]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        start = time.monotonic()
        with pytest.raises(jsclient.PermissionsViolationError) as caught:
            nc.request('q."x"', timeout=30.0)
        assert time.monotonic() - start < 10.0
        assert caught.value.subject == 'q."x"'
        assert caught.value.operation == "publish"
        assert nc.is_connected


def test_only_the_request_to_the_denied_subject_fails() -> None:
    refusal = b"-ERR 'Permissions Violation for Publish to \"bad\"'\r\n"
    with (
        ScriptedServer(
            [handshake(), expect(b"PUB good "), expect(b"PUB bad "), send(refusal)]
        ) as server,
        connected(server.url) as nc,
    ):
        outcomes: dict[str, Exception] = {}

        def ask(subject: str, timeout: float) -> None:
            try:
                nc.request(subject, timeout=timeout)
            except jsclient.Error as error:
                outcomes[subject] = error

        good = threading.Thread(target=ask, args=("good", 0.5))
        good.start()
        server.wait_for(b"PUB good ")
        ask("bad", 30.0)
        good.join()
        assert isinstance(outcomes["bad"], jsclient.PermissionsViolationError)
        assert isinstance(outcomes["good"], jsclient.TimeoutError)


def test_a_denied_inbox_fails_every_waiting_request() -> None:
    with (
        ScriptedServer(
            [
                handshake(),
                expect(b"PUB q "),
                send(DENIED + b'"_MINE.*" (sid "1")\'\r\n'),
            ]
        ) as server,
        connected(server.url, inbox_prefix="_MINE") as nc,
        pytest.raises(jsclient.PermissionsViolationError),
    ):
        nc.request("q", timeout=30.0)


def test_a_denied_publish_that_nobody_waits_for_is_an_event() -> None:
    refusal = b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), expect(b"PUB a "), send(refusal)]) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        nc.publish("a", b"x")
        error = recorder.error(jsclient.PermissionsViolationError)
        assert nc.last_error is error
        assert nc.is_connected


@pytest.mark.parametrize(
    "line",
    [
        b"-ERR 'Something New'\r\n",
        b"-ERR\r\n",
        b"-ERR ''\r\n",
        b"-ERR unquoted words\r\n",
        b"-ERR 'it''s \"odd\"'\r\n",
        b"-ERR '\xff\xfe\x00'\r\n",
        b"-err 'Invalid Subject'\r\n",
        b"-ERR 'Permissions Violation for Subscription to \"nobody has it\"'\r\n",
        b"-ERR 'Permissions Violation for Publish with Reply of \"r\"'\r\n",
        b"-ERR 'maximum subscriptions exceeded'\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b"-ERR '" + b"x" * 4000 + b"'\r\n",
    ],
)
def test_other_refusals_are_told_and_the_link_is_kept(line: bytes) -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), expect(b"SUB a 1\r\n"), send(line + b"MSG a 1 2\r\nhi\r\n")]
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        error = recorder.wait_for(jsclient.ErrorEvent).error
        assert isinstance(error, jsclient.Error)
        assert f"127.0.0.1:{server.port}" in str(error)
        assert str(error).isprintable()
        assert len(str(error)) < 1000
        assert nc.last_error is error
        assert nc.stats().reconnects == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"Unknown Protocol Operation", jsclient.ProtocolError),
        (b"Parser Error", jsclient.ProtocolError),
        (b"maximum control line exceeded", jsclient.ProtocolError),
        (b"Stale Connection", jsclient.StaleConnectionError),
        (b"Maximum Payload Violation", jsclient.MaxPayloadError),
        (b"maximum connections exceeded", jsclient.ServerLimitError),
        (b"User Authentication Expired", jsclient.AuthenticationExpiredError),
        (b"User Authentication Revoked", jsclient.AuthenticationRevokedError),
        (b"Account Authentication Expired", jsclient.AuthenticationExpiredError),
        (b"Authentication Timeout", jsclient.AuthenticationTimeoutError),
        (b"Authorization Violation", jsclient.AuthorizationError),
    ],
)
def test_a_refusal_that_ends_the_link_is_told_and_the_next_link_is_made(
    text: bytes, kind: type[Exception]
) -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), send(b"-ERR '" + text + b"'\r\n"), close()],
            [handshake()],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.Reconnected)
        lost = recorder.wait_for(jsclient.Disconnected)
        told = [lost.error, *(e.error for e in recorder.of(jsclient.ErrorEvent))]
        assert any(isinstance(error, kind) for error in told)
        assert nc.is_connected


def test_nobody_listening_is_told_at_once() -> None:
    def refuse(block: bytes, payload: bytes) -> jsclient.Msg:
        sizes = b"%d %d" % (len(block), len(block) + len(payload))

        def answer(peer: Peer) -> None:
            reply = peer.expect(PUBLISH)[1]
            frame = b"HMSG " + reply + b" 1 " + sizes + b"\r\n" + block + payload
            peer.send(frame + b"\r\n")

        with ScriptedServer([handshake(), answer]) as s, connected(s.url) as nc:
            return nc.request("q", timeout=30.0)

    with pytest.raises(jsclient.NoRespondersError) as caught:
        refuse(b"NATS/1.0 503\r\nNats-Subject: q\r\n\r\n", b"")
    assert caught.value.subject == "q"
    with pytest.raises(jsclient.NoRespondersError):
        refuse(b"NATS/1.0 503\r\n\r\n", b"")
    answer = refuse(b"NATS/1.0 503\r\n\r\n", b"ok")
    assert (answer.status, answer.data) == (503, b"ok")


def test_answers_to_other_tokens_are_never_taken_for_ours() -> None:
    def answer(peer: Peer) -> None:
        reply = peer.expect(PUBLISH)[1]
        for forged in (reply[:-1] + b"!", reply[:-1], reply + b"x"):
            peer.send(b"MSG " + forged + b" 1 6\r\nforged\r\n")
        peer.send(b"MSG " + reply + b" 1 4\r\ntrue\r\n")
        peer.send(b"MSG " + reply + b" 1 4\r\nlate\r\n")

    with ScriptedServer([handshake(), answer]) as server, connected(server.url) as nc:
        assert nc.request("q", timeout=5.0).data == b"true"
        assert nc.is_connected


def test_a_connection_that_may_not_reconnect_closes_with_the_reason() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(), send(b"-ERR 'Stale Connection'\r\n"), expect_close()]
        ) as server,
        connected(server.url, allow_reconnect=False, on_event=recorder) as nc,
    ):
        closed = recorder.wait_for(jsclient.Closed)
        assert isinstance(closed.error, jsclient.StaleConnectionError)
        assert nc.is_closed
        with pytest.raises(jsclient.ConnectionClosedError):
            nc.publish("a")
