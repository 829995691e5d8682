"""Every exception that jsclient raises; imported by all, imports nothing of ours.

The tree, with the builtin that a class also is:

    Error
    ├── ConnectionError ························ builtins.ConnectionError
    │   ├── ConnectionClosedError                 the Connection was closed
    │   │   └── ForkedError                       it belongs to the parent process
    │   ├── DisconnectedError                     the link is down right now
    │   ├── NoServersError                        no server of the pool could be reached
    │   │   └── ConnectTimeoutError ·············· builtins.TimeoutError
    │   ├── StaleConnectionError                  the peer fell silent
    │   ├── ProtocolError                         the peer broke the wire protocol
    │   ├── TLSError                              wanted TLS cannot be had, or failed
    │   ├── ServerLimitError                      the server has too many connections
    │   └── AuthenticationError
    │       ├── AuthorizationError                refused: wrong or missing credentials
    │       ├── AuthenticationTimeoutError
    │       ├── AuthenticationExpiredError
    │       └── AuthenticationRevokedError
    ├── TimeoutError ··························· builtins.TimeoutError
    │   └── DrainTimeoutError
    ├── NoRespondersError                         nobody listens on the subject
    ├── PermissionsViolationError                 this user may not use the subject
    ├── SlowConsumerError                         messages were dropped at a limit
    ├── SubscriptionClosedError                   unsubscribed, drained or at its limit
    ├── ConnectionDrainingError                   refused while the connection drains
    ├── BufferFullError                           a buffer of things to send is full
    ├── MaxPayloadError ························ builtins.ValueError
    ├── InvalidArgumentError ··················· builtins.ValueError
    ├── BadHeadersError ························ builtins.ValueError
    ├── CredentialsError ······················· builtins.ValueError
    ├── NotJetStreamMessageError ··············· builtins.ValueError
    ├── ServerError                               another -ERR of the server
    ├── ServerNotFoundError                       no nats-server binary on this machine
    └── ServerStartError                          nats-server did not start

A wrong call raises TypeError or a ValueError at the call. No error text holds a secret:
addresses are printed without user information.
"""

from __future__ import annotations

import builtins

__all__ = [
    "AuthenticationError",
    "AuthenticationExpiredError",
    "AuthenticationRevokedError",
    "AuthenticationTimeoutError",
    "AuthorizationError",
    "BadHeadersError",
    "BufferFullError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConnectionDrainingError",
    "ConnectionError",
    "CredentialsError",
    "DisconnectedError",
    "DrainTimeoutError",
    "Error",
    "ForkedError",
    "InvalidArgumentError",
    "MaxPayloadError",
    "NoRespondersError",
    "NoServersError",
    "NotJetStreamMessageError",
    "PermissionsViolationError",
    "ProtocolError",
    "ServerError",
    "ServerLimitError",
    "ServerNotFoundError",
    "ServerStartError",
    "SlowConsumerError",
    "StaleConnectionError",
    "SubscriptionClosedError",
    "TLSError",
    "TimeoutError",
]


class Error(Exception):
    """What all jsclient exceptions derive from."""


class ConnectionError(Error, builtins.ConnectionError):
    """The link to the server cannot be used."""


class ConnectionClosedError(ConnectionError):
    """The Connection was closed, by the user or for good after a failure."""


class ForkedError(ConnectionClosedError):
    """The Connection belongs to the parent process; connect again in the child."""


class DisconnectedError(ConnectionError):
    """The link is down at this moment and the call cannot wait for the next one."""


class NoServersError(ConnectionError):
    """No server could be reached; `attempts` says what each one answered."""

    def __init__(
        self, message: str, attempts: tuple[tuple[str, Exception], ...] = ()
    ) -> None:
        super().__init__(message)
        self.attempts = attempts


class ConnectTimeoutError(NoServersError, builtins.TimeoutError):
    """No server of the pool answered in time."""


class StaleConnectionError(ConnectionError):
    """The server did not answer the allowed number of PINGs."""


class ProtocolError(ConnectionError):
    """The peer sent bytes that the NATS protocol does not allow."""


class TLSError(ConnectionError):
    """TLS was asked for and is not offered, or its handshake failed."""


class ServerLimitError(ConnectionError):
    """The server refuses further connections for now."""


class AuthenticationError(ConnectionError):
    """The server did not accept who we are."""


class AuthorizationError(AuthenticationError):
    """Wrong or missing credentials."""


class AuthenticationTimeoutError(AuthenticationError):
    """The server gave up waiting for our CONNECT."""


class AuthenticationExpiredError(AuthenticationError):
    """The user's or the account's JWT has expired."""


class AuthenticationRevokedError(AuthenticationError):
    """The user was revoked."""


class TimeoutError(Error, builtins.TimeoutError):
    """The deadline of a blocking call passed."""


class DrainTimeoutError(TimeoutError):
    """Draining did not finish in time; unread messages were given up."""


class NoRespondersError(Error):
    """Nobody listens on the subject of a request; `subject` names it."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"nobody is subscribed to {subject!r}")
        self.subject = subject

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.subject,)


class PermissionsViolationError(Error):
    """The server does not let this user publish or subscribe to `subject`."""

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        subject: str = "",
        queue: str | None = None,
        sid: int | None = None,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.subject = subject
        self.queue = queue
        self.sid = sid


class SlowConsumerError(Error):
    """Messages of a subscription were dropped at its pending limits."""


class SubscriptionClosedError(Error):
    """The subscription ended: unsubscribed, drained, or its limit was reached."""


class ConnectionDrainingError(Error):
    """The connection is draining and takes no new work of this kind."""


class BufferFullError(Error):
    """The outgoing buffer has no room: the link is down or too slow."""


class MaxPayloadError(Error, ValueError):
    """Headers and payload together are larger than the server accepts."""


class InvalidArgumentError(Error, ValueError):
    """An argument has a value that the protocol cannot carry."""


class BadHeadersError(Error, ValueError):
    """The header block of a received message is malformed; the bytes are kept."""


class CredentialsError(Error, ValueError):
    """Credentials cannot be read or used; the text never shows their content."""


class NotJetStreamMessageError(Error, ValueError):
    """The message was not delivered by JetStream: its reply is no ack subject."""


class ServerError(Error):
    """The server reported an error that has no class of its own."""


class ServerNotFoundError(Error):
    """No nats-server binary was found on this machine."""


class ServerStartError(Error):
    """nats-server did not start or did not become ready."""
