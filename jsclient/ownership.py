"""Who deletes the consumer of a subscription: whoever made it, and only then."""

from __future__ import annotations

import contextlib
from time import monotonic

from . import _consumer_verbs as consumers_api
from . import errors, events
from ._api import Api
from ._engine.arguments import Seconds
from ._io.exchange import exchange

# How long the acks before a deletion may take: it does not depend on them.
LAST_ACKS = 1.0


class Ownership:
    """The consumer of a subscription, and whether it goes with the subscription."""

    def __init__(self, api: Api, stream: str, name: str, *, is_ours: bool) -> None:
        self.stream = stream
        self.name = name
        self._api = api
        self._is_ours = is_ours
        if is_ours:
            api.loop.belongings.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether the consumer is deleted when the subscription ends."""
        return self._is_ours

    def release(self, timeout: Seconds | None = None) -> None:
        """Deletes the consumer if it is ours; raises what the server says to that."""
        if not self._is_ours:
            return
        # Once, whatever comes of it: another consumer may have the name then.
        self._is_ours = False
        left = self._api.countdown(timeout)
        with contextlib.suppress(errors.Error):
            self._await_acks(min(LAST_ACKS, left()))
        consumers_api.delete(self._api, self.stream, self.name, timeout=left())

    def release_quietly(self, timeout: Seconds | None = None) -> None:
        """The same; what the server says goes to `on_event`."""
        try:
            self.release(timeout)
        except errors.Error as error:
            self._api.loop.tell(events.ErrorEvent(error))

    def _await_acks(self, timeout: float) -> None:
        """Returns when the server has handled the acks that were sent until now.

        It keeps them in a queue, which a deletion would overtake. What waits in the
        same queue is answered after them: a report of progress, here on the last
        message that was delivered, which changes nothing for a consumer that goes.
        """
        deadline = monotonic() + timeout
        info = consumers_api.fetch_info(
            self._api, self.stream, self.name, timeout=timeout
        )
        last = info.delivered
        if info.num_ack_pending and last.consumer_seq:
            prefix = self._api.ack_prefix or "$JS.ACK"
            place = f"{self.stream}.{self.name}.1.{last.stream_seq}.{last.consumer_seq}"
            subject = f"{prefix}.{place}.0.0"
            exchange(self._api.loop, subject, b"+WPI", None, deadline)
