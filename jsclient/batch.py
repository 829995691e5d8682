"""Publishing many messages as one batch: atomically, or fast.

An AtomicBatch stores all of its messages or none. A FastBatch stores messages as they
come, and the server acknowledges many of them at a time.
"""

from __future__ import annotations

import json
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from . import errors
from ._api import Api, Needs
from ._core import (
    Headers,
    Inbox,
    Msg,
    PubAck,
    Replies,
    Reply,
    check_literal,
    encode_headers,
)
from ._engine.arguments import Buffer, HeadersLike, unique_name
from ._engine.publish_headers import PublishOptions, lasting_data
from ._io.exchange import UnansweredError, UnsentError, exchange, receive, send
from .jetstream_errors import (
    FastBatchError,
    PublishDisconnectedError,
    PublishOutcomeUnknownError,
    PublishTimeoutError,
    api_error,
)
from .publish_outcomes import certain, failure, read_ack
from .publisher import optioned

if TYPE_CHECKING:
    from typing_extensions import Unpack

ATOMIC: Needs = [("atomic batch publishing", (2, 12, 0))]
FAST: Needs = [("fast batch publishing", (2, 14, 0))]

Fields = list[tuple[str, str]]

COMMIT = ("Nats-Batch-Commit", "1")


class AtomicBatch:
    """Messages that a stream stores all together or not at all.

        with js.atomic_batch() as batch:
            batch.add("orders.1", b"...")
            batch.add("orders.2", b"...")
            ack = batch.commit()

    The last message is held back until `commit`, which marks it as the end. Leaving the
    block without a commit gives the batch up.
    """

    def __init__(self, api: Api, timeout: float) -> None:
        api.refuse_too_new(ATOMIC)
        self.id = unique_name()
        self._api = api
        self._loop = api.loop
        self._timeout = timeout
        self._held: tuple[str, bytes, Fields] | None = None
        self._count = 0
        self._staging: deque[Reply] = deque()
        self._replies: Replies  # of the first message on
        self._is_over = False

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        subject: str,
        data: Buffer = b"",
        *,
        headers: HeadersLike | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        """Adds a message; options are those of `JetStream.publish`.

        Raises the ApiError of an earlier message that the stream refused: then none of
        the batch is stored.
        """
        self._refuse_over()
        self._loop.check_open()
        check_literal(subject)
        payload = lasting_data(data)
        held = subject, payload, self._fields(headers, options, len(payload))
        if self._held is not None:
            self._stage(self._held)
        self._count += 1
        self._held = held

    def commit(self) -> PubAck:
        """Stores the messages; the PubAck has their `count` and the last one's `seq`.

        Raises an AtomicBatchError, or another ApiError, when none is stored, and
        PublishOutcomeUnknownError when nobody can know.
        """
        self._refuse_over()
        if self._held is None:
            raise errors.InvalidArgumentError("the batch has no messages")
        subject, data, fields = self._held
        self._is_over = True
        deadline = monotonic() + self._timeout
        while self._staging:
            self._await_staged(deadline)
        marks = [*self._marks(self._count), COMMIT]
        try:
            msg = exchange(self._loop, subject, data, [*fields, *marks], deadline)
            return read_ack(msg, subject)
        except (UnsentError, UnansweredError) as error:
            raise failure(error, subject, None) from error
        except errors.Error as error:
            raise certain(error, subject, None) from error.__cause__

    def discard(self) -> None:
        """Gives the batch up; the server forgets it after a while."""
        self._is_over = True
        while self._staging:
            reply = self._staging.pop()
            self._loop.outbox.withdraw(reply)
            self._replies.drop(reply)

    def _fields(
        self, headers: HeadersLike | None, options: PublishOptions, size: int
    ) -> Fields:
        """The headers of a message; what is wrong with it is raised now, not later."""
        made = Headers(optioned(self._api, headers, options) or ()).multi_items()
        # Any message may be the last one.
        block = encode_headers([*made, *self._marks(self._count + 1), COMMIT])
        size += len(block or b"")
        most = self._loop.outbox.max_payload
        if size > most:
            raise errors.MaxPayloadError(
                f"headers and payload, with the marks of a batch, are {size} bytes; "
                f"the server accepts at most {most}"
            )
        return made

    def _marks(self, sequence: int) -> list[tuple[str, str]]:
        return [("Nats-Batch-Id", self.id), ("Nats-Batch-Sequence", str(sequence))]

    def _stage(self, held: tuple[str, bytes, Fields]) -> None:
        """Sends the message that was held back; the first waits for its answer."""
        subject, data, fields = held
        deadline = monotonic() + self._timeout
        self._loop.check_open()
        if self._count == 1:
            self._replies = self._loop.request_inbox()
        reply = self._replies.draft(subject)
        self._staging.append(reply)
        try:
            self._replies.enter(reply)
            if reply.error is not None:
                raise reply.error  # there is no inbox for the answer
            send(
                self._loop,
                subject,
                data,
                [*fields, *self._marks(self._count)],
                reply,
                deadline,
                is_urgent=False,
            )
        except UnsentError as error:
            raise self._given_up(error) from error
        except BaseException:
            self.discard()
            raise
        # The first answer tells whether the stream takes batches at all.
        while self._staging and (self._count == 1 or self._staging[0].ready):
            self._await_staged(deadline)

    def _await_staged(self, deadline: float) -> None:
        """The server took the oldest message that it has not answered for."""
        reply = self._staging[0]
        try:
            msg = receive(self._loop, reply, deadline)
            if msg.data or msg.status is not None:
                read_ack(msg, reply.subject)
                raise errors.ServerError(
                    f"batch {self.id}: the server stored a message before its commit"
                )
        except (UnsentError, UnansweredError) as error:
            raise self._given_up(error) from error
        except BaseException:
            self.discard()
            raise
        self._replies.drop(reply)
        self._staging.popleft()

    def _given_up(self, error: UnsentError | UnansweredError) -> errors.Error:
        """The end of a batch of which a message was not taken; it has no commit."""
        self.discard()
        kind = errors.DisconnectedError if error.is_lost else errors.TimeoutError
        return kind(
            f"batch {self.id} was given up and nothing of it is stored: {error}"
        )

    def _refuse_over(self) -> None:
        if self._is_over:
            raise errors.InvalidArgumentError(f"batch {self.id} is over")

    def __enter__(self) -> AtomicBatch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._is_over:
            self.discard()


class FastBatch:
    """Messages that the server acknowledges many at a time.

        with js.fast_batch() as batch:
            for data in source:
                batch.add("events.x", data)
            ack = batch.commit()

    `add` waits when the server is behind. `errors` collects what the server refused or
    lost. With `on_gap="fail"` the first such thing ends the batch: `add` or `commit`
    raise a FastBatchError, whose `ack` has the `count` of what is stored.
    """

    def __init__(
        self,
        api: Api,
        timeout: float,
        *,
        flow: int,
        max_outstanding: int,
        on_gap: Literal["fail", "ok"],
    ) -> None:
        api.refuse_too_new(FAST)
        if not 1 <= flow <= 65535:
            raise errors.InvalidArgumentError(f"flow must be from 1 to 65535: {flow}")
        if not 1 <= max_outstanding <= 3:
            raise errors.InvalidArgumentError(
                f"max_outstanding must be from 1 to 3: {max_outstanding}"
            )
        if on_gap not in ("fail", "ok"):
            raise errors.InvalidArgumentError(
                f"on_gap must be 'fail' or 'ok': {on_gap!r}"
            )
        self.id = unique_name()
        self.errors: list[errors.Error] = []
        self._api = api
        self._loop = api.loop
        self._timeout = timeout
        self._max_outstanding = max_outstanding
        self._on_gap = on_gap
        self._inbox = Inbox(api.loop)
        self._prefix = f"{api.loop.options.inbox_prefix}.{self.id}"
        self._pattern = f"{self._prefix}.{flow}.{on_gap}"
        # Tickets tell a message that was sent from one that was not; no answer uses
        # them.
        self._tickets = Replies(self._prefix)
        self._unsent: deque[Reply] = deque()  # those that had no byte sent, when added
        self._is_begun = False  # some of it was sent
        self._sid: int | None = None
        self._live: object = None
        self._sent = 0  # the sequence of the last message, or of the commit
        self._count = 0  # messages added
        self._acked = 0
        self._interval = 0  # messages until the next ack; 0 before the first
        self._subject = ""
        self._final: PubAck | errors.Error | None = None
        self._is_over = False

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        subject: str,
        data: Buffer = b"",
        *,
        headers: HeadersLike | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        """Sends a message; options are those of `JetStream.publish`.

        Raises what `commit` does when the server has ended the batch.
        """
        self._refuse_over()
        check_literal(subject)
        deadline = monotonic() + self._timeout
        fields = optioned(self._api, headers, options)
        if self._sid is None:
            self._open(subject, deadline)
        try:
            self._take_all_control(deadline)
            if self._final is None and not self._is_broken:
                self._send(subject, data, fields, 1 if self._count else 0, deadline)
                self._count += 1
                self._subject = subject
            self._await_acks(deadline)
        except errors.ConnectionClosedError as error:
            raise self._unknown(str(error), PublishDisconnectedError) from error

    def commit(self) -> PubAck:
        """Ends the batch; the PubAck has the `count` of what is stored.

        Raises a FastBatchError with the `ack` of what is stored when the server has
        ended a batch with `on_gap="fail"` early, another ApiError when nothing is
        stored, and PublishOutcomeUnknownError when nobody can know how much is.
        """
        self._refuse_over()
        if self._count == 0:
            raise errors.InvalidArgumentError("the batch has no messages")
        deadline = monotonic() + self._timeout
        try:
            self._take_all_control(deadline)
            is_early = self._final is not None
            if not is_early and not self._is_broken:
                self._send(self._subject, b"", None, 3, deadline)
            while self._final is None:
                self._take_control(deadline, "the batch was not committed in time")
        except errors.ConnectionClosedError as error:
            raise self._unknown(str(error), PublishDisconnectedError) from error
        finally:
            self.discard()
        if isinstance(self._final, PubAck) and not (is_early or self._is_broken):
            return self._final
        raise self._final_error(self._final)

    @property
    def _is_broken(self) -> bool:
        """Whether the server takes no more messages: its last word is under way."""
        return self._on_gap == "fail" and bool(self.errors)

    def discard(self) -> None:
        """Ends the batch here; what was stored stays stored, and no more is sent."""
        self._is_over = True
        while self._unsent:
            ticket = self._unsent.pop()
            is_unsent = self._loop.outbox.withdraw(ticket) or ticket.is_withdrawn
            self._is_begun |= ticket.is_begun or not is_unsent
        if self._sid is not None and not self._loop.is_closing:
            self._loop.unsubscribe(self._sid)
        self._sid = None
        self._inbox.end()

    def __del__(self) -> None:
        sid = getattr(self, "_sid", None)
        if sid is not None:
            self._loop.orphaned(sid)

    def _open(self, subject: str, deadline: float) -> None:
        """Subscribes to the acks, on the next link that is up."""
        self._loop.check_open()
        linked = self._loop.linked
        if not linked.is_open and not self._loop.wait(linked, deadline):
            raise self._unknown(
                "there was no link to the server in time", PublishTimeoutError
            )
        self._live = self._loop.live
        self._sid = self._loop.subscribe(
            f"{self._prefix}.>", None, self._inbox, asked=subject
        )

    def _send(
        self,
        subject: str,
        data: Buffer,
        headers: Any,
        operation: int,
        deadline: float,
    ) -> None:
        """Sends one message of the batch, whose reply subject says its place."""
        if self._loop.live is not self._live:
            raise self._unknown("the link was lost", PublishDisconnectedError)
        # A ping repeats the highest sequence.
        sequence = self._sent + (operation != 4)
        ticket = self._tickets.open(subject)
        self._tickets.drop(ticket)
        outbox = self._loop.outbox
        reply = f"{self._pattern}.{sequence}.{operation}.$FI"
        while True:
            try:
                asked = outbox.publish(
                    subject, data, reply, headers, operation != 1, ticket
                )
            except errors.DisconnectedError as error:
                raise self._unknown(str(error), PublishDisconnectedError) from error
            if asked != 2:
                break
            room = outbox.await_room()
            self._loop.wake()
            if not self._loop.wait(room, deadline):
                raise self._unknown(
                    "the link took no more messages", PublishTimeoutError
                )
        self._sent = sequence
        while self._unsent and self._unsent[0].is_begun:
            self._unsent.popleft()
            self._is_begun = True
        self._unsent.append(ticket)
        if asked:
            self._loop.alert()

    def _await_acks(self, deadline: float) -> None:
        """Waits while too many messages are without an ack, and for the first one.

        In a batch that the server has ended it waits for the last word, and raises.
        """
        self._take_all_control(deadline)
        while self._final is None and (
            self._is_broken
            or self._interval == 0
            or self._acked + self._interval * self._max_outstanding <= self._sent
        ):
            # An ack may be lost: a ping asks for it again.
            pause = monotonic() + self._timeout / 3
            if not self._loop.wait(self._inbox, min(pause, deadline)):
                if monotonic() >= deadline:
                    raise self._unknown("no ack came in time", PublishTimeoutError)
                if not self._is_broken:
                    self._send(self._subject, b"", None, 4, deadline)
                continue
            self._take_control(deadline, "no ack came in time")
        if self._final is not None:
            self.discard()
            raise self._final_error(self._final)

    def _take_all_control(self, deadline: float) -> None:
        """Handles what the server has said so far, up to its last word."""
        while self._final is None and (self._inbox.count or self._inbox.is_ended):
            self._take_control(deadline, "")

    def _take_control(self, deadline: float, late: str) -> None:
        """Handles one control message of the server."""
        msg = self._inbox.take()
        while msg is None:
            if self._loop.live is not self._live:
                raise self._unknown("the link was lost", PublishDisconnectedError)
            if self._inbox.is_ended:
                raise self._denied(self._inbox.reason)
            if not self._loop.wait(self._inbox, deadline):
                raise self._unknown(late, PublishTimeoutError)
            msg = self._inbox.take()
        try:
            self._read_control(msg)
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            raise self._unknown(f"the server said {msg.data[:200]!r}") from None

    def _read_control(self, msg: Msg) -> None:
        """A control message is JSON with a type; without one it is the last."""
        control: Any = json.loads(msg.data) if msg.data else {}
        match control.get("type"):
            case "ack":
                self._acked = max(self._acked, int(control.get("seq", 0)))
                self._interval = max(1, int(control["msgs"]))
            case "gap":
                last = control["seq"] - 1
                self._note(400, f"messages {control['last_seq']} to {last} were lost")
            case "err":
                doing = f"publish batch {self.id}"
                self.errors.append(api_error(control["error"], doing=doing))
            case None:
                self._finish(msg)

    def _finish(self, msg: Msg) -> None:
        try:
            self._final = read_ack(msg, self._subject)
        except errors.Error as error:
            if self._sent > 1:  # those before the one that is refused may be stored
                raise self._unknown(str(error)) from error
            self._final = error

    def _note(self, code: int, description: str) -> None:
        doing = f"publish batch {self.id}"
        self.errors.append(
            FastBatchError(code=code, description=description, doing=doing)
        )

    def _final_error(self, final: PubAck | errors.Error) -> errors.Error:
        """What a batch raises that the server ended before its commit."""
        if not isinstance(final, PubAck):
            return final
        reason = self.errors[0] if self.errors else None
        error = FastBatchError(
            code=400,
            description=f"the server ended the batch after {final.count} messages: "
            f"{reason}",
            doing=f"publish batch {self.id}",
        )
        error.ack = final
        error.__cause__ = reason
        return error

    def _denied(self, reason: BaseException | None) -> BaseException:
        """The end of a batch whose subject, or whose inbox, the server refuses us."""
        self._loop.check_open()
        if not isinstance(reason, errors.PermissionsViolationError):
            # It ends with its link, before the next one is there.
            return self._unknown("the link was lost", PublishDisconnectedError)
        unknown = self._unknown(str(reason))
        unknown.__cause__ = reason
        is_refused = reason.operation == "publish" and self._sent <= 1
        return reason if is_refused else unknown

    def _unknown(
        self,
        reason: str,
        kind: type[PublishOutcomeUnknownError] = PublishOutcomeUnknownError,
    ) -> errors.Error:
        """The end of a batch of which nobody knows how much is stored."""
        self.discard()
        if not self._is_begun:
            is_late = kind is PublishTimeoutError
            unbegun = errors.TimeoutError if is_late else errors.DisconnectedError
            return unbegun(f"batch {self.id} was not sent: {reason}")
        return kind(
            self._subject,
            f"batch {self.id}: {reason}; {self._acked} of {self._sent} are acked",
        )

    def _refuse_over(self) -> None:
        if self._is_over:
            raise errors.InvalidArgumentError(f"batch {self.id} is over")

    def __enter__(self) -> FastBatch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._is_over:
            self.discard()
