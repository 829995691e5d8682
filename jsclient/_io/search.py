"""The search for the first link: every server once, one deadline over all of them."""

from __future__ import annotations

from time import monotonic

from .. import errors
from .._engine.options import Options
from .._engine.servers import Pool
from .dial import Call, Fields, Patience, dial

Failures = list[tuple[str, Exception]]


def first_call(pool: Pool, options: Options, fields: Fields, timeout: float) -> Call:
    """A link to the first server that accepts us; each gets its share of the time.

    Raises what the servers said, rather than that none is left.
    """
    deadline = monotonic() + timeout
    failures: Failures = []
    servers = pool.initial()
    for place, server in enumerate(servers):
        now = monotonic()
        share = (deadline - now) / (len(servers) - place)
        if share <= 0:
            late = errors.TimeoutError(f"no time was left for {server.label}")
            failures.append((server.label, late))
            continue
        try:
            return dial(server, options, fields, Patience(now + share))
        except errors.Error as failure:
            pool.failed(server, failure, monotonic())
            failures.append((server.label, failure))
    raise _summary(failures, timeout)


def _summary(failures: Failures, timeout: float) -> Exception:
    """One error for all of them."""
    for _, error in failures:
        if isinstance(error, errors.AuthenticationError | errors.TLSError):
            return error
    if len(failures) == 1:
        error = failures[0][1]
        if not isinstance(error, errors.TimeoutError) and not _is_refused(error):
            return error
    told = "; ".join(str(error) for _, error in failures)
    text = (
        f"no server could be reached within {timeout:g} s: {told}. "
        "Is nats-server running?"
    )
    if all(isinstance(error, errors.TimeoutError) for _, error in failures):
        return errors.ConnectTimeoutError(text, tuple(failures))
    return errors.NoServersError(text, tuple(failures))


def _is_refused(error: Exception) -> bool:
    return isinstance(error.__cause__, ConnectionRefusedError)
