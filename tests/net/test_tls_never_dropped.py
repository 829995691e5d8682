"""TLS that was asked for is never given up; no secret is written before it stands."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

import jsclient
from tests import certificates
from tests.certificates import Certificates, Identity
from tests.harness.scripted import (
    Peer,
    ScriptedServer,
    answer_ping,
    close,
    expect,
    expect_close,
    handshake,
    info_line,
    send,
    start_tls,
)
from tests.net.client import Recorder, connected

PASSWORD = "correct-horse-battery"
SUB = b"SUB a 1\r\n"


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory: Path = tmp_path_factory.mktemp("certificates")
    return certificates.write(directory)


def server_side(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.cert_file, identity.key_file)
    return context


def client_side(certs: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certs.ca_file)


def by(url: str, scheme: str, host: str = "127.0.0.1") -> str:
    """The URL of a scripted server with the password in it."""
    port = url.rpartition(":")[2]
    return f"{scheme}://me:{PASSWORD}@{host}:{port}"


def never_told(server: ScriptedServer) -> bool:
    """Whether no connection has carried a secret or a CONNECT in clear."""
    return not any(
        word in server.received_raw(number)
        for number in range(server.connections)
        for word in (PASSWORD.encode(), b"CONNECT")
    )


@pytest.mark.parametrize("scheme", ["nats", "tls"])
@pytest.mark.parametrize("offer", [{}, {"tls_required": False, "tls_available": False}])
def test_a_server_without_tls_gets_nothing_if_tls_was_asked_for(
    certs: Certificates, scheme: str, offer: dict[str, object]
) -> None:
    with ScriptedServer([send(info_line(offer)), expect_close()]) as server:
        with pytest.raises(jsclient.TLSError):
            connected(by(server.url, scheme), tls=client_side(certs))
        server.finish()
        assert server.received_raw() == b""


def test_the_scheme_alone_asks_for_tls(certs: Certificates) -> None:
    with ScriptedServer([send(info_line()), expect_close()]) as server:
        with pytest.raises(jsclient.TLSError):
            connected(by(server.url, "tls"))
        server.finish()
        assert server.received_raw() == b""


def test_one_entry_of_the_pool_with_tls_makes_all_demand_it() -> None:
    with ScriptedServer([send(info_line()), expect_close()]) as server:
        with pytest.raises(jsclient.Error):
            connected([by(server.url, "nats"), "tls://127.0.0.1:1"])
        server.finish()
        assert server.received_raw() == b""


@pytest.mark.parametrize("field", ["tls_required", "tls_available"])
def test_an_offer_of_tls_is_taken_before_connect(
    certs: Certificates, field: str
) -> None:
    script = [
        send(info_line({field: True})),
        start_tls(server_side(certs.server)),
        expect(b"CONNECT "),
        expect(b"PING\r\n"),
        send(b"PONG\r\n"),
        answer_ping(),
    ]
    with (
        ScriptedServer(script) as server,
        connected(by(server.url, "tls"), tls=client_side(certs)) as nc,
    ):
        nc.flush()
        (fields,) = server.connects
        assert fields["tls_required"] is True
        assert fields["pass"] == PASSWORD
        assert never_told(server)


def test_a_server_that_demands_tls_gets_it_without_being_asked(
    certs: Certificates,
) -> None:
    # The context only says whom to trust; nothing here demands TLS but the server.
    with ScriptedServer(
        [
            send(info_line({"tls_required": True})),
            start_tls(server_side(certs.server), may_fail=True),
        ]
    ) as server:
        with pytest.raises(jsclient.TLSError):
            connected(by(server.url, "nats"))
        server.finish()
        assert never_told(server)


def test_no_reconnect_falls_back_to_clear_text(certs: Certificates) -> None:
    clear = [send(info_line()), expect_close()]
    recorder = Recorder()
    with (
        ScriptedServer(
            [handshake(tls=server_side(certs.server)), close()],
            clear,
            clear,
            [handshake(tls=server_side(certs.server))],
        ) as server,
        connected(
            by(server.url, "nats"), tls=client_side(certs), on_event=recorder
        ) as nc,
    ):
        recorder.wait_for(jsclient.Reconnected)
        failures = recorder.of(jsclient.ReconnectFailed)
        assert [type(event.error) for event in failures] == [jsclient.TLSError] * 2
        assert nc.is_connected
        assert never_told(server)


def test_no_discovered_server_is_spoken_to_in_clear_text(certs: Certificates) -> None:
    recorder = Recorder()
    with ScriptedServer([send(info_line()), expect_close()], repeat=True) as clear:
        announced = {"connect_urls": [f"127.0.0.1:{clear.port}"]}
        secure = server_side(certs.server)
        with (
            ScriptedServer(
                [handshake(announced, tls=secure), close()], [handshake(tls=secure)]
            ) as server,
            connected(
                by(server.url, "nats"), tls=client_side(certs), on_event=recorder
            ),
        ):
            recorder.wait_for(jsclient.Reconnected)
            assert clear.connections >= 1
            assert clear.received_raw() == b""


def test_tls_first_begins_with_a_client_hello(certs: Certificates) -> None:
    script = [
        start_tls(server_side(certs.server)),
        handshake(),
        answer_ping(),
    ]
    with (
        ScriptedServer(script) as server,
        connected(server.url, tls=client_side(certs), tls_first=True) as nc,
    ):
        nc.flush()
        # A handshake record (22) of TLS (3.x) with a ClientHello (1).
        raw = server.received_raw()
        assert (raw[0], raw[1], raw[5]) == (22, 3, 1)


def test_tls_first_against_a_server_that_speaks_first_fails_in_time(
    certs: Certificates,
) -> None:
    with ScriptedServer([send(info_line()), expect_close()]) as server:
        with pytest.raises(jsclient.TLSError):
            connected(by(server.url, "nats"), tls=client_side(certs), tls_first=True)
        server.finish()
        assert never_told(server)


Choice = Callable[[Certificates], Identity]


@pytest.mark.parametrize(
    "choose",
    [
        pytest.param(lambda certs: certs.wronghost, id="another host"),
        pytest.param(lambda certs: certs.nameonly, id="no address"),
        pytest.param(lambda certs: certs.expired, id="expired"),
        pytest.param(lambda certs: certs.self_signed, id="signed by itself"),
        pytest.param(lambda certs: certs.client, id="for clients"),
    ],
)
def test_a_bad_certificate_ends_the_attempt_before_connect(
    certs: Certificates, choose: Choice
) -> None:
    script = [
        send(info_line({"tls_required": True})),
        start_tls(server_side(choose(certs)), may_fail=True),
        # The server's side may think that all is well before it learns better.
        expect_close(),
    ]
    with ScriptedServer(script) as server:
        with pytest.raises(jsclient.TLSError) as caught:
            connected(by(server.url, "tls"), tls=client_side(certs))
        assert "certificate" in str(caught.value).lower()
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        server.finish()
        assert server.received() in (b"", bytes(info_line()))
        assert never_told(server)


def test_the_system_s_trust_is_the_default(certs: Certificates) -> None:
    script = [
        send(info_line({"tls_required": True})),
        start_tls(server_side(certs.server), may_fail=True),
        expect_close(),
    ]
    with ScriptedServer(script) as server:
        with pytest.raises(jsclient.TLSError):
            connected(by(server.url, "tls"), tls=True)
        server.finish()
        assert never_told(server)


def test_the_name_to_verify_is_never_taken_from_info(certs: Certificates) -> None:
    offer = {"tls_required": True, "host": "other.example", "server_name": "other"}
    script = [
        send(info_line(offer)),
        start_tls(server_side(certs.wronghost), may_fail=True),
        expect_close(),
    ]
    with ScriptedServer(script) as server:
        with pytest.raises(jsclient.TLSError):
            connected(by(server.url, "tls", "localhost"), tls=client_side(certs))
        server.finish()
        assert never_told(server)


def test_the_user_may_name_whom_to_verify(certs: Certificates) -> None:
    with (
        ScriptedServer([handshake(tls=server_side(certs.wronghost))]) as server,
        connected(
            server.url, tls=client_side(certs), tls_hostname="other.example"
        ) as nc,
    ):
        assert nc.is_connected


def test_a_discovered_address_is_verified_by_the_name_of_the_cluster(
    certs: Certificates,
) -> None:
    secure = server_side(certs.nameonly)
    recorder = Recorder()
    with ScriptedServer([handshake(tls=secure)]) as second:
        announced = {"connect_urls": [f"127.0.0.1:{second.port}"]}
        with (
            ScriptedServer([handshake(announced, tls=secure), close()]) as first,
            connected(
                f"tls://localhost:{first.port}",
                tls=client_side(certs),
                on_event=recorder,
            ),
        ):
            found = recorder.wait_for(jsclient.Reconnected)
            assert found.server == f"tls://127.0.0.1:{second.port}"


@pytest.mark.parametrize(
    "forged",
    [
        b"MSG a 1 6\r\nforged\r\n",
        b"MSG a 1 6\r\nfor",
        b"PONG\r\n",
        b"PING\r\n",
        b"INFO {}\r\n",
        b"M",
    ],
)
def test_bytes_before_the_handshake_are_not_taken_into_the_session(
    certs: Certificates, forged: bytes
) -> None:
    offer = info_line({"tls_required": True})
    with ScriptedServer([send(offer + forged), expect_close()]) as server:
        with pytest.raises(jsclient.ProtocolError):
            connected(by(server.url, "tls"), tls=client_side(certs))
        server.finish()
        assert never_told(server)


def test_a_session_over_tls_survives_single_bytes_and_large_messages(
    certs: Certificates,
) -> None:
    def trickled(peer: Peer) -> None:
        peer.trickle(b"MSG a 1 2\r\nhi\r\n")
        peer.send(b"MSG a 1 300000\r\n" + b"x" * 300_000 + b"\r\n")

    secure = server_side(certs.server)
    with (
        ScriptedServer(
            [handshake(tls=secure), expect(SUB), trickled, answer_ping()]
        ) as server,
        connected(server.url, tls=client_side(certs)) as nc,
    ):
        sub = nc.subscribe("a")
        assert sub.next().data == b"hi"
        assert sub.next().data == b"x" * 300_000
        nc.publish("b", b"y" * 900_000)
        nc.flush()
        assert b"PUB b 900000\r\n" + b"y" * 900_000 + b"\r\n" in server.received()


def test_an_end_inside_tls_is_a_lost_link(certs: Certificates) -> None:
    secure = server_side(certs.server)

    def cut(peer: Peer) -> None:
        peer.send(b"MSG a 1 5\r\nhal")
        peer.reset()

    last = [handshake(tls=secure), expect(SUB), send(b"MSG a 1 5\r\nwhole\r\n")]
    with (
        ScriptedServer([handshake(tls=secure), expect(SUB), cut], last) as server,
        connected(server.url, tls=client_side(certs)) as nc,
    ):
        assert nc.subscribe("a").next().data == b"whole"


def test_a_context_that_verifies_nothing_is_warned_about() -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        ScriptedServer([close()]) as server,
        pytest.warns(UserWarning, match="verify"),
        pytest.raises(jsclient.Error),
    ):
        connected(server.url, tls=context)
