"""INFO during a session: new facts, bad facts, and facts about other servers."""

from __future__ import annotations

import json

import pytest

import jsclient
from tests.harness.scripted import (
    ScriptedServer,
    answer_ping,
    close,
    expect,
    handshake,
    info_line,
    send,
    wait,
)
from tests.net.client import Recorder, connected
from tests.net.frames import client_frames

SUB = b"SUB a 1\r\n"
HI = b"MSG a 1 2\r\nhi\r\n"


def test_a_later_info_lowers_max_payload_for_the_next_publish() -> None:
    script = [handshake({"max_payload": 64}), send(info_line({"max_payload": 32}))]
    with (
        ScriptedServer([*script, answer_ping(), answer_ping()]) as server,
        connected(server.url) as nc,
    ):
        assert nc.max_payload in (64, 32)
        nc.flush()
        assert nc.max_payload == 32
        nc.publish("a", b"x" * 32)
        with pytest.raises(jsclient.MaxPayloadError):
            nc.publish("a", b"x" * 33)
        nc.flush()
        assert b"x" * 33 not in server.received()
        assert nc.is_connected


def test_headers_count_towards_max_payload_to_the_byte() -> None:
    headers = {"Key": "value"}  # with the version and the empty line 24 bytes
    script = [handshake({"max_payload": 100}), answer_ping()]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        with pytest.raises(jsclient.MaxPayloadError):
            nc.publish("a", b"x" * 77, headers=headers)
        nc.publish("a", b"y" * 76, headers=headers)
        nc.flush()
        frames = client_frames(server.received())
        assert [f.arguments for f in frames if f.verb == b"HPUB"] == [b"a 24 100"]


def test_an_unlimited_max_payload_is_believed() -> None:
    script = [handshake({"max_payload": -1}), answer_ping()]
    with ScriptedServer(script) as server, connected(server.url) as nc:
        nc.publish("a", b"x" * (2 << 20))
        nc.flush()
        client_frames(server.received())


def test_kept_messages_that_the_next_server_does_not_take_are_given_up() -> None:
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake({"max_payload": 100}), close()],
            [
                wait("back"),
                handshake({"max_payload": 10}),
                expect(b"PUB b 2\r\n"),
                answer_ping(),
            ],
        ) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        recorder.wait_for(jsclient.Disconnected)
        nc.publish("a", b"x" * 50)
        nc.publish("b", b"ok")
        server.release("back")
        recorder.error(jsclient.MaxPayloadError)
        nc.flush()
        assert b"xx" not in server.received(1)
        assert nc.stats().reconnects == 1


@pytest.mark.parametrize(
    "line",
    [
        b"INFO\r\n",
        b"INFO {\r\n",
        b"INFO []\r\n",
        b"INFO null\r\n",
        b"INFO {} {}\r\n",
        b'INFO {"max_payload":"big"}\r\n',
        b'INFO {"max_payload":1e3}\r\n',
        b'INFO {"max_payload":true}\r\n',
        b'INFO {"max_payload":' + b"9" * 5000 + b"}\r\n",
        b'INFO {"max_payload":1' + b"0" * 30 + b"}\r\n",
        b'INFO {"ldm":"yes"}\r\n',
        b'INFO {"server_id":{}}\r\n',
        b'INFO {"nonce":[]}\r\n',
        b"INFO \xff\xfe\x00\r\n",
        b"INFO " + b"[" * 100_000 + b"\r\n",
    ],
)
def test_a_bad_info_is_told_and_the_old_facts_stay(line: bytes) -> None:
    recorder = Recorder()
    script = [handshake({"max_payload": 77}), expect(SUB), send(line + HI)]
    with (
        ScriptedServer(script) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        error = recorder.error(jsclient.ServerError)
        assert "INFO" in str(error)
        assert len(str(error)) < 500
        assert nc.max_payload == 77
        assert nc.server_info.server_name == "scripted"
        assert nc.stats().reconnects == 0


def test_missing_and_unknown_fields_and_nulls_are_no_matter() -> None:
    odd = b'INFO {"max_payload":88,"nonce":null,"future":{"x":[1]}}\r\n'
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), expect(SUB), send(odd + HI)]) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        assert nc.max_payload == 88
        assert nc.server_info.raw["future"] == {"x": [1]}
        assert recorder.of(jsclient.ErrorEvent) == []


def test_an_info_of_fifty_kilobytes_is_taken_whole() -> None:
    urls = [f"10.{n // 250}.{n % 250}.1:4222" for n in range(2500)]
    line = info_line({"connect_urls": urls})
    assert len(line) > 40_000
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), expect(SUB), send(line + HI)]) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        found = recorder.wait_for(jsclient.ServersDiscovered)
        assert len(found.servers) == 2500
        assert len(nc.servers) == 2501


def test_garbage_among_connect_urls_is_ignored_with_one_warning() -> None:
    garbage: list[object] = [
        "[bad",
        "a b:1",
        "x" * 100_000,
        "",
        ":4222",
        "host:0",
        "host:99999",
        "host:port",
        "u:p@host:1",
        "nats://host:1/../..",
        5,
        None,
        {},
        ["a:1"],
        "a\nb:1",
        "\ud800:1",
    ]
    line = info_line({"connect_urls": [*garbage, "good.example:1", "[::1]:2"]})
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), expect(SUB), send(line + line + HI)]) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        found = recorder.wait_for(jsclient.ServersDiscovered)
        assert sorted(found.servers) == ["nats://[::1]:2", "nats://good.example:1"]
        assert nc.stats().reconnects == 0
        nc.close()
        recorder.wait_for(jsclient.Closed)
        assert len(recorder.of(jsclient.ErrorEvent)) == 1


@pytest.mark.parametrize("urls", ['"a:1"', "5", '{"a":1}', "null", "[]"])
def test_connect_urls_that_are_no_list_change_nothing(urls: str) -> None:
    line = f'INFO {{"connect_urls":{urls}}}\r\n'.encode()
    with (
        ScriptedServer([handshake(), expect(SUB), send(line + HI)]) as server,
        connected(server.url) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        assert nc.servers == (server.url,)


def test_announced_servers_come_and_go_but_listed_ones_stay() -> None:
    def announce(*urls: str) -> bytes:
        return info_line({"connect_urls": list(urls)})

    lines = announce("b:1", "c:1") + announce("c:1", "d:1") + announce()
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), expect(SUB), send(lines + HI)]) as server,
        connected([server.url, "nats://listed:1"], on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        recorder.wait_for(jsclient.ServersDiscovered, 2)
        told = [set(event.servers) for event in recorder.of(jsclient.ServersDiscovered)]
        assert told == [{"nats://b:1", "nats://c:1"}, {"nats://d:1"}]
        assert set(nc.servers) == {
            server.url,
            "nats://listed:1",
            "nats://c:1",
            "nats://d:1",
        }


def test_announced_servers_can_be_ignored() -> None:
    line = info_line({"connect_urls": ["b:1"]})
    with (
        ScriptedServer([handshake(), expect(SUB), send(line + HI)]) as server,
        connected(server.url, ignore_discovered=True) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        assert nc.servers == (server.url,)


def test_a_discovered_server_takes_over_with_the_credentials_of_the_url() -> None:
    with ScriptedServer([handshake()]) as second:
        announced = {"connect_urls": [f"127.0.0.1:{second.port}"]}
        recorder = Recorder()
        with (
            ScriptedServer([handshake(announced), close()]) as first,
            connected(
                f"nats://me:secret@127.0.0.1:{first.port}",
                on_event=recorder,
            ) as nc,
        ):
            recorder.wait_for(jsclient.Reconnected)
            assert nc.connected_url == second.url
            assert second.connects[0]["pass"] == "secret"


@pytest.mark.parametrize("urls", [None, [], ["b:1"]])
def test_a_lame_duck_is_told_once(urls: list[str] | None) -> None:
    line = info_line({"ldm": True, "connect_urls": urls})
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), expect(SUB), send(line + line + HI)]) as server,
        connected([server.url, "nats://listed:1"], on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        assert recorder.wait_for(jsclient.LameDuck).server == server.url
        assert len(recorder.of(jsclient.LameDuck)) == 1
        assert {server.url, "nats://listed:1"} <= set(nc.servers)
        assert nc.is_connected


def test_a_lame_duck_in_the_first_info_is_no_event() -> None:
    recorder = Recorder()
    script = [handshake({"ldm": True}), expect(SUB), send(HI)]
    with (
        ScriptedServer(script) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        assert nc.subscribe("a").next().data == b"hi"
        nc.close()
        recorder.wait_for(jsclient.Closed)
        assert recorder.of(jsclient.LameDuck) == []


def test_a_lame_duck_is_left_for_another_server_when_asked() -> None:
    recorder = Recorder()
    with (
        ScriptedServer([handshake(), send(info_line({"ldm": True}))]) as first,
        ScriptedServer([handshake()]) as second,
        connected(
            [first.url, second.url], on_event=recorder, reconnect_on_lame_duck=True
        ) as nc,
    ):
        assert recorder.wait_for(jsclient.Reconnected).server == second.url
        assert nc.connected_url == second.url
        first.wait_closed()


def test_server_info_shows_its_facts_and_keeps_the_nonce_to_itself() -> None:
    info = {"nonce": "PXoWU7zWAMt75FY", "version": "2.14.6-rc.1"}
    with (
        ScriptedServer([handshake(info)]) as server,
        connected(server.url) as nc,
    ):
        facts = nc.server_info
        assert facts.version_tuple == (2, 14, 6)
        assert "PXoWU7zWAMt75FY" not in repr(facts)
        assert json.loads(json.dumps(facts.raw))["server_name"] == "scripted"
