"""ADR-15 on a real server: pull subscriptions, sentence by sentence."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient._io.pulling import Lanes
from jsclient.config import ConsumerConfig
from jsclient.consumer import Consumer
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from tests.live.adr15 import IMPORTS, wiretap
from tests.live.pulls import assert_nothing_left, fill, seqs, stream_of
from tests.live.support import PATIENCE, Events, all_results


@pytest.fixture(autouse=True)
def stream(js: JetStream) -> None:
    stream_of(js)


def named(option: str) -> dict[str, Any]:
    """The consumer C, by either option."""
    return {option: "C"}


# Configuration ------------------------------------------------------------------------


def wrong_pull_subscribes() -> list[tuple[dict[str, Any], str]]:
    return [
        ({"subject": None}, "give a subject"),
        ({"subject": None, "consumer": "C"}, "give a subject"),
        ({"subject": "a b"}, "subject"),
        ({"stream": "a.b"}, "stream"),
        ({"durable": "a.b"}, "name"),
        ({"consumer": "a*"}, "name"),
        ({"durable": "D", "config": ConsumerConfig(durable_name="E")}, "given twice"),
        ({"durable": "D", "consumer": "C"}, "give one of them"),
        ({"deliver_subject": "d"}, "deliver_subject"),
        ({"flow_control": True}, "flow_control"),
        ({"idle_heartbeat": 1.0}, "idle_heartbeat"),
        ({"filter_subject": "s.2"}, "filters"),
        ({"max_deliver": 2, "backoff": [1, 2, 3]}, "backoff"),
    ]


@pytest.mark.parametrize(("options", "text"), wrong_pull_subscribes())
def test_some_misconfiguration_should_be_checked_and_return_an_error_outright(
    js: JetStream, jetstream_server: Server, options: dict[str, Any], text: str
) -> None:
    with wiretap(jetstream_server) as tap:
        with pytest.raises(jsclient.InvalidArgumentError, match=text):
            js.pull_subscribe(**{"subject": "s.1", **options})
        assert tap.calls(of=js._connection) == []


@pytest.mark.parametrize(
    "options",
    [
        {"no_such_field": 1},
        {"stream": 7},
        {"delete_on_close": 1},
        {"config": {}},
        {"callback": print},
        {"queue": "q"},
    ],
)
def test_what_has_the_wrong_type_is_refused_outright(
    js: JetStream, jetstream_server: Server, options: dict[str, Any]
) -> None:
    with wiretap(jetstream_server) as tap:
        with pytest.raises(TypeError):
            js.pull_subscribe("s.1", **options)
        assert tap.calls(of=js._connection) == []


@pytest.mark.parametrize("policy", ["none", "all"])
def test_for_pull_subscriptions_ack_policy_of_none_or_all_is_an_error(
    js: JetStream, policy: str
) -> None:
    with pytest.raises(jsclient.InvalidArgumentError, match="explicit"):
        js.pull_subscribe("s.1", ack_policy=policy)
    assert js.consumer_names("S") == []


# Stream and consumer ------------------------------------------------------------------


def test_the_library_will_use_the_subject_to_find_out_which_stream_it_is_for(
    js: JetStream, jetstream_server: Server
) -> None:
    stream_of(js, "OTHER", subjects=["other.>"])
    with wiretap(jetstream_server) as tap:
        with js.pull_subscribe("s.1") as sub:
            assert sub.stream_name == "S"
        first = tap.calls(of=js._connection)[0]
    assert first.verb == "STREAM.NAMES"
    assert first.body["subject"] == "s.1"


def test_a_single_entry_is_used_otherwise_an_error_indicating_no_matching_stream(
    js: JetStream,
) -> None:
    stream_of(js, "OTHER", subjects=["other.>"])
    with pytest.raises(failures.NoMatchingStreamError, match="no stream has") as none:
        js.pull_subscribe("nobody.has.this")
    assert none.value.streams == ()
    with pytest.raises(failures.NoMatchingStreamError, match="OTHER, S") as both:
        js.pull_subscribe("*.1")
    assert both.value.streams == ("OTHER", "S")
    assert js.consumer_names("S") == []


def test_with_a_stream_name_no_stream_is_looked_up(
    js: JetStream, jetstream_server: Server
) -> None:
    with wiretap(jetstream_server) as tap:
        js.pull_subscribe("s.1", stream="S").unsubscribe()
        verbs = tap.verbs(of=js._connection)
    assert verbs == ["CONSUMER.CREATE", "CONSUMER.INFO", "CONSUMER.DELETE"]


def test_when_the_consumer_is_created_filter_subject_is_set_to_the_subject(
    js: JetStream,
) -> None:
    with js.pull_subscribe("s.*", stream="S", durable="D") as sub:
        config = sub.consumer_info().config
    assert config.filter_subject == "s.*"
    assert config.durable_name == "D"
    assert config.ack_policy == "explicit"
    assert not config.deliver_subject


def test_a_consumer_name_indicates_the_intent_to_use_an_existing_consumer(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 3)
    js.create_consumer("S", durable_name="C", filter_subject="s.2")
    with wiretap(jetstream_server) as tap:
        with js.pull_subscribe(stream="S", consumer="C") as sub:
            assert seqs(sub.fetch(5)) == [2]
        verbs = tap.verbs(of=js._connection)
    assert verbs == ["CONSUMER.INFO", "CONSUMER.MSG"]
    assert js.consumer_names("S") == ["C"]


@pytest.fixture
def blind() -> Iterator[tuple[JetStream, JetStream]]:
    """Two users of a stream with 2 messages: the second may look no consumer up."""
    users = """
        accounts { A { jetstream: enabled, users: [
            { user: admin, password: secret },
            { user: app, password: secret,
              permissions: { publish: { deny: ["$JS.API.CONSUMER.INFO.>"] } } }
        ] } }
    """
    with (
        run(jetstream=True, config=users) as server,
        jsclient.connect(server.url, user="admin", password="secret") as admin,
        jsclient.connect(server.url, user="app", password="secret") as app,
    ):
        stream_of(admin.jetstream())
        fill(admin.jetstream(), 2)
        yield admin.jetstream(), app.jetstream()


def test_a_consumer_that_must_be_there_and_is_not_is_told_at_once(
    js: JetStream,
) -> None:
    with pytest.raises(failures.ConsumerNotFoundError):
        js.pull_subscribe(stream="S", consumer="missing")
    with pytest.raises(failures.ConsumerNotFoundError):
        js.pull_subscribe("s.1", consumer="missing")
    with pytest.raises(failures.StreamNotFoundError):
        js.pull_subscribe(stream="MISSING", consumer="C")


def test_if_the_lookup_fails_a_pull_subscriber_still_proceeds(
    blind: tuple[JetStream, JetStream],
) -> None:
    admin, app = blind
    sub = app.pull_subscribe(stream="S", consumer="C")
    assert (sub.stream_name, sub.consumer_name) == ("S", "C")
    with pytest.raises(jsclient.Error):
        sub.fetch(5, timeout=1.0)
    admin.create_consumer("S", durable_name="C")
    assert seqs(sub.fetch(5)) == [1, 2]
    sub.unsubscribe()
    assert admin.consumer_names("S") == ["C"]


def test_a_user_that_may_not_look_consumers_up_can_read_one_nevertheless(
    blind: tuple[JetStream, JetStream],
) -> None:
    admin, app = blind
    admin.create_consumer("S", durable_name="C")
    sub = app.pull_subscribe(stream="S", consumer="C")
    assert seqs(sub.fetch(5)) == [1, 2]


def test_acks_that_a_consumer_does_not_want_are_told_as_nobodys_to_who_cannot_know(
    blind: tuple[JetStream, JetStream],
) -> None:
    admin, app = blind
    admin.create_consumer("S", durable_name="C", ack_policy="none")
    first, second = app.pull_subscribe(stream="S", consumer="C").fetch(5)
    begun = time.monotonic()
    with pytest.raises(jsclient.NoRespondersError):
        first.ack_sync(PATIENCE)
    assert time.monotonic() - begun < PATIENCE / 2
    second.ack()


def test_a_durable_that_is_there_is_used_and_one_that_is_not_is_created(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 4)
    with wiretap(jetstream_server) as tap:
        first = js.pull_subscribe("s.>", "D", stream="S")
        second = js.pull_subscribe("s.>", "D", stream="S")
        assert tap.verbs(of=js._connection) == [
            "CONSUMER.INFO",
            "CONSUMER.CREATE",
            "CONSUMER.INFO",
        ]
    assert seqs([*first.fetch(2), *second.fetch(2)]) == [1, 2, 3, 4]
    assert (first.owns_consumer, second.owns_consumer) == (True, False)
    first.unsubscribe()


def test_for_ephemerals_the_consumer_name_is_saved_from_the_response(
    js: JetStream,
) -> None:
    sub = js.pull_subscribe("s.1")
    assert js.consumer_names("S") == [sub.consumer_name]
    info = sub.consumer_info()
    assert info.name == sub.consumer_name
    assert info.config.durable_name is None
    # Longer than a pause between two fetches.
    assert info.config.inactive_threshold == 300
    sub.unsubscribe()


# Checks -------------------------------------------------------------------------------


def test_the_filter_subject_if_not_empty_must_match_the_subject(js: JetStream) -> None:
    js.create_consumer("S", durable_name="C", filter_subject="s.2")
    for name in ("consumer", "durable"):
        with pytest.raises(failures.SubjectMismatchError, match=r"s\.2.*s\.1"):
            js.pull_subscribe("s.1", stream="S", **named(name))
    js.create_consumer("S", durable_name="ALL")
    js.pull_subscribe("s.1", stream="S", durable="ALL").unsubscribe()


def test_the_user_cant_create_a_pull_subscription_for_a_push_based_consumer(
    js: JetStream,
) -> None:
    js.create_consumer("S", durable_name="C", deliver_subject="here")
    for name in ("consumer", "durable"):
        with pytest.raises(failures.PushConsumerMismatchError, match="use subscribe"):
            js.pull_subscribe("s.1", stream="S", **named(name))


def test_if_the_user_provided_configuration_does_not_match_an_error_is_returned(
    js: JetStream,
) -> None:
    made = js.create_consumer("S", durable_name="C", ack_wait=30, description="mine")
    with pytest.raises(failures.ConfigMismatchError) as told:
        js.pull_subscribe("s.1", stream="S", durable="C", ack_wait=5, max_deliver=7)
    assert told.value.differences == {"ack_wait": (5, 30.0), "max_deliver": (7, -1)}
    assert "ack_wait=30.0 (asked for: 5)" in str(told.value)
    assert made.info().config == made.cached_info.config


@pytest.mark.parametrize(
    "field",
    [
        {"description": "other"},
        {"deliver_policy": "new"},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 7},
        {"ack_wait": 5},
        {"max_deliver": 7},
        {"replay_policy": "original"},
        {"sample_freq": "50%"},
        {"max_waiting": 7},
        {"max_ack_pending": 7},
        {"num_replicas": 3},
        {"mem_storage": True},
        {"headers_only": True},
        {"metadata": {"a": "b"}},
    ],
)
def test_every_field_that_differs_is_named(
    js: JetStream, field: dict[str, Any]
) -> None:
    js.create_consumer("S", durable_name="C")
    with pytest.raises(failures.ConfigMismatchError) as told:
        js.pull_subscribe(
            "s.1", stream="S", durable="C", config=ConsumerConfig(**field)
        )
    assert set(told.value.differences) == set(field)


def test_a_configuration_that_matches_is_no_error(js: JetStream) -> None:
    config = ConsumerConfig(
        durable_name="C", ack_wait=5, max_deliver=7, ack_policy="explicit"
    )
    with js.pull_subscribe("s.1", config=config):
        again = js.pull_subscribe("s.1", "C", config=config)
        assert not again.owns_consumer
        js.pull_subscribe("s.1", "C", ack_wait=5.0)
        js.pull_subscribe("s.1", consumer="C", stream="S")


# The end ------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [None, "D"])
@pytest.mark.parametrize("end", ["unsubscribe", "drain", "leave"])
def test_if_the_library_created_the_consumer_it_is_deleted_at_the_end(
    js: JetStream, durable: str | None, end: str
) -> None:
    with js.pull_subscribe("s.1", durable) as sub:
        assert sub.owns_consumer
        if end != "leave":
            getattr(sub, end)()
    assert js.consumer_names("S") == []
    assert not sub.is_active
    with pytest.raises(jsclient.SubscriptionClosedError):
        sub.fetch(1)
    sub.drain()


@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_a_consumer_that_was_there_is_not_deleted(
    js: JetStream, option: str, end: str
) -> None:
    js.create_consumer("S", durable_name="C")
    sub = js.pull_subscribe("s.1", stream="S", delete_on_close=True, **named(option))
    getattr(sub, end)()
    assert js.consumer_names("S") == ["C"]


def test_delete_on_close_says_whether_the_consumer_stays(js: JetStream) -> None:
    js.pull_subscribe("s.1", "KEPT", delete_on_close=False).unsubscribe()
    js.pull_subscribe("s.1", "GONE", delete_on_close=True).unsubscribe()
    assert js.consumer_names("S") == ["KEPT"]


def test_closing_the_connection_does_not_delete(
    js: JetStream, jetstream_server: Server
) -> None:
    with (
        jsclient.connect(jetstream_server.url) as nc,
        nc.jetstream().pull_subscribe("s.1", "D") as sub,
    ):
        nc.close()
        with pytest.raises(jsclient.ConnectionClosedError):
            sub.fetch(1)
    assert js.consumer_names("S") == ["D"]


def test_unsubscribe_sends_a_delete_request_and_returns_the_error_if_any(
    js: JetStream,
) -> None:
    sub = js.pull_subscribe("s.1", "D")
    js.delete_consumer("S", "D")
    with pytest.raises(failures.ConsumerNotFoundError):
        sub.unsubscribe()
    with js.pull_subscribe("s.1", "D"):
        js.delete_consumer("S", "D")  # what the end of the block would do


def test_if_the_deletion_fails_in_drain_an_error_is_pushed_to_the_error_callback(
    js: JetStream, told: Events
) -> None:
    js._connection.on_event = told
    sub = js.pull_subscribe("s.1", "D")
    js.delete_consumer("S", "D")
    sub.drain()
    error = told.wait(jsclient.ErrorEvent).error
    assert isinstance(error, failures.ConsumerNotFoundError)


def test_acks_arrive_before_the_consumer_is_deleted(js: JetStream) -> None:
    js.delete_stream("S")
    stream = stream_of(js, retention="workqueue")
    fill(js, 20)
    with js.pull_subscribe("s.>", "D") as sub:
        for msg in sub.fetch(20):
            msg.ack()
    assert stream.info().state.messages == 0


@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_the_end_reaches_fetches_that_wait(
    js: JetStream, end: str, wait: float
) -> None:
    sub = js.pull_subscribe("s.1", "D")

    def work(number: int) -> str:
        if number == 0:
            time.sleep(wait)
            getattr(sub, end)()
            return "ended"
        try:
            sub.fetch(1, timeout=60.0)
        except jsclient.SubscriptionClosedError:
            return "closed"
        return "fetched"

    assert sorted(all_results(3, work)) == ["closed", "closed", "ended"]
    assert js.consumer_names("S") == []
    assert_nothing_left(js)


# Other JetStreams ---------------------------------------------------------------------


def test_it_works_in_another_domain() -> None:
    with (
        run(jetstream=True, config="jetstream: { domain: hub }") as server,
        jsclient.connect(server.url) as nc,
    ):
        js = nc.jetstream(domain="hub")
        stream_of(js)
        fill(js, 3)
        with js.pull_subscribe("s.>", "D") as sub:
            for msg in sub.fetch(3):
                msg.ack_sync()
            assert sub.consumer_info().num_ack_pending == 0
        assert js.consumer_names("S") == []


def test_it_works_in_another_account() -> None:
    with (
        run(jetstream=True, config=IMPORTS) as server,
        jsclient.connect(server.url, user="owner", password="secret") as owner,
        jsclient.connect(server.url, user="guest", password="secret") as guest,
    ):
        stream_of(owner.jetstream())
        fill(owner.jetstream(), 3)
        js = guest.jetstream(prefix="from.owner")
        with js.pull_subscribe("s.>", "D") as sub:
            for msg in sub.fetch(3):
                msg.ack_sync()
            assert sub.consumer_info().num_ack_pending == 0
        assert owner.jetstream().consumer_names("S") == []


def fetch_one(consumer: Consumer, _: int) -> None:
    assert len(consumer.fetch(1, timeout=0.05)) == 0


def test_threads_that_fetch_first_at_once_share_one_pool_of_subscriptions(
    js: JetStream,
) -> None:
    loop = js._connection._loop
    js.create_consumer("S", durable_name="C")
    for _ in range(20):
        consumer = js.consumer("S", "C")
        all_results(4, partial(fetch_one, consumer))
        assert sum(isinstance(one, Lanes) for one in loop.watchers) == 1
        assert_nothing_left(js)
        del consumer
        gc.collect()


# Faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_fetch_outlives_a_restart_of_the_server(tmp_path: Path, how: str) -> None:
    with (
        run(jetstream=True, store_dir=tmp_path / "store") as server,
        jsclient.connect(server.url, reconnect_wait=0.1) as nc,
    ):
        js = nc.jetstream()
        stream_of(js, storage="file")
        fill(js, 1)
        sub = js.pull_subscribe("s.>", "D")
        for msg in sub.fetch(5):
            msg.ack_sync()

        def work(number: int) -> list[int]:
            if number:
                return seqs(sub.fetch(3, timeout=60.0))
            time.sleep(0.3)  # the fetch waits by now
            if how == "kill":
                server.kill()
            server.restart()
            with jsclient.connect(server.url) as other:
                fill(other.jetstream(), 3, first=2)
            return []

        assert all_results(2, work)[1] == [2, 3, 4]
        assert_nothing_left(js)
        sub.unsubscribe()
        assert js.consumer_names("S") == []


def test_nothing_is_lost_while_links_are_left_in_the_middle(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 300)
    with jsclient.connect(jetstream_server.url, reconnect_wait=0.05) as nc:
        sub = nc.jetstream().pull_subscribe("s.>", "D", ack_wait=1.0)
        fetched: set[int] = set()
        for number in itertools.count():
            if number % 3 == 0:
                nc.reconnect()
            try:
                for msg in sub.fetch(20, timeout=2.0):
                    fetched.add(msg.metadata.stream_seq)
                    msg.ack()
            except jsclient.TimeoutError:
                info = js.consumer("S", "D").cached_info
                if info.num_pending == info.num_ack_pending == 0:
                    break
        assert fetched == set(range(1, 301))
