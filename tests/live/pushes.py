"""What the live tests of push deliveries share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import jsclient
from jsclient._core import Msg
from jsclient.jetstream import JetStream
from jsclient.server import Server
from tests.harness.proxy import FaultProxy
from tests.live.support import Events


def numbers(messages: Iterable[Msg]) -> list[int]:
    """The numbers of the deliveries."""
    return [msg.metadata.consumer_seq for msg in messages]


def proxy_of(server: Server) -> FaultProxy:
    return FaultProxy("127.0.0.1", int(server.url.rpartition(":")[2]))


class Answers:
    """Sees what is published to flow-control subjects of a stream."""

    def __init__(self, nc: jsclient.Connection, stream: str) -> None:
        self._sub = nc.subscribe(f"$JS.FC.{stream}.>")
        nc.flush()
        self.messages: list[Msg] = []

    @property
    def subjects(self) -> list[str]:
        """The answers so far."""
        self.messages += list(self._sub.messages(timeout=0.05))
        return [msg.subject for msg in self.messages]


@contextmanager
def user_of(url: str, told: Events | None = None) -> Iterator[JetStream]:
    """A connection that reconnects at once."""
    with jsclient.connect(url, on_event=told, reconnect_wait=0.05) as nc:
        yield nc.jetstream()
