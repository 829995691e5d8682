"""TLS against real servers: asked for, first, mutual, and refused with its reason."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

import jsclient
from jsclient import errors, events, server
from tests.certificates import CLIENT_EMAIL, Certificates, Identity
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, Events, all_results, responder

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]


def context(certs: Certificates, client: Identity | None = None) -> ssl.SSLContext:
    """What trusts the CA of the tests and shows the client's certificate, if any."""
    made = ssl.create_default_context(cafile=certs.ca_file)
    if client is not None:
        made.load_cert_chain(client.cert_file, client.key_file)
    return made


def tls_of(identity: Identity, **more: object) -> dict[str, object]:
    return {"cert_file": identity.cert_file, "key_file": identity.key_file, **more}


def plain(url: str) -> str:
    """The same address without a demand for TLS."""
    return url.replace("tls://", "nats://")


@pytest.fixture(scope="module")
def secure(certs: Certificates) -> Iterator[server.Server]:
    """A server that demands TLS."""
    with server.run(tls=tls_of(certs.server)) as running:
        yield running


def check(nc: jsclient.Connection) -> None:
    """The link carries messages."""
    sub = nc.subscribe("checked")
    nc.publish("checked", b"x" * 100_000)
    assert sub.next(PATIENCE).data == b"x" * 100_000


# How TLS comes about ------------------------------------------------------------------


def test_tls_may_be_asked_for_by_an_option(
    secure: server.Server, certs: Certificates
) -> None:
    with jsclient.connect(plain(secure.url), tls=context(certs)) as nc:
        assert nc.server_info.tls_required
        check(nc)


def test_tls_may_be_asked_for_by_the_url(
    secure: server.Server, certs: Certificates
) -> None:
    assert secure.url.startswith("tls://")
    with jsclient.connect(secure.url, tls=context(certs)) as nc:
        assert nc.connected_url == secure.url
        check(nc)


def test_a_server_that_demands_tls_gets_it_without_being_asked(
    secure: server.Server, certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenSSL reads its default certificates from here.
    monkeypatch.setenv("SSL_CERT_FILE", certs.ca_file)
    with jsclient.connect(plain(secure.url)) as nc:
        check(nc)
    with jsclient.connect(secure.url, tls=True) as nc:
        check(nc)


def test_tls_comes_first_where_the_server_wants_it_so(
    certs: Certificates, told: Events
) -> None:
    tls = tls_of(certs.server, handshake_first=True)
    with server.run(tls=tls) as running:
        with jsclient.connect(
            running.url, tls=context(certs), tls_first=True, on_event=told
        ) as nc:
            check(nc)
            nc.reconnect()
            told.wait(events.Reconnected)
            check(nc)
        # Without it both sides wait for the other to begin.
        with pytest.raises(errors.ConnectionError):
            jsclient.connect(running.url, tls=context(certs), connect_timeout=0.5)


def test_a_server_that_only_prefers_tls_first_serves_both(certs: Certificates) -> None:
    tls = tls_of(certs.server, handshake_first=0.2)
    with server.run(tls=tls) as running:
        for tls_first in (True, False):
            with jsclient.connect(
                running.url, tls=context(certs), tls_first=tls_first
            ) as nc:
                check(nc)


def test_tls_first_with_a_server_that_speaks_first_fails(
    secure: server.Server, certs: Certificates
) -> None:
    with pytest.raises(errors.TLSError, match=str(secure.port)):
        jsclient.connect(secure.url, tls=context(certs), tls_first=True)


def test_tls_that_is_only_offered_is_taken_when_asked_for(certs: Certificates) -> None:
    with server.run(tls=tls_of(certs.server, allow_non_tls=True)) as running:
        assert running.url.startswith("nats://")
        with jsclient.connect(running.url) as nc:
            assert nc.server_info.tls_available
            check(nc)
        with jsclient.connect(running.url, tls=context(certs)) as nc:
            check(nc)
        # The handshake really took place: a wrong CA ends it.
        with pytest.raises(errors.TLSError):
            jsclient.connect(running.url, tls=True)


def test_a_server_without_tls_never_gets_connect_when_tls_is_asked_for(
    plain_server: server.Server, certs: Certificates
) -> None:
    with FaultProxy(plain_server.host, plain_server.port) as proxy:
        address = proxy.url.removeprefix("nats://")
        for url, tls in (
            (f"tls://u:secret@{address}", False),
            (f"nats://u:secret@{address}", True),
            (f"nats://u:secret@{address}", context(certs)),
        ):
            with pytest.raises(errors.TLSError, match="offers no TLS") as caught:
                jsclient.connect(url, tls=tls)
            assert "secret" not in str(caught.value)
        assert proxy.connections == 3
        assert proxy.forwarded("c2s") == 0


def test_a_reconnect_does_not_give_tls_up(
    plain_server: server.Server, certs: Certificates, told: Events
) -> None:
    with (
        server.run(tls=tls_of(certs.server)) as running,
        FaultProxy(plain_server.host, plain_server.port) as downgrade,
        jsclient.connect(
            [running.url, downgrade.url],
            tls=context(certs),
            randomize=False,
            reconnect_wait=0.05,
            reconnect_jitter=0.0,
            on_event=told,
        ) as nc,
    ):
        check(nc)
        running.kill()
        failed = told.wait(events.ReconnectFailed)
        assert isinstance(failed.error, errors.TLSError)
        assert downgrade.forwarded("c2s") == 0
        running.restart()
        told.wait(events.Reconnected)
        check(nc)
        assert downgrade.forwarded("c2s") == 0


# Who the server is --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identity", "host", "reason"),
    [
        ("wronghost", "localhost", "(?i)hostname mismatch"),
        ("wronghost", "127.0.0.1", "(?i)ip address mismatch"),
        ("nameonly", "127.0.0.1", "(?i)ip address mismatch"),
        ("expired", "localhost", "(?i)expired"),
        ("self_signed", "localhost", "(?i)self.signed"),
    ],
)
def test_a_certificate_that_is_not_good_is_refused_with_its_reason(
    certs: Certificates, identity: str, host: str, reason: str
) -> None:
    with (
        server.run(
            tls=tls_of(getattr(certs, identity)), users={"u": "secret"}
        ) as running,
        FaultProxy(running.host, running.port) as proxy,
        pytest.raises(errors.TLSError, match=reason) as caught,
    ):
        jsclient.connect(f"tls://u:secret@{host}:{proxy.port}", tls=context(certs))
    assert f"{host}:{proxy.port}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ssl.SSLError)


def test_an_unknown_ca_is_refused(secure: server.Server) -> None:
    with pytest.raises(errors.TLSError, match=r"(?i)unable to get local issuer"):
        jsclient.connect(secure.url, tls=True)


def test_a_certificate_for_a_name_is_good_for_that_name(certs: Certificates) -> None:
    with server.run(tls=tls_of(certs.nameonly)) as running:
        with jsclient.connect(
            f"tls://localhost:{running.port}", tls=context(certs)
        ) as nc:
            check(nc)
        with jsclient.connect(
            running.url, tls=context(certs), tls_hostname="localhost"
        ) as nc:
            check(nc)


def test_turning_the_checks_off_is_warned_of(secure: server.Server) -> None:
    blind = ssl.create_default_context()
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    with pytest.warns(UserWarning, match="does not verify"):
        nc = jsclient.connect(secure.url, tls=blind)
    with nc:
        check(nc)


# Who we are ---------------------------------------------------------------------------


def test_a_client_certificate_is_shown_where_it_is_wanted(certs: Certificates) -> None:
    tls = tls_of(certs.server, ca_file=certs.ca_file, verify=True)
    with server.run(tls=tls) as running:
        with jsclient.connect(running.url, tls=context(certs, certs.client)) as nc:
            assert nc.server_info.tls_verify
            check(nc)
        with pytest.raises(errors.TLSError):
            jsclient.connect(running.url, tls=context(certs))


def test_a_client_certificate_says_who_the_user_is(
    certs: Certificates, told: Events
) -> None:
    tls = tls_of(certs.server, ca_file=certs.ca_file, verify_and_map=True)
    users = [
        {
            "user": CLIENT_EMAIL,
            "permissions": {"publish": "mine.>", "subscribe": "mine.>"},
        }
    ]
    with (
        server.run(tls=tls, users=users) as running,
        jsclient.connect(
            running.url, tls=context(certs, certs.client), on_event=told
        ) as nc,
    ):
        sub = nc.subscribe("mine.x")
        nc.publish("mine.x", b"mine")
        assert sub.next(PATIENCE).data == b"mine"
        nc.publish("yours.x")
        error = told.wait(events.ErrorEvent).error
        assert isinstance(error, errors.PermissionsViolationError)
        assert error.subject == "yours.x"


def test_a_user_and_password_go_over_tls(certs: Certificates) -> None:
    with server.run(tls=tls_of(certs.server), users={"u": "secret"}) as running:
        with jsclient.connect(
            running.url, tls=context(certs), user="u", password="secret"
        ) as nc:
            check(nc)
        with pytest.raises(errors.AuthorizationError) as caught:
            jsclient.connect(
                running.url, tls=context(certs), user="u", password="hidden"
            )
        assert "hidden" not in str(caught.value)


# Load ---------------------------------------------------------------------------------


def test_requests_are_answered_over_tls(
    secure: server.Server, certs: Certificates
) -> None:
    trusted = context(certs)
    with (
        responder(secure.url, "echo", tls=trusted),
        jsclient.connect(secure.url, tls=trusted) as nc,
    ):

        def ask(number: int) -> bool:
            return all(
                nc.request("echo", b"%d/%d" % (number, turn), timeout=60.0).data
                == b"%d/%d" % (number, turn)
                for turn in range(50)
            )

        assert all(all_results(20, ask))
        with pytest.raises(errors.NoRespondersError):
            nc.request("nobody", timeout=PATIENCE)


def test_threads_read_and_write_one_tls_link_at_once(
    secure: server.Server, certs: Certificates
) -> None:
    senders, each = 4, 50_000
    payload = b"x" * 100
    with jsclient.connect(secure.url, tls=context(certs)) as nc:
        subs = [nc.subscribe(f"load.{number}") for number in range(senders)]
        nc.flush()

        def work(number: int) -> int:
            if number < senders:
                for turn in range(each):
                    nc.publish(f"load.{number}", b"%08d" % turn + payload, timeout=60.0)
                return each
            sub = subs[number - senders]
            for turn in range(each):
                assert int(sub.next(60.0).data[:8]) == turn
            return each

        assert all_results(2 * senders, work, 100.0) == [each] * 2 * senders
        nc.flush(60.0)
        assert [sub.pending_messages for sub in subs] == [0] * senders
        assert nc.stats().reconnects == 0


def test_large_messages_go_both_ways_over_tls(
    secure: server.Server, certs: Certificates
) -> None:
    large = bytes(range(256)) * 4096
    with jsclient.connect(secure.url, tls=context(certs)) as nc:
        sub = nc.subscribe("large")

        def work(number: int) -> bool:
            if number == 0:
                for _ in range(20):
                    nc.publish("large", large, timeout=60.0)
                return True
            return all(sub.next(60.0).data == large for _ in range(20))

        assert all_results(2, work) == [True, True]


# Reconnecting -------------------------------------------------------------------------


def test_what_is_published_during_an_outage_arrives_over_the_next_tls_link(
    certs: Certificates, told: Events
) -> None:
    with (
        server.run(tls=tls_of(certs.server)) as running,
        jsclient.connect(
            running.url,
            tls=context(certs),
            reconnect_wait=0.05,
            reconnect_jitter=0.0,
            on_event=told,
        ) as nc,
    ):
        sub = nc.subscribe("kept")
        nc.flush()
        running.kill()
        told.wait(events.Disconnected)
        for number in range(10):
            nc.publish("kept", b"%d" % number)
        running.restart()
        told.wait(events.Reconnected)
        assert [int(sub.next(PATIENCE).data) for _ in range(10)] == list(range(10))


def test_a_tls_link_that_is_cut_under_load_is_made_again(
    secure: server.Server, certs: Certificates, told: Events
) -> None:
    with (
        FaultProxy(secure.host, secure.port) as proxy,
        jsclient.connect(
            f"tls://127.0.0.1:{proxy.port}",
            tls=context(certs),
            reconnect_wait=0.02,
            reconnect_jitter=0.0,
            on_event=told,
        ) as nc,
    ):
        sub = nc.subscribe("cut")
        nc.flush()
        for cut in range(1, 6):
            proxy.set("c2s" if cut % 2 else "s2c", cut_after=30_000 * cut + 7)
            for _ in range(10):
                nc.publish("cut", bytes(50_000))
            told.wait(events.Reconnected, cut)
        nc.publish("cut", b"last")
        while (data := sub.next(PATIENCE).data) != b"last":
            assert data == bytes(50_000)


def test_an_idle_tls_link_answers_the_servers_pings(certs: Certificates) -> None:
    config = 'ping_interval: "50ms"\nping_max: 2'
    with (
        server.run(tls=tls_of(certs.server), config=config) as impatient,
        jsclient.connect(impatient.url, tls=context(certs)) as nc,
    ):
        sub = nc.subscribe("late")
        with pytest.raises(errors.TimeoutError):
            sub.next(0.3)
        assert nc.stats().reconnects == 0
        check(nc)
