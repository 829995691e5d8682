"""The compiled parser against the plain reference, on generated streams."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import reference, strategies
from tests.harness.compiled import Rig, disagreement, sids_of, summary_of

MAX_PAYLOAD = 1 << 20


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_valid_stream_means_what_it_was_built_from(data: st.DataObject) -> None:
    stream = data.draw(strategies.streams())
    rig = Rig(sids_of(stream.events))
    assert rig.feed(*data.draw(strategies.pieces(stream.wire)))
    assert rig.parser.is_idle
    assert rig.summary() == summary_of(stream.events)


@settings(deadline=None, max_examples=600)
@given(strategies.damaged_streams, st.data())
def test_a_damaged_stream_has_the_events_of_the_reference(
    wire: bytes, data: st.DataObject
) -> None:
    expected = reference.outcome(wire, MAX_PAYLOAD)
    chunks = data.draw(strategies.pieces(wire))
    assert disagreement(expected, chunks, MAX_PAYLOAD) is None


@settings(deadline=None, max_examples=300)
@given(st.lists(strategies.telling_bytes, max_size=60).map(bytes), st.data())
def test_noise_has_the_events_of_the_reference(
    wire: bytes, data: st.DataObject
) -> None:
    expected = reference.outcome(wire, MAX_PAYLOAD)
    chunks = data.draw(strategies.pieces(wire))
    assert disagreement(expected, chunks, MAX_PAYLOAD) is None


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_large_payloads_among_small_frames_are_read_like_any_other(
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(32 * 1024 - 3, 80 * 1024))
    sid = data.draw(st.sampled_from([1, 2, 3]))
    before, after = data.draw(strategies.streams(2)), data.draw(strategies.streams(2))
    wire = b"MSG large %d %d\r\n" % (sid, size) + b"\r" * size + b"\r\n"
    if data.draw(st.booleans()):
        wire = data.draw(strategies.damaged(wire))
    wire = before.wire + wire + after.wire
    chunks = data.draw(strategies.pieces(wire))
    expected = reference.outcome(wire, MAX_PAYLOAD)
    assert disagreement(expected, chunks, MAX_PAYLOAD) is None


@pytest.mark.parametrize("first", [b"", b"PING\r\n", b"MSG a 1 "])
def test_every_pair_of_bytes_has_the_verdict_of_the_reference(first: bytes) -> None:
    for one in range(256):
        for two in (0, 9, 10, 13, 32, 48, 57, 73, 77, 80, 255):
            wire = first + bytes([one, two]) + b"\r\n"
            expected = reference.outcome(wire, MAX_PAYLOAD)
            assert disagreement(expected, [wire], MAX_PAYLOAD) is None, wire
