"""Batches: all or nothing, and fast; what servers refuse, and links that are cut."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient.batch import FastBatch
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.stream import Stream
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, until

pytestmark = pytest.mark.live


def stream(js: JetStream, **fields: Any) -> Stream:
    """A stream in memory on `a.>` that takes batches of both kinds."""
    made: dict[str, Any] = {
        "name": "S",
        "subjects": ["a.>"],
        "storage": "memory",
        "allow_atomic": True,
        "allow_batched": True,
        "allow_direct": True,
    }
    return js.create_stream(**{**made, **fields})


def stored(made: Stream) -> int:
    return made.info().state.messages


def assert_empty(js: JetStream, entries: int = 1) -> None:
    """Nothing is left of a batch but the inbox of all requests."""
    loop = js._connection._loop
    assert len(loop.request_inbox()) == 0
    assert loop.outbox.frames == 0
    assert len(loop.entries) == entries


@pytest.fixture
def proxy(jetstream_server: Server) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", jetstream_server.port) as made:
        yield made


# Atomic -------------------------------------------------------------------------------


def test_an_atomic_batch_is_stored_with_its_commit_and_not_before(
    js: JetStream,
) -> None:
    made = stream(js)
    js.publish("a.first")
    with js.atomic_batch() as batch:
        for number in range(3):
            batch.add(f"a.{number}", b"%d" % number, headers={"K": f"{number}"})
            assert len(batch) == number + 1
        assert stored(made) == 1
        with pytest.raises(failures.MessageNotFoundError):
            made.get_msg(2)
        ack = batch.commit()
    assert (ack.stream, ack.seq, ack.count, ack.batch) == ("S", 4, 3, batch.id)
    messages = list(made.get_msgs(seq=2))
    assert [(msg.seq, msg.subject, msg.data) for msg in messages] == [
        (2, "a.0", b"0"),
        (3, "a.1", b"1"),
        (4, "a.2", b"2"),
    ]
    assert [m.headers is not None and m.headers["K"] for m in messages] == [*"012"]
    assert_empty(js)


def test_an_atomic_batch_of_one_message_is_stored(js: JetStream) -> None:
    made = stream(js)
    batch = js.atomic_batch()
    batch.add("a.b", b"alone")
    ack = batch.commit()
    assert (ack.seq, ack.count, stored(made)) == (1, 1, 1)


def test_a_thousand_messages_are_the_most_of_an_atomic_batch(js: JetStream) -> None:
    made = stream(js)
    batch = js.atomic_batch()
    for number in range(1000):
        batch.add("a.b", b"%d" % number)
    assert batch.commit().count == 1000
    large = js.atomic_batch()
    with pytest.raises(failures.AtomicBatchError) as caught:  # noqa: PT012
        for number in range(1001):
            large.add("a.b", b"%d" % number)
        large.commit()
    assert caught.value.err_code == 10199
    assert stored(made) == 1000
    js._connection.flush()
    assert_empty(js)


def test_a_stream_without_batches_refuses_the_first_message(js: JetStream) -> None:
    made = stream(js, allow_atomic=False)
    batch = js.atomic_batch()
    batch.add("a.b", b"1")
    with pytest.raises(failures.AtomicBatchError) as caught:
        batch.add("a.b", b"2")
    assert caught.value.err_code == 10174
    with pytest.raises(errors.InvalidArgumentError, match="over"):
        batch.add("a.b", b"3")
    with pytest.raises(errors.InvalidArgumentError, match="over"):
        batch.commit()
    assert stored(made) == 0
    assert_empty(js)


def test_a_batch_that_was_given_up_stores_nothing(js: JetStream) -> None:
    made = stream(js)
    with js.atomic_batch() as batch:
        for _ in range(5):
            batch.add("a.b")
    with pytest.raises(errors.InvalidArgumentError, match="over"):
        batch.commit()
    with pytest.raises(RuntimeError), js.atomic_batch() as other:  # noqa: PT012
        other.add("a.b")
        other.add("a.b")
        raise RuntimeError
    with pytest.raises(errors.InvalidArgumentError, match="no messages"):
        js.atomic_batch().commit()
    js._connection.flush()
    assert stored(made) == 0
    assert_empty(js)


def test_a_gap_in_an_atomic_batch_stores_nothing(js: JetStream) -> None:
    made = stream(js)
    batch = js.atomic_batch()
    batch.add("a.b")
    batch.add("a.b")
    batch._count += 1  # a message that never was
    with pytest.raises(failures.IncompleteBatchError) as caught:
        batch.commit()
    assert caught.value.err_code == 10176
    assert stored(made) == 0


def test_a_batch_that_the_server_forgot_cannot_be_committed() -> None:
    with (
        run(jetstream={"limits": {"batch": {"timeout": "500ms"}}}) as server,
        jsclient.connect(server.url) as nc,
    ):
        js = nc.jetstream()
        made = stream(js)
        lost: list[bytes] = []
        nc.subscribe(
            "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>",
            callback=lambda msg: lost.append(msg.data),
        )
        batch = js.atomic_batch()
        batch.add("a.b")
        batch.add("a.b")
        until(lambda: bool(lost), "the server abandons it")
        with pytest.raises(failures.IncompleteBatchError):
            batch.commit()
        assert stored(made) == 0


def test_a_condition_that_fails_stores_nothing_of_the_batch(js: JetStream) -> None:
    made = stream(js)
    batch = js.atomic_batch()
    batch.add("a.b", expected_last_seq=5)
    batch.add("a.b")
    with pytest.raises(failures.WrongLastSequenceError):
        batch.commit()
    again = js.atomic_batch()
    again.add("a.b", msg_id="one")
    with pytest.raises(failures.AtomicBatchError):  # noqa: PT012
        again.add("a.b", msg_id="one")
        again.commit()
    assert stored(made) == 0


def test_an_end_marker_is_not_stored_and_not_counted(js: JetStream) -> None:
    stream(js)
    marks = {"Nats-Batch-Id": "mine", "Nats-Batch-Sequence": "1"}
    assert js._connection.request("a.b", b"1", headers=marks).data == b""
    marks["Nats-Batch-Sequence"] = "2"
    ack = js.publish("a.b", headers={**marks, "Nats-Batch-Commit": "eob"})
    assert (ack.batch, ack.count, ack.seq) == ("mine", 1, 1)


def test_a_wrong_message_leaves_an_atomic_batch_as_it_was(js: JetStream) -> None:
    stream(js)
    batch = js.atomic_batch()
    batch.add("a.b", b"1")
    for subject, data, fields in (
        ("a..b", b"", {}),
        ("a.b", "text", {}),
        ("a.b", b"x" * (1 << 20), {}),
        ("a.b", b"", {"headers": {"K": "v" * (1 << 20)}}),
        ("a.b", b"", {"ttl": 0}),
        ("a.b", b"", {"no_such_option": 1}),
    ):
        wrong: Any = fields
        payload: Any = data
        with pytest.raises((TypeError, ValueError)):
            batch.add(subject, payload, **wrong)
    batch.add("a.b", b"2")
    assert batch.commit().count == 2


def test_a_message_of_a_batch_is_what_it_was_when_it_was_added(js: JetStream) -> None:
    made = stream(js)
    data, headers = bytearray(b"old"), {"K": "old"}
    batch = js.atomic_batch()
    batch.add("a.b", data, headers=headers)
    data[:] = b"new"
    headers["K"] = "new"
    msg = made.get_msg(batch.commit().seq)
    assert msg.headers is not None
    assert (msg.data, msg.headers["K"]) == (b"old", "old")


@pytest.mark.parametrize(
    "headers", [5, "x", {"K": 5}, {"K": {"x": 1}}, {"K": "a\r\nb"}, {"K": "\ud800"}]
)
def test_wrong_headers_are_refused_by_the_call_that_adds_them(
    js: JetStream, headers: Any
) -> None:
    stream(js)
    batch = js.atomic_batch()
    with pytest.raises((TypeError, errors.InvalidArgumentError), match="header"):
        batch.add("a.b", headers=headers)
    assert len(batch) == 0


def test_a_batch_of_a_closed_connection_takes_nothing(
    jetstream_server: Server,
) -> None:
    nc = jsclient.connect(jetstream_server.url)
    batch = nc.jetstream().atomic_batch()
    nc.close()
    with pytest.raises(errors.ConnectionClosedError):
        batch.add("a.b")


def test_silence_gives_an_atomic_batch_up(js: JetStream, proxy: FaultProxy) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url) as nc:
        batch = nc.jetstream(timeout=0.3).atomic_batch()
        batch.add("a.b")
        nc._loop.request_inbox()
        nc.flush()
        proxy.set("s2c", stall=True)
        with pytest.raises(errors.TimeoutError, match="nothing of it is stored"):
            batch.add("a.b")
        proxy.set("s2c")
    assert stored(made) == 0


def test_a_cut_link_in_the_middle_of_an_atomic_batch_stores_nothing(
    js: JetStream, proxy: FaultProxy
) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url, reconnect_wait=0.01) as nc:
        other = nc.jetstream(timeout=PATIENCE)
        batch = other.atomic_batch()
        for _ in range(3):
            batch.add("a.b")
        proxy.set("s2c", stall=True)
        batch.add("a.b")
        proxy.cut()
        proxy.set("s2c")
        with pytest.raises(errors.DisconnectedError, match="nothing of it is stored"):
            batch.commit()
        assert stored(made) == 0
        assert other.publish("a.b").seq == 1
        assert_empty(other)


def test_a_link_cut_before_the_ack_of_a_commit_leaves_it_unknown(
    js: JetStream, proxy: FaultProxy
) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url, reconnect_wait=0.01) as nc:
        other = nc.jetstream(timeout=PATIENCE)
        batch = other.atomic_batch()
        for _ in range(3):
            batch.add("a.b")
        nc.flush()
        while batch._staging:
            batch._await_staged(float("inf"))
        proxy.set("s2c", cut_after=0)
        with pytest.raises(failures.PublishOutcomeUnknownError):
            batch.commit()
        assert stored(made) == 3
        assert_empty(other)


# Fast ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("flow", "outstanding"), [(1, 1), (50, 2), (1000, 3)])
def test_a_fast_batch_stores_what_was_added(
    js: JetStream, flow: int, outstanding: int
) -> None:
    made = stream(js)
    with js.fast_batch(flow=flow, max_outstanding=outstanding) as batch:
        for number in range(1000):
            batch.add("a.b", b"%d" % number)
        assert len(batch) == 1000
        ack = batch.commit()
    assert (ack.stream, ack.seq, ack.count, ack.batch) == ("S", 1000, 1000, batch.id)
    assert len(batch) == 1000
    assert batch.errors == []
    assert made.get_msg(1000).data == b"999"
    assert_empty(js)


def test_a_fast_batch_of_one_message_is_stored(js: JetStream) -> None:
    stream(js)
    batch = js.fast_batch()
    batch.add("a.b", headers={"K": "v"})
    assert batch.commit().count == 1
    assert_empty(js)


def test_the_first_ack_tells_the_flow(js: JetStream) -> None:
    stream(js)
    batch = js.fast_batch(flow=50)
    batch.add("a.b")
    assert (batch._acked, batch._interval) in {(0, 50), (1, 50)}
    batch.discard()
    assert_empty(js)


def test_a_stream_without_fast_batches_refuses_the_first_message(
    js: JetStream,
) -> None:
    made = stream(js, allow_batched=False)
    batch = js.fast_batch()
    with pytest.raises(failures.FastBatchError) as caught:
        batch.add("a.b")
    assert caught.value.err_code == 10205
    with pytest.raises(errors.InvalidArgumentError, match="over"):
        batch.add("a.b")
    assert stored(made) == 0
    assert_empty(js)


def test_a_fast_batch_to_nobody_says_so(js: JetStream) -> None:
    batch = js.fast_batch()
    with pytest.raises(failures.NoStreamResponseError):
        batch.add("nobody.here")
    with pytest.raises(errors.InvalidArgumentError, match="no messages"):
        js.fast_batch().commit()
    assert_empty(js)


def test_a_missing_message_ends_a_batch_that_must_have_all(js: JetStream) -> None:
    made = stream(js)
    batch = js.fast_batch(flow=1, max_outstanding=1)
    for _ in range(4):
        batch.add("a.b")
    batch._sent += 1  # the fifth is withheld
    with pytest.raises(failures.FastBatchError, match="ended the batch after 4"):  # noqa: PT012
        for _ in range(10):
            batch.add("a.b")
        batch.commit()
    assert "5" in str(batch.errors[0])
    assert stored(made) == 4
    assert_empty(js)


def test_a_missing_message_is_noted_by_a_batch_that_may_lose_some(
    js: JetStream,
) -> None:
    made = stream(js)
    batch = js.fast_batch(flow=10, on_gap="ok")
    for number in range(20):
        if number == 5:
            batch._sent += 1
        batch.add("a.b")
    ack = batch.commit()
    assert stored(made) == 20
    assert ack.seq == 20
    assert [type(error) for error in batch.errors] == [failures.FastBatchError]


def test_a_refused_message_is_noted_or_ends_the_batch(js: JetStream) -> None:
    made = stream(js)
    batch = js.fast_batch(flow=1, on_gap="ok")
    batch.add("a.b")
    batch.add("a.b", expected_last_seq=99)
    batch.add("a.b")
    batch.commit()
    assert [type(error) for error in batch.errors] == [failures.WrongLastSequenceError]
    assert stored(made) == 2


def add_all(batch: FastBatch, messages: list[dict[str, Any]]) -> None:
    """The messages and the commit; raises what either does."""
    for message in messages:
        batch.add("a.b", **message)
    batch.commit()


@pytest.mark.parametrize("flow", [1, 100])
@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"max_msgs": 3, "discard": "new"}, [{}] * 6),
        ({}, [{}, {}, {}, {"expected_last_seq": 99}, {}, {}]),
    ],
)
def test_a_batch_that_must_have_all_and_has_not_tells_what_is_stored(
    js: JetStream, fields: dict[str, Any], messages: list[dict[str, Any]], flow: int
) -> None:
    made = stream(js, **fields)
    batch = js.fast_batch(flow=flow)
    with pytest.raises(failures.FastBatchError, match="after 3 messages") as caught:
        add_all(batch, messages)
    ack = caught.value.ack
    assert ack is not None
    assert (ack.count, ack.seq, stored(made)) == (3, 3, 3)
    assert caught.value.__cause__ is batch.errors[0]
    with pytest.raises(errors.InvalidArgumentError, match="over"):
        batch.add("a.b")
    assert_empty(js)


def test_nothing_is_sent_after_a_message_that_was_refused(js: JetStream) -> None:
    stream(js)
    batch = js.fast_batch()
    batch.add("a.b")
    before = js._connection.stats().out_msgs
    with pytest.raises(failures.FastBatchError, match="after 1 messages"):  # noqa: PT012
        batch.add("a.b", expected_last_seq=99)
        until(lambda: batch._inbox.count >= 2, "the server has ended it")
        batch.add("a.b")
    assert js._connection.stats().out_msgs == before + 1
    assert len(batch) == 2


@pytest.mark.parametrize("flow", [1, 100])
def test_a_refusal_says_nothing_of_the_messages_before_it(
    js: JetStream, flow: int
) -> None:
    made = stream(js, max_msg_size=100)
    batch = js.fast_batch(flow=flow)
    sizes = [10, 10, 10, 200]
    with pytest.raises(failures.PublishOutcomeUnknownError, match="are acked") as told:
        add_all(batch, [{"data": b"x" * size} for size in sizes])
    assert isinstance(told.value.__cause__, failures.MessageTooLargeError)
    assert stored(made) == 3
    alone = js.fast_batch()
    with pytest.raises(failures.MessageTooLargeError):
        alone.add("a.b", b"x" * 200)
    assert stored(made) == 3
    assert_empty(js)


def test_a_wrong_message_leaves_a_fast_batch_as_it_was(js: JetStream) -> None:
    stream(js)
    batch = js.fast_batch(flow=5)
    batch.add("a.b")
    for subject, data, fields in (
        ("a..b", b"", {}),
        ("a.b", "text", {}),
        ("a.b", b"x" * (1 << 21), {}),
        ("a.b", b"", {"ttl": 0}),
    ):
        wrong: Any = fields
        payload: Any = data
        with pytest.raises((TypeError, ValueError)):
            batch.add(subject, payload, **wrong)
    batch.add("a.b")
    assert (batch.commit().count, batch.errors) == (2, [])


@pytest.mark.parametrize(
    "given",
    [
        {"flow": 0},
        {"flow": 65536},
        {"flow": "5"},
        {"max_outstanding": 0},
        {"max_outstanding": 4},
        {"on_gap": "skip"},
        {"timeout": -1},
    ],
)
def test_wrong_options_of_a_fast_batch_are_refused(
    js: JetStream, given: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError)):
        js.fast_batch(**given)


def test_a_fast_batch_that_was_left_or_lost_gives_its_inbox_back(
    js: JetStream,
) -> None:
    stream(js)
    loop = js._connection._loop
    with js.fast_batch() as batch:
        batch.add("a.b")
    assert_empty(js)
    forgotten = js.fast_batch()
    forgotten.add("a.b")
    assert len(loop.entries) == 2
    del forgotten
    gc.collect()
    until(lambda: len(loop.entries) == 1, "its inbox has left")


def test_a_cut_link_leaves_a_fast_batch_unknown(
    js: JetStream, proxy: FaultProxy
) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url, reconnect_wait=0.01) as nc:
        other = nc.jetstream(timeout=PATIENCE)
        batch = other.fast_batch(flow=10)
        for _ in range(30):
            batch.add("a.b")
        proxy.cut()
        until(lambda: nc.stats().reconnects == 1, "there is a new link")
        with pytest.raises(failures.PublishDisconnectedError, match="link was lost"):
            batch.commit()
        with pytest.raises(errors.InvalidArgumentError, match="over"):
            batch.add("a.b")
        assert 10 <= stored(made) <= 30
        assert_empty(other)


def test_closing_the_connection_leaves_a_fast_batch_unknown(
    js: JetStream, jetstream_server: Server
) -> None:
    stream(js)
    nc = jsclient.connect(jetstream_server.url)
    batches = [nc.jetstream().fast_batch() for _ in range(3)]
    batches[0].add("a.b")
    batches[1].add("a.b")
    nc.close()
    with pytest.raises(failures.PublishDisconnectedError):
        batches[0].commit()
    with pytest.raises(failures.PublishDisconnectedError):
        batches[1].add("a.b")
    with pytest.raises(errors.ConnectionClosedError):
        batches[2].add("a.b")
