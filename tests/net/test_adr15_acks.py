"""JSAck and ack handling (ADR-15): each rule of it has a test of its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jsclient import errors
from jsclient._core import Msg
from tests.net.client import TIMEOUT
from tests.net.frames import client_frames
from tests.net.push_peer import PushDesk, PushScene, pushing

pytestmark = pytest.mark.timeout(60)

V1 = "$JS.ACK.S.C.3.5.7.1794822688406701443.9"
V2 = "$JS.ACK._.hash.S.C.3.5.7.1794822688406701443.9"
ACKS: dict[str, Callable[[Msg], None]] = {
    "+ACK": Msg.ack,
    "-NAK": Msg.nak,
    "+TERM": Msg.term,
    "+WPI": Msg.in_progress,
}


def delivered(scene: PushScene, reply: str = V1) -> Msg:
    """A message with that reply subject."""
    scene.send(lambda to: f"MSG s.a {to.sid} {reply} 0\r\n\r\n".encode())
    return scene.sub.next(TIMEOUT)


def acks(scene: PushScene) -> list[tuple[str, bytes]]:
    """What was published to ack subjects: where, and what."""
    scene.heard()
    return [
        (frame.arguments.split()[0].decode(), frame.body)
        for frame in client_frames(scene.server.received(0), may_be_cut=True)
        if frame.verb == b"PUB" and frame.arguments.startswith(b"$JS.ACK")
    ]


def test_a_message_must_contain_a_reply_to_in_the_jsack_format() -> None:
    with pushing(PushDesk()) as scene:
        scene.send(lambda to: f"MSG s.a {to.sid} 0\r\n\r\n".encode())
        msg = scene.sub.next(TIMEOUT)
        for use in (lambda: msg.metadata, msg.ack, msg.nak, msg.term, msg.in_progress):
            with pytest.raises(errors.NotJetStreamMessageError):
                use()


@pytest.mark.parametrize("reply", [V1, V2, V2 + ".more.tokens"])
def test_the_jsack_should_be_used_without_modification(reply: str) -> None:
    with pushing(PushDesk(), config={"ack_policy": "explicit"}) as scene:
        delivered(scene, reply).ack()
        assert acks(scene) == [(reply, b"+ACK")]


@pytest.mark.parametrize("reply", [V1, V2, V2 + ".new", V2 + ".new.newer"])
def test_clients_must_support_the_9_token_version_and_11_or_more(reply: str) -> None:
    with pushing(PushDesk()) as scene:
        found = delivered(scene, reply).metadata
        assert (found.stream, found.consumer) == ("S", "C")
        assert (found.num_delivered, found.stream_seq, found.consumer_seq) == (3, 5, 7)
        assert (found.timestamp_ns, found.num_pending) == (1794822688406701443, 9)


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.NAK.S.C.3.5.7.1794822688406701443.9",
        "$JS.ACK.S.C.3.5.7.1794822688406701443",
        "$JS.ACK.x.S.C.3.5.7.1794822688406701443.9",
        "$JS.ACK.S.C.three.5.7.1794822688406701443.9",
        "$JS.ACK.S.C.3.-5.7.1794822688406701443.9",
        "$JS.ACK.S.C.3.5.7.now.9",
    ],
)
def test_if_the_reply_to_is_no_jsack_the_client_should_raise_an_error(
    reply: str,
) -> None:
    with pushing(PushDesk()) as scene:
        msg = delivered(scene, reply)
        with pytest.raises(errors.NotJetStreamMessageError):
            msg.metadata  # noqa: B018 - reading it raises


def test_the_domain_underscore_is_exposed_as_null() -> None:
    with pushing(PushDesk()) as scene:
        assert delivered(scene, V2).metadata.domain is None
        assert delivered(scene, V2.replace("_", "hub")).metadata.domain == "hub"


@pytest.mark.parametrize("payload", ACKS)
def test_clients_must_support_3_terminal_ack_types_and_the_progress_type(
    payload: str,
) -> None:
    with pushing(PushDesk(), config={"ack_policy": "explicit"}) as scene:
        ACKS[payload](delivered(scene))
        assert acks(scene) == [(V1, payload.encode())]


@pytest.mark.parametrize("first", ["+ACK", "-NAK", "+TERM"])
def test_after_a_terminal_ack_the_client_should_ignore_all_other_requests(
    first: str,
) -> None:
    with pushing(PushDesk(), config={"ack_policy": "explicit"}) as scene:
        msg = delivered(scene)
        msg.in_progress()
        ACKS[first](msg)
        for use in ACKS.values():
            use(msg)
        msg.ack_sync()
        assert [payload for _, payload in acks(scene)] == [b"+WPI", first.encode()]


def test_with_ack_policy_none_the_client_should_ignore_all_requests() -> None:
    with pushing(PushDesk(), config={"ack_policy": "none"}) as scene:
        msg = delivered(scene)
        for use in ACKS.values():
            use(msg)
        msg.ack_sync()
        assert acks(scene) == []


def test_the_client_should_raise_no_error_unless_publishing_an_ack_has_one() -> None:
    with pushing(PushDesk(), config={"ack_policy": "explicit"}) as scene:
        msg, other = delivered(scene), delivered(scene)
        msg.ack()
        msg.ack()
        scene.nc.close()
        with pytest.raises(errors.ConnectionClosedError):
            other.ack()
