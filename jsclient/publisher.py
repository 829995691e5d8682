"""Publishing to streams, one message at a time.

A publish never waits in a reconnect buffer, and one that was not sent when its time is
over is withdrawn. `publish_outcomes` says how it can end.
"""

from __future__ import annotations

import contextlib
from time import monotonic

from . import errors
from ._api import Api
from ._core import Gate, PubAck, parse_pub_ack
from ._engine.arguments import Buffer, HeadersLike
from ._engine.publish_headers import (
    PublishOptions,
    lasting_headers,
    needs_of,
    with_options,
)
from ._io.exchange import UnansweredError, UnsentError, exchange
from ._io.loop import Loop
from .jetstream_errors import DuplicateInProcessError, NoStreamResponseError
from .publish_outcomes import certain, failure, read_ack
from .repeating import Repeats


def optioned(
    api: Api, headers: HeadersLike | None, options: PublishOptions
) -> HeadersLike | None:
    """The headers of a message with its options, if the server knows them."""
    headers = with_options(headers, options)
    if needs := needs_of(options):
        api.refuse_too_new(needs)
    return headers


def publish(
    loop: Loop,
    subject: str,
    data: Buffer,
    headers: HeadersLike | None,
    timeout: float,
    retries: int,
    retry_wait: float,
    *,
    msg_id: str | None = None,
    repeats: Repeats | None = None,
) -> PubAck:
    """Publishes one message and waits for the stream's ack.

    No responders are asked again, `retries` times. A publish whose link was lost is
    repeated only if that cannot store it twice, which `repeats` knows. Once a try is in
    doubt, only an ack ends the doubt: the refusal of a later try says nothing of the
    first.
    """
    began = monotonic()
    deadline = began + timeout
    if headers is not None:
        headers = lasting_headers(headers)
    doubt: UnansweredError | None = None
    while True:
        try:
            msg = exchange(loop, subject, data, headers, deadline)
            ack = parse_pub_ack(msg.data)
            return read_ack(msg, subject) if ack is None else ack
        except NoStreamResponseError as error:
            if retries == 0 or not _pause(loop, retry_wait, deadline):
                if doubt is not None:
                    raise failure(doubt, subject, msg_id) from doubt
                if retries == 0:
                    raise
                loop.check_open()
                raise errors.TimeoutError(
                    f"no stream answered for {subject!r} within {timeout:g} s; "
                    "the message is not stored"
                ) from error
            retries -= 1
        except UnansweredError as error:
            is_over = not error.is_lost or loop.is_closing or monotonic() >= deadline
            if repeats is not None and not is_over and doubt is None:
                # From here on no try may come after the stream has forgotten the id.
                deadline = min(deadline, repeats.until(subject, began, deadline))
                is_over = monotonic() >= deadline
            doubt = doubt or error
            if repeats is None or is_over:
                raise failure(doubt, subject, msg_id) from error
        except UnsentError as error:
            # The next link may take it.
            if loop.is_closing or monotonic() >= deadline:
                raise failure(doubt or error, subject, msg_id) from error
        except errors.Error as error:
            if doubt is None:
                raise certain(error, subject, msg_id) from error.__cause__
            # The first try may be about to be stored.
            is_early = isinstance(error, DuplicateInProcessError)
            if not is_early or not _pause(loop, retry_wait, deadline):
                raise failure(doubt, subject, msg_id) from error
        began = monotonic()


def _pause(loop: Loop, duration: float, deadline: float) -> bool:
    """Lets that much time pass; False if the deadline, or the end, comes first."""
    until = min(deadline, monotonic() + duration)
    with contextlib.suppress(errors.ConnectionClosedError):
        loop.wait(Gate(), until)
    return until < deadline and not loop.is_closing
