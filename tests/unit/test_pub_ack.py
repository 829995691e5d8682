"""Publish acknowledgements: the usual answer without a JSON parser, and the value."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._core import PubAck, parse_pub_ack

names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)
sequences = st.integers(0, (1 << 64) - 1)


@pytest.mark.parametrize(
    ("answer", "ack"),
    [
        (b'{"stream":"S","seq":1}', PubAck("S", 1)),
        (b'{"stream":"S","seq": 12}', PubAck("S", 12)),
        (b'{"stream":"S","seq":1,"duplicate": true}', PubAck("S", 1, duplicate=True)),
        (b'{"stream":"S","domain":"hub","seq":1}', PubAck("S", 1, domain="hub")),
        (
            b'{"stream":"ORDERS","seq":18446744073709551615}',
            PubAck("ORDERS", 2**64 - 1),
        ),
    ],
)
def test_the_usual_answer_is_read(answer: bytes, ack: PubAck) -> None:
    assert parse_pub_ack(answer) == ack


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b'{"stream":"S","seq":}',
        b'{"stream":"S","seq":1',
        b'{"stream":"S","seq":1} ',
        b'{"stream":"S","seq":-1}',
        b'{"stream":"S","seq":1.5}',
        b'{"stream":"S","seq":18446744073709551616}',
        b'{"stream":"","seq":1000}',
        b'{"stream":"S","seq":1,"duplicate":false}',
        b'{"stream":"S","domain":"","seq":1}',
        b'{"stream":"S","domain":"hub"}       ',
        b'{"stream":"S","domain":"h\\u0062","seq":1}',
        b'{"stream":"S","seq":1,"domain":"hub"}',
        b'{"stream":"S","seq":1,"batch":"b","count":2}',
        b'{"stream":"a\\"b","seq":1}',
        b'{"stream":"\xc3\xa4","seq":1}',
        b'{"stream":"' + b"S" * 40,
        b'{"error":{"code":503,"description":"no"},"stream":"S","seq":1}',
        b'{"stream":"S","seq":1,"error":{"code":503}}',
    ],
)
def test_any_other_answer_is_left_to_a_json_parser(answer: bytes) -> None:
    assert parse_pub_ack(answer) is None


@given(names, sequences)
def test_what_is_read_is_what_json_says(stream: str, seq: int) -> None:
    answer = json.dumps({"stream": stream, "seq": seq}, separators=(",", ":")).encode()
    ack = parse_pub_ack(answer)
    if ack is None:
        assert "\\" in answer.decode()
    else:
        assert (ack.stream, ack.seq) == (stream, seq)


def meaning(answer: bytes) -> PubAck | None:
    """What a JSON parser makes of an answer, if it is the ack of a stream."""
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or "error" in parsed:
        return None
    try:
        return PubAck(
            parsed["stream"], parsed["seq"], duplicate=parsed.get("duplicate", False)
        )
    except (LookupError, TypeError, OverflowError):
        return None


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 1 << 65),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
answers = st.builds(
    lambda fields, more, separators: json.dumps(
        {**fields, **more}, separators=separators
    ).encode(),
    st.fixed_dictionaries({"stream": names | values, "seq": sequences | values}),
    st.dictionaries(
        st.sampled_from(["duplicate", "domain", "val", "batch", "count", "error"]),
        values,
        max_size=2,
    ),
    st.sampled_from([(",", ":"), (", ", ": "), (",", ": ")]),
)


@given(answers)
def test_an_ack_that_is_read_says_what_its_json_says(answer: bytes) -> None:
    ack = parse_pub_ack(answer)
    assert ack is None or ack == meaning(answer)


@given(st.data(), st.binary(max_size=6))
def test_damage_is_refused_or_means_the_same_as_json(
    data: st.DataObject, noise: bytes
) -> None:
    answer = data.draw(
        st.sampled_from(
            [b'{"stream":"S","seq":123}', b'{"stream":"S","seq":5,"duplicate": true}']
        )
    )
    start = data.draw(st.integers(0, len(answer)))
    end = data.draw(st.integers(start, len(answer)))
    damaged = answer[:start] + noise + answer[end:]
    ack = parse_pub_ack(damaged)
    assert ack is None or ack == meaning(damaged)


@given(st.binary(max_size=60))
def test_garbage_is_no_ack(garbage: bytes) -> None:
    assert parse_pub_ack(garbage) is None


@pytest.mark.parametrize("tail", [b"01}", b"0}", b"00}", b"007}"])
def test_a_number_that_json_does_not_have_is_left_to_its_parser(tail: bytes) -> None:
    answer = b'{"stream":"S","seq":' + tail
    ack = parse_pub_ack(answer)
    assert ack is None or ack == meaning(answer)


FULL = PubAck("S", 5, duplicate=True, domain="hub", value=-3, batch="b", count=2)


def test_an_acknowledgement_has_these_fields() -> None:
    assert (FULL.stream, FULL.seq, FULL.duplicate, FULL.domain) == ("S", 5, True, "hub")
    assert (FULL.value, FULL.batch, FULL.count) == (-3, "b", 2)
    bare = PubAck("S", 5)
    assert (bare.duplicate, bare.domain, bare.value, bare.batch) == (False,) + (
        None,
    ) * 3


def test_acknowledgements_compare_by_value_and_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert PubAck("S", 5) == PubAck("S", 5)
    assert PubAck("S", 5) != PubAck("S", 6)
    assert PubAck("S", 5) != "S"


def test_an_acknowledgement_prints_what_it_has() -> None:
    assert repr(PubAck("S", 5)) == "PubAck(stream='S', seq=5)"
    assert repr(FULL) == (
        "PubAck(stream='S', seq=5, duplicate=True, domain='hub', value=-3, "
        "batch='b', count=2)"
    )
