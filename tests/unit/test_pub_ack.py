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
        b'{"stream":"S","domain":"hub","seq":1}',
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


@given(st.binary(max_size=40), st.integers(0, 30))
def test_damage_is_refused_or_still_says_a_number(noise: bytes, at: int) -> None:
    answer = b'{"stream":"ORDERS","seq":123}'
    ack = parse_pub_ack(answer[:at] + noise + answer[at + len(noise) :])
    assert ack is None or (ack.stream and ack.seq >= 0)


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
