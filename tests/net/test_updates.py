"""Updates: what is named changes, what is not stays, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jsclient import jetstream_errors as failures
from jsclient.config import ConsumerConfig, StreamConfig
from jsclient.jetstream import JetStream
from tests.net.jetstream_peer import Request
from tests.net.test_api_faults import Asked, jetstream

STREAM: dict[str, Any] = {
    "name": "S",
    "subjects": ["s.>"],
    "max_age": 3_600_000_000_000,
    "metadata": {"_nats.ver": "3.0.0", "_nats.future": "1", "mine": "1"},
    "future_x": {"deep": [1, 2]},
    "future_y": 1,
}
MIRROR: dict[str, Any] = {
    "name": "S",
    "mirror": {"name": "O"},
    "mirror_direct": True,
    "future_x": 1,
}
CONSUMER: dict[str, Any] = {
    "name": "C",
    "durable_name": "C",
    "ack_policy": "explicit",
    "ack_wait": 5_000_000_000,
    "filter_subject": "s.a",
    "metadata": {"_nats.future": "1"},
    "future_x": 1,
}


class Kept:
    """A server with one stream and one consumer, and what it was told to change."""

    def __init__(self, stream: dict[str, Any], consumer: dict[str, Any]) -> None:
        self.stream, self.consumer = stream, consumer
        self.sent: list[dict[str, Any]] = []
        self.asked = Asked(self._answer)

    def _answer(self, request: Request) -> list[bytes]:
        verb = request.subject.removeprefix("$JS.API.")
        if verb.startswith("CONSUMER."):
            known = self.consumer
            if verb.startswith("CONSUMER.CREATE."):
                self.sent.append(request.body)
                known = request.body["config"]
            elif not verb.endswith(".C"):
                return [request.error(404, 10014, "consumer not found")]
            answer = {"stream_name": "S", "name": known["name"], "config": known}
            return [request.json(answer)]
        known = self.stream
        if request.body:
            self.sent.append(request.body)
            known = request.body
        elif not verb.endswith(".S"):
            return [request.error(404, 10059, "stream not found")]
        return [request.json({"config": known})]

    @property
    def changed(self) -> dict[str, Any]:
        """The only configuration that was sent."""
        (sent,) = self.sent
        found: dict[str, Any] = sent.get("config", sent)
        self.sent.clear()
        return found


@contextmanager
def kept(
    stream: dict[str, Any] = STREAM,
    consumer: dict[str, Any] = CONSUMER,
    *,
    version: str | None = None,
) -> Iterator[tuple[JetStream, Kept]]:
    server = Kept(stream, consumer)
    info: dict[str, object] | None = None if version is None else {"version": version}
    with jetstream(server.asked, info=info) as js:
        yield js, server


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


# Streams ------------------------------------------------------------------------------

UPDATES: dict[str, Callable[..., object]] = {
    "Stream.update": lambda js, **fields: js.stream("S").update(**fields),
    "update_stream": lambda js, **fields: js.update_stream(name="S", **fields),
    "create_or_update_stream": lambda js, **fields: js.create_or_update_stream(
        name="S", **fields
    ),
    "update_stream(config)": lambda js, **fields: js.update_stream(
        StreamConfig(name="S"), **fields
    ),
}


@pytest.mark.parametrize("way", UPDATES)
def test_a_field_that_is_named_as_none_goes_back_to_its_default(way: str) -> None:
    update = UPDATES[way]
    with kept() as (js, server):
        update(js, max_age=None)
        assert server.changed == without(STREAM, "max_age")
    with kept(MIRROR) as (js, server):
        # What only a mirror can have goes with it.
        update(js, mirror=None, subjects=["m"])
        assert server.changed == {"name": "S", "subjects": ["m"], "future_x": 1}


def test_a_field_that_a_configuration_leaves_open_stays() -> None:
    with kept() as (js, server):
        js.update_stream(StreamConfig(name="S", max_msgs=5, max_age=None))
        assert server.changed == {**STREAM, "max_msgs": 5}


@pytest.mark.parametrize("way", UPDATES)
def test_an_update_carries_what_only_its_caller_knows(way: str) -> None:
    update = UPDATES[way]
    with kept() as (js, server):
        update(js, extra={"future_x": 3, "future_z": "new"})
        assert server.changed == {**STREAM, "future_x": 3, "future_z": "new"}
        update(js, extra={"future_x": None})
        assert server.changed == without(STREAM, "future_x")


def test_a_value_that_was_not_understood_can_be_replaced_and_taken_back() -> None:
    with kept({**STREAM, "storage": "future-storage"}) as (js, server):
        js.stream("S").update(storage="memory")
        assert server.changed == {**STREAM, "storage": "memory"}
        js.stream("S").update(storage=None)
        assert server.changed == STREAM


def test_the_name_of_a_stream_cannot_be_changed() -> None:
    with kept() as (js, server):
        stream = js.stream("S")
        for name in ("V", None):
            with pytest.raises(ValueError, match="name cannot be changed: this"):
                stream.update(name=name, max_msgs=5)  # type: ignore[call-arg]
        assert server.sent == []
        stream.update(name="S", max_msgs=5)  # type: ignore[call-arg]
        assert server.changed == {**STREAM, "max_msgs": 5}


def test_an_update_without_a_name_says_that_it_is_missing() -> None:
    with kept() as (js, server):
        for call in (js.create_stream, js.update_stream, js.create_or_update_stream):
            with pytest.raises(ValueError, match="name must be given"):
                call(max_msgs=4)
        assert server.asked.requests == []


def test_create_or_update_looks_at_the_whole_configuration() -> None:
    full = {**STREAM, "discard": "new", "max_msgs_per_subject": 1}
    with kept(full) as (js, server):
        js.create_or_update_stream(name="S", discard_new_per_subject=True)
        assert server.changed == {**full, "discard_new_per_subject": True}
    with kept() as (js, server):
        for name in ("S", "NEW"):
            with pytest.raises(ValueError, match="discard_new_per_subject needs"):
                js.create_or_update_stream(name=name, discard_new_per_subject=True)
        assert server.sent == []


def test_what_a_server_has_accepted_already_does_not_stand_against_an_update() -> None:
    odd = {**STREAM, "mirror_direct": True, "republish": {"src": "s.a"}}
    shared = {**CONSUMER, "deliver_group": "g"}
    with kept(odd, shared) as (js, server):
        js.update_stream(name="S", max_msgs=5)
        assert server.changed == {**odd, "max_msgs": 5}
        js.update_consumer("S", "C", max_deliver=5)
        assert server.changed == {**shared, "max_deliver": 5}


def test_a_stream_is_sealed_by_an_update_and_not_when_it_is_made() -> None:
    with kept() as (js, server):
        for call in (js.create_stream, js.create_or_update_stream):
            with pytest.raises(ValueError, match="sealed"):
                call(name="NEW", sealed=True)
        assert server.sent == []
        js.update_stream(name="S", sealed=True)
        assert server.changed["sealed"] is True


def test_keys_of_the_server_are_only_sent_back() -> None:
    theirs = {"_nats.mine": "1"}
    read = {"_nats.ver": "2.12.0", "_nats.level": "2", "_nats.req.level": "0"}
    with kept() as (js, server):
        calls: list[Callable[[], object]] = [
            lambda: js.create_stream(name="NEW", metadata=theirs),
            lambda: js.update_stream(name="S", metadata=theirs),
            lambda: js.create_or_update_stream(name="S", metadata=theirs),
            lambda: js.create_consumer("S", name="NEW", metadata=theirs),
            lambda: js.update_consumer("S", "C", metadata=theirs),
            lambda: js.create_or_update_consumer("S", name="NEW", metadata=theirs),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"metadata .* '_nats\.mine'"):
                call()
        assert server.sent == []
        # A configuration that was read, changed and written back.
        config = js.stream("S").cached_info.config
        js.update_stream(config, metadata={**(config.metadata or {}), "more": "2"})
        assert server.changed["metadata"] == {**STREAM["metadata"], "more": "2"}
        # And one that was read from another server.
        js.create_stream(name="NEW", metadata=read)
        assert server.changed["metadata"] == read


# Consumers ----------------------------------------------------------------------------

CONSUMER_UPDATES: dict[str, Callable[..., object]] = {
    "Consumer.update": lambda js, **fields: js.consumer("S", "C").update(**fields),
    "js.update_consumer": lambda js, **fields: js.update_consumer("S", "C", **fields),
    "js.create_or_update_consumer": lambda js, **fields: js.create_or_update_consumer(
        "S", durable_name="C", **fields
    ),
    "Stream.update_consumer": lambda js, **fields: js.stream("S").update_consumer(
        "C", ConsumerConfig(name="C"), **fields
    ),
    "Stream.create_or_update_consumer": lambda js, **fields: js.stream(
        "S"
    ).create_or_update_consumer(ConsumerConfig(name="C"), **fields),
}


@pytest.mark.parametrize("way", CONSUMER_UPDATES)
def test_of_a_consumer_only_what_is_named_changes(way: str) -> None:
    update = CONSUMER_UPDATES[way]
    with kept() as (js, server):
        update(js, max_deliver=7)
        assert server.sent[0]["action"] == "update"
        assert server.changed == {**CONSUMER, "max_deliver": 7}
        update(js, ack_wait=None, extra={"future_y": 2})
        assert server.changed == {**without(CONSUMER, "ack_wait"), "future_y": 2}


@pytest.mark.parametrize("way", CONSUMER_UPDATES)
def test_one_kind_of_filter_takes_the_place_of_the_other(way: str) -> None:
    update = CONSUMER_UPDATES[way]
    with kept() as (js, server):
        update(js, filter_subjects=["s.b", "s.c"])
        assert server.changed == {
            **without(CONSUMER, "filter_subject"),
            "filter_subjects": ["s.b", "s.c"],
        }
        with pytest.raises(ValueError, match="filter_subjects cannot go with"):
            update(js, filter_subjects=["s.b"], filter_subject="s.c")
        assert server.sent == []
    several = {**without(CONSUMER, "filter_subject"), "filter_subjects": ["s.b"]}
    with kept(consumer=several) as (js, server):
        update(js, filter_subject="s.a")
        assert server.changed == CONSUMER


def test_the_name_of_a_consumer_cannot_be_changed() -> None:
    with kept() as (js, server):
        consumer = js.consumer("S", "C")
        for field in ("name", "durable_name"):
            other: dict[str, Any] = {field: "D"}
            config = ConsumerConfig(**other)
            with pytest.raises(ValueError, match=f"{field} cannot be changed"):
                consumer.update(**other)
            with pytest.raises(ValueError, match=f"{field} cannot be changed"):
                js.update_consumer("S", "C", config)
        assert server.sent == []
        consumer.update(name="C", durable_name="C", max_deliver=7)  # type: ignore[call-arg]
        assert server.changed == {**CONSUMER, "max_deliver": 7}


def test_create_or_update_makes_a_consumer_that_is_not_there() -> None:
    with kept() as (js, server):
        js.create_or_update_consumer("S", durable_name="NEW", ack_wait=9)
        assert server.changed == {
            "name": "NEW",
            "durable_name": "NEW",
            "ack_policy": "explicit",
            "ack_wait": 9_000_000_000,
        }
        js.create_or_update_consumer("S")
        assert server.changed["ack_policy"] == "explicit"


# Servers of other releases ------------------------------------------------------------


def test_a_server_without_actions_is_not_told_to_make_what_is_there() -> None:
    with kept(version="2.9.25", consumer=without(CONSUMER, "metadata")) as (js, server):
        with pytest.raises(failures.ConsumerExistsError, match="create consumer 'C'"):
            js.create_consumer("S", durable_name="C", ack_wait=30)
        same: dict[str, Any] = {"ack_wait": 5, "filter_subject": "s.a"}
        assert js.create_consumer("S", durable_name="C", **same).name == "C"
        assert server.sent == []
        js.create_consumer("S", durable_name="NEW", ack_wait=30)
        assert server.changed["durable_name"] == "NEW"


def test_a_server_with_actions_is_asked_once() -> None:
    with kept(version="2.10.0") as (js, server):
        js.create_consumer("S", durable_name="C", ack_wait=30)
        assert server.asked.subjects == ["$JS.API.CONSUMER.CREATE.S.C"]
        assert server.sent[0]["action"] == "create"


PEDANTIC: dict[str, Callable[[JetStream], object]] = {
    "create_stream": lambda js: js.create_stream(name="NEW", pedantic=True),
    "update_stream": lambda js: js.update_stream(name="S", max_msgs=1, pedantic=True),
    "create_or_update_stream": lambda js: js.create_or_update_stream(
        name="S", max_msgs=1, pedantic=True
    ),
    "Stream.update": lambda js: js.stream("S").update(max_msgs=1, pedantic=True),
    "create_consumer": lambda js: js.create_consumer("S", name="NEW", pedantic=True),
    "update_consumer": lambda js: js.update_consumer(
        "S", "C", max_deliver=2, pedantic=True
    ),
    "create_or_update_consumer": lambda js: js.create_or_update_consumer(
        "S", name="C", pedantic=True
    ),
    "Stream.update_consumer": lambda js: js.stream("S").update_consumer(
        "C", max_deliver=2, pedantic=True
    ),
    "Consumer.update": lambda js: js.consumer("S", "C").update(
        max_deliver=2, pedantic=True
    ),
}


@pytest.mark.parametrize("way", PEDANTIC)
def test_a_server_that_would_ignore_pedantic_is_not_asked(way: str) -> None:
    plain: dict[str, Any] = {"name": "S"}
    consumer: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}
    with kept(plain, consumer, version="2.10.26") as (js, server):
        with pytest.raises(
            failures.UnsupportedByServerError, match=r"pedantic needs .* 2\.11\.0"
        ):
            PEDANTIC[way](js)
        assert server.sent == []
    with kept(plain, consumer, version="2.11.0") as (js, server):
        PEDANTIC[way](js)
        assert server.sent[0]["pedantic"] is True
