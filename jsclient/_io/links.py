"""The links of a connection, one after another: made, taken into service, replaced.

The first is made by who connects. All others are the keeper's work, and so is the end
of each: the keeper runs no user code but credential callables, and no signal handler
runs in it, so none of these steps is ever cut short.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from .. import errors, events
from .._core import Gate
from .._engine.servers import Pool
from .._engine.session import Session
from .dial import Call, Fields, Interrupted, Patience, dial
from .live import Live, Status
from .roles import Watcher
from .search import first_call

if TYPE_CHECKING:
    from .loop import Loop


class Links:
    """Makes and ends the links of one loop, and counts what they carried."""

    def __init__(self, loop: Loop, pool: Pool, fields: Fields) -> None:
        self.pool = pool
        self.made = 0
        self._loop = loop
        self._options = loop.options
        self._fields = fields
        self._past = {"in": 0, "out": 0, "in_messages": 0, "in_bytes": 0}

    def make_first(self, timeout: float) -> None:
        """The first link, made by the caller."""
        self._take(first_call(self.pool, self._options, self._fields, timeout))

    def recover(self) -> None:
        """The keeper's work after a loss: dial until there is a link or no hope."""
        loop = self._loop
        self.end()
        if not self._options.allow_reconnect and self.made:
            loop.close(loop.last_error)
            return
        self.pool.lost(monotonic())
        while not loop.is_closing:
            attempt = self.pool.next_attempt(monotonic())
            if attempt is None:
                loop.close(self.pool.abort_error or self._gave_up())
                return
            server, at = attempt
            if at > monotonic():
                loop.keeper.nap(at - monotonic())
                continue
            patience = Patience(
                monotonic() + self._options.connect_timeout,
                bell=loop.bell,
                is_off=lambda: loop.is_closing,
            )
            try:
                call = dial(server, self._options, self._fields, patience)
            except Interrupted:
                return
            except errors.Error as error:
                loop.last_error = error
                self.pool.failed(server, error, monotonic())
                loop.tell(events.ReconnectFailed(server.label, error))
            else:
                self._take(call)
                return

    def _gave_up(self) -> Exception:
        last = self._loop.last_error
        error = errors.NoServersError(
            f"gave up reconnecting after the last attempts failed: {last}"
        )
        error.__cause__ = last
        return error

    def _take(self, call: Call) -> None:
        try:
            self._install(call)
        except BaseException:
            # A signal handler raised in the first connect, or there is a bug.
            call.sock.close()
            raise

    def _install(self, call: Call) -> None:
        """Takes a new link into service: subscriptions first, then what was kept."""
        loop, now = self._loop, monotonic()
        self.pool.connected(call.server, now)
        session = Session(
            call.info,
            ping_interval=self._options.ping_interval,
            max_pings_out=self._options.max_pings_out,
            now=now,
        )
        call.parser.bind(loop.table.routes)
        loop.info = call.info
        loop.has_bad_headers = False
        loop.outbox.set_max_payload(call.info.max_payload)
        # The PONG of the handshake answers none of the PINGs to come.
        loop.outbox.settle_pongs(call.parser)
        # From here on control frames are kept; a subscription made meanwhile is in them
        # or in the replay or in both, and the server ignores the second SUB of a sid.
        loop.outbox.expect_link()
        loop.watch(call.sock)
        call.parser.is_watched = loop.answered is not None
        loop.live = live = Live(call, session)
        self.made += 1  # before anybody can use the new link
        if loop.status in (Status.CONNECTING, Status.RECONNECTING):
            loop.status = Status.CONNECTED
        refused = loop.outbox.attach(call.link, loop.table.replay())
        self._tell_watchers(lambda watcher: watcher.linked(now))
        loop.helm.start(call.link, live)
        loop.linked.open()
        is_first = self.made == 1
        loop.discover(call.info, is_news=not is_first)
        if refused:
            loop.tell(
                events.ErrorEvent(
                    errors.MaxPayloadError(
                        f"{refused} buffered messages were larger than the "
                        f"{call.info.max_payload} bytes that {call.server.label} takes"
                    )
                )
            )
        news = events.Connected if is_first else events.Reconnected
        loop.tell(news(call.server.label))
        loop.keeper.ring()

    def end(self) -> None:
        """The keeper's first step after a loss: nobody is at the helm."""
        loop, live = self._loop, self._loop.live
        if live is None:
            return
        loop.helm.stop(live.link)
        deadline = monotonic() + 1.0
        while monotonic() < deadline:
            loop.wake()
            if loop.helm.leaving().sleep(deadline - monotonic()):
                break
        error = live.error
        if loop.linked.is_open:  # not if somebody waits for the next link already
            loop.linked = Gate()
        loop.live = None
        loop.outbox.detach()
        self._count_past(live)
        loop.unwatch(live.sock)
        live.link.close()
        live.sock.close()
        if error is not None:
            loop.last_error = error
        gone = errors.DisconnectedError(f"the link to {live.server.label} was lost")
        gone.__cause__ = error
        live.session.ended(gone)
        self._tell_watchers(lambda watcher: watcher.unlinked(monotonic()))
        loop.table.lose_link(gone)
        loop.look()
        if loop.status == Status.CONNECTED:
            loop.status = Status.RECONNECTING
        if isinstance(error, errors.ProtocolError):
            loop.tell(events.ErrorEvent(error))
        loop.tell(events.Disconnected(live.server.label, error))

    def _tell_watchers(self, tell: Callable[[Watcher], None]) -> None:
        """Tells them at the helm, where other threads begin and end what is theirs.

        Not for ever: a signal handler may wait at the helm for what we are about to do.
        """
        loop = self._loop

        def job() -> None:
            for watcher in list(loop.watchers):
                tell(watcher)

        deadline = monotonic() + 1.0
        while not loop.helm.run(job):
            if not loop.helm.leaving().sleep(deadline - monotonic()):
                job()
                return

    def leave(self) -> None:
        """Leaves the link for the next server, or cuts the wait for one short."""
        loop, live = self._loop, self._loop.live
        self.pool.hurry()
        if live is not None:
            loop.fail(live, errors.DisconnectedError("the user asked for a new link"))
        loop.keeper.ring()

    def forget_credentials(self) -> None:
        """There will be no further link; what it would need may be the user's."""
        del self._fields

    # Counts ---------------------------------------------------------------------------

    def _count_past(self, live: Live) -> None:
        self._past["in"] += live.link.bytes_in
        self._past["out"] += live.link.bytes_out
        self._past["in_messages"] += live.parser.messages
        self._past["in_bytes"] += live.parser.payload_bytes

    def stats(self) -> dict[str, int]:
        """Counts since the connection was made, over all its links."""
        loop, live, past = self._loop, self._loop.live, self._past
        link = live.link if live is not None else None
        parser = live.parser if live is not None else None
        return {
            "in_msgs": past["in_messages"] + (parser.messages if parser else 0),
            "in_bytes": past["in_bytes"] + (parser.payload_bytes if parser else 0),
            "out_msgs": loop.outbox.messages,
            "out_bytes": loop.outbox.payload_bytes,
            "total_bytes_in": past["in"] + (link.bytes_in if link else 0),
            "total_bytes_out": past["out"] + (link.bytes_out if link else 0),
            "reconnects": max(0, self.made - 1),
        }
