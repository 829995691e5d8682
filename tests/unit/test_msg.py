"""Messages as users hold them."""

import gc
import pickle
import tracemalloc

import pytest
from typing_extensions import Buffer

from jsclient._core import Inbox, Msg, live_objects
from jsclient.errors import BadHeadersError, InvalidArgumentError
from tests.harness.compiled import Rig, take_all

BLOCK = b"NATS/1.0\r\nK: v\r\n\r\n"


class Owner:
    """Keeps what messages ask of their connection."""

    def __init__(self) -> None:
        self.published: list[tuple[str, Buffer, object]] = []
        self.bad_headers: list[BadHeadersError] = []

    def publish(self, subject: str, data: Buffer, /, *, headers: object) -> None:
        self.published.append((subject, data, headers))

    def note_bad_headers(self, error: BadHeadersError, /) -> None:
        self.bad_headers.append(error)


def received(wire: bytes, owner: Owner | None = None) -> Msg:
    rig = Rig()
    inbox = Inbox(owner)
    rig.routes.add(1, inbox)
    assert rig.feed(wire)
    msg = inbox.take()
    assert msg is not None
    return msg


def test_a_message_has_the_parts_of_its_frame() -> None:
    msg = received(b"HMSG a.b 1 r.s 18 20\r\n" + BLOCK + b"hi\r\n")
    assert (msg.subject, msg.reply, msg.data) == ("a.b", "r.s", b"hi")
    assert msg.headers == {"K": "v"}
    assert msg.raw_headers == BLOCK


def test_the_size_counts_subject_reply_headers_and_payload() -> None:
    assert received(b"MSG a.b 1 4\r\nabcd\r\n").size == 7
    assert received(b"HMSG a.b 1 r.s 18 20\r\n" + BLOCK + b"hi\r\n").size == 26


def test_text_that_is_no_utf8_is_kept_by_surrogates() -> None:
    msg = received(b"MSG a.\xff 1 \xc3( 0\r\n\r\n")
    assert (msg.subject, msg.reply) == ("a.\udcff", "\udcc3(")


def test_a_recurring_subject_is_the_same_text() -> None:
    rig = Rig()
    assert rig.feed(b"MSG orders.new 1 1\r\nx\r\nMSG orders.new 1 r 0\r\n\r\n")
    assert rig.feed(b"MSG other 1 1\r\nx\r\nMSG orders.new 1 1\r\ny\r\n")
    first, second, other, third = (msg.subject for msg in take_all(rig.inboxes[1]))
    assert first is second
    assert first is third
    assert other == "other"


def test_a_message_shows_its_subject_and_size_but_not_its_payload() -> None:
    assert (
        repr(Msg("a", b"secret", reply="r")) == "Msg(subject='a', reply='r', 6 bytes)"
    )
    assert repr(Msg("a")) == "Msg(subject='a', 0 bytes)"


def test_a_message_can_be_made_by_hand() -> None:
    msg = Msg("a.b", b"hi", reply="r.s", headers={"K": ["v", "w"]})
    assert (msg.subject, msg.reply, msg.data) == ("a.b", "r.s", b"hi")
    assert msg.raw_headers == b"NATS/1.0\r\nK: v\r\nK: w\r\n\r\n"
    assert Msg("a", headers={}).headers is None


@pytest.mark.parametrize(
    "wrong", [{"subject": ""}, {"subject": "a b"}, {"subject": "a", "reply": "r\n"}]
)
def test_a_message_made_by_hand_is_checked(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError):
        Msg(**wrong)  # type: ignore[arg-type]


def test_the_payload_of_a_message_made_by_hand_is_bytes() -> None:
    with pytest.raises(TypeError, match="data must be bytes, not str"):
        Msg("a", "text")  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_message_is_pickled_without_its_connection(protocol: int) -> None:
    wire = b"HMSG a.\xff 1 r.s 18 20\r\n" + BLOCK + b"hi\r\n"
    msg = pickle.loads(pickle.dumps(received(wire, Owner()), protocol))
    assert (msg.subject, msg.reply, msg.data) == ("a.\udcff", "r.s", b"hi")
    assert msg.headers == {"K": "v"}
    with pytest.raises(InvalidArgumentError, match="belongs to no connection"):
        msg.respond(b"x")


def test_responding_publishes_to_the_reply_subject() -> None:
    owner = Owner()
    received(b"MSG a 1 r.s 0\r\n\r\n", owner).respond(b"x", {"K": "v"})
    received(b"MSG a 1 r.s 0\r\n\r\n", owner).respond()
    assert owner.published == [("r.s", b"x", {"K": "v"}), ("r.s", b"", None)]


def test_responding_without_a_reply_subject_is_refused() -> None:
    owner = Owner()
    with pytest.raises(InvalidArgumentError, match="no reply subject"):
        received(b"MSG a 1 0\r\n\r\n", owner).respond(b"x")
    assert owner.published == []


def test_the_owner_is_told_of_malformed_headers() -> None:
    owner = Owner()
    msg = received(b"HMSG a 1 5 5\r\nhello\r\n", owner)
    with pytest.raises(BadHeadersError) as caught:
        _ = msg.headers
    assert owner.bad_headers == [caught.value]


def test_attributes_of_a_message_cannot_be_set() -> None:
    msg = Msg("a")
    for name in ("subject", "reply", "data", "headers", "size", "metadata"):
        with pytest.raises(AttributeError):
            setattr(msg, name, None)


def held_bytes(wire: bytes, count: int) -> float:
    """What one held message costs, the place in its inbox included."""
    rig = Rig()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert rig.feed(wire * count)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert rig.inboxes[1].count == count
    return held / count


def test_a_held_message_costs_little_more_than_its_bytes() -> None:
    reply = b"$JS.ACK.ORDERS.worker.1.1000000.1000000.1794822690692342458.100"
    payload = b"x" * 128 + b"\r\n"
    assert held_bytes(b"MSG orders.new 1 128\r\n" + payload, 2048) <= 300
    assert held_bytes(b"MSG orders.new 1 %s 128\r\n" % reply + payload, 2048) <= 400


def test_messages_are_gone_when_nobody_holds_them() -> None:
    before = live_objects()
    rig = Rig()
    assert rig.feed(b"MSG a 1 1\r\nx\r\n" * 1000)
    assert live_objects()["messages"] == before["messages"] + 1000
    taken = rig.inboxes[1].take()
    del rig
    assert live_objects()["messages"] == before["messages"] + 1
    del taken
    assert live_objects() == before
