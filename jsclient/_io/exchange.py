"""One request and its answers that die with their link.

JetStream's requests and publishes must not sit in a reconnect buffer and appear later:
they are sent on a link that is up, and when it is lost, or time runs out, the caller
learns whether any byte of the request was sent.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from time import monotonic

from .. import errors
from .._core import Batch, Inbox, Msg, Replies, Reply, StoredInbox
from .._engine.arguments import Buffer, HeadersLike, unique_name
from .loop import Loop


class UnsentError(errors.Error):
    """No byte of the request was sent, and none will be.

    `is_lost` tells a lost link from time that ran out.
    """

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost


class UnansweredError(errors.Error):
    """The request was sent, at least in part, and no answer came."""

    def __init__(self, message: str, *, is_lost: bool) -> None:
        super().__init__(message)
        self.is_lost = is_lost


def exchange(
    loop: Loop,
    subject: str,
    data: Buffer,
    headers: HeadersLike | None,
    deadline: float,
    *,
    patience: float = math.inf,
) -> Msg:
    """Sends a request on the next link that is up and returns the answer.

    After `patience` seconds of silence it is sent again, later ones after twice as long
    each, and the first answer counts.

    Raises UnsentError or UnansweredError, PermissionsViolationError when the server
    refuses the subject, and whatever a wrong argument deserves.
    """
    replies = loop.table.replies
    if replies is None:
        loop.check_open()
        replies = loop.request_inbox()
    reply = replies.draft(subject)
    try:
        if patience == math.inf:
            # Nearly always that is all.
            msg = replies.exchange(reply, loop.helm, data, headers, deadline)
            if msg is not None:
                return msg
            asked = reply.asked
        else:
            asked = replies.ask(reply, loop.outbox, data, headers)
        if asked == 1:
            loop.alert()
        elif asked:
            make_way(loop, asked == 2, deadline)
            send(loop, subject, data, headers, reply, deadline)
        while patience != math.inf and (until := monotonic() + patience) < deadline:
            if loop.wait(reply, until):
                break
            patience *= 2
            if reply.is_begun:  # what still waits to be sent needs no second one
                send(loop, subject, data, headers, reply, deadline)
        return receive(loop, reply, deadline)
    except BaseException:
        replies.drop(reply)
        loop.look()
        raise


def answers(
    loop: Loop, subject: str, data: Buffer, deadline: float
) -> Generator[Msg, None, None]:
    """Sends a request that has many answers, and yields them until it is closed.

    Raises what `exchange` raises.
    """
    inbox = Inbox(loop)
    with _asked(loop, subject, data, inbox, deadline) as reply:
        while True:
            is_ended = inbox.is_ended  # looked at first: what came before it counts
            msg = inbox.take()
            if msg is not None:
                yield msg
            elif is_ended:
                reply.fail(inbox.reason or loop.closed_error())
                outcome(loop, reply)
            elif not loop.wait(inbox, deadline):
                raise _late(loop, reply)


def stored_answers(
    loop: Loop, subject: str, data: Buffer, deadline: float
) -> tuple[Batch, Msg]:
    """Sends a request for stored messages; these in columns, and what ended them.

    Raises what `exchange` raises.
    """
    inbox = StoredInbox(loop)
    with _asked(loop, subject, data, inbox, deadline) as reply:
        if not loop.wait(inbox, deadline):
            raise _late(loop, reply)
        if inbox.ending is None:
            reply.fail(inbox.reason or loop.closed_error())
            return Batch(), outcome(loop, reply)
        return inbox.batch, inbox.ending


@contextmanager
def _asked(
    loop: Loop, subject: str, data: Buffer, inbox: Inbox, deadline: float
) -> Iterator[Reply]:
    """A block in which the answers to a request come into an inbox of their own."""
    loop.check_open()
    prefix = f"{loop.options.inbox_prefix}.{unique_name()}."
    reply = Replies(prefix, loop).open(subject)
    sid = loop.subscribe(reply.inbox, None, inbox, asked=subject)
    try:
        send(loop, subject, data, None, reply, deadline)
        yield reply
    finally:
        if not loop.is_closing:
            loop.unsubscribe(sid)


def receive(loop: Loop, reply: Reply, deadline: float) -> Msg:
    """Waits for the answer to a request that `send` has sent."""
    try:
        if not loop.wait(reply, deadline):
            raise _late(loop, reply)
    except errors.ConnectionClosedError as error:
        reply.fail(error)
    return outcome(loop, reply)


def _late(loop: Loop, reply: Reply) -> UnsentError | UnansweredError:
    if loop.outbox.withdraw(reply):
        return UnsentError("the link did not take it in time")
    return UnansweredError("no answer came in time", is_lost=False)


def outcome(loop: Loop, reply: Reply) -> Msg:
    """The answer, or what came instead of it."""
    if reply.msg is not None:
        return reply.msg
    error = reply.error
    assert error is not None
    if isinstance(error, errors.ConnectionError):
        # A connection that closes sends what it has: not this, if it is not too late.
        is_unsent = reply.is_withdrawn or loop.outbox.withdraw(reply)
        if reply.is_begun or not is_unsent:
            raise UnansweredError(str(error), is_lost=True) from error
        if isinstance(error, errors.DisconnectedError):
            raise UnsentError(str(error), is_lost=True) from error
    raise error


def send(
    loop: Loop,
    subject: str,
    data: Buffer,
    headers: HeadersLike | None,
    reply: Reply,
    deadline: float,
    *,
    is_urgent: bool = True,
) -> None:
    """Gives a request to the link, waiting for one and for room up to the deadline."""
    outbox = loop.outbox
    while True:
        try:
            asked = outbox.publish(
                subject, data, reply.inbox, headers, is_urgent, reply
            )
        except errors.DisconnectedError:
            make_way(loop, False, deadline)
            continue
        if asked == 0:
            return
        if asked == 1:
            loop.alert()
            return
        make_way(loop, True, deadline)


def make_way(loop: Loop, is_linked: bool, deadline: float) -> None:
    """Waits for room in the outbox, or for a link if there is none.

    Raises UnsentError when the deadline passes.
    """
    if not is_linked:
        if not loop.wait(loop.linked, deadline):
            raise UnsentError("there was no link to the server in time")
        loop.check_open()
        return
    room = loop.outbox.await_room()
    loop.wake()  # whoever is in select must learn that the socket is full
    if not loop.wait(room, deadline):
        raise UnsentError("the outgoing buffer stayed full")
