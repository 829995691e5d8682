"""The subscribe workflow against a JetStream that changes while it is spoken to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import jsclient
from jsclient import jetstream_errors as failures
from jsclient.jetstream import JetStream
from tests.harness.scripted import ScriptedServer, handshake
from tests.net.client import TIMEOUT, connected
from tests.net.frames import client_frames
from tests.net.jetstream_peer import Request, answering

Reaction = Callable[[Request], Iterable[bytes]]


def found(request: Request, **config: Any) -> list[bytes]:
    """A consumer D is there."""
    own = {"durable_name": "D", "ack_policy": "explicit", **config}
    info = {"stream_name": "S", "name": "D", "config": own}
    return [request.json(info)]


def missing(request: Request) -> list[bytes]:
    return [request.error(404, 10014, "consumer not found")]


def made(request: Request) -> list[bytes]:
    """The consumer is made as it was asked for."""
    config = request.body["config"]
    return [
        request.json({"stream_name": "S", "name": config["name"], "config": config})
    ]


def silent(request: Request) -> list[bytes]:
    return []


def refused(code: int, text: str = "no") -> Reaction:
    return lambda request: [request.error(400, code, text)]


def deleted(request: Request) -> list[bytes]:
    # Nobody waits for it if the call fails.
    return [request.json({"success": True})] if request.reply else []


def one_stream(request: Request) -> list[bytes]:
    return [request.json({"streams": ["S"], "total": 1})]


def here(request: Request) -> list[bytes]:
    return found(request, deliver_subject="here")


class Api:
    """Answers each endpoint by its reactions in turn, by the last one for ever."""

    def __init__(self, **reactions: list[Reaction]) -> None:
        self._reactions: dict[str, list[Reaction]] = {
            "names": [one_stream],
            "delete": [deleted],
            **reactions,
        }

    def __call__(self, request: Request) -> Iterable[bytes]:
        endpoint = request.subject.removeprefix("$JS.API.").split(".")[1].lower()
        if endpoint not in self._reactions:
            return []
        reactions = self._reactions[endpoint]
        return (reactions.pop(0) if len(reactions) > 1 else reactions[0])(request)


class Scene(NamedTuple):
    js: JetStream
    server: ScriptedServer

    def said(self) -> list[str]:
        """What the client said, in order: SUB, UNSUB, and requests to the API."""
        self.js._connection.flush(TIMEOUT)
        lines: list[str] = []
        inboxes: dict[str, str] = {}
        data = self.server.received(0)
        for verb, arguments, _ in client_frames(data, may_be_cut=True):
            words = arguments.decode().split()
            if verb == b"SUB" and not words[0].endswith(".*"):
                inboxes[words[-1]] = words[0]
                lines.append(" ".join(["SUB", *words[:-1]]))
            elif verb == b"UNSUB" and words[0] in inboxes:
                lines.append(f"UNSUB {inboxes[words[0]]}")
            elif verb in (b"PUB", b"HPUB"):
                lines.append(".".join(words[0].split(".")[2:4]))
        return [re.sub(r"_INBOX\.\w+", "inbox", line) for line in lines]


@contextmanager
def scene(timeout: float = TIMEOUT, **reactions: list[Reaction]) -> Iterator[Scene]:
    peer = answering(Api(**reactions))
    with (
        ScriptedServer([handshake(), peer]) as server,
        connected(server.url) as nc,
    ):
        yield Scene(nc.jetstream(timeout=timeout), server)


def test_the_subscription_is_created_prior_to_attempting_to_create_the_consumer() -> (
    None
):
    with scene(info=[missing], create=[made]) as at:
        sub = at.js.subscribe("s.1", durable="D")
        assert sub.is_active
        assert at.said() == [
            "STREAM.NAMES",
            "CONSUMER.INFO",
            "SUB inbox",
            "CONSUMER.CREATE",
        ]


def test_a_queue_is_subscribed_to_with_its_group() -> None:
    with scene(info=[missing], create=[made]) as at:
        sub = at.js.subscribe("s.1", stream="S", queue="q")
        assert sub.is_active
        assert at.said() == ["CONSUMER.INFO", "SUB inbox q", "CONSUMER.CREATE"]


@pytest.mark.parametrize("number", [10013, 10105, 10148])
def test_when_the_consumer_already_exists_the_subscription_is_destroyed_and_replaced(
    number: int,
) -> None:
    with scene(info=[missing, here], create=[refused(number)]) as at:
        sub = at.js.subscribe("s.1", stream="S", durable="D")
        assert sub.subject == "here"
        said = [
            "CONSUMER.INFO",
            "SUB inbox",
            "CONSUMER.CREATE",
            "CONSUMER.INFO",
            "UNSUB inbox",
            "SUB here",
        ]
        assert at.said() == said
        sub.unsubscribe()
        # It is another's: nobody deletes it.
        assert at.said() == [*said, "UNSUB here"]


@pytest.mark.parametrize(
    ("config", "options", "error"),
    [
        ({"deliver_subject": "d"}, {"queue": "q"}, failures.NoDeliverGroupError),
        (
            {"deliver_subject": "d", "deliver_group": "other"},
            {"queue": "q"},
            failures.QueueMismatchError,
        ),
        ({}, {}, failures.PullConsumerMismatchError),
        (
            {"deliver_subject": "d", "filter_subject": "s.2"},
            {},
            failures.SubjectMismatchError,
        ),
        ({"deliver_subject": "d"}, {"ack_wait": 7}, failures.ConfigMismatchError),
    ],
)
def test_after_the_race_the_same_checks_are_performed(
    config: dict[str, Any],
    options: dict[str, Any],
    error: type[failures.SubscriptionMismatchError],
) -> None:
    def late(request: Request) -> list[bytes]:
        return found(request, **config)

    with scene(info=[missing, late], create=[refused(10013)]) as at:
        with pytest.raises(error):
            at.js.subscribe("s.1", stream="S", durable="D", **options)
        # What was subscribed to is not any more.
        assert at.said()[-1] == "UNSUB inbox"
        assert len(at.js._connection._loop.entries) == 1


def test_a_subscriber_that_lost_the_race_is_told_that_there_is_one() -> None:
    def bound(request: Request) -> list[bytes]:
        own = {"durable_name": "D", "deliver_subject": "d"}
        info = {"stream_name": "S", "name": "D", "config": own, "push_bound": True}
        return [request.json(info)]

    with scene(info=[missing, bound], create=[refused(10013)]) as at:
        with pytest.raises(failures.DuplicateSubscriptionError):
            at.js.subscribe("s.1", stream="S", durable="D")
        assert at.said()[-1] == "UNSUB inbox"


def test_for_pull_subscriptions_basic_checks_of_consumer_type_should_be_done() -> None:
    def bound(request: Request) -> list[bytes]:
        # A pull consumer has no deliver subject, whatever else is said of it.
        own = {"durable_name": "D", "ack_policy": "explicit"}
        info = {"stream_name": "S", "name": "D", "config": own, "push_bound": True}
        return [request.json(info)]

    with scene(info=[missing, bound], create=[refused(10148)]) as at:
        sub = at.js.pull_subscribe("s.1", "D")
        assert not sub.owns_consumer
    with (
        scene(info=[missing, here], create=[refused(10148)]) as at,
        pytest.raises(failures.PushConsumerMismatchError),
    ):
        at.js.pull_subscribe("s.1", "D")


def test_a_consumer_that_exists_and_is_gone_again_is_told_as_refused() -> None:
    with scene(info=[missing], create=[refused(10013)]) as at:
        with pytest.raises(failures.ConsumerExistsError):
            at.js.subscribe("s.1", stream="S", durable="D")
        assert at.said()[-1] == "UNSUB inbox"


def test_any_other_refusal_ends_the_subscription() -> None:
    with scene(info=[missing], create=[refused(10026)]) as at:
        with pytest.raises(failures.MaximumConsumersError):
            at.js.subscribe("s.1", stream="S", durable="D")
        assert at.said() == [
            "CONSUMER.INFO",
            "SUB inbox",
            "CONSUMER.CREATE",
            "UNSUB inbox",
        ]


@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
def test_an_ephemeral_that_may_have_been_made_is_deleted(kind: str) -> None:
    with scene(timeout=0.5, create=[silent]) as at:
        with pytest.raises(jsclient.TimeoutError):
            getattr(at.js, kind)("s.1", stream="S")
        assert at.said().count("CONSUMER.DELETE") == 1
        assert len(at.js._connection._loop.entries) == 1


@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
def test_a_durable_that_may_have_been_made_may_be_anothers_and_stays(kind: str) -> None:
    with scene(timeout=0.5, info=[missing], create=[silent]) as at:
        with pytest.raises(jsclient.TimeoutError):
            getattr(at.js, kind)("s.1", stream="S", durable="D")
        assert "CONSUMER.DELETE" not in at.said()
        assert len(at.js._connection._loop.entries) == 1


@pytest.mark.parametrize("endpoint", ["names", "info", "create"])
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
def test_all_steps_of_a_call_have_one_deadline(kind: str, endpoint: str) -> None:
    given: dict[str, Any] = {"info": [missing], "create": [made]}
    with scene(**{**given, endpoint: [silent]}) as at:
        begun = time.monotonic()
        with pytest.raises(jsclient.TimeoutError):
            getattr(at.js, kind)("s.1", durable="D", timeout=0.4)
        assert 0.35 < time.monotonic() - begun < TIMEOUT / 2


def test_a_pull_subscription_that_cannot_look_its_consumer_up_waits_no_longer() -> None:
    with scene(info=[silent]) as at:
        begun = time.monotonic()
        sub = at.js.pull_subscribe(stream="S", consumer="C", timeout=0.4)
        assert time.monotonic() - begun < TIMEOUT / 2
        assert sub.consumer_name == "C"
        assert at.said().count("CONSUMER.CREATE") == 0


def test_a_push_subscription_that_cannot_look_its_consumer_up_is_none() -> None:
    with scene(info=[silent]) as at:
        with pytest.raises(jsclient.TimeoutError):
            at.js.subscribe(stream="S", consumer="C", timeout=0.4)
        assert "SUB" not in " ".join(at.said())


@pytest.mark.parametrize(
    "answer",
    [
        {"streams": None, "total": 0},
        {"streams": [], "total": 0},
        {"streams": ["A", "B"], "total": 2},
        {"total": 1},
    ],
)
def test_anything_but_one_stream_is_no_match(answer: dict[str, Any]) -> None:
    def names(request: Request) -> list[bytes]:
        assert request.body["subject"] == "s.1"
        return [request.json(answer)]

    with scene(names=[names]) as at:
        with pytest.raises(failures.NoMatchingStreamError):
            at.js.subscribe("s.1")
        assert at.said() == ["STREAM.NAMES"]
