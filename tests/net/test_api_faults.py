"""Management and reading against a JetStream that is broken, old, large or away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from tests.harness.scripted import Peer, ScriptedServer, Step, close, handshake, wait
from tests.net.client import TIMEOUT, Recorder, connected
from tests.net.jetstream_peer import Answer, Request, answering

STREAM = {
    "config": {"name": "S", "subjects": ["s.>"], "retention": "limits"},
    "created": "2024-01-01T00:00:00Z",
    "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0},
}
DIRECT = {**STREAM, "config": {**STREAM["config"], "allow_direct": True}}  # type: ignore[dict-item]
CONSUMER = {
    "stream_name": "S",
    "name": "C",
    "config": {"name": "C", "ack_policy": "explicit", "deliver_policy": "all"},
}


@contextmanager
def jetstream(
    answer: Answer, *, info: dict[str, object] | None = None, timeout: float = TIMEOUT
) -> Iterator[JetStream]:
    """A JetStream context on a peer that answers by this function."""
    with (
        ScriptedServer([handshake(info), answering(answer)]) as server,
        connected(server.url) as nc,
    ):
        yield nc.jetstream(timeout=timeout)


def always(answer: object) -> Answer:
    """The same JSON for every request."""
    return lambda request: [request.json(answer)]


class Asked:
    """Answers by a function, and remembers the requests."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Iterable[bytes]:
        self.requests.append(request)
        return self._answer(request)

    @property
    def subjects(self) -> list[str]:
        return [request.subject for request in self.requests]


# Answers that are none ----------------------------------------------------------------

GARBAGE = (
    b"",
    b"hello",
    b"[]",
    b"17",
    b"null",
    b'{"config"',
    b"\xff\xfe",
    b"[" * 20_000,
    b"{}",
    b'{"config":null,"state":[]}',
    b'{"config":{"name":7},"name":[],"stream_name":{}}',
)


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_an_answer_that_is_none_is_a_server_error_that_says_what_was_done(
    data: bytes,
) -> None:
    with jetstream(lambda request: [request.raw(data)]) as js:
        for call, doing in (
            (lambda: js.stream("S"), "look up stream 'S'"),
            (lambda: js.create_stream(name="S"), "create stream 'S'"),
            (lambda: js.consumer("S", "C"), "look up consumer 'C' of stream 'S'"),
            (lambda: js.create_consumer("S", name="C"), "create consumer 'C'"),
        ):
            with pytest.raises(jsclient.ServerError, match=doing):
                call()


@pytest.mark.parametrize("entry", [None, 7, "S", [], {}])
def test_a_list_of_anything_else_than_streams_is_a_server_error(entry: object) -> None:
    answer = {"total": 1, "limit": 256, "streams": [entry], "consumers": [entry]}
    with jetstream(always(answer)) as js:
        with pytest.raises(jsclient.ServerError, match="list the streams"):
            js.streams()
        with pytest.raises(jsclient.ServerError, match="list the consumers"):
            js.consumers("S")


@pytest.mark.parametrize(
    "message",
    [
        None,
        {},
        {"subject": "s", "seq": 1, "data": "!", "time": "2024-01-01T00:00:00Z"},
        {"subject": "s", "seq": 1, "data": "QQ=", "time": "2024-01-01T00:00:00Z"},
        {"subject": "s", "seq": 1, "time": "yesterday"},
        {"subject": "s", "seq": "x", "time": "2024-01-01T00:00:00Z"},
        {"subject": "s", "seq": 1, "hdrs": 5, "time": "2024-01-01T00:00:00Z"},
    ],
)
def test_a_stored_message_that_is_malformed_is_a_server_error(message: object) -> None:
    def answer(request: Request) -> list[bytes]:
        if ".INFO." in request.subject:
            return [request.json(STREAM)]
        return [request.json({"message": message})]

    with jetstream(answer) as js:
        stream = js.stream("S")
        with pytest.raises(jsclient.ServerError, match="read a message of stream 'S'"):
            stream.get_msg(1)


def test_a_direct_message_without_its_sequence_is_a_server_error() -> None:
    def answer(request: Request) -> list[bytes]:
        if ".INFO." in request.subject:
            return [request.json(DIRECT)]
        return [request.message([("Nats-Subject", "s"), ("Nats-Sequence", "x")])]

    with jetstream(answer) as js:
        stream = js.stream("S")
        with pytest.raises(jsclient.ServerError, match="read a message of stream 'S'"):
            stream.get_msg(1)


def test_no_answer_is_a_timeout_and_never_not_found() -> None:
    with jetstream(lambda _: [], timeout=0.1) as js:
        for call in (
            lambda: js.stream("S"),
            lambda: js.delete_stream("S"),
            lambda: js.consumer("S", "C"),
            lambda: js.stream_names(),
            lambda: js.streams(timeout=0.1),
            lambda: js.consumers("S", timeout=0.1),
        ):
            with pytest.raises(jsclient.TimeoutError) as caught:
                call()
            assert not isinstance(caught.value, jsclient.ConnectionError)


# JetStream is away for a moment -------------------------------------------------------


def after(count: int, first: Answer, then: Answer) -> Asked:
    """The first answers `count` requests, the other one all later ones."""
    asked = Asked(
        lambda request: (first if len(asked.requests) <= count else then)(request)
    )
    return asked


@pytest.mark.parametrize(
    ("code", "err_code", "text"),
    [
        (503, 10004, "incomplete results"),
        (503, 10008, "unavailable"),
        (500, 10009, "JetStream cluster can not handle request"),
        # A young cluster: the leader has not heard of its servers yet.
        (400, 10005, "no suitable peers for placement, peer offline"),
    ],
)
def test_calls_are_repeated_while_jetstream_has_no_leader(
    code: int, err_code: int, text: str
) -> None:
    answer = after(
        2,
        lambda request: [request.error(code, err_code, text)],
        always({**STREAM, **CONSUMER, "success": True, "purged": 3}),
    )
    calls: list[Callable[[JetStream], object]] = [
        lambda js: js.create_stream(name="S"),
        lambda js: js.delete_stream("S"),
        lambda js: js.purge_stream("S"),
        lambda js: js.delete_consumer("S", "C"),
    ]
    with jetstream(answer) as js:
        for call in calls:
            answer.requests.clear()
            call(js)
            assert len(set(answer.subjects)) == 1
            assert len(answer.requests) == 3


def test_what_jetstream_says_while_it_is_away_is_raised_at_the_deadline() -> None:
    answer = Asked(lambda request: [request.error(503, 10008, "unavailable")])
    with jetstream(answer) as js:
        with pytest.raises(failures.JetStreamUnavailableError) as caught:
            js.account_info(timeout=1.0)
        assert caught.value.err_code == 10008
        assert len(answer.requests) > 2


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (503, 10023, failures.InsufficientResourcesError),
        (503, 10077, failures.StreamStoreFailedError),
        (503, 10039, failures.JetStreamNotEnabledError),
        (503, 10076, failures.JetStreamNotEnabledError),
        (400, 10005, failures.JetStreamUnavailableError),
        (404, 10059, failures.StreamNotFoundError),
        (503, 19999, failures.ApiError),
        (500, 0, failures.ApiError),
    ],
)
def test_a_refusal_that_lasts_is_raised_at_once(
    code: int, err_code: int, kind: type[failures.ApiError]
) -> None:
    answer = Asked(lambda request: [request.error(code, err_code, "because")])
    with jetstream(answer) as js:
        with pytest.raises(kind, match="look up stream 'S': because") as caught:
            js.stream("S")
        error = caught.value
        assert (error.code, error.err_code) == (code, err_code)
        assert error.description == "because"
        assert len(answer.requests) == 1


def test_no_responders_on_a_server_without_jetstream_is_told_at_once() -> None:
    answer = Asked(lambda request: [request.status("503")])
    with jetstream(answer, info={"jetstream": None}) as js:
        with pytest.raises(failures.JetStreamNotEnabledError) as caught:
            js.account_info()
        assert caught.value.code == 503
        assert len(answer.requests) == 1


def test_no_responders_on_a_server_with_jetstream_pass() -> None:
    answer = after(2, lambda request: [request.status("503")], always(STREAM))
    with jetstream(answer) as js:
        assert js.stream("S").name == "S"
        assert len(answer.requests) == 3


@pytest.mark.parametrize(
    ("options", "prefix"),
    [({"domain": "hub"}, r"\$JS\.hub\.API"), ({"prefix": "wrong"}, "wrong")],
)
def test_a_prefix_that_nobody_has_answered_at_is_named_and_not_waited_for(
    options: dict[str, Any], prefix: str
) -> None:
    answer = Asked(lambda request: [request.status("503")])
    with (
        ScriptedServer([handshake(), answering(answer)]) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream(**options, timeout=10.0)
        with pytest.raises(
            failures.JetStreamNotEnabledError,
            match=f"no JetStream answers at '{prefix}'",
        ):
            js.account_info()
        # To the deadline there would be four times as many.
        assert 1 < len(answer.requests) <= 6


def test_a_prefix_that_somebody_has_answered_at_is_right() -> None:
    def answer(request: Request) -> list[bytes]:
        # Away after the first answer, for more pauses than there are in a second.
        is_away = 1 < len(asked.requests) <= 7
        return [request.status("503") if is_away else request.json(STREAM)]

    asked = Asked(answer)
    with (
        ScriptedServer([handshake(), answering(asked)]) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream(domain="hub", timeout=60.0)
        assert js.stream("S").name == "S"
        assert js.stream("S").name == "S"
        assert len(asked.requests) == 8


def test_what_may_be_done_twice_is_asked_again_after_a_silence() -> None:
    answer = after(1, lambda _: [], always(STREAM))
    with jetstream(answer) as js:
        assert js.stream("S").name == "S"
        first, second = answer.requests
        assert first == second  # the same inbox: whichever is answered first counts
        answer.requests.clear()
        with pytest.raises(jsclient.TimeoutError, match="delete stream 'S'"):
            js.delete_stream("S", timeout=1.5)
        assert len(answer.requests) == 1


# A link that is cut -------------------------------------------------------------------

# Repeating these changes nothing.
SAFE: dict[str, Callable[[JetStream], object]] = {
    "account_info": lambda js: js.account_info(),
    "create_stream": lambda js: js.create_stream(name="S"),
    "stream": lambda js: js.stream("S"),
    "purge_stream": lambda js: js.purge_stream("S", sequence=7),
    "streams": lambda js: js.streams(),
    "stream_names": lambda js: js.stream_names(),
    "create_consumer": lambda js: js.create_consumer("S", name="C"),
    "consumer": lambda js: js.consumer("S", "C"),
    "consumers": lambda js: js.consumers("S"),
    "consumer_names": lambda js: js.consumer_names("S"),
    "resume_consumer": lambda js: js.resume_consumer("S", "C"),
}
UNSAFE: dict[str, Callable[[JetStream], object]] = {
    "delete_stream": lambda js: js.delete_stream("S"),
    "delete_consumer": lambda js: js.delete_consumer("S", "C"),
    # They would take what came after the first time.
    "purge_stream": lambda js: js.purge_stream("S"),
    "purge_subject": lambda js: js.purge_stream("S", subject="s.a", keep=1),
}
EVERYTHING = {**STREAM, **CONSUMER, "success": True, "total": 0}


def cut_after(requests: int) -> list[Step]:
    """Takes so many requests, answers none, and ends the link."""
    return [handshake(), answering(lambda _: [], count=requests), close()]


@pytest.mark.parametrize("name", SAFE)
def test_a_call_that_may_be_repeated_goes_on_after_a_reconnect(name: str) -> None:
    with (
        ScriptedServer(
            cut_after(1), [handshake(), answering(always(EVERYTHING))]
        ) as server,
        connected(server.url) as nc,
    ):
        SAFE[name](nc.jetstream())
        assert server.connections == 2


@pytest.mark.parametrize("name", UNSAFE)
def test_a_call_that_must_not_be_repeated_tells_of_the_lost_link(name: str) -> None:
    answer = Asked(always(EVERYTHING))
    with (
        ScriptedServer(cut_after(1), [handshake(), answering(answer)]) as server,
        connected(server.url) as nc,
    ):
        with pytest.raises(jsclient.DisconnectedError, match="may be done or not"):
            UNSAFE[name](nc.jetstream())
        nc.jetstream().account_info()
        assert answer.subjects == ["$JS.API.INFO"]


def test_what_handles_change_must_not_be_repeated() -> None:
    known = [
        handshake(),
        answering(always(EVERYTHING), count=2),
        answering(lambda _: [], count=1),
        close(),
    ]
    with (
        ScriptedServer(known, known, known, [handshake()]) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream()
        stream, consumer = js.stream("S"), js.consumer("S", "C")
        with pytest.raises(jsclient.DisconnectedError, match="delete message 7"):
            stream.delete_msg(7)
        stream.info(), consumer.info()
        with pytest.raises(jsclient.DisconnectedError, match="reset consumer 'C'"):
            consumer.reset()
        stream.info(), consumer.info()
        with pytest.raises(jsclient.DisconnectedError, match="unpin group 'g'"):
            consumer.unpin("g")


def test_a_call_waits_for_the_next_link_within_its_deadline() -> None:
    recorder = Recorder()
    answer = Asked(always(EVERYTHING))
    late: list[Step] = [wait("up"), handshake(), answering(answer)]
    with (
        ScriptedServer([handshake(), wait("down"), close()], late) as server,
        connected(server.url, on_event=recorder) as nc,
    ):
        js = nc.jetstream()
        server.release("down")
        recorder.wait_for(jsclient.Disconnected)
        with pytest.raises(jsclient.TimeoutError, match="not sent"):
            js.delete_stream("S", timeout=0.1)
        # Even one that must not be repeated: nothing of it was sent before.
        timer = threading.Timer(0.1, server.release, ["up"])
        timer.start()
        js.delete_stream("S", timeout=TIMEOUT)
        timer.join()
        assert answer.subjects == ["$JS.API.STREAM.DELETE.S"]


def test_a_call_ends_when_the_connection_is_closed() -> None:
    with ScriptedServer([handshake(), answering(lambda _: [])]) as server:
        nc = connected(server.url)
        threading.Timer(0.1, nc.close).start()
        with nc, pytest.raises(jsclient.ConnectionClosedError):
            nc.jetstream(timeout=30.0).stream("S")
        with pytest.raises(jsclient.ConnectionClosedError):
            nc.jetstream().stream("S")


# Pages --------------------------------------------------------------------------------


def paged(key: str, entries: list[Any], limit: int) -> Answer:
    """A server that lists these, at most `limit` of them at once."""

    def answer(request: Request) -> list[bytes]:
        offset = request.body["offset"]
        page = {"total": len(entries), "offset": offset, "limit": limit}
        page[key] = entries[offset : offset + limit]
        return [request.json(page)]

    return answer


def a_stream(name: str) -> dict[str, Any]:
    return {**STREAM, "config": {"name": name}}


def test_every_page_of_a_list_is_read() -> None:
    names = [f"S{number}" for number in range(2500)]
    answer = Asked(paged("streams", names, 1024))
    with jetstream(answer) as js:
        assert js.stream_names() == names
        assert [request.body["offset"] for request in answer.requests] == [
            0,
            1024,
            2048,
        ]
    infos = [{**CONSUMER, "name": f"C{number}"} for number in range(300)]
    with jetstream(paged("consumers", infos, 256)) as js:
        assert [found.name for found in js.consumers("S")] == [
            info["name"] for info in infos
        ]


def test_entries_that_are_missing_from_a_page_are_told_and_not_read_again() -> None:
    names = [f"S{number}" for number in range(300)]

    def answer(request: Request) -> list[bytes]:
        offset = request.body["offset"]
        here = names[offset : offset + 256]
        missing = here[:6] if offset == 0 else []
        page = {
            "total": 300,
            "offset": offset,
            "limit": 256,
            "streams": [a_stream(name) for name in here if name not in missing],
            "missing": missing or None,
        }
        return [request.json(page)]

    asked = Asked(answer)
    with jetstream(asked) as js:
        found = js.streams()
    assert [stream.name for stream in found] == names[6:]
    assert found.missing == tuple(names[:6])
    assert len(asked.requests) == 2


@pytest.mark.parametrize("limit", [256, 0, -5, None, "many"])
def test_a_list_whose_entries_are_all_missing_ends(limit: object) -> None:
    page = {"total": 3, "limit": limit, "streams": None, "missing": ["A", "B", "C"]}
    asked = Asked(always(page))
    with jetstream(asked) as js:
        found = js.streams()
    assert found == []
    assert found.missing == ("A", "B", "C")
    assert len(asked.requests) == 1


def test_a_list_that_promises_more_than_it_has_ends() -> None:
    asked = Asked(always({"total": 1_000_000, "limit": 256, "streams": []}))
    with jetstream(asked) as js:
        assert js.streams() == []
    assert len(asked.requests) == 1


@pytest.mark.parametrize("answer", [{}, {"streams": None, "consumers": None}])
def test_null_lists_are_empty(answer: dict[str, object]) -> None:
    with jetstream(always({**answer, "total": 0, "limit": 1024})) as js:
        assert js.stream_names() == []
        assert js.streams() == []
        assert js.consumer_names("S") == []
        assert js.consumers("S") == []


def test_all_pages_together_have_one_deadline() -> None:
    pause = threading.Event()

    def answer(request: Request) -> list[bytes]:
        pause.wait(0.06)
        key = request.subject.split(".")[2].lower() + "s"
        entry: object = "S"
        if ".LIST" in request.subject:
            entry = STREAM if key == "streams" else CONSUMER
        return [request.json({"total": 1_000_000, "limit": 1, key: [entry]})]

    calls: list[Callable[[JetStream], object]] = [
        lambda js: js.stream_names(),
        lambda js: js.consumer_names("S"),
        lambda js: js.streams(timeout=0.3),
        lambda js: js.consumers("S", timeout=0.3),
    ]
    for call in calls:
        with (
            jetstream(answer, timeout=0.3) as js,
            pytest.raises(jsclient.TimeoutError, match="list the"),
        ):
            call(js)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["streams", "consumers"])
def test_each_page_that_a_cluster_gathers_has_its_time_and_is_asked_for_once(
    kind: str,
) -> None:
    # A server that waits for another one, page by page: together for longer than any
    # one page may take, and for longer than other calls would before they ask again.
    pages, pause = 5, threading.Event()

    def answer(request: Request) -> list[bytes]:
        pause.wait(1.1)
        entry = STREAM if kind == "streams" else CONSUMER
        return [request.json({"total": pages, "limit": 1, kind: [entry]})]

    asked = Asked(answer)
    with jetstream(asked, timeout=0.1) as js:
        found = js.streams() if kind == "streams" else js.consumers("S")
        assert len(found) == pages
    assert [request.body["offset"] for request in asked.requests] == list(range(pages))


def test_why_something_cannot_be_served_is_told() -> None:
    def answer(request: Request) -> list[bytes]:
        offset = request.body["offset"]
        page = {
            "total": 2,
            "limit": 1,
            "streams": [a_stream(f"S{offset}")],
            "missing": [f"S{offset}"],
            "offline": {f"S{offset}": "unsupported - required API level: 99"},
        }
        return [request.json(page)]

    with jetstream(answer) as js:
        found = js.streams()
    assert [stream.name for stream in found] == ["S0", "S1"]
    assert found.missing == ("S0", "S1")
    assert found.offline == {
        "S0": "unsupported - required API level: 99",
        "S1": "unsupported - required API level: 99",
    }
    with jetstream(always({"total": 0, "streams": None, "offline": None})) as js:
        assert js.streams().offline == {}


def test_the_counts_of_many_subjects_come_in_pages_that_are_merged() -> None:
    total, limit = 150_000, 100_000

    def answer(request: Request) -> list[bytes]:
        if request.body is None:
            return [request.json(STREAM)]
        offset = request.body.get("offset", 0)
        last = min(offset + limit, total)
        state = {
            "messages": 2 * total,
            "subjects": {f"s.{number}": 2 for number in range(offset, last)},
        }
        page = {"total": total, "offset": offset, "limit": limit, "state": state}
        return [request.json({**STREAM, **page})]

    asked = Asked(answer)
    with jetstream(asked) as js:
        # Each page is larger than what a client may publish.
        state = js.stream("S").info(subjects=">").state
    assert [request.body for request in asked.requests] == [
        None,
        {"subjects_filter": ">"},
        {"subjects_filter": ">", "offset": limit},
    ]
    assert len(state.subjects) == total
    assert sum(state.subjects.values()) == state.messages == 2 * total


# Servers of other releases ------------------------------------------------------------


def test_what_this_client_does_not_know_is_kept_by_an_update() -> None:
    known = {
        "name": "S",
        "subjects": ["s.>"],
        "retention": "limits",
        "max_age": 3_600_000_000_000,
        "future_x": {"deep": [1, 2]},
        "placement": {"cluster": "C1", "future_y": "kept"},
        "sources": [{"name": "O", "future_z": 3}],
        "storage": "future-storage",
        "metadata": {"_nats.ver": "3.0.0", "mine": "1"},
    }

    def answer(request: Request) -> list[bytes]:
        config = request.body if request.body else known
        return [request.json({**STREAM, "config": config})]

    asked = Asked(answer)
    with jetstream(asked) as js:
        js.stream("S").update(description="new")
        js.update_stream(name="S", max_age=60)
        js.create_or_update_stream(name="S", max_msgs=5)
    updates = [
        request.body for request in asked.requests if ".UPDATE." in request.subject
    ]
    assert updates == [
        {**known, "description": "new"},
        {**known, "max_age": 60_000_000_000},
        {**known, "max_msgs": 5},
    ]


def test_what_this_client_does_not_know_of_a_consumer_is_kept_by_an_update() -> None:
    known = {
        "name": "C",
        "durable_name": "C",
        "ack_policy": "future-policy",
        "filter_subject": "s.*",
        "future_x": 1,
    }

    def answer(request: Request) -> list[bytes]:
        config = request.body["config"] if request.body else known
        return [request.json({**CONSUMER, "config": config})]

    asked = Asked(answer)
    with jetstream(asked) as js:
        js.consumer("S", "C").update(description="new")
    assert asked.subjects[-1] == "$JS.API.CONSUMER.CREATE.S.C.s.*"
    assert asked.requests[-1].body == {
        "stream_name": "S",
        "action": "update",
        "config": {**known, "description": "new"},
    }


def test_a_server_that_drops_filter_subjects_is_found_out() -> None:
    asked = Asked(always(CONSUMER))
    with (
        jetstream(asked) as js,
        pytest.raises(
            failures.UnsupportedByServerError,
            match=r"filter_subjects needs .* 2\.10\.0",
        ),
    ):
        js.create_consumer("S", name="C", filter_subjects=["s.a", "s.b"])
    # An older consumer of that name is not ours to delete.
    assert asked.subjects == ["$JS.API.CONSUMER.CREATE.S.C"]


@pytest.mark.parametrize(
    ("version", "field", "release", "call"),
    [
        ("2.9.25", "compression", "2.10.0", {"compression": "s2"}),
        ("2.9.25", "metadata", "2.10.0", {"metadata": {"a": "b"}}),
        ("2.10.26", "allow_msg_ttl", "2.11.0", {"allow_msg_ttl": True}),
        ("2.11.11", "allow_atomic", "2.12.0", {"allow_atomic": True}),
        ("2.12.8", "allow_batched", "2.14.0", {"allow_batched": True}),
    ],
)
def test_a_field_that_is_too_new_for_the_server_is_not_sent(
    version: str, field: str, release: str, call: dict[str, Any]
) -> None:
    asked = Asked(always(STREAM))
    with jetstream(asked, info={"version": version}) as js:
        with pytest.raises(failures.UnsupportedByServerError) as caught:
            js.create_stream(name="S", **call)
        assert caught.value.feature == field
        assert str(caught.value) == (
            f"{field} needs nats-server {release} or later, this one is {version}"
        )
        with pytest.raises(failures.UnsupportedByServerError):
            js.create_or_update_stream(name="S", **call)
    assert ".CREATE." not in "".join(asked.subjects)
    assert ".UPDATE." not in "".join(asked.subjects)


def test_behind_a_prefix_the_server_that_answers_decides() -> None:
    asked = Asked(lambda request: [request.error(412, 10185, "required api level")])
    with (
        ScriptedServer([handshake({"version": "2.10.26"}), answering(asked)]) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream(domain="hub")
        with pytest.raises(failures.RequiredApiLevelError):
            js.create_stream(name="S", allow_atomic=True)
    assert b"Nats-Required-Api-Level: 2\r\n" in asked.requests[0].headers


def test_requests_that_are_too_new_for_the_server_are_not_sent() -> None:
    asked = Asked(always({**DIRECT, **CONSUMER, "config": {"name": "S"}}))
    with jetstream(asked, info={"version": "2.10.26"}) as js:
        stream, consumer = js.stream("S"), js.consumer("S", "C")
        asked.requests.clear()
        for call, feature in (
            (lambda: consumer.pause("2030-01-01T00:00:00Z"), "pausing a consumer"),
            (lambda: consumer.resume(), "pausing a consumer"),
            (lambda: consumer.unpin("g"), "unpinning a priority group"),
            (lambda: consumer.reset(), "resetting a consumer"),
            (lambda: stream.get_msgs(), "reading messages in batches"),
            (
                lambda: stream.get_msg(start_time="2024-01-01T00:00:00Z"),
                "reading by start_time",
            ),
            (
                lambda: stream.create_consumer(
                    priority_groups=["g"], priority_policy="overflow"
                ),
                "priority_",
            ),
        ):
            with pytest.raises(failures.UnsupportedByServerError, match=feature):
                call()
        assert asked.requests == []


def test_a_request_without_options_has_no_body() -> None:
    # Some of these are refused with one, be it an empty object.
    asked = Asked(always(EVERYTHING))
    with jetstream(asked) as js:
        stream, consumer = js.stream("S"), js.consumer("S", "C")
        js.account_info()
        stream.info()
        stream.purge()
        stream.delete()
        consumer.info()
        consumer.resume()
        consumer.reset()
        consumer.delete()
    assert len(asked.requests) == 10
    assert {request.data for request in asked.requests} == {b""}


# Direct reading -----------------------------------------------------------------------


def direct(answer: Answer) -> Asked:
    """A stream that is read directly, by this function."""

    def both(request: Request) -> Iterable[bytes]:
        if ".DIRECT." in request.subject:
            return answer(request)
        return [request.json(DIRECT)]

    return Asked(both)


def numbered(
    request: Request, seq: int, pending: int | None = None, data: bytes = b"x"
) -> bytes:
    """A stored message, in a batch if it says how many are still to come."""
    headers: list[tuple[str, object]] = [
        ("Nats-Stream", "S"),
        ("Nats-Subject", f"s.{seq}"),
        ("Nats-Sequence", seq),
        ("Nats-Time-Stamp", "2024-01-01T00:00:00.123456789Z"),
    ]
    if pending is not None:
        headers += [("Nats-Num-Pending", pending), ("Nats-Last-Sequence", seq - 1)]
    return request.message(headers, data)


def end_of_batch(request: Request, last: int, pending: int) -> bytes:
    return request.status(
        "204 EOB",
        {"Nats-Num-Pending": str(pending), "Nats-Last-Sequence": str(last)},
    )


def test_of_repeated_headers_the_servers_own_come_last() -> None:
    stored: list[tuple[str, object]] = [
        ("Nats-Stream", "OLD"),
        ("Nats-Subject", "old"),
        ("Nats-Sequence", 7),
        ("Nats-Time-Stamp", "2020-01-01T00:00:00Z"),
        ("Nats-Last-Sequence", 3),
        ("Mine", "1"),
    ]
    added: list[tuple[str, object]] = [
        ("Nats-Stream", "S"),
        ("Nats-Subject", "s.a"),
        ("Nats-Sequence", 42),
        ("Nats-Time-Stamp", "2024-01-01T00:00:00.5Z"),
    ]
    answer = direct(lambda request: [request.message([*stored, *added], b"data")])
    with jetstream(answer) as js:
        msg = js.stream("S").get_msg(42)
    assert (msg.stream, msg.subject, msg.seq) == ("S", "s.a", 42)
    assert msg.timestamp_ns == 1_704_067_200_500_000_000
    assert msg.headers is not None
    assert msg.headers.multi_items() == [(key, str(value)) for key, value in stored]


def test_an_old_server_that_answers_a_batch_with_one_message_is_found_out() -> None:
    with jetstream(direct(lambda request: [numbered(request, 1)])) as js:
        messages = js.stream("S").get_msgs(limit=3)
        with pytest.raises(
            failures.UnsupportedByServerError, match="reading messages in batches"
        ):
            next(messages)


def test_a_batch_that_its_link_did_not_finish_is_read_again() -> None:
    def cut(request: Request) -> list[bytes]:
        return [numbered(request, 1, 2), numbered(request, 2, 1)]

    def whole(request: Request) -> list[bytes]:
        return [*cut(request), numbered(request, 3, 0), end_of_batch(request, 3, 0)]

    first: list[Step] = [
        handshake(),
        answering(direct(cut), count=2),
        close(),
    ]
    with (
        ScriptedServer(first, [handshake(), answering(direct(whole))]) as server,
        connected(server.url) as nc,
    ):
        stream = nc.jetstream(timeout=TIMEOUT).stream("S")
        assert [msg.seq for msg in stream.get_msgs()] == [1, 2, 3]
        assert server.connections == 2


def test_the_reader_of_a_batch_may_take_its_time() -> None:
    answer = direct(
        lambda request: [
            *(numbered(request, seq, 3 - seq) for seq in (1, 2, 3)),
            end_of_batch(request, 3, 0),
        ]
    )
    pause = threading.Event()
    with jetstream(answer) as js:
        got = []
        for msg in js.stream("S").get_msgs(timeout=0.3):
            got.append(msg.seq)
            pause.wait(0.15)
        assert got == [1, 2, 3]


def test_a_batch_that_never_ends_is_a_timeout() -> None:
    with jetstream(direct(lambda request: [numbered(request, 1, 5)])) as js:
        messages = js.stream("S").get_msgs(timeout=0.1)
        with pytest.raises(jsclient.TimeoutError, match="read messages of stream 'S'"):
            next(messages)


def test_a_batch_ends_with_the_connection() -> None:
    with ScriptedServer(
        [handshake(), answering(direct(lambda request: [numbered(request, 1, 5)]))]
    ) as server:
        nc = connected(server.url)
        with nc:
            messages = nc.jetstream().stream("S").get_msgs(timeout=30.0)
            timer = threading.Timer(0.1, nc.close)
            timer.start()
            with pytest.raises(jsclient.ConnectionClosedError):
                next(messages)
            timer.join()


def test_an_inbox_that_the_server_refuses_ends_the_batch() -> None:
    def refuse(peer: Peer) -> None:
        peer.expect(b"$JS.API.DIRECT.GET.S ")
        inbox = bytes(peer.received).rpartition(b"SUB ")[2].split()[0]
        text = b'Permissions Violation for Subscription to "%s"' % inbox
        peer.send(b"-ERR '%s'\r\n" % text)

    known = answering(direct(lambda _: []), count=1)
    with (
        ScriptedServer([handshake(), known, refuse]) as server,
        connected(server.url) as nc,
    ):
        messages = nc.jetstream().stream("S").get_msgs()
        with pytest.raises(jsclient.PermissionsViolationError):
            next(messages)


def test_a_batch_that_the_server_refuses_is_told_at_once() -> None:
    def refuse(peer: Peer) -> None:
        peer.expect(b"$JS.API.DIRECT.GET.S ")
        text = b'Permissions Violation for Publish to "$JS.API.DIRECT.GET.S"'
        peer.send(b"-ERR '%s'\r\n" % text)

    known = answering(direct(lambda _: []), count=1)
    with (
        ScriptedServer([handshake(), known, refuse]) as server,
        connected(server.url) as nc,
    ):
        messages = nc.jetstream().stream("S").get_msgs()
        with pytest.raises(jsclient.PermissionsViolationError):
            next(messages)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("404 Message Not Found", failures.MessageNotFoundError),
        ("408 Bad Request", failures.BadRequestError),
        ("412 Required Api Level", failures.RequiredApiLevelError),
        ("413 Too Many Results", failures.TooManyResultsError),
        ("500 Oops", failures.ApiError),
    ],
)
def test_the_status_of_a_direct_answer_is_an_error(
    status: str, kind: type[failures.ApiError]
) -> None:
    code, _, text = status.partition(" ")
    with jetstream(direct(lambda request: [request.status(status)])) as js:
        stream = js.stream("S")
        with pytest.raises(kind, match=f"read a message of stream 'S': {text}") as one:
            stream.get_msg(1)
        assert one.value.code == int(code)
        if code == "404":
            assert list(stream.get_msgs()) == []
            return
        with pytest.raises(kind) as many:
            next(stream.get_msgs())
        assert many.value.code == int(code)


def test_a_batch_that_ends_otherwise_than_it_should_is_no_whole_one() -> None:
    def answer(request: Request) -> list[bytes]:
        return [numbered(request, 1, 2), request.status("404 Message Not Found")]

    with jetstream(direct(answer)) as js:
        stream = js.stream("S")
        with pytest.raises(failures.MessageNotFoundError):
            next(stream.get_msgs())
        with pytest.raises(failures.MessageNotFoundError):
            stream.get_batch(1)


def test_when_nobody_answers_directly_the_api_is_asked() -> None:
    def answer(request: Request) -> list[bytes]:
        if ".DIRECT." in request.subject:
            return [request.status("503")]
        if ".MSG.GET." in request.subject:
            return [request.error(404, 10059, "stream not found")]
        return [request.json(DIRECT)]

    with jetstream(answer) as js:
        stream = js.stream("S")
        with pytest.raises(failures.StreamNotFoundError):
            stream.get_msg(1)
        with pytest.raises(jsclient.NoRespondersError, match=r"\.DIRECT\.GET\.S"):
            next(stream.get_msgs())


# Prefixes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, "$JS.API"),
        ({"domain": "hub"}, "$JS.hub.API"),
        ({"prefix": "fromA"}, "fromA"),
        ({"prefix": "from.A."}, "from.A"),
    ],
)
def test_every_request_has_the_prefix_and_publishing_has_none(
    options: dict[str, Any], prefix: str
) -> None:
    def answer(request: Request) -> list[bytes]:
        if request.subject == "s.a":
            return [request.json({"stream": "S", "seq": 1})]
        if ".DIRECT." in request.subject and b"batch" in request.data:
            return [end_of_batch(request, 0, 0)]
        if ".DIRECT." in request.subject:
            return [numbered(request, 1)]
        if ".CONSUMER." in request.subject:
            return [request.json({**CONSUMER, "success": True})]
        return [request.json({**DIRECT, "success": True})]

    asked = Asked(answer)
    with (
        ScriptedServer([handshake(), answering(asked)]) as server,
        connected(server.url) as nc,
    ):
        js = nc.jetstream(**options)
        js.account_info()
        stream = js.create_stream(name="S", allow_direct=True)
        js.publish("s.a")
        stream.get_msg(1)
        stream.get_msg(last_for="s.1")
        assert list(stream.get_msgs()) == []
        js.streams()
        consumer = stream.create_consumer(name="C", filter_subject="s.*")
        consumer.resume()
        consumer.delete()
    assert asked.subjects == [
        f"{prefix}.INFO",
        f"{prefix}.STREAM.CREATE.S",
        "s.a",
        f"{prefix}.DIRECT.GET.S",
        f"{prefix}.DIRECT.GET.S.s.1",
        f"{prefix}.DIRECT.GET.S",
        f"{prefix}.STREAM.LIST",
        f"{prefix}.CONSUMER.CREATE.S.C.s.*",
        f"{prefix}.CONSUMER.PAUSE.S.C",
        f"{prefix}.CONSUMER.DELETE.S.C",
    ]
