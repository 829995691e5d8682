"""Messages that came too late for the fetch that asked for them: the next one has them.

A fetch keeps its deadline, and the server may not have heard of it yet: what it sends
until then arrives after the fetch has returned. For a consumer without acks such
messages would be lost for good, for others until they are delivered again. So the next
fetch, or iteration, first waits for them, as long as it takes the server to answer a
PING: what it would ask for itself could not come any sooner. Messages of a fetch that
an exception has ended, in its place, are left in the same way.
"""

from __future__ import annotations

import contextlib
from collections import deque
from itertools import accumulate, chain, islice

from .._core import Batch, BatchInbox, Gate, LonePull, Msg, PullInbox
from .loop import Loop


class Leftovers:
    """What fetches of one consumer have left behind, in order.

    Messages move from one place to the next without a step of Python in between, in
    which a signal handler could raise or another thread be faster.
    """

    def __init__(self, left: list[LonePull], late: deque[Msg]) -> None:
        self._left = left  # of fetches that are over; some may still get messages
        self._messages = late

    def __bool__(self) -> bool:
        return bool(self._messages or self._left)

    def expect(self, lone: LonePull, gate: Gate) -> None:
        """Until the gate opens messages may come for a fetch that is over."""
        lone.settled = gate
        if lone not in self._left:
            self._left.append(lone)
        if gate.is_open:
            self.settle(lone)

    def settle(self, lone: LonePull) -> None:
        """No more come; what came stays for the next fetch."""
        self.gather(lone.inbox)
        if lone in self._left:
            self._left.remove(lone)

    def settle_all(self) -> None:
        """No more come at all."""
        for lone in list(self._left):
            if lone.settled is not None:
                self.settle(lone)

    def clear(self) -> None:
        """Nobody can have them any more."""
        self._left.clear()
        self._messages.clear()

    def gather(self, inbox: PullInbox) -> None:
        """What came for a fetch that is over."""
        if isinstance(inbox, BatchInbox):
            batches = iter(inbox.take_batch, None)
            self._messages.extend(chain.from_iterable(batches))
        else:
            self._messages.extend(iter(inbox.take, None))

    def await_all(self, loop: Loop, deadline: float) -> None:
        """Waits until all of them have come, at most until then."""
        for lone in list(self._left):
            if lone.settled is not None and not loop.wait(lone.settled, deadline):
                return

    def take_batch(
        self, into: BatchInbox, most: int, max_bytes: int = 0
    ) -> Batch | None:
        """The first of them in columns, within the limits; None if there are none."""
        found: list[Msg] = []
        try:
            self.take_into(found, most, max_bytes)
            for msg in found:
                into.add(msg)
            return into.take_batch()
        except BaseException:
            self.put_back(found)
            raise

    def take(self, most: int, max_bytes: int = 0) -> list[Msg]:
        """Up to so many of them, and so many bytes if there is a limit of these."""
        found: list[Msg] = []
        self.take_into(found, most, max_bytes)
        return found

    def take_into(self, found: list[Msg], most: int, max_bytes: int = 0) -> None:
        """The same; whoever has the list can put back what is in it, whatever comes."""
        for lone in list(self._left):
            self.gather(lone.inbox)
        count = min(most, len(self._messages))
        if max_bytes:
            sizes = accumulate(msg.size for msg in islice(self._messages, count))
            count = sum(size <= max_bytes for size in sizes)
        with contextlib.suppress(IndexError):  # another thread was faster
            found.extend(islice(iter(self._messages.popleft, None), count))

    def put_back(self, messages: list[Msg]) -> None:
        """Undoes `take` for messages that their taker could not use."""
        self._messages.extendleft(messages[::-1])
