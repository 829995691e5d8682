"""A scripted JetStream with push consumers whose deliveries a test writes itself.

    desk = PushDesk(first=lambda to: [to.message(1), to.flow_control("fc.1")])
    with pushing(desk) as scene:
        assert scene.sub.next().metadata.consumer_seq == 1

What is published to `fc.…` is an answer to flow control, and kept in `answers`. A test
that wants frames sent later has its client publish a cue: `desk.cues` says what the
peer sends when it sees one.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import jsclient
from jsclient import Status
from jsclient.config import ConsumerConfig, consumer_config
from jsclient.info import ConsumerInfo
from jsclient.push import PushSubscription
from tests.harness.scripted import (
    Peer,
    Script,
    ScriptedServer,
    ScriptError,
    handshake,
)
from tests.harness.tidy import assert_tidy
from tests.net.client import TIMEOUT, Recorder, connected

_FRAME = re.compile(
    rb"(?P<ping>PING)\r\n"
    rb"|UNSUB (?P<ended>\d+)[^\r\n]*\r\n"
    rb"|SUB (?P<filter>\S+) (?:(?P<queue>\S+) )?(?P<sid>\d+)\r\n"
    rb"|H?PUB (?P<subject>\S+) (?:(?P<reply>\S+) )??(?:(?P<header>\d+) )?(?P<size>\d+)"
    rb"\r\n"
)
SUBJECT = "deliver.here"
_T = TypeVar("_T")


class To(NamedTuple):
    """A subscription, and the frames that a push consumer sends to it."""

    sid: str
    queue: str | None = None

    def message(self, seq: int, *, stream_seq: int | None = None) -> bytes:
        """The delivery with that number."""
        place = seq if stream_seq is None else stream_seq
        ack = f"$JS.ACK.S.C.1.{place}.{seq}.1794822688406701443.0"
        return f"MSG s.a {self.sid} {ack} 0\r\n\r\n".encode()

    def messages(self, *seqs: int) -> bytes:
        """Several of them."""
        return b"".join(map(self.message, seqs))

    def status(
        self, line: str, headers: Mapping[str, object] | None = None, reply: str = ""
    ) -> bytes:
        """A status such as "409 Consumer Deleted"."""
        given = (headers or {}).items()
        fields = "".join(f"{key}: {value}\r\n" for key, value in given)
        block = f"NATS/1.0 {line}\r\n{fields}\r\n"
        to = f"{reply} " if reply else ""
        sizes = f"{len(block)} {len(block)}"
        return f"HMSG d {self.sid} {to}{sizes}\r\n{block}\r\n".encode()

    def flow_control(self, subject: str) -> bytes:
        """A request to be answered on that subject."""
        return self.status("100 FlowControl Request", reply=subject)

    def heartbeat(self, last: int, stalled: str | None = None) -> bytes:
        """A heartbeat after that many deliveries."""
        headers: dict[str, object] = {
            "Nats-Last-Consumer": last,
            "Nats-Last-Stream": last,
        }
        if stalled is not None:
            headers["Nats-Consumer-Stalled"] = stalled
        return self.status("100 Idle Heartbeat", headers)


class Answer(NamedTuple):
    """What the client published to a subject of flow control."""

    subject: str
    headers: str
    payload: bytes


class Create(NamedTuple):
    """A consumer that the client wants."""

    name: str
    config: dict[str, Any]


class ApiRefusal(NamedTuple):
    """What the API says instead."""

    code: int
    err_code: int
    description: str = "no"


def nothing(*_: object) -> Iterable[bytes]:
    """No frames."""
    return ()


class PushDesk:
    """What the peer does, and what it saw; the same for every link."""

    def __init__(
        self,
        *,
        first: Callable[[To], Iterable[bytes]] = nothing,
        on_create: Callable[[Create, To], Iterable[bytes] | ApiRefusal] | None = None,
    ) -> None:
        self.first = first  # what comes when the subject is subscribed to
        self.on_create = on_create
        self.cues: dict[str, Callable[[To], Iterable[bytes]]] = {}
        self.refuses_deletes = False
        self.to = To("0")
        self._answers: list[Answer] = []
        self._creates: list[Create] = []
        self._deletes: list[str] = []
        self._ended: list[str] = []
        self._changed = threading.Condition()

    @property
    def answers(self) -> list[str]:
        """The subjects that were answered so far."""
        with self._changed:
            return [answer.subject for answer in self._answers]

    @property
    def deletes(self) -> list[str]:
        """The consumers that were deleted so far."""
        with self._changed:
            return list(self._deletes)

    @property
    def ended(self) -> list[str]:
        """The sids that were unsubscribed so far."""
        with self._changed:
            return list(self._ended)

    def wait_answer(self, count: int = 1) -> Answer:
        """The answer with that number."""
        return self._wait(self._answers, count)

    def wait_create(self, count: int = 1) -> Create:
        """The consumer with that number."""
        return self._wait(self._creates, count)

    def wait_delete(self, count: int = 1) -> str:
        """The deletion with that number."""
        return self._wait(self._deletes, count)

    def _wait(self, record: list[_T], count: int) -> _T:
        with self._changed:
            found = self._changed.wait_for(lambda: len(record) >= count, TIMEOUT)
            assert found, f"only {record}"
            return record[count - 1]

    def _note(self, record: list[_T], what: _T) -> None:
        with self._changed:
            record.append(what)
            self._changed.notify_all()

    def script(self) -> Script:
        """For one link."""
        return [handshake(), self._serve]

    def _serve(self, peer: Peer) -> None:
        sids: dict[str, To] = {}
        try:
            while True:
                frame = peer.expect(_FRAME, timeout=60.0)
                if frame["ping"]:
                    peer.send(b"PONG\r\n", may_fail=True)
                elif frame["ended"]:
                    self._note(self._ended, frame["ended"].decode())
                elif frame["sid"]:
                    queue = None if frame["queue"] is None else frame["queue"].decode()
                    to = To(frame["sid"].decode(), queue)
                    sids[frame["filter"].decode()] = to
                    if frame["filter"].decode() == SUBJECT:
                        self.to = to
                        for piece in self.first(to):
                            peer.send(piece, may_fail=True)
                else:
                    for piece in self._answer(peer, frame, sids):
                        peer.send(piece, may_fail=True)
                    if not peer.is_open:
                        return
        except ScriptError:
            if not peer.client_ended:
                raise

    def _answer(
        self, peer: Peer, frame: re.Match[bytes], sids: dict[str, To]
    ) -> Iterable[bytes]:
        size = int(frame["size"])
        body = peer.expect(re.compile(rb"(.{%d})\r\n" % size, re.S))[1]
        cut = int(frame["header"] or 0)
        subject, reply = frame["subject"].decode(), (frame["reply"] or b"").decode()
        if subject.startswith("fc."):
            answer = Answer(subject, body[:cut].decode(), body[cut:])
            self._note(self._answers, answer)
            return ()
        if subject.startswith("$JS.ACK."):
            return ()
        if subject == "cue.cut":
            peer.reset()
            return ()
        if subject.startswith("cue."):
            return self.cues[subject.removeprefix("cue.")](self.to)
        to = sids.get(reply) or sids.get(reply.rpartition(".")[0] + ".*") or To("0")

        def say(answer: object) -> bytes:
            text = json.dumps(answer)
            return f"MSG {reply} {to.sid} {len(text)}\r\n{text}\r\n".encode()

        verb = subject.removeprefix("$JS.API.CONSUMER.")
        if verb.startswith("DELETE."):
            self._note(self._deletes, verb.rpartition(".")[2])
            if self.refuses_deletes:
                return [say({"error": ApiRefusal(500, 10000)._asdict()})]
            return [say({"success": True})] if reply else ()
        if verb.startswith("CREATE."):
            config = json.loads(body[cut:])["config"]
            create = Create(config["name"], config)
            self._note(self._creates, create)
            deliveries: Iterable[bytes] | ApiRefusal = ()
            self.to = sids.get(config.get("deliver_subject", ""), To("0"))
            if self.on_create is not None:
                deliveries = self.on_create(create, self.to)
            if isinstance(deliveries, ApiRefusal):
                return [say({"error": deliveries._asdict()})]
            return [say(info_of(config)), *deliveries]
        return [say(info_of({"name": "C", "deliver_subject": SUBJECT}))]


def info_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the API says of a consumer with that configuration."""
    delivered = {"consumer_seq": 0, "stream_seq": 6}
    return {
        "stream_name": "S",
        "name": config["name"],
        "config": dict(config),
        "delivered": delivered,
    }


class PushScene(NamedTuple):
    """A client with a push subscription, and the peer that it speaks to."""

    nc: jsclient.Connection
    sub: PushSubscription
    desk: PushDesk
    told: Recorder
    server: ScriptedServer

    def cue(self, name: str) -> None:
        """Has the peer do what the desk says for this cue."""
        self.nc.publish(f"cue.{name}", b"")

    def send(self, *frames: Callable[[To], bytes]) -> None:
        """Returns when the client has handled these frames."""
        self.desk.cues["now"] = lambda to: [frame(to) for frame in frames]
        self.cue("now")
        self.heard()

    def heard(self) -> None:
        """Returns when the client has handled all that the peer sent so far."""
        self.nc.flush(TIMEOUT)


def bound_info(config: ConsumerConfig) -> ConsumerInfo:
    """The consumer C with that configuration."""
    return ConsumerInfo.from_api(info_of({**config.to_api(), "name": "C"}))


@contextmanager
def pushing(
    desk: PushDesk,
    *,
    links: int = 1,
    on_close: Callable[[float], None] | None = None,
    config: Mapping[str, Any] | None = None,
    is_new: bool = False,
    connect: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[PushScene]:
    """A push subscription at the desk; afterwards nothing of it is left."""
    told = Recorder()
    with (
        ScriptedServer(*[desk.script()] * links) as server,
        connected(server.url, on_event=told, **(connect or {})) as nc,
    ):
        wanted = consumer_config(None, deliver_subject=SUBJECT, **(config or {}))
        api = nc.jetstream()._api
        sub = PushSubscription(api, "S", wanted, is_new=is_new, **options)
        sub.bound(bound_info(wanted), on_close)
        yield PushScene(nc, sub, desk, told, server)
        if nc.status is not Status.CLOSED:
            if sub.is_active:
                desk.refuses_deletes = False
                sub.unsubscribe()
            assert_tidy(nc)
