"""Connections for Spark: one per process and set of options, made when it is needed.

Spark pickles readers and writers, forks workers and uses them again for other tasks. So
nothing here is held by what is pickled: who needs a connection asks for it by its
options, and a process that already has one gets the same again. A connection that was
inherited through a fork, or that has ended, is replaced.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import jsclient

from .errors import OptionError
from .options import ConnectionOptions

if TYPE_CHECKING:
    import ssl

    from ..jetstream import JetStream

_T = TypeVar("_T")

# The connections of this process. A cache is the one thing that outlives a task.
_open: dict[ConnectionOptions, jsclient.Connection] = {}
_lock = threading.Lock()


def connection(options: ConnectionOptions) -> jsclient.Connection:
    """The open connection of this process for these options.

    It is shared: whoever gets it does not close it.
    """
    with _lock:
        found = _open.get(options)
    if found is not None and not found.is_closed:
        return found
    made = _connect(options)
    with _lock:
        found = _open.get(options)
        if found is None or found.is_closed:
            _open[options] = made
            return made
    made.close()  # another thread was faster
    return found


def jetstream(options: ConnectionOptions) -> JetStream:
    """JetStream on the connection of this process."""
    return connection(options).jetstream(
        domain=options.domain,
        prefix=options.api_prefix,
        timeout=options.request_timeout,
    )


def ask(options: ConnectionOptions, work: Callable[[JetStream], _T]) -> _T:
    """What `work` returns; it is done once more if its connection had ended for good.

    A link that was lost comes back by itself. But the connection of a driver that
    slept for hours may have been given up meanwhile.
    """
    try:
        return work(jetstream(options))
    except jsclient.ConnectionClosedError:
        return work(jetstream(options))


def close_all() -> None:
    """Closes the connections of this process; the next use makes new ones."""
    with _lock:
        found = list(_open.values())
        _open.clear()
    for one in found:
        one.close()


atexit.register(close_all)


def _connect(options: ConnectionOptions) -> jsclient.Connection:
    # Without a name for the process, monitoring could not tell workers apart.
    try:
        return jsclient.connect(
            options.servers,
            name=f"{options.name}-{os.getpid()}",
            user=options.user,
            password=options.password,
            token=options.token,
            nkey_seed=_nkey(options.nkey),
            credentials=_credentials(options.creds),
            tls=_tls(options),
            tls_first=options.tls_first,
            tls_hostname=options.tls_hostname,
            connect_timeout=options.connect_timeout,
            inbox_prefix=options.inbox_prefix,
        )
    except jsclient.AuthenticationError as error:
        raise OptionError(
            "servers",
            f"the server refuses us: {error}; check user, password, token, nkey, creds",
        ) from error
    except jsclient.TLSError as error:
        raise OptionError("servers", f"no TLS link: {error}; check tls*") from error
    except jsclient.ConnectionError as error:
        raise OptionError("servers", f"no server answers: {error}") from error
    except jsclient.CredentialsError as error:
        name = "nkey" if options.nkey else "creds"
        raise OptionError(name, str(error)) from error


def _nkey(value: str | None) -> str | os.PathLike[str] | None:
    if value is None:
        return None
    # Whatever may be a seed is taken for one, also a wrong one: the name of a file
    # would be shown in the error.
    is_word = re.fullmatch("S[A-Za-z0-9]*", value) is not None
    return value if is_word and not os.path.exists(value) else Path(value)


def _credentials(value: str | None) -> str | bytes | None:
    if value is not None and "-----BEGIN" in value:
        return value.encode()
    return value


def _tls(options: ConnectionOptions) -> ssl.SSLContext | bool:
    if options.tls_ca is options.tls_cert is None:
        return options.tls
    import ssl

    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
    except OSError as error:
        raise OptionError(
            "tlsCa", f"{options.tls_ca!r} is of no use: {error}"
        ) from error
    if options.tls_cert is not None:
        try:
            context.load_cert_chain(options.tls_cert, options.tls_key)
        except OSError as error:
            raise OptionError("tlsCert", f"it is of no use: {error}") from error
    return context
