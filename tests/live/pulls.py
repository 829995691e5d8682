"""What the live tests of consuming share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from jsclient._core import Msg
from jsclient.jetstream import JetStream
from jsclient.stream import Stream
from tests.harness.tidy import assert_tidy
from tests.live.support import PATIENCE


def stream_of(js: JetStream, name: str = "S", **options: Any) -> Stream:
    """An empty stream in memory on `s.>`, or as the options say."""
    settings: dict[str, Any] = {"subjects": ["s.>"], "storage": "memory", **options}
    return js.create_stream(name=name, **settings)


def fill(js: JetStream, count: int, data: bytes = b"", *, first: int = 1) -> None:
    """Stores messages on s.1, s.2, …"""
    numbers = range(first, first + count)
    messages = ((f"s.{number}", data or b"%d" % number) for number in numbers)
    for subject, payload in islice(messages, 1):
        # A server of a cluster may learn of a new stream later than we do.
        js.publish(subject, payload, retries=-1, timeout=PATIENCE)
    for _ in js.publish_all(messages):
        pass


def seqs(messages: Iterable[Msg]) -> list[int]:
    """Their sequences in the stream."""
    return [msg.metadata.stream_seq for msg in messages]


def assert_nothing_left(js: JetStream) -> None:
    """Every pull of the connection is over and put away."""
    assert_tidy(js._connection)
