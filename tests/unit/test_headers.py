"""Header blocks: decoding what peers send, encoding what users give, the mapping."""

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings

from jsclient._core import Headers, Msg, encode_headers, rebuild_msg
from jsclient.errors import BadHeadersError, InvalidArgumentError
from tests.harness import reference, strategies
from tests.harness.compiled import block_of
from tests.harness.reference import HeaderBlock


def received(block: bytes, payload: bytes = b"") -> Msg:
    return rebuild_msg(b"a", b"", block, payload)


def headers_of(block: bytes) -> Headers:
    headers = received(block).headers
    assert headers is not None
    return headers


def decoded(block: bytes) -> HeaderBlock:
    return block_of(headers_of(block))


GOOD = {
    b"NATS/1.0\r\n\r\n": HeaderBlock(None, None, []),
    b"NATS/1.0\r\nK: v\r\n\r\n": HeaderBlock(None, None, [("K", "v")]),
    b"NATS/1.0 503\r\n\r\n": HeaderBlock(503, None, []),
    b"NATS/1.0 503 \t \r\n\r\n": HeaderBlock(503, None, []),
    b"NATS/1.0 503\r\nNats-Subject: foo\r\n\r\n": HeaderBlock(
        503, None, [("Nats-Subject", "foo")]
    ),
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n": HeaderBlock(
        100, "Idle Heartbeat", [("Nats-Last-Consumer", "5")]
    ),
    b"NATS/1.0 404 \t No \xc3\xa4 \xff \r\n\r\n": HeaderBlock(404, "No ä \udcff", []),
    b"NATS/1.0\r\nK: a\r\nK: b\r\nk: c\r\n\r\n": HeaderBlock(
        None, None, [("K", "a"), ("K", "b"), ("k", "c")]
    ),
    b"NATS/1.0\r\nK:\t a b:c \t\r\nL:\r\n\r\n": HeaderBlock(
        None, None, [("K", "a b:c"), ("L", "")]
    ),
    b"NATS/1.0\r\n: skipped\r\n:\r\nK: \xff\r\n\r\n": HeaderBlock(
        None, None, [("K", "\udcff")]
    ),
    b"NATS/1.0\r\nStatus: 409\r\nK : a\rb\r\n\r\n": HeaderBlock(
        None, None, [("Status", "409"), ("K ", "a\rb")]
    ),
}
MALFORMED = [
    b"h",
    b"hello",
    b"NATS/1.0",
    b"NATS/1.0\r\n",
    b"NATS/2.0\r\n\r\n",
    b"nats/1.0\r\n\r\n",
    b"NATS/1.0\r\nK: v\r\n",
    b"NATS/1.0\r\nK: v\r\n\r\nx",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nK: v\r\n\r\nL: w\r\n\r\n",
    b"NATS/1.0\r\n\r\n\r\n",
    b"NATS/1.0\n\r\n\r\n",
    b"NATS/1.0\r\nK: v\nL: w\r\n\r\n",
    b"NATS/1.0\r\nK: v\n\n",
]
MALFORMED_STATUS = [
    b"NATS/1.0418\r\n\r\n",
    b"NATS/1.0 \r\n\r\n",
    b"NATS/1.0\t503\r\n\r\n",
    b"NATS/1.0  503\r\n\r\n",
    b"NATS/1.0 50\r\n\r\n",
    b"NATS/1.0 5033\r\n\r\n",
    b"NATS/1.0 5o3\r\n\r\n",
    b"NATS/1.0 503x\r\n\r\n",
    b"NATS/1.0 50\xb2\r\n\r\n",
    b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 503\tText\r\n\r\n",
]


@pytest.mark.parametrize("block", GOOD)
def test_a_good_block_is_decoded(block: bytes) -> None:
    assert decoded(block) == GOOD[block]
    msg = received(block)
    assert (msg.status, msg.description) == GOOD[block][:2]
    assert msg.raw_headers == block
    assert msg.headers is msg.headers


@pytest.mark.parametrize("block", MALFORMED + MALFORMED_STATUS)
def test_a_malformed_block_raises_at_its_use_and_keeps_its_bytes(block: bytes) -> None:
    msg = received(block, b"payload")
    for _ in range(2):
        with pytest.raises(BadHeadersError, match="raw_headers"):
            _ = msg.headers
    assert (msg.raw_headers, msg.data, msg.subject) == (block, b"payload", "a")


@pytest.mark.parametrize("block", MALFORMED_STATUS)
def test_what_is_no_status_is_none(block: bytes) -> None:
    msg = received(block)
    assert (msg.status, msg.description) == (None, None)


def test_a_status_is_readable_though_the_fields_are_malformed() -> None:
    msg = received(b"NATS/1.0 409 Consumer Deleted\r\nno colon\r\n\r\n")
    assert (msg.status, msg.description) == (409, "Consumer Deleted")


def test_a_message_without_a_block_has_no_headers() -> None:
    msg = received(b"")
    assert (msg.headers, msg.raw_headers, msg.status) == (None, None, None)
    assert msg.description is None


def test_a_header_named_status_is_no_status() -> None:
    msg = received(b"NATS/1.0\r\nStatus: 409\r\nDescription: x\r\n\r\n")
    assert (msg.status, msg.description) == (None, None)
    assert msg.headers == {"Status": "409", "Description": "x"}


@settings(deadline=None, max_examples=300)
@given(strategies.header_blocks())
def test_a_generated_block_means_what_it_was_built_from(
    block: strategies.Block,
) -> None:
    assert decoded(block.wire) == block.meaning


@settings(deadline=None, max_examples=500)
@given(strategies.damaged_blocks.filter(len))
def test_a_damaged_block_is_read_as_the_reference_reads_it(wire: bytes) -> None:
    try:
        expected = reference.decode_headers(wire)
    except reference.BadHeaders:
        with pytest.raises(BadHeadersError):
            _ = received(wire).headers
    else:
        assert decoded(wire) == expected
        assert received(wire).status == expected.status
        assert received(wire).description == expected.description


# The mapping


CASES = headers_of(b"NATS/1.0\r\nK: a\r\nK: b\r\nk: c\r\nOther: d\r\n\r\n")


def test_looking_up_tries_the_exact_key_before_any_case() -> None:
    assert (CASES["K"], CASES["k"], CASES["other"]) == ("a", "c", "d")
    assert CASES.get_all("K") == ["a", "b"]
    assert CASES.get_all("k") == ["c"]
    assert CASES.get_all("OTHER") == ["d"]
    assert CASES.get("oTHER") == "d"


def test_a_missing_key_is_missing() -> None:
    assert "x" not in CASES
    assert CASES.get("x") is None
    assert CASES.get("x", 5) == 5
    assert CASES.get_all("x") == []
    with pytest.raises(KeyError, match="x"):
        CASES["x"]


def test_a_key_that_is_no_text_is_missing() -> None:
    others: list[Any] = [1, b"K", None]  # what the type checker would not let in
    assert not any(other in CASES for other in others)


def test_headers_are_an_ordered_mapping_of_first_values() -> None:
    assert isinstance(CASES, Mapping)
    assert len(CASES) == 3
    assert list(CASES) == list(CASES.keys()) == ["K", "k", "Other"]
    assert list(CASES.values()) == ["a", "c", "d"]
    assert dict(CASES) == {"K": "a", "k": "c", "Other": "d"}
    assert dict(CASES.items()) == dict(CASES)
    assert CASES.multi_items() == [("K", "a"), ("K", "b"), ("k", "c"), ("Other", "d")]


def test_changing_a_copy_leaves_the_headers_alone() -> None:
    CASES.multi_items().clear()
    CASES.get_all("K").clear()
    assert len(CASES.multi_items()) == 4


def test_headers_compare_by_all_their_fields() -> None:
    assert Headers([("a", "1")]) == Headers({"a": "1"}) == {"a": "1"}
    assert Headers([("a", "1"), ("a", "2")]) != Headers({"a": "1"})
    assert Headers({"a": "1"}, status=100) != Headers({"a": "1"})
    assert Headers({"a": "1"}) != "a"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Headers())


def test_headers_print_what_they_hold() -> None:
    headers = Headers({"a": ["1", "2"]}, status=404, description="No Messages")
    assert repr(headers) == (
        "Headers([('a', '1'), ('a', '2')], status=404, description='No Messages')"
    )
    assert repr(Headers()) == "Headers([])"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_headers_survive_pickling(protocol: int) -> None:
    headers = Headers({"a": ["1", "\udcff"]}, status=404, description="x")
    assert pickle.loads(pickle.dumps(headers, protocol)) == headers


# Encoding


@pytest.mark.parametrize(
    ("given_headers", "block"),
    [
        ({"Header": "X"}, b"NATS/1.0\r\nHeader: X\r\n\r\n"),
        ({"K": ["a", "b"], "k": ("c",)}, b"NATS/1.0\r\nK: a\r\nK: b\r\nk: c\r\n\r\n"),
        ([("K", "a"), ("K", "")], b"NATS/1.0\r\nK: a\r\nK: \r\n\r\n"),
        ({"K": "ä\udcff"}, b"NATS/1.0\r\nK: \xc3\xa4\xff\r\n\r\n"),
        ({"!~": "a:b\tc"}, b"NATS/1.0\r\n!~: a:b\tc\r\n\r\n"),
        ({}, None),
        ([], None),
        ({"K": []}, None),
        (None, None),
        (Headers(), None),
        (CASES, b"NATS/1.0\r\nK: a\r\nK: b\r\nk: c\r\nOther: d\r\n\r\n"),
    ],
)
def test_headers_are_encoded_one_line_per_value(
    given_headers: dict[str, str] | None, block: bytes | None
) -> None:
    assert encode_headers(given_headers) == block


def test_undecodable_values_go_out_as_they_came_in() -> None:
    block = b"NATS/1.0\r\nK: \xff\xfe \xc3\x28\r\n\r\n"
    assert encode_headers(headers_of(block)) == block


@pytest.mark.parametrize(
    "key", ["", "bad key", "bad:key", "K\r", "K\n", "K\0", "K\t", "ä", "\x7f", "\udcff"]
)
def test_a_key_that_the_wire_cannot_carry_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="header key"):
        encode_headers({key: "v"})


@pytest.mark.parametrize("value", ["x\r\nEvil: 1", "\r", "a\nb", "\0"])
def test_a_value_with_a_line_break_or_nul_is_refused(value: str) -> None:
    for headers in ({"K": value}, {"K": ["fine", value]}):
        with pytest.raises(InvalidArgumentError, match="'K'"):
            encode_headers(headers)


def test_a_lone_surrogate_that_stands_for_no_byte_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="the value of header"):
        encode_headers({"K": "\ud800"})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"K": 1}, "'K' must be a str or a list of str, not int"),
        ({"K": b"v"}, "not bytes"),
        ({"K": None}, "not NoneType"),
        ({"K": ["v", 1]}, "must be str, not int"),
        ({1: "v"}, "key must be a str, not int"),
        ([("K",)], "pairs"),
        ([1], "pairs"),
        ("text", "pairs"),
    ],
)
def test_headers_of_a_wrong_type_are_refused_with_its_name(
    wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        encode_headers(wrong)
    with pytest.raises(TypeError, match=said):
        Headers(wrong)
