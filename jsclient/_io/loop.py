"""The loop of one connection: who reads, and what each read brings.

There is no thread between the socket and the user. A thread that waits takes the helm
and turns the loop in `_drive`: receive, parse, deliver, handle control lines, tick,
select. Sending needs no helm: whoever publishes gives the link what it takes.

Each link has one owner of its end: the keeper. Any thread may find that a link must
end; it says so with `fail` and goes on waiting. The keeper closes the socket, salvages
what was not sent and dials again: `links`.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from .. import errors, events
from .._core import (
    Answers,
    Awaited,
    Courier,
    Gate,
    Helm,
    Inbox,
    Outbox,
    Replies,
    Route,
    Routes,
    sub_frame,
    unsub_frame,
)
from .._engine.arguments import Seconds, seconds
from .._engine.info import ServerInfo, parse_info
from .._engine.options import Options
from .._engine.refusals import classify
from .._engine.servers import Pool
from .._engine.session import Tick
from .dial import Fields, Patience
from .dispatch import Dispatch, Handler
from .interruption import is_from_signal_handler
from .keeper import Keeper
from .links import Links
from .live import Live, Status
from .log import log
from .patrol import Patrol
from .roles import Belonging, Caller, Machine, Reader, Watcher
from .table import Entry, Table

if TYPE_CHECKING:
    from ..push import PushSubscription
    from ..subscription import Subscription

# How long `close` lets a slow link take the last bytes.
LAST_WORDS = 0.5
# How long a server that shuts down is given to answer what it was asked.
LAST_ANSWERS = 1.0


class Loop:
    """Everything that a Connection and its keeper share."""

    def __init__(
        self,
        options: Options,
        pool: Pool,
        fields: Fields,
        on_event: Handler | None,
    ) -> None:
        self.options = options
        self.dispatch = Dispatch(on_event)
        self.outbox = Outbox(options.write_buffer, options.reconnect_buffer)
        self.table = Table()
        self.patrol = Patrol(self.outbox)
        self.bell, self._rope = socket.socketpair()
        self.bell.setblocking(False)
        self._bell_fd = self.bell.fileno()
        self._rope.setblocking(False)
        self.helm = Helm(self._drive, monotonic, self.outbox, self._rope.fileno())
        self.live: Live | None = None
        self.info = ServerInfo()
        self.status = Status.CONNECTING
        self.last_error: Exception | None = None
        self.linked = Gate()  # opens with the next link
        self.finished = Gate()  # opens when nothing of the connection is left
        self.answered: Gate | None = None  # opens when nothing is under way
        self.callers: set[Caller] = set()  # whose callbacks may still be called
        self.readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self.machines: list[Machine] = []
        self.watchers: list[Watcher] = []
        # What a drain of the connection leaves to nobody.
        self.belongings: weakref.WeakSet[Belonging] = weakref.WeakSet()
        self.courier = Courier(self, self.outbox)
        self._calls: deque[tuple[Callable[[], None], Gate]] = deque()
        self._farewells: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._close_error: Exception | None = None
        self.has_bad_headers = False  # told of this link
        self._orphans: deque[Callable[[], None]] = deque()
        # One for reading, one for a full socket: changing the events of a selector is
        # Python code, which a signal handler that raises could leave half done.
        self._selector = selectors.DefaultSelector()
        self._full_selector = selectors.DefaultSelector()
        self._selector.register(self.bell, selectors.EVENT_READ)
        self._full_selector.register(self.bell, selectors.EVENT_READ)
        self.links = Links(self, pool, fields)
        self.keeper = Keeper(self)
        self.helm.equip(self.machines, self._calls, self._bell_fd, self._has_failed)

    # Waiting --------------------------------------------------------------------------

    def wait(self, what: Awaited, deadline: float) -> bool:
        """Waits until `what` is ready; False when the deadline passed.

        Raises ConnectionClosedError when the connection ends before.
        """
        if self.helm.wait(what, deadline):
            return True
        if self.helm.is_closed:
            raise self.closed_error()
        return False

    def call(self, job: Callable[[], None]) -> None:
        """Runs a job of ours at the helm, whoever has it; returns when it is done.

        What belongs to the loop, such as a pull conversation, is touched only there.
        """
        if self.helm.run(job):
            return
        done = Gate()
        self._calls.append((job, done))
        self.wake()
        # Who is at the helm does it, or leaves it to us.
        while not done.is_open and not self.helm.run(self._run_calls):
            self.helm.await_free(done)
        if done.error is not None:
            raise done.error

    def _run_calls(self) -> None:
        """Does what others want done here.

        A job that an exception of a signal handler cuts short is done once more.
        """
        while self._calls:
            call = self._calls[0]
            job, done = call
            try:
                job()
            except Exception as error:
                if is_from_signal_handler(error):
                    raise
                done.open(error)
            else:
                done.open()
            # A signal handler that waits may have put it away already.
            if self._calls and self._calls[0] is call:
                self._calls.popleft()

    def ack_sync(self, subject: str, timeout: Seconds | None) -> None:
        """Sends an ack and waits until the server has confirmed it."""
        from .exchange import UnansweredError, UnsentError, exchange

        limit = seconds(timeout)
        try:
            msg = exchange(self, subject, b"+ACK", None, monotonic() + limit)
        except (UnsentError, UnansweredError) as error:
            raise errors.TimeoutError(
                f"the ack was not confirmed within {limit:g} s: {error}"
            ) from error
        if msg.status == 503:
            raise errors.NoRespondersError(subject)

    @property
    def takes_reasons(self) -> bool:
        """Whether the server knows a `+TERM` with a reason; others ignore it."""
        return self.info.version_tuple >= (2, 10, 4)

    def wake(self) -> None:
        """Makes the thread that sits in select look around."""
        self.helm.ring()

    def alert(self) -> None:
        """Unsent bytes wait: the keeper, or who is at the helm, sends them."""
        self.outbox.look_after()
        self.keeper.ring()
        self.wake()

    def publish(
        self,
        subject: str,
        data: Any,  # bytes or any contiguous buffer; the core checks it
        *,
        reply: str | None = None,
        headers: Any = None,  # what encode_headers takes
        timeout: float = 10.0,
    ) -> None:
        """Adds a message to the outbox; waits for room up to the timeout."""
        asked = self.outbox.publish(subject, data, reply, headers)
        if asked:
            self.attend_publish(asked, subject, data, reply, headers, timeout)

    def attend_publish(
        self,
        asked: int,
        subject: str,
        data: Any,
        reply: str | None,
        headers: Any,
        timeout: float,
    ) -> None:
        """Does what the outbox asked of a publisher: alert the keeper or wait."""
        deadline = math.inf
        while asked == 2:
            if deadline == math.inf:
                deadline = monotonic() + timeout
            room = self.outbox.await_room()
            self.wake()  # whoever is in select must learn that the socket is full
            if not self.wait(room, deadline):
                raise errors.TimeoutError(
                    f"the buffer of {self.outbox.high_water} bytes to send stayed full "
                    f"for {timeout} s; the message was not sent"
                )
            asked = self.outbox.publish(subject, data, reply, headers)
        if asked == 1:
            self.alert()

    # Turning --------------------------------------------------------------------------

    def _drive(self, what: Awaited | None, deadline: float) -> None:
        """Turns the loop until `what` is ready, the time is over or the link lost.

        A thread that waits comes here when steering alone is not enough: see `Helm`.
        Without `what` the keeper is at the helm, until another thread wants it.
        """
        live = self.live
        if live is None or live.error is not None:
            return
        received: int | None = None  # nothing was read yet
        try:
            while True:
                if self._calls:
                    self._run_calls()
                if live.parser.needs_attention:
                    self._attend(live)
                now = monotonic()
                if now >= self._next_tick(live):
                    self._tick(live, now)
                if what is None:
                    if self.helm.is_wanted or self._orphans:
                        return
                elif what.ready:
                    return
                if received == 0:
                    raise errors.DisconnectedError("the server closed the connection")
                if live.error is not None or self.live is not live or self._is_closing:
                    return
                if received is not None:
                    if now >= deadline:
                        return
                    if received < 0 and (what is None or live.link.is_blocked):
                        self._rest(live, what, now, deadline)
                if what is None:
                    received = live.link.receive(live.parser)
                else:
                    received = self.helm.steer(live, what, deadline)
                    if received is None:
                        return
        except Exception as error:
            if not self._has_failed(live, error):
                raise

    def _has_failed(self, live: Live, error: Exception) -> bool:
        """Whether an error is the link's, which then ends, and no signal handler's."""
        if is_from_signal_handler(error):
            return False
        self.fail(live, error)
        return True

    def _rest(
        self, live: Live, what: Awaited | None, now: float, deadline: float
    ) -> None:
        """Nothing to read: sends what is due and sleeps until something happens."""
        wake_at = min(deadline, self._next_tick(live))
        if what is None:
            wake_at = min(wake_at, self.patrol.look(now))
        elif self.outbox:
            self.outbox.send()
        if live.link.error is not None:
            raise live.link.error
        if what is not None and what.ready:
            return  # sending made the room that a publisher waits for
        is_full = self.outbox and live.link.is_blocked
        selector = self._full_selector if is_full else self._selector
        timeout = None if wake_at == math.inf else max(0.0, wake_at - now)
        self.helm.is_resting = True
        if what is not None and what.ready:
            return  # a signal handler made it so just now
        for key, _ in selector.select(timeout):
            if key.fileobj is self.bell:
                with contextlib.suppress(BlockingIOError):
                    self.bell.recv(4096)
        self.helm.is_resting = False

    def watch(self, sock: socket.socket) -> None:
        """The loop wakes up for what happens on this socket."""
        self._selector.register(sock, selectors.EVENT_READ)
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._full_selector.register(sock, both)

    def unwatch(self, sock: socket.socket) -> None:
        """No longer, if it ever did."""
        for selector in (self._selector, self._full_selector):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(sock)

    def _next_tick(self, live: Live) -> float:
        """When `_tick` has something to do."""
        due = min(live.session.deadline, live.leave_at)
        for machine in self.machines:
            due = min(due, machine.deadline)
        return due

    def _tick(self, live: Live, now: float) -> None:
        for machine in self.machines:
            if now >= machine.deadline:
                machine.tick(now)
        if now >= live.leave_at:
            self._leave(live, now)
        self.look()
        match live.session.tick(now):
            case Tick.PING:
                self.outbox.ping()
                self.outbox.send()
            case Tick.STALE:
                raise errors.StaleConnectionError(
                    f"{live.server.label} did not answer "
                    f"{self.options.max_pings_out} PINGs"
                )

    def _leave(self, live: Live, now: float) -> None:
        """Leaves a server that shuts down as soon as it has answered what it was asked.

        Nothing more is asked of it, so that will not take long.
        """
        if self.outbox.is_leaving:
            raise _shutting_down(live)
        live.leave_at = now + LAST_ANSWERS
        live.parser.is_watched = True
        # First: whoever is held up waits for the next link.
        self.linked = Gate()
        self.outbox.leave()

    def await_answers(self) -> Gate:
        """A Gate that opens when nothing that was sent waits for its answer."""
        if self.answered is None:
            self.answered = Gate()
        if self.live is not None:
            self.live.parser.is_watched = True
        self.look()
        return self.answered

    def look(self) -> None:
        """Something is waited for no more: perhaps it was the last.

        Every read is followed by a look while that matters, and so is whatever else
        may end a wait.
        """
        live = self.live
        if self.outbox.is_leaving and live is not None and not self.table.is_awaited:
            self.fail(live, _shutting_down(live))
        if self.answered is not None and not self.table.is_under_way:
            self.answered.open()

    def _attend(self, live: Live) -> None:
        """Handles what a read brought besides messages.

        Each thing is put away only after it was handled: an exception from a signal
        handler in between means that it is handled once more, which does no harm.
        """
        parser, outbox = live.parser, self.outbox
        outbox.answer_pings(parser)
        live.session.ponged(outbox.count_pongs(parser))
        outbox.settle_pongs(parser)
        while parser.control:
            verb, text = parser.control[0]
            if verb == "INFO":
                self._informed(live, text)
            else:
                self._refused(live, text)
            if parser.control:
                del parser.control[0]
        while parser.notices:
            self._noticed(parser.notices[0])
            if parser.notices:
                del parser.notices[0]
        if parser.has_news:
            self.look()
            parser.has_news = False
        if outbox:
            outbox.send()

    def _informed(self, live: Live, text: bytes) -> None:
        try:
            info = parse_info(text)
        except ValueError as error:
            self.tell(
                events.ErrorEvent(errors.ServerError(f"{live.server.label}: {error}"))
            )
            return
        is_lame = live.session.info.ldm
        self.info = live.session.info = info
        live.parser.max_payload = info.max_message
        self.outbox.set_max_payload(info.max_payload)
        self.discover(info, is_news=True)
        if info.ldm and not is_lame:
            self.tell(events.LameDuck(live.server.label))
            if self.options.reconnect_on_lame_duck:
                # Not all clients of the server at once.
                live.leave_at = monotonic() + 2.0 * self.links.pool.rng.uniform(
                    0.0, 1.0
                )

    def discover(self, info: ServerInfo, *, is_news: bool) -> None:
        """Takes over the announced servers; those of the first INFO are no news."""
        ignored = self.links.pool.ignored_urls
        fresh = self.links.pool.announced(info.connect_urls)
        if fresh and is_news:
            self.tell(events.ServersDiscovered(fresh))
        if self.links.pool.ignored_urls > ignored == 0:
            self.tell(
                events.ErrorEvent(
                    errors.ServerError("the server announced unusable connect_urls")
                )
            )

    def _refused(self, live: Live, text: bytes) -> None:
        """An -ERR: told to whom it belongs; if it closes the link, it says why."""
        refusal = classify(text, server=live.server.label)
        error = refusal.error
        self.last_error = error
        if refusal.closes:
            raise error
        if isinstance(error, errors.PermissionsViolationError):
            if refusal.scope == "subscription":
                entry = self.table.refused(error)
                if entry is not None:
                    self.table.end(entry, error)
                    if entry.on_refused is None:
                        self.tell(events.ErrorEvent(error, entry.subscription))
                    return
            elif self.table.fail_request(error):
                return
        self.tell(events.ErrorEvent(error))

    def _noticed(self, route: Route) -> None:
        """An inbox began to drop or came to its limit, or answers were gathered."""
        for sid, entry in self.table.of_route(route):
            entry.notice()
            if isinstance(route, Inbox):
                if route.report_drop() and entry.subscription is not None:
                    self.tell(events.SlowConsumer(entry.subscription, route.dropped))
                if route.is_ended:
                    self.forget(sid)

    # Subscriptions --------------------------------------------------------------------

    @property
    def entries(self) -> dict[int, Entry]:
        """The subscriptions by their sids."""
        return self.table.entries

    @property
    def routes(self) -> Routes:
        """Where the parser delivers."""
        return self.table.routes

    @property
    def replies(self) -> Replies | None:
        """The inbox of requests, once there was one."""
        return self.table.replies

    def subscribe(
        self,
        subject: str,
        queue: str | None,
        route: Route,
        subscription: Subscription | PushSubscription | None = None,
        on_notice: Callable[[], None] | None = None,
        asked: str | None = None,
        on_refused: Callable[[errors.Error], None] | None = None,
        sid: int = 0,
    ) -> int:
        """Registers a route, tells the server, and returns the sid, a new one if 0.

        It lasts as long as the subscription, also when a signal handler raises here.
        An inbox for the answers to one request, to the subject `asked`, ends when the
        link is lost or the request is refused. `on_refused` is told when the server
        refuses a lane or a pull, to the subject `asked`, that is open on it.
        """
        sid = sid or self.table.new_sid()
        frame = sub_frame(subject, queue, sid)
        owner = None
        if subscription is not None:
            owner = weakref.ref(subscription, lambda _: self.orphaned(sid))
        entry = Entry(
            subject,
            queue,
            route,
            owner=owner,
            on_notice=on_notice,
            asked=asked,
            on_refused=on_refused,
        )
        self.table.add(sid, entry)
        if self._is_closing:
            self._end_route(sid, entry)  # who closes may have looked before
        self._control(frame)
        return sid

    def unsubscribe(self, sid: int, limit: int = 0) -> None:
        """Ends the server's interest, at once or after `limit` messages in all."""
        if not limit:
            # First, lest a new link that is just being made replays it.
            self.forget(sid)
            self.look()
        self._control(unsub_frame(sid, limit))

    def stop_interest(self, sid: int) -> None:
        """Ends the server's interest; what is under way is still delivered."""
        entry = self.entries.get(sid)
        frame = unsub_frame(sid)
        if entry is not None and not entry.is_draining:
            # No call stands between, in which a signal handler could raise.
            entry.is_draining = True
            if self.outbox.control(frame):
                self._send_control()

    def forget(self, sid: int) -> None:
        """Messages of the sid are dropped from now on."""
        self.table.remove(sid)

    def orphaned(self, sid: int) -> None:
        """Nobody holds the subscription. The collector calls: it takes no lock."""
        self.abandoned(lambda: self.unsubscribe(sid))

    def abandoned(self, end: Callable[[], None]) -> None:
        """Nobody holds something that the keeper is to end; takes no lock either."""
        self._orphans.append(end)
        self.alert()

    def forget_orphans(self) -> None:
        """The keeper's part of `abandoned`."""
        while self._orphans:
            self._orphans.popleft()()

    def _control(self, frame: bytes) -> None:
        if self.outbox.control(frame):
            self._send_control()

    def _send_control(self) -> None:
        self.outbox.send()
        if self.outbox:
            self.alert()

    def fence(self, then: Callable[[], None] | None = None) -> Gate:
        """A Gate that opens when the server has handled all that was sent until now.

        `then` is called at the helm before, but not when the link is lost.
        """
        live = self.live
        number = self.outbox.ping()
        if live is None or not number:
            gate = Gate()
            gate.open(errors.DisconnectedError("there is no link to the server"))
            return gate
        gate = live.session.fence(number, then)
        if self.live is not live:
            # The link ended meanwhile, perhaps before it could tell this fence.
            gate.open(errors.DisconnectedError("the link was lost"))
        if self.outbox.send():
            self.alert()
        return gate

    def request_inbox(self) -> Replies:
        """The inbox of all requests, subscribed when first needed."""
        table = self.table
        replies = table.replies
        if replies is None:
            from .._engine.arguments import unique_name

            prefix = f"{self.options.inbox_prefix}.{unique_name()}."
            fresh = Replies(prefix, self)
            sid = self.subscribe(prefix + "*", None, fresh)
            # Others see it when its SUB is on the way, not before.
            replies = fresh if table.replies is None else table.replies
            table.replies = replies
            if replies is not fresh:
                self.unsubscribe(sid)
            elif fresh.reason is not None:
                # Refused already: this request fails, the next one asks again.
                table.replies = None
        return replies

    # Events and errors ----------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """Hands an event to the user and the log."""
        self.dispatch.tell(event)

    def note_bad_headers(self, error: errors.BadHeadersError) -> None:
        """A message with malformed headers was looked at: told once per link."""
        if not self.has_bad_headers:
            self.has_bad_headers = True
            self.tell(events.ErrorEvent(error))

    def fail(self, live: Live, error: Exception) -> None:
        """This link must end; the keeper does it."""
        if live.error is None:
            if not isinstance(error, errors.Error | OSError):
                log().error("the loop of a connection failed", exc_info=error)
            # It is kept, and told to others: whose frames it came through is dropped.
            live.error = error.with_traceback(None)
        self.helm.stop(live.link)
        self.wake()
        self.keeper.ring()

    # The end --------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether the connection was told to end."""
        return self._is_closing

    @property
    def is_draining(self) -> bool:
        """Whether the connection ends as soon as its messages are read and sent."""
        return self.status in (Status.DRAINING_SUBS, Status.DRAINING_PUBS)

    def closed_error(self) -> errors.Error:
        """Why calls are refused now."""
        if self.finished.is_open and isinstance(self._close_error, errors.ForkedError):
            return errors.ForkedError(str(self._close_error))
        error = errors.ConnectionClosedError(
            "the connection is closed"
            if self._close_error is None
            else f"the connection is closed: {self._close_error}"
        )
        error.__cause__ = self._close_error
        return error

    def check_open(self) -> None:
        """Raises unless the connection can still be used."""
        if self._is_closing:
            raise self.closed_error()

    def close(self, error: Exception | None = None) -> None:
        """Starts the end; the keeper finishes it and opens `finished`."""
        if not self._is_closing:
            self._close_error = error
            if error is not None:
                self.last_error = error
            self._is_closing = True
        self.outbox.refuse(self.closed_error)
        self._end_routes()
        self.helm.close()
        self.wake()
        self.keeper.ring()

    def _end_routes(self) -> None:
        """Every reader and every waiting request is told that all is closed.

        The one who closes and the keeper may both be at it: what is not in the table
        any more has been told.
        """
        for sid, entry in list(self.entries.items()):
            self._end_route(sid, entry)
        self.linked.open(self.closed_error())
        for watcher in list(self.watchers):
            watcher.closed(self.closed_error())

    def _end_route(self, sid: int, entry: Entry) -> None:
        if isinstance(entry.route, Inbox):
            entry.route.clear()
            entry.route.end(self.closed_error())
        elif isinstance(entry.route, Answers):
            entry.route.fail_all(self.closed_error())
            if entry.on_notice is not None:
                self._farewells.append(entry.on_notice)
            if entry.route is self.table.replies:
                # It keeps its error, which leads to the frames that it is raised in.
                self.table.replies = None
        self.forget(sid)

    def finish(self) -> None:
        """The keeper's last work: every thread is told, every resource released.

        Each step is taken, last to first, even if one before it fails.
        """
        with contextlib.ExitStack() as steps:
            steps.callback(self.finished.open)
            steps.callback(self._finished)
            steps.callback(self._release)
            steps.callback(self._bid_farewell)
            steps.callback(self._end_routes)
            steps.callback(self.outbox.abandon, self.closed_error)
            steps.callback(self.links.end)
            steps.callback(self.send_last_words)
            steps.callback(self.helm.close)
            # Whoever waits looks why when the helm is closed.
            steps.callback(self._end_routes)

    def _bid_farewell(self) -> None:
        """Those who gather answers get the last ones: nobody is at the helm now."""
        while self._farewells:
            self._farewells.popleft()()

    def _finished(self) -> None:
        self.status = Status.CLOSED
        # The collector does not see what messages refer to: a closed loop, to which
        # they do, must itself lead to nothing of the user's.
        self.links.forget_credentials()
        self.tell(events.Closed(self._close_error))

    def _release(self) -> None:
        """Gives the loop's own descriptors back."""
        self._selector.close()
        self._full_selector.close()
        self.bell.close()
        self.helm.cut_rope()
        self._rope.close()

    def send_last_words(self) -> None:
        """What was published before the end is sent, if the link takes it soon."""
        live = self.live
        if live is None or live.error is not None:
            return
        patience = Patience(monotonic() + LAST_WORDS)
        with contextlib.suppress(errors.Error, OSError):
            while self.outbox.send() and live.link.error is None:
                patience.wait(
                    live.sock, selectors.EVENT_WRITE, "sending the last bytes"
                )

    def discard(self) -> None:
        """Releases a loop that never had a link or a keeper."""
        self._is_closing = True
        if self.live is not None:
            self.live.sock.close()
        self._release()
        self.finished.open()

    def forked(self) -> None:
        """This is a forked child: nothing here may touch what the parent uses."""
        self._close_error = errors.ForkedError(
            "the connection belongs to the parent process; connect again in this one"
        )
        self._is_closing = True
        self.helm.close()
        self.outbox.abandon(self.closed_error)
        live, self.live = self.live, None
        for entry in self.entries.values():
            if isinstance(entry.route, Inbox):
                entry.route.end(self._close_error)
        self.table = Table()
        # Closing the child's descriptors leaves the parent's open files as they are.
        # The selector is closed as a whole: unregistering would reach into the
        # parent's.
        if live is not None:
            live.link.abandon()
            live.sock.close()
        self._release()
        self.status = Status.CLOSED
        self.dispatch = Dispatch(None)
        self.finished.open()


def _shutting_down(live: Live) -> errors.DisconnectedError:
    return errors.DisconnectedError(f"{live.server.label} is shutting down")
