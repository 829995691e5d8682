"""Messages that came too late for the fetch that asked for them: the next one has them.

A fetch keeps its deadline, and the server may not have heard of it yet: what it sends
until then arrives after the fetch has returned. For a consumer without acks such
messages would be lost for good, for others until they are delivered again. So the next
fetch, or iteration, first waits for them, as long as it takes the server to answer a
PING: what it would ask for itself could not come any sooner.
"""

from __future__ import annotations

import contextlib
from collections import deque
from itertools import accumulate, islice

from .._core import Batch, BatchInbox, Gate, Msg, PullInbox
from .loop import Loop


class Leftovers:
    """What fetches of one consumer have left behind, in order."""

    def __init__(self) -> None:
        self._messages: deque[Msg] = deque()
        self._batches: deque[Batch] = deque()  # of fetches into columns
        self._inboxes: list[PullInbox] = []  # which may still get some
        self.gate: Gate | None = None  # opens when they have got all of them

    def __bool__(self) -> bool:
        return bool(self._messages or self._batches or self._inboxes)

    def expect(self, inbox: PullInbox, gate: Gate) -> None:
        """Until the gate opens messages may come for a fetch that has returned."""
        if not gate.is_open:
            self._inboxes.append(inbox)
            self.gate = gate  # the last of all to open

    def settle(self, inbox: PullInbox) -> None:
        """No more come; what came stays for the next fetch."""
        self.gather(inbox)
        if inbox in self._inboxes:
            self._inboxes.remove(inbox)

    def settle_all(self) -> None:
        """No more come at all."""
        for inbox in list(self._inboxes):
            self.settle(inbox)

    def gather(self, inbox: PullInbox) -> None:
        """What came for a fetch that has returned."""
        if isinstance(inbox, BatchInbox):
            if (batch := inbox.take_batch()) is not None:
                self._batches.append(batch)
            return
        # Without a step of Python in between, in which a signal handler could raise.
        self._messages.extend(iter(inbox.take, None))

    def await_all(self, loop: Loop, deadline: float) -> None:
        """Waits until all of them have come, at most until then."""
        if self._inboxes and self.gate is not None:
            loop.wait(self.gate, deadline)

    def take_batch(
        self, into: BatchInbox, most: int, max_bytes: int = 0
    ) -> Batch | None:
        """The first of them in columns, within the limits; None if there are none."""
        for inbox in list(self._inboxes):
            self.gather(inbox)
        if not self._messages:
            try:
                batch = self._batches.popleft()
            except IndexError:
                return None
            if len(batch) <= most and (not max_bytes or _size(batch) <= max_bytes):
                return batch  # as it came
            self._batches.appendleft(batch)
        for msg in self.take(most, max_bytes):
            into.add(msg)
        return into.take_batch()

    def take(self, most: int, max_bytes: int = 0) -> list[Msg]:
        """Up to so many of them, and so many bytes if there is a limit of these."""
        found: list[Msg] = []
        self.take_into(found, most, max_bytes)
        return found

    def take_into(self, found: list[Msg], most: int, max_bytes: int = 0) -> None:
        """The same; whoever has the list can put back what is in it, whatever comes."""
        for inbox in list(self._inboxes):
            self.gather(inbox)
        while self._batches:
            self._messages.extend(self._batches.popleft())
        count = min(most, len(self._messages))
        if max_bytes:
            sizes = accumulate(msg.size for msg in islice(self._messages, count))
            count = sum(size <= max_bytes for size in sizes)
        with contextlib.suppress(IndexError):  # another thread was faster
            found.extend(islice(iter(self._messages.popleft, None), count))

    def put_back(self, messages: list[Msg]) -> None:
        """Undoes `take` for messages that their taker could not use."""
        self._messages.extendleft(reversed(messages))


def _size(batch: Batch) -> int:
    """The bytes of its messages, as the server counts them."""
    return sum(msg.size for msg in batch)
