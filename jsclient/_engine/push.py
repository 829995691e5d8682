"""One push delivery: when silence is an alarm, what is answered, what a status means.

The messages never come here: the inbox keeps them and finds gaps between them. What
comes is what needs an answer or a word to the user.

The clock: a consumer with heartbeats is never silent for long. Whatever is heard starts
the clock anew; when it runs out the user is told, and it starts again: the consumer may
come back. It stands still while there is no link.

Answers: a flow-control request is answered when all messages before it were handed
over, a stalled consumer, whose request was lost, at once; each subject once, for the
server counts only the last request. With a link its answers may be lost, so on the next
one the same subject is answered again, and so is what was asked while there was none.

With the ack policy "flow_control" an answer acknowledges what was handed over. It never
reaches past a gap: what is missing there would be lost for good.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..jetstream_errors import (
    JetStreamError,
    MessageGapError,
    MissedHeartbeatError,
    PushError,
)


class Place(NamedTuple):
    """Where a consumer is: its own sequence, and the stream's."""

    consumer_seq: int
    stream_seq: int


class Answer(NamedTuple):
    """Publish an empty message there; it acknowledges everything up to the place."""

    subject: str
    place: Place | None


class Warn(NamedTuple):
    """Something to tell the user; the delivery goes on."""

    error: JetStreamError


Output = Answer | Warn


class Delivery:
    """What one push consumer sends to one subscription."""

    def __init__(self, doing: str) -> None:
        self.deadline = math.inf
        self._doing = doing
        self._patience = math.inf
        self._heard_at = -math.inf
        self._is_linked = False
        self._answered: str | None = None  # on this link
        self._unanswered: str | None = None  # asked without a link
        self._place: Place | None = None  # up to which answers acknowledge
        self._gap_at = math.inf  # the first consumer sequence that is missing
        self._output: list[Output] = []

    # The clock ------------------------------------------------------------------------

    def started(self, now: float, *, patience: float, is_linked: bool) -> None:
        """From now on silence is an alarm after `patience`; infinite: never."""
        self._patience = patience
        self._is_linked = is_linked
        self._restart(now)
        self._answer_late()

    def heard(self, at: float) -> None:
        """Something of the consumer arrived at that time."""
        if at > self._heard_at:
            self._restart(at)

    def _restart(self, at: float) -> None:
        self._heard_at = at
        self.deadline = at + self._patience if self._is_linked else math.inf

    def tick(self, now: float) -> None:
        """The time is `now`."""
        if now < self.deadline:
            return
        self._warn(
            MissedHeartbeatError(
                code=0,
                description=f"nothing was heard for {now - self._heard_at:.3g} s",
                doing=self._doing,
            )
        )
        self.deadline = now + self._patience

    # Links ----------------------------------------------------------------------------

    def linked(self, now: float) -> None:
        """There is a new link, and the subscription was made again."""
        self._is_linked = True
        self._answered = None
        self._restart(now)
        self._answer_late()

    def _answer_late(self) -> None:
        """Answers what was asked while there was no link."""
        subject, self._unanswered = self._unanswered, None
        if subject is not None:
            self.asked(subject, self._place)

    def unlinked(self) -> None:
        """The link is gone."""
        self._is_linked = False
        self.deadline = math.inf

    # What comes -----------------------------------------------------------------------

    def asked(self, subject: str, place: Place | None) -> None:
        """The consumer wants an answer there; the user has everything up to `place`."""
        if place is not None and place.consumer_seq < self._gap_at:
            self._place = place
        if not self._is_linked:
            self._unanswered = subject
        elif not self.is_answered(subject):
            self._output.append(Answer(subject, self._place))

    def answered(self, subject: str) -> None:
        """The answer was sent on this link."""
        self._answered = subject

    def is_answered(self, subject: str) -> bool:
        """Whether that is the last answer that was sent on this link."""
        return subject == self._answered

    def gap(self, expected: int, came: int) -> None:
        """Another delivery came than was expected."""
        if came < expected:
            # Somebody reset the consumer: it delivers everything again.
            self._gap_at, self._place = math.inf, None
        else:
            self._gap_at = min(self._gap_at, expected)
        self._warn(MessageGapError(expected=expected, came=came, doing=self._doing))

    def dropped(self) -> None:
        """There was no room for a message: nothing after the last answer is safe."""
        safe = 0 if self._place is None else self._place.consumer_seq
        self._gap_at = min(self._gap_at, safe + 1)

    def judge(self, code: int, description: str) -> PushError | None:
        """The error that a status is; None if nobody needs to know of it."""
        if code in (404, 408):
            # They end pulls, and belong to somebody else's.
            return None
        text = description or "a status without a text"
        return PushError(code=code, description=text, doing=self._doing)

    # Outputs --------------------------------------------------------------------------

    def _warn(self, error: JetStreamError) -> None:
        self._output.append(Warn(error))

    def take_output(self) -> list[Output]:
        """What is to be done now, once."""
        output, self._output = self._output, []
        return output
