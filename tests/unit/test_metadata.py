"""The ack subject of a JetStream delivery, in all its forms."""

import pickle
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings

from jsclient._core import rebuild_msg
from jsclient.errors import NotJetStreamMessageError
from tests.harness import reference, strategies
from tests.harness.compiled import ack_of, metadata_of, to_bytes
from tests.harness.reference import Ack

NUMBERS = "3.10.12.1794822690692342458.2"
MEANING = Ack("S", "C", None, 3, 10, 12, 1794822690692342458, 2)
MOST = (1 << 64) - 1

GOOD = {
    "$JS.ACK.S.C." + NUMBERS: MEANING,
    "$JS.ACK._.szMpdrwD.S.C." + NUMBERS: MEANING,
    "$JS.ACK._.szMpdrwD.S.C." + NUMBERS + ".random": MEANING,
    "$JS.ACK._.szMpdrwD.S.C." + NUMBERS + ".a.b.c.": MEANING,
    "$JS.ACK.hub.szMpdrwD.S.C." + NUMBERS: MEANING._replace(domain="hub"),
    "$JS.ACK.TE%ST.a@b-c$." + NUMBERS: MEANING._replace(
        stream="TE%ST", consumer="a@b-c$"
    ),
    "$JS.ACK.\udcff.ä." + NUMBERS: MEANING._replace(stream="\udcff", consumer="ä"),
    f"$JS.ACK.S.C.{MOST}.{MOST}.{MOST}.{(1 << 63) - 1}.{MOST}": Ack(
        "S", "C", None, MOST, MOST, MOST, (1 << 63) - 1, MOST
    ),
    "$JS.ACK.S.C.0.0.0.0.0": Ack("S", "C", None, 0, 0, 0, 0, 0),
    "$JS.ACK.S.C.00000000000000000001.1.1.1.0": Ack("S", "C", None, 1, 1, 1, 1, 0),
}
OTHER = [
    "_INBOX.x.y",
    "$JS.ACK",
    "$JS.ACK.",
    "$JS.ACK.S.C.3.10.12.17",
    "$JS.ACK._.S.C." + NUMBERS,
    "$JS.NAK.S.C." + NUMBERS,
    "$JSX.ACK.S.C." + NUMBERS,
    "$js.ack.S.C." + NUMBERS,
    "x$JS.ACK.S.C." + NUMBERS,
    "$JS.ACK..C." + NUMBERS,
    "$JS.ACK.S.." + NUMBERS,
    "$JS.ACK.S.C..1.1.1.0",
    "$JS.ACK.S.C.-1.1.1.1.0",
    "$JS.ACK.S.C.+1.1.1.1.0",
    "$JS.ACK.S.C.1.1x.1.1.0",
    "$JS.ACK.S.C.1.1. 1.1.0",
    "$JS.ACK.S.C.1.18446744073709551616.1.1.0",
    "$JS.ACK.S.C.1.99999999999999999999.1.1.0",
    "$JS.ACK.S.C.1.000000000000000000001.1.1.0",
    "$JS.ACK.S.C.1.1.1.9223372036854775808.0",
    "$JS.ACK.S.C.1.1.1.1.",
    "$JS.ACK.S.C.1.1.1.1.0@x",
]


@pytest.mark.parametrize("reply", GOOD)
def test_an_ack_subject_is_decoded(reply: str) -> None:
    msg = rebuild_msg(b"a", to_bytes(reply), b"", b"")
    assert ack_of(msg.metadata) == GOOD[reply]
    assert msg.metadata is msg.metadata


@pytest.mark.parametrize("reply", OTHER)
def test_another_reply_is_no_delivery(reply: str) -> None:
    with pytest.raises(NotJetStreamMessageError, match="ack subject"):
        metadata_of(to_bytes(reply))


def test_a_message_without_reply_is_no_delivery() -> None:
    with pytest.raises(NotJetStreamMessageError):
        _ = rebuild_msg(b"$JS.ACK.S.C.1.1.1.1.0", b"", b"", b"").metadata


@settings(deadline=None, max_examples=300)
@given(strategies.ack_subjects())
def test_a_generated_ack_subject_means_what_it_was_built_from(
    subject: strategies.AckSubject,
) -> None:
    assert ack_of(metadata_of(subject.wire)) == subject.meaning


@settings(deadline=None, max_examples=500)
@given(strategies.damaged_ack_subjects)
def test_a_damaged_ack_subject_is_read_as_the_reference_reads_it(wire: bytes) -> None:
    try:
        expected = reference.decode_ack(wire)
    except reference.NotAck:
        with pytest.raises(NotJetStreamMessageError):
            metadata_of(wire)
    else:
        assert ack_of(metadata_of(wire)) == expected


def test_the_timestamp_is_exact_to_the_microsecond_and_in_utc() -> None:
    found = metadata_of(b"$JS.ACK.S.C.1.1.1.1794822690692342999.0")
    assert found.timestamp == datetime(
        2026, 11, 16, 9, 51, 30, 692342, tzinfo=timezone.utc
    )
    latest = metadata_of(b"$JS.ACK.S.C.1.1.1.%d.0" % ((1 << 63) - 1))
    assert latest.timestamp.year == 2262


def test_metadata_print_every_field() -> None:
    assert repr(metadata_of(b"$JS.ACK.hub.h.S.C.1.2.3.4.5")) == (
        "Metadata(stream='S', consumer='C', domain='hub', num_delivered=1, "
        "stream_seq=2, consumer_seq=3, timestamp_ns=4, num_pending=5)"
    )


def test_recurring_names_are_the_same_text() -> None:
    first, second = (metadata_of(b"$JS.ACK.ORDERS.W.1.%d.1.1.0" % i) for i in (1, 2))
    assert first.stream is second.stream
    assert first.consumer is second.consumer


def test_metadata_are_pickled_with_their_message_only() -> None:
    with pytest.raises(TypeError, match="pickle the Msg"):
        pickle.dumps(metadata_of(to_bytes("$JS.ACK.S.C." + NUMBERS)))
