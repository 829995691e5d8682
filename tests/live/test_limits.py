"""What servers do not accept: too large, too long, too many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jsclient
from jsclient import errors, events, server
from tests.live.support import PATIENCE, Events
from tests.operators import Operator

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]

# "NATS/1.0\r\n" + "K: v\r\n" + "\r\n"
HEADERS, HEADERS_SIZE = {"K": "v"}, 18

TOO_LONG = "must not be longer than"


@pytest.fixture(scope="module")
def small() -> Iterator[server.Server]:
    """A server that takes messages of 1000 bytes."""
    with server.run(max_payload=1000) as running:
        yield running


# Payloads -----------------------------------------------------------------------------


def test_a_payload_may_be_as_large_as_the_limit(small: server.Server) -> None:
    with jsclient.connect(small.url) as nc:
        assert nc.max_payload == 1000
        sub = nc.subscribe("limit")
        nc.publish("limit", bytes(1000))
        assert len(sub.next(PATIENCE).data) == 1000
        nc.publish("limit", bytes(1000 - HEADERS_SIZE), headers=HEADERS)
        assert len(sub.next(PATIENCE).data) == 1000 - HEADERS_SIZE


def test_one_byte_more_is_refused_here_and_costs_nothing(
    small: server.Server, told: Events
) -> None:
    with jsclient.connect(small.url, on_event=told) as nc:
        sub = nc.subscribe("limit", callback=lambda msg: msg.respond(bytes(1001)))
        for call in (nc.publish, nc.request):
            with pytest.raises(errors.MaxPayloadError):
                call("limit", bytes(1001))
            with pytest.raises(errors.MaxPayloadError):
                call("limit", bytes(1001 - HEADERS_SIZE), headers=HEADERS)
        assert nc.stats().out_msgs == 0
        nc.flush()
        assert told.of(events.Disconnected) == []

        nc.publish("limit", reply="answer")
        refused = told.wait(events.ErrorEvent)
        assert isinstance(refused.error, errors.MaxPayloadError)
        assert refused.subscription is sub


def test_the_next_link_has_its_own_limit(told: Events) -> None:
    with (
        server.run(config="max_payload: 1000") as running,
        jsclient.connect(running.url, on_event=told) as nc,
    ):
        assert nc.max_payload == 1000
        sub = nc.subscribe("limit")
        nc.flush()
        running.reload("max_payload: 500")
        nc.reconnect()
        told.wait(events.Reconnected)
        assert nc.max_payload == 500
        with pytest.raises(errors.MaxPayloadError):
            nc.publish("limit", bytes(501))
        nc.publish("limit", bytes(500))
        assert len(sub.next(PATIENCE).data) == 500


def test_the_limit_of_a_user_is_told_after_the_login() -> None:
    operator = Operator()
    with (
        server.run(config=operator.config) as running,
        jsclient.connect(
            running.url, credentials=operator.creds(payload=100).encode()
        ) as nc,
    ):
        nc.flush()
        assert nc.max_payload == 100
        with pytest.raises(errors.MaxPayloadError):
            nc.publish("limit", bytes(101))
        sub = nc.subscribe("limit")
        nc.publish("limit", bytes(100))
        assert len(sub.next(PATIENCE).data) == 100
        assert nc.stats().reconnects == 0


def test_kept_messages_that_the_next_server_does_not_take_are_dropped_and_told(
    small: server.Server, told: Events
) -> None:
    with (
        server.run() as large,
        jsclient.connect(
            [large.url, small.url],
            randomize=False,
            reconnect_wait=0.05,
            on_event=told,
        ) as nc,
    ):
        sub = nc.subscribe("kept")
        nc.flush()
        small.pause()
        large.kill()
        told.wait(events.Disconnected)
        for size in (10, 5000, 1000, 1001, 20):
            nc.publish("kept", bytes(size))
        small.resume()
        assert told.wait(events.Reconnected).server == small.url
        assert [len(sub.next(PATIENCE).data) for _ in range(3)] == [10, 1000, 20]
        dropped = told.wait(events.ErrorEvent)
        assert isinstance(dropped.error, errors.MaxPayloadError)
        assert str(dropped.error).startswith("2 ")
        nc.flush()
        assert sub.pending_messages == 0
        assert len(told.of(events.Disconnected)) == 1
        with pytest.raises(errors.MaxPayloadError):
            nc.publish("kept", bytes(1001))


def test_unlimited_pending_messages_are_kept(small: server.Server) -> None:
    with jsclient.connect(small.url) as nc:
        sub = nc.subscribe("kept", max_pending_messages=None, max_pending_bytes=None)
        for _ in range(2000):
            nc.publish("kept", bytes(900))
        nc.flush()
        assert (sub.pending_messages, sub.dropped) == (2000, 0)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "1", True])
def test_pending_limits_are_positive_numbers(url: str, bad: int) -> None:
    with jsclient.connect(url) as nc:
        with pytest.raises((ValueError, TypeError), match="max_pending_messages"):
            nc.subscribe("a", max_pending_messages=bad)
        with pytest.raises((ValueError, TypeError), match="max_pending_bytes"):
            nc.subscribe("a", max_pending_bytes=bad)
        nc.flush()
        assert nc.stats().reconnects == 0


# Control lines ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4097, 5000, 100_000])
def test_a_subject_that_no_control_line_can_carry_is_refused_here(
    url: str, told: Events, size: int
) -> None:
    long = "s" * size
    with jsclient.connect(url, on_event=told) as nc:
        with pytest.raises(ValueError, match=TOO_LONG):
            nc.publish(long)
        with pytest.raises(ValueError, match=TOO_LONG):
            nc.publish("s", reply=long)
        with pytest.raises(ValueError, match=TOO_LONG):
            nc.request(long)
        with pytest.raises(ValueError, match=TOO_LONG):
            nc.subscribe(long)
        with pytest.raises(ValueError, match=TOO_LONG):
            nc.subscribe("s", queue=long)
        nc.flush()
        assert told.of(events.Disconnected) == []


def test_subject_and_reply_together_fit_into_the_control_line(
    url: str, told: Events
) -> None:
    with jsclient.connect(url, on_event=told) as nc:
        with pytest.raises(ValueError, match=TOO_LONG):
            nc.publish("s" * 3000, reply="r" * 3000)
        with pytest.raises(ValueError, match=TOO_LONG):
            nc.subscribe("s" * 3000, queue="q" * 3000)
        nc.flush()
        assert told.of(events.Disconnected) == []


def test_a_long_subject_that_fits_goes_through(url: str, told: Events) -> None:
    subject, reply = "s" * 4072, "r" * 3072
    with jsclient.connect(url, on_event=told) as nc:
        exact = nc.subscribe(subject)
        wild = nc.subscribe("s" * 1000 + ".*")
        nc.publish(subject, bytes(100_000), headers=HEADERS)
        nc.publish("s" * 998 + ".a", b"unheard", reply=reply)
        nc.publish("s" * 1000 + ".a", b"heard", reply="r" * 3070)
        nc.flush()
        assert exact.next(0).subject == subject
        heard = wild.next(0)
        assert (heard.data, heard.reply) == (b"heard", "r" * 3070)
        assert told.of(events.Disconnected) == []


def test_a_server_with_shorter_lines_ends_the_link_and_we_go_on(told: Events) -> None:
    with (
        server.run(config="max_control_line: 1024") as strict,
        jsclient.connect(strict.url, reconnect_wait=0.05, on_event=told) as nc,
    ):
        nc.publish("s" * 2000)
        lost = told.wait(events.Disconnected)
        assert isinstance(lost.error, errors.ProtocolError)
        assert "control line" in str(lost.error)
        told.wait(events.Reconnected)
        sub = nc.subscribe("short")
        nc.publish("short", b"x")
        assert sub.next(PATIENCE).data == b"x"
        nc.flush()
        assert len(told.of(events.Disconnected)) == 1


# Connections and subscriptions --------------------------------------------------------


def test_a_full_server_is_passed_over(url: str) -> None:
    with (
        server.run(config="max_connections: 1") as full,
        jsclient.connect(full.url),
    ):
        with jsclient.connect([full.url, url], randomize=False) as nc:
            assert nc.connected_url == url
        with pytest.raises(errors.ServerLimitError, match=str(full.port)):
            jsclient.connect(full.url)


def test_a_full_server_is_tried_until_it_has_room(told: Events) -> None:
    with server.run(config="max_connections: 1") as full:
        first = jsclient.connect(full.url)
        with jsclient.connect(
            full.url, retry_initial=True, reconnect_wait=0.02, on_event=told
        ) as nc:
            failed = told.wait(events.ReconnectFailed, 3)
            assert isinstance(failed.error, errors.ServerLimitError)
            assert not nc.is_closed
            first.close()
            told.wait(events.Connected)
            nc.flush()


def test_too_many_subscriptions_are_told(told: Events) -> None:
    with (
        server.run(config="max_subscriptions: 2") as running,
        jsclient.connect(running.url, on_event=told) as nc,
    ):
        subs = [nc.subscribe("few") for _ in range(3)]
        nc.publish("few", b"x")
        assert subs[0].next(PATIENCE).data == b"x"
        error = told.wait(events.ErrorEvent).error
        assert isinstance(error, errors.ServerError)
        assert "maximum subscriptions" in str(error)
        assert told.of(events.Disconnected) == []
