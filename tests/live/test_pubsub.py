"""Publishing and subscribing against a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import jsclient
from jsclient import errors, events, server
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, Events, all_results, until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]

MIB = 1024 * 1024


# What arrives -------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("orders.new")
        nc.publish(
            "orders.new", b"\x00\r\nPING\r\n", reply="answers", headers={"K": "v"}
        )
        msg = sub.next(PATIENCE)
    assert msg.subject == "orders.new"
    assert msg.reply == "answers"
    assert msg.data == b"\x00\r\nPING\r\n"
    assert msg.headers == {"K": "v"}


def test_a_message_without_headers_and_reply_has_none(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("bare")
        nc.publish("bare", b"x", headers={})
        msg = sub.next(PATIENCE)
    assert msg.reply is None
    assert msg.headers is None


def test_values_of_one_header_keep_their_order_and_keys_their_case(url: str) -> None:
    fields = [("K", "a"), ("k", "c"), ("K", "b")]
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("headers")
        nc.publish("headers", headers=fields)
        nc.publish("headers", headers={"Multi": ["1", "2", "3"], "Empty": ""})
        nc.publish("headers", headers={"Utf8": "süß ✓"})
        first, second, third = (sub.next(PATIENCE).headers for _ in range(3))
    assert first is not None
    assert first.get_all("K") == ["a", "b"]
    assert first.get_all("k") == ["c"]
    assert second is not None
    assert second.get_all("Multi") == ["1", "2", "3"]
    assert second["Empty"] == ""
    assert third is not None
    assert third["Utf8"] == "süß ✓"


def test_empty_payloads_arrive_between_others(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("empty")
        for data in (b"", b"a", b"", b""):
            nc.publish("empty", data)
        nc.publish("empty", b"", headers={"K": "v"})
        got = [sub.next(PATIENCE).data for _ in range(5)]
    assert got == [b"", b"a", b"", b"", b""]


def test_the_largest_payloads_arrive_whole_between_small_ones(url: str) -> None:
    large = bytes(range(256)) * (MIB // 256)
    with jsclient.connect(url) as nc:
        assert nc.max_payload == MIB
        sub = nc.subscribe("large")
        for number in range(5):
            nc.publish("large", b"%d" % number)
            nc.publish("large", large)
        for number in range(5):
            assert sub.next(PATIENCE).data == b"%d" % number
            assert sub.next(PATIENCE).data == large


@pytest.mark.parametrize(
    ("subject", "matching"),
    [
        ("w.*.c", ["w.a.c", "w.b.c"]),
        ("w.>", ["w.a.c", "w.b.c", "w.a"]),
        ("w.*", ["w.a"]),
        ("w.a", ["w.a"]),
    ],
)
def test_wildcards_select_subjects(url: str, subject: str, matching: list[str]) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe(subject)
        for name in ("w.a.c", "w.b.c", "w.a", "v.a"):
            nc.publish(name)
        nc.flush()
        assert [msg.subject for msg in sub.messages(timeout=0)] == matching


def test_text_beyond_ascii_is_a_subject(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("größe.*")
        nc.publish("größe.✓")
        assert sub.next(PATIENCE).subject == "größe.✓"


def test_messages_of_a_burst_keep_their_order(url: str) -> None:
    count = 50_000
    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        sub = other.subscribe("burst")
        other.flush()
        for number in range(count):
            nc.publish("burst", b"%d" % number)
        nc.flush()
        got = [int(sub.next(PATIENCE).data) for _ in range(count)]
    assert got == list(range(count))


def test_each_of_many_publishing_threads_keeps_its_own_order(url: str) -> None:
    senders, each = 8, 2000
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("many.*")

        def send(sender: int) -> None:
            for number in range(each):
                nc.publish(f"many.{sender}", b"%d" % number)

        all_results(senders, send)
        got: dict[str, list[int]] = {}
        for _ in range(senders * each):
            msg = sub.next(PATIENCE)
            got.setdefault(msg.subject, []).append(int(msg.data))
    assert got == {f"many.{sender}": list(range(each)) for sender in range(senders)}


def test_every_message_goes_to_one_member_of_a_queue_group(url: str) -> None:
    count = 600
    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        members = [nc.subscribe("work", queue="crew") for _ in range(2)]
        members.append(other.subscribe("work", queue="crew"))
        everyone = other.subscribe("work")
        lone = other.subscribe("work", queue="another")
        nc.flush()
        other.flush()
        for number in range(count):
            nc.publish("work", b"%d" % number)
        nc.flush()
        other.flush()
        shares = [[int(msg.data) for msg in sub.messages(timeout=0)] for sub in members]
        assert len(list(everyone.messages(timeout=0))) == count
        assert len(list(lone.messages(timeout=0))) == count
    assert sorted(number for share in shares for number in share) == list(range(count))
    assert all(shares)


def test_without_echo_own_messages_reach_only_others(url: str) -> None:
    with (
        jsclient.connect(url, echo=False) as nc,
        jsclient.connect(url) as other,
    ):
        own = nc.subscribe("echo")
        theirs = other.subscribe("echo")
        other.flush()
        nc.publish("echo", b"mine")
        nc.flush()
        assert theirs.next(PATIENCE).data == b"mine"
        other.publish("echo", b"theirs")
        assert own.next(PATIENCE).data == b"theirs"


def test_two_threads_that_read_one_subscription_share_its_messages(url: str) -> None:
    count = 2000
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("shared")
        for number in range(count):
            nc.publish("shared", b"%d" % number)
        nc.flush()
        sub.drain()
        shares = all_results(4, lambda _: [int(msg.data) for msg in sub])
    assert sorted(number for share in shares for number in share) == list(range(count))


def test_stats_count_messages_and_payloads(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("counted")
        for _ in range(10):
            nc.publish("counted", b"12345")
        nc.flush()
        stats = nc.stats()
        assert sub.pending_messages == 10
    assert (stats.out_msgs, stats.out_bytes) == (10, 50)
    assert (stats.in_msgs, stats.in_bytes) == (10, 50)
    assert stats.total_bytes_in > 50
    assert stats.total_bytes_out > 50
    assert stats.reconnects == 0


# Limits of a subscription -------------------------------------------------------------


def test_a_subscription_ends_after_its_limit(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("limited")
        sub.unsubscribe(limit=3)
        for number in range(5):
            nc.publish("limited", b"%d" % number)
        nc.flush()
        assert [msg.data for msg in sub] == [b"0", b"1", b"2"]
        with pytest.raises(errors.SubscriptionClosedError):
            sub.next(0)


def test_a_limit_counts_from_the_first_message(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("limited")
        for number in range(4):
            nc.publish("limited", b"%d" % number)
        nc.flush()
        assert sub.next(0).data == b"0"
        sub.unsubscribe(limit=2)
        assert [msg.data for msg in sub] == [b"1"]


def test_what_is_left_of_a_limit_holds_on_the_next_link(url: str, told: Events) -> None:
    with (
        jsclient.connect(url, on_event=told) as nc,
        jsclient.connect(url) as other,
    ):
        sub = nc.subscribe("limited")
        sub.unsubscribe(limit=5)
        nc.flush()
        for number in range(2):
            other.publish("limited", b"%d" % number)
        other.flush()
        assert [sub.next(PATIENCE).data for _ in range(2)] == [b"0", b"1"]
        nc.reconnect()
        told.wait(events.Reconnected)
        nc.flush()
        for number in range(2, 10):
            other.publish("limited", b"%d" % number)
        other.flush()
        nc.flush()
        assert [msg.data for msg in sub] == [b"2", b"3", b"4"]


def test_messages_over_the_pending_limit_are_dropped_counted_and_told(
    url: str, told: Events
) -> None:
    with jsclient.connect(url, on_event=told) as nc:
        sub = nc.subscribe("slow", max_pending_messages=10)
        for number in range(15):
            nc.publish("slow", b"%d" % number)
        nc.flush()
        assert (sub.pending_messages, sub.dropped) == (10, 5)
        with pytest.raises(errors.SlowConsumerError, match="5 messages"):
            sub.next(0)
        assert [int(sub.next(0).data) for _ in range(10)] == list(range(10))
        assert told.wait(events.SlowConsumer).subscription is sub

        # Having caught up, it can be slow once more, and is told of once more.
        for number in range(12):
            nc.publish("slow", b"%d" % number)
        nc.flush()
        assert told.wait(events.SlowConsumer, 2).dropped >= 6
        assert (sub.dropped, sub.delivered) == (7, 10)
        with pytest.raises(errors.SlowConsumerError, match="2 messages"):
            sub.next(0)
        assert [int(sub.next(0).data) for _ in range(10)] == list(range(10))
    assert len(told.of(events.SlowConsumer)) == 2


def test_bytes_over_the_pending_limit_are_dropped_too(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("slow", max_pending_bytes=10_000)
        for _ in range(15):
            nc.publish("slow", bytes(996))
        nc.flush()
        assert (sub.pending_messages, sub.pending_bytes) == (10, 10_000)
        assert sub.dropped == 5


def test_a_reader_that_keeps_up_is_never_slow(url: str, told: Events) -> None:
    headers = {"Trace": "0123456789", "Other": "x" * 20}
    with jsclient.connect(url, on_event=told) as nc:
        sub = nc.subscribe("active", max_pending_bytes=MIB)
        for _ in range(25):
            for _ in range(4000):
                nc.publish("active", b"x" * 64, headers=headers)
            for _ in range(4000):
                sub.next(PATIENCE)
        assert (sub.pending_messages, sub.pending_bytes) == (0, 0)
        assert (sub.dropped, sub.delivered) == (0, 100_000)
    assert told.of(events.SlowConsumer) == []


def test_a_slow_subscription_does_not_hold_up_another(url: str) -> None:
    with jsclient.connect(url) as nc:
        slow = nc.subscribe("side", max_pending_messages=1)
        quick = nc.subscribe("side")
        for _ in range(1000):
            nc.publish("side")
        for _ in range(1000):
            quick.next(PATIENCE)
        assert slow.dropped == 999
        assert nc.stats().reconnects == 0


def test_a_server_that_drops_us_as_slow_is_connected_to_again(told: Events) -> None:
    config = 'write_deadline: "100ms"\nmax_pending: 1MB'
    with (
        server.run(config=config) as impatient,
        FaultProxy(impatient.host, impatient.port) as proxy,
        jsclient.connect(proxy.url, on_event=told) as nc,
        jsclient.connect(impatient.url) as other,
    ):
        sub = nc.subscribe("flood")
        nc.flush()
        proxy.set("s2c", stall=True)
        for _ in range(400):
            other.publish("flood", bytes(50_000))
        other.flush()
        until(
            lambda: "Slow Consumer" in impatient.log(), "the server lost its patience"
        )
        proxy.set("s2c")
        # The server says nothing before it closes.
        lost = told.wait(events.Disconnected)
        assert isinstance(lost.error, errors.DisconnectedError | OSError)
        told.wait(events.Reconnected)
        nc.flush()
        other.publish("flood", b"after")
        while (msg := sub.next(PATIENCE)).data != b"after":
            assert msg.data == bytes(50_000)


# The end of a subscription ------------------------------------------------------------


def test_unsubscribing_drops_what_was_not_read(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("over")
        nc.publish("over")
        nc.flush()
        sub.unsubscribe()
        nc.publish("over")
        nc.flush()
        assert sub.pending_messages == 0
        assert not sub.is_active
        assert list(sub) == []
        with pytest.raises(errors.SubscriptionClosedError):
            sub.next(0)
        sub.unsubscribe()


def test_unsubscribing_ends_a_waiting_reader(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("over")
        others = [nc.subscribe("over") for _ in range(2)]

        def read(number: int) -> object:
            if number == 3:
                until(lambda: not nc._loop.helm.is_free, "somebody reads")
                sub.unsubscribe()
                others[0].unsubscribe()
                others[1].drain()
                return None
            if number == 2:
                with pytest.raises(errors.SubscriptionClosedError):
                    sub.next(PATIENCE)
                return None
            return list(others[number])

        assert all_results(4, read) == [[], [], None, None]


def test_a_drained_subscription_hands_out_all_that_had_arrived(url: str) -> None:
    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        sub = nc.subscribe("drained")
        nc.flush()
        for number in range(100):
            other.publish("drained", b"%d" % number)
        other.flush()
        sub.drain()
        other.publish("drained", b"late")
        other.flush()
        nc.flush()
        assert [int(msg.data) for msg in sub] == list(range(100))
        with pytest.raises(errors.SubscriptionClosedError):
            sub.next(0)


def test_draining_waits_until_the_callback_has_handled_everything(url: str) -> None:
    got: list[int] = []
    with jsclient.connect(url) as nc, jsclient.connect(url) as other:
        started = threading.Event()

        def handle(msg: jsclient.Msg) -> None:
            started.wait(PATIENCE)
            got.append(int(msg.data))

        sub = nc.subscribe("drained", callback=handle)
        nc.flush()
        for number in range(100):
            other.publish("drained", b"%d" % number)
        other.flush()
        threading.Timer(0.1, started.set).start()
        sub.drain(PATIENCE)
        assert got == list(range(100))


def test_a_draining_that_takes_too_long_says_so(url: str) -> None:
    done = threading.Event()
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("drained", callback=lambda _: done.wait(PATIENCE))
        nc.publish("drained")
        nc.flush()
        with pytest.raises(errors.DrainTimeoutError):
            sub.drain(0.1)
        done.set()


def test_draining_a_connection_sends_the_answers_of_its_callbacks(
    url: str, told: Events
) -> None:
    with jsclient.connect(url) as other:
        answers = other.subscribe("answers")
        nc = jsclient.connect(url, on_event=told)
        refused: list[type[BaseException]] = []
        release = threading.Event()

        def answer(msg: jsclient.Msg) -> None:
            release.wait(PATIENCE)
            msg.respond(msg.data)
            if not refused:
                try:
                    nc.subscribe("more")
                except errors.ConnectionDrainingError as error:
                    refused.append(type(error))

        nc.subscribe("questions", callback=answer)
        held = nc.subscribe("questions", callback=answer)
        nc.flush()
        for number in range(50):
            other.publish("questions", b"%d" % number, reply="answers")
        other.flush()
        held.unsubscribe(limit=50)
        threading.Timer(0.2, release.set).start()
        nc.drain(PATIENCE)
        assert nc.is_closed
        assert refused == [errors.ConnectionDrainingError]
        other.flush()
        got = sorted(int(msg.data) for msg in answers.messages(timeout=0))
        assert got == sorted([*range(50)] * 2)
    assert told.wait(events.Closed).error is None
    with pytest.raises(errors.ConnectionClosedError):
        nc.publish("questions")


def test_draining_a_connection_waits_for_callbacks_whose_subscription_has_ended(
    url: str,
) -> None:
    with jsclient.connect(url) as other:
        answers = other.subscribe("answers")
        other.flush()
        nc = jsclient.connect(url)
        release = threading.Event()

        def answer(msg: jsclient.Msg) -> None:
            release.wait(PATIENCE)
            msg.respond(msg.data)

        sub = nc.subscribe("questions", callback=answer)
        for number in range(10):
            nc.publish("questions", b"%d" % number, reply="answers")
        nc.flush()
        sub.unsubscribe(limit=10)
        assert not sub.is_active
        threading.Timer(0.1, release.set).start()
        nc.drain(PATIENCE)
        other.flush()
        assert [int(msg.data) for msg in answers.messages(timeout=0)] == [*range(10)]


def test_draining_a_connection_lets_an_iterating_thread_finish(url: str) -> None:
    nc = jsclient.connect(url)
    sub = nc.subscribe("read")
    for number in range(1000):
        nc.publish("read", b"%d" % number)

    def work(number: int) -> list[int]:
        if number:
            nc.drain(PATIENCE)
            return []
        return [int(msg.data) for msg in sub]

    assert all_results(2, work) == [list(range(1000)), []]


def test_a_subscription_that_nobody_holds_ends_at_the_server(
    plain_server: server.Server,
) -> None:
    with (
        jsclient.connect(plain_server.url) as nc,
        jsclient.connect(plain_server.url) as other,
    ):
        nc.subscribe("forgotten")
        nc.flush()

        def has_responders() -> bool:
            try:
                other.request("forgotten", timeout=0.05)
            except errors.NoRespondersError:
                return False
            except errors.TimeoutError:
                return True
            raise AssertionError("somebody answered")

        until(lambda: not has_responders(), "the interest ended")


# Callbacks ----------------------------------------------------------------------------


def test_a_callback_gets_messages_in_order_on_one_thread_of_its_own(url: str) -> None:
    got: list[int] = []
    names: set[str] = set()
    done = threading.Event()

    def handle(msg: jsclient.Msg) -> None:
        names.add(threading.current_thread().name)
        got.append(int(msg.data))
        if len(got) == 1000:
            done.set()

    with jsclient.connect(url) as nc:
        sub = nc.subscribe("called", callback=handle)
        for number in range(1000):
            nc.publish("called", b"%d" % number)
        assert done.wait(PATIENCE)
        with pytest.raises(ValueError, match="callback"):
            sub.next()
    assert got == list(range(1000))
    assert len(names) == 1
    assert threading.current_thread().name not in names


def test_an_error_in_a_callback_is_told_and_the_next_message_comes(
    url: str, told: Events
) -> None:
    got: list[bytes] = []

    def handle(msg: jsclient.Msg) -> None:
        if msg.data == b"bad":
            raise RuntimeError("oh")
        got.append(msg.data)

    with jsclient.connect(url, on_event=told) as nc:
        sub = nc.subscribe("called", callback=handle)
        for data in (b"bad", b"good"):
            nc.publish("called", data)
        sub.drain()
        event = told.wait(events.ErrorEvent)
        assert isinstance(event.error, RuntimeError)
        assert event.subscription is sub
    assert got == [b"good"]


def test_a_callback_may_use_its_connection_for_anything(url: str) -> None:
    results: list[object] = []
    done = threading.Event()
    with jsclient.connect(url) as nc:

        def handle(msg: jsclient.Msg) -> None:
            results.append(nc.request("service", b"ping", timeout=PATIENCE).data)
            inner = nc.subscribe("inner")
            nc.publish("inner", b"self")
            results.append(inner.next(PATIENCE).data)
            nc.flush(PATIENCE)
            sub.unsubscribe()
            done.set()

        nc_service = nc.subscribe("service", callback=lambda msg: msg.respond(msg.data))
        sub = nc.subscribe("outer", callback=handle)
        nc.publish("outer")
        nc.publish("outer")
        assert done.wait(PATIENCE)
        assert nc_service.is_active
    assert results == [b"ping", b"self"]


@pytest.mark.parametrize("end", ["close", "drain"])
def test_a_callback_may_end_its_connection(url: str, told: Events, end: str) -> None:
    nc = jsclient.connect(url, on_event=told)
    done = threading.Event()

    def handle(_: jsclient.Msg) -> None:
        getattr(nc, end)()
        done.set()

    sub = nc.subscribe("last", callback=handle)
    nc.publish("last")
    assert done.wait(PATIENCE)
    assert told.wait(events.Closed).error is None
    assert nc.is_closed
    assert not sub.is_active
    nc.close()


def test_an_event_handler_may_use_the_connection(url: str) -> None:
    results: list[object] = []
    done = threading.Event()

    def handle(event: events.Event) -> None:
        if isinstance(event, events.SlowConsumer):
            nc.flush(PATIENCE)
            event.subscription.unsubscribe()
            results.append(event.subscription.dropped)
            done.set()

    with jsclient.connect(url, on_event=handle) as nc:
        sub = nc.subscribe("slow", max_pending_messages=1)
        nc.publish("slow")
        nc.publish("slow")
        nc.flush()
        assert done.wait(PATIENCE)
        assert not sub.is_active
    assert results == [1]


# The end of a connection --------------------------------------------------------------


def test_what_was_published_before_close_arrives(url: str) -> None:
    with jsclient.connect(url) as other:
        sub = other.subscribe("last.words")
        other.flush()
        with jsclient.connect(url) as nc:
            for number in range(1000):
                nc.publish("last.words", b"%d" % number)
        assert [int(sub.next(PATIENCE).data) for _ in range(1000)] == list(range(1000))


CALLS: list[Callable[[jsclient.Connection, jsclient.Subscription], object]] = [
    lambda nc, sub: nc.publish("a"),
    lambda nc, sub: nc.request("a"),
    lambda nc, sub: nc.subscribe("a"),
    lambda nc, sub: nc.flush(),
    lambda nc, sub: nc.rtt(),
    lambda nc, sub: nc.drain(),
    lambda nc, sub: nc.reconnect(),
    lambda nc, sub: sub.next(),
    lambda nc, sub: list(sub),
    lambda nc, sub: sub.drain(),
    lambda nc, sub: sub.unsubscribe(),
    lambda nc, sub: sub.unsubscribe(limit=3),
    lambda nc, sub: jsclient.Msg.respond(sub_msg(nc)),
]


def sub_msg(nc: jsclient.Connection) -> jsclient.Msg:
    kept: jsclient.Msg = nc.__dict__["kept"]
    return kept


@pytest.mark.parametrize("call", CALLS)
def test_nothing_can_be_done_after_close(
    url: str, call: Callable[[jsclient.Connection, jsclient.Subscription], object]
) -> None:
    nc = jsclient.connect(url)
    sub = nc.subscribe("kept")
    nc.publish("kept", reply="answers")
    nc.__dict__["kept"] = sub.next(PATIENCE)
    nc.close()
    nc.close()
    with pytest.raises(errors.ConnectionClosedError):
        call(nc, sub)
    assert nc.is_closed
    assert not nc.is_connected
    assert not sub.is_active


def test_close_wakes_everybody_who_waits(url: str) -> None:
    nc = jsclient.connect(url)
    sub = nc.subscribe("nothing")
    silent = nc.subscribe("asked")
    calls: list[Callable[[], object]] = [
        lambda: nc.request("asked", timeout=PATIENCE),
        lambda: sub.next(PATIENCE),
        lambda: next(iter(sub.messages(PATIENCE))),
    ]
    waiting = threading.Semaphore(0)

    def wait(number: int) -> str:
        if number == 9:
            for _ in range(9):
                assert waiting.acquire(timeout=PATIENCE)
            nc.close()
            return "closed"
        waiting.release()
        with pytest.raises(errors.ConnectionClosedError):
            calls[number % 3]()
        return "woken"

    assert all_results(10, wait) == ["woken"] * 9 + ["closed"]
    assert not silent.is_active


# Mistakes -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", "a b", "a\tb", "a\r\nPUB x 0\r\n", "a\nb", "a\0b"])
def test_no_text_of_the_user_becomes_protocol(url: str, bad: str) -> None:
    with jsclient.connect(url) as nc:
        everything = nc.subscribe(">")
        with pytest.raises(ValueError, match="subject"):
            nc.publish(bad)
        with pytest.raises(ValueError, match="reply"):
            nc.publish("a", reply=bad)
        with pytest.raises(ValueError, match="subject"):
            nc.request(bad)
        with pytest.raises(ValueError, match="subject"):
            nc.subscribe(bad)
        with pytest.raises(ValueError, match="queue"):
            nc.subscribe("a", queue=bad)
        with pytest.raises(ValueError, match="header"):
            nc.publish("a", headers={bad: "x"})
        if "\n" in bad:
            with pytest.raises(ValueError, match="header"):
                nc.publish("a", headers={"K": bad})
        nc.flush()
        assert everything.pending_messages == 0
        assert nc.stats().reconnects == 0


@pytest.mark.parametrize("bad", ["a..b", ".a", "a.", "a.>.b", "a*.b", "a.b>"])
def test_a_filter_has_whole_tokens(url: str, bad: str) -> None:
    with jsclient.connect(url) as nc, pytest.raises(ValueError, match="subject"):
        nc.subscribe(bad)


@pytest.mark.parametrize("bad", ["text", None, 3, [b"x"], memoryview(b"abcd")[::2]])
def test_a_payload_is_contiguous_bytes(url: str, bad: bytes) -> None:
    with jsclient.connect(url) as nc:
        with pytest.raises((TypeError, ValueError, BufferError)):
            nc.publish("a", bad)
        nc.flush()
        assert nc.stats().out_msgs == 0


@pytest.mark.parametrize("good", [bytearray(b"abc"), memoryview(b"xabcx")[1:4]])
def test_other_buffers_are_copied_before_publish_returns(
    url: str, good: bytearray
) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("buffers")
        nc.publish("buffers", good)
        if isinstance(good, bytearray):
            good[:] = b"xyz"
        assert sub.next(PATIENCE).data == b"abc"


@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_a_timeout_is_not_negative(url: str, bad: float) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("a")
        for call in (sub.next, sub.messages, sub.drain, nc.flush, nc.rtt, nc.drain):
            with pytest.raises(ValueError, match="timeout"):
                call(bad)
        with pytest.raises(ValueError, match="timeout"):
            nc.request("a", timeout=bad)
        assert nc.is_connected


def test_a_timeout_of_zero_takes_what_is_there(url: str) -> None:
    with jsclient.connect(url) as nc:
        sub = nc.subscribe("a")
        with pytest.raises(errors.TimeoutError):
            sub.next(0)
        nc.publish("a")
        nc.flush()
        assert sub.next(0).data == b""
        with pytest.raises(TimeoutError):
            sub.next(0)


# The server's PINGs -------------------------------------------------------------------


def test_the_servers_pings_are_answered_while_the_application_does_nothing() -> None:
    # Given up after 1.8 seconds without an answer.
    config = 'ping_interval: "200ms"\nping_max: 8'
    with server.run(config=config) as impatient:
        with jsclient.connect(impatient.url) as nc:
            # Nobody calls the connection meanwhile: only the keeper can answer.
            assert not threading.Event().wait(2.5)
            assert nc.stats().reconnects == 0
            assert nc.is_connected
            nc.flush()
        assert "Stale" not in impatient.log()


def test_the_servers_pings_are_answered_while_we_publish_without_pause() -> None:
    # Given up after 1.8 seconds without an answer.
    config = 'ping_interval: "200ms"\nping_max: 8'
    with (
        server.run(config=config) as impatient,
        jsclient.connect(impatient.url) as nc,
    ):
        over = threading.Event()
        threading.Timer(2.5, over.set).start()
        while not over.is_set():
            nc.publish("heavy", bytes(1000))
        nc.flush()
        assert nc.stats().reconnects == 0
