"""Publishes to a stream that answers nonsense, falls silent, or is cut off."""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import pairwise
from typing import Any

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient._core import PubAck
from jsclient.batch import FastBatch
from jsclient.columns import Column, Offsets, Rows
from jsclient.jetstream import JetStream
from tests.harness.proxy import FaultProxy
from tests.harness.scripted import (
    Peer,
    Script,
    ScriptedServer,
    Step,
    answer_ping,
    expect,
    handshake,
    info_line,
    reset,
    send,
    stall,
    wait,
)
from tests.net.client import Recorder, answer_pings, connected, narrow
from tests.net.frames import client_frames
from tests.net.jetstream_peer import Answer, Request, answering

INFO = {"jetstream": True, "headers": True, "version": "2.15.1"}
PATIENCE = 20.0

Way = Callable[[JetStream, str, bytes], PubAck]


def by_publish(js: JetStream, subject: str, data: bytes) -> PubAck:
    return js.publish(subject, data)


def by_future(js: JetStream, subject: str, data: bytes) -> PubAck:
    return js.publish_async(subject, data).result(PATIENCE)


def by_pipeline(js: JetStream, subject: str, data: bytes) -> PubAck:
    (ack,) = js.publish_all([(subject, data)])
    assert isinstance(ack, PubAck)
    return ack


WAYS = pytest.mark.parametrize("way", [by_publish, by_future, by_pipeline])


def welcomed(*steps: Step) -> Script:
    return [handshake(INFO), *steps]


def always(data: bytes) -> Answer:
    """Answers every request with the same bytes."""
    return lambda request: [request.raw(data)]


def acked(request: Request) -> Iterable[bytes]:
    """What a stream answers; other messages have no reply."""
    return [request.json({"stream": "S", "seq": 7})] if request.reply else []


def silent(request: Request) -> Iterable[bytes]:
    return []


def looked_up(answer: Answer, window: float = 120.0) -> Answer:
    """What a server answers that tells of the stream S with that duplicate window."""
    config = {"name": "S", "subjects": ["a.>"], "duplicate_window": int(window * 1e9)}

    def answered(request: Request) -> Iterable[bytes]:
        if request.subject == "$JS.API.STREAM.NAMES":
            assert request.body["subject"] == "a.b"
            return [request.json({"streams": ["S"], "total": 1, "limit": 1024})]
        if request.subject == "$JS.API.STREAM.INFO.S":
            return [request.json({"config": config, "state": {}})]
        return answer(request)

    return answered


def bodies(data: bytes) -> list[bytes]:
    """The payloads of all publishes to streams, without headers."""
    found = []
    for frame in client_frames(data, may_be_cut=True):
        if frame.verb in (b"PUB", b"HPUB") and not frame.arguments.startswith(
            (b"fill", b"$JS.API")
        ):
            sizes = frame.arguments.split()
            header = int(sizes[-2]) if frame.verb == b"HPUB" else 0
            found.append(frame.body[header:])
    return found


def assert_empty(nc: jsclient.Connection) -> None:
    loop = nc._loop
    assert len(loop.request_inbox()) == 0
    assert loop.outbox.frames == 0


# Answers ------------------------------------------------------------------------------

REFUSALS: list[tuple[int, int, str, type[failures.ApiError]]] = [
    (400, 10071, "wrong last sequence: 5", failures.WrongLastSequenceError),
    (400, 10164, "wrong last sequence", failures.WrongLastSequenceError),
    (503, 10077, "maximum messages exceeded", failures.LimitReachedError),
    (503, 10077, "disk on fire", failures.StreamStoreFailedError),
    (500, 19999, "something new", failures.ApiError),
]


@WAYS
@pytest.mark.parametrize(("code", "number", "text", "kind"), REFUSALS)
def test_an_error_with_stream_and_sequence_is_no_success(
    way: Way, code: int, number: int, text: str, kind: type[failures.ApiError]
) -> None:
    error = {"code": code, "err_code": number, "description": text}
    answer = json.dumps({"error": error, "stream": "S", "seq": 0}).encode()
    with (
        ScriptedServer(welcomed(answering(always(answer)))) as server,
        connected(server.url) as nc,
    ):
        with pytest.raises(kind) as caught:
            way(nc.jetstream(), "a.b", b"x")
        assert type(caught.value) is kind
        assert (caught.value.err_code, caught.value.description) == (number, text)
        assert (caught.value.stream, caught.value.seq) == ("S", 0)
        assert not isinstance(caught.value, failures.PublishOutcomeUnknownError)
        if isinstance(caught.value, failures.WrongLastSequenceError):
            assert caught.value.expected == (5 if number == 10071 else None)
        assert bodies(server.received()) == [b"x"], "it is not tried again"
        assert_empty(nc)


@WAYS
@pytest.mark.parametrize(
    ("status", "err_code", "kind"),
    [
        ("429 Too Many Requests", 10167, failures.TooManyRequestsError),
        ("503 Full", 10077, failures.StreamStoreFailedError),
    ],
)
def test_what_a_status_means_stands_in_its_body(
    way: Way, status: str, err_code: int, kind: type[failures.ApiError]
) -> None:
    error = {"code": int(status[:3]), "err_code": err_code, "description": "no"}
    body = json.dumps({"error": error, "stream": "S", "seq": 0}).encode()

    def busy(request: Request) -> Iterable[bytes]:
        return [request.status(status, data=body)]

    with (
        ScriptedServer(welcomed(answering(busy))) as server,
        connected(server.url) as nc,
        pytest.raises(kind),
    ):
        way(nc.jetstream(), "a.b", b"x")


NO_ACKS = [
    b"hello",
    b"",
    b"{}",
    b"[]",
    b"5",
    b"null",
    b'{"stream":""}',
    b'{"stream":5,"seq":1}',
    b'{"stream":"S","seq":"1"}',
    b'{"stream":"S","seq":-1}',
    b'{"stream":"S","seq":1.5}',
    b'{"stream":"S","seq":99999999999999999999999}',
    b'{"stream":"S","seq":1,"val":"abc"}',
    b'{"stream":"S","seq":1,"val":"' + b"9" * 5000 + b'"}',
    b'{"stream":"S","seq":1,"batch":5,"count":1}',
    b'{"stream":"S","seq":1,"batch":"b","count":-1}',
    b'{"stream":"S","seq":1,"domain":[]}',
    b'{"error":"no","stream":"S","seq":1}',
    b'{"stream":"\xff","seq":1}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
]


@WAYS
def test_an_answer_that_is_no_ack_harms_nobody_else(way: Way) -> None:
    pending = list(NO_ACKS)

    def nonsense(request: Request) -> Iterable[bytes]:
        return acked(request) if not pending else [request.raw(pending.pop(0))]

    with (
        ScriptedServer(welcomed(answering(nonsense))) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()
        for answer in NO_ACKS:
            with pytest.raises(failures.InvalidAckError) as caught:
                way(js, "a.b", b"x")
            assert caught.value.subject == "a.b"
            assert answer.startswith(caught.value.data)
        assert way(js, "a.b", b"x").seq == 7
        assert nc.stats().reconnects == 0
        assert_empty(nc)


@WAYS
@pytest.mark.parametrize(
    ("answer", "ack"),
    [
        (b'{"seq":3,"stream":"S"}', PubAck("S", 3)),
        (b'{"stream":"S"}', PubAck("S", 0)),
        (b'{"stream":"S","seq":0,"duplicate":true}', PubAck("S", 0, duplicate=True)),
        (b'{"stream":"\\u0053","seq":3}', PubAck("S", 3)),
        (b' {"stream": "S", "seq": 3, "future": [1]} ', PubAck("S", 3)),
        (b'{"stream":"S","seq":3,"domain":"d"}', PubAck("S", 3, domain="d")),
        (b'{"stream":"S","seq":3,"val":"-12"}', PubAck("S", 3, value=-12)),
        (b'{"error":null,"stream":"S","seq":3}', PubAck("S", 3)),
    ],
)
def test_every_form_of_an_ack_is_understood(
    way: Way, answer: bytes, ack: PubAck
) -> None:
    with (
        ScriptedServer(welcomed(answering(always(answer)))) as server,
        connected(server.url) as nc,
    ):
        assert way(nc.jetstream(), "a.b", b"x") == ack


@WAYS
def test_an_ack_that_comes_twice_counts_once(way: Way) -> None:
    def twice(request: Request) -> Iterable[bytes]:
        return [*acked(request), *always(b"again")(request)]

    with (
        ScriptedServer(welcomed(answering(twice))) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()
        assert [way(js, "a.b", b"x").seq for _ in range(3)] == [7, 7, 7]
        assert_empty(nc)


@pytest.mark.parametrize("msg_id", [None, "me"])
@pytest.mark.parametrize("is_async", [False, True])
def test_every_try_has_the_same_payload_and_headers(
    is_async: bool, msg_id: str | None
) -> None:
    tries: list[bytes] = []

    def third_time(request: Request) -> Iterable[bytes]:
        tries.append(request.headers + request.data)
        return acked(request) if len(tries) == 3 else [request.status("503")]

    with (
        ScriptedServer(welcomed(answering(third_time))) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()
        data, headers = bytearray(b"data"), iter([("K", "v"), ("L", "w")])
        if is_async:
            future = js.publish_async("a.b", data, headers=headers, msg_id=msg_id)
            data[:] = b"else"
            assert future.result(PATIENCE).seq == 7
        else:
            assert (
                js.publish(
                    "a.b", data, headers=headers, msg_id=msg_id, retry_wait=0.01
                ).seq
                == 7
            )
        own = b"Nats-Msg-Id: me\r\n" if msg_id else b""
        assert tries == [b"NATS/1.0\r\nK: v\r\nL: w\r\n" + own + b"\r\ndata"] * 3
        assert_empty(nc)


def test_what_no_stream_answers_is_sent_three_times_a_quarter_second_apart() -> None:
    tries: dict[bytes, list[float]] = {b"sync": [], b"async": []}

    def absent_now(request: Request) -> Iterable[bytes]:
        tries[request.data].append(time.monotonic())
        return [request.status("503")]

    with (
        ScriptedServer(welcomed(answering(absent_now))) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()
        future = js.publish_async("a.b", b"async")
        with pytest.raises(failures.NoStreamResponseError):
            js.publish("a.b", b"sync")
        assert type(future.exception(PATIENCE)) is failures.NoStreamResponseError
        nc.flush()
        assert sorted(bodies(server.received())) == [b"async"] * 3 + [b"sync"] * 3
        assert_empty(nc)
    for times in tries.values():
        pauses = [later - sooner for sooner, later in pairwise(times)]
        assert all(pause >= 0.24 for pause in pauses)
        assert min(pauses) < 1.0, "a busy machine makes them longer, but not all"


def test_every_future_waits_for_its_own_next_try() -> None:
    tries: dict[bytes, list[float]] = {b"first": [], b"second": []}

    def second_time(request: Request) -> Iterable[bytes]:
        times = tries[request.data]
        times.append(time.monotonic())
        return acked(request) if len(times) == 2 else [request.status("503")]

    with (
        ScriptedServer(welcomed(answering(second_time))) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()
        first = js.publish_async("a.b", b"first")
        time.sleep(0.15)  # less than the pause between two tries
        second = js.publish_async("a.b", b"second")
        assert first.result(PATIENCE).seq == second.result(PATIENCE).seq == 7
    for begun, again in tries.values():
        assert again - begun >= 0.24


def test_a_stream_that_is_away_now_and_then_gets_every_message_once() -> None:
    rng = random.Random(5)
    tries: Counter[bytes] = Counter()
    stored: list[bytes] = []

    def fickle(request: Request) -> Iterable[bytes]:
        tries[request.data] += 1
        if tries[request.data] < 3 and rng.random() < 0.3:
            return [request.status("503")]
        stored.append(request.data)
        return [request.json({"stream": "S", "seq": len(stored)})]

    with (
        ScriptedServer(welcomed(answering(fickle))) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()
        names = [b"%d" % number for number in range(300)]
        futures = {name: js.publish_async("a.b", name) for name in names}
        for number in range(300, 320):
            name = b"%d" % number
            assert stored[js.publish("a.b", name, retry_wait=0.01).seq - 1] == name
        js.flush_publishes(PATIENCE)
        assert all(
            stored[one.result(0).seq - 1] == name for name, one in futures.items()
        )
        assert len(stored) == len(set(stored)) == 320
        assert max(tries.values()) > 1, "it was away"
        assert_empty(nc)


# Sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [None, {"K": "v"}])
@pytest.mark.parametrize("way", ["publish", "publish_async", "publish_all"])
def test_headers_count_towards_the_largest_message(
    way: str, headers: dict[str, str] | None
) -> None:
    size = 1000 - len(b"NATS/1.0\r\nK: v\r\n\r\n" if headers else b"")
    small = handshake({**INFO, "max_payload": 1000})
    with (
        ScriptedServer([small, answering(acked)]) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()

        def publish(data: bytes) -> object:
            if way == "publish_all":
                return list(js.publish_all([("a.b", data, headers)]))
            return getattr(js, way)("a.b", data, headers=headers)

        with pytest.raises(errors.MaxPayloadError, match=r"1001 .* at most 1000"):
            publish(bytes(size + 1))
        publish(bytes(size))
        js.flush_publishes()
        nc.flush()
        assert bodies(server.received()) == [bytes(size)]
        assert_empty(nc)


# Permissions --------------------------------------------------------------------------


@WAYS
def test_a_subject_that_is_denied_is_refused_at_once(way: Way) -> None:
    denied = send(b"-ERR 'Permissions Violation for Publish to \"a.b\"'\r\n")
    with (
        ScriptedServer(welcomed(expect(b"PUB a.b"), denied, answer_pings)) as server,
        connected(server.url) as nc,
    ):
        with pytest.raises(errors.PermissionsViolationError) as caught:
            way(nc.jetstream(), "a.b", b"x")
        assert caught.value.subject == "a.b"
        assert_empty(nc)


@WAYS
def test_an_inbox_that_is_denied_leaves_the_outcome_unknown(way: Way) -> None:
    def deny(peer: Peer) -> None:
        inbox = peer.expect(re.compile(rb"SUB (\S+) (\d+)\r\n"))[1]
        peer.expect(b"PUB a.b")
        text = b'Permissions Violation for Subscription to "%b"' % inbox
        peer.send(b"-ERR '" + text + b"'\r\n")

    with (
        ScriptedServer(welcomed(deny, answer_pings)) as server,
        connected(server.url) as nc,
        pytest.raises(failures.PublishOutcomeUnknownError, match="Subscription"),
    ):
        way(nc.jetstream(), "a.b", b"x")


# Silence ------------------------------------------------------------------------------


@WAYS
def test_silence_leaves_the_outcome_unknown(way: Way) -> None:
    with (
        ScriptedServer(welcomed(answering(silent))) as server,
        connected(server.url) as nc,
    ):
        with pytest.raises(failures.PublishTimeoutError):
            way(nc.jetstream(timeout=0.2, ack_timeout=0.2), "a.b", b"x")
        assert bodies(server.received()) == [b"x"]
        assert_empty(nc)


def stalled_client(server: ScriptedServer, **options: Any) -> jsclient.Connection:
    """A connection whose socket is full, in the middle of a core publish."""
    nc = connected(server.url, **options)
    narrow(nc)
    # Far more than the kernel takes, or else all that the outbox has room for.
    with contextlib.suppress(errors.TimeoutError):
        for _ in range(20):
            nc.publish("fill", b"x" * (1 << 18), timeout=0.05)
    return nc


@WAYS
@pytest.mark.parametrize("buffer", [32 << 20, 1 << 20])
def test_a_publish_whose_time_passed_before_it_was_sent_never_appears(
    way: Way, buffer: int
) -> None:
    script = welcomed(stall("go"), answer_pings)
    with (
        ScriptedServer(script, receive_buffer=65536) as server,
        stalled_client(server, write_buffer=buffer) as nc,
    ):
        js = nc.jetstream(timeout=0.2, ack_timeout=0.2)
        with pytest.raises(errors.TimeoutError, match="was not sent") as caught:
            way(js, "a.b", b"late")
        assert not isinstance(caught.value, failures.PublishOutcomeUnknownError)
        server.release("go")
        nc.flush(PATIENCE)
        assert b"late" not in bodies(server.received())
        assert_empty(nc)


def test_futures_that_were_not_sent_before_the_link_was_lost_are_refused() -> None:
    first = [handshake(INFO), stall("cut"), reset()]
    with (
        ScriptedServer(
            first, welcomed(answering(acked)), receive_buffer=65536
        ) as server,
        stalled_client(server, write_buffer=32 << 20) as nc,
    ):
        js = nc.jetstream()
        futures = [js.publish_async("a.b", b"early") for _ in range(5)]
        server.release("cut")
        for future in futures:
            error = future.exception(PATIENCE)
            assert isinstance(error, errors.DisconnectedError)
        assert js.publish("a.b", b"later").seq == 7
        assert bodies(server.received(1)) == [b"later"]
        assert_empty(nc)


def test_a_publish_that_was_not_sent_before_the_link_was_lost_takes_the_next() -> None:
    first = [handshake(INFO), stall("cut"), reset()]
    with (
        ScriptedServer(
            first, welcomed(answering(acked)), receive_buffer=65536
        ) as server,
        stalled_client(server, write_buffer=32 << 20) as nc,
    ):
        threading.Timer(0.1, server.release, ["cut"]).start()
        assert nc.jetstream().publish("a.b", b"once").seq == 7
        assert bodies(server.received(0)) == []
        assert bodies(server.received(1)) == [b"once"]
        assert_empty(nc)


def test_a_pipeline_that_is_left_before_the_turn_of_an_error_leaves_nothing() -> None:
    with (
        ScriptedServer(welcomed(answering(acked))) as server,
        connected(server.url) as nc,
    ):
        acks = nc.jetstream().publish_all([("a.b", b"0"), ("a..b", b"1")])
        first = next(acks)
        # The error of the second leads to this generator, and it to the window.
        del acks
        assert isinstance(first, PubAck)
        assert_empty(nc)


# Lost links ---------------------------------------------------------------------------


@WAYS
def test_a_publish_without_a_link_waits_for_one(way: Way) -> None:
    with (
        ScriptedServer(
            welcomed(wait("cut"), reset()), welcomed(answering(acked))
        ) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        connected(proxy.url) as nc,
    ):
        proxy.refuse = True
        server.release("cut")
        while nc.is_connected:
            time.sleep(0.001)
        threading.Timer(0.1, setattr, [proxy, "refuse", False]).start()
        assert way(nc.jetstream(), "a.b", b"x").seq == 7
        assert bodies(server.received(1)) == [b"x"]


@WAYS
def test_a_publish_without_a_link_is_refused_when_its_time_is_over(way: Way) -> None:
    told = Recorder()
    with (
        ScriptedServer(
            welcomed(wait("cut"), reset()), welcomed(answer_pings)
        ) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        connected(proxy.url, on_event=told) as nc,
    ):
        proxy.refuse = True
        server.release("cut")
        told.wait_for(jsclient.Disconnected)
        js = nc.jetstream(timeout=0.1)
        with pytest.raises(errors.TimeoutError, match="not sent") as caught:
            way(js, "a.b", b"x")
        assert not isinstance(caught.value, failures.PublishOutcomeUnknownError)
        proxy.refuse = False
        told.wait_for(jsclient.Reconnected)
        nc.flush(PATIENCE)
        assert bodies(server.received(1)) == [], "nothing waited for the link"
        assert_empty(nc)


@WAYS
@pytest.mark.parametrize("cut_after", [1, 60, 3000])
def test_a_link_cut_in_the_middle_of_the_frame_leaves_it_unknown(
    way: Way, cut_after: int
) -> None:
    told = Recorder()
    with (
        ScriptedServer(welcomed(), welcomed(answering(acked))) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        connected(proxy.url, on_event=told) as nc,
    ):
        js = nc.jetstream()
        nc._loop.request_inbox()
        if way is by_future:
            js._async = js._publisher()
        server.wait_for(b"SUB ")
        proxy.set("c2s", cut_after=cut_after)
        with pytest.raises(failures.PublishDisconnectedError) as caught:
            way(js, "a.b", b"y" * 5000)
        assert isinstance(caught.value, ConnectionError)
        assert not isinstance(caught.value, TimeoutError)
        told.wait_for(jsclient.Reconnected)
        assert way(js, "a.b", b"next").seq == 7
        assert bodies(server.received(1)) == [b"next"], "it is not repeated"
        assert_empty(nc)


def test_a_cut_fails_every_pending_future_at_once() -> None:
    with (
        ScriptedServer(
            welcomed(answering(silent, count=20), reset()), welcomed(answering(acked))
        ) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream(ack_timeout=60.0)
        futures = [js.publish_async("a.b", b"%d" % i) for i in range(20)]
        # In vain they would wait for longer than the test does.
        kinds = {type(future.exception(PATIENCE)) for future in futures}
        assert kinds == {failures.PublishDisconnectedError}
        js.flush_publishes(0)
        assert js.publish_async("a.b").result(PATIENCE).seq == 7
        assert js.pending_publishes == 0


def test_a_message_with_an_id_is_sent_again_after_a_cut() -> None:
    with (
        ScriptedServer(
            welcomed(expect(b"first"), reset()),
            welcomed(answering(looked_up(silent), count=3), reset()),
            welcomed(answering(acked)),
        ) as server,
        connected(server.url) as nc,
    ):
        assert nc.jetstream().publish("a.b", b"first", msg_id="me").seq == 7
        sent = [bodies(server.received(link)) for link in range(3)]
        assert sent == [[b"first"]] * 3
        assert_empty(nc)


def refusing(request: Request) -> Iterable[bytes]:
    error = {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}
    return [request.json({"error": error, "stream": "S", "seq": 0})]


def absent(request: Request) -> Iterable[bytes]:
    return [request.status("503")]


def test_a_second_try_waits_for_the_first_that_is_being_stored() -> None:
    tries: list[bytes] = []

    def in_process(request: Request) -> Iterable[bytes]:
        tries.append(request.data)
        if len(tries) == 3:
            return acked(request)
        return [request.error(409, 10158, "duplicate message id is in process")]

    with (
        ScriptedServer(
            welcomed(expect(b"first"), reset()),
            welcomed(answering(looked_up(in_process))),
        ) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream(timeout=PATIENCE)
        ack = js.publish("a.b", b"first", msg_id="me", retry_wait=0.01)
        assert (ack.seq, tries) == (7, [b"first"] * 3)
        tries.clear()
        with pytest.raises(failures.DuplicateInProcessError):
            js.publish("a.b", b"second", msg_id="me")


def nowhere(request: Request) -> Iterable[bytes]:
    if request.subject.startswith("$JS.API"):
        return [request.error(404, 10059, "stream not found")]
    return acked(request)


@pytest.mark.parametrize("later", [nowhere, looked_up(acked, window=0.0)])
@pytest.mark.parametrize("options", [{}, {"expected_stream": "S"}])
def test_a_message_is_not_sent_again_if_its_stream_may_have_forgotten_it(
    later: Answer, options: dict[str, Any]
) -> None:
    with (
        ScriptedServer(
            welcomed(expect(b"first"), reset()), welcomed(answering(later))
        ) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream(timeout=PATIENCE)
        with pytest.raises(failures.PublishDisconnectedError):
            js.publish("a.b", b"first", msg_id="me", **options)
        assert bodies(server.received(1)) == []
        assert_empty(nc)


def test_rows_that_cannot_be_sent_again_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jsclient.publish_columns.ACK_PATIENCE", 0.05)
    waiting: list[Request] = []
    asked: list[Request] = []

    def patient(request: Request) -> Iterable[bytes]:
        if request.subject.startswith("$JS.API"):
            asked.append(request)
            return looked_up(silent, window=0.0)(request)
        waiting.append(request)
        return []

    def late(request: Request) -> Iterable[bytes]:
        yield from patient(request)
        if request.subject.endswith("INFO.S"):
            for one in waiting:
                yield from acked(one)

    rows = Rows(2, Column(Offsets(array("i", [0, 1, 2]), 2), b"12"), "a.b")
    with (
        ScriptedServer(welcomed(answering(late))) as server,
        connected(server.url) as nc,
    ):
        published = nc.jetstream().publish_columns(rows, content_ids="job-")
        assert published.stored == 2
        assert {one.subject for one in asked} == {
            "$JS.API.STREAM.NAMES",
            "$JS.API.STREAM.INFO.S",
        }
        assert bodies(server.received()) == [b"1", b"2"]


@pytest.mark.parametrize("later", [refusing, absent, always(b"hello"), silent])
def test_the_refusal_of_a_second_try_says_nothing_of_the_first(later: Answer) -> None:
    with (
        ScriptedServer(
            welcomed(expect(b"first"), reset()), welcomed(answering(looked_up(later)))
        ) as server,
        connected(server.url) as nc,
    ):
        with pytest.raises(failures.PublishOutcomeUnknownError) as caught:
            nc.jetstream().publish("a.b", b"first", msg_id="me", retries=0, timeout=1.0)
        assert caught.value.msg_id == "me"
        assert_empty(nc)


def test_a_second_try_that_finds_no_link_says_nothing_of_the_first() -> None:
    with (
        ScriptedServer(welcomed(expect(b"first"), reset())) as server,
        connected(server.url) as nc,
        pytest.raises(failures.PublishOutcomeUnknownError),
    ):
        nc.jetstream().publish("a.b", b"first", msg_id="me", timeout=0.3)


@pytest.mark.parametrize(
    "options", [{}, {"msg_id": "me", "expected_last_seq": 0}, {"increment": 1}]
)
def test_a_message_that_could_be_stored_twice_is_not_sent_again(
    options: dict[str, Any],
) -> None:
    told = Recorder()
    with (
        ScriptedServer(
            welcomed(expect(b"a.b"), reset()), welcomed(answering(acked))
        ) as server,
        connected(server.url, on_event=told) as nc,
    ):
        with pytest.raises(failures.PublishOutcomeUnknownError):
            nc.jetstream().publish("a.b", b"", **options)
        told.wait_for(jsclient.Reconnected)
        nc.flush()
        assert bodies(server.received(1)) == []


# Leaving ------------------------------------------------------------------------------


class Soon(random.Random):
    """Chance that lets a server that shuts down be left at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


@contextlib.contextmanager
def leaving(
    *script: Step, patience: float = PATIENCE
) -> Iterator[tuple[ScriptedServer, jsclient.Connection]]:
    """A client that leaves the server of the script for one that acks everything."""
    with (
        pytest.MonkeyPatch.context() as patched,
        ScriptedServer(welcomed(*script)) as first,
        ScriptedServer(welcomed(answering(acked))) as second,
        connected(
            [first.url, second.url], randomize=False, reconnect_on_lame_duck=True
        ) as nc,
    ):
        patched.setattr("jsclient._io.loop.LAST_ANSWERS", patience)
        nc._loop.links.pool.rng = Soon()
        yield first, nc
        assert bodies(second.received()) == [b"held"]


LAME = info_line({**INFO, "ldm": True})


@WAYS
def test_a_server_that_shuts_down_is_left_when_it_has_answered(way: Way) -> None:
    def late(request: Request) -> Iterable[bytes]:
        if request.data == b"first":
            yield LAME
            go.wait(PATIENCE)
            yield from acked(request)

    go = threading.Event()
    acks: dict[bytes, PubAck] = {}
    with leaving(answering(late)) as (server, nc):

        def publish(data: bytes) -> None:
            acks[data] = way(nc.jetstream(), "a.b", data)

        threads = [threading.Thread(target=publish, args=[b"first"])]
        threads[0].start()
        while not nc._loop.outbox.is_leaving:
            time.sleep(0.001)
        threads.append(threading.Thread(target=publish, args=[b"held"]))
        threads[1].start()
        time.sleep(0.05)  # it has had its chance
        assert (acks, nc.stats().reconnects) == ({}, 0)
        go.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert acks.keys() == {b"first", b"held"}
        assert bodies(server.received()) == [b"first"]
        assert_empty(nc)


def test_a_server_that_shuts_down_gets_what_it_did_not_answer_once_more() -> None:
    tries: list[bytes] = []

    def second_time(request: Request) -> Iterable[bytes]:
        tries.append(request.data)
        if len(tries) == 1:
            return [LAME, request.status("503")]
        return acked(request)

    with leaving(answering(second_time)) as (_, nc):
        js = nc.jetstream()
        assert js.publish_async("a.b", b"first").result(PATIENCE).seq == 7
        assert js.publish("a.b", b"held").seq == 7
        assert tries == [b"first", b"first"]


@WAYS
def test_a_server_that_shuts_down_is_not_waited_for_for_ever(way: Way) -> None:
    script = (expect(b"first"), send(LAME), answer_pings)
    with leaving(*script, patience=0.05) as (_, nc):
        js = nc.jetstream(timeout=PATIENCE, ack_timeout=PATIENCE)
        with pytest.raises(failures.PublishDisconnectedError):
            way(js, "a.b", b"first")
        assert way(js, "a.b", b"held").seq == 7


@WAYS
def test_a_server_that_shuts_down_is_left_when_nobody_waits_for_it(way: Way) -> None:
    with leaving(expect(b"first"), send(LAME), answer_pings) as (_, nc):
        with pytest.raises(failures.PublishTimeoutError):
            way(nc.jetstream(timeout=0.3, ack_timeout=0.3), "a.b", b"first")
        assert way(nc.jetstream(timeout=PATIENCE), "a.b", b"held").seq == 7
        assert nc.stats().reconnects == 1


def test_a_fast_batch_is_finished_before_a_server_that_shuts_down_is_left() -> None:
    peers: list[Peer] = []

    def tell(ack: int) -> bool:
        if ack == 0:
            peers[0].send(LAME)
        return False

    with leaving(peers.append, fast_stream(5, tell), answer_pings) as (_, nc):
        js = nc.jetstream()
        batch = js.fast_batch(flow=5, timeout=PATIENCE)
        batch.add("a.b", b"x")
        while not nc._loop.outbox.is_leaving:
            time.sleep(0.001)
        batch.add("a.b", b"x")
        assert batch.commit().count == 2
        assert js.publish("a.b", b"held").seq == 7


# Closing ------------------------------------------------------------------------------


@WAYS
def test_closing_while_a_publish_waits_for_its_ack_leaves_it_unknown(way: Way) -> None:
    raised: list[BaseException] = []

    def publish(js: JetStream) -> None:
        try:
            way(js, "a.b", b"x")
        except errors.Error as error:
            raised.append(error)

    with ScriptedServer(welcomed(answering(silent))) as server:
        nc = connected(server.url)
        thread = threading.Thread(target=publish, args=[nc.jetstream()])
        thread.start()
        server.wait_for(b"a.b")
        nc.close()
        thread.join(PATIENCE)
    assert [type(error) for error in raised] == [failures.PublishDisconnectedError]


def test_draining_waits_for_the_acks_of_futures() -> None:
    waiting: list[Request] = []

    def hold(request: Request) -> Iterable[bytes]:
        waiting.append(request)
        return []

    def answer_late(peer: Peer) -> None:
        # Who only waits until the server has everything is gone before.
        time.sleep(0.1)
        peer.send(b"".join(piece for one in waiting for piece in acked(one)))

    script = welcomed(
        answering(hold, count=3), answer_ping(), answer_ping(), answer_late
    )
    with ScriptedServer(script) as server:
        nc = connected(server.url)
        js = nc.jetstream()
        futures = [js.publish_async("a.b") for _ in range(3)]
        nc.drain()
        assert [future.result(0).seq for future in futures] == [7, 7, 7]


def by_columns(nc: jsclient.Connection) -> object:
    rows = Rows(1, Column(Offsets(array("i", [0, 1]), 1), b"1"), "a.b")
    return nc.jetstream().publish_columns(rows).last_seq


def by_fast_batch(nc: jsclient.Connection) -> object:
    batch = nc.jetstream().fast_batch(timeout=PATIENCE)
    batch.add("a.b", b"1")
    return batch.commit().seq


UNDER_WAY: dict[str, Callable[[jsclient.Connection], object]] = {
    "publish": lambda nc: nc.jetstream().publish("a.b").seq,
    "publish_all": lambda nc: by_pipeline(nc.jetstream(), "a.b", b"").seq,
    "publish_columns": by_columns,
    "fast_batch": by_fast_batch,
    "request": lambda nc: json.loads(nc.request("a.b").data)["seq"],
    "stream_names": lambda nc: nc.jetstream().stream_names()[0],
}


@pytest.mark.parametrize("way", UNDER_WAY)
def test_draining_lets_other_threads_have_the_answers_that_are_under_way(
    way: str,
) -> None:
    answer = {"stream": "S", "seq": 7, "streams": [7], "total": 1, "limit": 1024}
    waiting: list[bytes] = []
    ends: list[str] = []

    def hold(request: Request) -> Iterable[bytes]:
        if request.reply.endswith("$FI"):
            request = request._replace(sid="1")  # the batch's, the first of all
        if request.reply.endswith(".1.0.$FI"):
            return [request.json({"type": "ack", "seq": 0, "msgs": 10})]
        waiting.append(request.json(answer))
        return []

    def call() -> None:
        ends.append(str(UNDER_WAY[way](nc)))

    script = welcomed(
        answering(hold, count=2 if way == "fast_batch" else 1),
        *(answer_ping(), answer_ping()),  # of the drain
        wait("go"),
        lambda peer: peer.send(waiting[0]),
    )
    with ScriptedServer(script) as server:
        nc = connected(server.url)
        threads = [threading.Thread(target=call), threading.Thread(target=nc.drain)]
        threads[0].start()
        while not waiting:
            time.sleep(0.001)
        threads[1].start()
        while nc._loop.answered is None:
            time.sleep(0.001)
        with pytest.raises(errors.ConnectionDrainingError):
            nc.jetstream().publish("a.b", b"too late")
        assert (ends, nc.is_closed) == ([], False)
        server.release("go")
        for thread in threads:
            thread.join(PATIENCE)
        assert ends == ["7"]
        assert nc.is_closed


@pytest.mark.parametrize("is_late", [False, True])
def test_draining_does_not_outlast_what_it_waits_for(is_late: bool) -> None:
    raised: list[BaseException] = []

    def publish() -> None:
        try:
            nc.jetstream().publish("a.b", timeout=PATIENCE if is_late else 0.3)
        except errors.Error as error:
            raised.append(error)

    with ScriptedServer(welcomed(answering(silent))) as server:
        nc = connected(server.url)
        thread = threading.Thread(target=publish)
        thread.start()
        server.wait_for(b"a.b")
        nc.drain(0.3 if is_late else 600.0)
        thread.join(PATIENCE)
    kind = (
        failures.PublishDisconnectedError if is_late else failures.PublishTimeoutError
    )
    assert [type(error) for error in raised] == [kind]


def test_draining_does_not_wait_for_acks_for_ever() -> None:
    with ScriptedServer(welcomed(answering(silent))) as server:
        nc = connected(server.url)
        future = nc.jetstream(ack_timeout=600.0).publish_async("a.b")
        with contextlib.suppress(errors.DrainTimeoutError):  # of a slow machine
            nc.drain(timeout=0.2)
        assert type(future.exception(PATIENCE)) is failures.PublishDisconnectedError


@WAYS
def test_what_is_refused_by_closing_is_not_among_the_last_words(way: Way) -> None:
    raised: list[BaseException] = []

    def publish(js: JetStream) -> None:
        try:
            way(js, "a.b", b"late")
        except errors.Error as error:
            raised.append(error)

    script = [handshake(INFO), stall("go")]
    with ScriptedServer(script, receive_buffer=65536) as server:
        nc = stalled_client(server, write_buffer=32 << 20)
        messages = nc._loop.outbox.messages
        thread = threading.Thread(target=publish, args=[nc.jetstream()])
        thread.start()
        while nc._loop.outbox.messages == messages:
            time.sleep(0.001)
        closer = threading.Thread(target=nc.close)
        closer.start()
        server.release("go")
        thread.join(PATIENCE)
        closer.join(PATIENCE)
        server.wait_closed(timeout=PATIENCE)
        sent = b"late" in server.received()
    (error,) = raised
    if isinstance(error, failures.PublishOutcomeUnknownError):
        assert way is by_future, "who waits takes it back"
    else:
        assert isinstance(error, errors.ConnectionClosedError)
        assert not sent


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_message_that_waits_for_another_try_ends_with_its_link(is_cut: bool) -> None:
    first = welcomed(answering(absent, count=1), wait("cut"), reset())
    with ScriptedServer(first, welcomed(answering(acked))) as server:
        nc = connected(server.url)
        js = nc.jetstream()
        future = js.publish_async("a.b", b"x")
        publisher = js._async
        assert publisher is not None
        publisher._retry_wait = 60.0
        while not publisher._window.again:
            with contextlib.suppress(FutureTimeoutError):
                future.result(0.01)
        if is_cut:
            server.release("cut")
        else:
            nc.close()
        kind = errors.DisconnectedError if is_cut else errors.ConnectionClosedError
        error = future.exception(PATIENCE)
        assert type(error) is kind, "it is not stored, and will not be"
        assert js.pending_publishes == 0
        nc.close()
        server.release("cut")


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_closing_between_two_tries_says_what_is_known_of_the_first(
    is_in_doubt: bool,
) -> None:
    raised: list[BaseException] = []

    def publish(js: JetStream) -> None:
        try:
            js.publish("a.b", b"first", msg_id="me", retry_wait=30.0)
        except errors.Error as error:
            raised.append(error)

    def away(request: Request) -> Iterable[bytes]:
        yield from absent(request)
        has_answered.set()

    has_answered = threading.Event()
    scripts = [welcomed(answering(looked_up(away)))]
    if is_in_doubt:
        scripts.insert(0, welcomed(expect(b"first"), reset()))
    with ScriptedServer(*scripts) as server:
        nc = connected(server.url)
        thread = threading.Thread(target=publish, args=[nc.jetstream(timeout=50.0)])
        thread.start()
        assert has_answered.wait(PATIENCE)
        nc.flush()
        nc.close()
        thread.join(PATIENCE)
    kind = (
        failures.PublishOutcomeUnknownError
        if is_in_doubt
        else errors.ConnectionClosedError
    )
    assert [isinstance(error, kind) for error in raised] == [True]


def test_publishing_on_a_closed_connection_is_refused() -> None:
    with ScriptedServer(welcomed(answering(acked))) as server:
        nc = connected(server.url)
        js = nc.jetstream()
        assert js.publish_async("a.b").result(PATIENCE).seq == 7
        nc.close()
        for call in (
            lambda: js.publish("a.b"),
            lambda: js.publish_async("a.b"),
            lambda: list(js.publish_all([("a.b", b"")])),
            lambda: js.fast_batch().add("a.b"),
            lambda: js.atomic_batch().add("a.b"),
        ):
            with pytest.raises(errors.ConnectionClosedError):
                call()
        js.flush_publishes(0)
        assert bodies(server.received()) == [b""]


# Atomic batches -----------------------------------------------------------------------


def test_options_that_the_server_is_too_old_for_are_refused_by_batches_too() -> None:
    older = handshake({**INFO, "version": "2.12.8"})
    with ScriptedServer([older, answer_pings]) as server, connected(server.url) as nc:
        batch = nc.jetstream().atomic_batch()
        with pytest.raises(failures.UnsupportedByServerError, match="cancel_schedule"):
            batch.add("a.b", cancel_schedule="a.c")
        batch.add("a.b", ttl=1)
        assert len(batch) == 1


# Fast batches -------------------------------------------------------------------------

FAST = re.compile(
    rb"(?P<ping>PING)\r\n"
    rb"|SUB (?P<inbox>\S+) (?P<sid>\d+)\r\n"
    rb"|PUB a\.b (?P<reply>\S+\.(?P<seq>\d+)\.(?P<op>\d)\.\$FI) \d+\r\n"
)


def fast_stream(interval: int, drops: Callable[[int], bool]) -> Step:
    """A stream that acks every `interval` messages and loses the acks that it drops.

    The very first ack has the number 0.
    """

    def step(peer: Peer) -> None:
        sids: dict[bytes, bytes] = {}
        acks, last = 0, 0

        def answer(reply: bytes, body: dict[str, Any]) -> None:
            inbox = next(name for name in sids if reply.startswith(name[:-1]))
            data = json.dumps(body).encode()
            line = b"MSG %b %b %d\r\n" % (reply, sids[inbox], len(data))
            peer.send(line + data + b"\r\n", may_fail=True)

        while True:
            frame = peer.expect(FAST, timeout=60.0)
            if frame["ping"]:
                peer.send(b"PONG\r\n", may_fail=True)
            elif frame["sid"]:
                sids[frame["inbox"]] = frame["sid"]
            else:
                seq, op = int(frame["seq"]), int(frame["op"])
                if op == 3:
                    ack = {"stream": "S", "seq": seq - 1, "batch": "b"}
                    answer(frame["reply"], {**ack, "count": seq - 1})
                    return
                if op != 4:
                    assert seq == last + 1, "no message is missing"
                    last = seq
                if op == 0 and not drops(0):
                    first = {"type": "ack", "seq": 0, "msgs": interval}
                    answer(frame["reply"], first)
                elif op == 4 or (op == 1 and seq % interval == 0):
                    acks += 1
                    if op == 4 or not drops(acks):
                        answer(
                            frame["reply"],
                            {"type": "ack", "seq": last, "msgs": interval},
                        )

    return step


@pytest.mark.parametrize(
    "drops", [lambda ack: ack % 2 == 0, lambda ack: True], ids=["half", "all"]
)
def test_a_fast_batch_asks_for_acks_that_were_lost(
    drops: Callable[[int], bool],
) -> None:
    step = fast_stream(5, drops)
    with (
        ScriptedServer(welcomed(step, answer_pings)) as server,
        connected(server.url) as nc,
    ):
        batch = nc.jetstream().fast_batch(flow=5, max_outstanding=1, timeout=0.3)
        for _ in range(40):
            batch.add("a.b", b"x")
        assert batch.commit().count == 40
        assert b".4.$FI" in server.received(), "it asked"


@pytest.mark.parametrize(
    "control",
    [
        b"hello",
        b"[]",
        b'{"type":"ack"}',
        b'{"type":"ack","seq":"x","msgs":1}',
        b'{"type":"gap"}',
        b'{"type":"err","seq":1}',
        b'{"type":"err","seq":1,"error":5}',
        b"[" * 50_000,
    ],
)
def test_a_fast_batch_that_gets_nonsense_ends_and_nobody_else_does(
    control: bytes,
) -> None:
    def answer(peer: Peer) -> None:
        sid = peer.expect(re.compile(rb"SUB \S+ (\d+)\r\n"))[1]
        reply = peer.expect(re.compile(rb"PUB a\.b (\S+) \d+\r\n"))[1]
        line = b"MSG %b %b %d\r\n" % (reply, sid, len(control))
        peer.send(line + control + b"\r\n")

    with (
        ScriptedServer(welcomed(answer, answer_pings)) as server,
        connected(server.url) as nc,
    ):
        batch = nc.jetstream().fast_batch()
        with pytest.raises(
            (failures.PublishOutcomeUnknownError, failures.InvalidAckError)
        ):
            batch.add("a.b")
        nc.flush()
        assert nc.stats().reconnects == 0
        assert nc._loop.entries == {}


def test_a_fast_batch_whose_server_falls_silent_is_unknown() -> None:
    with (
        ScriptedServer(welcomed(answering(silent))) as server,
        connected(server.url) as nc,
    ):
        batch = nc.jetstream().fast_batch(timeout=0.2)
        with pytest.raises(failures.PublishTimeoutError, match="no ack came"):
            batch.add("a.b")
        assert nc._loop.entries == {}


def test_a_fast_batch_with_a_gap_waits_for_the_last_word_and_sends_nothing() -> None:
    def stream(peer: Peer) -> None:
        sid = peer.expect(re.compile(rb"SUB \S+ (\d+)\r\n"))[1]
        reply = peer.expect(re.compile(rb"PUB a\.b (\S+) \d+\r\n"))[1]

        def say(control: bytes) -> None:
            line = b"MSG %b %b %d\r\n" % (reply, sid, len(control))
            peer.send(line + control + b"\r\n")

        say(b'{"type":"ack","seq":0,"msgs":100}')
        peer.expect(b".2.1.$FI")
        say(b'{"type":"gap","last_seq":2,"seq":3}')
        peer.wait("end")
        say(b'{"stream":"S","seq":1,"batch":"b","count":1}')

    with (
        ScriptedServer(welcomed(stream, answer_pings)) as server,
        connected(server.url) as nc,
    ):
        batch = nc.jetstream().fast_batch(timeout=PATIENCE)
        batch.add("a.b")
        batch.add("a.b")
        while not batch._inbox.count:
            time.sleep(0.001)
        threading.Timer(0.1, server.release, ["end"]).start()
        with pytest.raises(failures.FastBatchError, match="after 1 messages") as caught:
            batch.commit()
        assert caught.value.ack == PubAck("S", 1, batch="b", count=1)
        assert b".3.$FI" not in server.received()


@pytest.mark.parametrize("is_inbox", [False, True])
def test_a_fast_batch_that_is_denied_is_told_at_once(is_inbox: bool) -> None:
    def deny(peer: Peer) -> None:
        inbox = peer.expect(re.compile(rb"SUB (\S+) (\d+)\r\n"))[1]
        peer.expect(b"PUB a.b")
        what = b'Subscription to "%b"' % inbox if is_inbox else b'Publish to "a.b"'
        peer.send(b"-ERR 'Permissions Violation for %b'\r\n" % what)

    with (
        ScriptedServer(welcomed(deny, answer_pings)) as server,
        connected(server.url) as nc,
    ):
        batch = nc.jetstream().fast_batch(timeout=600.0)
        refused, unknown = (
            errors.PermissionsViolationError,
            failures.PublishOutcomeUnknownError,
        )
        with pytest.raises(unknown if is_inbox else refused, match=r"a\.b"):
            batch.add("a.b")
        with pytest.raises(errors.InvalidArgumentError, match="over"):
            batch.add("a.b")
        nc.flush()
        assert nc._loop.entries == {}


@pytest.mark.parametrize("count", [1, 3])
def test_a_fast_batch_ends_with_its_link(count: int) -> None:
    def stream(peer: Peer) -> None:
        sid = peer.expect(re.compile(rb"SUB \S+ (\d+)\r\n"))[1]
        reply = peer.expect(re.compile(rb"PUB a\.b (\S+) \d+\r\n"))[1]
        if count > 1:
            control = b'{"type":"ack","seq":0,"msgs":100}'
            line = b"MSG %b %b %d\r\n" % (reply, sid, len(control))
            peer.send(line + control + b"\r\n")
            peer.expect(b".3.$FI")

    with (
        ScriptedServer(welcomed(stream, reset()), welcomed(answering(acked))) as server,
        connected(server.url) as nc,
    ):
        batch = nc.jetstream().fast_batch(timeout=600.0)
        with pytest.raises(failures.PublishDisconnectedError, match="was lost"):
            add_and_commit(batch, count)
        assert nc.jetstream().publish("a.b", b"next").seq == 7
        assert bodies(server.received(1)) == [b"next"], "nothing of it is repeated"


def add_and_commit(batch: FastBatch, count: int) -> PubAck:
    for _ in range(count):
        batch.add("a.b", b"x")
    return batch.commit()


@pytest.mark.parametrize("buffer", [32 << 20, 1 << 20])
def test_a_fast_batch_whose_time_passed_before_it_was_sent_never_appears(
    buffer: int,
) -> None:
    script = welcomed(stall("go"), answer_pings)
    with (
        ScriptedServer(script, receive_buffer=65536) as server,
        stalled_client(server, write_buffer=buffer) as nc,
    ):
        batch = nc.jetstream().fast_batch(timeout=0.2)
        with pytest.raises(errors.TimeoutError) as caught:
            batch.add("a.b", b"late")
        assert not isinstance(caught.value, failures.PublishOutcomeUnknownError)
        server.release("go")
        nc.flush(PATIENCE)
        assert b"late" not in bodies(server.received())
        assert_empty(nc)


def test_a_link_that_is_lost_before_a_fast_batch_was_sent_stores_nothing() -> None:
    first = [handshake(INFO), stall("cut"), reset()]
    with (
        ScriptedServer(
            first, welcomed(answering(acked)), receive_buffer=65536
        ) as server,
        stalled_client(server, write_buffer=32 << 20) as nc,
    ):
        batch = nc.jetstream().fast_batch(timeout=600.0)
        frames = nc._loop.outbox.frames
        raised: list[BaseException] = []

        def add() -> None:
            try:
                batch.add("a.b", b"late")
            except errors.Error as error:
                raised.append(error)

        adder = threading.Thread(target=add)
        adder.start()
        while nc._loop.outbox.frames < frames + 2:  # its SUB, and the message
            time.sleep(0.001)
        server.release("cut")
        adder.join(PATIENCE)
        assert [type(error) for error in raised] == [errors.DisconnectedError]
        assert nc.jetstream().publish("a.b", b"next").seq == 7
        assert bodies(server.received(1)) == [b"next"]
