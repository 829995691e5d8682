"""Publishing columns: outcomes, refusals, lost links and killed servers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import jsclient
from jsclient import errors
from jsclient import jetstream_errors as failures
from jsclient._core import Window
from jsclient.jetstream import JetStream
from jsclient.server import Cluster, Server, run
from jsclient.stream import Stream
from tests.harness.proxy import FaultProxy
from tests.live.support import PATIENCE, Events, until

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.live


def stream(js: JetStream, **fields: Any) -> Stream:
    """A stream in memory on `a.>`."""
    made: dict[str, Any] = {"name": "S", "subjects": ["a.>"], "storage": "memory"}
    return js.create_stream(**{**made, **fields})


def batch(*numbers: int, subject: str = "a.b") -> Any:
    return pa.record_batch(
        {
            "subject": [subject] * len(numbers),
            "data": [b"%d" % number for number in numbers],
        }
    )


def contents(made: Stream) -> list[int]:
    """All payloads of the stream, in order."""
    state = made.info().state
    if not state.messages:
        return []
    with made.ordered_consumer().messages(stop_after=state.messages) as messages:
        return [int(msg.data) for msg in messages]


def assert_empty(js: JetStream) -> None:
    loop = js._connection._loop
    js._connection.flush()
    assert not any(isinstance(entry.route, Window) for entry in loop.entries.values())


def test_rows_are_stored_in_their_order(js: JetStream) -> None:
    made = stream(js)
    published = js.publish_columns([batch(0, 1, 2), batch(), batch(3, 4)])
    assert published == (5, 0, 0, 1, 5, None)
    assert contents(made) == [0, 1, 2, 3, 4]
    assert js.publish_columns([]) == (0, 0, 0, 0, 0, None)


def test_a_table_of_all_columns(js: JetStream) -> None:
    made = stream(js, subjects=["a.>", "b.>"])
    table = pa.table(
        {
            "subject": ["a.1", "b.2", "a.3"],
            "data": ["one", None, "three"],
            "headers": pa.array(
                [[("K", ["x", "y"]), ("L", [])], None, [("K", ["z"])]],
                pa.map_(pa.string(), pa.list_(pa.string())),
            ),
            "msg_id": ["i1", "i2", None],
            "expected_last_subject_seq": [0, None, 0],
        }
    )
    assert js.publish_columns(table, expected_stream="S").stored == 3
    first, second, third = (made.get_msg(seq) for seq in (1, 2, 3))
    assert (first.subject, first.data) == ("a.1", b"one")
    assert first.headers is not None
    assert first.headers.get_all("K") == ["x", "y"]
    assert first.headers["Nats-Msg-Id"] == "i1"
    assert first.headers["Nats-Expected-Stream"] == "S"
    assert (second.subject, second.data) == ("b.2", b"")
    assert third.headers is not None
    assert "Nats-Msg-Id" not in third.headers


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_every_kind_of_text_and_part_of_a_table_is_taken(
    js: JetStream, kind: Any
) -> None:
    made = stream(js)
    table = pa.record_batch(
        {
            "subject": pa.array(["a.x", "a.b", "a.c", "a.x"]).cast(kind),
            "data": pa.array([None, b"1", b"23", None]),
            "headers": pa.array(
                [[("N", ["0"])], [("K", ["1", "2"])], None, [("N", ["0"])]],
                pa.map_(pa.string(), pa.list_(pa.string())),
            ),
        }
    ).slice(1, 2)
    assert js.publish_columns(table).stored == 2
    first, second = made.get_msg(1), made.get_msg(2)
    assert (first.subject, first.data, second.data) == ("a.b", b"1", b"23")
    assert first.headers is not None
    assert first.headers.get_all("K") == ["1", "2"]
    assert second.headers is None


def test_the_same_rows_again_are_duplicates_whatever_their_order(
    js: JetStream,
) -> None:
    made = stream(js)
    numbers = [*range(50), *range(25)]
    random.Random(1).shuffle(numbers)
    first = js.publish_columns(batch(*numbers), content_ids="job-")
    assert (first.stored, first.duplicates) == (75, 0)
    random.Random(2).shuffle(numbers)
    halves = [batch(*numbers[:40]), batch(*numbers[40:])]
    again = js.publish_columns(halves, content_ids="job-")
    assert (again.stored, again.duplicates) == (0, 75)
    assert (again.first_seq, again.last_seq) == (1, 75)
    assert js.publish_columns(batch(0), content_ids="other-").stored == 1
    assert len(contents(made)) == 76


def test_known_ids_are_not_published(js: JetStream) -> None:
    made = stream(js)
    js.publish_columns(batch(1, 2), content_ids="job-")
    msg = made.get_msg(2)
    assert msg.headers is not None
    known = {msg.headers["Nats-Msg-Id"].encode()}
    made.purge()
    again = js.publish_columns(batch(2, 3), content_ids="job-", known_ids=known)
    assert (again.stored, again.duplicates) == (1, 1)
    assert contents(made) == [3]


def test_a_refused_row_is_named_and_the_others_are_counted(js: JetStream) -> None:
    stream(js, max_msg_size=100)
    table = pa.record_batch(
        {"subject": ["a.b"] * 5, "data": [b"", b"", b"x" * 200, b"", b""]}
    )
    with pytest.raises(failures.PublishColumnsError) as told:
        js.publish_columns([batch(1, 2), table])
    error = told.value
    assert (error.row, error.subject, error.unknown) == (4, "a.b", 0)
    assert error.stored == 6
    assert isinstance(error.__cause__, failures.MessageTooLargeError)
    assert "row 4 for 'a.b'" in str(error)
    assert "6 rows are stored" in str(error)
    assert_empty(js)


def test_refused_rows_can_be_skipped(js: JetStream) -> None:
    made = stream(js, max_msg_size=100)
    table = pa.record_batch(
        {
            "subject": ["a.b", "a.b", "a..b", "nobody.here", None, "a.b", "a.b"],
            "data": [b"1", b"x" * 200, b"", b"", b"", b"x" * (2 << 20), b"2"],
        }
    )
    published = js.publish_columns(table, on_error="skip", retry_wait=0.01)
    assert (published.stored, published.refused) == (2, 5)
    assert published.first_refusal is not None
    assert contents(made) == [1, 2]


MANY = 4000  # more than have subjects of their own for their acks


def many(is_refused: Callable[[int], bool] = lambda number: False) -> Any:
    """Numbered rows; those to be refused are too long."""
    return pa.record_batch(
        {
            "data": [
                b"%0*d" % (200 if is_refused(number) else 1, number)
                for number in range(MANY)
            ]
        }
    )


@pytest.fixture
def replies(jetstream_server: Server) -> Iterator[list[str]]:
    """Where the acks go of all that is published meanwhile."""
    told: list[str] = []
    with jsclient.connect(jetstream_server.url) as nc:
        spy = nc.subscribe("a.>", callback=lambda msg: told.append(msg.reply or ""))
        nc.flush()
        yield told
        spy.unsubscribe()


def test_many_rows_with_ids_share_subjects_for_their_acks(
    js: JetStream, replies: list[str]
) -> None:
    made = stream(js)
    published = js.publish_columns(many(), subject="a.b", content_ids="job-")
    assert (published.stored, published.duplicates) == (MANY, 0)
    assert (published.first_seq, published.last_seq) == (1, MANY)
    assert contents(made) == list(range(MANY))
    until(lambda: len(replies) == MANY, "the spy has seen all")
    # At first each has its own. Then eight have one.
    alike = [one == other for one, other in pairwise(replies)]
    assert not any(alike[:400])
    assert sum(alike) > MANY / 2
    assert_empty(js)


@pytest.mark.parametrize(
    "fields",
    [
        {"duplicate_window": 8.0},  # it would forget them too soon
        {"sources": [jsclient.StreamSource(name="T")]},  # it knows no ids at all
    ],
)
def test_rows_that_the_stream_may_forget_do_not_share(
    js: JetStream, replies: list[str], fields: dict[str, Any]
) -> None:
    js.create_stream(name="T", subjects=["t"], storage="memory")
    stream(js, **fields)
    assert js.publish_columns(many(), subject="a.b", content_ids="job-").stored == MANY
    until(lambda: len(replies) == MANY, "the spy has seen all")
    assert not any(one == other for one, other in pairwise(replies))


def test_a_refused_row_among_many_is_named(js: JetStream) -> None:
    made = stream(js, max_msg_size=150)
    table = many(lambda number: number == 3001)
    with pytest.raises(failures.PublishColumnsError) as told:
        js.publish_columns(table, subject="a.b", content_ids="job-")
    assert told.value.row == 3001
    assert isinstance(told.value.__cause__, failures.MessageTooLargeError)
    found = contents(made)
    assert found[:3001] == list(range(3001))
    error = told.value
    assert error.stored + error.duplicates <= len(found)
    assert error.stored + error.duplicates + error.unknown >= len(found)


def test_refused_rows_among_many_are_skipped(js: JetStream) -> None:
    made = stream(js, max_msg_size=150)
    # Alone, several in a row, and all of those that share.
    bad = {700, 1501, 1502, *range(2000, 2030), MANY - 1}
    table = many(bad.__contains__)
    published = js.publish_columns(
        table, subject="a.b", content_ids="job-", on_error="skip"
    )
    assert published.refused == len(bad)
    assert published.stored + published.duplicates == MANY - len(bad)
    assert published.first_refusal is not None
    assert sorted(contents(made)) == [n for n in range(MANY) if n not in bad]


def test_another_stream_refuses(js: JetStream) -> None:
    stream(js)
    with pytest.raises(failures.PublishColumnsError) as told:
        js.publish_columns(batch(1), expected_stream="OTHER")
    assert isinstance(told.value.__cause__, failures.ExpectedStreamError)
    assert told.value.stored == 0


def test_a_subject_without_a_stream_is_refused_after_retries(js: JetStream) -> None:
    with pytest.raises(failures.PublishColumnsError) as told:
        js.publish_columns(batch(1, subject="nobody"), retry_wait=0.05)
    assert isinstance(told.value.__cause__, failures.NoStreamResponseError)


def test_a_stream_that_comes_later_gets_the_rows(js: JetStream) -> None:
    later = threading.Timer(0.3, stream, [js])
    later.start()
    published = js.publish_columns(batch(1, 2), retries=100, retry_wait=0.05)
    later.join()
    assert published.stored == 2


@pytest.mark.parametrize(
    ("columns", "given", "problem"),
    [
        ({"data": [b""]}, {}, "column 'subject'"),
        ({"data": [b""], "subject": ["a"]}, {"subject": "a.b"}, "not both"),
        ({"subject": ["a.b"]}, {}, "no column 'data'"),
        ({"data": [b""], "sequence": [1]}, {"subject": "a.b"}, "'sequence' has no"),
        ({"data": [1]}, {"subject": "a.b"}, "'data' must be binary or text"),
        ({"data": [b""], "subject": [b"a"]}, {}, "'subject' must be text"),
        ({"data": [b""], "headers": ["x"]}, {"subject": "a.b"}, "'headers' must be a"),
        ({"data": [b""]}, {"subject": "a..b"}, "empty tokens"),
        ({"data": [b""]}, {"subject": "a.b", "window": 0}, "window"),
        ({"data": [b""]}, {"subject": "a.b", "on_error": "log"}, "on_error"),
        (
            {"data": [b""], "expected_last_seq": ["1"]},
            {"subject": "a.b"},
            "'expected_last_seq' must be a whole number",
        ),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_sent(
    js: JetStream, columns: Any, given: dict[str, Any], problem: str
) -> None:
    made = stream(js)
    with pytest.raises((ValueError, TypeError), match=problem):
        js.publish_columns(pa.record_batch(columns), **given)
    assert contents(made) == []
    assert_empty(js)


@pytest.mark.parametrize("columns", [7, ["text"], [None]])
def test_what_is_no_table_is_refused(js: JetStream, columns: Any) -> None:
    with pytest.raises(TypeError, match="pyarrow"):
        js.publish_columns(columns, subject="a.b")


def test_an_iterable_that_fails_is_heard(js: JetStream) -> None:
    stream(js)

    def broken() -> Iterator[Any]:
        yield batch(1)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        js.publish_columns(broken())
    assert_empty(js)


def test_no_more_than_the_window_is_under_way(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js)
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url) as nc,
    ):
        proxy.set("s2c", stall=True)
        result: list[Any] = []
        worker = threading.Thread(
            target=lambda: result.append(
                nc.jetstream().publish_columns(batch(*range(50)), window=5)
            )
        )
        worker.start()
        until(lambda: made.info().state.messages == 5, "the window is full")
        assert nc._loop.outbox.messages == 5
        proxy.set("s2c")
        worker.join(PATIENCE)
        assert result[0].stored == 50


def test_silence_is_an_unknown_outcome(jetstream_server: Server, js: JetStream) -> None:
    stream(js)
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url) as nc,
    ):
        proxy.set("s2c", stall=True)
        with pytest.raises(failures.PublishColumnsError) as told:
            nc.jetstream().publish_columns(batch(1, 2, 3), timeout=0.3)
        assert isinstance(told.value.__cause__, failures.PublishTimeoutError)
        assert (told.value.row, told.value.stored, told.value.unknown) == (0, 0, 3)
        proxy.set("s2c")


def test_without_ids_nothing_is_sent_twice_after_a_lost_link(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js)
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=0.05) as nc,
    ):
        proxy.set("s2c", stall=True)

        def cut_when_stored() -> None:
            until(lambda: made.info().state.messages == 3, "all are stored")
            proxy.cut()

        cut = threading.Thread(target=cut_when_stored)
        cut.start()
        with pytest.raises(failures.PublishColumnsError) as told:
            nc.jetstream().publish_columns(batch(1, 2, 3))
        cut.join()
        cause = told.value.__cause__
        assert isinstance(cause, failures.PublishOutcomeUnknownError)
        assert told.value.unknown == 3
        proxy.set("s2c")
    assert contents(made) == [1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "away"),
    [({"sources": [{"name": "ORIGIN"}]}, 0.0), ({"duplicate_window": 0.1}, 0.6)],
)
def test_rows_whose_ids_the_stream_has_forgotten_are_not_sent_again(
    jetstream_server: Server, js: JetStream, fields: dict[str, Any], away: float
) -> None:
    js.create_stream(name="ORIGIN", storage="memory")
    made = stream(js, **fields)
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=0.02) as nc,
    ):
        proxy.set("s2c", stall=True)

        def cut_when_stored() -> None:
            until(lambda: made.info().state.messages == 3, "all are stored")
            proxy.refuse = True
            proxy.cut()
            time.sleep(away)  # the stream's clock runs on
            proxy.set("s2c")
            proxy.refuse = False

        cut = threading.Thread(target=cut_when_stored)
        cut.start()
        with pytest.raises(failures.PublishColumnsError) as told:
            nc.jetstream().publish_columns(batch(1, 2, 3), content_ids="job-")
        cut.join()
        assert isinstance(told.value.__cause__, failures.PublishDisconnectedError)
        assert (told.value.row, told.value.stored, told.value.unknown) == (0, 0, 3)
    assert contents(made) == [1, 2, 3]


def test_with_ids_a_lost_link_costs_nothing(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js)
    told = Events()
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url, reconnect_wait=0.05, on_event=told) as nc,
    ):
        stop = threading.Event()

        def cut() -> None:
            while not stop.wait(0.15):
                proxy.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            published = nc.jetstream().publish_columns(
                slowly(60), content_ids="job-", expected_stream="S"
            )
        finally:
            stop.set()
            cutter.join()
        assert published.stored + published.duplicates == 6000
        assert told.of(jsclient.events.Reconnected)
    assert sorted(contents(made)) == list(range(6000))


def slowly(count: int) -> Iterator[Any]:
    for number in range(count):
        yield batch(*range(100 * number, 100 * number + 100))
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_server_neither_loses_nor_doubles_rows_with_ids(
    tmp_path: Any,
) -> None:
    with (
        run(jetstream=True, store_dir=tmp_path) as server,
        jsclient.connect(server.url, reconnect_wait=0.05) as nc,
    ):
        js = nc.jetstream()
        made = stream(js, storage="file")
        killer = threading.Timer(0.4, kill_and_restart, [server])
        killer.start()
        published = js.publish_columns(slowly(60), content_ids="job-")
        killer.join()
        assert published.stored + published.duplicates == 6000
        found = contents(made)
        assert len(found) == len(set(found)), "nothing twice"
        assert sorted(found) == list(range(6000)), "nothing lost"


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_falling_leaders_neither_lose_nor_double_rows_with_ids() -> None:
    with run(cluster=3, jetstream=True) as cluster:
        with jsclient.connect(cluster.urls, reconnect_wait=0.05) as nc:
            js = nc.jetstream(timeout=PATIENCE)
            made = stream(js, num_replicas=3, storage="file")
            trouble = threading.Thread(target=overthrow, args=[cluster, js, made])
            trouble.start()
            published = js.publish_columns(
                slowly(100), content_ids="job-", retries=100, timeout=60.0
            )
            trouble.join()
            assert published.stored + published.duplicates == 10_000
        with jsclient.connect(cluster.urls) as other:
            found = contents(other.jetstream(timeout=PATIENCE).stream("S"))
        assert len(found) == len(set(found)), "nothing twice"
        assert sorted(found) == list(range(10_000)), "nothing lost"


def overthrow(cluster: Cluster, js: JetStream, made: Stream) -> None:
    """Lets the leader of the stream step down, and kills the next one."""
    for _ in range(2):
        time.sleep(0.4)
        js._api.call("STREAM.LEADER.STEPDOWN.S", doing="move the leader")
    time.sleep(0.4)
    info = made.info().cluster
    leader = cluster.servers[int(info.leader[1:])] if info and info.leader else None
    if leader is not None:
        leader.kill()
        time.sleep(0.5)
        leader.restart(timeout=PATIENCE)


def kill_and_restart(server: Server) -> None:
    server.kill()
    time.sleep(0.2)
    server.restart()


def test_closing_the_connection_ends_it(
    jetstream_server: Server, js: JetStream
) -> None:
    made = stream(js)
    with (
        FaultProxy("127.0.0.1", jetstream_server.port) as proxy,
        jsclient.connect(proxy.url) as nc,
    ):
        proxy.set("s2c", stall=True)

        def close_when_stored() -> None:
            until(lambda: made.info().state.messages == 2, "all are stored")
            nc.close()

        closer = threading.Thread(target=close_when_stored)
        closer.start()
        with pytest.raises(failures.PublishColumnsError) as told:
            nc.jetstream().publish_columns(batch(1, 2), content_ids="job-")
        closer.join()
        assert told.value.unknown == 2
        with pytest.raises(errors.ConnectionClosedError):
            nc.jetstream().publish_columns(batch(1))


def test_two_threads_publish_on_one_connection(js: JetStream) -> None:
    made = stream(js)

    def work(first: int) -> None:
        numbers = range(first, first + 5000)
        js.publish_columns(batch(*numbers), content_ids=f"{first}-", window=100)

    threads = [threading.Thread(target=work, args=[first]) for first in (0, 5000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(contents(made)) == list(range(10_000))
