"""Server URLs, and the pool that says which server to try next, and when.

Promises: no server is tried in a storm, no server that the user listed is forgotten,
and nothing here prints user information. It reads no clock and opens no socket: `now`
and `rng` come in, and what the attempts brought is told to it.

A pool is either linked (`current` is a server) or searching (`current` is None). The
state of a search is four values, and `next_attempt` is computed from them alone:

`servers`     everybody, in the order of their turns
`left`        how many at the head of `servers` still have their turn in this pass
`not_before`  when this pass may begin
`tried_at`    per server, when its last attempt ended

A failed attempt puts its server at the tail and takes one off `left`. When `left` gets
to 0 the pass is over: the next one holds everybody again and begins after `wait` plus
jitter. So there is one wait per pass, not one per attempt. Servers whose attempts of
this outage reached `max_reconnects` are left out of the new pass; if it holds nobody,
the search is over. A new link gives every server its full budget back.

The first pass belongs to the caller of connect(): it costs no budget. When a link is
lost, the first attempt follows at once: the other servers have their turns, and the
lost one comes after the wait, unless it is the only one. A link that is lost as soon as
it is made must not turn "at once" into a storm; therefore an attempt on a server never
begins sooner than `wait` after the previous one (outside the first pass) ended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Protocol

from ..errors import (
    AuthenticationError,
    AuthenticationTimeoutError,
    InvalidArgumentError,
)

DEFAULT_PORT = 4222
# What one INFO may make us remember; a real cluster has some dozens of servers.
MAX_DISCOVERED = 3000
# A host name has at most 253 characters; brackets, a zone and the port are short.
MAX_ANNOUNCED_LENGTH = 300

_END_OF_AUTHORITY = re.compile("[/?#]")
_NAME = re.compile(r"[\w.-]{1,253}")
_PORT = re.compile(r"[0-9]{1,5}")
_SHOWABLE = re.compile(r"(\[[0-9a-fA-F:.%]*\]|[^:\[\]]*)(:[0-9]*)?")


class Rng(Protocol):
    """What the pool needs of a `random.Random`."""

    def shuffle(self, x: list[Server], /) -> None: ...

    def uniform(self, a: float, b: float, /) -> float: ...


class Server:
    """One entry of the pool. Its repr shows the address and never who we are."""

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        tls: bool = False,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        is_implicit: bool = False,
        tls_name: str = "",
    ) -> None:
        self.host = host
        self.port = port
        self.tls = tls  # TLS is demanded, whatever the server offers
        self.user = user
        self.password = password
        self.token = token
        self.is_implicit = is_implicit  # announced by a server, not listed by the user
        self.tls_name = tls_name or host  # the name that its certificate must have
        self.attempts = 0  # failed ones of this outage
        self.did_connect = False
        self.last_auth_error: AuthenticationError | None = None
        self.tried_at = -math.inf

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets; equal for entries that are the same server."""
        return _address(self.host, self.port)

    @property
    def label(self) -> str:
        """The URL without user information, fit for logs, errors and events."""
        return f"{'tls' if self.tls else 'nats'}://{self.address}"

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        origin = "discovered" if self.is_implicit else "listed"
        return f"<Server {self.label} {origin} attempts={self.attempts}>"


def parse_servers(
    servers: str | Sequence[str], *, default_tls: bool = False
) -> list[Server]:
    """The servers of a comma-separated string, or of a sequence with one URL each.

    A URL is `[nats://|tls://][user:password@|token@]host[:port]`, with IPv6 addresses
    in brackets and user information percent-encoded. Without a scheme `default_tls`
    decides. Empty items of a comma list and query strings are ignored.

    Raises InvalidArgumentError, whose text shows the URL without user information.
    """
    if isinstance(servers, str):
        urls = [url for item in servers.split(",") if (url := item.strip())]
    elif isinstance(servers, Sequence):
        urls = [_text(item).strip() for item in servers]
    else:
        raise TypeError(
            f"servers must be a str or a sequence of them, not {type(servers).__name__}"
        )
    if not urls:
        raise InvalidArgumentError("no server is given")
    return [_parsed(url, default_tls) for url in urls]


class Pool:
    """The known servers and the search for the next link; see the module's text."""

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        rng: Rng,
        randomize: bool = True,
        max_reconnects: int | None = None,
        wait: float = 2.0,
        jitter: float | None = None,
        ignore_discovered: bool = False,
        ignore_auth_errors: bool = False,
        wants_tls: bool = False,
    ) -> None:
        """A pool of `servers`, which it owns from now on.

        `max_reconnects` is the number of attempts that each server gets in one outage;
        None or a negative number sets no limit. `jitter` is the largest random addition
        to `wait`; None takes 0.1 s, or 1 s with TLS, whose handshakes cost the server
        more. One entry that demands TLS, or `wants_tls`, makes all of them demand it.
        """
        if not servers:
            raise InvalidArgumentError("no server is given")
        unique: dict[str, Server] = {}
        for server in servers:
            unique.setdefault(server.address, server)
        self.servers = list(unique.values())
        self.wants_tls = wants_tls or any(server.tls for server in self.servers)
        for server in self.servers:
            server.tls = self.wants_tls
        if randomize:
            rng.shuffle(self.servers)
        if jitter is None:
            jitter = 1.0 if self.wants_tls else 0.1

        self.current: Server | None = None
        self.left = len(self.servers)
        self.not_before = -math.inf
        self.is_first_pass = True
        self.abort_error: AuthenticationError | None = None
        self.ignored_urls = 0  # announced entries that could not be used

        self.rng = rng
        self._randomize = randomize
        self._wait = wait
        self._jitter = jitter
        self._ignore_discovered = ignore_discovered
        self._ignore_auth_errors = ignore_auth_errors
        self._budget = (
            math.inf if max_reconnects is None or max_reconnects < 0 else max_reconnects
        )
        # Addresses that were ever announced, oldest first; a dict keeps that order.
        self._seen = dict.fromkeys(unique)

    def initial(self) -> list[Server]:
        """The servers in the order of the first pass, each once."""
        return list(self.servers)

    def next_attempt(self, now: float) -> tuple[Server, float] | None:
        """The server to try and when; None when the search is over.

        Changes nothing: until `failed`, `connected` or `hurry` the answer stays.
        """
        assert self.current is None, "there is a link"
        if self.abort_error is not None or not self.left:
            return None

        def ready_at(server: Server) -> float:
            return max(now, self.not_before, server.tried_at + self._wait)

        server = min(self.servers[: self.left], key=ready_at)
        return server, ready_at(server)

    def connected(self, server: Server, now: float) -> None:
        """The attempt on `server` made a link: the outage is over, for all servers."""
        self.current = server
        server.did_connect = True
        if not self.is_first_pass:
            server.tried_at = now
        self.is_first_pass = False
        for other in self.servers:
            other.attempts = 0
            other.last_auth_error = None

    def failed(self, server: Server, error: Exception, now: float) -> None:
        """The attempt on `server` failed; the next one is another server's turn."""
        assert self.current is None, "there is a link"
        if not self.is_first_pass:
            server.attempts += 1
            server.tried_at = now
        self._judge(server, error)
        turn = self.servers.index(server)
        self.servers.append(self.servers.pop(turn))
        if turn < self.left:
            self.left -= 1
        if not self.left:
            self._begin_pass(now)

    def lost(self, now: float) -> None:
        """The link to `current` ended: search again. No link, nothing to lose."""
        if self.current is None:
            return
        self.demote_current()
        self.current = None
        self.left = max(1, len(self.servers) - 1) if self._budget else 0
        self.not_before = now
        ready_at = self._wait + min(server.tried_at for server in self.servers)
        if ready_at > now:
            # Everybody was just tried: links are cut as soon as they are made. Other
            # clients see the same, so the jitter matters here too.
            self.not_before = ready_at + self._drawn_jitter()

    def hurry(self) -> None:
        """The user wants a link now: the coming turns of this pass need not wait."""
        self.not_before = -math.inf
        for server in self.servers:
            server.tried_at = -math.inf

    def demote_current(self) -> None:
        """Put `current` last, as a server that is about to shut down deserves."""
        if self.current is not None:
            self.servers.remove(self.current)
            self.servers.append(self.current)

    def announced(self, connect_urls: Sequence[object]) -> tuple[str, ...]:
        """Take over the `connect_urls` of an INFO; labels of the never-seen servers.

        Discovered servers that are no longer announced leave, except `current`; those
        that the user listed stay. New ones get the user information of `current` and
        its demand for TLS, so only an accepted session may announce: without a link
        the list is ignored, as is one without a usable entry.
        """
        current = self.current
        if current is None or self._ignore_discovered:
            return ()
        listed = self._usable(connect_urls)
        if not listed:
            return ()
        self.servers = [
            server
            for server in self.servers
            if not server.is_implicit or server is current or server.address in listed
        ]
        known = {server.address for server in self.servers}
        fresh: list[str] = []
        for address, (host, port) in listed.items():
            if address in known:
                continue
            server = _discovered(host, port, current)
            self.servers.append(server)
            if address not in self._seen:
                fresh.append(server.label)
        self._remember(listed)
        if fresh and self._randomize:
            self._shuffle_around(current)
        return tuple(fresh)

    def _usable(self, connect_urls: Sequence[object]) -> dict[str, tuple[str, int]]:
        """The well-formed entries by address; the others are counted."""
        listed: dict[str, tuple[str, int]] = {}
        for entry in connect_urls[:MAX_DISCOVERED]:
            endpoint = _announced_endpoint(entry)
            if endpoint is None:
                self.ignored_urls += 1
            else:
                listed[_address(*endpoint)] = endpoint
        self.ignored_urls += max(0, len(connect_urls) - MAX_DISCOVERED)
        return listed

    def _remember(self, addresses: dict[str, tuple[str, int]]) -> None:
        """Add to what was seen, and forget the oldest beyond a bound."""
        for address in addresses:
            self._seen.pop(address, None)
            self._seen[address] = None
        for address in list(self._seen)[: -2 * MAX_DISCOVERED]:
            del self._seen[address]

    def _shuffle_around(self, fixed: Server) -> None:
        """Shuffle all but `fixed`, which keeps its place."""
        place = self.servers.index(fixed)
        others = self.servers[:place] + self.servers[place + 1 :]
        self.rng.shuffle(others)
        self.servers = [*others[:place], fixed, *others[place:]]

    def _judge(self, server: Server, error: Exception) -> None:
        """Give up when one server refuses us twice in a row for the same reason.

        An authentication time-out says that somebody is slow, not that we are refused.
        """
        if not isinstance(error, AuthenticationError) or isinstance(
            error, AuthenticationTimeoutError
        ):
            server.last_auth_error = None
            return
        is_repeated = type(error) is type(server.last_auth_error)
        server.last_auth_error = error
        if is_repeated and not self._ignore_auth_errors:
            self.abort_error = error

    def _begin_pass(self, now: float) -> None:
        """Give a turn to everybody who has attempts left, after the wait."""
        self.is_first_pass = False
        self.servers.sort(key=self._is_spent)
        self.left = sum(not self._is_spent(server) for server in self.servers)
        self.not_before = now + self._wait + self._drawn_jitter()

    def _is_spent(self, server: Server) -> bool:
        return server.attempts >= self._budget

    def _drawn_jitter(self) -> float:
        return self.rng.uniform(0.0, self._jitter)


def _announced_endpoint(entry: object) -> tuple[str, int] | None:
    """Host and port of an entry of `connect_urls`, None if it cannot be used."""
    if not isinstance(entry, str) or len(entry) > MAX_ANNOUNCED_LENGTH:
        return None
    try:
        return _endpoint(entry)
    except ValueError:
        return None


def _discovered(host: str, port: int, current: Server) -> Server:
    """The entry for an announced address, with what it inherits from `current`."""
    # Certificates are rarely issued for addresses: a bare IP stands for the name by
    # which the user reached the cluster.
    inherits_name = (
        _canonical_ip(host) is not None and _canonical_ip(current.tls_name) is None
    )
    return Server(
        host,
        port,
        tls=current.tls,
        user=current.user,
        password=current.password,
        token=current.token,
        is_implicit=True,
        tls_name=current.tls_name if inherits_name else host,
    )


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError(f"a server URL must be a str, not {type(item).__name__}")
    return item


def _parsed(url: str, default_tls: bool) -> Server:
    try:
        return _server_of(url, default_tls)
    except ValueError as error:
        problem = str(error)
    # Raised outside the handler, so that no context drags the URL's secrets along.
    raise InvalidArgumentError(f"bad server URL {_redacted(url)!r}: {problem}")


def _server_of(url: str, default_tls: bool) -> Server:
    """The entry for one URL; ValueError names the problem without quoting the URL."""
    if not url:
        raise ValueError("it is blank")
    if not url.isprintable() or " " in url:
        raise ValueError("it contains a space or a control character")
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = ("tls" if default_tls else "nats"), url
    scheme = scheme.lower()
    if scheme in ("ws", "wss"):
        raise ValueError("WebSocket is not supported; use nats:// or tls://")
    if scheme not in ("nats", "tls"):
        raise ValueError("the scheme must be nats or tls")

    authority, tail = _split_authority(rest)
    if "@" in tail:
        raise ValueError("user information must be percent-encoded (/ ? # and %)")
    if re.split("[?#]", tail)[0] not in ("", "/"):
        raise ValueError("it must not have a path")

    userinfo, _, endpoint = authority.rpartition("@")
    host, port = _endpoint(endpoint)
    server = Server(host, port, tls=scheme == "tls")
    name, colon, password = userinfo.partition(":")
    if colon:
        server.user, server.password = _decoded(name), _decoded(password)
    elif name:
        server.token = _decoded(name)
    return server


def _split_authority(text: str) -> tuple[str, str]:
    """What stands before the first of / ? # and what from there on."""
    authority = _END_OF_AUTHORITY.split(text, maxsplit=1)[0]
    return authority, text[len(authority) :]


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # rarely needed, so not imported with the package

    decoded = unquote(text, errors="replace")
    if "\ufffd" in decoded:
        raise ValueError("the user information is not UTF-8")
    return decoded


def _endpoint(text: str) -> tuple[str, int]:
    """Host and port of `host`, `host:port` or `[address]:port`.

    The host comes in one spelling, because addresses are compared as text.
    """
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        host = host.replace("%25", "%")  # the percent sign of a zone (RFC 6874)
        if not closed or ":" not in host or rest[:1] not in ("", ":"):
            raise ValueError("brackets must hold an IPv6 address")
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
        if ":" in port:
            raise ValueError("an IPv6 address must stand in brackets")
    canonical = _canonical_ip(host)
    if canonical is None and not _is_name(host):
        raise ValueError("it has no valid host")
    host = canonical or host.lower()
    if not port:
        return host, DEFAULT_PORT
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise ValueError("the port must be a number from 1 to 65535")
    return host, int(port)


def _canonical_ip(host: str) -> str | None:
    """The usual spelling of an IP address, None for anything else."""
    import ipaddress  # paid by connecting, not by importing the package

    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _is_name(host: str) -> bool:
    """Whether a resolver takes it: it encodes names so, and refuses bad labels."""
    if not _NAME.fullmatch(host):
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _redacted(url: str) -> str:
    """What an error may show of a URL that could not be parsed.

    All before the last @ may be secret, wherever it was meant to end; so may a "port"
    that is no number (a password with its host forgotten), and a path or query.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    elif not scheme.isalnum():
        scheme = "***"
    _, at, rest = rest.rpartition("@")
    endpoint, tail = _split_authority(rest)
    if tail.strip("/"):
        tail = "/***"
    if not _SHOWABLE.fullmatch(endpoint):
        endpoint = endpoint.partition(":")[0] + ":***"
    shown = f"{scheme}{separator}{'***@' if at else ''}{endpoint}{tail}"
    return shown if len(shown) <= 200 else shown[:200] + "…"
