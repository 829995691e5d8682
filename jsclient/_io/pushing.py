"""Push deliveries on a connection: what the machine asks for is done here.

A `Pushing` looks after the inbox of one push subscription. Messages go from the parser
to the user without it. It is called at the helm for gaps and stalled consumers, by the
clock and with every link; and by the reader when it is a status's turn. Everything of
the machine happens at the helm.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from .. import errors
from .._core import Gate, Msg, PushInbox
from .._engine.push import Answer, Delivery, Output, Place, Warn
from .loop import Loop


class Pushing:
    """One push delivery; see the module's text.

    Args:
        on_warning: told what the user should know.
        on_error: told of statuses that are errors; None: whoever reads gets them.
        is_acking: answers to flow control acknowledge messages.
        is_fragile: trouble ends the inbox, with the error as its reason.

    `on_close` deletes the consumer, within so many seconds; it is called once at most.
    """

    def __init__(
        self,
        loop: Loop,
        inbox: PushInbox,
        machine: Delivery,
        *,
        on_warning: Callable[[errors.Error], None],
        on_error: Callable[[errors.Error], None] | None,
        close_timeout: float = 0.0,
        is_acking: bool = False,
        is_fragile: bool = False,
    ) -> None:
        self.inbox = inbox
        self.deadline = math.inf
        self._loop = loop
        self._machine = machine
        self.on_warning = on_warning
        self.on_error = on_error
        self.on_close: Callable[[float], None] | None = None
        self._close_timeout = close_timeout
        self._is_acking = is_acking
        self._is_fragile = is_fragile
        self._heard = 0
        self._dropped = 0
        self._to_do: deque[Output] = deque()
        if not inbox.is_raw:
            inbox.on_due = self._attend

    # What users' threads call ---------------------------------------------------------

    def start(self, patience: float) -> None:
        """Begins; from now on silence is an alarm after `patience`."""

        def begin() -> None:
            loop = self._loop
            loop.check_open()
            if self.inbox.is_raw:
                return
            if self.inbox.is_ended:
                self._ended()  # the server refused the subscription meanwhile
                return
            if self not in loop.machines:
                loop.watchers.append(self)
                loop.machines.append(self)
            self._machine.started(
                monotonic(),
                patience=patience,
                is_linked=loop.live is not None and loop.outbox.is_up,
            )
            self._sync()

        self._loop.call(begin)

    def stop(self) -> None:
        """Answers nothing any more."""
        self._loop.call(self._leave)

    def abandon(self) -> None:
        """Nobody holds it any more: the keeper stops it. For finalizers."""
        if self in self._loop.machines and not self._loop.is_closing:
            self._loop.abandoned(self.stop)

    def close(self) -> None:
        """The subscription has ended: deletes the consumer, if that was asked for."""
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close(self._close_timeout)

    def close_after(self, gate: Gate) -> None:
        """Closes when the gate has opened; a failure of that is told as an event."""
        if self.on_close is not None and gate.is_open:
            self._close_late(gate)
        elif self.on_close is not None:
            self._start_closing(gate)

    def _start_closing(self, gate: Gate) -> None:
        threading.Thread(
            target=self._close_late, args=(gate,), name="jsclient-drain", daemon=True
        ).start()

    def _close_late(self, gate: Gate) -> None:
        try:
            self._loop.wait(gate, math.inf)
            self.close()
        except errors.Error as error:
            if not self._loop.is_closing:
                self.on_warning(error)

    def _attend(self) -> None:
        """It is the turn of a status; called by whoever reads, without the helm."""
        inbox = self.inbox
        while (status := inbox.status) is not None:
            if status.status == 100:
                self._loop.call(partial(self._asked, status.reply))
                inbox.put_away(status)
                continue
            inbox.put_away(status)
            error = self._machine.judge(status.status or 0, status.description or "")
            if error is None:
                continue
            if self.on_error is None:
                raise error
            self.on_error(error)

    # What happens at the helm ---------------------------------------------------------

    def _asked(self, subject: str | None) -> None:
        if subject:
            self._machine.asked(subject, self._place())
        self._sync()

    def _place(self) -> Place | None:
        """What the user has, if answers acknowledge it."""
        last: Msg | None = self.inbox.last if self._is_acking else None
        if last is None:
            return None
        try:
            metadata = last.metadata
        except errors.NotJetStreamMessageError:
            return None
        return Place(metadata.consumer_seq, metadata.stream_seq)

    def noticed(self) -> None:
        """The inbox found a gap, a stalled consumer, no room, or its limit."""
        inbox, machine = self.inbox, self._machine
        if inbox.dropped != self._dropped:
            self._dropped = inbox.dropped
            machine.dropped()
        while inbox.gaps:
            machine.gap(*inbox.gaps[0])
            if inbox.gaps:
                del inbox.gaps[0]
        while inbox.stalls:
            subject = _stalled_on(inbox.stalls[0])
            # A request that is here is not lost: it is answered in its turn.
            if subject and not inbox.holds_request(subject):
                machine.asked(subject, self._place())
            if inbox.stalls:
                inbox.stalls.popleft()
        self._sync()
        if inbox.is_ended:
            # It has all that was wanted; the server does not know that.
            for sid, _ in self._loop.table.of_route(inbox):
                self._loop.unsubscribe(sid)
            self._ended()

    def _ended(self) -> None:
        """Nothing more comes."""
        self._leave()
        if self.on_close is not None:
            # Not here: the loop does not wait.
            self._start_closing(self.inbox.await_empty())

    def tick(self, now: float) -> None:
        """The machine's clock."""
        if self.inbox.is_ended:
            self._leave()
            return
        self._hear(now)
        self._machine.tick(now)
        self._act()

    def linked(self, now: float) -> None:
        """There is a new link."""
        self._machine.linked(now)
        self._sync()

    def unlinked(self, now: float) -> None:
        """The link is gone."""
        if self._is_fragile:
            self.inbox.end(errors.DisconnectedError("the link was lost"))
        self._machine.unlinked()
        self._sync()

    def closed(self, error: errors.Error) -> None:
        """The connection is closed. Whoever closes it may not be at the helm."""
        self._loop.helm.run(self._leave)

    def _sync(self) -> None:
        self._hear(monotonic())
        self._act()

    def _hear(self, now: float) -> None:
        if self.inbox.heard != self._heard:
            self._heard = self.inbox.heard
            self._machine.heard(now - self.inbox.silence)

    def _act(self) -> None:
        """Does what the machine asks for; as in a `Pulling`, twice does no harm."""
        self.deadline = -math.inf
        self._to_do.extend(self._machine.take_output())
        while self._to_do:
            self._do(self._to_do[0])
            if self._to_do:
                self._to_do.popleft()
        self.deadline = self._machine.deadline

    def _do(self, output: Output) -> None:
        match output:
            case Answer(subject, place):
                self._answer(subject, place)
            case Warn(error) if self._is_fragile:
                self.inbox.end(error)
            case Warn(error):
                self.on_warning(error)

    def _answer(self, subject: str, place: Place | None) -> None:
        loop = self._loop
        if self._machine.is_answered(subject):
            return
        headers = None
        if place is not None:
            headers = [
                ("Nats-Last-Consumer", str(place.consumer_seq)),
                ("Nats-Last-Stream", str(place.stream_seq)),
            ]
        try:
            # It dies with its link, and is due at once: the server waits.
            asked = loop.outbox.publish(subject, b"", None, headers, True, None, True)
            self._machine.answered(subject)
            if asked:
                loop.alert()
        except (errors.DisconnectedError, errors.ConnectionClosedError):
            # The watchers are told in a moment.
            return
        except errors.Error as error:
            self.on_warning(error)

    def _leave(self) -> None:
        loop = self._loop
        if self in loop.machines:
            loop.machines.remove(self)
        if self in loop.watchers:
            loop.watchers.remove(self)
        # No cycles: what it held for the user goes when the user lets go of it.
        self.inbox.on_due = None
        self.deadline = math.inf


def _stalled_on(heartbeat: Msg) -> str | None:
    """Where a stalled consumer waits for an answer; None if nobody can tell."""
    try:
        headers = heartbeat.headers
    except errors.BadHeadersError:
        return None
    return None if headers is None else headers.get("Nats-Consumer-Stalled")
