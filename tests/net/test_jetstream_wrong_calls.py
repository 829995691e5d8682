"""Wrong calls of JetStream are refused at the call: the server sees no request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from jsclient.config import ConsumerConfig, StreamConfig, StreamSource
from jsclient.consumer import Consumer
from jsclient.jetstream import JetStream
from jsclient.stream import Stream
from tests.harness.scripted import ScriptedServer, handshake
from tests.net.client import connected
from tests.net.jetstream_peer import Request, answering

STREAM = {"config": {"name": "S", "allow_direct": True}}
CONSUMER = {"stream_name": "S", "name": "C", "config": {"name": "C"}}
# Not a name: empty, with a dot, a blank, a wildcard, a path or a line break, too long.
WRONG_NAMES = (
    "",
    "a.b",
    "a b",
    "a/b",
    "a\\b",
    "*",
    ">",
    "a\tb",
    "a\r\nb",
    "a\0",
    "a" * 256,
    "a\ud800",
    "a\udc80",
)
WRONG_SUBJECTS = ("", ".", "a..b", ".a", "a.", "a b", "a\nb", "a.>.b", "a*", "\ta")


async def later(_: object) -> None:
    """Nobody would await it."""


class Handles:
    """A context, a stream and a consumer, and the requests since they were made."""

    def __init__(self, js: JetStream, requests: list[Request]) -> None:
        self.js = js
        self.stream: Stream = js.stream("S")
        self.consumer: Consumer = js.consumer("S", "C")
        self.requests = requests
        requests.clear()

    def refuses(
        self, name: str, call: Callable[[], object], kind: type = ValueError
    ) -> None:
        """The call names what is wrong, and nothing is sent."""
        with pytest.raises(kind, match=name):
            call()
        assert self.requests == []


@contextmanager
def handles() -> Iterator[Handles]:
    """Handles on a scripted server; no fixture, which would hold them too long."""
    requests: list[Request] = []

    def answer(request: Request) -> list[bytes]:
        requests.append(request)
        return [request.json({**STREAM, **CONSUMER, "config": {"name": "S"}})]

    with (
        ScriptedServer([handshake(), answering(answer)]) as server,
        connected(server.url) as nc,
    ):
        yield Handles(nc.jetstream(), requests)


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_names_of_streams_are_checked(name: str) -> None:
    with handles() as on:
        js = on.js
        calls: list[Callable[[], object]] = [
            lambda: js.create_stream(name=name),
            lambda: js.create_stream(StreamConfig(name=name)),
            lambda: js.update_stream(name=name, max_msgs=1),
            lambda: js.create_or_update_stream(name=name),
            lambda: js.stream(name),
            lambda: js.delete_stream(name),
            lambda: js.purge_stream(name),
            lambda: js.create_consumer(name),
            lambda: js.update_consumer(name, "C", max_deliver=1),
            lambda: js.create_or_update_consumer(name),
            lambda: js.consumer(name, "C"),
            lambda: js.delete_consumer(name, "C"),
            lambda: js.consumers(name),
            lambda: js.consumer_names(name),
            lambda: js.pause_consumer(name, "C", "2040-01-01T00:00:00Z"),
            lambda: js.resume_consumer(name, "C"),
            lambda: js.reset_consumer(name, "C"),
            lambda: js.unpin_consumer(name, "C", "g"),
            lambda: js.create_stream(name="T", mirror=StreamSource(name=name)),
            lambda: js.create_stream(name="T", sources=["S", name]),
        ]
        for call in calls:
            on.refuses("name", call)


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_names_of_consumers_are_checked(name: str) -> None:
    with handles() as on:
        js, stream = on.js, on.stream
        calls: list[Callable[[], object]] = [
            lambda: js.create_consumer("S", name=name),
            lambda: js.create_consumer("S", ConsumerConfig(durable_name=name)),
            lambda: js.create_or_update_consumer("S", durable_name=name),
            lambda: js.update_consumer("S", name, max_deliver=1),
            lambda: js.consumer("S", name),
            lambda: js.delete_consumer("S", name),
            lambda: js.pause_consumer("S", name, "2040-01-01T00:00:00Z"),
            lambda: js.resume_consumer("S", name),
            lambda: js.reset_consumer("S", name),
            lambda: js.unpin_consumer("S", name, "g"),
            lambda: stream.pause_consumer(name, "2040-01-01T00:00:00Z"),
            lambda: stream.resume_consumer(name),
            lambda: stream.reset_consumer(name),
            lambda: stream.unpin_consumer(name, "g"),
            lambda: stream.create_consumer(name=name),
            lambda: stream.create_or_update_consumer(durable_name=name),
            lambda: stream.update_consumer(name, max_deliver=1),
            lambda: stream.consumer(name),
            lambda: stream.delete_consumer(name),
        ]
        for call in calls:
            on.refuses("name", call)


def test_names_are_texts() -> None:
    with handles() as on:
        wrong: Any = b"S"
        calls: list[Callable[[], object]] = [
            lambda: on.js.stream(wrong),
            lambda: on.js.delete_stream(None),  # type: ignore[arg-type]
            lambda: on.js.create_stream(name=wrong),
            lambda: on.js.consumer("S", 7),  # type: ignore[arg-type]
            lambda: on.stream.create_consumer(name=wrong),
        ]
        for call in calls:
            on.refuses("name must be a str", call, TypeError)


@pytest.mark.parametrize("subject", WRONG_SUBJECTS)
def test_subjects_are_checked(subject: str) -> None:
    with handles() as on:
        js, stream = on.js, on.stream
        calls: list[tuple[str, Callable[[], object]]] = [
            ("subjects", lambda: js.create_stream(name="T", subjects=["ok", subject])),
            ("subjects", lambda: stream.info(subjects=subject)),
            ("subject", lambda: js.streams(subject)),
            ("subject", lambda: js.stream_names(subject)),
            ("subject", lambda: js.purge_stream("S", subject=subject)),
            ("subject", lambda: stream.purge(subject)),
            ("last_for", lambda: stream.get_msg(last_for=subject)),
            ("next_for", lambda: stream.get_msg(next_for=subject)),
            ("next_for", lambda: stream.get_msgs(next_for=subject)),
            ("last_for", lambda: stream.get_msgs(last_for=[subject])),
            (
                "filter_subjects",
                lambda: stream.create_consumer(filter_subjects=["ok", subject]),
            ),
        ]
        if subject:  # an empty one is none
            calls += [
                (
                    "filter_subject",
                    lambda: stream.create_consumer(filter_subject=subject),
                ),
                (
                    "deliver_subject",
                    lambda: stream.create_consumer(deliver_subject=subject),
                ),
            ]
        for name, call in calls:
            on.refuses(name, call)


STREAM_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("max_age", {"max_age": -1}),
    ("max_age", {"max_age": float("nan")}),
    ("max_age", {"max_age": 0.01}),
    ("duplicate_window", {"max_age": 1, "duplicate_window": 2}),
    ("retention", {"retention": "forever"}),
    ("storage", {"storage": "tape"}),
    ("discard", {"discard": ""}),
    ("compression", {"compression": "zip"}),
    ("num_replicas", {"num_replicas": 6}),
    ("num_replicas", {"num_replicas": -1}),
    ("description", {"description": "x" * 4097}),
    ("description", {"description": "\ud800"}),
    ("metadata", {"metadata": {"k": "x" * 131072}}),
    ("metadata", {"metadata": {"_nats.k": "x"}}),
    ("a key of metadata", {"metadata": {"\ud800": "x"}}),
    (r"metadata\['k'\]", {"metadata": {"k": "\ud800"}}),
    (r"subjects\[1\]", {"subjects": ["a", "\ud800"]}),
    ("sealed", {"sealed": True}),
    ("mirror_direct", {"mirror_direct": True}),
    ("republish.dest", {"republish": {"src": "a"}}),
    ("subjects overlap", {"subjects": ["a.*", "a.b"]}),
    ("subjects", {"subjects": ["$JS.API.>"]}),
    ("mirror", {"mirror": "O", "subjects": ["a"]}),
    ("discard_new_per_subject", {"discard_new_per_subject": True}),
    ("first_seq", {"first_seq": -1}),
    ("first_seq", {"first_seq": 1 << 64}),
    ("max_msgs", {"max_msgs": 1 << 63}),
    ("max_bytes", {"max_bytes": -(1 << 63) - 1}),
    ("max_msg_size", {"max_msg_size": 1 << 31}),
    ("mirror.opt_start_seq", {"mirror": {"name": "O", "opt_start_seq": -1}}),
    ("max_ack_pending", {"consumer_limits": {"max_ack_pending": 1 << 63}}),
    ("placement", {"placement": {"preferred": "n1"}}),
    ("republish", {"subjects": ["a.>"], "republish": {"src": ">", "dest": "a.b"}}),
    ("domain", {"mirror": {"name": "O", "domain": "d", "external": {"api": "x"}}}),
    ("subject_delete_marker_ttl", {"subject_delete_marker_ttl": 0.5}),
]


@pytest.mark.parametrize(("name", "fields"), STREAM_FIELDS)
def test_fields_of_streams_are_checked(name: str, fields: dict[str, Any]) -> None:
    with handles() as on:
        on.refuses(name, lambda: on.js.create_stream(name="T", **fields))


CONSUMER_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("ack_wait", {"ack_wait": -1}),
    ("ack_policy", {"ack_policy": "maybe"}),
    ("deliver_policy", {"deliver_policy": "some"}),
    ("replay_policy", {"replay_policy": "slow"}),
    ("durable_name", {"name": "a", "durable_name": "b"}),
    ("opt_start_seq", {"opt_start_seq": 5}),
    ("opt_start_seq", {"deliver_policy": "by_start_sequence"}),
    ("opt_start_time", {"deliver_policy": "by_start_time"}),
    ("opt_start_time", {"opt_start_time": "yesterday"}),
    ("opt_start_time", {"opt_start_time": datetime(2024, 1, 1)}),
    ("deliver_policy", {"deliver_policy": "last_per_subject"}),
    ("filter_subjects", {"filter_subject": "a", "filter_subjects": ["b"]}),
    ("filter_subjects overlap", {"filter_subjects": ["a.*", "a.b"]}),
    ("backoff", {"max_deliver": 1, "backoff": [1, 2]}),
    (r"backoff\[1\]", {"backoff": [1, -2]}),
    ("sample_freq", {"sample_freq": "often"}),
    ("priority_policy", {"priority_policy": "overflow"}),
    ("priority_groups", {"priority_groups": ["g"]}),
    ("priority_groups", {"priority_policy": "overflow", "priority_groups": ["a b"]}),
    ("max_waiting", {"deliver_subject": "d", "max_waiting": 5}),
    ("flow_control", {"flow_control": True}),
    ("flow_control", {"deliver_subject": "d", "flow_control": True}),
    ("idle_heartbeat", {"deliver_subject": "d", "idle_heartbeat": 0.01}),
    ("rate_limit_bps", {"rate_limit_bps": 5}),
    ("rate_limit_bps", {"deliver_subject": "d", "rate_limit_bps": -1}),
    ("opt_start_seq", {"deliver_policy": "by_start_sequence", "opt_start_seq": -1}),
    ("max_ack_pending", {"max_ack_pending": 1 << 63}),
    ("num_replicas", {"num_replicas": 7}),
    ("deliver_group", {"deliver_group": "g"}),
    ("deliver_group", {"deliver_subject": "d", "deliver_group": "a b"}),
    ("metadata", {"metadata": {"_nats.k": "x"}}),
    ("description", {"description": "\ud800"}),
]


@pytest.mark.parametrize(("name", "fields"), CONSUMER_FIELDS)
def test_fields_of_consumers_are_checked(name: str, fields: dict[str, Any]) -> None:
    with handles() as on:
        on.refuses(name, lambda: on.stream.create_consumer(**fields))
        on.refuses(name, lambda: on.js.create_consumer("S", **fields))
        on.refuses(name, lambda: on.stream.create_or_update_consumer(**fields))


def test_types_of_fields_are_checked_also_for_updates() -> None:
    with handles() as on:
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("max_msgs must be an int", {"max_msgs": "5"}),
            ("max_msgs must be an int", {"max_msgs": True}),
            ("no_ack must be a bool", {"no_ack": 1}),
            ("subjects must be a list", {"subjects": "a.>"}),
            ("max_age must be a number", {"max_age": "1h"}),
            ("metadata must be a dict", {"metadata": ["a"]}),
            ("mirror must be a StreamSource", {"mirror": 5}),
            ("no field 'max_msg_siz'; did you mean 'max_msg_size'", {"max_msg_siz": 5}),
        ]
        for text, fields in wrong:
            for call in (
                on.js.create_stream,
                on.js.update_stream,
                on.js.create_or_update_stream,
            ):
                on.refuses(text, partial(call, name="T", **fields), TypeError)
            on.refuses(text, partial(on.stream.update, **fields), TypeError)
        text = "no field 'ack_polciy'; did you mean 'ack_policy'"
        options: dict[str, Any] = {"ack_polciy": "none"}
        for made in (
            lambda: on.stream.create_consumer(**options),
            lambda: on.stream.update_consumer("C", **options),
            lambda: on.stream.create_or_update_consumer(**options),
            lambda: on.js.create_consumer("S", **options),
            lambda: on.js.update_consumer("S", "C", **options),
            lambda: on.consumer.update(**options),
        ):
            on.refuses(text, made, TypeError)


def test_numbers_and_times_are_checked() -> None:
    with handles() as on:
        js, stream, consumer = on.js, on.stream, on.consumer
        wrong: Any = "5"
        naive = datetime(2024, 1, 1)
        calls: list[tuple[str, Callable[[], object]]] = [
            ("seq", lambda: stream.get_msg(0)),
            ("seq", lambda: stream.get_msg(-1)),
            ("seq", lambda: stream.get_msg(1 << 64)),
            ("seq", lambda: stream.get_batch(1 << 64)),
            ("max_messages", lambda: stream.get_batch(1, max_messages=1 << 63)),
            ("limit", lambda: stream.get_msgs(limit=1 << 63)),
            ("max_bytes", lambda: stream.get_msgs(max_bytes=1 << 63)),
            ("up_to_seq", lambda: stream.get_msgs(last_for=["a"], up_to_seq=1 << 64)),
            ("seq", lambda: stream.delete_msg(0)),
            ("seq", lambda: stream.delete_msg(1 << 64)),
            ("sequence", lambda: stream.purge(sequence=1 << 64)),
            ("seq", lambda: consumer.reset(1 << 64)),
            ("seq", lambda: stream.get_msgs(seq=0)),
            ("sequence", lambda: stream.purge(sequence=-1)),
            ("keep", lambda: stream.purge(keep=-1)),
            ("sequence or keep", lambda: js.purge_stream("S", sequence=1, keep=1)),
            ("seq", lambda: consumer.reset(-1)),
            ("until", lambda: consumer.pause(naive)),
            ("until", lambda: consumer.pause("tomorrow")),
            ("start_time", lambda: stream.get_msg(start_time=naive)),
            ("group", lambda: consumer.unpin("")),
            ("group", lambda: consumer.unpin("a b")),
            ("group", lambda: consumer.unpin("x" * 17)),
            ("timeout", lambda: js.account_info(timeout=-1)),
            ("timeout", lambda: stream.info(timeout=float("nan"))),
            ("timeout", lambda: js.streams(timeout=-1)),
            ("timeout", lambda: stream.get_msg(1, timeout=-1)),
            ("timeout", lambda: stream.update(max_msgs=1, timeout=-1)),
        ]
        for name, call in calls:
            on.refuses(name, call)
        of_types: list[tuple[str, Callable[[], object]]] = [
            ("seq", lambda: stream.get_msg(wrong)),
            ("seq", lambda: stream.get_msg(True)),
            ("seq", lambda: stream.delete_msg(wrong)),
            ("keep", lambda: stream.purge(keep=wrong)),
            ("max_bytes", lambda: consumer.fetch_bytes(None)),  # type: ignore[arg-type]
            ("until", lambda: consumer.pause(5)),  # type: ignore[arg-type]
            ("group", lambda: consumer.unpin(5)),  # type: ignore[arg-type]
            ("last_for", lambda: stream.get_msgs(last_for=5)),  # type: ignore[arg-type]
            ("timeout", lambda: js.account_info(timeout=wrong)),
            ("callback", lambda: consumer.consume(wrong)),
            ("callback", lambda: consumer.consume(later)),
            ("callback", lambda: stream.ordered_consumer().consume(later)),
        ]
        for name, call in of_types:
            on.refuses(name, call, TypeError)
