"""Publishing an iterable as a pipeline: many on their way, acks in order.

The publishes are slots of a compiled Window, not objects. Each ends in one of the three
ways of `publish_outcomes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Literal

from . import errors
from ._core import Msg, PubAck, Window
from ._engine.arguments import unique_name
from ._io.exchange import UnsentError, make_way
from ._io.loop import Loop
from .jetstream_errors import InvalidAckError, PublishOutcomeUnknownError
from .publish_outcomes import failure, odd_outcome, read_ack

if TYPE_CHECKING:
    from ._engine.arguments import Buffer, HeadersLike

    # What `publish_all` takes: a subject and a payload, perhaps with headers.
    Publishable = tuple[str, Buffer] | tuple[str, Buffer, HeadersLike | None]


# How long a full window waits for acks before it grows, or, when it cannot any more,
# before one place is enough to go on.
ACKS_LINGER = 0.002


@contextlib.contextmanager
def open_window(loop: Loop, limit: int, *, keeps_acks: bool) -> Iterator[Window]:
    """A window with its inbox; what is unsent at the end is never sent."""
    prefix = f"{loop.options.inbox_prefix}.{unique_name()}."
    window = Window(prefix, loop.outbox, limit, keeps_acks)
    sid = loop.subscribe(prefix + "*", None, window)
    try:
        yield window
    finally:
        window.withdraw()
        window.clear()
        if not loop.is_closing:
            loop.unsubscribe(sid)


def stray_answer(msg: Msg) -> errors.Error:
    """Somebody besides the stream answers: a refusal cannot be told from another's."""
    try:
        read_ack(msg, msg.subject)
    except errors.Error as error:
        unknown = PublishOutcomeUnknownError(
            "?", f"more than one answers the publishes, and one said: {error}"
        )
        unknown.__cause__ = error
        return unknown
    return InvalidAckError("?", msg.data[:200])


def publish_all(
    loop: Loop,
    messages: Iterable[Publishable],
    *,
    window: int,
    timeout: float,
    on_error: Literal["raise", "return"],
) -> Iterator[PubAck | errors.Error]:
    """Publishes the messages as a pipeline and yields their acks in order.

    At most `window` messages are on their way. Each has `timeout` from its sending. An
    iterator that ends before its messages do takes back what is not sent.
    """
    source = iter(messages)
    broken: Exception | None = None
    stuck_until: float | None = None  # of a message that found no room
    loop.check_open()
    with open_window(loop, window, keeps_acks=True) as acks:
        while not acks.is_exhausted or len(acks):
            is_linked, asked = True, 0
            try:
                asked = acks.feed(source, timeout)
            except Exception as error:  # noqa: BLE001 - it is raised in its turn
                if acks.pending is None:
                    broken = error
                    acks.end_source()
                elif isinstance(error, errors.DisconnectedError):
                    is_linked = False
                else:
                    acks.refuse_pending(error)
            if asked == 1:
                loop.alert()
            elif asked or not is_linked:
                if stuck_until is None:
                    stuck_until = monotonic() + timeout
                _make_way(loop, acks, is_linked, stuck_until)
                continue
            stuck_until = None
            if len(acks) and not acks.has_outcome:
                _await_acks(loop, acks)
            yield from acks.take()
            odd = acks.take_odd()
            if odd is not None:
                ended = odd_outcome(acks, odd)
                if isinstance(ended, PubAck) or (
                    on_error == "return" and isinstance(ended, errors.Error)
                ):
                    yield ended
                else:
                    raise ended
            if acks.stray is not None:
                raise stray_answer(acks.stray)
        if broken is not None:
            raise broken


def _make_way(loop: Loop, acks: Window, is_linked: bool, deadline: float) -> None:
    """Waits for what the next message needs; in vain, that is its outcome."""
    try:
        make_way(loop, is_linked, deadline)
    except UnsentError as error:
        assert acks.pending is not None
        acks.refuse_pending(failure(error, acks.pending[0], None))
    except errors.Error as error:
        acks.refuse_pending(error)


def _await_acks(loop: Loop, acks: Window) -> None:
    """Waits for some acks; the oldest publish is given up when its ack is overdue."""
    if not await_some(loop, acks, monotonic() + acks.time_left):
        acks.give_up_oldest()
        loop.look()


def await_some(loop: Loop, acks: Window, deadline: float) -> bool:
    """Waits for some acks, or until more may be sent; False if neither came."""
    acks.await_some()
    pause = monotonic() + ACKS_LINGER
    if acks.width == acks.limit or deadline < pause:
        return loop.wait(acks, deadline)
    if not loop.wait(acks, pause):
        acks.widen()
    return True
