"""Publishing to streams one at a time: acks, options, and what streams refuse."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient._core import PubAck
from jsclient.columns import Column, Offsets, Rows
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, Events, until

pytestmark = pytest.mark.live


def stream(js: JetStream, **fields: Any) -> Stream:
    """A stream in memory on `a.>`."""
    made: dict[str, Any] = {"name": "S", "subjects": ["a.>"], "storage": "memory"}
    return js.create_stream(**{**made, **fields})


def stored(made: Stream) -> int:
    """How many messages the stream has."""
    return made.info().state.messages


# Acks ---------------------------------------------------------------------------------


def test_an_ack_says_where_the_message_is(js: JetStream) -> None:
    made = stream(js)
    ack = js.publish("a.b", b"data", headers={"K": "v"})
    assert (ack.stream, ack.seq, ack.duplicate) == ("S", 1, False)
    assert (ack.domain, ack.value, ack.batch, ack.count) == (None, None, None, 0)
    msg = made.get_msg(ack.seq)
    assert (msg.subject, msg.data) == ("a.b", b"data")
    assert msg.headers is not None
    assert msg.headers["K"] == "v"
    assert [js.publish("a.b").seq for _ in range(3)] == [2, 3, 4]


def test_an_ack_of_a_domain_names_it() -> None:
    with (
        jsclient.server.run(jetstream={"domain": "hub"}) as server,
        jsclient.connect(server.url) as nc,
    ):
        js = nc.jetstream()
        stream(js)
        assert js.publish("a.b").domain == "hub"
        assert js.publish_async("a.b").result(5).domain == "hub"


@pytest.mark.parametrize(
    "data", [b"", b"x" * 200_000, bytearray(b"b"), memoryview(b"m")]
)
def test_payloads_of_any_size_and_type_are_stored(
    js: JetStream, data: bytes | bytearray | memoryview
) -> None:
    made = stream(js)
    assert made.get_msg(js.publish("a.b", data).seq).data == bytes(data)


def test_a_subject_may_have_the_letters_of_wildcards(js: JetStream) -> None:
    made = stream(js)
    for subject in ("a.b*", "a.>c", "a.**"):
        seq = js.publish(subject, b"").seq
        assert js.publish_async(subject, b"").result(10.0).seq == seq + 1
        assert made.get_msg(seq).subject == subject


PUBLISHES: dict[str, Callable[[JetStream, str], object]] = {
    "publish": lambda js, subject: js.publish(subject, b""),
    "publish_async": lambda js, subject: js.publish_async(subject, b"").result(10.0),
    "publish_all": lambda js, subject: list(js.publish_all([(subject, b"")])),
    "rows of one subject": lambda js, subject: js.publish_columns(
        [Rows(1, Column(Offsets(array("i", [0, 0]), 1), b""), subject)]
    ),
    "rows with subjects": lambda js, subject: js.publish_columns(
        [
            Rows(
                1,
                Column(Offsets(array("i", [0, 0]), 1), b""),
                Column(Offsets(array("i", [0, len(subject)]), 1), subject.encode()),
            )
        ]
    ),
    "atomic batch": lambda js, subject: js.atomic_batch().add(subject, b""),
    "fast batch": lambda js, subject: js.fast_batch().add(subject, b""),
}


@pytest.mark.parametrize("way", PUBLISHES)
@pytest.mark.parametrize("subject", ["a.*", "a.>", "*.b", "a.*.c"])
def test_no_way_of_publishing_takes_a_wildcard(
    js: JetStream, way: str, subject: str
) -> None:
    made = stream(js)
    refused = (ValueError, failures.PublishColumnsError)
    with pytest.raises(refused, match="without wildcards"):
        PUBLISHES[way](js, subject)
    assert made.info().state.messages == 0


def test_a_message_with_a_known_id_is_not_stored_again(js: JetStream) -> None:
    made = stream(js)
    first = js.publish("a.b", b"1", msg_id="one")
    js.publish("a.b", b"2", msg_id="two")
    again = js.publish("a.b", b"3", msg_id="one")
    assert (first.duplicate, again.duplicate, again.seq) == (False, True, first.seq)
    assert stored(made) == 2


def test_the_header_of_the_id_counts_in_its_own_case_only(js: JetStream) -> None:
    made = stream(js)
    for _ in range(2):
        js.publish("a.b", headers={"nats-msg-id": "one"})
    assert stored(made) == 2
    for _ in range(2):
        js.publish("a.b", headers={"Nats-Msg-Id": "one"})
    assert stored(made) == 3


# Nobody answers -----------------------------------------------------------------------


def test_a_subject_without_a_stream_is_tried_three_times(js: JetStream) -> None:
    before = js._connection.stats().out_msgs
    with pytest.raises(failures.NoStreamResponseError) as caught:
        js.publish("nobody.here", b"x", retry_wait=0.02)
    assert js._connection.stats().out_msgs - before == 3
    assert isinstance(caught.value, errors.NoRespondersError)
    assert caught.value.subject == "nobody.here"


def test_retries_can_be_forbidden_or_last_until_the_deadline(js: JetStream) -> None:
    before = js._connection.stats().out_msgs
    with pytest.raises(failures.NoStreamResponseError):
        js.publish("nobody.here", retries=0)
    assert js._connection.stats().out_msgs - before == 1
    # A PublishTimeoutError if it is over while the last try waits for its answer.
    with pytest.raises(errors.TimeoutError):
        js.publish("nobody.here", retries=-1, retry_wait=0.01, timeout=1.0)
    assert js._connection.stats().out_msgs - before > 5


@pytest.mark.parametrize("retries", [1, -1])
def test_a_deadline_between_two_tries_is_a_time_out_of_a_message_not_stored(
    js: JetStream, retries: int
) -> None:
    before = js._connection.stats().out_msgs
    began = time.monotonic()
    with pytest.raises(errors.TimeoutError, match="not stored") as caught:
        js.publish("nobody.here", retries=retries, retry_wait=30.0, timeout=0.5)
    assert time.monotonic() - began >= 0.5, "no time-out comes before its time"
    assert not isinstance(caught.value, failures.PublishOutcomeUnknownError)
    assert isinstance(caught.value.__cause__, failures.NoStreamResponseError)
    assert js._connection.stats().out_msgs - before == 1


def test_a_stream_that_comes_between_two_tries_gets_the_message(
    js: JetStream, jetstream_server: Server
) -> None:
    future = js.publish_async("a.late", b"async")
    with jsclient.connect(jetstream_server.url) as other:
        stream(other.jetstream())
    ack = js.publish("a.late", b"sync", retries=-1)
    assert {ack.seq, future.result(5).seq} == {1, 2}


def test_a_stream_without_acks_leaves_the_outcome_unknown(js: JetStream) -> None:
    made = stream(js, no_ack=True)
    with pytest.raises(failures.PublishTimeoutError) as caught:
        js.publish("a.b", b"x", timeout=0.3, msg_id="me")
    assert isinstance(caught.value, failures.PublishOutcomeUnknownError)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.subject, caught.value.msg_id) == ("a.b", "me")
    until(lambda: stored(made) == 1, "it is stored")


# Second tries -------------------------------------------------------------------------


def publish_and_lose_the_ack(
    server: Server, *, away: float = 0.0, **options: Any
) -> PubAck:
    """A publish with an id whose ack does not get through its first link."""
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=0.02) as nc,
    ):
        js = nc.jetstream(timeout=PATIENCE)
        nc._loop.request_inbox()
        nc.flush()
        proxy.set("s2c", cut_after=0)
        proxy.refuse = True

        def come_back() -> None:
            until(lambda: not nc.is_connected, "the link is lost")
            time.sleep(away)  # the stream's clock runs on
            proxy.set("s2c")
            proxy.refuse = False

        healer = threading.Thread(target=come_back)
        healer.start()
        try:
            return js.publish("a.b", b"x", msg_id="me", **options)
        finally:
            healer.join()


@pytest.mark.parametrize("options", [{}, {"expected_stream": "S"}])
def test_a_message_is_sent_again_while_the_stream_knows_its_id(
    js: JetStream, jetstream_server: Server, options: dict[str, Any]
) -> None:
    made = stream(js)
    ack = publish_and_lose_the_ack(jetstream_server, **options)
    assert (ack.seq, ack.duplicate) == (1, True)
    assert stored(made) == 1


def test_a_message_is_not_sent_again_to_a_stream_that_knows_no_ids(
    js: JetStream, jetstream_server: Server
) -> None:
    js.create_stream(name="ORIGIN", storage="memory")
    made = stream(js, sources=[{"name": "ORIGIN"}])
    assert not made.info().config.duplicate_window
    with pytest.raises(failures.PublishDisconnectedError):
        publish_and_lose_the_ack(jetstream_server)
    assert stored(made) == 1


def test_a_message_is_not_sent_again_when_the_stream_has_forgotten_its_id(
    js: JetStream, jetstream_server: Server
) -> None:
    made = stream(js, duplicate_window=0.1)
    with pytest.raises(failures.PublishDisconnectedError) as caught:
        publish_and_lose_the_ack(jetstream_server, away=0.6)
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.msg_id == "me"
    assert stored(made) == 1


# Restarts -----------------------------------------------------------------------------


def test_a_publish_goes_on_after_a_restart_and_misses_a_stream_that_is_gone(
    told: Events,
) -> None:
    with (
        jsclient.server.run(jetstream=True) as server,
        jsclient.connect(server.url, reconnect_wait=0.02, on_event=told) as nc,
    ):
        js = nc.jetstream(timeout=20.0)
        stream(js, storage="file")
        assert js.publish("a.b").seq == 1
        server.restart()
        assert js.publish("a.b", msg_id="me").seq == 2
        server.restart(keep_store=False)
        told.wait(jsclient.Reconnected, 2)
        with pytest.raises(failures.NoStreamResponseError):
            js.publish("a.b", msg_id="me")
        with pytest.raises(failures.NoStreamResponseError):
            js.publish_async("a.b").result(20.0)


# Expectations -------------------------------------------------------------------------


def test_the_stream_must_be_the_expected_one(js: JetStream) -> None:
    made = stream(js)
    assert js.publish("a.b", expected_stream="S").seq == 1
    with pytest.raises(failures.ExpectedStreamError):
        js.publish("a.b", expected_stream="T")
    assert stored(made) == 1


def test_the_last_sequence_must_be_the_expected_one(js: JetStream) -> None:
    made = stream(js)
    js.publish("a.b", expected_last_seq=0)
    js.publish("a.c", expected_last_seq=1)
    with pytest.raises(failures.WrongLastSequenceError) as caught:
        js.publish("a.b", expected_last_seq=1)
    assert (caught.value.expected, caught.value.err_code) == (2, 10071)
    assert stored(made) == 2


def test_the_last_sequence_of_the_subject_must_be_the_expected_one(
    js: JetStream,
) -> None:
    made = stream(js)
    js.publish("a.b", expected_last_subject_seq=0)
    js.publish("a.c", expected_last_subject_seq=0)
    with pytest.raises(failures.WrongLastSequenceError):
        js.publish("a.b", expected_last_subject_seq=0)
    js.publish("a.b", expected_last_subject_seq=1)
    assert stored(made) == 3


def test_an_expectation_can_be_about_other_subjects(js: JetStream) -> None:
    made = stream(js)
    js.publish("a.x.1")
    js.publish("a.x.2")
    about: dict[str, Any] = {"expected_last_subject": "a.x.*"}
    js.publish("a.y", expected_last_subject_seq=2, **about)
    with pytest.raises(failures.WrongLastSequenceError):
        js.publish("a.y", expected_last_subject_seq=1, **about)
    with pytest.raises(errors.InvalidArgumentError):
        js.publish("a.y", **about)
    alone = {"Nats-Expected-Last-Subject-Sequence-Subject": "a.x.*"}
    with pytest.raises(failures.BadRequestError) as caught:
        js.publish("a.y", headers=alone)
    assert caught.value.err_code == 10193
    assert stored(made) == 3


def test_the_last_id_must_be_the_expected_one(js: JetStream) -> None:
    made = stream(js)
    js.publish("a.b", msg_id="one")
    js.publish("a.b", msg_id="two", expected_last_msg_id="one")
    with pytest.raises(failures.WrongLastMsgIdError):
        js.publish("a.b", expected_last_msg_id="one")
    assert stored(made) == 2


# Limits -------------------------------------------------------------------------------


def test_a_full_stream_refuses_at_once_and_says_which_limit(js: JetStream) -> None:
    made = stream(js, discard="new", max_msgs=1)
    js.publish("a.b")
    before = js._connection.stats().out_msgs
    with pytest.raises(failures.LimitReachedError, match="maximum messages") as caught:
        js.publish("a.b")
    assert js._connection.stats().out_msgs - before == 1, "a full stream is no 503"
    assert (caught.value.code, caught.value.err_code) == (503, 10077)
    with pytest.raises(failures.LimitReachedError):
        js.publish_async("a.b").result(5)
    (error,) = js.publish_all([("a.b", b"")], on_error="return")
    assert isinstance(error, failures.LimitReachedError)
    assert stored(made) == 1


def test_what_is_too_large_is_refused(js: JetStream) -> None:
    made = stream(js, max_msg_size=100)
    with pytest.raises(failures.MessageTooLargeError):
        js.publish("a.b", b"x" * 101)
    with pytest.raises(errors.MaxPayloadError):
        js.publish("a.b", b"x" * (1 << 21))
    assert stored(made) == 0


def test_a_sealed_stream_takes_nothing(js: JetStream) -> None:
    made = stream(js)
    made.update(sealed=True)
    with pytest.raises(failures.StreamSealedError):
        js.publish("a.b")


# Time to live, rollups, counters, schedules -------------------------------------------


@pytest.mark.parametrize("ttl", ["0", "500ms", "abc"])
def test_a_time_to_live_that_the_server_cannot_use_is_refused(
    js: JetStream, ttl: str
) -> None:
    stream(js, allow_msg_ttl=True)
    with pytest.raises(failures.InvalidMessageTTLError):
        js.publish("a.b", headers={"Nats-TTL": ttl})


def test_a_message_lives_as_long_as_it_says(js: JetStream) -> None:
    made = stream(js, allow_msg_ttl=True)
    short, long_, ever = (
        js.publish("a.b", ttl=ttl).seq for ttl in (1, timedelta(hours=1), "never")
    )
    told = [made.get_msg(seq).headers for seq in (short, long_, ever)]
    assert [h is not None and h["Nats-TTL"] for h in told] == ["1", "3600", "never"]
    until(lambda: stored(made) == 2, "the first one is forgotten")
    assert made.info().state.first_seq == long_


def test_a_time_to_live_needs_a_stream_that_allows_it(js: JetStream) -> None:
    stream(js)
    with pytest.raises(failures.MessageTTLDisabledError):
        js.publish("a.b", ttl=5)


def test_a_rollup_replaces_older_messages(js: JetStream) -> None:
    made = stream(js, allow_rollup_hdrs=True, allow_direct=True)
    for subject in ("a.b", "a.b", "a.c"):
        js.publish(subject)
    js.publish("a.b", b"sum", rollup="sub")
    assert [msg.seq for msg in made.get_msgs()] == [3, 4]
    js.publish("a.b", b"all", rollup="all")
    assert [msg.seq for msg in made.get_msgs()] == [5]


def test_a_rollup_needs_a_stream_that_allows_it(js: JetStream) -> None:
    stream(js)
    with pytest.raises(failures.RollupFailedError):
        js.publish("a.b", rollup="sub")


def test_a_counter_counts_without_end(js: JetStream) -> None:
    made = stream(js, allow_msg_counter=True, allow_direct=True)
    values = [js.publish("a.b", increment=by).value for by in (5, -2, 0)]
    assert values == [5, 3, 3]
    assert js.publish_async("a.b", increment=10**30).result(5).value == 10**30 + 3
    assert js.publish("a.b", increment=-(10**30)).value == 3
    assert made.get_msg(last_for="a.b").data == b'{"val":"3"}'


def test_a_counter_refuses_what_does_not_count(js: JetStream) -> None:
    made = stream(js, allow_msg_counter=True)
    for code, data, fields in (
        (10170, b"payload", {"increment": 1}),
        (10169, b"", {}),
        (10171, b"", {"increment": 1, "expected_last_seq": 0}),
        (10171, b"", {"headers": {"Nats-Incr": "one"}}),
    ):
        options: dict[str, Any] = dict(fields)
        with pytest.raises(failures.CounterError) as caught:
            js.publish("a.b", data, **options)
        assert caught.value.err_code == code
    assert stored(made) == 0
    js.create_stream(name="PLAIN", subjects=["plain"], storage="memory")
    with pytest.raises(failures.CounterError) as caught:
        js.publish("plain", increment=1)
    assert caught.value.err_code == 10168


def test_a_schedule_publishes_later(js: JetStream) -> None:
    made = stream(js, allow_msg_schedules=True, allow_msg_ttl=True)
    soon = datetime.now(timezone.utc) + timedelta(seconds=1)
    js.publish(
        "a.plan", b"later", schedule=soon, schedule_target="a.b", schedule_ttl=60
    )

    def came() -> bool:
        try:
            return made.get_msg(last_for="a.b").data == b"later"
        except failures.MessageNotFoundError:
            return False

    until(came, "the message of the schedule")
    headers = made.get_msg(last_for="a.b").headers
    assert headers is not None
    assert (headers["Nats-Scheduler"], headers["Nats-TTL"]) == ("a.plan", "60")


def test_a_schedule_ends_with_the_message_that_cancels_it(js: JetStream) -> None:
    made = stream(js, allow_msg_schedules=True, allow_direct=True)
    js.publish("a.plan", schedule="@at 2100-01-01T00:00:00Z", schedule_target="a.b")
    js.publish("a.b", b"now", cancel_schedule="a.plan")
    assert [msg.subject for msg in made.get_msgs(seq=1)] == ["a.b"]
    with pytest.raises(failures.ScheduleError):
        js.publish("a.b", b"itself", cancel_schedule="a.b")


def test_a_schedule_that_cannot_be_is_refused(js: JetStream) -> None:
    stream(js)
    with pytest.raises(failures.ScheduleError):
        js.publish("a.p", schedule="@at 2100-01-01T00:00:00Z", schedule_target="a.b")
    js.create_stream(
        name="T", subjects=["t.>"], storage="memory", allow_msg_schedules=True
    )
    for fields in (
        {"schedule": "soon", "schedule_target": "t.b"},
        {"schedule": "@at 2100-01-01T00:00:00Z", "schedule_target": "elsewhere"},
        {"schedule": "@at 2100-01-01T00:00:00Z"},
    ):
        options: dict[str, Any] = dict(fields)
        with pytest.raises(failures.ScheduleError):
            js.publish("t.p", **options)


# Wrong calls --------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"subject": "a..b"}, ValueError),
    ({"subject": "a b"}, ValueError),
    ({"subject": "a.*"}, ValueError),
    ({"subject": "a.>"}, ValueError),
    ({"subject": ">"}, ValueError),
    ({"subject": ""}, ValueError),
    ({"subject": b"a.b"}, TypeError),
    ({"data": "text"}, TypeError),
    ({"data": 5}, TypeError),
    ({"data": memoryview(b"abcd")[::2]}, TypeError),
    ({"headers": {"K": 5}}, TypeError),
    ({"headers": {"K\r\n": "v"}}, ValueError),
    ({"headers": 5}, TypeError),
    ({"headers": "x"}, TypeError),
    ({"headers": {"K": {"x": 1}}}, TypeError),
    ({"headers": {"K": "\ud800"}}, errors.InvalidArgumentError),
    ({"msg_id": "\ud800"}, errors.InvalidArgumentError),
    ({"subject": "a.\ud800"}, errors.InvalidArgumentError),
    ({"expected_last_subject": "a b", "expected_last_subject_seq": 0}, ValueError),
    ({"timeout": "5"}, TypeError),
    ({"timeout": -1}, ValueError),
    ({"msg_id": 5}, TypeError),
    ({"msg_id": ""}, ValueError),
    ({"msg_id": "a\r\nb"}, ValueError),
    ({"expected_last_seq": "5"}, TypeError),
    ({"expected_last_seq": -1}, ValueError),
    ({"ttl": 0}, ValueError),
    ({"ttl": 1.5}, ValueError),
    ({"rollup": "everything"}, ValueError),
    ({"increment": 1.5}, TypeError),
    ({"schedule": datetime(2030, 1, 1)}, ValueError),
    ({"no_such_option": 1}, TypeError),
    ({"no_such_option": None}, TypeError),
    ({"headers": {"Nats-Msg-Id": "a"}, "msg_id": "b"}, ValueError),
]


@pytest.mark.parametrize(("given", "kind"), WRONG)
@pytest.mark.parametrize("way", ["publish", "publish_async"])
def test_a_wrong_call_raises_and_nothing_is_sent(
    js: JetStream, way: str, given: dict[str, Any], kind: type[Exception]
) -> None:
    made = stream(js)
    nc = js._connection
    before = nc.stats().out_msgs
    arguments: dict[str, Any] = {"subject": "a.b", "data": b"", **given}
    subject, data = arguments.pop("subject"), arguments.pop("data")
    with pytest.raises(kind):
        getattr(js, way)(subject, data, **arguments)
    assert nc.stats().out_msgs == before
    assert js.pending_publishes == 0
    assert len(nc._loop.request_inbox()) == 0
    assert stored(made) == 0


@pytest.mark.parametrize(
    "given", [{"retries": "2"}, {"retries": True}, {"retries": -2}, {"retry_wait": "1"}]
)
def test_wrong_retries_raise_before_anything_is_sent(
    js: JetStream, given: dict[str, Any]
) -> None:
    before = js._connection.stats().out_msgs
    with pytest.raises((TypeError, ValueError)):
        js.publish("a.b", **given)
    assert js._connection.stats().out_msgs == before


def test_finished_publishes_leave_nothing_behind(js: JetStream) -> None:
    stream(js)
    for _ in range(50):
        js.publish("a.b")
        with pytest.raises(failures.NoStreamResponseError):
            js.publish("nobody.here", retries=0)
    loop = js._connection._loop
    assert len(loop.request_inbox()) == 0
    assert loop.outbox.frames == 0
