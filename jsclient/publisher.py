"""Publishing to streams: one at a time, asynchronously, or as a pipeline.

Every publish ends in exactly one of three ways. It is stored: there is a PubAck. It is
refused: an error other than PublishOutcomeUnknownError, and the message is not and will
not be stored. Or nobody can know: PublishOutcomeUnknownError. A publish never waits in
a reconnect buffer, and one that was not sent when its time is over is withdrawn.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from . import errors
from ._core import Gate, Msg, PubAck, Replies, Reply, parse_pub_ack
from ._engine.arguments import Buffer, HeadersLike, seconds, unique_name
from ._io.exchange import (
    UnansweredError,
    UnsentError,
    exchange,
    outcome,
    receive,
    send,
)
from ._io.loop import Loop
from .jetstream_errors import (
    InvalidAckError,
    NoStreamResponseError,
    PublishOutcomeUnknownError,
    PublishTimeoutError,
    TooManyPendingError,
    api_error,
)

if TYPE_CHECKING:
    # What `publish_all` takes: a subject and a payload, perhaps with headers.
    Publishable = tuple[str, Buffer] | tuple[str, Buffer, HeadersLike | None]


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
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise InvalidAckError(subject, msg.data[:200])
    if isinstance(answer.get("error"), dict):
        raise api_error(answer["error"], doing=f"publish to {subject!r}")
    stream, seq = answer.get("stream"), answer.get("seq", 0)
    if not isinstance(stream, str) or not stream or not isinstance(seq, int):
        raise InvalidAckError(subject, msg.data[:200])
    value = answer.get("val")
    return PubAck(
        stream,
        seq,
        duplicate=bool(answer.get("duplicate")),
        domain=answer.get("domain"),
        value=None if value is None else int(value),
        batch=answer.get("batch"),
        count=answer.get("count") or 0,
    )


def failure(
    error: UnsentError | UnansweredError, subject: str, msg_id: str | None
) -> errors.Error:
    """What a publish raises that got no answer."""
    if isinstance(error, UnsentError):
        return errors.TimeoutError(f"the message to {subject!r} was not sent: {error}")
    if error.is_lost:
        return PublishOutcomeUnknownError(subject, str(error), msg_id=msg_id)
    return PublishTimeoutError(subject, str(error), msg_id=msg_id)


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
    repeated only if that cannot store it twice.
    """
    deadline = monotonic() + timeout
    while True:
        try:
            msg = exchange(loop, subject, data, headers, deadline)
            return read_ack(msg, subject)
        except NoStreamResponseError:
            if retries == 0 or not _pause(loop, retry_wait, deadline):
                raise
            retries -= 1
        except UnansweredError as error:
            if not (can_repeat and error.is_lost and monotonic() < deadline):
                raise failure(error, subject, msg_id) from error
            if loop.is_closing:
                raise failure(error, subject, msg_id) from error
        except UnsentError as error:
            raise failure(error, subject, msg_id) from error


def _pause(loop: Loop, duration: float, deadline: float) -> bool:
    """Lets that much time pass; False if the deadline comes first."""
    until = monotonic() + duration
    if until >= deadline:
        return False
    loop.wait(Gate(), until)
    return True


class AckFuture(Future[PubAck]):
    """A `concurrent.futures.Future` of a PubAck.

    Waiting for it drives the connection like any other wait. Callbacks run on the
    thread of the connection's events. A message under way cannot be cancelled.
    """

    def __init__(self, loop: Loop, subject: str, data: Buffer, retries: int) -> None:
        super().__init__()
        self._loop = loop
        self._settled = Gate()
        self.subject = subject
        # Kept for a second try, which the caller's later changes must not reach.
        self.data = data if isinstance(data, bytes) else bytes(data)
        self.headers: HeadersLike | None = None
        self.msg_id: str | None = None
        self.retries = retries

    def result(self, timeout: float | None = None) -> PubAck:
        """The PubAck; raises what the publish failed with, or TimeoutError."""
        self._drive(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the publish failed with, or None if it is stored."""
        self._drive(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Future[PubAck]], object]) -> None:
        """Calls fn with this future when it is done, on the thread of the events."""
        if self.done():
            fn(self)
            return
        call = self._loop.dispatch.call
        super().add_done_callback(lambda future: call(lambda: _called(fn, future)))

    def cancel(self) -> bool:
        """False: what was published cannot be called back."""
        return False

    def settle(self, outcome: PubAck | BaseException) -> None:
        """Ends the wait; once."""
        if self._settled.is_open:
            return
        try:
            if isinstance(outcome, PubAck):
                self.set_result(outcome)
            else:
                self.set_exception(outcome)
        except InvalidStateError:
            # Closing settled it in another thread at the same moment.
            return
        finally:
            self._settled.open()

    def _drive(self, timeout: float | None) -> None:
        if not self._settled.is_open:
            try:
                self._loop.wait(self._settled, monotonic() + seconds(timeout))
            except errors.ConnectionClosedError:
                # Closing settles every future; what it settled this one with is raised.
                self._settled.sleep(1.0)


def _called(fn: Callable[[Future[PubAck]], object], future: Future[PubAck]) -> None:
    from ._io.dispatch import logger

    try:
        fn(future)
    except Exception:  # noqa: BLE001 - the user's error is reported
        logger.exception("a callback of a publish raised")


class AsyncPublisher:
    """Publishes that are on their way: a bounded window of futures.

    It is a machine of the loop: `deadline` is when the next ack is overdue or the next
    message is due to be sent again.
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
        self._overdue: deque[tuple[float, Reply]] = deque()
        self._again: deque[tuple[float, AckFuture]] = deque()
        self._room: Gate | None = None
        self._idle: Gate | None = None
        prefix = f"{loop.options.inbox_prefix}.{unique_name()}."
        self._replies = Replies(prefix, loop, True)
        loop.subscribe(prefix + "*", None, self._replies, on_notice=self._settle)
        loop.machines.append(self)

    @property
    def pending(self) -> int:
        """Publishes without an outcome."""
        return len(self._replies) + len(self._again)

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
        now = monotonic()
        reply = self._replies.open(subject, self._max_pending - len(self._again))
        if reply is None:
            reply = self._await_place(subject, now + timeout, timeout)
        future = AckFuture(loop, subject, data, self._retries)
        future.headers = headers
        future.msg_id = msg_id
        reply.tag = future
        try:
            send(loop, subject, data, headers, reply, now + timeout, is_urgent=False)
        except UnsentError as error:
            self._replies.drop(reply)
            raise failure(error, subject, msg_id) from error
        except BaseException:
            self._replies.drop(reply)
            raise
        self._expect(reply, now)
        return future

    def _expect(self, reply: Reply, now: float) -> None:
        due = now + self._ack_timeout
        self._overdue.append((due, reply))
        if self.deadline == math.inf:
            self.deadline = due
            self._loop.keeper.ring()  # somebody must read the acks

    def _await_place(self, subject: str, deadline: float, timeout: float) -> Reply:
        while True:
            if self._room is None:
                self._room = Gate()
            room = self._room
            reply = self._replies.open(subject, self._max_pending - len(self._again))
            if reply is not None:
                return reply
            if not self._loop.wait(room, deadline):
                raise TooManyPendingError(
                    f"{self._max_pending} publishes wait for their acks, and none came "
                    f"within {timeout:g} s; the message was not sent"
                )

    def flush(self, timeout: float) -> None:
        """Waits until every publish so far has an outcome."""
        deadline = monotonic() + timeout
        while self.pending:
            if self._idle is None:
                self._idle = Gate()
            idle = self._idle
            if not self.pending:
                return
            if not self._loop.wait(idle, deadline):
                raise errors.TimeoutError(
                    f"{self.pending} publishes had no outcome within {timeout:g} s"
                )

    # What the loop calls --------------------------------------------------------------

    def _settle(self) -> None:
        """Gives the answers that came to their futures."""
        answered = self._replies.answered
        while answered:
            reply = answered[0]
            self._settle_one(reply)
            if answered and answered[0] is reply:
                answered.popleft()
        overdue = self._overdue
        while overdue and overdue[0][1].ready:
            overdue.popleft()
        self._set_deadline()
        if self._room is not None and self.pending < self._max_pending:
            self._room.open()
            self._room = None
        if self._idle is not None and not self.pending:
            self._idle.open()
            self._idle = None

    def _settle_one(self, reply: Reply) -> None:
        future = reply.tag
        if not isinstance(future, AckFuture):
            return
        msg = reply.msg
        if msg is not None:
            ack = parse_pub_ack(msg.data)
            if ack is not None:
                future.settle(ack)
                return
        try:
            future.settle(read_ack(outcome(reply), future.subject))
        except NoStreamResponseError as error:
            if future.retries == 0:
                future.settle(error)
            else:
                future.retries -= 1
                self._again.append((monotonic() + self._retry_wait, future))
        except (UnsentError, UnansweredError) as error:
            future.settle(failure(error, future.subject, future.msg_id))
        except errors.Error as error:
            future.settle(error)

    def _set_deadline(self) -> None:
        due = self._overdue[0][0] if self._overdue else math.inf
        if self._again:
            due = min(due, self._again[0][0])
        self.deadline = due

    def tick(self, now: float) -> None:
        """Sends again what is due, and gives up acks that are overdue."""
        while self._again and self._again[0][0] <= now:
            future = self._again[0][1]
            self._send_again(future, now)
            if self._again and self._again[0][1] is future:
                self._again.popleft()
        while self._overdue and self._overdue[0][0] <= now:
            reply = self._overdue[0][1]
            if not reply.ready:
                self._give_up(reply)
            if self._overdue and self._overdue[0][1] is reply:
                self._overdue.popleft()
        self._settle()

    def _send_again(self, future: AckFuture, now: float) -> None:
        reply = self._replies.open(future.subject)
        reply.tag = future
        try:
            self._loop.outbox.publish(
                future.subject, future.data, reply.inbox, future.headers, True, reply
            )
        except errors.Error as error:
            self._replies.drop(reply)
            future.settle(error)
        else:
            self._overdue.append((now + self._ack_timeout, reply))

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
        self._replies.drop(reply)
        future.settle(failure(unanswered, future.subject, future.msg_id))


def publish_all(
    loop: Loop,
    messages: Iterable[Publishable],
    *,
    window: int,
    timeout: float,
    on_error: Literal["raise", "return"],
) -> Iterator[PubAck | errors.Error]:
    """Publishes the messages as a pipeline and yields their acks in order.

    At most `window` messages are on their way. Each has `timeout` from its sending.
    """
    replies = loop.request_inbox()
    under_way: deque[tuple[Reply, float]] = deque()

    def first() -> PubAck | errors.Error:
        reply, deadline = under_way[0]
        try:
            return read_ack(receive(loop, reply, deadline), reply.subject)
        except (UnsentError, UnansweredError) as error:
            problem = failure(error, reply.subject, None)
            if on_error == "raise":
                raise problem from error
            return problem
        except errors.Error as error:
            if on_error == "raise":
                raise
            return error
        finally:
            replies.drop(reply)
            under_way.popleft()

    try:
        for message in messages:
            subject, data, headers = message if len(message) == 3 else (*message, None)
            while under_way and (len(under_way) >= window or under_way[0][0].ready):
                yield first()
            reply = replies.open(subject)
            deadline = monotonic() + timeout
            under_way.append((reply, deadline))
            try:
                send(loop, subject, data, headers, reply, deadline, is_urgent=False)
            except UnsentError as error:
                reply.fail(errors.DisconnectedError(str(error)))
            except BaseException:
                under_way.pop()
                replies.drop(reply)
                raise
        while under_way:
            yield first()
    finally:
        for reply, _ in under_way:
            replies.drop(reply)
