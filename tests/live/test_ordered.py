"""Ordered consumers on a real server: in order, no gap, no repeat, whatever happens."""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import jsclient
from jsclient import errors, events
from jsclient import jetstream_errors as failures
from jsclient._core import Msg
from jsclient.jetstream import JetStream
from jsclient.ordered import OrderedConsumer
from jsclient.server import Server, run
from jsclient.stream import Stream
from tests.harness.proxy import FaultProxy
from tests.harness.tidy import assert_tidy
from tests.live.support import BUSY, PATIENCE, Events, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

WAIT = 0.05  # between attempts to reconnect


def new_stream(js: JetStream, count: int, *, storage: str = "memory") -> Stream:
    """A stream with messages 1 to count on o.1, o.2, o.0, o.1, …"""
    stream = js.create_stream(name="O", subjects=["o.*"], storage=storage)
    fill(js, 1, count)
    return stream


def fill(js: JetStream, first: int, last: int) -> None:
    """Publishes messages that tell their sequences."""
    numbers = range(first, last + 1)
    for _ in js.publish_all((f"o.{n % 3}", b"%d" % n) for n in numbers):
        pass


def seqs(messages: object) -> list[int]:
    assert isinstance(messages, list | jsclient.FetchResult)
    return [msg.metadata.stream_seq for msg in messages]


def proxy_of(server: Server) -> FaultProxy:
    return FaultProxy("127.0.0.1", int(server.url.rpartition(":")[2]))


def assert_nothing_left(stream: Stream, nc: jsclient.Connection) -> None:
    """No consumer on the server, and nothing in the loop."""
    until(lambda: not stream.consumer_names(), "the consumers are gone")
    gc.collect()  # tracebacks of what the test expected
    assert_tidy(nc)
    until(lambda: not nc._loop.watchers, "nobody watches the link")


@pytest.fixture
def stream(js: JetStream) -> Stream:
    return new_stream(js, 30)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server to be maltreated."""
    with run(jetstream=True) as server:
        yield server


# Reading


def test_messages_come_in_order_and_leave_nothing_behind(
    js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer()
    with ordered.messages(stop_after=30) as messages:
        got = list(messages)
    assert seqs(got) == list(range(1, 31))
    assert [int(msg.data) for msg in got] == list(range(1, 31))
    assert ordered.last_seq == 30
    assert messages.resets == 0
    assert not messages.is_active
    assert_nothing_left(stream, js._connection)


def test_acks_of_its_messages_do_nothing(js: JetStream, stream: Stream) -> None:
    msg = stream.ordered_consumer().next()
    sent = js._connection.stats().out_msgs
    msg.ack()
    assert js._connection.stats().out_msgs == sent


@pytest.mark.parametrize("limits", [{"max_messages": 1}, {"max_bytes": 200}])
def test_small_limits_are_enough(stream: Stream, limits: dict[str, int]) -> None:
    with stream.ordered_consumer().messages(**limits, stop_after=30) as messages:
        assert seqs(list(messages)) == list(range(1, 31))
    assert messages.resets == 0


def test_a_limit_that_the_server_has_for_all_consumers_is_kept(told: Events) -> None:
    limits = {"limits": {"max_request_batch": 10}}
    with (
        run(jetstream=limits) as server,
        jsclient.connect(server.url, on_event=told) as nc,
    ):
        stream = new_stream(nc.jetstream(), 200)
        ordered = stream.ordered_consumer()
        with ordered.messages(stop_after=50) as messages:
            got = list(messages)
        got += ordered.fetch(50, timeout=PATIENCE)
        with ordered.messages(max_bytes=100_000, stop_after=50) as messages:
            got += messages
        got += [ordered.next(PATIENCE) for _ in range(50)]
        assert seqs(got) == list(range(1, 201))
        assert told.of(events.ConsumerWarning) == []


def test_limits_of_its_own_are_kept(stream: Stream) -> None:
    ordered = stream.ordered_consumer(max_expires=0.5, max_batch=5, max_bytes=100_000)
    assert seqs([ordered.next(PATIENCE)]) == [1]
    assert seqs(ordered.fetch(5, timeout=PATIENCE)) == [2, 3, 4, 5, 6]
    with ordered.messages(stop_after=24) as messages:
        assert seqs(list(messages)) == list(range(7, 31))
    assert messages.resets == 0
    with pytest.raises(ValueError, match="max_messages is 6; the consumer allows 5"):
        ordered.fetch(6)


def test_messages_that_are_published_later_follow(
    js: JetStream, stream: Stream
) -> None:
    with stream.ordered_consumer().messages() as messages:
        got = [messages.next() for _ in range(30)]
        with pytest.raises(errors.TimeoutError):
            messages.next(timeout=0.05)
        fill(js, 31, 40)
        got += [messages.next() for _ in range(10)]
    assert seqs(got) == list(range(1, 41))


def test_every_reading_goes_on_where_the_last_one_stopped(
    js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer()
    assert seqs([ordered.next()]) == [1]
    assert seqs(ordered.fetch(4)) == [2, 3, 4, 5]
    with ordered.messages() as messages:
        assert seqs([messages.next(), messages.next()]) == [6, 7]
    with ordered.messages() as messages:
        for msg in messages:
            if msg.metadata.stream_seq == 12:
                break
    got: list[Msg] = []
    with ordered.consume(got.append, stop_after=8) as handle:
        handle.wait(PATIENCE)
    assert seqs(got) == list(range(13, 21))
    assert seqs(ordered.fetch(100, timeout=0.3)) == list(range(21, 31))
    with pytest.raises(errors.TimeoutError):
        ordered.next(timeout=0.1)
    fill(js, 31, 31)
    assert seqs([ordered.next()]) == [31]
    assert_nothing_left(stream, js._connection)


def test_a_message_of_the_reading_that_nobody_took_is_read_by_the_next(
    stream: Stream,
) -> None:
    ordered = stream.ordered_consumer()
    with ordered.messages() as messages:
        messages.next()
        until(lambda: messages.pending_messages == 29, "all have arrived")
    assert messages.pending_messages == 0
    assert ordered.next().metadata.stream_seq == 2


def test_there_is_one_reading_at_a_time(stream: Stream) -> None:
    ordered = stream.ordered_consumer()
    with ordered.messages() as messages:
        messages.next()
        for read in (ordered.messages, ordered.next, lambda: ordered.fetch(1)):
            with pytest.raises(errors.InvalidArgumentError, match="one iteration"):
                read()
        assert messages.next().metadata.stream_seq == 2
    assert ordered.next().metadata.stream_seq == 3


def test_a_reading_that_nobody_holds_ends(js: JetStream, stream: Stream) -> None:
    ordered = stream.ordered_consumer()
    for msg in ordered.messages():
        if msg.metadata.stream_seq == 3:
            break
    gc.collect()
    assert ordered.next().metadata.stream_seq == 4
    assert_nothing_left(stream, js._connection)


def test_stopping_from_another_thread_ends_the_iteration(
    js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer()
    messages = ordered.messages()
    got: list[Msg] = []
    reader = threading.Thread(target=lambda: got.extend(messages))
    reader.start()
    until(lambda: ordered.last_seq == 30, "all were read")
    messages.stop()
    messages.stop()
    reader.join(PATIENCE)
    assert seqs(got) == list(range(1, 31))
    with pytest.raises(errors.SubscriptionClosedError):
        messages.next()
    assert_nothing_left(stream, js._connection)


def test_a_callback_may_stop_it(js: JetStream, stream: Stream) -> None:
    ordered = stream.ordered_consumer()
    got: list[Msg] = []
    is_known = threading.Event()

    def take(msg: Msg) -> None:
        got.append(msg)
        if len(got) == 5:
            is_known.wait(PATIENCE)
            handle.stop()

    handle = ordered.consume(take)
    is_known.set()
    handle.wait(PATIENCE)
    assert seqs(got) == [1, 2, 3, 4, 5]
    assert ordered.next().metadata.stream_seq == 6
    assert_nothing_left(stream, js._connection)


class Interrupt(BaseException):
    """What a signal handler raises, like KeyboardInterrupt."""


def test_an_exception_in_the_body_loses_nothing(stream: Stream) -> None:
    ordered = stream.ordered_consumer()
    got: list[Msg] = []
    with ordered.messages(stop_after=30) as messages:
        while len(got) < 30:
            try:
                for msg in messages:
                    got.append(msg)
                    if len(got) % 4 == 0:
                        raise Interrupt
            except Interrupt:
                pass
    assert seqs(got) == list(range(1, 31))
    assert messages.resets == 0


# A signal may come in a finalizer, where Python cannot raise.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(60, method="thread")  # the alarm is the test's own
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_signals_that_raise_neither_lose_nor_repeat_a_message(
    own_server: Server,
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    count = 20_000
    rng = random.Random(7)
    got: list[Msg] = []
    interrupted = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    with jsclient.connect(own_server.url) as nc:
        ordered = new_stream(nc.jetstream(), count).ordered_consumer()
        while len(got) < count:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.005))
                with ordered.messages(2000, stop_after=count - len(got)) as messages:
                    for msg in messages:
                        got.append(msg)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupted += 1
            # The signal may have come when the loop had the message but the list had
            # it not, as in any loop.
            if ordered.last_seq == len(got) + 1:
                got.append(msg)
    signal.signal(signal.SIGALRM, before)
    assert seqs(got) == list(range(1, count + 1))
    assert interrupted > 0


# What is read


def test_deleted_messages_are_passed_over(js: JetStream, stream: Stream) -> None:
    for seq in (1, 2, 10, 11, 12, 30):
        stream.delete_msg(seq)
    got = stream.ordered_consumer().fetch(100, timeout=0.3)
    assert seqs(got) == [*range(3, 10), *range(13, 30)]


def test_a_purge_on_the_way_is_no_gap(js: JetStream, stream: Stream) -> None:
    with stream.ordered_consumer().messages(4) as messages:
        assert messages.next().metadata.stream_seq == 1
        stream.purge()
        fill(js, 31, 35)
        got = [messages.next()]
        while got[-1].metadata.stream_seq < 35:
            got.append(messages.next())
    # Some of the first ones were on their way already.
    assert seqs(got)[-5:] == list(range(31, 36))
    assert seqs(got)[:-5] == list(range(2, 2 + len(got) - 5))
    assert messages.resets == 0


def test_a_purge_before_the_next_reading_is_no_gap(
    js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer()
    ordered.fetch(5)
    stream.purge(sequence=20)
    assert ordered.next().metadata.stream_seq == 20


@pytest.mark.parametrize("filters", ["o.1", ["o.1", "o.2"]])
def test_filters_choose_what_is_read(stream: Stream, filters: str | list[str]) -> None:
    ordered = stream.ordered_consumer(filters)
    wanted = [n for n in range(1, 31) if f"o.{n % 3}" in filters]
    assert seqs(ordered.fetch(5)) == wanted[:5]
    assert seqs(ordered.fetch(100, timeout=0.3)) == wanted[5:]


def test_the_deliver_policy_says_where_it_begins(js: JetStream, stream: Stream) -> None:
    def read(**fields: Any) -> list[int]:
        return seqs(stream.ordered_consumer(**fields).fetch(100, timeout=0.3))

    assert read(deliver_policy="all") == list(range(1, 31))
    assert read(deliver_policy="last") == [30]
    assert read(deliver_policy="last", filter_subjects="o.1") == [28]
    assert read(deliver_policy="last_per_subject") == [28, 29, 30]
    assert read(deliver_policy="by_start_sequence", opt_start_seq=27) == [
        27,
        28,
        29,
        30,
    ]
    time_of_25 = stream.get_msg(25).timestamp
    assert read(deliver_policy="by_start_time", opt_start_time=time_of_25) == list(
        range(25, 31)
    )
    assert read(deliver_policy="new") == []


@pytest.mark.parametrize("policy", ["new", "last"])
def test_what_comes_before_the_first_message_was_read_is_read_too(
    js: JetStream, stream: Stream, policy: str
) -> None:
    ordered = stream.ordered_consumer(deliver_policy=policy)
    with ordered.messages() as messages:
        messages._begin(time.monotonic() + PATIENCE)
    fill(js, 31, 33)
    first = 30 if policy == "last" else 31
    assert seqs(ordered.fetch(10, timeout=0.3)) == list(range(first, 34))


def test_reading_without_waiting_gets_what_has_come(stream: Stream) -> None:
    got: list[Msg] = []
    with stream.ordered_consumer().messages() as messages:

        def has_all() -> bool:
            with suppress(errors.TimeoutError):
                while True:
                    got.append(messages.next(timeout=0))
            return len(got) == 30

        until(has_all, "all have come")
    assert seqs(got) == list(range(1, 31))
    assert messages.resets == 0


def test_headers_only_leaves_the_payloads_on_the_server(
    js: JetStream, stream: Stream
) -> None:
    msg = stream.ordered_consumer(headers_only=True).next()
    assert msg.data == b""
    assert msg.headers is not None
    assert msg.headers["Nats-Msg-Size"] == "1"


def test_fields_of_the_configuration_reach_every_consumer(
    js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer(
        "o.1",
        name_prefix="mine",
        inactive_threshold=60,
        replay_policy="original",
        metadata={"who": "test"},
    )
    for serial in (1, 2):
        with ordered.messages() as messages:
            messages.next()
            (info,) = [consumer.cached_info for consumer in stream.consumers()]
        assert info.name == f"mine_{serial}"
        assert info.config.ack_policy == "none"
        assert info.config.mem_storage
        assert info.config.num_replicas == 1
        assert info.config.inactive_threshold == 60
        assert info.config.replay_policy == "original"
        assert info.config.filter_subject == "o.1"
        assert info.config.metadata is not None
        assert info.config.metadata["who"] == "test"
        until(lambda: not stream.consumer_names(), "the consumer is gone")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "x"),
        ("durable_name", "x"),
        ("ack_policy", "explicit"),
        ("deliver_subject", "x"),
        ("deliver_group", "x"),
        ("mem_storage", False),
        ("num_replicas", 3),
        ("priority_groups", ["x"]),
    ],
)
def test_what_makes_it_ordered_cannot_be_chosen(
    stream: Stream, field: str, value: Any
) -> None:
    with pytest.raises(TypeError, match=field):
        stream.ordered_consumer(**{field: value})


@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": 0},
        {"max_messages": 1, "max_bytes": 1},
        {"expires": 0.5},
        {"idle_heartbeat": 20},
        {"stop_after": 0},
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(
    js: JetStream, stream: Stream, options: dict[str, float]
) -> None:
    ordered = stream.ordered_consumer()
    with pytest.raises(ValueError, match=next(iter(options))):
        ordered.messages(**options)  # type: ignore[arg-type]
    assert seqs(ordered.fetch(1)) == [1]
    with pytest.raises(ValueError, match="max_messages"):
        ordered.fetch(0)


# Trouble


class Reading:
    """Reads an ordered consumer in a thread, and looks at what comes."""

    def __init__(self, ordered: OrderedConsumer, count: int, **options: float) -> None:
        self.got: list[int] = []
        self.error: BaseException | None = None
        self._count = count
        self._changed = threading.Condition()
        self.messages = ordered.messages(stop_after=count, **options)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for msg in self.messages:
                with self._changed:
                    self.got.append(msg.metadata.stream_seq)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, PATIENCE)

    def finish(self) -> None:
        """Everything has come, once and in order."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"it hangs after {len(self.got)}"
        assert self.error is None
        assert self.got == list(range(1, self._count + 1))


def test_a_consumer_deleted_behind_its_back_is_made_again(
    js: JetStream, stream: Stream
) -> None:
    reading = Reading(stream.ordered_consumer(), 40, max_messages=8)
    reading.wait(30)
    (name,) = stream.consumer_names()
    js.delete_consumer("O", name)
    fill(js, 31, 40)
    reading.finish()
    assert reading.messages.resets == 1
    assert_nothing_left(stream, js._connection)


def test_the_warning_says_what_ended_the_consumer(
    jetstream_server: Server, js: JetStream, stream: Stream, told: Events
) -> None:
    with jsclient.connect(jetstream_server.url, on_event=told) as nc:
        ordered = nc.jetstream().stream("O").ordered_consumer(name_prefix="w")
        reading = Reading(ordered, 31)
        reading.wait(30)
        js.delete_consumer("O", "w_1")
        warning = told.wait(events.ConsumerWarning)
        assert (warning.stream, warning.consumer) == ("O", "w")
        assert isinstance(warning.error, failures.ConsumerDeletedError)
        fill(js, 31, 31)
        reading.finish()


def test_a_reset_by_another_party_is_noticed(js: JetStream, stream: Stream) -> None:
    if js._connection.server_info.version_tuple < (2, 14, 0):
        pytest.skip("the server cannot reset consumers")
    reading = Reading(stream.ordered_consumer(), 40)
    reading.wait(30)
    (name,) = stream.consumer_names()
    js.consumer("O", name).reset(5)
    fill(js, 31, 40)
    reading.finish()
    assert reading.messages.resets >= 1
    assert_nothing_left(stream, js._connection)


def test_messages_that_somebody_else_took_from_its_consumer_are_read_all_the_same(
    jetstream_server: Server, js: JetStream, stream: Stream
) -> None:
    reading = Reading(stream.ordered_consumer(), 60, max_messages=2)
    with jsclient.connect(jetstream_server.url) as nc:
        reading.wait(30)
        (name,) = stream.consumer_names()
        # Its pulls and ours are served in turn.
        theirs = nc.jetstream().consumer("O", name).messages(5)
        with theirs:
            fill(js, 31, 60)
            reading.finish()
    assert reading.messages.resets >= 1


def test_a_lost_tail_is_noticed_by_the_next_heartbeat(
    jetstream_server: Server, js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer()
    # One message is on the way at a time.
    reading = Reading(ordered, 32, max_messages=1, expires=2.0, idle_heartbeat=0.5)
    with jsclient.connect(jetstream_server.url) as nc:
        reading.wait(30)
        (name,) = stream.consumer_names()
        theirs = nc.jetstream().consumer("O", name)
        stolen: list[Msg] = []
        thief = threading.Thread(target=lambda: stolen.append(theirs.next(PATIENCE)))
        thief.start()
        until(lambda: (theirs.info().num_waiting or 0) == 2, "both have asked")
        # Ours is first in line, theirs is second; then no message would tell of it.
        fill(js, 31, 32)
        thief.join(PATIENCE)
    assert seqs(stolen) == [32]
    reading.finish()
    assert reading.messages.resets == 1


def test_missed_heartbeats_end_the_consumer_and_a_new_one_goes_on(
    own_server: Server, told: Events
) -> None:
    # PINGs are far apart: silence is noticed by the heartbeats alone.
    with jsclient.connect(own_server.url, on_event=told, ping_interval=60) as nc:
        js = nc.jetstream(timeout=1.0)
        stream = new_stream(js, 30)
        reading = Reading(
            stream.ordered_consumer(), 40, expires=1.0, idle_heartbeat=0.5
        )
        reading.wait(30)
        own_server.pause()
        warning = told.wait(events.ConsumerWarning)
        own_server.resume()
        assert isinstance(warning.error, failures.MissedHeartbeatError)
        fill(js, 31, 40)
        reading.finish()
        assert_nothing_left(stream, nc)


def test_time_is_kept_while_the_server_is_silent(own_server: Server) -> None:
    with jsclient.connect(own_server.url, ping_interval=60) as nc:
        stream = new_stream(nc.jetstream(), 5)
        ordered = stream.ordered_consumer()
        own_server.pause()
        start = time.monotonic()
        try:
            with pytest.raises(errors.TimeoutError):
                ordered.next(timeout=0.3)
            assert len(ordered.fetch(3, timeout=0.3)) == 0
            assert time.monotonic() - start < PATIENCE
        finally:
            own_server.resume()
        assert seqs(ordered.fetch(5)) == [1, 2, 3, 4, 5]
        assert_nothing_left(stream, nc)


def test_a_killed_server_takes_the_consumer_but_nothing_of_the_order(
    own_server: Server, told: Events
) -> None:
    with jsclient.connect(own_server.url, reconnect_wait=WAIT, on_event=told) as nc:
        js = nc.jetstream()
        stream = new_stream(js, 3000, storage="file")
        reading = Reading(stream.ordered_consumer(), 3010, max_messages=100)
        for outage, count in enumerate((500, 1500), 1):
            reading.wait(count)
            own_server.kill()
            own_server.restart()
            # The reader may be far ahead: two kills must not become one outage.
            told.wait(events.Reconnected, outage)
        reading.wait(3000)
        # All is read: the third time it waits for what comes.
        own_server.kill()
        own_server.restart()
        back = time.monotonic()
        told.wait(events.Reconnected, 3)
        fill(js, 3001, 3010)
        reading.finish()
        assert time.monotonic() - back < 2.0 + BUSY  # heartbeats would take ten seconds
        assert reading.messages.resets >= 3
        assert_nothing_left(stream, nc)


@pytest.mark.parametrize("seed", range(3))
def test_cut_links_cost_neither_order_nor_messages(
    jetstream_server: Server, js: JetStream, seed: int
) -> None:
    rng = random.Random(seed)
    count = 4000
    stream = new_stream(js, count)
    with (
        proxy_of(jetstream_server) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=WAIT) as nc,
    ):
        ordered = nc.jetstream().stream("O").ordered_consumer()
        reading = Reading(ordered, count, max_messages=200)
        for _ in range(5):
            connections = proxy.connections
            # A message takes about 60 bytes; the cut comes inside of one.
            proxy.set("s2c", cut_after=rng.randrange(1, 40_000))
            proxy.wait_until(
                lambda seen=connections: (  # type: ignore[misc]
                    proxy.connections > seen or len(reading.got) == count
                ),
                PATIENCE,
            )
        proxy.set("s2c")
        reading.finish()
        assert reading.messages.resets >= 1
        # Consumers that were left when there was no link are gone, too.
        assert_nothing_left(stream, nc)


def test_a_reading_that_is_stopped_without_a_link_leaves_nothing(
    jetstream_server: Server, js: JetStream, stream: Stream, told: Events
) -> None:
    with (
        proxy_of(jetstream_server) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=WAIT, on_event=told) as nc,
    ):
        ordered = nc.jetstream().stream("O").ordered_consumer()
        reading = Reading(ordered, 40)
        reading.wait(30)
        proxy.refuse = True
        proxy.cut()
        told.wait(events.Disconnected)
        reading.messages.stop()
        reading._thread.join(PATIENCE)
        assert not reading._thread.is_alive()
        with pytest.raises(errors.TimeoutError):
            ordered.next(timeout=0.1)
        # Nothing came because there was no link, which is not the same as no messages.
        with pytest.raises(errors.TimeoutError, match="no link") as caught:
            ordered.fetch(5, timeout=0.1)
        assert isinstance(caught.value.__cause__, errors.DisconnectedError)
        proxy.refuse = False
        told.wait(events.Reconnected)
        fill(js, 31, 31)
        assert seqs([ordered.next()]) == [31]
        assert_nothing_left(stream, nc)


def test_a_fetch_tells_beside_its_messages_what_kept_it_from_more(
    jetstream_server: Server, js: JetStream, stream: Stream
) -> None:
    with (
        proxy_of(jetstream_server) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=WAIT) as nc,
    ):
        ordered = nc.jetstream().stream("O").ordered_consumer()

        def cut() -> None:
            until(lambda: ordered.last_seq == 30, "all that there is was read")
            proxy.refuse = True
            proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        batch = ordered.fetch(40, timeout=2.0)
        cutting.join()
        assert seqs(batch) == list(range(1, 31))
        assert isinstance(batch.error, errors.DisconnectedError)
        proxy.refuse = False
        assert_nothing_left(stream, nc)


def test_too_many_resets_end_it_with_the_last_error(
    js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer(max_resets=1)
    with ordered.messages(1) as messages:
        for seq in (1, 2):
            assert messages.next().metadata.stream_seq == seq
            (name,) = stream.consumer_names()
            js.delete_consumer("O", name)
        with pytest.raises(failures.PullError) as caught:
            for _ in messages:
                pass
        assert messages.error is caught.value
        assert messages.resets == 2
        assert not messages.is_active
        with pytest.raises(failures.PullError):
            messages.next()
    # Another reading begins to count anew.
    assert ordered.next().metadata.stream_seq == 3


def test_a_stream_that_is_deleted_ends_it_with_its_name(
    js: JetStream, stream: Stream
) -> None:
    ordered = stream.ordered_consumer()
    with ordered.messages() as messages:
        for _ in range(30):
            messages.next()
        js.delete_stream("O")
        with pytest.raises(failures.StreamNotFoundError, match="'O'"):
            messages.next(PATIENCE)
        assert isinstance(messages.error, failures.StreamNotFoundError)
    with pytest.raises(failures.StreamNotFoundError):
        ordered.next()
    with pytest.raises(failures.StreamNotFoundError):
        ordered.fetch(2)
    gc.collect()
    assert_tidy(js._connection)


def test_a_refusal_for_good_is_raised_at_once(js: JetStream) -> None:
    stream = js.create_stream(name="F", subjects=["f"], max_consumers=1)
    stream.create_consumer(name="other")
    start = time.monotonic()
    with pytest.raises(failures.MaximumConsumersError):
        stream.ordered_consumer().next(timeout=30.0)
    assert time.monotonic() - start < 15.0


def test_one_consumer_is_enough_for_a_stream_that_allows_one(js: JetStream) -> None:
    stream = js.create_stream(name="ONE", subjects=["one"], max_consumers=1)
    for _ in range(4):
        js.publish("one", b"")
    ordered = stream.ordered_consumer()
    assert [ordered.next().metadata.stream_seq for _ in range(4)] == [1, 2, 3, 4]


def test_closing_the_connection_ends_it(
    jetstream_server: Server, stream: Stream
) -> None:
    nc = jsclient.connect(jetstream_server.url)
    reading = Reading(nc.jetstream().stream("O").ordered_consumer(), 40)
    reading.wait(30)
    nc.close()
    reading._thread.join(PATIENCE)
    assert isinstance(reading.error, errors.ConnectionClosedError)
    reading.messages.stop()
