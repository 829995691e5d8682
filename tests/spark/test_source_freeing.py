"""Work queues and interest streams: messages go when their batch is committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import jsclient.spark
from jsclient.jetstream import JetStream
from jsclient.server import Server, run
from jsclient.spark import connecting
from jsclient.spark.errors import OptionError
from tests.spark.readers import SEQUENCE, Readers, between, fill, made, since_42

pytestmark = [pytest.mark.live, since_42]


@pytest.fixture
def readers(jetstream_server: Server, js: JetStream) -> Iterator[Readers]:
    yield Readers(jetstream_server.url)
    connecting.close_all()


def run_query(readers: Readers, start: Any = None, **options: Any) -> tuple[Any, Any]:
    """What an AvailableNow query reads, and its end; commits are as late as Spark's."""
    reader = readers.stream(SEQUENCE, **options)
    reader.prepareForTriggerAvailableNow()
    position = reader.initialOffset() if start is None else start
    found: list[list[int]] = []
    while (end := reader.latestOffset(position, reader.getDefaultReadLimit())) != (
        position
    ):
        if found:
            reader.commit(position)
        found.append(between(reader, position, end))
        position = end
    return found, position


def test_a_work_queue_is_emptied_batch_by_batch(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js, retention="workqueue")
    fill(js, 1000)
    options = {"consume": "purge", "maxRecordsPerTrigger": 300}
    found, end = run_query(readers, **options)
    assert [seq for one in found for seq in one] == list(range(1, 1001))
    # Spark does not commit the last batch: it can still be read again.
    assert stream.info().state.first_seq == 901
    jsclient.spark.commit_final(readers.given(options), end)
    assert stream.info().state.messages == 0
    fill(js, 10)
    found, end = run_query(readers, end, **options)
    assert found == [list(range(1001, 1011))]


def test_only_the_subjects_that_were_read_are_purged(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js, retention="workqueue")
    fill(js, 40)
    options = {"consume": "purge", "subject": "s.1,s.2"}
    found, end = run_query(readers, **options)
    assert sum(map(len, found)) == 20
    jsclient.spark.commit_final(readers.given(options), end)
    left = stream.info(subjects=">").state.subjects
    assert left == {"s.0": 10, "s.3": 10}


def test_a_query_frees_first_what_its_last_run_has_left(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js, retention="workqueue")
    fill(js, 10)
    options = {"consume": "purge"}
    _, end = run_query(readers, **options)  # and its process is gone
    assert stream.info().state.messages == 10
    # A batch that is done again is not done before it ends.
    again = readers.stream(SEQUENCE, **options)
    start = {**end, "next": 1, "origin": 1}
    assert between(again, start, end) == list(range(1, 11))
    assert again.latestOffset(end, again.getDefaultReadLimit()) == end
    assert stream.info().state.messages == 10
    found, end = run_query(readers, end, **options)
    assert found == []
    assert stream.info().state.messages == 0


@pytest.mark.parametrize(
    ("denied", "fields", "options"),
    [
        (
            "$JS.API.STREAM.PURGE.>",
            {"retention": "workqueue"},
            {"consume": "purge"},
        ),
        (
            "$JS.API.CONSUMER.CREATE.>",
            {"retention": "interest"},
            {"consume": "reset", "anchor": "a"},
        ),
    ],
)
def test_a_user_who_may_not_free_messages_is_told_which_option_needs_it(
    denied: str, fields: dict[str, Any], options: dict[str, str]
) -> None:
    limited = {
        "user": "u",
        "password": "p",
        "permissions": {"publish": {"deny": [denied]}},
    }
    admin = {"user": "a", "password": "a"}
    with run(jetstream=True, users=[admin, limited]) as server:
        url = f"nats://127.0.0.1:{server.port}"
        with jsclient.connect(url, user="a", password="a") as nc:
            made(nc.jetstream(), **fields)
            readers = Readers(url)
            reader = readers.stream(user="u", password="p", **options)
            with pytest.raises(OptionError, match=r"option consume: .* not allowed"):
                reader.commit({**reader.initialOffset(), "next": 1})
        connecting.close_all()


def test_an_interest_stream_keeps_what_is_not_committed(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js, retention="interest")
    options = {"consume": "reset", "anchor": "query-1", "maxRecordsPerTrigger": 30}
    readers.stream(**options).initialOffset()  # from now on messages are kept
    fill(js, 100)
    assert stream.info().state.messages == 100
    found, end = run_query(readers, **options)
    assert [seq for one in found for seq in one] == list(range(1, 101))
    state = stream.info().state
    assert (state.first_seq, state.messages) == (91, 10)
    jsclient.spark.commit_final(readers.given(options), end)
    assert stream.info().state.messages == 0
    fill(js, 10)
    assert stream.info().state.messages == 10
    found, end = run_query(readers, end, **options)
    assert found == [list(range(101, 111))]
    assert len(stream.consumer_names()) == 1


def test_another_reader_of_an_interest_stream_loses_nothing(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js, retention="interest")
    other = stream.create_consumer(durable_name="other")
    options = {"consume": "reset", "anchor": "a"}
    readers.stream(**options).initialOffset()
    fill(js, 20)
    _, end = run_query(readers, **options)
    jsclient.spark.commit_final(readers.given(options), end)
    assert len(other.fetch(20)) == 20


def test_a_move_of_the_anchor_that_was_cut_short_is_made_good(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js, retention="interest")
    options = {"consume": "reset", "anchor": "a"}
    reader = readers.stream(**options)
    start = reader.initialOffset()
    fill(js, 20)
    # The next anchor was made, the last one was not deleted.
    stream.create_consumer(
        durable_name="a_11", deliver_policy="by_start_sequence", opt_start_seq=11
    )
    end = {**start, "next": 11}
    readers.stream(**options).commit(end)
    assert stream.consumer_names() == ["a_11"]
    assert stream.info().state.first_seq == 11


def test_a_stream_that_was_made_again_is_not_purged(
    js: JetStream, readers: Readers
) -> None:
    made(js, retention="workqueue")
    fill(js, 10)
    options = {"consume": "purge"}
    _, end = run_query(readers, **options)
    js.delete_stream("S")
    stream = made(js, retention="workqueue")
    fill(js, 5)
    jsclient.spark.commit_final(readers.given(options), end)
    assert stream.info().state.messages == 5


@pytest.mark.parametrize(
    ("fields", "options", "says"),
    [
        ({}, {"consume": "purge"}, "retention workqueue; that of 'S' is limits"),
        ({"retention": "interest"}, {"consume": "purge"}, "is interest"),
        ({}, {"consume": "reset", "anchor": "a"}, "retention interest"),
        (
            {"retention": "workqueue", "deny_purge": True},
            {"consume": "purge"},
            "deny_purge",
        ),
    ],
)
def test_a_stream_of_another_kind_is_refused(
    js: JetStream,
    readers: Readers,
    fields: dict[str, Any],
    options: dict[str, str],
    says: str,
) -> None:
    made(js, **fields)
    with pytest.raises(OptionError, match=f"option consume: .*{says}"):
        readers.stream(**options).initialOffset()


def test_without_the_option_a_final_commit_does_nothing(
    js: JetStream, readers: Readers
) -> None:
    stream = made(js)
    fill(js, 10)
    end = readers.stream().initialOffset() | {"next": 11}
    jsclient.spark.commit_final(readers.given({}), end)
    assert stream.info().state.messages == 10
    with pytest.raises(OptionError, match="end_offset"):
        jsclient.spark.commit_final(readers.given({}), "{}")
