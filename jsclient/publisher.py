"""Publishing to streams: one at a time, or asynchronously.

Every publish ends in exactly one of three ways. It is stored: there is a PubAck. It is
refused: an error other than PublishOutcomeUnknownError, and the message is not and will
not be stored. Or nobody can know: PublishOutcomeUnknownError. A publish never waits in
a reconnect buffer, and one that was not sent when its time is over is withdrawn.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from time import monotonic
from typing import Any

from . import errors
from ._core import Gate, Msg, PubAck, Replies, Reply, parse_pub_ack
from ._engine.arguments import Buffer, HeadersLike, unique_name
from ._engine.publish_headers import lasting_headers
from ._io.exchange import UnansweredError, UnsentError, exchange, outcome, send
from ._io.loop import Loop
from .ack_future import AckFuture
from .jetstream_errors import (
    InvalidAckError,
    NoStreamResponseError,
    PublishOutcomeUnknownError,
    PublishTimeoutError,
    TooManyPendingError,
    api_error,
)

# A publish that took longer to begin is no longer in the order of its times.
TARDY = 0.01


def read_ack(msg: Msg, subject: str) -> PubAck:
    """The PubAck that a stream answered, or the error that it told."""
    ack = parse_pub_ack(msg.data)
    if ack is not None:
        return ack
    if msg.status == 503 and not msg.data:
        raise NoStreamResponseError(subject)
    try:
        # Any JSON may come here: the answer of a plain service, say.
        answer: Any = json.loads(msg.data)
    except (ValueError, RecursionError):
        answer = None
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        raise api_error(error, doing=f"publish to {subject!r}")
    try:
        seq = answer.get("seq", 0)
        if error is None and answer["stream"] and isinstance(seq, int):
            return PubAck(
                answer["stream"],
                seq,
                duplicate=bool(answer.get("duplicate")),
                domain=answer.get("domain"),
                value=None if answer.get("val") is None else int(answer["val"]),
                batch=answer.get("batch"),
                count=answer.get("count", 0),
            )
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        pass  # the core takes only what a stream may say
    raise InvalidAckError(subject, msg.data[:200])


def failure(
    error: UnsentError | UnansweredError, subject: str, msg_id: str | None
) -> errors.Error:
    """What a publish raises that got no answer."""
    if isinstance(error, UnansweredError):
        kind = PublishOutcomeUnknownError if error.is_lost else PublishTimeoutError
        return kind(subject, str(error), msg_id=msg_id)
    text = f"the message to {subject!r} was not sent: {error}"
    return (
        errors.DisconnectedError(text) if error.is_lost else errors.TimeoutError(text)
    )


def publish(
    loop: Loop,
    subject: str,
    data: Buffer,
    headers: HeadersLike | None,
    *,
    timeout: float,
    msg_id: str | None,
    can_repeat: bool,
    retries: int,
    retry_wait: float,
) -> PubAck:
    """Publishes one message and waits for the stream's ack.

    No responders are asked again, `retries` times. A publish whose link was lost is
    repeated only if that cannot store it twice. Once a try is in doubt, only an ack
    ends the doubt: the refusal of a later try says nothing of the first.
    """
    deadline = monotonic() + timeout
    headers = lasting_headers(headers)
    doubt: UnansweredError | None = None
    while True:
        try:
            msg = exchange(loop, subject, data, headers, deadline)
            return read_ack(msg, subject)
        except NoStreamResponseError:
            if retries == 0 or not _pause(loop, retry_wait, deadline):
                if doubt is not None:
                    raise failure(doubt, subject, msg_id) from doubt
                raise
            retries -= 1
        except UnansweredError as error:
            doubt = doubt or error
            is_over = not error.is_lost or loop.is_closing or monotonic() >= deadline
            if is_over or not can_repeat:
                raise failure(doubt, subject, msg_id) from error
        except UnsentError as error:
            # The next link may take it.
            if loop.is_closing or monotonic() >= deadline:
                raise failure(doubt or error, subject, msg_id) from error
        except errors.Error as error:
            if doubt is not None:
                raise failure(doubt, subject, msg_id) from error
            raise certain(error, subject, msg_id) from error.__cause__


def certain(error: errors.Error, subject: str, msg_id: str | None) -> errors.Error:
    """The error of a publish that is not stored.

    Where the server refuses us the inbox of the acks, it took the message all the same.
    """
    if (
        isinstance(error, errors.PermissionsViolationError)
        and error.operation == "subscribe"
    ):
        unknown = PublishOutcomeUnknownError(subject, str(error), msg_id=msg_id)
        unknown.__cause__ = error
        return unknown
    return error


def _pause(loop: Loop, duration: float, deadline: float) -> bool:
    """Lets that much time pass; False if the deadline comes first."""
    until = monotonic() + duration
    if until >= deadline:
        return False
    loop.wait(Gate(), until)
    return True


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
        self.deadline = math.inf
        self._loop = loop
        self._max_pending = max_pending
        self._ack_timeout = ack_timeout
        self._retries = retries
        self._retry_wait = retry_wait
        # In order of their times, each future once.
        self._again: dict[AckFuture, float] = {}
        self._crowd: deque[Gate] = deque()  # of those who wait for a place
        self._flushes: deque[Gate] = deque()
        self._is_retired = False
        prefix = f"{loop.options.inbox_prefix}.{unique_name()}."
        self._replies = Replies(prefix, loop, True)
        self._answered = self._replies.answered
        self._sid = loop.subscribe(
            prefix + "*", None, self._replies, on_notice=self._settle
        )
        loop.machines.append(self)

    @property
    def pending(self) -> int:
        """Publishes without an outcome."""
        return len(self._replies) + len(self._answered) + len(self._again)

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
        loop = self._loop
        loop.check_open()
        began = monotonic()
        deadline = began + timeout
        future = AckFuture(
            loop, subject, data, headers, msg_id=msg_id, retries=self._retries
        )
        reply = self._replies.draft(subject, future, deadline + self._ack_timeout)
        try:
            if not self._has_place(reply):
                self._await_place(reply, deadline, timeout)
            if reply.error is not None:
                raise reply.error  # there is no inbox for the ack
            send(
                loop,
                subject,
                future.data,
                future.headers,
                reply,
                deadline,
                is_urgent=False,
            )
            self._expect(reply, began)
        except UnsentError as error:
            self._give_back(reply)
            raise failure(error, subject, msg_id) from error
        except BaseException:
            self._give_back(reply)
            raise
        return future

    def _has_place(self, reply: Reply) -> bool:
        """Whether there was a place in the window, which it has now."""
        limit = self._max_pending - len(self._answered) - len(self._again)
        return limit > 0 and self._replies.enter(reply, limit)

    def _await_place(self, reply: Reply, deadline: float, timeout: float) -> None:
        while True:
            room = Gate()
            self._crowd.append(room)
            try:
                if self._has_place(reply):
                    return
                if not self._loop.wait(room, deadline):
                    raise TooManyPendingError(
                        f"{self._max_pending} publishes wait for their acks, and none "
                        f"came within {timeout:g} s; the message was not sent"
                    )
            finally:
                with contextlib.suppress(ValueError):
                    self._crowd.remove(room)

    def _expect(self, reply: Reply, began: float) -> None:
        """The message was sent: its ack is expected within its time."""
        now = monotonic()
        reply.due = due = now + self._ack_timeout
        if now - began > TARDY:
            self._replies.renew(reply, due)  # they stand in the order of their times
        if self.deadline == math.inf:
            self.deadline = due
            self._loop.keeper.ring()  # somebody must read the acks
            if not self._loop.helm.is_free:
                self._loop.wake()  # who sleeps there does not know of this deadline

    def _give_back(self, reply: Reply) -> None:
        """The place of a message that was not sent is free again."""
        self._replies.drop(reply)
        self._let_in()

    def _let_in(self) -> None:
        """Wakes who waits for a place, or for the last outcome."""
        if self.pending < self._max_pending:
            _open_all(self._crowd)
        if not self.pending:
            _open_all(self._flushes)

    def flush(self, timeout: float) -> None:
        """Waits until every publish so far has an outcome."""
        deadline = monotonic() + timeout
        while self.pending:
            idle = Gate()
            self._flushes.append(idle)
            try:
                if self.pending and not self._loop.wait(idle, deadline):
                    raise errors.TimeoutError(
                        f"{self.pending} publishes had no outcome within {timeout:g} s"
                    )
            finally:
                with contextlib.suppress(ValueError):
                    self._flushes.remove(idle)

    def retire(self) -> None:
        """Nobody publishes any more: it leaves the loop with its last outcome.

        The collector calls: it takes no lock.
        """
        self._is_retired = True
        self.deadline = 0.0
        self._loop.keeper.ring()
        self._loop.wake()

    # What the loop calls --------------------------------------------------------------

    def _settle(self) -> None:
        """Gives the answers that came to their futures."""
        answered = self._answered
        while answered:
            reply = answered[0]
            msg = reply.msg
            ack = None if msg is None else parse_pub_ack(msg.data)
            if ack is None:
                self._settle_otherwise(reply)
            else:
                future: Any = reply.tag  # an AckFuture; this runs for every message
                future.settle(ack)
            if answered and answered[0] is reply:
                answered.popleft()
        self._set_deadline()
        self._let_in()
        if self._is_retired and not self.pending:
            self._leave()

    def _leave(self) -> None:
        self.deadline = math.inf
        if self in self._loop.machines:
            self._loop.machines.remove(self)
            self._loop.orphaned(self._sid)

    def _settle_otherwise(self, reply: Reply) -> None:
        """The answer is not the usual ack."""
        future = reply.tag
        assert isinstance(future, AckFuture)
        try:
            future.settle(read_ack(outcome(self._loop, reply), future.subject))
        except NoStreamResponseError as error:
            if future.retries == 0:
                future.settle(None, error)
            elif future not in self._again:
                self._again[future] = monotonic() + self._retry_wait
                future.retries -= 1
        except (UnsentError, UnansweredError) as error:
            future.settle(None, failure(error, future.subject, future.msg_id))
        except errors.Error as error:
            future.settle(None, certain(error, future.subject, future.msg_id))

    def _set_deadline(self) -> None:
        while True:
            self.deadline = due = self._next_due()
            # A publisher that saw the old deadline did not set its own.
            if due <= self._next_due():
                return

    def _next_due(self) -> float:
        oldest = self._replies.oldest()
        due = math.inf if oldest is None else oldest.due
        for again in self._again.values():
            return min(due, again)
        return due

    def tick(self, now: float) -> None:
        """Sends again what is due, and gives up acks that are overdue."""
        for future, due in list(self._again.items()):
            if due > now or not self._send_again(future, now):
                break
        while (reply := self._replies.oldest()) is not None and reply.due <= now:
            self._give_up(reply)
        self._settle()

    def _send_again(self, future: AckFuture, now: float) -> bool:
        """Whether there was room for a message whose stream did not answer."""
        reply = self._replies.open(future.subject, 0, future, now + self._ack_timeout)
        assert reply is not None
        # From here on it is in the window by its reply: an exception of a signal
        # handler may leave it unsent and in doubt, but never sent twice.
        del self._again[future]
        try:
            asked = self._loop.outbox.publish(
                future.subject, future.data, reply.inbox, future.headers, True, reply
            )
        except errors.Error as error:
            future.settle(None, error)
            self._replies.drop(reply)
            return True
        if asked == 2:
            self._again[future] = now + self._retry_wait
            self._replies.drop(reply)
            return False
        if asked == 1:
            self._loop.alert()
        return True

    def _give_up(self, reply: Reply) -> None:
        future = reply.tag
        assert isinstance(future, AckFuture)
        unanswered: UnsentError | UnansweredError
        if self._loop.outbox.withdraw(reply):
            unanswered = UnsentError("the link did not take it in time")
        else:
            unanswered = UnansweredError(
                f"no ack came within {self._ack_timeout:g} s", is_lost=False
            )
        future.settle(None, failure(unanswered, future.subject, future.msg_id))
        self._replies.drop(reply)


def _open_all(gates: deque[Gate]) -> None:
    """Opens every gate; other threads may take theirs away meanwhile."""
    with contextlib.suppress(IndexError):
        while gates:
            gates.popleft().open()
