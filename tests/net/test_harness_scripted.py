"""The scripted server, played against plain sockets."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.harness.leaks import measured
from tests.harness.scripted import (
    Peer,
    ScriptedServer,
    ScriptError,
    answer_ping,
    close,
    expect,
    expect_close,
    half_close,
    handshake,
    info_line,
    reset,
    send,
    stall,
    start_tls,
    trickle,
    wait,
)

CONNECT = b'CONNECT {"verbose":false,"name":"me"}\r\nPING\r\n'


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from measured(request.node)


def dial(server: ScriptedServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30.0)


def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = sock.recv(65536)
        assert piece, f"the server closed after {data!r}"
        data += piece
    return data


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def fill(sock: socket.socket) -> int:
    """Send until the kernel takes no more; how many bytes it took."""
    sock.settimeout(0.1)
    sent = 0
    while True:
        try:
            sent += sock.send(b"x" * 65536)
        except TimeoutError:
            return sent


def test_a_handshake_sends_info_and_answers_the_first_ping() -> None:
    script = [handshake({"max_payload": 99, "jetstream": None})]
    with ScriptedServer(script) as server, dial(server) as sock:
        assert server.url == f"nats://127.0.0.1:{server.port}"
        line = read_until(sock, b"\r\n")
        assert line.startswith(b"INFO {")
        assert line.endswith(b"} \r\n")
        info = json.loads(line[5:])
        assert info["version"] == "2.15.1"
        assert info["port"] == server.port
        assert info["max_payload"] == 99
        assert "jetstream" not in info
        sock.sendall(CONNECT)
        assert read_until(sock, b"\r\n") == b"PONG\r\n"
        server.finish()
        assert server.connects == [{"verbose": False, "name": "me"}]
        assert server.received(0) == CONNECT


def test_steps_send_whole_and_byte_by_byte_in_order() -> None:
    with ScriptedServer(
        [send(b"one "), trickle(b"two "), send(b"three"), close()]
    ) as s:
        with dial(s) as sock:
            assert read_all(sock) == b"one two three"
        s.finish()


def test_expectations_are_met_in_order_each_after_the_last() -> None:
    script = [
        expect(re.compile(rb"SUB (\w+) \d+\r\n")),
        expect(b"SUB b 2"),
        answer_ping(),
    ]
    with ScriptedServer(script) as server, dial(server) as sock:
        sock.sendall(b"SUB a 1\r\nSU")
        assert server.wait_for(re.compile(rb"SUB (\w) 1\r\n"))[1] == b"a"
        sock.sendall(b"B b 2\r\nPING\r\n")
        assert read_until(sock, b"\r\n") == b"PONG\r\n"
        server.finish()


def test_an_expectation_that_is_not_met_in_time_is_raised_at_the_end() -> None:
    def play() -> None:
        script = [expect(b"SUB", timeout=0.1)]
        with ScriptedServer(script) as server, dial(server) as sock:
            sock.sendall(b"PUB x")
            assert sock.recv(1) == b""

    with pytest.raises(ScriptError, match="expect b'SUB': client sent last b'PUB x'"):
        play()


def test_an_expectation_of_a_client_that_closed_fails_at_once() -> None:
    with ScriptedServer([expect(b"SUB", timeout=60.0)]) as server:
        with dial(server) as sock:
            sock.sendall(b"PUB")
        with pytest.raises(ScriptError, match="client closed, sent last b'PUB'"):
            server.finish()


def test_waiting_for_what_never_comes_times_out_and_shows_what_came() -> None:
    with ScriptedServer([]) as server, dial(server) as sock:
        sock.sendall(b"hello")
        server.wait_for(b"hello")
        with pytest.raises(TimeoutError, match="hello"):
            server.wait_for(b"goodbye", timeout=0.05)
        with pytest.raises(TimeoutError):
            server.wait_for(b"", connection=1, timeout=0.05)


def test_an_exception_of_a_scripts_own_step_comes_back() -> None:
    def stumble(peer: Peer) -> None:
        raise ZeroDivisionError(f"on connection {peer.index}")

    def play() -> None:
        with ScriptedServer([stumble]) as server, dial(server) as sock:
            assert sock.recv(1) == b""

    with pytest.raises(ZeroDivisionError, match="on connection 0"):
        play()


def test_each_connection_plays_the_next_script_and_then_is_refused() -> None:
    with ScriptedServer([send(b"1"), close()], [send(b"2"), close()]) as server:
        for answer in (b"1", b"2"):
            with dial(server) as sock:
                assert read_all(sock) == answer
        with pytest.raises(ConnectionRefusedError):
            dial(server)
        assert server.connections == 2


def test_the_last_script_repeats_when_asked_to() -> None:
    with ScriptedServer([send(b"1")], [send(b"2")], repeat=True) as server:
        for answer in (b"1", b"2", b"2", b"2"):
            with dial(server) as sock:
                assert sock.recv(1) == answer
        server.wait_connections(4)
        server.wait_closed(3)


def test_a_script_waits_for_its_release_and_reads_meanwhile() -> None:
    with ScriptedServer([wait("go"), send(b"went")]) as server, dial(server) as sock:
        sock.sendall(b"early")
        server.wait_for(b"early")
        server.release("go")
        assert read_until(sock, b"went") == b"went"


def test_a_stalled_peer_blocks_its_client_until_the_release() -> None:
    script = [stall("go"), expect(b"end")]
    with ScriptedServer(script, receive_buffer=4096) as server, dial(server) as sock:
        sent = fill(sock)
        assert server.received(0) == b""
        server.release("go")
        sock.settimeout(30.0)
        sock.sendall(b"end")
        server.finish()
        assert server.received(0) == b"x" * sent + b"end"


def test_a_half_closed_peer_still_reads() -> None:
    script = [half_close(), expect(b"later")]
    with ScriptedServer(script) as server, dial(server) as sock:
        assert sock.recv(1) == b""
        sock.sendall(b"later")
        server.finish()


def test_close_is_a_fin_even_when_the_client_has_just_written() -> None:
    script = [stall("go"), send(b"x"), close()]
    with ScriptedServer(script) as server, dial(server) as sock:
        sock.sendall(b"unread")
        server.release("go")
        assert read_all(sock) == b"x"
        assert server.received(0) == b"unread"


def test_reset_is_a_rst_after_what_was_sent() -> None:
    script = [send(b"x"), expect(b"y"), reset()]
    with ScriptedServer(script) as server, dial(server) as sock:
        assert sock.recv(10) == b"x"
        sock.sendall(b"y")
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_the_end_of_the_client_can_be_expected() -> None:
    with ScriptedServer([expect_close()]) as server:
        dial(server).close()
        server.finish()
        server.wait_closed()


def test_that_a_client_left_during_the_handshake_is_told_only_to_who_waits() -> None:
    with ScriptedServer([handshake()]) as server:
        dial(server).close()
        server.wait_closed()
    with ScriptedServer([handshake()]) as server:
        dial(server).close()
        with pytest.raises(ScriptError, match="connection 0"):
            server.finish()

    def say_something_else() -> None:
        with ScriptedServer([handshake(timeout=0.1)]) as server, dial(server) as sock:
            sock.sendall(b"hello")
            read_all(sock)

    with pytest.raises(ScriptError, match="client sent last b'hello'"):
        say_something_else()


def test_sending_to_a_client_that_left_fails_unless_it_may() -> None:
    flood = b"x" * (8 << 20)
    with ScriptedServer([expect_close(), send(flood, may_fail=True)]) as server:
        dial(server).close()
        server.finish()
    with ScriptedServer([expect_close(), send(flood)]) as server:
        dial(server).close()
        with pytest.raises(ScriptError, match="send b'xxx"):
            server.finish()


def test_a_step_after_the_end_of_the_connection_is_a_mistake() -> None:
    with (
        ScriptedServer([close(), send(b"x")]) as server,
        dial(server),
        pytest.raises(ScriptError, match="send after the end"),
    ):
        server.finish()


def test_a_large_answer_and_a_large_question_pass_each_other() -> None:
    flood = b"x" * (4 << 20)
    with ScriptedServer([send(flood), close()]) as server, dial(server) as sock:
        sock.sendall(flood + b"end")
        server.wait_for(b"end")
        assert len(read_all(sock)) == len(flood)


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for a server on 127.0.0.1, and for clients that trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "scripted")])
    now = datetime.datetime.now(datetime.timezone.utc)
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


def test_a_connection_is_upgraded_to_tls_after_info(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_side, client_side = contexts
    script = [handshake(tls=server_side), trickle(b"hello"), close()]
    with ScriptedServer(script) as server, dial(server) as plain:
        info = json.loads(read_until(plain, b"\r\n")[5:])
        assert info["tls_required"] is True
        with client_side.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
            sock.sendall(CONNECT)
            assert read_until(sock, b"\r\n") == b"PONG\r\n"
            assert read_until(sock, b"hello") == b"hello"
            assert sock.recv(1) == b""
        assert server.received(0) == CONNECT
        assert server.received_raw(0)[:2] == b"\x16\x03"
        assert b"CONNECT" not in server.received_raw(0)


def test_tls_may_come_before_info_and_carries_large_data(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_side, client_side = contexts
    flood = b"x" * (1 << 20)
    script = [
        start_tls(server_side),
        send(info_line()),
        expect(b"end"),
        send(flood),
        close(),
    ]
    with (
        ScriptedServer(script) as server,
        dial(server) as plain,
        client_side.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        assert read_until(sock, b"\r\n") == info_line()
        sock.sendall(flood + b"end")
        assert read_all(sock) == flood


def test_bytes_read_before_the_tls_step_belong_to_the_handshake(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_side, client_side = contexts

    def when_hello_came(peer: Peer) -> None:
        while not peer.received.startswith(b"\x16\x03"):
            peer.wait("hello")

    script = [send(b"INFO\r\n"), when_hello_came, start_tls(server_side), send(b"x")]
    with ScriptedServer(script) as server, dial(server) as plain:
        read_until(plain, b"\r\n")
        plain.settimeout(30.0)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_side.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        plain.sendall(outgoing.read())
        server.wait_for(b"\x16\x03")
        server.release("hello")
        is_done = False
        while not is_done:
            incoming.write(plain.recv(65536))
            try:
                tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                continue
        plain.sendall(outgoing.read())
        server.finish()
        assert server.received(0) == b""


def test_a_refused_certificate_is_an_error_unless_it_may_be(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_side, _ = contexts
    distrustful = ssl.create_default_context()

    def refuse(server: ScriptedServer) -> None:
        with dial(server) as plain, pytest.raises(ssl.SSLCertVerificationError):
            distrustful.wrap_socket(plain, server_hostname="127.0.0.1")

    with ScriptedServer([start_tls(server_side, may_fail=True)]) as server:
        refuse(server)
        server.finish()
    with ScriptedServer([start_tls(server_side)]) as server:
        refuse(server)
        with pytest.raises(ssl.SSLError):
            server.finish()
