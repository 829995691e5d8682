"""Columns: they say what the messages of the same frames say, and outlive the batch."""

from __future__ import annotations

import gc
import pickle
import socket
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient._core import (
    Batch,
    BatchInbox,
    BatchIterator,
    Helm,
    Link,
    Msg,
    Outbox,
    PullInbox,
    live_objects,
)
from jsclient.errors import BufferFullError, NotJetStreamMessageError
from tests.harness.collector import amid_collection
from tests.harness.compiled import parts, take_all
from tests.harness.lanes import MIB, Delivery, LaneRig, courier, delivery
from tests.harness.strategies import ack_subjects, block_bytes, pieces, subjects

LARGE = 40_000  # larger than what the parser keeps in its buffer
COLUMNS = ("stream_seqs", "consumer_seqs", "timestamps_ns", "num_delivered")
BUFFERS = (
    *("data", "offsets", "header_data", "header_offsets"),
    *("subject_data", "subject_offsets", *COLUMNS),
)

replies = st.one_of(
    ack_subjects().map(lambda ack: ack.wire),
    st.just(b"$JS.ACK.S.C.1.2.3.4.5"),
    # No numbers can be read from these.
    st.sampled_from([b"$JS.ACK.S", b"$JS.ACK.S.C.1.x.3.4.5"]),
)
payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r\n", b"x" * LARGE]),
)
deliveries = st.builds(
    Delivery, subjects, replies, st.one_of(st.just(b""), block_bytes), payloads
)


def batch_of(*wanted: Delivery, outbox: Outbox | None = None) -> Batch:
    """The batch that these deliveries make."""
    inbox = BatchInbox(courier(outbox))
    LaneRig(inbox).feed(wanted)
    batch = inbox.take_batch()
    assert batch is not None
    return batch


def some(count: int) -> list[Delivery]:
    """Deliveries with payloads of 0, 1, 2, … bytes, every second one with headers."""
    return [
        delivery(
            n,
            stream_seq=10 * n,
            data=b"x" * (n - 1),
            header=b"NATS/1.0\r\nNumber: %d\r\n\r\n" % n if n % 2 else b"",
        )
        for n in range(1, count + 1)
    ]


def numbers(msg: Msg) -> tuple[int, int, int, int]:
    """What the ack subject says, as in the columns."""
    try:
        place = msg.metadata
    except NotJetStreamMessageError:
        return 0, 0, 0, 0
    return place.stream_seq, place.consumer_seq, place.timestamp_ns, place.num_delivered


def assert_same(batch: Batch, messages: list[Msg]) -> None:
    """Every column says what the messages say."""
    assert len(batch) == len(messages)
    assert bytes(batch.data) == b"".join(msg.data for msg in messages)
    assert batch.sizes == [len(msg.data) for msg in messages]
    assert batch.subjects == [msg.subject for msg in messages]
    columns = zip(*(getattr(batch, name).tolist() for name in COLUMNS), strict=True)
    assert list(columns) == [numbers(msg) for msg in messages]
    for i, msg in enumerate(messages):
        first, last = batch.offsets[i], batch.offsets[i + 1]
        assert bytes(batch.data[first:last]) == msg.data
        first, last = batch.header_offsets[i], batch.header_offsets[i + 1]
        assert bytes(batch.header_data[first:last]) == (msg.raw_headers or b"")
        first, last = batch.subject_offsets[i], batch.subject_offsets[i + 1]
        subject = bytes(batch.subject_data[first:last])
        assert subject.decode("utf-8", "surrogateescape") == msg.subject
        assert parts(batch[i]) == parts(msg)


# What is in it


@given(st.lists(deliveries, max_size=8), st.data())
@settings(max_examples=200)
def test_the_columns_say_what_the_messages_say(
    wanted: list[Delivery], data: st.DataObject
) -> None:
    columns, objects = BatchInbox(courier()), PullInbox(courier())
    rig = LaneRig(columns, objects)
    wire = b"".join(one.frame(1) + one.frame(2) for one in wanted)
    for piece in data.draw(pieces(wire)):
        rig.parser.feed(piece)
    assert columns.count == objects.count == len(wanted)
    assert columns.bytes == objects.bytes == sum(one.size for one in wanted)
    assert columns.owed == objects.owed
    batch = columns.take_batch()
    if not wanted:
        assert batch is None
        return
    assert batch is not None
    assert_same(batch, take_all(objects))
    assert columns.taken == objects.taken == len(wanted)


def test_large_payloads_are_in_the_same_buffer_as_small_ones() -> None:
    wanted = [
        delivery(1, data=b"a"),
        delivery(2, data=b"b" * LARGE, header=b"NATS/1.0\r\nA: b\r\n\r\n"),
        delivery(3),
        delivery(4, data=b"c" * 3 * MIB),
        delivery(5, data=b"d"),
    ]
    batch = batch_of(*wanted)
    assert batch.offsets.tolist() == [
        *(0, 1, 1 + LARGE, 1 + LARGE),
        *(1 + LARGE + 3 * MIB, 2 + LARGE + 3 * MIB),
    ]
    assert [msg.data for msg in batch] == [one.data for one in wanted]


def test_thousands_of_messages_stay_in_line() -> None:
    wanted = some(3000)
    inbox = PullInbox(courier())
    LaneRig(inbox).feed(wanted)
    assert_same(batch_of(*wanted), take_all(inbox))


def test_an_empty_batch_has_empty_columns() -> None:
    batch = Batch()
    assert len(batch) == 0
    assert list(batch) == []
    assert batch.sizes == []
    assert batch.subjects == []
    for name in BUFFERS:
        expected = [0] if name.endswith("offsets") else []
        assert getattr(batch, name).tolist() == expected
    batch.ack()
    assert not batch.is_acked


def test_each_batch_has_what_came_since_the_last_one() -> None:
    inbox = BatchInbox(courier())
    rig = LaneRig(inbox)
    assert inbox.take_batch() is None
    rig.feed([delivery(1), delivery(2)])
    first = inbox.take_batch()
    rig.feed([delivery(3)])
    second = inbox.take_batch()
    assert inbox.take_batch() is None
    assert first is not None
    assert second is not None
    assert first.consumer_seqs.tolist() == [1, 2]
    assert second.consumer_seqs.tolist() == [3]
    assert (inbox.arrived, inbox.taken, inbox.count, inbox.bytes) == (3, 3, 0, 0)


def test_two_who_take_at_once_do_not_get_the_same_batch() -> None:
    inbox = BatchInbox(courier())
    LaneRig(inbox).feed([delivery(1), delivery(2)])
    others: list[Batch | None] = []
    mine = amid_collection(inbox.take_batch, lambda: others.append(inbox.take_batch()))
    taken = [batch for batch in (mine, *others) if batch is not None]
    assert [batch.consumer_seqs.tolist() for batch in taken] == [[1, 2]]
    assert (inbox.count, inbox.taken, inbox.bytes) == (0, 2, 0)


@pytest.mark.parametrize("kind", [BatchInbox, PullInbox])
def test_a_limit_that_is_set_again_takes_nothing_away(kind: type[PullInbox]) -> None:
    inbox = kind(courier())
    rig = LaneRig(inbox)
    inbox.set_limit(2)
    rig.feed([delivery(1), delivery(2), delivery(3)])
    assert (inbox.count, inbox.dropped) == (2, 1)
    inbox.set_limit(2)
    assert inbox.is_ended
    assert (inbox.count, inbox.arrived) == (2, 2)


def test_columns_are_not_messages_that_could_be_taken_or_put_back() -> None:
    inbox = BatchInbox(courier())
    LaneRig(inbox).feed([delivery(1), delivery(2)])
    assert inbox.take() is None
    assert inbox.take_all() == []
    with pytest.raises(TypeError, match="whole batches"):
        inbox.put_back(Msg("a"))
    batch = inbox.take_batch()
    assert batch is not None
    assert len(batch) == 2


def test_what_is_dropped_is_in_no_batch() -> None:
    inbox = BatchInbox(courier())
    rig = LaneRig(inbox)
    rig.feed([delivery(1), delivery(2)])
    assert inbox.clear() == 2
    assert (inbox.count, inbox.bytes, inbox.taken) == (0, 0, 0)
    rig.feed([delivery(3)])
    batch = inbox.take_batch()
    assert batch is not None
    assert batch.consumer_seqs.tolist() == [3]


# Indexes


def test_indexes_count_from_either_end() -> None:
    batch = batch_of(*some(3))
    assert [batch[i].metadata.consumer_seq for i in (0, 2, -1, -3)] == [1, 3, 3, 1]
    assert [msg.metadata.consumer_seq for msg in batch] == [1, 2, 3]


@pytest.mark.parametrize("index", [3, -4, sys.maxsize, -sys.maxsize - 1])
def test_an_index_that_is_not_there_is_refused(index: int) -> None:
    with pytest.raises(IndexError):
        batch_of(*some(3))[index]


def test_an_index_must_be_a_number() -> None:
    with pytest.raises(TypeError):
        batch_of(*some(3))["0"]  # type: ignore[index]


# Buffers


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("data", "B"),
        ("header_data", "B"),
        ("subject_data", "B"),
        ("offsets", "q"),
        ("header_offsets", "q"),
        ("subject_offsets", "q"),
        ("timestamps_ns", "q"),
        ("stream_seqs", "Q"),
        ("consumer_seqs", "Q"),
        ("num_delivered", "Q"),
    ],
)
def test_a_column_is_a_read_only_buffer_of_numbers(name: str, format_: str) -> None:
    view = getattr(batch_of(*some(4)), name)
    assert (view.format, view.ndim, view.readonly) == (format_, 1, True)
    assert view.itemsize == (1 if format_ == "B" else 8)
    assert view.contiguous
    with pytest.raises(TypeError):
        view[0] = 1
    near, far = socket.socketpair()
    with near, far, pytest.raises(TypeError):
        near.recv_into(view.obj)  # asks for memory that it may change
    assert bytes(view) == view.tobytes()


def test_a_column_keeps_its_memory_when_the_batch_is_gone() -> None:
    batch = batch_of(*some(200))
    views = {name: getattr(batch, name) for name in BUFFERS}
    copies = {name: bytes(view) for name, view in views.items()}
    del batch
    gc.collect()
    others = [batch_of(*some(200)) for _ in range(5)]
    assert {name: bytes(view) for name, view in views.items()} == copies
    assert len(others) == 5


def test_a_message_of_a_batch_is_a_copy() -> None:
    gc.collect()
    before = live_objects()
    batch = batch_of(*some(3))
    msg = batch[2]
    del batch
    gc.collect()
    assert msg.data == b"xx"
    del msg
    assert live_objects() == before


def test_a_batch_cannot_be_pickled_and_shows_its_size() -> None:
    batch = batch_of(*some(3))
    assert repr(batch) == "<Batch of 3 messages>"
    with pytest.raises(TypeError, match="to_arrow"):
        pickle.dumps(batch)


# Acks


def down(keep_limit: int = MIB) -> Outbox:
    """An outbox without a link, so that what was added can be looked at."""
    outbox = Outbox(MIB, keep_limit)
    outbox.set_max_payload(MIB)
    return outbox


def acks(outbox: Outbox) -> list[bytes]:
    """The subjects that were acknowledged, in order."""
    lines = outbox.unsent().split(b"\r\n")
    assert set(lines[1::2]) <= {b"+ACK"}
    return [line.split()[1] for line in lines[:-1:2]]


def test_every_message_is_acknowledged_once() -> None:
    outbox = down()
    wanted = some(5)
    batch = batch_of(*wanted, outbox=outbox)
    told = [batch.is_acked]
    batch.ack()
    told.append(batch.is_acked)
    batch.ack()
    assert told == [False, True]
    assert acks(outbox) == [one.reply for one in wanted]


def test_a_consumer_without_acks_gets_none() -> None:
    outbox = down()
    inbox = BatchInbox(courier(outbox, is_ack_none=True))
    LaneRig(inbox).feed(some(5))
    batch = inbox.take_batch()
    assert batch is not None
    batch.ack()
    assert batch.is_acked
    assert not outbox.unsent()


def test_acks_go_where_the_courier_sends_them() -> None:
    outbox = down()
    inbox = BatchInbox(courier(outbox, ack_prefix="other.account"))
    LaneRig(inbox).feed([delivery(7)])
    batch = inbox.take_batch()
    assert batch is not None
    batch.ack()
    batch[0].ack()
    wanted = delivery(7).reply.replace(b"$JS.ACK", b"other.account")
    assert acks(outbox) == [wanted, wanted]


def test_an_ack_that_failed_goes_on_where_it_stopped() -> None:
    outbox = down(150)  # what is kept without a link
    wanted = some(10)
    batch = batch_of(*wanted, outbox=outbox)
    with pytest.raises(BufferFullError):
        batch.ack()
    told = [batch.is_acked]
    sent = len(acks(outbox))
    assert 0 < sent < 10
    with pytest.raises(BufferFullError):
        batch.ack()
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        outbox.expect_link()
        outbox.attach(Link(near.fileno()), b"")
        batch.ack()
        outbox.send()
        told.append(batch.is_acked)
        received = far.recv(MIB)
        outbox.detach()
    assert told == [False, True]
    subjects = [line.split()[1] for line in received.split(b"\r\n")[:-1:2]]
    assert subjects == [one.reply for one in wanted]


def test_a_message_of_a_batch_can_be_acknowledged_by_itself() -> None:
    outbox = down()
    batch = batch_of(*some(3), outbox=outbox)
    batch[1].nak()
    assert outbox.unsent().endswith(b"-NAK\r\n")


# When more is due


def test_more_is_due_when_owed_and_held_fall_to_the_threshold() -> None:
    inbox = BatchInbox(courier())
    inbox.threshold = 4
    rig = LaneRig(inbox, batch=10)
    rig.feed(some(5))
    assert (inbox.owed, inbox.count) == (5, 5)
    assert inbox.take_batch() is not None
    assert not inbox.is_due  # 5 are owed
    rig.feed([delivery(6)])
    assert inbox.take_batch() is not None
    assert inbox.is_due


def test_more_is_due_when_bytes_fall_to_the_threshold() -> None:
    inbox = BatchInbox(courier())
    inbox.counts_bytes = True
    inbox.threshold = 100
    wanted = [delivery(n, data=b"x" * 50) for n in range(1, 4)]
    size = wanted[0].size
    rig = LaneRig(inbox, max_bytes=3 * size)
    rig.feed(wanted[:2])
    assert (inbox.owed_bytes, inbox.bytes) == (size, 2 * size)
    assert inbox.take_batch() is not None
    assert inbox.is_due == (size <= 100)
    rig.feed(wanted[2:])
    assert inbox.take_batch() is not None
    assert inbox.is_due


def test_nothing_is_due_without_a_threshold() -> None:
    inbox = BatchInbox(courier())
    LaneRig(inbox, batch=2).feed(some(2))
    assert inbox.take_batch() is not None
    assert not inbox.is_due


def test_who_takes_messages_asks_for_more() -> None:
    asked: list[int] = []
    inbox = BatchInbox(courier())
    inbox.threshold = 1
    inbox.on_due = lambda: asked.append(inbox.count)
    LaneRig(inbox, batch=2).feed(some(2))
    inbox.refill()
    assert asked == []
    assert inbox.take_batch() is not None
    inbox.refill()
    assert asked == [0]


def taken(inbox: BatchInbox) -> Batch:
    """A batch that is there, by an iterator."""
    helm = Helm(lambda what, deadline: None, time.monotonic, Outbox(MIB, 0))
    return next(BatchIterator(inbox, helm))


def test_more_is_asked_for_before_a_batch_is_handed_over() -> None:
    asked: list[int] = []
    inbox = BatchInbox(courier())
    inbox.threshold = 1
    inbox.on_due = lambda: asked.append(inbox.count)
    LaneRig(inbox, batch=2).feed(some(2))
    assert len(taken(inbox)) == 2
    assert asked == [0]


def test_an_exception_in_asking_for_more_loses_no_batch() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    inbox = BatchInbox(courier())
    inbox.threshold = 1
    inbox.on_due = interrupt
    LaneRig(inbox, batch=2).feed(some(2))
    with pytest.raises(KeyboardInterrupt):
        taken(inbox)
    assert (inbox.count, inbox.taken) == (2, 0)
    inbox.on_due = None
    assert taken(inbox).consumer_seqs.tolist() == [1, 2]


def test_an_inbox_is_ready_when_there_is_something_to_take() -> None:
    inbox = BatchInbox(courier())
    rig = LaneRig(inbox)
    told = [inbox.ready]
    rig.feed([delivery(1)])
    told.append(inbox.ready)
    emptied = inbox.await_empty()
    told.append(emptied.is_open)
    assert inbox.take_batch() is not None
    told.append(emptied.is_open)
    told.append(inbox.ready)
    inbox.end(None)
    told.append(inbox.ready)
    assert told == [False, True, False, True, False, True]
