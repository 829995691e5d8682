"""Rows of columns: what frames they become, and the ids of their content."""

from __future__ import annotations

import socket
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._core import Column, Link, Offsets, Outbox, Rows, Seen, Window
from jsclient.errors import InvalidArgumentError
from tests.unit.test_window import column

KEY = bytes(range(16))


def frames(rows: Rows) -> list[bytes]:
    """What the rows are on the wire, each frame without its number."""
    outbox = Outbox(1 << 20, 1 << 20)
    near, far = socket.socketpair()
    with near, far:
        outbox.attach(Link(near.fileno()), b"")
        window = Window("I.", outbox, 100)
        window.fill(rows)
        outbox.send()
        got = far.recv(1 << 16)
    found = []
    while got:
        line, _, got = got.partition(b"\r\n")
        words = line.split(b" ")
        size = int(words[-1])
        found.append(b" ".join(words[:2]) + b"|" + got[:size])
        got = got[size + 2 :]
    return found


def test_a_row_without_headers_is_a_plain_publish() -> None:
    assert frames(Rows(2, column(b"x", None), "a.b")) == [b"PUB a.b|x", b"PUB a.b|"]


def test_rows_have_subjects_headers_and_fields_of_their_own() -> None:
    headers = (
        Offsets(array("i", [0, 2, 2]), 2),
        column(b"K", b"L"),
        Offsets(array("i", [0, 2, 3]), 2),
        column(b"1", b"2", b"3"),
    )
    rows = Rows(
        2,
        column(b"x", b"y"),
        column(b"a", b"b"),
        headers=headers,
        fields=[("Nats-Msg-Id", column(None, b"id"))],
    )
    assert frames(rows) == [
        b"HPUB a|NATS/1.0\r\nK: 1\r\nK: 2\r\nL: 3\r\n\r\nx",
        b"HPUB b|NATS/1.0\r\nNats-Msg-Id: id\r\n\r\ny",
    ]


def test_a_header_may_have_one_value_and_none() -> None:
    headers = (
        Offsets(array("i", [0, 2]), 1),
        column(b"K", b"L"),
        None,
        column(b"1", None),
    )
    rows = Rows(1, column(b"x"), "a", headers=headers, constant=b"C: c\r\n")
    assert frames(rows) == [b"HPUB a|NATS/1.0\r\nC: c\r\nK: 1\r\n\r\nx"]


def test_values_may_start_anywhere_in_their_buffers() -> None:
    places = array("q", [0, 1, 3, 6])
    middle = Column(Offsets(places, 2, first=1, is_large=True), b"abbccc")
    assert frames(Rows(2, middle, "s")) == [b"PUB s|bb", b"PUB s|ccc"]


def test_buffers_may_begin_at_any_address() -> None:
    for width in ("i", "q"):
        places = memoryview(b"x" + array(width, [0, 1, 3]).tobytes())[1:]
        odd = Column(Offsets(places, 2, is_large=width == "q"), b"abb")
        assert frames(Rows(2, odd, "s")) == [b"PUB s|a", b"PUB s|bb"]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (b"", b"", "must not be empty"),
        (None, b"", "must not be empty"),
        (b"a b", b"", "printable ASCII"),
        (b"K", b"a\nb", "line breaks"),
        (b"K", b"a\0b", "line breaks"),
    ],
)
def test_wrong_headers_are_refused(
    key: bytes | None, value: bytes, problem: str
) -> None:
    headers = (Offsets(array("i", [0, 1]), 1), column(key), None, column(value))
    with pytest.raises(InvalidArgumentError, match=problem):
        frames(Rows(1, column(b"x"), "a", headers=headers))


def test_what_a_row_has_by_other_means_overrules_its_headers() -> None:
    headers = (
        Offsets(array("i", [0, 3]), 1),
        column(b"Nats-Msg-Id", b"Nats-Expected-Stream", b"K"),
        None,
        column(b"mine", b"OLD", b"v"),
    )
    rows = Rows(1, column(b"x"), "a", headers=headers)
    old = b"Nats-Msg-Id: mine\r\nNats-Expected-Stream: OLD\r\nK: v\r\n"
    assert frames(rows) == [b"HPUB a|NATS/1.0\r\n" + old + b"\r\nx"]
    rows.position = 0
    rows.identify("p-", KEY, Seen())
    rows.constant = b"Nats-Expected-Stream: NEW\r\n"
    new = f"Nats-Expected-Stream: NEW\r\nK: v\r\nNats-Msg-Id: {rows.id_of(0)}\r\n"
    assert frames(rows) == [b"HPUB a|NATS/1.0\r\n" + new.encode() + b"\r\nx"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Offsets(array("i", [0, 1]), 2),
        lambda: Offsets(array("i", [0, 1]), -1),
        lambda: Offsets(array("i", [0, 1]), 1, first=1),
        lambda: Offsets(array("i", [0, 1]), 1, first=1 << 62),
        lambda: Offsets(array("i", [0] * 10), 9, validity=b"\xff"),
        lambda: Rows(2, column(b"x"), "a"),
        lambda: Rows(1, column(b"x"), "a..b"),
        lambda: Rows(1, column(b"x"), column()),
        lambda: Rows(1, column(b"x"), "a", fields=[("a b", column(b""))]),
        lambda: Rows(1, column(b"x"), "a").identify("p", b"short", Seen()),
        lambda: Rows(1, column(b"x"), "a").identify("p\n", KEY, Seen()),
    ],
)
def test_columns_that_do_not_fit_are_refused(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


@pytest.mark.parametrize("data", ["text", 7, memoryview(b"abcd")[::2]])
def test_only_contiguous_buffers_make_a_column(data: Any) -> None:
    with pytest.raises(TypeError, match="contiguous buffers"):
        Column(Offsets(array("i", [0, 1]), 1), data)


@pytest.mark.parametrize("places", [[0, 9], [-1, 1], [1, 0]])
def test_offsets_outside_of_their_bytes_are_refused(places: list[int]) -> None:
    rows = Rows(1, Column(Offsets(array("i", places), 1), b"x"), "a")
    with pytest.raises(InvalidArgumentError, match="outside"):
        frames(rows)
    rows.identify("p", KEY, Seen())
    with pytest.raises(InvalidArgumentError, match="outside"):
        rows.id_of(0)


def test_a_row_that_has_no_id_does_not_cost_the_next_its_own() -> None:
    places = Offsets(array("i", [0, 9, 1, 2]), 3)  # the first two make no sense
    rows = Rows(3, Column(places, b"xy"), "a")
    rows.identify("p-", KEY, Seen())
    for row in (0, 1):
        with pytest.raises(InvalidArgumentError, match="outside"):
            rows.id_of(row)
    assert rows.id_of(2) == ids(b"y")[0]


def ids(*payloads: bytes | None, subject: str = "a", prefix: str = "p-") -> list[str]:
    rows = Rows(len(payloads), column(*payloads), subject)
    rows.identify(prefix, KEY, Seen())
    found = [rows.id_of(row) for row in range(len(payloads))]
    return [one for one in found if one is not None]


def test_the_id_is_in_the_frame() -> None:
    rows = Rows(1, column(b"x"), "a")
    rows.identify("p-", KEY, Seen())
    (made,) = ids(b"x")
    head = f"NATS/1.0\r\nNats-Msg-Id: {made}\r\n\r\n".encode()
    assert frames(rows) == [b"HPUB a|" + head + b"x"]
    assert made.startswith("p-")
    assert made.endswith("-0")


def test_a_hash_is_that_of_the_reference() -> None:
    # SipHash-2-4 with 128 bits of its authors' vectors: key 0..15, input 0..14; here
    # the subject is the first piece, whose hash is the key of the payload.
    rows = Rows(1, column(None), bytes(range(33, 48)).decode())
    rows.identify("", KEY, Seen())
    (first,) = [rows.id_of(0)]
    assert first == siphash_text(KEY, bytes(range(33, 48))) + "-0"
    assert siphash(KEY, bytes(range(15))).hex() == "5493e99933b0a8117e08ec0f97cfc3d9"


def siphash(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 with 128 bits, as its paper has it."""
    mask = (1 << 64) - 1

    def turned(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & mask

    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[1] = turned(v[1], 13) ^ v[0]
            v[0] = turned(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = turned(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = turned(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = turned(v[1], 17) ^ v[2]
            v[2] = turned(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 255])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    high = v[0] ^ v[1] ^ v[2] ^ v[3]
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def siphash_text(key: bytes, data: bytes) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_~"
    number = int.from_bytes(siphash(key, data), "little")
    return "".join(digits[number >> 6 * place & 63] for place in range(22))


@given(st.lists(st.binary(max_size=40), max_size=50), st.randoms())
def test_ids_do_not_depend_on_the_order_of_rows(
    payloads: list[bytes], rng: Any
) -> None:
    before = ids(*payloads)
    assert len(set(before)) == len(payloads)
    shuffled = list(payloads)
    rng.shuffle(shuffled)
    assert sorted(ids(*shuffled)) == sorted(before)


def test_subject_headers_payload_and_prefix_all_count() -> None:
    def with_header(key: bytes, value: bytes) -> str | None:
        headers = (Offsets(array("i", [0, 1]), 1), column(key), None, column(value))
        rows = Rows(1, column(b"x"), "a", headers=headers)
        rows.identify("p-", KEY, Seen())
        return rows.id_of(0)

    made = [
        *ids(b"x"),
        *ids(b"x", subject="b"),
        *ids(b"y"),
        *ids(b""),
        *ids(b"x", prefix="q-"),
        with_header(b"K", b"v"),
        with_header(b"Kv", b""),
        with_header(b"K", b"w"),
    ]
    assert len(set(made)) == len(made)


def test_the_count_of_equal_rows_goes_on_over_batches() -> None:
    seen = Seen()
    found = []
    for _ in range(3):
        rows = Rows(2, column(b"x", b"x"), "a")
        rows.identify("", KEY, seen)
        found += [rows.id_of(0), rows.id_of(1)]
    assert [str(one)[-2:] for one in found] == [f"-{number}" for number in range(6)]
    assert len(seen) == 1


def test_many_contents_are_told_apart() -> None:
    seen = Seen()
    payloads = [b"%d" % number for number in range(20_000)]
    rows = Rows(len(payloads), column(*payloads), "a")
    for nth in range(2):
        rows.identify("", KEY, seen)
        assert str(rows.id_of(len(payloads) - 1)).endswith(f"-{nth}")
        assert str(rows.id_of(7)).endswith(f"-{nth}")
        assert len(seen) == len(payloads)


def test_rows_that_are_not_there_raise() -> None:
    rows = Rows(1, column(b"x"), column(None))
    assert rows.subject_text(0) == ""
    assert rows.id_of(0) is None
    for wrong in (-1, 1):
        with pytest.raises(IndexError):
            rows.subject_text(wrong)
        with pytest.raises(IndexError):
            rows.id_of(wrong)
    with pytest.raises(InvalidArgumentError, match="null"):
        frames(rows)
