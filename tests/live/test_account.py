"""Accounts: what JetStream tells of them, their limits, domains and foreign APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient import server
from jsclient._server_process import free_ports
from jsclient.config import StreamSource
from jsclient.jetstream import JetStream
from tests.harness.streams import lent_jetstream
from tests.live.support import PATIENCE, until

pytestmark = pytest.mark.live

# B uses the API of A as `JSA.API`; C has no JetStream.
ACCOUNTS = """
    A {
        jetstream: {max_mem: 8MB, max_file: 16MB, max_streams: 2, max_consumers: 2}
        users: [{user: a, password: a}]
        exports: [{service: "$JS.API.>", response_type: stream}, {service: "s.>"}]
    }
    B {
        users: [{user: b, password: b}]
        imports: [
            {service: {account: A, subject: "$JS.API.>"}, to: "JSA.API.>"}
            {service: {account: A, subject: "s.>"}}
        ]
    }
    C { users: [{user: c, password: c}] }
    D {
        jetstream: enabled
        users: [{user: d, password: d, permissions: {publish: {deny: [
            "$JS.API.STREAM.DELETE.>", "$JS.API.DIRECT.GET.>"
        ]}}}]
    }
"""


@pytest.fixture(scope="module")
def accounts() -> Iterator[server.Server]:
    """A server with the accounts above."""
    with server.run(jetstream=True, accounts=ACCOUNTS) as running:
        yield running


@pytest.fixture
def limited(accounts: server.Server) -> Iterator[JetStream]:
    """The JetStream of account A, without streams."""
    with lent_jetstream(accounts.url, user="a", password="a") as js:
        yield js


def make(js: JetStream, **fields: Any) -> jsclient.stream.Stream:
    return js.create_stream(
        **{"name": "S", "subjects": ["s.>"], "storage": "memory", **fields}
    )


# What is told -------------------------------------------------------------------------


def test_an_account_tells_what_it_uses_and_may_use(limited: JetStream) -> None:
    info = limited.account_info()
    assert (info.streams, info.consumers, info.memory, info.storage) == (0, 0, 0, 0)
    assert (info.limits.max_memory, info.limits.max_storage) == (8 << 20, 16 << 20)
    assert (info.limits.max_streams, info.limits.max_consumers) == (2, 2)
    assert info.limits.max_ack_pending == -1
    assert info.domain is None
    assert info.tiers == {}
    assert info.api.level >= 5
    make(limited).create_consumer(name="C")
    limited.publish("s.a", bytes(1000))
    info = limited.account_info()
    assert (info.streams, info.consumers) == (1, 1)
    assert info.memory > 1000


def test_a_server_without_jetstream_says_so_at_once(url: str) -> None:
    with jsclient.connect(url) as nc:
        js = nc.jetstream(timeout=None)  # type: ignore[arg-type]
        for call in (
            js.account_info,
            js.stream_names,
            lambda: js.stream("S"),
            lambda: js.create_stream(name="S"),
            lambda: js.delete_stream("S"),
        ):
            with pytest.raises(failures.JetStreamNotEnabledError) as caught:
                call()
            assert (caught.value.code, caught.value.err_code) == (503, 0)


def test_an_account_without_jetstream_says_so_at_once(accounts: server.Server) -> None:
    with jsclient.connect(accounts.url, user="c", password="c") as nc:
        js = nc.jetstream(timeout=PATIENCE)
        with pytest.raises(failures.JetStreamNotEnabledError) as caught:
            js.account_info()
        assert (caught.value.code, caught.value.err_code) == (503, 10039)


def test_what_the_user_may_not_ask_is_told_at_once(accounts: server.Server) -> None:
    with jsclient.connect(accounts.url, user="d", password="d") as nc:
        js = nc.jetstream(timeout=PATIENCE)
        stream = make(js, allow_direct=True)
        js.publish("s.a")
        with pytest.raises(jsclient.PermissionsViolationError, match=r"DELETE\.S"):
            js.delete_stream("S")
        with pytest.raises(jsclient.PermissionsViolationError, match=r"DIRECT\.GET\.S"):
            stream.get_msg(1)
        with pytest.raises(jsclient.PermissionsViolationError, match=r"DIRECT\.GET\.S"):
            next(stream.get_msgs())
        assert stream.purge() == 1


# Limits -------------------------------------------------------------------------------


def test_no_more_streams_than_the_account_may_have(limited: JetStream) -> None:
    for name in ("S1", "S2"):
        make(limited, name=name, subjects=[name])
    with pytest.raises(failures.MaximumStreamsError) as caught:
        make(limited, name="S3", subjects=["S3"])
    assert (caught.value.code, caught.value.err_code) == (400, 10027)
    assert not caught.value.is_retryable
    assert limited.stream_names() == ["S1", "S2"]


def test_no_more_consumers_than_the_account_may_have(limited: JetStream) -> None:
    stream = make(limited)
    for name in ("C1", "C2"):
        stream.create_consumer(name=name)
    with pytest.raises(failures.MaximumConsumersError) as caught:
        stream.create_consumer(name="C3")
    assert (caught.value.code, caught.value.err_code) == (400, 10026)
    assert isinstance(caught.value, failures.AccountLimitError)


def test_no_more_bytes_than_the_account_may_have(limited: JetStream) -> None:
    with pytest.raises(jsclient.Error) as reserved:
        make(limited, max_bytes=9 << 20)
    assert isinstance(
        reserved.value,
        failures.InsufficientResourcesError | failures.AccountLimitError,
    )
    make(limited)
    with pytest.raises(failures.AccountLimitError) as caught:
        list(limited.publish_all([("s.a", bytes(900_000))] * 10))
    assert (caught.value.code, caught.value.err_code) == (400, 10002)


def test_a_full_stream_refuses_and_is_not_taken_for_nobody(limited: JetStream) -> None:
    stream = make(limited, max_msgs=2, discard="new")
    for _ in range(2):
        limited.publish("s.a")
    with pytest.raises(failures.LimitReachedError) as caught:
        limited.publish("s.a", timeout=PATIENCE, retries=1000)
    assert (caught.value.code, caught.value.err_code) == (503, 10077)
    assert "maximum messages exceeded" in caught.value.description
    assert not isinstance(caught.value, jsclient.NoRespondersError)
    assert stream.info().state.messages == 2


# Prefixes and domains -----------------------------------------------------------------


def test_the_api_of_another_account_is_used_by_a_prefix(
    limited: JetStream, accounts: server.Server
) -> None:
    with jsclient.connect(accounts.url, user="b", password="b") as nc:
        js = nc.jetstream(prefix="JSA.API")
        assert repr(js).startswith("<JetStream 'JSA.API.' of <Connection")
        assert js.account_info().limits.max_streams == 2
        stream = make(js, allow_direct=True)
        assert limited.stream_names() == js.stream_names() == ["S"]
        # Publishing has no prefix: what carries it is the other import.
        assert js.publish("s.a", b"x").stream == "S"
        assert stream.get_msg(1).data == b"x"
        assert stream.get_msg(last_for="s.a").seq == 1
        assert [msg.seq for msg in stream.get_msgs()] == [1]
        consumer = stream.create_consumer(name="C", filter_subject="s.*")
        assert limited.consumer_names("S") == ["C"]
        consumer.delete()
        with pytest.raises(failures.StreamNotFoundError):
            js.stream("NONE")
        assert nc.jetstream(prefix="JSA.API.").stream("S").name == "S"
        js.delete_stream("S")
        with pytest.raises(failures.JetStreamNotEnabledError):
            nc.jetstream(timeout=2.0).account_info()


def test_a_domain_is_reached_by_its_name_or_without_it() -> None:
    with (
        server.run(jetstream={"domain": "hub"}) as hub,
        jsclient.connect(hub.url) as nc,
    ):
        js = nc.jetstream(domain="hub")
        assert js.account_info().domain == "hub"
        stream = make(js, allow_direct=True)
        assert stream.info().domain == "hub"
        ack = js.publish("s.a", b"x")
        assert (ack.stream, ack.domain) == ("S", "hub")
        assert stream.get_msg(1).data == b"x"
        assert stream.get_msg(last_for="s.a").data == b"x"
        assert len(list(stream.get_msgs())) == 1
        stream.create_consumer(name="C", filter_subject="s.a").delete()
        assert stream.purge() == 1
        assert nc.jetstream().account_info().domain == "hub"
        with pytest.raises(
            failures.JetStreamNotEnabledError, match=r"answers at '\$JS\.other\.API'"
        ):
            nc.jetstream(domain="other").account_info()


def test_a_leaf_reaches_the_jetstream_of_the_hub_by_its_domain() -> None:
    (port,) = free_ports(["127.0.0.1"])
    listen = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
    remote = f'leafnodes {{ remotes: [{{ url: "nats://127.0.0.1:{port}" }}] }}'
    with (
        server.run(jetstream={"domain": "hub"}, config=listen) as hub,
        server.run(jetstream={"domain": "leaf"}, config=remote) as leaf,
        jsclient.connect(leaf.url) as nc,
        jsclient.connect(hub.url) as other,
    ):
        js = nc.jetstream(domain="hub", timeout=PATIENCE)
        # While the leaf is still connecting nobody answers for the domain.
        until(lambda: is_there(js), "the leaf is connected to the hub")
        assert js.account_info().domain == "hub"
        assert nc.jetstream().account_info().domain == "leaf"
        make(js)
        assert other.jetstream().stream_names() == ["S"]
        assert nc.jetstream().stream_names() == []
        assert js.publish("s.a", b"x", timeout=PATIENCE, retries=50).domain == "hub"
        # A stream of the leaf takes its messages from the hub.
        copy = nc.jetstream().create_stream(
            name="COPY",
            storage="memory",
            sources=[StreamSource(name="S", domain="hub")],
        )
        until(lambda: copy.info().state.messages == 1, "the message came over")
        told = copy.cached_info.sources[0]
        assert told.external is not None
        assert told.external.api == "$JS.hub.API"


def is_there(js: JetStream) -> bool:
    try:
        js.account_info()
    except failures.JetStreamNotEnabledError:
        return False
    return True


def test_wrong_domains_and_prefixes_are_refused_at_the_call(
    limited: JetStream, accounts: server.Server
) -> None:
    with jsclient.connect(accounts.url, user="a", password="a") as nc:
        for name in ("", "a.b", "a b", "*", ">", "a\r\nb"):
            with pytest.raises(ValueError, match="domain"):
                nc.jetstream(domain=name)
        for name in ("", ".", "a b", "a..b", "a.*", ">", "a\nb"):
            with pytest.raises(ValueError, match="prefix"):
                nc.jetstream(prefix=name)
        with pytest.raises(ValueError, match="domain or a prefix"):
            nc.jetstream(domain="a", prefix="b")
        for wrong in (0, -1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                nc.jetstream(timeout=wrong)
        with pytest.raises(TypeError, match="domain"):
            nc.jetstream(domain=7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="prefix"):
            nc.jetstream(prefix=b"a")  # type: ignore[arg-type]
