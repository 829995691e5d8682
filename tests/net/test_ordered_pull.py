"""Ordered consumers that are read by pulls: what ends one, and how the next begins."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import jsclient
from jsclient import events
from jsclient import jetstream_errors as failures
from jsclient.ordered import OrderedConsumer
from jsclient.succession import FIRST_PAUSE
from tests.harness.scripted import ScriptedServer
from tests.harness.tidy import assert_tidy
from tests.net.client import Recorder, connected
from tests.net.pull_peer import Desk, Pull

pytestmark = pytest.mark.timeout(60)

BUSY = {"code": 503, "err_code": 10008, "description": "temporarily unavailable"}
Answer = Callable[[Pull], Iterable[bytes]]


class Consumers(Desk):
    """Makes one consumer after the other; the first pull of each has its answer."""

    def __init__(self, *answers: Answer, refusals: int = 0) -> None:
        super().__init__(self._pulled)
        self.made: list[dict[str, Any]] = []
        self.refused = 0
        self._refusals = refusals
        self._answers = list(answers)
        self._asked: set[str] = set()
        self.on_request = self._made

    def _made(self, subject: str, body: bytes) -> object:
        if not subject.startswith("$JS.API.CONSUMER.CREATE.S."):
            return {"success": True}
        if self.refused < self._refusals:
            self.refused += 1
            return {"error": BUSY}
        config = json.loads(body)["config"]
        self.made.append(config)
        return {"stream_name": "S", "name": config["name"], "config": config}

    def _pulled(self, pull: Pull) -> Iterable[bytes]:
        if pull.consumer in self._asked or not self._answers:
            return ()
        self._asked.add(pull.consumer)
        return self._answers.pop(0)(pull)


class Scene(NamedTuple):
    nc: jsclient.Connection
    ordered: OrderedConsumer
    told: Recorder

    def read(self, count: int) -> list[int]:
        """The places in the stream of the next messages."""
        with self.ordered.messages(stop_after=count) as messages:
            return [msg.metadata.stream_seq for msg in messages]


@contextmanager
def ordered(desk: Consumers) -> Iterator[Scene]:
    """An ordered consumer at the desk; nothing is left of it."""
    told = Recorder()
    with (
        ScriptedServer(desk.script()) as server,
        connected(server.url, on_event=told) as nc,
    ):
        yield Scene(nc, OrderedConsumer(nc.jetstream()._api, "S"), told)
        assert_tidy(nc)


def test_after_a_gap_the_next_consumer_begins_with_what_is_missing() -> None:
    desk = Consumers(
        lambda pull: [pull.message(1), pull.message(2), pull.message(4)],
        lambda pull: [pull.message(3, place=1), pull.message(4, place=2)],
    )
    with ordered(desk) as scene:
        assert scene.read(4) == [1, 2, 3, 4]
        first, second = desk.made
        assert "opt_start_seq" not in first
        assert second["deliver_policy"] == "by_start_sequence"
        assert second["opt_start_seq"] == 3
        error = scene.told.wait_for(events.ConsumerWarning).error
        assert isinstance(error, failures.LostPullError)
        assert "is at message 4, 2 arrived" in str(error)


def test_a_heartbeat_that_is_ahead_of_what_came_is_a_gap() -> None:
    ahead = {"Nats-Last-Consumer": 2, "Nats-Last-Stream": 2}
    desk = Consumers(
        lambda pull: [pull.message(1), pull.status("100 Idle Heartbeat", ahead)],
        lambda pull: [pull.message(2, place=1)],
    )
    with ordered(desk) as scene:
        assert scene.read(2) == [1, 2]
        assert desk.made[1]["opt_start_seq"] == 2


def test_what_the_last_consumer_sends_late_is_dropped() -> None:
    desk = Consumers(
        lambda pull: [pull.message(1), pull.message(3)],
        lambda pull: [
            desk.pulls[0].message(2),
            desk.pulls[0].message(3),
            desk.pulls[0].status("409 Consumer Deleted"),
            pull.message(2, place=1),
            desk.pulls[0].message(4),
            pull.message(3, place=2),
        ],
    )
    with ordered(desk) as scene:
        assert scene.read(3) == [1, 2, 3]
        assert len(desk.made) == 2


def test_a_server_that_cannot_make_a_consumer_now_is_asked_less_and_less_often() -> (
    None
):
    desk = Consumers(lambda pull: [pull.message(1)], refusals=3)
    with ordered(desk) as scene:
        begun = time.monotonic()
        assert scene.read(1) == [1]
        assert time.monotonic() - begun >= FIRST_PAUSE * (1 + 2 + 4)
        assert (desk.refused, len(desk.made)) == (3, 1)


def test_a_gap_is_not_the_end_when_the_next_consumer_cannot_be_made_at_once() -> None:
    desk = Consumers(
        lambda pull: [pull.message(1), pull.message(3)],
        lambda pull: [pull.message(2, place=1), pull.message(3, place=2)],
    )
    with ordered(desk) as scene:
        with scene.ordered.messages(stop_after=3) as messages:
            assert messages.next().metadata.stream_seq == 1
            desk._refusals = 2
            assert [msg.metadata.stream_seq for msg in messages] == [2, 3]
        assert (desk.refused, len(desk.made)) == (2, 2)
