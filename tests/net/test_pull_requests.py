"""What a client asks of a consumer, byte for byte, and how it takes the answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient._core import LonePull, PullInbox
from jsclient._io.lone_pull import Order, run_fetch
from jsclient._io.pulling import Pulling
from jsclient.consumer import Consumer
from tests.net.client import TIMEOUT, Recorder
from tests.net.pull_peer import NEXT, Counter, Desk, Pull, Scene, consuming, nothing


def five(pull: Pull) -> Iterable[bytes]:
    return [pull.message(number, b"%d" % number) for number in range(1, 6)]


def answer(*lines: str) -> Counter:
    """Each pull gets a status, later ones none."""
    return Counter(*(lambda pull, line=line: [pull.status(line)] for line in lines))


def sent(scene: Scene, connection: int = 0) -> list[bytes]:
    """The client's SUB, UNSUB, PING and pulls, shortened, without those of requests."""
    found = []
    for verb, arguments, body in scene.frames(connection):
        if verb == b"PUB" and arguments.startswith(NEXT.encode()):
            found.append(b"pull " + body)
        elif verb == b"SUB" and b".1.*" in arguments:
            found.append(b"SUB lane")
        elif verb in (b"UNSUB", b"PING"):
            found.append(verb)
    return found


# Requests -----------------------------------------------------------------------------


def test_a_next_asks_for_one_message_with_integers_of_nanoseconds() -> None:
    desk = Desk(lambda pull: [pull.message(1, b"one")])
    with consuming(desk) as scene:
        assert scene.consumer.next(timeout=1.0).data == b"one"
        (pull,) = desk.pulls
        asked = pull.body
        assert set(asked) == {"batch", "expires"}
        assert asked["batch"] == 1
        assert 970_000_000 < asked["expires"] <= 980_000_000
        assert b"e" not in pull.raw.replace(b"expires", b"")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"batch": 500, "expires": 30_000, "idle_heartbeat": 15_000}),
        (
            {"max_messages": 7, "expires": 2.5},
            {"batch": 7, "expires": 2_500, "idle_heartbeat": 1_250},
        ),
        (
            {"max_bytes": 9000, "idle_heartbeat": 0.5},
            {
                "batch": 1_000_000,
                "max_bytes": 9000,
                "expires": 30_000,
                "idle_heartbeat": 500,
            },
        ),
        (
            {"stop_after": 3, "expires": 100.0},
            {"batch": 3, "expires": 100_000, "idle_heartbeat": 30_000},
        ),
    ],
)
def test_a_consume_asks_for_what_its_options_say(
    options: dict[str, Any], expected: dict[str, int]
) -> None:
    desk = Desk()
    with consuming(desk) as scene:
        with scene.consumer.messages(**options):
            asked = desk.wait_pull().body
        for name in ("expires", "idle_heartbeat"):
            asked[name] /= 1_000_000
        assert asked == expected


def test_a_fetch_without_waiting_has_no_expiry() -> None:
    desk = Desk(answer("404 No Messages"))
    with consuming(desk) as scene:
        assert len(scene.consumer.fetch_no_wait(5)) == 0
        assert desk.pulls[0].body == {"batch": 5, "no_wait": True}


def test_a_long_fetch_has_a_heartbeat_of_at_most_half_its_expiry() -> None:
    desk = Desk(lambda pull: [pull.status("404 No Messages")])
    with consuming(desk) as scene:
        scene.consumer.fetch(5, timeout=10.0)
        scene.consumer.fetch(5, timeout=9.0)
        scene.consumer.fetch(5, timeout=9.0, idle_heartbeat=1.0)
        scene.consumer.fetch_batch(5, timeout=1.0, idle_heartbeat=0.5)
        asked = [pull.body for pull in desk.pulls]
    # Of ten seconds a little is kept for the way back: then 2 x 5 is too much.
    assert asked[0]["idle_heartbeat"] == asked[0]["expires"] // 2 < 5_000_000_000
    assert "idle_heartbeat" not in asked[1]
    assert asked[2]["idle_heartbeat"] == 1_000_000_000
    assert asked[3]["idle_heartbeat"] == asked[3]["expires"] // 2 < 500_000_000


def test_pulls_that_the_consumer_allows_no_longer_follow_each_other() -> None:
    desk = Desk(
        Counter(
            lambda pull: [pull.message(1), pull.status("408 Request Timeout")],
            lambda pull: [pull.message(2), pull.message(3)],
        ),
        config={"max_expires": 1_500_000_000},
    )
    with consuming(desk) as scene:
        batch = scene.consumer.fetch(3, timeout=60.0)
        assert [msg.metadata.stream_seq for msg in batch] == [1, 2, 3]
        assert [pull.body["batch"] for pull in desk.pulls] == [3, 2]
        assert {pull.body["expires"] for pull in desk.pulls} == {1_500_000_000}


def test_open_pulls_have_replies_and_subscriptions_of_their_own() -> None:
    desk = Desk(Counter(lambda pull: [pull.message(1), pull.message(2)]))
    with consuming(desk) as scene, scene.consumer.messages(4) as messages:
        messages.next()
        messages.next()
        with pytest.raises(jsclient.TimeoutError):
            messages.next(0.0)  # who comes for more finds that more is due
        desk.wait_pull(2)
        first, second = desk.pulls
        assert (first.body["batch"], second.body["batch"]) == (4, 2)
        assert first.inbox == second.inbox
        assert first.sid != second.sid
        assert first.reply != second.reply


def test_a_lane_is_used_again_with_a_fresh_token_after_a_certain_end() -> None:
    desk = Desk(lambda pull: [pull.message(len(desk.pulls))])
    with consuming(desk) as scene:
        for _ in range(3):
            scene.consumer.next()
        assert len({pull.sid for pull in desk.pulls}) == 1
        assert len({pull.reply for pull in desk.pulls}) == 3
        assert sent(scene).count(b"SUB lane") == 1


def test_the_last_bytes_of_a_budget_end_a_pull_without_a_status() -> None:
    sizes: list[int] = []

    def respond(pull: Pull) -> Iterable[bytes]:
        message = pull.message(1, b"x" * 50)
        line, payload = message.split(b"\r\n")[:2]
        _, subject, _, ack, _ = line.split()
        sizes.append(len(subject) + len(ack) + len(payload))
        return [message]

    desk = Desk(Counter(respond))
    with consuming(desk) as scene:
        # Subject, ack subject and payload: 3 + 39 + 50.
        batch = scene.consumer.fetch_bytes(92, timeout=5.0)
        assert sizes == [92]
        assert [msg.size for msg in batch] == [92]
        assert batch.error is None


# Statuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "404 No Messages",
        "404",
        "408 Request Timeout",
        "408 Requests Pending",
        "408 Interest Expired",
        "408 no such text",
        "409 Batch Completed",
    ],
)
def test_a_fetch_ends_quietly_with_a_status_that_means_no_more(line: str) -> None:
    with consuming(Desk(answer(line))) as scene:
        batch = scene.consumer.fetch(5)
        assert len(batch) == 0
        assert batch.error is None


REFUSALS = [
    ("400 Bad Request - something new", failures.BadPullError),
    ("400 Bad Request - Not a Overflow Priority consumer", failures.BadPullError),
    ("409 Consumer Deleted", failures.ConsumerDeletedError),
    ("409 consumer DELETED", failures.ConsumerDeletedError),
    ("409 Consumer is push based", failures.PushConsumerError),
    ("409 Exceeded MaxRequestBatch of 5", failures.PullLimitError),
    ("409 Exceeded MaxWaiting", failures.PullLimitError),
    ("409 Message Size Exceeds MaxBytes", failures.MessageSizeError),
    ("409 Leadership Change", failures.LeadershipChangedError),
    ("409 Something Else", failures.PullError),
    ("412 Required Api Level", failures.RequiredApiLevelPullError),
    ("423 Nats-Pin-Id mismatch", failures.PullError),
    ("499 Unheard Of", failures.PullError),
]


@pytest.mark.parametrize(("line", "kind"), REFUSALS)
def test_a_fetch_that_is_refused_raises_what_the_server_said(
    line: str, kind: type[failures.PullError]
) -> None:
    with consuming(Desk(answer(line))) as scene:
        with pytest.raises(kind) as caught:
            scene.consumer.fetch(5)
        assert caught.value.code == int(line[:3])
        if kind is not failures.MessageSizeError:
            assert line[4:] in str(caught.value)


@pytest.mark.parametrize(("line", "kind"), REFUSALS)
def test_a_refusal_after_some_messages_stands_beside_them(
    line: str, kind: type[failures.PullError]
) -> None:
    desk = Desk(
        Counter(lambda pull: [pull.message(1), pull.message(2), pull.status(line)])
    )
    with consuming(desk) as scene:
        batch = scene.consumer.fetch(5)
        assert [msg.metadata.stream_seq for msg in batch] == [1, 2]
        if kind is failures.MessageSizeError:
            assert batch.error is None
        else:
            assert isinstance(batch.error, kind)


@pytest.mark.parametrize("fields", [{}, {"Nats-Subject": NEXT}])
def test_a_consumer_that_has_nobody_to_answer_for_it_yet_is_asked_again(
    fields: dict[str, object],
) -> None:
    # As right after it was made in a cluster.
    def nobody(pull: Pull) -> Iterable[bytes]:
        return [pull.status("503", fields)]

    desk = Desk(Counter(nobody, nobody, lambda pull: [pull.message(1)]))
    with consuming(desk) as scene:
        assert scene.consumer.next(TIMEOUT).metadata.stream_seq == 1
        assert len(desk.pulls) == 3
        desk.on_pull = nobody
        begun = time.monotonic()
        with pytest.raises(failures.UnreachableConsumerError):
            scene.consumer.fetch(5, timeout=0.5)
        assert time.monotonic() - begun < TIMEOUT
        # A consumer that is not there is told at once.
        desk.info = None
        with pytest.raises(failures.ConsumerNotFoundError):
            scene.consumer.fetch(5, timeout=60.0)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("400 Bad Request - something new", failures.BadPullError),
        ("409 Consumer Deleted", failures.ConsumerDeletedError),
        ("409 Consumer is push based", failures.PushConsumerError),
        ("412 Required Api Level", failures.RequiredApiLevelPullError),
    ],
)
def test_a_hopeless_status_ends_a_consume_after_what_came_before(
    line: str, kind: type[failures.PullError]
) -> None:
    desk = Desk(lambda pull: [pull.message(1), pull.status(line)])
    told = Recorder()
    with consuming(desk, on_event=told) as scene:
        messages = scene.consumer.messages()
        scene.heard()
        assert messages.next().metadata.stream_seq == 1
        for _ in range(2):
            with pytest.raises(kind):
                messages.next()
        assert isinstance(messages.error, kind)
        assert not messages.is_active
        assert len(desk.pulls) == 1


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("404 No Messages", False),
        ("408 Request Timeout", False),
        ("408 Requests Pending", False),
        ("408 Interest Expired", False),
        ("409 Batch Completed", False),
        ("423 Nats-Wrong-Pin-Id", True),
        ("409 Leadership Change", True),
        ("409 Exceeded MaxWaiting", True),
        ("409 Something Else", True),
        ("499 Unheard Of", True),
        ("503", True),
    ],
)
def test_any_other_status_releases_the_pull_and_the_consume_goes_on(
    line: str, is_told: bool
) -> None:
    desk = Desk(
        Counter(
            lambda pull: [pull.message(1), pull.status(line)],
            lambda pull: [pull.message(2)],
        )
    )
    told = Recorder()
    with consuming(desk, on_event=told) as scene, scene.consumer.messages(10) as read:
        assert read.next().metadata.stream_seq == 1
        assert read.next().metadata.stream_seq == 2
        # The share of the first is free again, less what the user had not taken.
        assert desk.pulls[1].body["batch"] in (9, 10)
        scene.heard()
        if is_told:
            warning = told.wait_for(events.ConsumerWarning)
            assert (warning.stream, warning.consumer) == ("S", "C")
            assert isinstance(warning.error, failures.PullError)
        else:
            assert told.of(events.ConsumerWarning) == []


def test_a_consume_that_is_refused_asks_less_and_less_often() -> None:
    desk = Desk(lambda pull: [pull.status("409 Exceeded MaxWaiting")])
    with consuming(desk) as scene:
        begun = time.monotonic()
        with scene.consumer.messages():
            desk.wait_pull(4)
        assert time.monotonic() - begun >= 0.1 + 0.2 + 0.4


def test_a_pull_that_the_server_keeps_after_a_warning_still_brings_messages() -> None:
    line = "400 Bad Request - Not a Pinned Client Priority consumer"
    desk = Desk(Counter(lambda pull: [pull.status(line), pull.message(1)]))
    told = Recorder()
    with consuming(desk, on_event=told) as scene, scene.consumer.messages() as read:
        assert read.next().metadata.stream_seq == 1
        assert isinstance(
            told.wait_for(events.ConsumerWarning).error, failures.BadPullError
        )
        assert len(desk.pulls) == 1


@pytest.mark.parametrize("messages", ["-1", "99999999999999999999", "abc", "", None])
@pytest.mark.parametrize("size", ["-5", "6000", "18446744073709551616", "abc", None])
def test_pending_counts_are_not_trusted(messages: str | None, size: str | None) -> None:
    headers = {"Nats-Pending-Messages": messages, "Nats-Pending-Bytes": size}
    given = {key: value for key, value in headers.items() if value is not None}
    desk = Desk(
        Counter(
            lambda pull: [pull.status("408 Request Timeout", given)],
            lambda pull: [pull.message(1)],
        )
    )
    with consuming(desk) as scene, scene.consumer.messages(max_bytes=5000) as read:
        assert read.next().metadata.stream_seq == 1
        assert [pull.body["max_bytes"] for pull in desk.pulls] == [5000, 5000]


def test_frames_that_are_no_answer_to_a_pull_do_no_harm() -> None:
    def strange(pull: Pull) -> Iterable[bytes]:
        prefix = pull.reply.rpartition(".")[0]
        other = pull._replace(reply=f"{prefix}.77")
        return [
            # No status and no JetStream message.
            f"MSG s.a {pull.sid} 2\r\nhi\r\n".encode(),
            f"MSG s.a {pull.sid} _INBOX.x 0\r\n\r\n".encode(),
            f"HMSG {pull.reply} {pull.sid} 12 12\r\nNATS/1.0\r\n\r\n\r\n".encode(),
            f"HMSG {pull.reply} {pull.sid} 5 5\r\nhello\r\n".encode(),
            pull.status("abc"),
            # A status of another pull, and of no pull at all.
            other.status("409 Consumer Deleted"),
            pull._replace(reply="s.a").status("409 Consumer Deleted"),
            pull.status("100 Idle Heartbeat"),
            pull.message(1, b"", {"Status": "409", "Description": "Consumer Deleted"}),
            pull.message(2),
        ]

    desk = Desk(Counter(strange))
    with consuming(desk) as scene, scene.consumer.messages() as read:
        assert read.next().headers is not None
        assert read.next().metadata.stream_seq == 2
        assert read.is_active


def test_a_status_that_comes_twice_counts_once() -> None:
    desk = Desk(
        Counter(
            lambda pull: [pull.status("404 No Messages") * 3],
            lambda pull: [pull.message(1)],
        )
    )
    with consuming(desk) as scene, scene.consumer.messages(10) as read:
        read.next()
        scene.heard()
        assert len(desk.pulls) == 2


def looked_up(scene: Scene) -> int:
    """How often the client asked whether there is a consumer."""
    asked = b"$JS.API.CONSUMER.INFO.S.C"
    return sum(arguments.startswith(asked) for _, arguments, _ in scene.frames())


FETCHES: list[Callable[[Consumer], object]] = [
    lambda consumer: consumer.next(timeout=0.1),
    lambda consumer: consumer.fetch(5, timeout=0.1),
    lambda consumer: consumer.fetch_bytes(5000, timeout=0.1),
    lambda consumer: consumer.fetch_no_wait(5, timeout=0.1),
    lambda consumer: consumer.fetch_batch(5, timeout=0.1),
    lambda consumer: consumer.fetch(5, timeout=0.4, idle_heartbeat=0.1),
]


@pytest.mark.parametrize("fetch", FETCHES)
def test_a_server_that_is_silent_for_a_missing_consumer_is_asked_about_it(
    fetch: Callable[[Consumer], object],
) -> None:
    desk = Desk(version="2.10.25")
    with consuming(desk) as scene:
        desk.info = None

        def fetch_all() -> None:
            for _ in range(20):  # the server has little time to answer
                with suppress(jsclient.TimeoutError, failures.MissedHeartbeatError):
                    fetch(scene.consumer)

        with pytest.raises(failures.ConsumerNotFoundError):
            fetch_all()


@pytest.mark.parametrize("fetch", FETCHES)
@pytest.mark.parametrize(
    ("version", "answers"), [("2.10.25", ["408 Request Timeout"]), ("2.10.26", [])]
)
def test_a_server_that_speaks_or_would_speak_is_not_asked(
    fetch: Callable[[Consumer], object], version: str, answers: list[str]
) -> None:
    # An answer may also come too late: most fetches cost one request all the same.
    desk = Desk(lambda pull: map(pull.status, answers), version=version)
    with consuming(desk) as scene:
        before = looked_up(scene)
        with suppress(jsclient.TimeoutError, failures.MissedHeartbeatError):
            fetch(scene.consumer)
        assert looked_up(scene) == before


def test_a_silent_server_is_asked_whether_the_consumer_of_a_consume_is_there() -> None:
    desk = Desk()
    with consuming(desk) as scene:
        desk.info = None
        messages = scene.consumer.messages(expires=1.0, idle_heartbeat=0.5)
        with pytest.raises(failures.ConsumerNotFoundError):
            messages.next(timeout=60.0)


# Late answers -------------------------------------------------------------------------


def test_the_status_of_a_fetch_that_is_over_does_not_disturb_the_next() -> None:
    desk = Desk()
    with consuming(desk) as scene:
        # It gives up before the server says anything.
        assert len(scene.consumer.fetch(5, timeout=0.1)) == 0
        stale = desk.pulls[0]
        desk.on_pull = lambda pull: [
            stale.status("408 Request Timeout"),
            stale.message(1),
            pull.message(2),
        ]
        assert scene.consumer.next().metadata.stream_seq == 2


def test_a_stale_status_on_a_lane_that_is_used_again_is_ignored() -> None:
    desk = Desk(Counter(lambda pull: [pull.message(1)]))
    with consuming(desk) as scene:
        scene.consumer.next()
        first = desk.pulls[0]
        desk.on_pull = lambda pull: [
            first.status("409 Consumer Deleted"),
            first.status("408 Request Timeout"),
            pull.message(2),
        ]
        assert scene.consumer.next().metadata.stream_seq == 2
        assert desk.pulls[1].sid == first.sid


def test_silence_of_two_heartbeats_ends_a_fetch() -> None:
    desk = Desk(Counter(lambda pull: [pull.message(1)]))
    with consuming(desk) as scene:
        begun = time.monotonic()
        batch = scene.consumer.fetch(5, timeout=20.0, idle_heartbeat=0.15)
        assert len(batch) == 1
        assert isinstance(batch.error, failures.MissedHeartbeatError)
        with pytest.raises(failures.MissedHeartbeatError):
            scene.consumer.fetch(5, timeout=20.0, idle_heartbeat=0.15)
        assert time.monotonic() - begun < 20.0


def test_a_consume_whose_pull_is_lost_warns_and_asks_again() -> None:
    desk = Desk(Counter(nothing, lambda pull: [pull.message(2)]))
    told = Recorder()
    with (
        consuming(desk, on_event=told) as scene,
        scene.consumer.messages(10, expires=1, idle_heartbeat=0.5) as read,
    ):
        assert read.next(TIMEOUT).metadata.stream_seq == 2
        warning = told.wait_for(events.ConsumerWarning)
        assert isinstance(warning.error, failures.MissedHeartbeatError)
        assert [pull.body["batch"] for pull in desk.pulls] == [10, 10]


def test_what_a_lost_pull_brings_nevertheless_is_read_and_counts() -> None:
    desk = Desk(Counter(nothing, lambda pull: [pull.message(3)]))
    late = [1, 2]

    def before_pong() -> Iterable[bytes]:
        while desk.pulls and late:
            yield desk.pulls[0].message(late.pop(0))

    desk.on_ping = before_pong
    with (
        consuming(desk) as scene,
        scene.consumer.messages(10, expires=1, idle_heartbeat=0.5) as read,
    ):
        desk.wait_pull(2)
        got = [read.next(TIMEOUT).metadata.stream_seq for _ in range(3)]
        assert got == [1, 2, 3]
        # It was asked for no more than fits beside what came.
        assert [pull.body["batch"] for pull in desk.pulls][:2] == [10, 8]


def test_what_is_left_of_lost_pulls_does_not_pile_up() -> None:
    desk = Desk()
    with (
        consuming(desk) as scene,
        scene.consumer.messages(10, expires=1, idle_heartbeat=0.5),
    ):
        desk.wait_pull(3)
        scene.heard()
        entries = scene.nc._loop.entries.values()
        assert sum(entry.is_draining for entry in entries) <= 1


# Two at once --------------------------------------------------------------------------


def test_fetches_at_once_on_one_consumer_keep_their_messages_apart() -> None:
    def respond(pull: Pull) -> Iterable[bytes]:
        # Answers when all are there, to each according to its size.
        if len(desk.pulls) < 4:
            return ()
        pieces = []
        for number in range(1, 5):
            for one in desk.pulls:
                if number <= one.body["batch"]:
                    pieces.append(one.message(number, b"%d" % one.body["batch"]))
        return [b"".join(pieces)]

    desk = Desk(respond)
    results: dict[int, list[bytes]] = {}

    def fetch(scene: Scene, batch: int) -> None:
        results[batch] = [msg.data for msg in scene.consumer.fetch(batch)]

    with consuming(desk) as scene:
        threads = [
            threading.Thread(target=fetch, args=(scene, batch)) for batch in range(1, 5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10.0)
    assert results == {batch: [b"%d" % batch] * batch for batch in range(1, 5)}


# Links --------------------------------------------------------------------------------


def test_after_a_reconnect_a_consume_pulls_anew_on_a_new_inbox() -> None:
    desk = Desk(Counter(lambda pull: [pull.message(1)], lambda pull: [pull.message(2)]))
    with consuming(desk, links=2) as scene, scene.consumer.messages(10) as read:
        assert read.next().metadata.stream_seq == 1
        scene.cue("cut")
        assert read.next(TIMEOUT).metadata.stream_seq == 2
        first, second = desk.pulls
        assert (first.connection, second.connection) == (0, 1)
        assert first.inbox != second.inbox
        assert second.body["batch"] == 10
        scene.heard()
        # Neither the old subscriptions nor old pulls come up again.
        again = b"".join(arguments for _, arguments, _ in scene.frames(1))
        assert first.inbox.encode() not in again
        assert len(desk.pulls) == 2


def test_what_the_user_has_not_taken_counts_on_the_new_link() -> None:
    desk = Desk(Counter(five))
    with consuming(desk, links=2) as scene, scene.consumer.messages(10) as read:
        scene.heard()
        scene.cue("cut")
        desk.wait_pull(2)
        assert desk.pulls[1].body["batch"] == 5
        assert [read.next().metadata.stream_seq for _ in range(5)] == [1, 2, 3, 4, 5]


def test_no_pull_is_sent_or_kept_while_there_is_no_link() -> None:
    desk = Desk(Counter(five))
    told = Recorder()
    with consuming(desk, on_event=told, reconnect_wait=0.3) as scene:
        with scene.consumer.messages(6) as read:
            scene.heard()
            scene.cue("cut")
            told.wait_for(events.ReconnectFailed)
            # Falls below the threshold now; and another one begins.
            for _ in range(5):
                read.next()
            with scene.consumer.messages():
                pass
            with pytest.raises(jsclient.DisconnectedError):
                scene.consumer.fetch(1, timeout=0.1)
            with pytest.raises(jsclient.TimeoutError):
                read.next(0.05)
            assert NEXT.encode() not in scene.nc._loop.outbox.unsent()
        assert len(desk.pulls) == 1


def test_a_fetch_goes_on_over_a_reconnect() -> None:
    def cut(pull: Pull) -> Iterable[bytes]:
        return [pull.message(1), pull.message(2)]

    desk = Desk(Counter(cut, lambda pull: [pull.message(3), pull.message(4)]))
    with consuming(desk, links=2) as scene:
        cutter = threading.Thread(
            target=lambda: (desk.wait_pull(), scene.cue("cut")),
        )
        cutter.start()
        batch = scene.consumer.fetch(4, timeout=TIMEOUT)
        cutter.join()
        assert [msg.metadata.stream_seq for msg in batch] == [1, 2, 3, 4]
        assert batch.error is None
        assert [pull.body["batch"] for pull in desk.pulls] == [4, 2]
        assert desk.pulls[0].inbox != desk.pulls[1].inbox


def test_a_fetch_goes_on_that_learns_of_a_new_link_before_it_has_a_conversation() -> (
    None
):
    desk = Desk(Counter(lambda _: (), lambda pull: [pull.message(1)]))
    with consuming(desk, links=2) as scene:
        consumer, lanes = scene.consumer, scene.consumer._own_lanes()
        order = consumer._order(1, None, TIMEOUT, False, None, {})
        lone = LonePull(lanes.pool, order.draft)

        def leave_link() -> None:
            desk.wait_pull()
            scene.nc.reconnect()

        def converse(order: Order, inbox: PullInbox) -> Pulling:
            while scene.nc.stats().reconnects == 0 or lanes.loop.live is None:
                time.sleep(0.001)
            return consumer._converse(order, inbox)

        leaving = threading.Thread(target=leave_link)
        leaving.start()
        finish_at = time.monotonic() + TIMEOUT
        msg = run_fetch(lanes, order, lone, converse, finish_at, lone.take_one)
        leaving.join()
        assert msg is not None
        assert [pull.connection for pull in desk.pulls] == [0, 1]


def test_stop_after_counts_over_reconnects() -> None:
    def rest(pull: Pull) -> Iterable[bytes]:
        return [pull.message(number) for number in range(6, 6 + pull.body["batch"])]

    desk = Desk(Counter(five, rest))
    with consuming(desk, links=2) as scene:
        messages = scene.consumer.messages(500, stop_after=9)
        scene.heard()
        scene.cue("cut")
        assert [msg.metadata.stream_seq for msg in messages] == list(range(1, 10))
        assert [pull.body["batch"] for pull in desk.pulls] == [9, 4]
        assert not messages.is_active


def test_a_reconnect_between_two_calls_of_next_is_not_missed() -> None:
    desk = Desk(Counter(lambda pull: [pull.message(1)], lambda pull: [pull.message(2)]))
    told = Recorder()
    with (
        consuming(desk, links=2, on_event=told) as scene,
        scene.consumer.messages() as read,
    ):
        read.next()
        scene.cue("cut")
        told.wait_for(events.Reconnected)
        desk.wait_pull(2)
        assert read.next().metadata.stream_seq == 2


def test_a_consumer_that_is_gone_after_a_reconnect_ends_the_consume() -> None:
    desk = Desk()
    with consuming(desk, links=2) as scene:
        messages = scene.consumer.messages()
        desk.wait_pull()
        desk.info = None
        scene.cue("cut")
        with pytest.raises(failures.ConsumerNotFoundError):
            messages.next(TIMEOUT)


def test_one_that_waits_for_its_consumer_goes_on() -> None:
    desk = Desk(Counter(nothing, lambda pull: [pull.status("503")]))
    told = Recorder()
    with consuming(desk, links=2, on_event=told) as scene:
        with scene.consumer.messages(on_missing="wait") as messages:
            desk.wait_pull()
            desk.info = None
            desk.on_pull = Counter(
                lambda pull: [pull.status("503")],
                lambda pull: [pull.status("409 Consumer Deleted")],
                lambda pull: [pull.message(1)],
            )
            scene.cue("cut")
            assert messages.next(TIMEOUT).metadata.stream_seq == 1
        kinds = [type(one.error) for one in told.of(events.ConsumerWarning)]
        assert failures.UnreachableConsumerError in kinds
        assert failures.ConsumerDeletedError in kinds


def test_a_pull_is_sent_also_when_the_buffer_to_send_is_full() -> None:
    desk = Desk(lambda pull: [pull.message(1)])

    def hold() -> Iterable[bytes]:
        time.sleep(0.5)
        return ()

    desk.cues["hold"] = hold
    with consuming(desk, write_buffer=1024) as scene:
        scene.cue("hold")
        # More than the kernel takes, while the peer does not read.
        for _ in range(200):
            scene.nc.publish("cue.none", b"x" * 100_000)
        assert scene.consumer.next(TIMEOUT).metadata.stream_seq == 1


def test_json_of_a_pull_is_json() -> None:
    desk = Desk(config={"priority_groups": ["g/=_-1"], "priority_policy": "overflow"})
    with consuming(desk) as scene:
        with scene.consumer.messages(group="g/=_-1", min_pending=4, min_ack_pending=0):
            asked = json.loads(desk.wait_pull().raw)
        assert asked["group"] == "g/=_-1"
        assert (asked["min_pending"], asked["min_ack_pending"]) == (4, 0)
