"""Publishing a whole iterable as a pipeline: order, window, errors, early ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient._core import PubAck
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, all_results, until

if TYPE_CHECKING:
    from jsclient.publish_all import Publishable

pytestmark = pytest.mark.live

Messages = Iterator[tuple[str, bytes]]


def stream(js: JetStream, **fields: Any) -> Stream:
    """A stream in memory on `a.>`."""
    made: dict[str, Any] = {"name": "S", "subjects": ["a.>"], "storage": "memory"}
    return js.create_stream(**{**made, **fields})


def stored(made: Stream) -> int:
    return made.info().state.messages


def numbered(count: int, taken: list[int] | None = None) -> Messages:
    for number in range(count):
        if taken is not None:
            taken.append(number)
        yield "a.b", b"%d" % number


def assert_empty(js: JetStream) -> None:
    loop = js._connection._loop
    assert len(loop.request_inbox()) == 0
    assert loop.outbox.frames == 0


def test_acks_come_in_the_order_of_the_messages(js: JetStream) -> None:
    made = stream(js)
    acks = list(js.publish_all(numbered(500)))
    assert [ack.seq for ack in acks if isinstance(ack, PubAck)] == list(range(1, 501))
    assert made.get_msg(7).data == b"6"
    assert list(js.publish_all([])) == []
    assert_empty(js)


def test_messages_may_have_headers(js: JetStream) -> None:
    made = stream(js)
    headers = {"Nats-Msg-Id": "one"}
    acks = list(
        js.publish_all(
            [("a.b", b"1", headers), ("a.b", b"2", None), ("a.b", b"3", headers)]
        )
    )
    assert [ack.seq for ack in acks if isinstance(ack, PubAck)] == [1, 2, 1]
    msg = made.get_msg(1)
    assert msg.headers is not None
    assert msg.headers["Nats-Msg-Id"] == "one"


def test_nothing_is_published_before_it_is_iterated(js: JetStream) -> None:
    made = stream(js)
    taken: list[int] = []
    acks = js.publish_all(numbered(5, taken))
    assert (taken, stored(made)) == ([], 0)
    next(acks)
    assert taken
    assert len(list(acks)) == 4


def test_no_more_than_the_window_is_under_way(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js)
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url) as nc,
    ):
        other = nc.jetstream()
        other.publish("a.b")
        proxy.set("s2c", stall=True)
        taken: list[int] = []
        acks: list[PubAck | errors.Error] = []
        reader = threading.Thread(
            target=lambda: acks.extend(other.publish_all(numbered(50, taken), window=5))
        )
        reader.start()
        until(lambda: stored(made) == 6, "the window is full")
        # Nothing more is taken from the iterable before it has its place.
        assert len(taken) == 5
        proxy.set("s2c")
        reader.join(PATIENCE)
        assert len(acks) == 50
        assert_empty(other)


@pytest.mark.parametrize("window", [1, 2, 1000])
def test_the_first_error_is_raised_behind_the_acks_before_it(
    js: JetStream, window: int
) -> None:
    stream(js)
    wrong = {"Nats-Expected-Last-Sequence": "99"}
    messages: list[Publishable] = [
        ("a.b", b""),
        ("a.b", b""),
        ("a.b", b"", wrong),
        ("a.b", b""),
    ]
    acks = js.publish_all(messages, window=window)
    seqs = []
    with pytest.raises(failures.WrongLastSequenceError):  # noqa: PT012
        for ack in acks:
            assert isinstance(ack, PubAck)
            seqs.append(ack.seq)
    assert seqs == [1, 2]
    assert list(acks) == []
    js._connection.flush()
    assert_empty(js)


def test_errors_can_take_the_places_of_their_acks(js: JetStream) -> None:
    stream(js)
    wrong = {"Nats-Expected-Last-Sequence": "99"}
    messages: list[Publishable] = [
        ("a.b", b""),
        ("a.b", b"", wrong),
        ("nobody.here", b""),
        ("a..b", b""),
        ("a.b", b"x" * (1 << 21)),
        ("a.b", b""),
    ]
    first, *problems, last = js.publish_all(messages, on_error="return")
    assert [getattr(one, "seq", None) for one in (first, last)] == [1, 2]
    assert [type(one) for one in problems] == [
        failures.WrongLastSequenceError,
        failures.NoStreamResponseError,
        errors.InvalidArgumentError,
        errors.MaxPayloadError,
    ]
    assert_empty(js)


def test_a_wrong_message_is_raised_in_its_turn(js: JetStream) -> None:
    stream(js)
    messages: Any = [("a.b", b""), ("a.b", "text")]
    modes: list[Literal["raise", "return"]] = ["raise", "return"]
    for on_error in modes:
        acks = js.publish_all(messages, on_error=on_error)
        assert isinstance(next(acks), PubAck)
        with pytest.raises(TypeError):
            next(acks)
    assert_empty(js)


@pytest.mark.parametrize(
    "given", [{"window": 0}, {"window": "5"}, {"on_error": "skip"}, {"timeout": -1}]
)
def test_a_wrong_call_raises_at_the_call(js: JetStream, given: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        js.publish_all([], **given)


@pytest.mark.parametrize("messages", [5, None, {"a.b": b"x"}])
def test_what_has_no_messages_is_refused_at_the_call(
    js: JetStream, messages: Any
) -> None:
    with pytest.raises(TypeError, match="messages must be an iterable of"):
        js.publish_all(messages)


@pytest.mark.parametrize(
    "message", [5, None, ("a.b",), ("a.b", b"", None, 1), "ab", {"a.b": b"x"}]
)
def test_what_is_no_message_is_told_as_that(js: JetStream, message: Any) -> None:
    stream(js)
    acks = js.publish_all([("a.b", b""), message])
    assert isinstance(next(acks), PubAck)
    with pytest.raises(TypeError, match="each message must be a tuple"):
        next(acks)
    assert_empty(js)


def test_an_iterable_that_fails_is_raised_behind_the_acks_before_it(
    js: JetStream,
) -> None:
    stream(js)

    def broken() -> Messages:
        yield from numbered(3)
        raise RuntimeError("no more")

    acks = js.publish_all(broken())
    assert [getattr(next(acks), "seq", None) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(RuntimeError, match="no more"):
        next(acks)
    assert_empty(js)


def test_a_pipeline_that_is_closed_early_leaves_nothing_behind(js: JetStream) -> None:
    stream(js)
    for _ in range(5):
        acks = js.publish_all(numbered(1000), window=100)
        for _ in range(10):
            next(acks)
        acks.close()  # type: ignore[attr-defined]
        js._connection.flush()
        assert_empty(js)


def test_what_a_closed_pipeline_did_not_send_is_not_sent_later(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js)
    size = 100_000
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url, write_buffer=64 << 20) as nc,
    ):
        other = nc.jetstream()
        proxy.set("c2s", stall=True)
        acks = other.publish_all(
            (("a.b", b"x" * size) for _ in range(200)), window=200, timeout=0.5
        )
        with pytest.raises(errors.TimeoutError):
            next(acks)
        outbox = nc._loop.outbox
        assert outbox.frames <= 2, "all were withdrawn but the begun one; and an UNSUB"
        proxy.set("c2s")
        nc.flush()
        assert_empty(other)
        # The server stores what it has read after it has answered the flush.
        count = -1
        while count != (count := stored(made)):
            time.sleep(0.3)
        assert 0 < count < 200
        nc.flush()
        assert stored(made) == count


def test_several_pipelines_run_on_one_connection(js: JetStream) -> None:
    made = stream(js)

    def work(number: int) -> list[int]:
        messages = ((f"a.{number}", b"%d" % i) for i in range(300))
        acks = js.publish_all(messages, window=50)
        return [ack.seq for ack in acks if isinstance(ack, PubAck)]

    results = all_results(4, work)
    assert all(seqs == sorted(seqs) and len(seqs) == 300 for seqs in results)
    assert stored(made) == 1200
    assert_empty(js)


def test_a_hundred_thousand_messages(js: JetStream) -> None:
    made = stream(js)
    count = 0
    for ack in js.publish_all(numbered(100_000)):
        count += 1
        assert isinstance(ack, PubAck)
        assert ack.seq == count
    assert (count, stored(made)) == (100_000, 100_000)
    assert_empty(js)
