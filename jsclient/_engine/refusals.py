"""What the server means by an -ERR: one table from its texts to our errors.

`classify` never fails: a text that the table does not know is reported as ServerError
and says nothing about the connection, whose end alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from ..errors import (
    AuthenticationExpiredError,
    AuthenticationRevokedError,
    AuthenticationTimeoutError,
    AuthorizationError,
    ConnectionError,
    Error,
    MaxPayloadError,
    PermissionsViolationError,
    ProtocolError,
    ServerError,
    ServerLimitError,
    StaleConnectionError,
    TLSError,
)

# Enough for every text of the server with a subject of usual length.
MAX_TEXT = 512

Scope = Literal["connection", "publish", "subscription", "none"]


class Refusal(NamedTuple):
    """One -ERR, understood.

    `closes` says whether the server closes the connection after it; None when it may
    or may not. `scope` is what failed: the connection as a whole, one publish or
    subscription (which one, a PermissionsViolationError says), or nothing we know of.
    """

    error: Error
    closes: bool | None
    scope: Scope


def classify(text: bytes | str, *, server: str = "") -> Refusal:
    """The meaning of what follows `-ERR`; `server` is a label to name in the error."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    # Only one pair of quotes is the server's; more belong to the text.
    text = text.strip().removeprefix("'").removesuffix("'")
    folded = text.lower()
    row = next(row for row in _TABLE if folded.startswith(row.prefix))
    said = f"server {server} said" if server else "server said"
    message = f"{said}: {_shown(text)}"
    return Refusal(row.make(message, text), row.closes, row.scope)


def _shown(text: str) -> str:
    """The text, bounded and with without what a terminal or log would choke on."""
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[: MAX_TEXT + 1]
    )
    if not shown:
        return "(nothing)"
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 1] + "…"


# A Go %q string: between double quotes, where a backslash protects the next character.
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_PERMISSION = re.compile(
    rf"permissions violation for (publish to|publish with reply of|subscription to) "
    rf"{_QUOTED}(?: using queue {_QUOTED})?(?: \(sid {_QUOTED}\))?",
    re.IGNORECASE | re.DOTALL,
)
_OPERATIONS = {
    "publish to": "publish",
    "publish with reply of": "reply",
    "subscription to": "subscribe",
}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SHORT_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_SID = re.compile(r"[0-9]{1,19}")


def _permission(message: str, text: str) -> PermissionsViolationError:
    """The error with the fields that the text names, empty where it names none."""
    found = _PERMISSION.match(text)
    if found is None:
        return PermissionsViolationError(message)
    operation, subject, queue, sid = found.groups()
    return PermissionsViolationError(
        message,
        operation=_OPERATIONS[operation.lower()],
        subject=_unquoted(subject),
        queue=None if queue is None else _unquoted(queue),
        sid=int(sid) if sid and _SID.fullmatch(sid) else None,
    )


def _unquoted(text: str) -> str:
    """The content of a Go %q string with its escapes undone."""
    return _ESCAPE.sub(_unescaped, text)


def _unescaped(escape: re.Match[str]) -> str:
    byte, short, long, char = escape.groups()
    if byte:
        # Go writes a byte so that is no part of valid UTF-8: ours is a lone surrogate.
        return bytes.fromhex(byte).decode("utf-8", "surrogateescape")
    if char:
        return _SHORT_ESCAPES.get(char, char)
    code = int(short or long, 16)
    return chr(code) if code <= 0x10FFFF else escape[0]


def _plain(error: Callable[[str], Error]) -> Callable[[str, str], Error]:
    """Makes an error that carries only its message."""
    return lambda message, text: error(message)


class _Row(NamedTuple):
    prefix: str  # in lower case
    make: Callable[[str, str], Error]  # from the message and the server's text
    closes: bool | None
    scope: Scope


def _fatal(prefix: str, error: Callable[[str], Error]) -> _Row:
    return _Row(prefix, _plain(error), True, "connection")


# First match wins, so a longer prefix stands before its own beginning. The last row
# matches everything.
_TABLE = (
    _fatal("authorization violation", AuthorizationError),
    _fatal("failed account registration", AuthorizationError),
    _fatal("authentication timeout", AuthenticationTimeoutError),
    _fatal("authorization timeout", AuthenticationTimeoutError),
    _fatal("user authentication expired", AuthenticationExpiredError),
    _fatal("account authentication expired", AuthenticationExpiredError),
    _fatal("user authentication revoked", AuthenticationRevokedError),
    _fatal("maximum connections exceeded", ServerLimitError),
    _fatal("maximum account active connections exceeded", ServerLimitError),
    _fatal("connection throttling is active", ServerLimitError),
    _fatal("secure connection - tls required", TLSError),
    _fatal("stale connection", StaleConnectionError),
    _fatal("maximum payload violation", MaxPayloadError),
    _fatal("maximum control line exceeded", ProtocolError),
    _fatal("unknown protocol operation", ProtocolError),
    _fatal("invalid client protocol", ProtocolError),
    _fatal("no responders requires headers support", ProtocolError),
    # The address belongs to a route, leaf node or gateway port.
    _fatal("attempted to connect to", ConnectionError),
    # Texts of old servers; new ones close without a word.
    _Row("parser error", _plain(ProtocolError), None, "connection"),
    _Row("slow consumer", _plain(ServerError), None, "connection"),
    # Closes only when an account update put the client over its limit.
    _Row("maximum subscriptions exceeded", _plain(ServerError), None, "subscription"),
    _Row("permissions violation for publish", _permission, False, "publish"),
    _Row("permissions violation for subscription", _permission, False, "subscription"),
    _Row("permissions violation", _permission, False, "none"),
    _Row("invalid subject", _plain(ServerError), False, "subscription"),
    _Row("invalid publish subject", _plain(ServerError), False, "publish"),
    _Row("", _plain(ServerError), None, "none"),
)
