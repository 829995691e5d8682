"""Publishing with futures: the window, the acks, and every way a future can end."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from functools import partial
from typing import Any

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient._core import PubAck
from jsclient.ack_future import AckFuture
from jsclient.jetstream import JetStream
from jsclient.server import Server
from jsclient.stream import Stream
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, all_results, until

pytestmark = pytest.mark.live


def stream(js: JetStream, **fields: Any) -> Stream:
    """A stream in memory on `a.>`."""
    made: dict[str, Any] = {"name": "S", "subjects": ["a.>"], "storage": "memory"}
    return js.create_stream(**{**made, **fields})


def stored(made: Stream) -> int:
    return made.info().state.messages


@pytest.fixture
def proxy(jetstream_server: Server) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", jetstream_server.port) as made:
        yield made


def assert_empty(js: JetStream) -> None:
    """Nothing of any publish is left in the connection."""
    publisher = js._async
    assert publisher is not None
    assert publisher.pending == js.pending_publishes == 0
    assert publisher._window.odd is None
    assert not publisher._window.observed
    assert not publisher._window.gates
    assert publisher._loop.outbox.frames == 0


# Futures ------------------------------------------------------------------------------


def test_a_future_has_the_ack_of_its_message(js: JetStream) -> None:
    stream(js)
    futures = [js.publish_async("a.b", b"%d" % i, msg_id=f"{i}") for i in range(20)]
    assert all(isinstance(one, concurrent.futures.Future) for one in futures)
    assert [one.result(PATIENCE).seq for one in futures] == list(range(1, 21))
    assert all(one.done() and one.exception() is None for one in futures)
    assert not futures[0].cancel()
    assert not futures[0].cancelled()
    again = js.publish_async("a.b", msg_id="7").result(PATIENCE)
    assert (again.seq, again.duplicate) == (8, True)
    assert_empty(js)


def test_futures_work_with_the_functions_of_concurrent_futures(js: JetStream) -> None:
    stream(js)
    futures = [js.publish_async("a.b") for _ in range(100)]
    first = wait(futures, PATIENCE, return_when=FIRST_COMPLETED)
    assert first.done
    done, left = wait(futures, PATIENCE)
    assert (len(done), len(left)) == (100, 0)
    more = [js.publish_async("a.b") for _ in range(100)]
    assert {one.result().seq for one in as_completed(more, PATIENCE)} == set(
        range(101, 201)
    )


def test_a_refused_message_fails_its_future_only(js: JetStream) -> None:
    made = stream(js)
    js.publish("a.b")
    futures = [
        js.publish_async("a.b"),
        js.publish_async("a.b", expected_last_seq=1),
        js.publish_async("a.b"),
    ]
    assert futures[0].result(PATIENCE).seq == 2
    error = futures[1].exception(PATIENCE)
    assert isinstance(error, failures.WrongLastSequenceError)
    with pytest.raises(failures.WrongLastSequenceError):
        futures[1].result(PATIENCE)
    assert futures[2].result(PATIENCE).seq == 3
    assert stored(made) == 3
    assert_empty(js)


def test_a_subject_without_a_stream_fails_after_its_tries(js: JetStream) -> None:
    before = js._connection.stats().out_msgs
    future = js.publish_async("nobody.here")
    with pytest.raises(failures.NoStreamResponseError):
        future.result(PATIENCE)
    assert js._connection.stats().out_msgs - before == 3
    assert_empty(js)


def test_a_result_is_waited_for_no_longer_than_asked(js: JetStream) -> None:
    stream(js, no_ack=True)
    future = js.publish_async("a.b")
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0.05)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.exception(0)
    assert not future.done()


def test_a_missing_ack_is_given_up_after_ack_timeout(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js, no_ack=True)
    quick = js._connection.jetstream(ack_timeout=0.3)
    futures = [quick.publish_async("a.b") for _ in range(3)]
    # No thread waits for them: the keeper gives them up.
    done, _ = wait(futures, PATIENCE)
    assert len(done) == 3
    for future in futures:
        with pytest.raises(failures.PublishTimeoutError, match=r"0\.3 s"):
            future.result()
    until(lambda: stored(made) == 3, "they are stored all the same")
    assert_empty(quick)


def test_a_missing_ack_is_given_up_while_another_thread_reads_for_ever(
    js: JetStream,
) -> None:
    stream(js, no_ack=True)
    nc = js._connection
    sub = nc.subscribe("quiet")
    reader = threading.Thread(target=lambda: sub.next(timeout=None))
    reader.start()
    until(lambda: not nc._loop.helm.is_free, "somebody reads")
    quick = nc.jetstream(ack_timeout=0.2)
    future = quick.publish_async("a.b")
    assert isinstance(future.exception(PATIENCE), failures.PublishTimeoutError)
    nc.publish("quiet")
    reader.join(PATIENCE)


# Callbacks ----------------------------------------------------------------------------


def test_a_callback_runs_on_the_thread_of_the_events(js: JetStream) -> None:
    stream(js)
    ran: list[tuple[str, int]] = []

    def note(future: Future[PubAck]) -> None:
        ran.append((threading.current_thread().name, future.result().seq))

    futures = [js.publish_async("a.b") for _ in range(10)]
    for future in futures:
        future.add_done_callback(note)
    js.flush_publishes()
    until(lambda: len(ran) == 10, "all callbacks ran")
    assert sorted(seq for _, seq in ran) == list(range(1, 11))
    late: list[str] = []
    futures[0].add_done_callback(lambda _: late.append("at once"))
    assert late == ["at once"]
    fresh = js.publish_async("a.b")
    fresh.add_done_callback(note)
    fresh.result(PATIENCE)
    until(lambda: len(ran) == 11, "the last callback ran")


def test_a_callback_may_publish_and_wait(js: JetStream) -> None:
    made = stream(js)
    seen: list[int] = []
    is_over = threading.Event()

    def chain(future: Future[PubAck]) -> None:
        seq = future.result().seq
        seen.append(seq)
        if seq >= 5:
            seen.append(js.publish("a.b").seq)
            is_over.set()
        else:
            js.publish_async("a.b").add_done_callback(chain)

    js.publish_async("a.b").add_done_callback(chain)
    assert is_over.wait(PATIENCE)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert stored(made) == 6


def test_a_callback_that_raises_is_logged_and_harms_nobody(
    js: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream(js)
    ran: list[int] = []

    def fail(future: Future[PubAck]) -> None:
        raise RuntimeError("oops")

    future = js.publish_async("a.b")
    future.add_done_callback(fail)
    future.add_done_callback(lambda done: ran.append(done.result().seq))
    assert future.result(PATIENCE).seq == 1
    until(lambda: ran == [1], "the other callback ran")
    future.add_done_callback(fail)  # at once, and no different
    until(
        lambda: sum("callback" in text for text in caplog.messages) == 2,
        "both errors are logged",
    )
    assert js.publish("a.b").seq == 2


# The window ---------------------------------------------------------------------------


def test_eight_threads_never_have_more_on_the_wire_than_the_window(
    jetstream_server: Server, js: JetStream, proxy: FaultProxy
) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url) as nc:
        narrow = nc.jetstream(max_pending=5)
        assert narrow.publish_async("a.warm").result(PATIENCE).seq == 1
        proxy.set("s2c", stall=True)  # acks are held

        def work(number: int) -> list[int]:
            futures = [
                narrow.publish_async(f"a.{number}", timeout=PATIENCE) for _ in range(20)
            ]
            return [future.result(PATIENCE).seq for future in futures]

        results: list[list[int]] = []
        crowd = threading.Thread(target=lambda: results.extend(all_results(8, work)))
        crowd.start()
        until(lambda: stored(made) == 6, "the window is full")
        until(
            lambda: narrow._async is not None and len(narrow._async._window.gates) == 8,
            "all threads wait",
        )
        assert (stored(made), narrow.pending_publishes) == (6, 5)
        proxy.set("s2c")
        peak = 0
        while crowd.is_alive():
            peak = max(peak, narrow.pending_publishes)
            crowd.join(0.001)
        assert peak <= 5
        assert sorted(seq for seqs in results for seq in seqs) == list(range(2, 162))
        for seqs in results:
            assert seqs == sorted(seqs), "each thread's messages are in order"
        assert_empty(narrow)


def test_a_full_window_raises_at_the_deadline_and_sends_nothing(
    js: JetStream, proxy: FaultProxy
) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url) as nc:
        narrow = nc.jetstream(max_pending=2)
        narrow.publish_async("a.b").result(PATIENCE)
        proxy.set("s2c", stall=True)
        futures = [narrow.publish_async("a.b") for _ in range(2)]
        with pytest.raises(failures.TooManyPendingError, match="not sent") as caught:
            narrow.publish_async("a.b", timeout=0.1)
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(failures.TooManyPendingError):
            narrow.publish_async("a.b", timeout=0)
        with pytest.raises(errors.TimeoutError, match="2 publishes"):
            narrow.flush_publishes(timeout=0.1)
        proxy.set("s2c")
        narrow.flush_publishes(timeout=PATIENCE)
        assert [future.result(0).seq for future in futures] == [2, 3]
        assert stored(made) == 3
        assert_empty(narrow)


def test_messages_that_wait_for_another_try_keep_their_places(js: JetStream) -> None:
    narrow = js._connection.jetstream(max_pending=2)
    narrow._async = publisher = narrow._publisher()
    publisher._retry_wait = 1.0
    futures = [narrow.publish_async("nobody.here") for _ in range(2)]
    until(lambda: len(publisher._window.again) == 2, "both wait for their second try")
    with pytest.raises(failures.TooManyPendingError):
        narrow.publish_async("nobody.here", timeout=0.05)
    for future in futures:
        assert isinstance(future.exception(PATIENCE), failures.NoStreamResponseError)
    assert_empty(narrow)


def test_a_place_that_was_not_used_is_free_again(js: JetStream) -> None:
    stream(js)
    narrow = js._connection.jetstream(max_pending=1)
    for _ in range(3):
        with pytest.raises(errors.InvalidArgumentError):
            narrow.publish_async("a..b")
        with pytest.raises(TypeError):
            narrow.publish_async("a.b", "text")  # type: ignore[arg-type]
        with pytest.raises(errors.MaxPayloadError):
            narrow.publish_async("a.b", b"x" * (1 << 21))
    assert narrow.publish_async("a.b", timeout=PATIENCE).result(PATIENCE).seq == 1
    assert_empty(narrow)


# Flushing -----------------------------------------------------------------------------


def test_after_a_flush_every_future_is_done(js: JetStream) -> None:
    stream(js)
    js.flush_publishes()  # nothing yet
    stop = threading.Event()
    nc = js._connection

    def read() -> None:
        # Another thread at the helm, so that this one is told, not asked.
        sub = nc.subscribe("quiet")
        while not stop.is_set():
            try:
                sub.next(timeout=0.01)
            except errors.TimeoutError:
                continue

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(100):
            futures = [js.publish_async("a.b") for _ in range(20)]
            js.flush_publishes()
            assert all(future.done() for future in futures)
    finally:
        stop.set()
        reader.join(PATIENCE)
    assert_empty(js)


def test_several_threads_flush_at_once(js: JetStream) -> None:
    stream(js)

    def work(number: int) -> int:
        futures = []
        for _ in range(10):
            futures += [js.publish_async("a.b") for _ in range(10)]
            js.flush_publishes()
        return sum(future.done() for future in futures)

    assert all_results(8, work) == [100] * 8
    assert_empty(js)


def _publish_one(js: JetStream, number: int) -> int:
    return js.publish_async("a.b", b"%d" % number).result(PATIENCE).seq


def test_the_first_futures_of_several_threads_share_one_window(
    jetstream_server: Server, js: JetStream
) -> None:
    stream(js)
    for _ in range(10):
        fresh = js._connection.jetstream()
        work = partial(_publish_one, fresh)
        assert len(set(all_results(4, work))) == 4
        assert_empty(fresh)


def test_a_forgotten_context_leaves_the_connection(js: JetStream) -> None:
    stream(js)
    loop = js._connection._loop
    machines, entries = len(loop.machines), len(loop.entries)
    futures = [
        js._connection.jetstream().publish_async("a.b", b"%d" % i) for i in range(20)
    ]
    assert sorted(one.result(PATIENCE).seq for one in futures) == list(range(1, 21))
    gc.collect()
    until(lambda: len(loop.machines) == machines, "their publishers have left")
    until(lambda: len(loop.entries) <= entries + 1, "their inboxes have left")


# Links that are lost ------------------------------------------------------------------


def test_a_lost_link_fails_every_pending_future_and_wakes_who_waits(
    js: JetStream, proxy: FaultProxy
) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url, reconnect_wait=0.01) as nc:
        # An ack that is waited for is no reason to fail during the test.
        narrow = nc.jetstream(max_pending=5, ack_timeout=600.0)
        narrow.publish_async("a.b").result(PATIENCE)
        proxy.set("s2c", stall=True)
        futures = [narrow.publish_async("a.b") for _ in range(5)]
        until(lambda: stored(made) == 6, "all were sent")
        acks: list[PubAck] = []
        crowd = [
            threading.Thread(
                target=lambda: acks.append(
                    narrow.publish_async("a.c", timeout=600.0).result(600.0)
                )
            )
            for _ in range(3)
        ]
        for thread in crowd:
            thread.start()
        publisher = narrow._async
        assert publisher is not None
        until(lambda: len(publisher._window.gates) == 3, "all others wait")
        # There is no next link yet: that this one is lost is enough.
        proxy.refuse = True
        proxy.cut()
        # Nobody asks a future, which would see to it by itself.
        done, left = wait(futures, 1.0)
        assert (len(done), len(left)) == (5, 0)
        kinds = {type(future.exception()) for future in futures}
        assert kinds == {failures.PublishDisconnectedError}
        until(lambda: not publisher._window.gates, "those who waited are awake")
        assert not acks
        proxy.set("s2c")
        proxy.refuse = False
        for thread in crowd:
            thread.join(PATIENCE)
        assert sorted(ack.seq for ack in acks) == [7, 8, 9]
        assert_empty(narrow)


def test_closing_settles_every_future(js: JetStream, proxy: FaultProxy) -> None:
    made = stream(js)
    with jsclient.connect(proxy.url) as nc:
        other = nc.jetstream(max_pending=10)
        other.publish_async("a.b").result(PATIENCE)
        proxy.set("s2c", stall=True)
        futures = [other.publish_async("a.b") for _ in range(10)]
        raised: dict[str, type] = {}

        def stalled() -> None:
            try:
                other.publish_async("a.b", timeout=PATIENCE)
            except errors.Error as error:
                raised["stalled"] = type(error)

        def flushing() -> None:
            try:
                other.flush_publishes(PATIENCE)
            except errors.Error as error:
                raised["flushing"] = type(error)

        threads = [threading.Thread(target=one) for one in (stalled, flushing)]
        for thread in threads:
            thread.start()
        publisher = other._async
        assert publisher is not None
        until(lambda: len(publisher._window.gates) == 2, "both wait")
        until(lambda: stored(made) == 11, "all were sent")
    for future in futures:
        error = future.exception(PATIENCE)
        assert isinstance(error, failures.PublishOutcomeUnknownError)
    for thread in threads:
        thread.join(PATIENCE)
    assert raised["stalled"] is errors.ConnectionClosedError
    # A flush may see first that every future has its outcome, which is what it is for.
    assert raised.get("flushing", errors.ConnectionClosedError) is raised["stalled"]
    with pytest.raises(errors.ConnectionClosedError):
        other.publish_async("a.b")
    assert publisher.pending == 0


def ends_of_closing(made: Stream, url: str) -> list[BaseException | None]:
    """How the futures end of four threads that publish until the connection closes."""
    enough = stored(made) + 200
    futures: list[list[AckFuture]] = [[] for _ in range(4)]
    nc = jsclient.connect(url)
    js = nc.jetstream(max_pending=50)

    def work(number: int) -> None:
        if number == 4:
            until(lambda: stored(made) > enough, "they publish")
            nc.close()
            return
        try:
            while True:
                futures[number].append(js.publish_async("a.b"))
        except errors.ConnectionClosedError:
            return

    all_results(5, work)
    assert js.pending_publishes == 0
    return [one.exception(PATIENCE) for each in futures for one in each]


def test_closing_while_threads_publish_gives_each_future_one_end(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js)
    for _ in range(5):
        before = stored(made)
        ends = ends_of_closing(made, jetstream_server.url)
        acked = sum(end is None for end in ends)
        unknown = sum(isinstance(e, failures.PublishOutcomeUnknownError) for e in ends)
        refused = sum(isinstance(e, errors.ConnectionClosedError) for e in ends)
        assert acked + unknown + refused == len(ends)
        assert acked <= stored(made) - before <= acked + unknown
