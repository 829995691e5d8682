"""Publishing columns: rows go to the wire without an object for each.

The rows are slots of a compiled Window, which counts their acks. Only what is unusual
comes here: refusals, lost links, silence. Every row ends as one of the outcomes of a
publish: stored (or known already), refused, not sent, or unknown. A row with an id
whose outcome is unknown is published again with the same id, which stores it once, as
long as `repeating` says so.

A run has one deadline, of progress: it moves with every outcome.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

from . import errors
from ._core import Gate, PubAck, Rows, Window
from ._io.exchange import UnansweredError, UnsentError, make_way
from ._io.loop import Loop
from .jetstream_errors import (
    DuplicateInProcessError,
    JetStreamUnavailableError,
    NoStreamResponseError,
    PublishColumnsError,
    PublishOutcomeUnknownError,
)
from .publish_all import await_some, open_window, stray_answer
from .publish_outcomes import failure, odd_outcome
from .repeating import Repeats

if TYPE_CHECKING:
    from ._core import _OddRow

# Answers that say: not now. The first is about the row's own earlier try.
NOT_NOW = (DuplicateInProcessError, JetStreamUnavailableError, NoStreamResponseError)


# So many rows have one subject for their acks, if each may be sent once more soon.
SHARING = 8
SOON = 5.0

# After so much silence rows with ids are published again, while there is time.
ACK_PATIENCE = 5.0


class Published(NamedTuple):
    """What became of rows that were published."""

    stored: int
    duplicates: int  # rows whose ids the stream knew already, if only by a first try
    refused: int  # rows that were skipped
    first_seq: int  # of all rows that are in the stream; 0 if none is
    last_seq: int
    first_refusal: PublishColumnsError | None = None


def publish_columns(
    loop: Loop,
    repeats: Repeats,
    batches: Iterator[Rows],
    *,
    window: int,
    timeout: float,
    retries: int,
    retry_wait: float,
    on_error: Literal["raise", "skip"],
    known_ids: AbstractSet[bytes] | None,
) -> Published:
    """Publishes all rows and waits until each has its outcome."""
    loop.check_open()
    with open_window(loop, window, keeps_acks=False) as acks:
        run = _Run(
            loop, repeats, acks, timeout, retries, retry_wait, on_error, known_ids
        )
        for rows in batches:
            run.publish(rows)
        run.finish()
        return run.published


class _Run:
    """One call of `publish_columns`."""

    def __init__(
        self,
        loop: Loop,
        repeats: Repeats,
        window: Window,
        timeout: float,
        retries: int,
        retry_wait: float,
        on_error: Literal["raise", "skip"],
        known_ids: AbstractSet[bytes] | None,
    ) -> None:
        self._loop = loop
        self._repeats = repeats
        self._window = window
        self._timeout = timeout
        self._retries = retries
        self._retry_wait = retry_wait
        self._on_error = on_error
        self._known_ids = known_ids
        self._deadline = monotonic() + timeout
        self._count = 0  # rows of the batches before
        self._is_repeatable = True  # all of them
        self._again: deque[tuple[Rows, int]] = deque()  # rows to publish once more
        self._again_at = 0.0
        self._odds: deque[_OddRow] = deque()  # outcomes to be looked at
        # Rows that may be stored by an earlier try: when the first was sent, at the
        # earliest, and whether its link was lost.
        self._doubts: dict[int, tuple[float, bool]] = {}
        # Rows that shared a subject, of which some are stored and some refused: when
        # the first of them was sent, at the earliest.
        self._mixed: dict[int, float] = {}
        self._may_share: bool | None = None  # None: nobody has looked
        self._gone: Exception | None = None  # the loss of a link that was looked at
        self._tries: dict[int, int] = {}  # of rows that no stream answered
        self._refused = 0
        self._first_refusal: PublishColumnsError | None = None

    @property
    def published(self) -> Published:
        """The counts so far."""
        window = self._window
        return Published(
            window.stored,
            window.duplicates,
            self._refused,
            window.first_seq,
            window.last_seq,
            self._first_refusal,
        )

    def publish(self, rows: Rows) -> None:
        """Sends all rows; what the window holds may still be on its way."""
        rows.base, rows.position = self._count, 0
        self._is_repeatable = self._is_repeatable and rows.is_repeatable
        self._count += rows.count
        # The time that the batch took to come is not the server's.
        self._deadline = monotonic() + self._timeout
        while rows.position < rows.count:
            if self._window.gone is not self._gone:
                # What was under way on the lost link comes before the rest.
                self._gone = self._window.gone
                self._settle()
            elif self._again:
                self._repeat()
            elif self._window.is_full:
                if self._may_share is None:
                    self._may_share = self._look_whether_to_share(rows)
                self._window.sharing = SHARING if self._may_share else 1
                self._await_acks()
            else:
                self._fill(rows)

    def finish(self) -> None:
        """Waits until every row has its outcome."""
        while self._again or len(self._window):
            if self._again:
                self._repeat()
            else:
                self._await_acks()

    def _look_whether_to_share(self, rows: Rows) -> bool:
        """Whether rows may share subjects, as many rows are under way.

        Which of those that share was refused is learnt by sending each once more. The
        stream must know their ids for long enough, and must be known itself.
        """
        subject, now = rows.subject_text(rows.position), monotonic()
        if not self._is_repeatable:
            return False
        if not rows.has_one_subject and not self._repeats.has_one_stream:
            return False
        return self._repeats.until(subject, now, self._deadline) >= now + SOON

    # Sending --------------------------------------------------------------------------

    def _fill(self, rows: Rows) -> None:
        try:
            asked = self._window.fill(rows, self._known_ids)
        except errors.DisconnectedError:
            self._make_way(False, rows, rows.position)
        except (errors.InvalidArgumentError, errors.MaxPayloadError) as error:
            self._refuse(rows, rows.position, error)
            rows.position += 1
        except errors.Error as error:
            self._stop(rows, rows.position, error)
        else:
            self._attend(asked, rows, rows.position)

    def _repeat(self) -> None:
        """Publishes the oldest row that has to be published once more."""
        rows, row = self._again[0]
        if self._window.is_full:
            self._await_acks()
            return
        if monotonic() < self._again_at:
            self._loop.wait(Gate(), self._again_at)
        if monotonic() >= self._deadline:
            self._stop(rows, row, self._silence(rows, row))
        number = rows.base + row
        doubt = self._doubts.get(number)
        if doubt is None and number in self._mixed:
            doubt = (self._mixed[number], False)
        if doubt is not None and not self._may_repeat(rows, row, doubt[0]):
            why = "the link was lost" if doubt[1] else "no ack of its own came"
            error = UnansweredError(
                f"{why}, and the stream may have forgotten its id", is_lost=doubt[1]
            )
            self._stop(
                rows, row, failure(error, rows.subject_text(row), rows.id_of(row))
            )
        try:
            asked = self._window.publish_row(rows, row)
        except errors.DisconnectedError:
            self._make_way(False, rows, row)
            return
        except errors.Error as refusal:
            self._again.popleft()
            self._stop(rows, row, refusal)
        if asked != 2:
            self._again.popleft()
        self._attend(asked, rows, row)

    def _attend(self, asked: int, rows: Rows, row: int) -> None:
        if asked == 1:
            self._loop.alert()
        elif asked == 2:
            self._make_way(True, rows, row)

    def _make_way(self, is_linked: bool, rows: Rows, row: int) -> None:
        """Waits for a link or for room; the acks that come meanwhile are progress."""
        self._settle()
        try:
            make_way(self._loop, is_linked, self._deadline)
        except UnsentError as error:
            self._stop(rows, row, failure(error, rows.subject_text(row), None))
        except errors.ForkedError:
            raise
        except errors.ConnectionClosedError as error:
            self._stop(rows, row, error)

    # Outcomes -------------------------------------------------------------------------

    def _await_acks(self) -> None:
        window = self._window
        try:
            until = min(self._deadline, monotonic() + ACK_PATIENCE)
            is_ready = await_some(self._loop, window, until)
        except errors.ForkedError:
            raise
        except errors.ConnectionClosedError:
            is_ready = True  # each row knows what that means for it
        if self._settle() or is_ready:
            return
        oldest = window.oldest_row
        if oldest is None:
            return
        if monotonic() >= self._deadline:
            self._stop(*oldest, self._silence(*oldest))
        if (
            self._is_repeatable
            and window.is_sent
            and self._may_repeat(*oldest, self._oldest_sent())
        ):
            # A leader that falls forgets what it had not stored, and tells nobody.
            window.give_up()
            self._settle()

    def _oldest_sent(self) -> float:
        """When the oldest row under way was sent; all others came after it."""
        return monotonic() + self._window.time_left  # its time began to run out then

    def _may_repeat(self, rows: Rows, row: int, sent: float) -> bool:
        """Whether a row that may be stored, and was sent then, may be sent again."""
        first, _ = self._doubts.get(rows.base + row, (sent, False))
        until = self._repeats.until(rows.subject_text(row), first, self._deadline)
        return monotonic() < until

    def _silence(self, rows: Rows, row: int) -> errors.Error:
        error = UnansweredError(
            f"no ack came within {self._timeout:g} s", is_lost=False
        )
        return failure(error, rows.subject_text(row), rows.id_of(row))

    def _settle(self) -> bool:
        """Counts what was answered; whether anything was."""
        window = self._window
        before = len(window) + len(self._again)
        if window.stray is not None and (oldest := window.oldest_row) is not None:
            self._stop(*oldest, stray_answer(window.stray))
        sent = self._oldest_sent()
        self._odds.extend(window.sweep())
        while self._odds:
            self._settle_odd(self._odds.popleft(), sent)
        if len(window) + len(self._again) == before:
            return False
        self._deadline = monotonic() + self._timeout
        return True

    def _settle_odd(self, odd: _OddRow, sent: float) -> None:
        rows, row, what, answer, subject = odd
        window = self._window
        is_open = window.reason is None
        is_unknown = what in ("lost", "overdue")
        if is_open and (
            what in ("unsent", "refused", "mixed")
            or (is_unknown and rows.is_repeatable)
        ):
            self._again.append((rows, row))
            if is_unknown:
                self._doubts.setdefault(rows.base + row, (sent, what == "lost"))
            elif what == "mixed":
                self._mixed[rows.base + row] = sent
            return
        msg_id = rows.id_of(row)
        ended = odd_outcome(window, (what, answer, subject), msg_id)
        if isinstance(ended, PubAck):
            window.count_up(ended.seq, ended.duplicate)
        elif isinstance(ended, NOT_NOW) and self._may_try(rows, row, ended):
            self._again.append((rows, row))
            self._again_at = monotonic() + self._retry_wait
        elif rows.base + row in self._doubts:
            self._stop(rows, row, ended)
        elif what == "answered" or isinstance(ended, errors.PermissionsViolationError):
            self._refuse(rows, row, ended)
        else:
            self._stop(rows, row, ended)

    def _may_try(self, rows: Rows, row: int, error: Exception) -> bool:
        """Whether a row is worth another try that nobody took now."""
        if isinstance(error, DuplicateInProcessError):
            return True  # its own earlier try is being stored
        number = rows.base + row
        self._tries[number] = tries = self._tries.get(number, 0) + 1
        return tries <= self._retries

    # The end --------------------------------------------------------------------------

    def _refuse(self, rows: Rows, row: int, error: Exception) -> None:
        """The server, or we, refused a row for what it is."""
        if self._on_error == "raise":
            self._stop(rows, row, error)
        self._refused += 1
        if self._first_refusal is None:
            self._first_refusal = self._problem(rows, row, error, 0)

    def _stop(self, rows: Rows, row: int, error: Exception) -> NoReturn:
        """Publishes nothing more, learns what became of the rest, and raises."""
        window = self._window
        if rows.base + row in self._doubts and not isinstance(
            error, PublishOutcomeUnknownError
        ):
            # What became of a later try says nothing of the first.
            refusal, subject = error, rows.subject_text(row)
            error = PublishOutcomeUnknownError(
                subject, str(refusal), msg_id=rows.id_of(row)
            )
            error.__cause__ = refusal
        window.withdraw()
        if window.reason is None and not isinstance(error, TimeoutError):
            window.await_some(True)
            with contextlib.suppress(errors.ConnectionClosedError):
                self._loop.wait(window, self._deadline)
        window.give_up()
        again = {one.base + number for one, number in self._again}
        unknown = again & (self._doubts.keys() | self._mixed.keys())
        if isinstance(error, PublishOutcomeUnknownError):
            unknown.add(rows.base + row)
        for one, number, what, answer, subject in (*self._odds, *window.sweep(True)):
            if what in ("refused", "mixed"):
                if what == "mixed":
                    unknown.add(one.base + number)
                continue
            ended = odd_outcome(window, (what, answer, subject))
            if isinstance(ended, PubAck):
                window.count_up(ended.seq, ended.duplicate)
            elif isinstance(ended, PublishOutcomeUnknownError):
                unknown.add(one.base + number)
        raise self._problem(rows, row, error, len(unknown))

    def _problem(
        self, rows: Rows, row: int, error: Exception, unknown: int
    ) -> PublishColumnsError:
        problem = PublishColumnsError(
            row=rows.base + row,
            subject=rows.subject_text(row),
            error=error,
            stored=self._window.stored,
            duplicates=self._window.duplicates,
            unknown=unknown,
        )
        problem.__cause__ = error
        return problem
