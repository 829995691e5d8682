"""ADR-15 on a real server: push subscriptions, sentence by sentence.

What is said of statuses (heartbeats, gaps, flow control) stands in other files.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from jsclient.config import ConsumerConfig
from jsclient.jetstream import JetStream
from jsclient.ordered_push import OrderedPushSubscription
from jsclient.push import PushSubscription
from jsclient.server import Server, run
from tests.live.adr15 import IMPORTS, wiretap
from tests.live.pulls import fill, seqs, stream_of
from tests.live.support import PATIENCE, Events, all_results, until


@pytest.fixture(autouse=True)
def stream(js: JetStream) -> None:
    stream_of(js)


def named(option: str) -> dict[str, Any]:
    """The consumer C, by either option."""
    return {option: "C"}


def take(sub: PushSubscription | OrderedPushSubscription, count: int) -> list[Msg]:
    return [sub.next(PATIENCE) for _ in range(count)]


async def later(msg: Msg) -> None:
    """Never runs: nobody would await it."""


def push_consumer(js: JetStream, **options: Any) -> None:
    """A durable push consumer C that nobody is subscribed to."""
    fields = {"durable_name": "C", "deliver_subject": "here", "ack_policy": "explicit"}
    js.create_consumer("S", **{**fields, **options})


# Configuration ------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"idle_heartbeat": 1.0}, {"flow_control": True}])
@pytest.mark.parametrize("is_field", [True, False])
def test_if_a_queue_name_is_provided_configuring_heartbeat_or_flow_control_is_a_mistake(
    js: JetStream, option: dict[str, Any], is_field: bool
) -> None:
    given = option if is_field else {"config": ConsumerConfig(**option)}
    with pytest.raises(jsclient.InvalidArgumentError, match="a queue has neither"):
        js.subscribe("s.1", queue="q", **given)
    assert js.consumer_names("S") == []


def test_if_no_subject_is_provided_along_with_no_stream_name_it_is_an_error(
    js: JetStream,
) -> None:
    given: list[dict[str, Any]] = [
        {},
        {"durable": "D"},
        {"consumer": "C"},
        {"queue": "q"},
    ]
    for options in given:
        with pytest.raises(jsclient.InvalidArgumentError, match="give a subject"):
            js.subscribe(**options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subject": "a b"}, ValueError),
        ({"stream": "a.b"}, ValueError),
        ({"durable": "a.b"}, ValueError),
        ({"consumer": "a>"}, ValueError),
        ({"queue": "a.b"}, ValueError),
        ({"queue": "a b"}, ValueError),
        ({"consumer": "C", "durable": "D"}, ValueError),
        ({"durable": "D", "config": ConsumerConfig(durable_name="E")}, ValueError),
        ({"queue": "q", "config": ConsumerConfig(deliver_group="r")}, ValueError),
        ({"deliver_subject": "d.*"}, ValueError),
        ({"deliver_subject": "a b"}, ValueError),
        ({"max_waiting": 5}, ValueError),
        ({"idle_heartbeat": 0.01}, ValueError),
        ({"heartbeat_alarm": 0.5}, ValueError),
        ({"max_pending_messages": 0}, ValueError),
        ({"filter_subjects": ["s.1", "s.2"]}, ValueError),
        ({"max_resets": 3}, ValueError),
        ({"ordered": True, "raw_status": True}, ValueError),
        ({"ordered": True, "consumer": "C"}, ValueError),
        ({"ordered": True, "durable": "D"}, ValueError),
        ({"ordered": True, "queue": "q"}, ValueError),
        ({"ordered": True, "deliver_subject": "d"}, ValueError),
        ({"ordered": True, "ack_policy": "explicit"}, ValueError),
        ({"ordered": True, "max_resets": -1}, ValueError),
        ({"ordered": 1}, TypeError),
        ({"callback": 7}, TypeError),
        ({"callback": later}, TypeError),
        ({"ordered": True, "callback": later}, TypeError),
        ({"raw_status": 1}, TypeError),
        ({"delete_on_close": 1}, TypeError),
        ({"config": {}}, TypeError),
        ({"no_such_field": 1}, TypeError),
    ],
)
def test_some_misconfiguration_should_be_checked_and_return_an_error_outright(
    js: JetStream,
    jetstream_server: Server,
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    before = len(js._connection._loop.entries)
    with wiretap(jetstream_server) as tap:
        with pytest.raises(error):
            js.subscribe(**{"subject": "s.1", **options})
        assert tap.calls(of=js._connection) == []
    assert len(js._connection._loop.entries) == before


# Stream and consumer ------------------------------------------------------------------


def test_the_library_will_use_the_subject_to_find_out_which_stream_it_is_for(
    js: JetStream, jetstream_server: Server
) -> None:
    stream_of(js, "OTHER", subjects=["other.>"])
    with wiretap(jetstream_server) as tap:
        with js.subscribe("other.1") as sub:
            assert sub.stream_name == "OTHER"
        first = tap.calls(of=js._connection)[0]
    assert first.verb == "STREAM.NAMES"
    assert first.body["subject"] == "other.1"
    for subject in ("nobody.has.this", "*.1"):
        with pytest.raises(failures.NoMatchingStreamError):
            js.subscribe(subject)


def test_a_consumer_name_indicates_the_intent_to_use_an_existing_consumer(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 3)
    push_consumer(js, filter_subject="s.2")
    with wiretap(jetstream_server) as tap:
        with js.subscribe(stream="S", consumer="C") as sub:
            assert seqs(take(sub, 1)) == [2]
            assert sub.subject == "here"
        assert tap.verbs(of=js._connection) == ["CONSUMER.INFO"]
    assert js.consumer_names("S") == ["C"]


def test_if_the_lookup_fails_it_is_considered_an_error(js: JetStream) -> None:
    before = len(js._connection._loop.entries)
    with pytest.raises(failures.ConsumerNotFoundError):
        js.subscribe("s.1", consumer="C")
    with pytest.raises(failures.StreamNotFoundError):
        js.subscribe("s.1", stream="NONE", durable="C")
    with pytest.raises(failures.StreamNotFoundError):
        js.subscribe("s.1", stream="NONE")
    assert js.consumer_names("S") == []
    assert len(js._connection._loop.entries) == before


def test_without_a_consumer_name_or_durable_the_queue_name_is_used_as_the_durable(
    js: JetStream,
) -> None:
    fill(js, 20)
    first = js.subscribe("s.>", queue="bar")
    second = js.subscribe("s.>", queue="bar")
    assert js.consumer_names("S") == ["bar"]
    info = first.consumer_info()
    assert (info.config.durable_name, info.config.deliver_group) == ("bar", "bar")
    assert first.subject == second.subject
    fill(js, 200, first=21)
    found: list[int] = []

    def collect() -> bool:
        for sub in (first, second):
            found.extend(seqs(sub.messages(timeout=0.05)))
        return len(found) >= 220

    until(collect, "all messages came")
    # Each member its own: not both the same.
    assert sorted(found) == list(range(1, 221))
    assert first.delivered > 0
    assert second.delivered > 0


# Checks against a consumer that is there ----------------------------------------------


@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_if_push_bound_and_no_deliver_group_a_non_queue_subscription_is_a_duplicate(
    js: JetStream, option: str
) -> None:
    first = js.subscribe("s.>", durable="C")
    with pytest.raises(failures.DuplicateSubscriptionError):
        js.subscribe("s.>", stream="S", **named(option))
    first.unsubscribe()


def test_a_durable_that_nobody_is_subscribed_to_is_taken_again(js: JetStream) -> None:
    fill(js, 3)
    first = js.subscribe("s.>", durable="C", delete_on_close=False)
    for msg in take(first, 2):
        msg.ack_sync()
    first.unsubscribe()
    js._connection.flush()
    until(lambda: not js.consumer("S", "C").cached_info.push_bound, "it is free")
    second = js.subscribe("s.>", durable="C", ack_policy="explicit")
    js.publish("s.4", b"4")
    until(lambda: second.pending_messages >= 1, "messages come")
    assert second.subject == first.subject


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_non_queue_subscription_for_consumer_created_for_a_queue_group_is_an_error(
    js: JetStream, option: str, is_bound: bool
) -> None:
    push_consumer(js, deliver_group="g")
    if is_bound:
        js.subscribe("s.1", stream="S", consumer="C", queue="g")
    with pytest.raises(failures.QueueRequiredError, match="'g'"):
        js.subscribe("s.1", stream="S", **named(option))


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_queue_subscription_for_a_consumer_created_for_a_different_group_is_an_error(
    js: JetStream, option: str, is_bound: bool
) -> None:
    push_consumer(js, deliver_group="g")
    if is_bound:
        js.subscribe("s.1", stream="S", consumer="C", queue="g")
    with pytest.raises(failures.QueueMismatchError, match="'g', not 'other'"):
        js.subscribe("s.1", stream="S", queue="other", **named(option))


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_queue_subscription_for_a_consumer_without_a_deliver_group_is_an_error(
    js: JetStream, option: str, is_bound: bool
) -> None:
    push_consumer(js)
    if is_bound:
        js.subscribe("s.1", stream="S", consumer="C")
    with pytest.raises(failures.NoDeliverGroupError):
        js.subscribe("s.1", stream="S", queue="g", **named(option))


@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_the_filter_subject_if_not_empty_must_match_the_subject(
    js: JetStream, option: str
) -> None:
    push_consumer(js, filter_subject="s.2")
    with pytest.raises(failures.SubjectMismatchError, match=r"s\.2.*s\.1"):
        js.subscribe("s.1", stream="S", **named(option))
    js.subscribe("s.2", stream="S", **named(option)).unsubscribe()


@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_if_the_deliver_subject_is_empty_a_pull_subscription_is_required(
    js: JetStream, option: str
) -> None:
    js.create_consumer("S", durable_name="C")
    with pytest.raises(failures.PullConsumerMismatchError, match="use pull_subscribe"):
        js.subscribe("s.1", stream="S", **named(option))


@pytest.mark.parametrize(
    "field",
    [
        {"ack_wait": 5},
        {"ack_policy": "all"},
        {"deliver_policy": "last"},
        {"max_ack_pending": 7},
        {"idle_heartbeat": 3},
        {"rate_limit_bps": 1000},
        {"description": "another"},
        {"max_deliver": 7},
        {"replay_policy": "original"},
        {"sample_freq": "50%"},
        {"num_replicas": 1},
        {"flow_control": True, "idle_heartbeat": 5},
        {"mem_storage": True},
        {"deliver_subject": "elsewhere"},
    ],
)
def test_if_the_user_provided_configuration_does_not_match_an_error_is_returned(
    js: JetStream, field: dict[str, Any]
) -> None:
    push_consumer(js)
    before = js.consumer("S", "C").cached_info.config
    with pytest.raises(failures.ConfigMismatchError) as told:
        js.subscribe("s.1", stream="S", durable="C", **field)
    assert set(told.value.differences) == set(field)
    for name, (wanted, actual) in told.value.differences.items():
        assert wanted == field[name]
        assert actual == getattr(before, name)
        assert name in str(told.value)
    assert js.consumer("S", "C").cached_info.config == before


def test_if_flow_control_is_set_in_the_consumer_when_a_queue_is_requested_is_an_error(
    js: JetStream,
) -> None:
    push_consumer(js, deliver_group="g", flow_control=True, idle_heartbeat=1)
    with pytest.raises(failures.QueueStatusError, match="flow_control"):
        js.subscribe("s.1", stream="S", consumer="C", queue="g")


def test_if_heartbeats_are_configured_when_a_queue_is_requested_is_an_error(
    js: JetStream,
) -> None:
    push_consumer(js, deliver_group="g", idle_heartbeat=1)
    with pytest.raises(failures.QueueStatusError, match="idle_heartbeat"):
        js.subscribe("s.1", stream="S", consumer="C", queue="g")


# Creating the consumer ----------------------------------------------------------------


def test_the_library_will_fill_a_consumer_config_with_what_was_provided(
    js: JetStream,
) -> None:
    config = ConsumerConfig(max_deliver=7, description="mine")
    with js.subscribe("s.*", durable="D", config=config, ack_wait=5) as sub:
        made = sub.consumer_info().config
        assert made.deliver_subject == sub.subject
        assert sub.subject.startswith("_INBOX.")
    assert made.filter_subject == "s.*"
    assert made.ack_policy == "explicit"
    assert (made.max_deliver, made.ack_wait, made.description) == (7, 5.0, "mine")
    assert made.deliver_group is None


def test_the_deliver_subject_can_be_given(js: JetStream) -> None:
    fill(js, 1)
    with js.subscribe("s.>", deliver_subject="my.own.place", ack_policy="none") as sub:
        assert sub.subject == "my.own.place"
        assert seqs(take(sub, 1)) == [1]


def test_deliver_group_is_set_to_the_queue_name(js: JetStream) -> None:
    sub = js.subscribe("s.>", queue="q", durable="D")
    config = sub.consumer_info().config
    assert (config.durable_name, config.deliver_group) == ("D", "q")
    assert sub.queue == "q"


def test_for_ephemerals_the_consumer_name_is_saved_from_the_response(
    js: JetStream,
) -> None:
    with js.subscribe("s.>") as sub:
        assert js.consumer_names("S") == [sub.consumer_name]
        assert sub.consumer_info().config.durable_name is None


def test_flow_control_has_a_heartbeat_even_if_none_was_given(js: JetStream) -> None:
    with js.subscribe("s.>", flow_control=True) as sub:
        assert sub.consumer_info().config.idle_heartbeat == 5


def test_of_many_that_create_one_queue_at_once_one_creates_it_and_all_share_it(
    js: JetStream,
) -> None:
    subs = all_results(8, lambda _: js.subscribe("s.>", queue="q"))
    assert js.consumer_names("S") == ["q"]
    assert len({sub.subject for sub in subs}) == 1
    fill(js, 400)
    until(lambda: sum(sub.pending_messages for sub in subs) == 400, "all have come")
    found = [seqs(take(sub, sub.pending_messages)) for sub in subs]
    assert sorted(seq for part in found for seq in part) == list(range(1, 401))
    js._connection.flush()
    entries = js._connection._loop.entries.values()
    # The subscriptions that came too late were replaced.
    assert sum(entry.subject.startswith("_INBOX.") for entry in entries) == 8 + 1


def test_of_many_that_create_one_durable_at_once_all_but_one_are_told(
    js: JetStream,
) -> None:
    def work(_: int) -> object:
        try:
            return js.subscribe("s.>", durable="D")
        except failures.DuplicateSubscriptionError:
            return None

    subs = [sub for sub in all_results(8, work) if sub is not None]
    assert len(subs) == 1
    assert js.consumer("S", "D").cached_info.push_bound


def test_what_a_failing_call_has_made_is_removed_again(js: JetStream) -> None:
    before = len(js._connection._loop.entries)
    with pytest.raises(failures.ApiError):
        js.subscribe("s.1", durable="D", deliver_subject="s.loop")  # a cycle
    with pytest.raises(failures.ApiError):
        js.subscribe("s.1", num_replicas=3)
    assert js.consumer_names("S") == []
    assert len(js._connection._loop.entries) == before


def test_an_ordered_subscription_has_every_message_once_and_in_order(
    js: JetStream,
) -> None:
    fill(js, 300)
    with js.subscribe("s.>", ordered=True, idle_heartbeat=0.3) as sub:
        first = take(sub, 100)
        js.delete_consumer("S", sub.consumer_name)
        js.publish("s.301", b"")
        assert seqs([*first, *take(sub, 201)]) == list(range(1, 302))
        config = js.consumer("S", sub.consumer_name).cached_info.config
        assert config.filter_subject == "s.>"
    until(lambda: js.consumer_names("S") == [], "nothing is left")


def test_an_ordered_subscription_finds_its_stream_too(js: JetStream) -> None:
    with pytest.raises(failures.NoMatchingStreamError):
        js.subscribe("nobody.has.this", ordered=True)
    fill(js, 10)
    found: list[Msg] = []
    with js.subscribe("s.7", ordered=True, callback=found.append):
        until(lambda: len(found) == 1, "it came")
    assert seqs(found) == [7]


# The end ------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [None, "D"])
@pytest.mark.parametrize("end", ["unsubscribe", "drain", "leave"])
def test_if_the_library_created_the_consumer_it_is_deleted_at_the_end(
    js: JetStream, durable: str | None, end: str
) -> None:
    with js.subscribe("s.1", durable=durable) as sub:
        if end != "leave":
            getattr(sub, end)()
    until(lambda: js.consumer_names("S") == [], "it is deleted")


def test_draining_the_connection_deletes_what_its_subscriptions_have_made(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 5)
    js.create_consumer("S", durable_name="bound")
    read: list[Msg] = []
    with jsclient.connect(jetstream_server.url) as nc:
        theirs = nc.jetstream()
        held = (
            theirs.subscribe("s.>", callback=read.append),
            theirs.pull_subscribe("s.>", "pulled"),
            theirs.pull_subscribe("s.>", "kept", delete_on_close=False),
            theirs.pull_subscribe(stream="S", consumer="bound"),
        )
        theirs.subscribe("s.1", durable="ended").unsubscribe()
        until(lambda: len(read) == 5, "all are handled")
        nc.drain()
        assert not held[0].is_active
    assert sorted(js.consumer_names("S")) == ["bound", "kept"]


def test_a_connection_that_is_not_drained_in_time_deletes_no_consumer(
    js: JetStream, jetstream_server: Server
) -> None:
    fill(js, 1)
    with jsclient.connect(jetstream_server.url) as nc:
        sub = nc.jetstream().subscribe("s.>", durable="D")
        until(lambda: sub.pending_messages == 1, "it has come")
        with pytest.raises(jsclient.DrainTimeoutError):
            nc.drain(0.1)
    assert js.consumer_names("S") == ["D"]


@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("option", ["consumer", "durable"])
def test_a_consumer_that_was_there_is_not_deleted(
    js: JetStream, option: str, end: str
) -> None:
    push_consumer(js)
    sub = js.subscribe("s.1", stream="S", delete_on_close=True, **named(option))
    getattr(sub, end)()
    js._connection.flush()
    assert js.consumer_names("S") == ["C"]


def test_a_queue_keeps_its_consumer_when_its_first_member_leaves(js: JetStream) -> None:
    first = js.subscribe("s.>", queue="bar", durable="shared")
    second = js.subscribe("s.>", queue="bar", durable="shared")
    first.drain()
    fill(js, 10)
    assert sorted(seqs(take(second, 10))) == list(range(1, 11))
    second.unsubscribe()
    assert js.consumer_names("S") == ["shared"]


def test_delete_on_close_says_whether_the_consumer_stays(js: JetStream) -> None:
    js.subscribe("s.1", durable="KEPT", delete_on_close=False).unsubscribe()
    js.subscribe("s.1", durable="GONE", delete_on_close=True).unsubscribe()
    js.subscribe("s.1", queue="SHARED").unsubscribe()
    js.subscribe("s.1", queue="ALONE", delete_on_close=True).unsubscribe()
    assert sorted(js.consumer_names("S")) == ["KEPT", "SHARED"]


def test_closing_the_connection_does_not_delete(
    js: JetStream, jetstream_server: Server
) -> None:
    with (
        jsclient.connect(jetstream_server.url) as nc,
        nc.jetstream().subscribe("s.1", durable="D"),
    ):
        nc.close()
    assert js.consumer_names("S") == ["D"]


def test_unsubscribe_sends_a_delete_request_and_returns_the_error_if_any(
    js: JetStream,
) -> None:
    sub = js.subscribe("s.1", durable="D")
    js.delete_consumer("S", "D")
    with pytest.raises(failures.ConsumerNotFoundError):
        sub.unsubscribe()
    assert not sub.is_active


def test_the_deletion_is_delayed_past_the_point_when_the_subscription_is_drained(
    js: JetStream,
) -> None:
    fill(js, 20)
    handled: list[list[str]] = []
    go_on = threading.Event()

    def handle(msg: Msg) -> None:
        assert go_on.wait(PATIENCE)
        msg.ack()
        handled.append(list(js.consumer_names("S")))

    sub = js.subscribe("s.>", durable="D", callback=handle)
    until(lambda: sub.pending_messages == 19, "all have come")
    threading.Timer(0.2, go_on.set).start()
    sub.drain(PATIENCE)
    assert handled == [["D"]] * 20
    until(lambda: js.consumer_names("S") == [], "it is deleted")


def test_what_is_read_after_a_drain_is_read_before_the_deletion(js: JetStream) -> None:
    fill(js, 5)
    sub = js.subscribe("s.>", durable="D")
    until(lambda: sub.pending_messages == 5, "all have come")
    sub.drain()
    found: list[Msg] = []
    for msg in sub:
        assert len(found) == 4 or js.consumer_names("S") == ["D"]
        found.append(msg)
    assert seqs(found) == [1, 2, 3, 4, 5]
    until(lambda: js.consumer_names("S") == [], "it is deleted")


def test_if_the_deletion_fails_in_drain_an_error_is_pushed_to_the_error_callback(
    js: JetStream, told: Events
) -> None:
    js._connection.on_event = told
    sub = js.subscribe("s.1", durable="D")
    js.delete_consumer("S", "D")
    sub.drain()
    warning = told.wait(jsclient.ConsumerWarning)
    assert isinstance(warning.error, failures.ConsumerNotFoundError)
    assert warning.consumer == "D"


def test_acks_arrive_before_the_consumer_is_deleted(js: JetStream) -> None:
    js.delete_stream("S")
    stream = stream_of(js, retention="workqueue")
    fill(js, 50)
    with js.subscribe("s.>", durable="D") as sub:
        for msg in take(sub, 50):
            msg.ack()
    assert stream.info().state.messages == 0


# Other JetStreams ---------------------------------------------------------------------


def test_it_works_in_another_domain() -> None:
    with (
        run(jetstream=True, config="jetstream: { domain: hub }") as server,
        jsclient.connect(server.url) as nc,
    ):
        js = nc.jetstream(domain="hub")
        stream_of(js)
        fill(js, 3)
        with js.subscribe("s.>", durable="D", flow_control=True) as sub:
            for msg in take(sub, 3):
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
        with js.subscribe("s.>", durable="D", deliver_subject="deliver.guest") as sub:
            for msg in take(sub, 3):
                msg.ack_sync()
            assert sub.consumer_info().num_ack_pending == 0
        assert owner.jetstream().consumer_names("S") == []
