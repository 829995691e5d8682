"""From a server's address to a link on which CONNECT was accepted, by one deadline.

`dial` resolves, connects, secures, introduces itself and waits for the PONG. It leaves
no socket behind when it fails. TLS that was asked for is never given up, and no byte of
CONNECT is written before it stands.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import errors
from .._core import Link, Parser, Routes, connect_frame
from .._engine.info import ServerInfo, parse_info
from .._engine.options import Options
from .._engine.refusals import classify
from .._engine.servers import Server
from ..version import __version__

if TYPE_CHECKING:
    import ssl

# (family, socket address) pairs, as getaddrinfo has them.
Addresses = list[tuple[int, Any]]
# How a link ends without a word of the server.
_UNEXPLAINED = (errors.ConnectionError, ConnectionResetError, BrokenPipeError)
Fields = Callable[[str | None, Server], dict[str, str]]


class Call(NamedTuple):
    """A link that was just made."""

    sock: socket.socket
    link: Link
    parser: Parser
    info: ServerInfo
    server: Server
    is_secure: bool


class Interrupted(errors.ConnectionClosedError):
    """The wait was ended from outside: the connection is closing."""


class Patience:
    """Waits for sockets until one deadline, or until somebody calls it off."""

    def __init__(
        self,
        deadline: float,
        *,
        bell: socket.socket | None = None,
        is_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self.deadline = deadline
        self._bell = bell
        self._is_off = is_off

    def shorter(self, deadline: float) -> Patience:
        """The same with an earlier deadline."""
        return Patience(
            min(deadline, self.deadline), bell=self._bell, is_off=self._is_off
        )

    def wait(self, sock: socket.socket, events: int, doing: str) -> None:
        """Returns when the socket is ready; raises TimeoutError, or Interrupted."""
        with selectors.DefaultSelector() as selector:
            selector.register(sock, events)
            if self._bell is not None:
                selector.register(self._bell, selectors.EVENT_READ)
            while True:
                if self._is_off():
                    raise Interrupted("the connection is closing")
                left = self.deadline - monotonic()
                if left <= 0:
                    raise errors.TimeoutError(f"time ran out while {doing}")
                for key, _ in selector.select(min(left, 3600.0)):
                    if key.fileobj is sock:
                        return
                    _drain(self._bell)


def _drain(bell: socket.socket | None) -> None:
    if bell is not None:
        with contextlib.suppress(BlockingIOError):
            while bell.recv(4096):
                pass


def dial(server: Server, options: Options, fields: Fields, patience: Patience) -> Call:
    """A link to the server on which CONNECT was accepted; its parser has no routes yet.

    Raises a jsclient Error that names the server and chains its cause.
    """
    try:
        return _dial(server, options, fields, patience)
    except errors.Error:
        raise
    except OSError as error:
        ssl = sys.modules.get("ssl")
        if ssl is not None and isinstance(error, ssl.SSLError):
            # TLS 1.3 tells us what it thinks of our certificate after its handshake.
            raise errors.TLSError(f"TLS with {server.label} failed: {error}") from error
        raise errors.ConnectionError(f"{server.label}: {error}") from error


def _dial(server: Server, options: Options, fields: Fields, patience: Patience) -> Call:
    sock = reach(server, patience)
    try:
        context = None
        if server.tls or options.tls_first or options.tls:
            context = _context(options)
        if options.tls_first:
            sock = _secure(sock, context, server, options, patience)
        link, parser = _link(sock), Parser(Routes())
        info = _first_info(sock, link, parser, server, patience)
        _check_refusal(parser, server)
        is_secure = options.tls_first
        if not is_secure and (info.tls_required or context is not None):
            if not (info.tls_required or info.tls_available):
                raise errors.TLSError(
                    f"{server.label} offers no TLS, which was asked for"
                )
            if not parser.is_idle or parser.needs_attention or parser.messages:
                raise errors.ProtocolError(
                    f"{server.label} sent bytes between INFO and the TLS handshake"
                )
            sock = _secure(
                sock, context or _context(options), server, options, patience
            )
            link, parser = _link(sock), Parser(Routes())
            is_secure = True
        parser.max_payload = info.max_message
        frame = connect_frame(_introduction(server, options, fields, info, is_secure))
        try:
            _introduce(sock, link, parser, frame, server, patience)
        except OSError as error:
            if is_secure and info.tls_verify and type(error) in _UNEXPLAINED:
                raise errors.TLSError(
                    f"{server.label} closed the connection after the TLS handshake: "
                    "it may have refused our certificate"
                ) from error
            raise
        return Call(sock, link, parser, info, server, is_secure)
    except BaseException:
        sock.close()
        raise


# Addresses ---------------------------------------------------------------------------


def resolve(
    host: str,
    port: int,
    patience: Patience,
    look_up: Callable[..., list[Any]] = socket.getaddrinfo,
) -> Addresses:
    """The addresses of a host. A resolver that hangs is left behind at the deadline."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        return [(entry[0], entry[4]) for entry in found]
    results: list[list[Any]] = []
    failures: list[Exception] = []
    done, finished = socket.socketpair()

    def run() -> None:
        try:
            results.append(look_up(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            failures.append(error)
        except UnicodeError as error:  # a name that IDNA refuses
            failures.append(error)
        finally:
            finished.close()

    with done:
        threading.Thread(target=run, name="jsclient-resolve", daemon=True).start()
        patience.wait(done, selectors.EVENT_READ, f"looking up {host}")
    if failures:
        raise errors.ConnectionError(
            f"{host} cannot be looked up: {failures[0]}"
        ) from failures[0]
    return [(entry[0], entry[4]) for entry in results[0]]


def reach(
    server: Server,
    patience: Patience,
    look_up: Callable[..., list[Any]] = socket.getaddrinfo,
) -> socket.socket:
    """A connected socket; each address gets its share of the time that is left."""
    addresses = resolve(server.host, server.port, patience, look_up)
    failure: Exception = OSError("its name has no address")
    for place, (family, address) in enumerate(addresses):
        now = monotonic()
        share = (patience.deadline - now) / (len(addresses) - place)
        try:
            return _connect_to(family, address, server, patience.shorter(now + share))
        except (OSError, errors.TimeoutError) as error:
            if isinstance(error, Interrupted):
                raise
            failure = error
    if isinstance(failure, errors.Error):
        raise failure
    raise errors.ConnectionError(
        f"{server.label} cannot be reached: {failure}"
    ) from failure


def _connect_to(
    family: int, address: Any, server: Server, patience: Patience
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BlockingIOError):
            sock.connect(address)
            return sock
        patience.wait(sock, selectors.EVENT_WRITE, f"connecting to {server.label}")
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, _reason(code))
        return sock
    except BaseException:
        sock.close()
        raise


def _reason(code: int) -> str:
    import os

    return os.strerror(code)


# TLS ---------------------------------------------------------------------------------


def _context(options: Options) -> ssl.SSLContext:
    import ssl

    if isinstance(options.tls, ssl.SSLContext):
        return options.tls
    return ssl.create_default_context()


def _secure(
    sock: socket.socket,
    context: ssl.SSLContext | None,
    server: Server,
    options: Options,
    patience: Patience,
) -> ssl.SSLSocket:
    import ssl

    assert context is not None
    name = options.tls_hostname or server.tls_name
    try:
        secure = context.wrap_socket(
            sock, server_hostname=name, do_handshake_on_connect=False
        )
    except ValueError as error:
        raise errors.TLSError(f"{server.label}: {error}") from error
    try:
        while True:
            try:
                secure.do_handshake()
                return secure
            except ssl.SSLWantReadError:
                patience.wait(secure, selectors.EVENT_READ, f"securing {server.label}")
            except ssl.SSLWantWriteError:
                patience.wait(secure, selectors.EVENT_WRITE, f"securing {server.label}")
    except (ssl.SSLError, ssl.CertificateError, ConnectionError) as error:
        secure.close()
        if isinstance(error, errors.Error):
            raise
        raise errors.TLSError(f"TLS with {server.label} failed: {error}") from error
    except BaseException:
        secure.close()
        raise


def _link(sock: socket.socket) -> Link:
    inner = getattr(sock, "_sslobj", None)
    if inner is None:
        return Link(sock.fileno())
    import ssl

    # The wrapper's own methods are Python code, in which a signal handler could raise
    # after bytes were read: the core calls the compiled object inside.
    return Link(sock.fileno(), inner, (ssl.SSLWantReadError, ssl.SSLWantWriteError))


# Introduction ------------------------------------------------------------------------


def _control(
    sock: socket.socket, link: Link, parser: Parser, patience: Patience, doing: str
) -> Iterator[None]:
    """Yields after each read, until the caller has what it wants."""
    while True:
        try:
            received = link.receive(parser)
        except errors.ProtocolError as error:
            raise errors.ProtocolError(f"{error} (while {doing})") from None
        if received == 0:
            raise errors.ConnectionError(
                f"the server closed the connection while {doing}"
            )
        if received < 0:
            patience.wait(sock, selectors.EVENT_READ, doing)
            continue
        yield


def _first_info(
    sock: socket.socket,
    link: Link,
    parser: Parser,
    server: Server,
    patience: Patience,
) -> ServerInfo:
    doing = f"waiting for INFO of {server.label}"
    for _ in _control(sock, link, parser, patience, doing):
        if parser.control:
            verb, text = parser.control.pop(0)
            if verb == "ERR":
                raise classify(text, server=server.label).error
            try:
                return parse_info(text)
            except ValueError as error:
                raise errors.ProtocolError(f"{server.label}: {error}") from None
        if parser.needs_attention or parser.messages:
            raise errors.ProtocolError(f"{server.label} did not begin with INFO")
    raise AssertionError("unreachable")


def _introduction(
    server: Server,
    options: Options,
    fields: Fields,
    info: ServerInfo,
    is_secure: bool,
) -> bytes:
    """The options of CONNECT: this list and nothing else."""
    connect: dict[str, object] = {
        "verbose": False,
        "pedantic": False,
        "tls_required": is_secure,
        "lang": "python-jsclient",
        "version": __version__,
        "protocol": 1,
        "headers": info.headers,
        "no_responders": info.headers,
        "echo": options.echo or info.proto < 1,
    }
    if options.name is not None:
        connect["name"] = options.name
    connect.update(fields(info.nonce or None, server))
    import json  # the first INFO has paid for it

    return json.dumps(connect, separators=(",", ":")).encode()


def _introduce(
    sock: socket.socket,
    link: Link,
    parser: Parser,
    frame: bytes,
    server: Server,
    patience: Patience,
) -> None:
    """CONNECT and PING, and the PONG that says we are welcome."""
    doing = f"waiting for {server.label} to accept CONNECT"
    rest = frame + b"PING\r\n"
    try:
        while rest:
            rest = rest[link.send(rest) :]
            if rest:
                patience.wait(sock, selectors.EVENT_WRITE, doing)
    except OSError:
        # A server that closes at once may have said why.
        link.receive(parser)
        _check_refusal(parser, server)
        raise
    for _ in _control(sock, link, parser, patience, doing):
        if parser.pongs:
            return  # what came with it is the session's
        _check_refusal(parser, server)


def _check_refusal(parser: Parser, server: Server) -> None:
    """Raises what the server refused us with, if it did."""
    if parser.control and parser.control[0][0] == "ERR":
        raise classify(parser.control[0][1], server=server.label).error
