"""What the live tests of the subscribe workflow share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jsclient
from jsclient.server import Server
from tests.live.support import PATIENCE

# The API of OWNER, as GUEST sees it, and where its push consumers may deliver.
IMPORTS = """
    accounts {
      OWNER { jetstream: enabled, users: [{ user: owner, password: secret }]
        exports: [
          { service: "$JS.API.>", response_type: stream }
          { service: "$JS.ACK.>" }
          { stream: "deliver.guest.>" }, { stream: "deliver.guest" }
        ] }
      GUEST { users: [{ user: guest, password: secret }]
        imports: [
          { service: { account: OWNER, subject: "$JS.API.>" }, to: "from.owner.>" }
          { service: { account: OWNER, subject: "$JS.ACK.>" } }
          { stream: { account: OWNER, subject: "deliver.guest" } }
        ] }
    }
"""


class Call(NamedTuple):
    """A request that a client sent to the API of JetStream."""

    verb: str  # the subject, without `$JS.API.`
    body: Any


class Wiretap:
    """Every request to the API of JetStream, in order, from another connection."""

    def __init__(self, nc: jsclient.Connection) -> None:
        self._nc = nc
        self._sub = nc.subscribe("$JS.API.>")
        self._seen: list[Call] = []
        nc.flush()

    def calls(self, *, of: jsclient.Connection) -> list[Call]:
        """All of them so far, of a connection that has said all that it has to say."""
        of.flush(PATIENCE)
        self._nc.publish("$JS.API.tap", b"")
        while True:
            msg = self._sub.next(PATIENCE)
            verb = msg.subject.removeprefix("$JS.API.")
            if verb == "tap":
                return list(self._seen)
            self._seen.append(Call(verb, json.loads(msg.data) if msg.data else None))

    def verbs(self, *, of: jsclient.Connection) -> list[str]:
        """Their first two tokens."""
        return [".".join(call.verb.split(".")[:2]) for call in self.calls(of=of)]


@contextmanager
def wiretap(server: Server) -> Iterator[Wiretap]:
    """A wiretap on a server, for the rest of a block."""
    with jsclient.connect(server.url) as nc:
        yield Wiretap(nc)
