"""Publishing with futures: many messages on their way, each with an outcome of its own.

The publishes are slots of compiled Pledges, which settle the futures as soon as their
acks are parsed. Here is what is left: waiting for a place, for a link and for room,
giving up, sending again, and every answer that is not the usual ack.
"""

from __future__ import annotations

import math
from time import monotonic

from . import errors
from ._core import Pledges, PubAck, encode_headers
from ._engine.arguments import Buffer, HeadersLike, unique_name
from ._engine.publish_headers import lasting_data
from ._io.exchange import UnansweredError, UnsentError, make_way
from ._io.loop import Loop
from .ack_future import AckFuture
from .jetstream_errors import NoStreamResponseError, TooManyPendingError
from .publish_all import ACKS_LINGER
from .publish_outcomes import failure, odd_outcome


class AsyncPublisher:
    """Publishes that are on their way: a bounded window of futures.

    It is a machine of the loop: `deadline` is when the next ack is overdue or the next
    message is due to be sent again. What settles futures runs at the helm, or in the
    keeper when nobody can be there; what a signal handler cuts short is done again.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        max_pending: int,
        ack_timeout: float,
        retries: int,
        retry_wait: float,
    ) -> None:
        self._loop = loop
        self._max_pending = max_pending
        self._ack_timeout = ack_timeout
        self._retry_wait = retry_wait
        self._is_retired = False
        prefix = f"{loop.options.inbox_prefix}.{unique_name()}."
        self._window = Pledges(
            prefix,
            loop.outbox,
            max_pending,
            AckFuture,
            loop,
            self._attend,
            timeout=ack_timeout,
            retries=retries,
        )
        # Who can send at once does so without asking here.
        self.pledges = self._window
        self._sid = loop.subscribe(
            prefix + "*", None, self._window, on_notice=self._settle
        )
        loop.machines.append(self)

    @property
    def pending(self) -> int:
        """Publishes without an outcome."""
        return self._window.pending

    def publish(
        self,
        subject: str,
        data: Buffer,
        headers: HeadersLike | None,
        *,
        msg_id: str | None,
        timeout: float,
    ) -> AckFuture:
        """Sends a message and returns the future of its ack.

        Waits for a place in the window, a link, and room in the outgoing buffer, at
        most `timeout`; then nothing was sent.
        """
        loop, window = self._loop, self._window
        deadline = monotonic() + timeout
        # Kept for a second try, which the caller's later changes must not reach.
        payload = lasting_data(data)
        block = None if headers is None else encode_headers(headers)
        try:
            while True:
                loop.check_open()
                future = window.launch(subject, payload, block, msg_id)
                if future is not None:
                    return future
                if window.is_full:
                    self._await_place(deadline, timeout)
                else:
                    make_way(loop, loop.outbox.takes_requests, deadline)
        except UnsentError as error:
            raise failure(error, subject, msg_id) from error

    def _await_place(self, deadline: float, timeout: float) -> None:
        # A few are worth a wake-up; the rest keeps the server busy meanwhile.
        window, limit = self._window, self._max_pending
        pause = min(deadline, monotonic() + ACKS_LINGER)
        if self._await_pending(window.width - max(1, window.width // 16), pause):
            self._loop.outbox.go_on()
        elif window.width < limit:
            window.widen()
        elif not self._await_pending(limit - 1, deadline):
            raise TooManyPendingError(
                f"{limit} publishes wait for their acks, and none came within "
                f"{timeout:g} s; the message was not sent"
            )

    def _await_pending(self, most: int, deadline: float) -> bool:
        """Waits until so many publishes at most have no outcome; whether that came."""
        gate = self._window.await_pending(most)
        try:
            return self._loop.wait(gate, deadline)
        finally:
            self._window.forget(gate)

    def flush(self, timeout: float) -> None:
        """Waits until every publish so far has an outcome."""
        deadline = monotonic() + timeout
        if self.pending and not self._await_pending(0, deadline):
            raise errors.TimeoutError(
                f"{self.pending} publishes had no outcome within {timeout:g} s"
            )

    def retire(self) -> None:
        """Nobody publishes any more: it leaves the loop with its last outcome.

        The collector calls: it takes no lock.
        """
        self._is_retired = True
        self._loop.keeper.ring()
        self._loop.wake()

    # What the core calls --------------------------------------------------------------

    def _attend(self, has_unsent: bool) -> None:
        """The first publish of a burst was added, or unsent bytes wait."""
        if has_unsent:
            self._loop.alert()
        elif not self._loop.helm.is_free:
            self._loop.wake()  # who sleeps there does not know of this deadline

    # What the loop calls --------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        if self._is_retired and not self._window.pending:
            return 0.0
        due = self._window.time_left
        if due != math.inf:
            due += monotonic()
        for again in self._window.again.values():
            return min(due, again)
        return due

    def tick(self, now: float) -> None:
        """Sends again what is due, and gives up acks that are overdue."""
        window = self._window
        for future, due in list(window.again.items()):
            if due > now or not self._send_again(future, now + self._retry_wait):
                break
        while window.time_left <= 0:
            window.give_up_oldest()
        self._settle()

    def _send_again(self, future: AckFuture, later: float) -> bool:
        """Whether there was room for a message whose stream did not answer."""
        try:
            return self._window.send_again(future, later)
        except errors.Error as error:
            future.settle(None, error)
            future.tell()
            # It is settled: this only takes it away.
            return self._window.send_again(future, later)

    def _settle(self) -> None:
        """Deals with odd outcomes, and tells those who are to know."""
        window = self._window
        window.look()
        while (odd := window.odd) is not None:
            future, what, answer = odd
            if what == "overdue":
                late = UnansweredError(
                    f"no ack came within {self._ack_timeout:g} s", is_lost=False
                )
                end: PubAck | Exception = failure(late, future.subject, future.msg_id)
            else:
                end = odd_outcome(window, (what, answer, future.subject), future.msg_id)
            if isinstance(end, NoStreamResponseError) and future.retries:
                window.rest(future, monotonic() + self._retry_wait)
                continue
            if isinstance(end, PubAck):
                future.settle(end)
            else:
                future.settle(None, end)
            future.tell()
            window.put_away(future)
        while window.observed:
            future = window.observed[0]
            future.tell()
            if window.observed and window.observed[0] is future:
                window.observed.popleft()
        window.open_gates()
        if self._is_retired and not window.pending:
            self._leave()

    def _leave(self) -> None:
        if self in self._loop.machines:
            self._loop.machines.remove(self)
            self._loop.orphaned(self._sid)
