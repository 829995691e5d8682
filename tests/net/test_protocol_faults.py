"""Bytes that a server must not send: one bad frame costs one link, nothing more."""

from __future__ import annotations

import os
import random

import pytest

import jsclient
from tests.harness.reference import outcome
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    close,
    expect,
    expect_close,
    handshake,
    info_line,
    send,
    wait,
)
from tests.net.client import Recorder, connected

BEFORE = b"MSG a 1 6\r\nbefore\r\n"
AFTER = b"MSG a 1 5\r\nafter\r\n"
SUB = b"SUB a 1\r\n"

BROKEN = {
    "unknown verb": b"HELLO\r\n",
    "empty line": b"\r\n",
    "verb without arguments": b"MSG\r\n",
    "too few arguments": b"MSG a 1\r\n",
    "too many arguments": b"MSG a 1 b c 2\r\nhi\r\n",
    "sid that is no number": b"MSG a x 2\r\nhi\r\n",
    "negative sid": b"MSG a -1 2\r\nhi\r\n",
    "negative size": b"MSG a 1 -2\r\nhi\r\n",
    "signed size": b"MSG a 1 +2\r\nhi\r\n",
    "size that is no number": b"MSG a 1 abc\r\nhi\r\n",
    "size of 2^63": b"MSG a 1 9223372036854775808\r\nhi\r\n",
    "size of 2^64 + 5": b"MSG a 1 18446744073709551621\r\nhello\r\n",
    "size of 20 digits": b"MSG a 1 00000000000000000002\r\nhi\r\n",
    "size of 1 TiB": b"MSG a 1 1099511627776\r\nhi\r\n",
    "size that no server has": b"MSG a 1 67174401\r\nhi\r\n",
    "size too small by 1": b"MSG a 1 1\r\nhi\r\n",
    "size too small by 2": b"MSG a 1 0\r\nhi\r\n",
    "size too large by 1": b"MSG a 1 3\r\nhi\r\nPING\r\n",
    "size too large by 2": b"MSG a 1 4\r\nhi\r\nPING\r\n",
    "payload without CR LF": b"MSG a 1 2\r\nhi  ",
    "payload with LF only": b"MSG a 1 2\r\nhi\n\n",
    "large payload without CR LF": b"MSG a 1 99999\r\n" + b"x" * 99999 + b"xx",
    "header larger than the message": b"HMSG a 1 30 20\r\n" + b"x" * 20 + b"\r\n",
    "header size that is no number": b"HMSG a 1 x 20\r\n" + b"x" * 20 + b"\r\n",
    "negative header size": b"HMSG a 1 -1 20\r\n" + b"x" * 20 + b"\r\n",
    "control line with LF only": b"PING\n",
    "stray CR": b"PI\rNG\r\n",
    "long control line": b"MSG " + b"a" * 5000 + b" 1 2\r\nhi\r\n",
    "endless line": b"x" * (16 << 20),
    "endless INFO": b"INFO {" + b" " * (2 << 20),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_frame_costs_one_link_and_no_message(broken: bytes) -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [
                handshake(),
                expect(SUB),
                send(BEFORE),
                send(broken, may_fail=True),
                expect_close(),
            ],
            [handshake(), expect(SUB), send(AFTER)],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a")
        assert [sub.next().data, sub.next().data] == [b"before", b"after"]
        recorder.wait_for(jsclient.Reconnected)
        error = recorder.error(jsclient.ProtocolError)
        assert recorder.wait_for(jsclient.Disconnected).error is error
        assert len(recorder.of(jsclient.ErrorEvent)) == 1
        assert nc.stats().reconnects == 1
        assert len(str(error)) < 1000


FINE = {
    "lower case": (b"msg a 1 3\r\nabc\r\nMsg a 1 0\r\n\r\n", [b"abc", b""]),
    "tabs and runs of blanks": (b"MSG\ta  1\t 2 \r\nhi\r\n", [b"hi"]),
    "a frame inside the payload": (b"MSG a 1 8\r\n\r\nPING\r\n\r\n", [b"\r\nPING\r\n"]),
    "header size 0": (b"HMSG a 1 0 2\r\nhi\r\n", [b"hi"]),
    "+OK": (b"+OK\r\nMSG a 1 2\r\nhi\r\n", [b"hi"]),
    "a PONG that nobody asked for": (b"PONG\r\nMSG a 1 2\r\nhi\r\n", [b"hi"]),
    "an unknown sid": (b"MSG b 77 3\r\nbye\r\nMSG a 1 2\r\nhi\r\n", [b"hi"]),
    "an unknown sid with a large payload": (
        b"MSG b 77 99999\r\n" + b"x" * 99999 + b"\r\nMSG a 1 2\r\nhi\r\n",
        [b"hi"],
    ),
}


@pytest.mark.parametrize(("frames", "payloads"), FINE.values(), ids=FINE.keys())
def test_odd_but_lawful_frames_are_taken(frames: bytes, payloads: list[bytes]) -> None:
    script = [handshake(), expect(SUB), send(frames), answer_ping()]
    recorder = Recorder()
    with (
        ScriptedServer(script) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a")
        assert [sub.next().data for _ in payloads] == payloads
        nc.flush()
        assert nc.stats().reconnects == 0
        assert recorder.of(jsclient.ErrorEvent) == []
        assert b"PONG" not in server.received()


def test_a_frame_that_stops_in_the_verb_goes_on_with_the_next_segment() -> None:
    script = [
        handshake(),
        expect(SUB),
        send(b"MS"),
        wait("seen"),
        send(b"G a 1 2\r"),
        send(b"\nh"),
        send(b"i\r\n"),
    ]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        sub = nc.subscribe("a")
        with pytest.raises(jsclient.TimeoutError):
            sub.next(timeout=0.05)
        server.release("seen")
        assert sub.next().data == b"hi"


def hmsg(block: bytes, payload: bytes = b"") -> bytes:
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    return b"HMSG a 1 " + sizes + b"\r\n" + block + payload + b"\r\n"


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0",
        b"hello",
        b"NATS/2.0\r\n\r\n",
        b"NATS/1.0\r\nA: b\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0 4x4 Nothing\r\n\r\n",
        b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
        b"NATS/1.0418\r\n\r\n",
    ],
)
def test_malformed_headers_cost_nothing_but_themselves(block: bytes) -> None:
    frames = hmsg(block, b"x") + hmsg(block, b"y") + hmsg(b"NATS/1.0\r\nK: v\r\n\r\n")
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), expect(SUB), send(frames)]) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        sub = nc.subscribe("a")
        for payload in (b"x", b"y"):
            msg = sub.next()
            assert msg.data == payload
            assert msg.raw_headers == block
            assert msg.status is None
            with pytest.raises(jsclient.BadHeadersError):
                _ = msg.headers
        last = sub.next()
        assert last.headers is not None
        assert last.headers["K"] == "v"
        recorder.error(jsclient.BadHeadersError)
        assert len(recorder.of(jsclient.ErrorEvent)) == 1
        assert nc.stats().reconnects == 0


@pytest.mark.parametrize("token", [b"a.\xff", b"a.\xc3\x28", b"a.\x00b", b"a.\x7f"])
def test_subjects_that_are_no_text_come_and_go_unchanged(token: bytes) -> None:
    frame = b"MSG " + token + b" 1 " + token + b" 2\r\nhi\r\n"
    with (
        ScriptedServer([handshake(), expect(SUB), send(frame)]) as server,
        connected(server.url) as nc,
    ):
        msg = nc.subscribe("a").next()
        assert msg.data == b"hi"
        assert msg.reply == msg.subject
        if b"\x00" not in token:
            msg.respond(b"yes")
            server.wait_for(b"PUB " + token + b" 3\r\nyes\r\n")


def test_header_values_that_are_no_text_come_and_go_unchanged() -> None:
    block = b"NATS/1.0\r\nK: \xff\xfe\r\n\r\n"
    with (
        ScriptedServer([handshake(), expect(SUB), send(hmsg(block))]) as server,
        connected(server.url) as nc,
    ):
        msg = nc.subscribe("a").next()
        nc.publish("b", headers=msg.headers)
        server.wait_for(b"HPUB b 19 19\r\n" + block + b"\r\n")


def test_repeated_header_keys_are_kept_apart_by_case_and_in_order() -> None:
    block = b"NATS/1.0\r\nK: a\r\nK: b\r\nk: c\r\n\r\n"
    with (
        ScriptedServer([handshake(), expect(SUB), send(hmsg(block))]) as server,
        connected(server.url) as nc,
    ):
        headers = nc.subscribe("a").next().headers
        assert headers is not None
        assert headers["K"] == "a"
        assert headers.get_all("K") == ["a", "b"]
        assert headers.get_all("k") == ["c"]


def test_a_status_line_is_read_with_its_description_and_fields() -> None:
    block = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n"
    with (
        ScriptedServer([handshake(), expect(SUB), send(hmsg(block))]) as server,
        connected(server.url) as nc,
    ):
        msg = nc.subscribe("a").next()
        assert (msg.status, msg.description) == (100, "Idle Heartbeat")
        assert msg.headers is not None
        assert msg.headers["Nats-Last-Consumer"] == "5"


def test_a_status_that_a_user_wrote_as_a_header_is_no_status() -> None:
    block = b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n"
    with (
        ScriptedServer([handshake(), expect(SUB), send(hmsg(block))]) as server,
        connected(server.url) as nc,
    ):
        msg = nc.subscribe("a").next()
        assert msg.status is None
        assert msg.headers is not None
        assert msg.headers["Status"] == "409"


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_announced_gigabytes_are_never_allocated() -> None:
    lies = [b"MSG a 1 999999999\r\n", b"HMSG a 1 5 99999999999\r\n"]
    scripts = [[handshake(), expect(SUB), send(lie), expect_close()] for lie in lies]
    with (
        ScriptedServer(*scripts, [handshake(), expect(SUB), send(AFTER)]) as server,
        connected(server.url) as nc,
    ):
        before = resident_bytes()
        assert nc.subscribe("a").next().data == b"after"
        assert resident_bytes() - before < 32 << 20


SESSION = (
    info_line()
    + b"PING\r\n+OK\r\nMSG a 1 5\r\nhello\r\n"
    + b"MSG a.b 1 back 2\r\nhi\r\n"
    + hmsg(b"NATS/1.0\r\nK: v\r\n\r\n", b"xy")
    + b"PONG\r\nMSG a 1 0\r\n\r\n"
)


def mutations(seed: int, count: int) -> list[bytes]:
    """The session cut short or with one byte changed, at places drawn by the seed."""
    rng = random.Random(seed)
    inputs: list[bytes] = []
    for _ in range(count):
        place = rng.randrange(len(SESSION))
        changed = bytearray(SESSION)
        changed[place] = rng.randrange(256)
        inputs.append(bytes(changed) if rng.random() < 0.7 else SESSION[:place])
    return inputs


def expected_payloads(data: bytes) -> list[bytes]:
    """What the reference parser delivers to sid 1 before the input ends or breaks."""
    events = outcome(data).events
    return [event[5] for event in events if event[0] == "MSG" and event[2] == 1]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_sessions_bring_what_the_reference_parser_finds(seed: int) -> None:
    inputs = mutations(seed, 40)
    scripts = [
        [handshake(), expect(SUB), send(data, may_fail=True), close()]
        for data in inputs
    ]
    wanted = [payload for data in inputs for payload in expected_payloads(data)]
    with (
        ScriptedServer(*scripts, [handshake(), expect(SUB), send(AFTER)]) as server,
        connected(server.url, reconnect_wait=0.0) as nc,
    ):
        sub = nc.subscribe("a")
        got = [sub.next().data]
        while got[-1] != b"after":
            got.append(sub.next().data)
        assert got == [*wanted, b"after"], f"seed {seed}"
