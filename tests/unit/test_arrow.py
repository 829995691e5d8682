"""Batches as Arrow tables: the same memory, the same content."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._core import Batch, Headers, encode_headers
from jsclient.arrow import header_maps
from jsclient.errors import Error
from tests.harness.lanes import Delivery, delivery
from tests.unit.test_batch import batch_of, some

pa: Any = pytest.importorskip("pyarrow")

NAMES = [
    *("subject", "data", "headers", "stream_seq", "consumer_seq"),
    *("timestamp", "num_delivered"),
]


def address(buffer: memoryview) -> int:
    found = pa.py_buffer(buffer).address
    assert isinstance(found, int)
    return found


def test_a_record_batch_has_the_content_of_the_batch() -> None:
    batch = batch_of(*some(5))
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.schema.names == NAMES
    assert table.column("subject").to_pylist() == [msg.subject for msg in batch]
    assert table.column("data").to_pylist() == [msg.data for msg in batch]
    assert table.column("headers").to_pylist() == [
        msg.raw_headers or b"" for msg in batch
    ]
    assert table.column("stream_seq").to_pylist() == [10, 20, 30, 40, 50]
    assert table.column("consumer_seq").to_pylist() == [1, 2, 3, 4, 5]
    assert table.column("num_delivered").to_pylist() == [1] * 5
    moments = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert moments == batch.timestamps_ns.tolist()
    assert table.schema.field("timestamp").type == pa.timestamp("ns", tz="UTC")


def test_a_record_batch_is_on_the_memory_of_the_batch() -> None:
    batch = batch_of(*some(50))
    table = batch.to_arrow()
    for name, *buffers in (
        ("subject", batch.subject_offsets, batch.subject_data),
        ("data", batch.offsets, batch.data),
        ("headers", batch.header_offsets, batch.header_data),
        ("stream_seq", batch.stream_seqs),
        ("consumer_seq", batch.consumer_seqs),
        ("timestamp", batch.timestamps_ns),
        ("num_delivered", batch.num_delivered),
    ):
        validity, *found = table.column(name).buffers()
        assert validity is None
        assert [buffer.address for buffer in found] == [address(b) for b in buffers]
        assert not any(buffer.is_mutable for buffer in found)


def test_a_record_batch_outlives_the_batch() -> None:
    batch = batch_of(*some(50))
    expected = [msg.data for msg in batch]
    table = batch.to_arrow().slice(10)
    del batch
    gc.collect()
    assert len(batch_of(*some(100))) == 100
    assert table.column("data").to_pylist() == expected[10:]


def test_an_empty_batch_is_an_empty_record_batch_of_the_same_schema() -> None:
    empty = Batch().to_arrow()
    empty.validate(full=True)
    assert empty.num_rows == 0
    assert empty.schema == batch_of(delivery(1)).to_arrow().schema


def test_record_batches_make_a_table() -> None:
    table = pa.Table.from_batches(batch_of(*some(n)).to_arrow() for n in (1, 2, 3))
    assert table.num_rows == 6
    assert table.combine_chunks().column("consumer_seq").to_pylist() == [
        *(1, 1, 2, 1, 2, 3)
    ]


def test_a_subject_that_is_no_utf8_costs_a_copy_and_no_table() -> None:
    reply = delivery(1).reply
    table = batch_of(
        Delivery(b"a.\xff", reply), Delivery("ä".encode(), reply)
    ).to_arrow()
    table.validate(full=True)
    assert table.column("subject").to_pylist() == ["a.\ufffd", "ä"]
    assert table.schema == Batch().to_arrow().schema


def headed(*blocks: bytes) -> Batch:
    """A batch of messages with these header blocks."""
    return batch_of(*(delivery(n, header=one) for n, one in enumerate(blocks, 1)))


def test_headers_are_maps_of_keys_to_all_their_values() -> None:
    batch = headed(
        b"NATS/1.0\r\nA: 1\r\nB:  x y \r\nA:2\r\na: 3\r\nEmpty:\r\n\r\n",
        b"",
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nA: last\r\n\r\n",
    )
    maps = header_maps(batch)
    maps.validate(full=True)
    assert maps.to_pylist() == [
        [("A", ["1", "2"]), ("B", ["x y"]), ("a", ["3"]), ("Empty", [""])],
        [],
        [],
        [("A", ["last"])],
    ]
    assert maps.type == pa.map_(pa.string(), pa.list_(pa.string()))
    del batch
    gc.collect()
    assert maps[3].as_py() == [("A", ["last"])]


def test_the_fields_before_the_fault_of_a_header_block_count() -> None:
    batch = headed(b"NATS/1.0\r\nA: 1\r\nno colon\r\nB: 2\r\n\r\n", b"rubbish\r\n\r\n")
    assert header_maps(batch).to_pylist() == [[("A", ["1"])], []]


def test_headers_that_are_no_utf8_are_replaced() -> None:
    batch = headed(b"NATS/1.0\r\nA: \xff\r\nB: \xc3\xbc\r\n\r\n")
    maps = header_maps(batch)
    maps.validate(full=True)
    assert maps.to_pylist() == [[("A", ["\ufffd"]), ("B", ["ü"])]]


HEADER_FIELDS = st.lists(st.tuples(st.sampled_from("abc"), st.text("xyz")))


@given(st.lists(HEADER_FIELDS, min_size=1, max_size=6))
def test_header_maps_say_what_the_messages_say(
    rows: list[list[tuple[str, str]]],
) -> None:
    batch = headed(*(encode_headers(fields) or b"" for fields in rows))
    maps = header_maps(batch)
    maps.validate(full=True)
    for msg, found in zip(batch, maps.to_pylist(), strict=True):
        headers = msg.headers or Headers()
        expected: dict[str, list[str]] = {}
        for key, value in headers.multi_items():
            expected.setdefault(key, []).append(value)
        assert found == list(expected.items())


@pytest.mark.parametrize("count", [31, 32, 33, 20_000])
def test_a_message_with_many_headers_is_told_like_any_other(count: int) -> None:
    keys = [f"key-{number}" for number in range(count)]
    fields = [*((key, "1") for key in keys), *((key, "2") for key in keys[::7])]
    batch = headed(encode_headers(fields) or b"")
    expected = [
        (key, ["1", "2"] if number % 7 == 0 else ["1"])
        for number, key in enumerate(keys)
    ]
    assert header_maps(batch).to_pylist() == [expected]


def test_an_empty_batch_has_no_header_maps() -> None:
    maps = header_maps(Batch())
    maps.validate(full=True)
    assert len(maps) == 0


def test_without_pyarrow_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = batch_of(delivery(1))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Error, match=r"jsclient\[arrow\]"):
        batch.to_arrow()
