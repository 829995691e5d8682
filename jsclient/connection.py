"""What users hold: a connection to a NATS system."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from . import errors, events
from ._core import Inbox, Msg, Outbox, check_filter, check_token
from ._engine.arguments import (
    Buffer,
    HeadersLike,
    Seconds,
    check_callback,
    flag,
    integer,
    pending_limit,
    positive_seconds,
    seconds,
    text,
    unique_name,
)
from ._engine.arguments import (
    inbox_prefix as checked_prefix,
)
from ._engine.info import ServerInfo
from ._engine.options import MIB, Options
from ._engine.servers import Pool, Server, parse_servers
from ._io.live import Status
from ._io.loop import Loop
from .auth import Authenticator
from .subscription import Subscription

if TYPE_CHECKING:
    import ssl

    from .jetstream import JetStream

    Secret = str | Callable[[], str]

DEFAULT_URL = "nats://127.0.0.1:4222"
PUBLISH_TIMEOUT = 10.0

# Connections that are open, for fork and exit. Weak: they keep nobody alive.
_open: weakref.WeakSet[Connection] = weakref.WeakSet()


class Stats(NamedTuple):
    """Counts since the connection was made, over all its links.

    Messages and `in_bytes`/`out_bytes` (headers and payload) are counted as NATS
    do; `total_bytes_in`/`total_bytes_out` are what went over the sockets.
    """

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    total_bytes_in: int
    total_bytes_out: int
    reconnects: int


def connect(
    servers: str | Sequence[str] | None = None,
    *,
    name: str | None = None,
    user: str | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    nkey_seed: str | bytes | os.PathLike[str] | Callable[[], str | bytes] | None = None,
    credentials: str
    | bytes
    | os.PathLike[str]
    | Callable[[], str | bytes]
    | None = None,
    strict_credentials: bool = False,
    tls: ssl.SSLContext | bool = False,
    tls_first: bool = False,
    tls_hostname: str | None = None,
    connect_timeout: Seconds = 5.0,
    retry_initial: bool = False,
    allow_reconnect: bool = True,
    max_reconnects: int | None = None,
    reconnect_wait: Seconds = 2.0,
    reconnect_jitter: Seconds | None = None,
    reconnect_buffer: int = 8 * MIB,
    reconnect_on_lame_duck: bool = False,
    randomize: bool = True,
    ignore_discovered: bool = False,
    ignore_auth_errors: bool = False,
    ping_interval: Seconds = 30.0,
    max_pings_out: int = 2,
    echo: bool = True,
    inbox_prefix: str = "_INBOX",
    write_buffer: int = 4 * MIB,
    on_event: Callable[[events.Event], object] | None = None,
) -> Connection:
    """Connects to a NATS system and returns the open Connection.

    Args:
        servers: a URL, a comma list of them, or a sequence. None takes the
            environment's `NATS_URL`, or `nats://127.0.0.1:4222`.
        name: what monitoring calls this client.
        user, password, token: who we are; a secret may be a callable, asked each time.
        nkey_seed: the seed of an nkey, a `pathlib.Path` of its file, or a callable.
        credentials: the path of a `.creds` file, its content as bytes, or a callable.
        strict_credentials: refuse a credentials file that others may read.
        tls: True demands TLS with the system's certificates; an `ssl.SSLContext` says
            with which.
        tls_first: the TLS handshake comes before the server's INFO.
        tls_hostname: the name in the server's certificate, if not that of the URL.
        connect_timeout: seconds for the first link, over all servers; later, for each
            attempt.
        retry_initial: return at once, unconnected, when no server can be reached, and
            go on trying.
        allow_reconnect, max_reconnects, reconnect_wait, reconnect_jitter: whether and
            how often each server is tried again after a loss (None: for ever), and the
            seconds between two rounds over all servers.
        reconnect_buffer: bytes of core publishes that are kept while the link is down;
            0 makes them fail instead.
        reconnect_on_lame_duck: leave a server that announces its shutdown, as soon as
            it has answered what JetStream was asked; it is given a second for that. By
            default it is used until it closes the link: publishes to streams that have
            no id may then end as unknown.
        randomize: try the servers in random order.
        ignore_discovered: use only the servers given here.
        ignore_auth_errors: go on trying a server that refuses us.
        ping_interval, max_pings_out: a server that leaves so many PINGs unanswered is
            given up; 0 seconds sends none.
        echo: whether our own messages reach our own subscriptions.
        inbox_prefix: the first tokens of reply subjects.
        write_buffer: bytes that may wait for a slow socket before `publish` waits.
        on_event: called with each event, on a thread of its own.

    Raises:
        NoServersError: no server could be reached; its `attempts` say why.
        AuthorizationError, TLSError: a server refused us, or its certificate is bad.
        ValueError, TypeError: an argument is wrong; nothing was sent.
    """
    import random  # only connecting needs it

    _refuse_green_threads()
    if servers is None:
        servers = os.environ.get("NATS_URL") or DEFAULT_URL
    flag(retry_initial, "retry_initial")
    wants_tls = bool(tls) or tls_first
    options = Options(
        name=text(name, "name"),
        tls=_checked_tls(tls),
        tls_first=flag(tls_first, "tls_first"),
        tls_hostname=text(tls_hostname, "tls_hostname"),
        connect_timeout=positive_seconds(connect_timeout, "connect_timeout"),
        allow_reconnect=flag(allow_reconnect, "allow_reconnect"),
        reconnect_buffer=integer(reconnect_buffer, "reconnect_buffer", least=0),
        ping_interval=seconds(ping_interval, "ping_interval"),
        max_pings_out=integer(max_pings_out, "max_pings_out", least=1),
        echo=flag(echo, "echo"),
        inbox_prefix=checked_prefix(inbox_prefix),
        write_buffer=integer(write_buffer, "write_buffer", least=1024),
        reconnect_on_lame_duck=flag(reconnect_on_lame_duck, "reconnect_on_lame_duck"),
    )
    _check_handler(on_event)
    authenticator = Authenticator(
        user=user,
        password=password,
        token=token,
        nkey_seed=nkey_seed,
        credentials=credentials,
        strict_credentials=strict_credentials,
    )
    pool = Pool(
        parse_servers(servers, default_tls=wants_tls),
        rng=random,
        randomize=flag(randomize, "randomize"),
        max_reconnects=None
        if max_reconnects is None
        else integer(max_reconnects, "max_reconnects", least=-1),
        wait=seconds(reconnect_wait, "reconnect_wait"),
        jitter=None
        if reconnect_jitter is None
        else seconds(reconnect_jitter, "reconnect_jitter"),
        ignore_discovered=flag(ignore_discovered, "ignore_discovered"),
        ignore_auth_errors=flag(ignore_auth_errors, "ignore_auth_errors"),
        wants_tls=wants_tls,
    )

    def fields(nonce: str | None, server: Server) -> dict[str, str]:
        return authenticator.fields(
            nonce, user=server.user, password=server.password, token=server.token
        )

    loop = Loop(options, pool, fields, on_event)
    try:
        loop.links.make_first(options.connect_timeout)
    except (errors.NoServersError, errors.ConnectionError):
        if not retry_initial:
            loop.discard()
            raise
        loop.status = Status.RECONNECTING
    except BaseException:
        loop.discard()
        raise
    return Connection(loop)


def _check_handler(handler: object) -> None:
    if handler is not None:
        check_callback(handler, "on_event")


def _checked_tls(tls: ssl.SSLContext | bool) -> ssl.SSLContext | bool:
    if isinstance(tls, bool):
        return tls
    import ssl

    if not isinstance(tls, ssl.SSLContext):
        raise TypeError(
            f"tls must be True, False or an ssl.SSLContext, not {type(tls).__name__}"
        )
    if tls.verify_mode == ssl.CERT_NONE or not tls.check_hostname:
        warnings.warn("this SSLContext does not verify who the server is", stacklevel=3)
    return tls


def _refuse_green_threads() -> None:
    """Monkey patching replaces what the loop stands on: say so instead of hanging."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(
        gevent.is_module_patched(module) for module in ("socket", "select", "thread")
    ):
        raise errors.Error(
            "jsclient drives real sockets from real threads and cannot run under "
            "gevent's monkey patching; leave socket, select and thread unpatched, or "
            "use jsclient in a process of its own"
        )
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and any(
        eventlet.is_monkey_patched(module) for module in ("socket", "select", "thread")
    ):
        raise errors.Error(
            "jsclient drives real sockets from real threads and cannot run under "
            "eventlet's monkey patching"
        )


class Connection:
    """A connection to a NATS system. Made by `connect`; any thread may use it.

    It is a context manager: leaving the block closes it. After a lost link it
    reconnects by itself, and subscriptions go on.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._outbox_publish = loop.outbox.publish
        self._opened_at = _caller()
        self._is_reported = False  # as unclosed
        _open.add(self)
        try:
            loop.keeper.start()
        except BaseException:
            # No thread could be had, or a signal handler raised while it started.
            loop.close()
            if not loop.keeper.thread_id:
                loop.finish()
            raise

    # Messages -------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        data: Buffer = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
        timeout: Seconds | None = PUBLISH_TIMEOUT,
    ) -> None:
        """Publishes a message; returns when it is on its way, not when it has arrived.

        Small messages in quick succession are sent together. While the link is down
        they are kept, up to `reconnect_buffer`. When the outgoing buffer is full the
        call waits, at most `timeout`.

        Raises MaxPayloadError, BufferFullError, ConnectionClosedError, TimeoutError,
        and ValueError or TypeError for what cannot be sent.
        """
        limit = PUBLISH_TIMEOUT
        if timeout is not limit:
            limit = seconds(timeout)
        try:
            asked = self._outbox_publish(subject, data, reply, headers)
            if asked:
                self._loop.attend_publish(asked, subject, data, reply, headers, limit)
        except BaseException:
            # If a signal handler raised, nobody may have been told of unsent bytes.
            self._loop.alert()
            raise

    def request(
        self,
        subject: str,
        data: Buffer = b"",
        *,
        timeout: Seconds | None = 5.0,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """Publishes a request and returns the first answer.

        Raises NoRespondersError at once when nobody listens, TimeoutError when no
        answer came in time, and PermissionsViolationError when we may not ask.
        """
        limit = seconds(timeout)
        deadline = monotonic() + limit
        loop = self._loop
        loop.check_open()
        if loop.replies is None:
            # The first request subscribes its inbox: not for what cannot be sent.
            trial = Outbox(0, 1)
            trial.set_max_payload(loop.info.max_payload)
            trial.publish(subject, data, None, headers)
        replies = loop.request_inbox()
        reply = replies.draft(subject)
        try:
            replies.enter(reply)
            asked = self._outbox_publish(subject, data, reply.inbox, headers, True)
            if asked:
                loop.attend_publish(asked, subject, data, reply.inbox, headers, limit)
            if not loop.wait(reply, deadline):
                raise errors.TimeoutError(
                    f"no answer on {subject!r} within {limit:g} s"
                )
        except BaseException:
            replies.drop(reply)
            loop.look()
            raise
        msg = reply.msg
        if msg is None:
            assert reply.error is not None
            raise reply.error
        if msg.status == 503 and not msg.data:
            raise errors.NoRespondersError(subject)
        return msg

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        callback: Callable[[Msg], object] | None = None,
        max_pending_messages: int | None = 500_000,
        max_pending_bytes: int | None = 64 * MIB,
    ) -> Subscription:
        """Subscribes to a subject, which may have wildcards.

        Args:
            queue: members of one queue group share the messages.
            callback: called with each message, on a thread of the subscription's own.
            max_pending_messages, max_pending_bytes: what may wait to be read; more is
                dropped, counted and reported. None sets no limit.
        """
        loop = self._loop
        loop.check_open()
        if self.is_draining:
            raise errors.ConnectionDrainingError("the connection is draining")
        check_filter(subject)
        if queue is not None:
            check_token(queue, "queue")
        if callback is not None:
            check_callback(callback)
        inbox = Inbox(
            loop,
            pending_limit(max_pending_messages, "max_pending_messages"),
            pending_limit(max_pending_bytes, "max_pending_bytes"),
        )
        return Subscription(
            self, loop, inbox, subject=subject, queue=queue, callback=callback
        )

    def new_inbox(self) -> str:
        """A subject that nobody else uses, for answers."""
        return f"{self._loop.options.inbox_prefix}.{unique_name()}"

    def jetstream(
        self,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: Seconds = 5.0,
        *,
        max_pending: int = 4000,
        ack_timeout: Seconds = 5.0,
        ack_prefix: str | None = None,
    ) -> JetStream:
        """A JetStream context; it asks the server nothing until it is used.

        Args:
            domain: the JetStream domain to speak to, if not the server's own.
            prefix: the subjects under which another account's API is imported.
            timeout: how long its calls may take unless they say otherwise.
            max_pending: how many `publish_async` may wait for their acks.
            ack_timeout: how long such an ack may take.
            ack_prefix: the subjects under which another account's `$JS.ACK` is
                imported, if they are others.
        """
        from .jetstream import JetStream  # whoever does not use it does not pay for it

        return JetStream(
            self,
            domain=domain,
            prefix=prefix,
            timeout=timeout,
            max_pending=max_pending,
            ack_timeout=ack_timeout,
            ack_prefix=ack_prefix,
        )

    # The link -------------------------------------------------------------------------

    def flush(self, timeout: Seconds | None = 10.0) -> None:
        """Returns when the server has handled everything that was published before.

        Waits for the next link when there is none. Raises TimeoutError, or
        DisconnectedError when the link was lost meanwhile.
        """
        limit = seconds(timeout)
        deadline = monotonic() + limit
        self._fence(deadline, f"the server did not answer within {limit:g} s")

    def rtt(self, timeout: Seconds | None = 10.0) -> float:
        """Seconds that a round trip to the server takes."""
        limit = seconds(timeout)
        if self._loop.live is None:
            self._loop.check_open()
            raise errors.DisconnectedError("there is no link to the server")
        start = monotonic()
        self._fence(start + limit, f"the server did not answer within {limit:g} s")
        return monotonic() - start

    def _fence(self, deadline: float, late: str) -> None:
        loop = self._loop
        while True:
            loop.check_open()
            # A link that is about to be left still tells of what was sent on it.
            if not (loop.outbox.is_leaving or loop.wait(loop.linked, deadline)):
                raise errors.TimeoutError(late)
            if loop.live is not None:
                break
        gate = loop.fence()
        if not loop.wait(gate, deadline):
            raise errors.TimeoutError(late)
        if gate.error is not None:
            # What was sent before may be lost, also when there is a new link already.
            loop.check_open()
            raise gate.error

    def reconnect(self) -> None:
        """Leaves the link for another server, or for the same if there is but one."""
        self._loop.check_open()
        self._loop.links.leave()

    def drain(self, timeout: Seconds | None = 30.0) -> None:
        """Ends the connection without losing what has arrived or was published.

        Subscriptions and consumers get nothing new, what they hold is read to its end
        (by callbacks and by threads that iterate), consumers that JetStream's
        subscriptions have made are deleted, publishes and acks are flushed, what other
        threads have published or asked gets its answer, the futures of `publish_async`
        their outcomes, then the connection closes. That takes until the pulls of
        consumers without acks have ended: see `Messages.drain`.
        Raises DrainTimeoutError, with the connection closed all the same, when messages
        were left unread for so long, or may have got lost. Called from a callback it
        returns at once, since that callback is among those it waits for; the event
        Closed tells the end.
        """
        deadline = monotonic() + seconds(timeout)
        loop = self._loop
        loop.check_open()
        if self.is_draining:
            return
        if loop.status is not Status.CONNECTED:
            self.close()
            raise errors.DisconnectedError(
                "there was no link to drain; the connection is closed"
            )
        loop.status = Status.DRAINING_SUBS
        if any(caller.is_calling_here for caller in list(loop.callers)):
            threading.Thread(
                target=self._finish_drain,
                args=(deadline,),
                name="jsclient-drain",
                daemon=True,
            ).start()
            return
        late = self._finish_drain(deadline)
        if late is not None:
            raise late

    def _finish_drain(self, deadline: float) -> errors.DrainTimeoutError | None:
        """Drains and closes; the error if messages were left unread."""
        loop = self._loop
        late: errors.DrainTimeoutError | None = None
        try:
            if not self._drain_subscriptions(deadline):
                late = errors.DrainTimeoutError(
                    "messages were left unread, or pulls open, when the time for "
                    "draining was over"
                )
                loop.tell(events.ErrorEvent(late))
            else:
                for belonging in list(loop.belongings):
                    belonging.release_quietly(max(0.0, deadline - monotonic()))
            loop.status = Status.DRAINING_PUBS
            loop.outbox.refuse(
                lambda: errors.ConnectionDrainingError("the connection is draining")
            )
            gate = loop.fence()
            loop.wait(gate, monotonic() + 5.0)
            # Whoever has no answer then is told by his own call or future.
            loop.wait(loop.await_answers(), deadline)
        finally:
            self.close()
        return late

    def _drain_subscriptions(self, deadline: float) -> bool:
        """Whether everything that arrived was read before the deadline."""
        loop = self._loop
        ends = [reader.end_reading(deadline) for reader in list(loop.readers)]
        read = [end() for end in ends if end is not None]
        waits = [gate for gate in read if gate is not None]
        draining = {
            sid: entry
            for sid, entry in list(loop.entries.items())
            if entry.owner is not None
        }
        for sid in draining:
            loop.stop_interest(sid)
        in_time = loop.wait(loop.fence(), deadline)
        for sid, entry in draining.items():
            loop.forget(sid)
            if isinstance(entry.route, Inbox):
                entry.route.end()
                waits.append(entry.route.await_empty())
        # Also of subscriptions that have ended by themselves and hold messages.
        waits += [caller.called_all for caller in list(loop.callers)]
        late = [gate for gate in waits if not loop.wait(gate, deadline)]
        return in_time and not late and None not in read

    def close(self) -> None:
        """Closes the connection: sends what was published, wakes every waiting thread.

        Waiting calls raise ConnectionClosedError. Closing twice is fine.
        """
        loop = self._loop
        loop.close()
        _open.discard(self)
        deadline = monotonic() + 2.0
        while not loop.finished.sleep(deadline - monotonic()):
            if monotonic() >= deadline:
                break

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not loop.is_closing:
            loop.close()
            self._report_unclosed()

    def _report_unclosed(self) -> None:
        if not self._is_reported:
            self._is_reported = True
            warnings.warn(
                f"unclosed jsclient connection, opened at {self._opened_at}",
                ResourceWarning,
                source=self,
                stacklevel=3,
            )

    # Facts ----------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """What the connection is doing now."""
        return self._loop.status

    @property
    def is_connected(self) -> bool:
        """Whether there is a link to a server."""
        return self._loop.live is not None

    @property
    def is_draining(self) -> bool:
        """Whether `drain` is at work."""
        return self._loop.is_draining

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended for good."""
        return self._loop.is_closing

    @property
    def connected_url(self) -> str | None:
        """The server of the present link, without user information."""
        live = self._loop.live
        return None if live is None else live.server.label

    @property
    def servers(self) -> tuple[str, ...]:
        """All servers known now, listed or discovered, without user information."""
        return tuple(server.label for server in self._loop.links.pool.servers)

    @property
    def server_info(self) -> ServerInfo:
        """What the server last said of itself."""
        return self._loop.info

    @property
    def max_payload(self) -> int:
        """The largest headers and payload that the server accepts, in bytes."""
        return self._loop.info.max_payload

    @property
    def last_error(self) -> Exception | None:
        """The last failure of a link or refusal by the server."""
        return self._loop.last_error

    @property
    def on_event(self) -> Callable[[events.Event], object] | None:
        """Who is called with events."""
        return self._loop.dispatch.handler

    @on_event.setter
    def on_event(self, handler: Callable[[events.Event], object] | None) -> None:
        _check_handler(handler)
        self._loop.dispatch.handler = handler

    def stats(self) -> Stats:
        """Counts of messages and bytes so far."""
        return Stats(**self._loop.links.stats())

    def __repr__(self) -> str:
        where = self.connected_url
        link = "" if where is None else f" to {where}"
        return f"<Connection {self.status.value}{link}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Connection cannot be pickled or sent to another process: "
            "connect again where it is needed"
        )


def _caller() -> str:
    """Where the user's code called us, as file:line."""
    package = os.path.dirname(__file__)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _after_fork_in_child() -> None:
    for connection in list(_open):
        connection._loop.forked()
    _open.clear()


def _at_exit() -> None:
    """Sends what unclosed connections still hold, and says that they are open.

    They are not closed here: daemon threads that wait on them would wake up to an error
    and print it, instead of ending with the process.
    """
    unclosed = [connection for connection in list(_open) if not connection.is_closed]
    for connection in unclosed:
        connection._loop.send_last_words()
    for connection in unclosed:
        connection._report_unclosed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
