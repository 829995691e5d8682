"""Acknowledging messages: exact payloads, one terminal ack, repeats after failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from jsclient._core import Courier, Msg, Outbox, PullInbox
from jsclient.errors import (
    ConnectionClosedError,
    DisconnectedError,
    InvalidArgumentError,
    NotJetStreamMessageError,
    TimeoutError,
)
from tests.harness.lanes import Delivery, LaneRig, Port, courier, delivery
from tests.unit.test_outbox import Line, MakeLine, line

__all__ = ["line"]
REPLY = "$JS.ACK.S.C.1.1.1.1700000000000000000.9"
V2_REPLY = "$JS.ACK._.szMpdrwD.S.C.1.1.1.1700000000000000000.9"

Act = Callable[[Msg], None]


class Sync(Port):
    """A port whose server confirms acks, or does not."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self.failure: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def ack_sync(self, subject: str, timeout: float | timedelta | None) -> None:
        self.subjects.append(subject)
        self.meanwhile()
        if self.failure is not None:
            raise self.failure


def message(sender: Courier, reply: str = REPLY) -> Msg:
    """A message that was pulled."""
    box = PullInbox(sender)
    rig = LaneRig(box)
    rig.feed([Delivery(b"s", reply.encode())])
    msg = box.take()
    assert msg is not None
    return msg


def kept() -> Outbox:
    """An outbox without a link, so that what was added can be looked at."""
    return Outbox(1 << 20, 1 << 20)


def pub(payload: bytes, reply: str = REPLY) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (reply.encode(), len(payload), payload)


def sent(act: Act, reply: str = REPLY) -> bytes:
    """The bytes of an ack."""
    outbox = kept()
    act(message(courier(outbox), reply))
    return outbox.unsent()


def ack(msg: Msg) -> None:
    msg.ack()


def nak(msg: Msg) -> None:
    msg.nak()


def nak_later(msg: Msg) -> None:
    msg.nak(delay=1.5)


def term(msg: Msg) -> None:
    msg.term()


TERMINAL: list[Act] = [ack, nak, nak_later, term]


# Payloads -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "payload"),
    [
        (ack, b"+ACK"),
        (nak, b"-NAK"),
        (term, b"+TERM"),
        (Msg.in_progress, b"+WPI"),
    ],
)
@pytest.mark.parametrize("reply", [REPLY, V2_REPLY])
def test_an_ack_goes_to_the_reply_as_it_was_received(
    act: Act, payload: bytes, reply: str
) -> None:
    assert sent(act, reply) == pub(payload, reply)


@pytest.mark.parametrize(
    ("delay", "payload"),
    [
        (1.5, b'-NAK {"delay": 1500000000}'),
        (1, b'-NAK {"delay": 1000000000}'),
        (1e9, b'-NAK {"delay": 1000000000000000000}'),
        (0.000000001, b'-NAK {"delay": 1}'),
        (timedelta(milliseconds=700), b'-NAK {"delay": 700000000}'),
        (0, b"-NAK"),
        (0.0, b"-NAK"),
        (1e-12, b"-NAK"),
        (-1, b"-NAK"),
        (-1e300, b"-NAK"),
        (float("-inf"), b"-NAK"),
        (timedelta(seconds=-5), b"-NAK"),
        (None, b"-NAK"),
    ],
)
def test_a_delay_is_whole_nanoseconds_and_none_is_no_delay(
    delay: float | timedelta | None, payload: bytes
) -> None:
    assert sent(lambda msg: msg.nak(delay)) == pub(payload)


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), 1.1e9])
def test_a_senseless_delay_is_refused(delay: float) -> None:
    outbox = kept()
    msg = message(courier(outbox))
    with pytest.raises(InvalidArgumentError, match="delay"):
        msg.nak(delay)
    assert not msg.is_acked
    msg.ack()
    assert outbox.unsent() == pub(b"+ACK")


@pytest.mark.parametrize("delay", ["1s", True, b"1"])
def test_a_delay_must_be_a_duration(delay: float) -> None:
    with pytest.raises(TypeError, match="delay"):
        sent(lambda msg: msg.nak(delay))


@pytest.mark.parametrize(
    ("reason", "payload"),
    [
        ("bad order", b"+TERM bad order"),
        ("größer", "+TERM größer".encode()),
        ("", b"+TERM"),
        (None, b"+TERM"),
    ],
)
def test_the_reason_of_a_term_follows_it(reason: str | None, payload: bytes) -> None:
    assert sent(lambda msg: msg.term(reason)) == pub(payload)


@pytest.mark.parametrize("reason", [0, b"bad", 5])
def test_a_reason_must_be_a_text(reason: str) -> None:
    with pytest.raises(TypeError, match="reason"):
        sent(lambda msg: msg.term(reason))


# Once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", TERMINAL)
@pytest.mark.parametrize("second", [*TERMINAL, Msg.in_progress])
def test_after_a_terminal_ack_nothing_more_is_sent(first: Act, second: Act) -> None:
    outbox = kept()
    msg = message(courier(outbox))
    first(msg)
    assert msg.is_acked
    only = outbox.unsent()
    second(msg)
    assert outbox.unsent() == only
    assert outbox.frames == 1


def test_progress_may_be_told_any_number_of_times_before() -> None:
    outbox = kept()
    msg = message(courier(outbox))
    for _ in range(3):
        msg.in_progress()
    assert not msg.is_acked
    msg.ack()
    assert outbox.unsent() == 3 * pub(b"+WPI") + pub(b"+ACK")


def test_of_many_threads_one_sends_its_ack(line: MakeLine) -> None:
    link: Line = line()
    sender = courier(link.outbox)
    rounds, crowd = 50, 8
    messages = [message(sender) for _ in range(rounds)]
    start = threading.Barrier(crowd)

    def work(number: int) -> None:
        for msg in messages:
            start.wait(10.0)
            TERMINAL[number % len(TERMINAL)](msg)

    threads = [
        threading.Thread(target=work, args=(number,), daemon=True)
        for number in range(crowd)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert all(msg.is_acked for msg in messages)
    assert link.outbox.messages == rounds
    frames = link.read_all()
    assert frames.count(b"PUB ") == rounds


# Failures -----------------------------------------------------------------------------


@pytest.mark.parametrize("act", TERMINAL)
def test_an_ack_that_could_not_be_sent_may_be_repeated(
    line: MakeLine, act: Act
) -> None:
    link: Line = line(keep_limit=0)
    msg = message(courier(link.outbox))
    link.outbox.detach()
    with pytest.raises(DisconnectedError):
        act(msg)
    assert not msg.is_acked
    link.connect()
    msg.ack()
    assert link.read_all() == pub(b"+ACK")


def test_on_a_closed_connection_an_ack_raises() -> None:
    outbox = kept()
    msg = message(courier(outbox))
    outbox.refuse(lambda: ConnectionClosedError("closed"))
    with pytest.raises(ConnectionClosedError):
        msg.ack()
    assert not msg.is_acked


# Confirmed acks -----------------------------------------------------------------------


def test_a_confirmed_ack_is_the_last_one() -> None:
    port = Sync()
    msg = message(Courier(port, kept()))
    msg.ack_sync()
    assert msg.is_acked
    msg.ack_sync()
    assert port.subjects == [REPLY]


def test_an_ack_that_was_not_confirmed_may_be_repeated() -> None:
    port = Sync()
    port.failure = TimeoutError("nobody answered")
    msg = message(Courier(port, kept()))
    for _ in range(2):
        with pytest.raises(TimeoutError):
            msg.ack_sync(timeout=0.3)
        assert not msg.is_acked
    port.failure = None
    msg.ack_sync()
    assert msg.is_acked
    assert port.subjects == [REPLY] * 3


def test_while_an_ack_waits_to_be_confirmed_no_other_is_sent() -> None:
    port, outbox = Sync(), kept()
    msg = message(Courier(port, outbox))

    def interfere() -> None:
        msg.nak()
        msg.term()
        assert not msg.is_acked

    port.meanwhile = interfere
    msg.ack_sync()
    assert msg.is_acked
    assert outbox.unsent() == b""


def test_two_who_wait_for_the_same_confirmation_both_ask() -> None:
    port = Sync()
    msg = message(Courier(port, kept()))

    def interfere() -> None:
        port.meanwhile = lambda: None
        msg.ack_sync()
        assert msg.is_acked
        port.failure = TimeoutError("the first one gets no answer")

    port.meanwhile = interfere
    with pytest.raises(TimeoutError):
        msg.ack_sync()
    assert port.subjects == [REPLY] * 2
    assert msg.is_acked


def test_after_any_ack_none_is_confirmed() -> None:
    port = Sync()
    msg = message(Courier(port, kept()))
    msg.nak()
    msg.ack_sync()
    assert port.subjects == []


# Where acks go, or do not -------------------------------------------------------------


def test_a_consumer_without_acks_is_sent_none() -> None:
    port, outbox = Sync(), kept()
    msg = message(Courier(port, outbox, True))
    msg.in_progress()
    msg.nak(1.0)
    msg.term("why")
    msg.ack()
    msg.ack_sync()
    assert (outbox.unsent(), port.subjects) == (b"", [])
    assert not msg.is_acked


@pytest.mark.parametrize("reply", [REPLY, V2_REPLY])
def test_a_prefix_replaces_the_first_two_tokens_only(reply: str) -> None:
    port, outbox = Sync(), kept()
    renamed = "jsa.ACK" + reply.removeprefix("$JS.ACK")
    msg = message(Courier(port, outbox, False, "jsa.ACK"), reply)
    msg.in_progress()
    assert outbox.unsent() == pub(b"+WPI", renamed)
    msg.ack_sync()
    assert port.subjects == [renamed]
    assert msg.reply == reply
    assert msg.metadata.stream == "S"


@pytest.mark.parametrize("act", [*TERMINAL, Msg.in_progress, Msg.ack_sync])
@pytest.mark.parametrize("reply", [None, "_INBOX.x", "$JS.ACK", "$JS.ACKX.S.C", "$js"])
def test_what_is_not_of_jetstream_cannot_be_acknowledged(
    act: Act, reply: str | None
) -> None:
    with pytest.raises(NotJetStreamMessageError, match="'s'"):
        act(Msg("s", b"", reply=reply))


@pytest.mark.parametrize("act", [*TERMINAL, Msg.in_progress, Msg.ack_sync])
def test_a_message_without_a_connection_cannot_be_acknowledged(act: Act) -> None:
    msg = Msg("s", b"", reply=REPLY)
    with pytest.raises(InvalidArgumentError, match="no connection"):
        act(msg)
    assert not msg.is_acked


def test_a_message_that_waits_in_its_inbox_has_no_connection_yet() -> None:
    outbox = kept()
    box = PullInbox(courier(outbox))
    LaneRig(box).feed([delivery(1)])
    msg = box.take()
    assert msg is not None
    msg.ack()
    assert outbox.frames == 1
