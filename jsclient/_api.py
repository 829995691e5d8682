"""Requests to the JetStream API: JSON in, JSON out, errors by name, one deadline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

from . import errors
from ._core import Gate, Msg, check_subject
from ._engine.arguments import HeadersLike, Seconds, seconds
from ._engine.reading import integer, mapping
from ._engine.releases import Version, api_level
from ._io.exchange import UnansweredError, UnsentError, exchange
from ._io.loop import Loop
from .jetstream_errors import (
    ApiError,
    JetStreamNotEnabledError,
    JetStreamUnavailableError,
    UnsupportedByServerError,
    api_error,
)

# JSON as the server made it.
Json = dict[str, Any]
Needs = list[tuple[str, Version]]
_T = TypeVar("_T")

DEFAULT_PREFIX = "$JS.API."
# Pauses between two tries while JetStream has no leader: an election is short.
FIRST_PAUSE = 0.05
LAST_PAUSE = 0.5
# Servers do not answer for what they do not lead, and a leader may die with a request:
# what is safe to do twice is asked again after so many seconds.
SILENCE = 1.0
# Servers of a cluster wait 4 seconds for each other before they answer with a list.
GATHERING = 5.0
# How long nobody may answer at a domain or a prefix that nobody has answered at yet.
UNHEARD = 1.0
PEDANTIC: Needs = [("pedantic", (2, 11, 0))]


class Api:
    """The API of one JetStream: its prefixes and the time that a call may take."""

    def __init__(
        self, loop: Loop, prefix: str, timeout: float, ack_prefix: str | None = None
    ) -> None:
        self.loop = loop
        self.prefix = prefix
        self.timeout = timeout
        self.ack_prefix = ack_prefix  # instead of `$JS.ACK`
        self._is_right = prefix == DEFAULT_PREFIX  # somebody has answered at it

    def call(
        self,
        verb: str,
        body: Mapping[str, Any] | None = None,
        *,
        doing: str,
        timeout: Seconds | None = None,
        is_safe: bool = False,
        silence: float = SILENCE,
        headers: HeadersLike | None = None,
    ) -> Json:
        """The answer of an endpoint, or the ApiError that it told.

        While JetStream is briefly without a leader the call is repeated until its
        deadline: the server says that nothing was done. A call whose link was lost or
        that nobody answers, after `silence` seconds, is repeated only if it `is_safe`,
        that is if doing it twice is like doing it once.
        """
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        began = monotonic()
        deadline = began + self._limit(timeout)
        patience = silence if is_safe else math.inf
        pause = FIRST_PAUSE
        while True:
            try:
                msg = self._ask(verb, data, deadline, doing, patience, headers)
                return self._read(msg, doing)
            except ApiError as error:
                until = monotonic() + pause
                last = deadline if self._is_right else min(deadline, began + UNHEARD)
                if not _is_brief(error, self.loop) or until >= last:
                    raise
                self.loop.wait(Gate(), until)
                pause = min(2 * pause, LAST_PAUSE)

    def ask(
        self, verb: str, data: bytes, *, doing: str, timeout: Seconds | None = None
    ) -> Msg:
        """The answer of an endpoint that speaks no JSON; asking twice must be safe."""
        deadline = monotonic() + self._limit(timeout)
        return self._ask(verb, data, deadline, doing, SILENCE, None)

    def countdown(self, timeout: Seconds | None) -> Callable[[], float]:
        """What is left of the time of a call that asks more than once."""
        deadline = monotonic() + self._limit(timeout)
        return lambda: max(0.0, deadline - monotonic())

    def _limit(self, timeout: Seconds | None) -> float:
        return self.timeout if timeout is None else seconds(timeout)

    def _ask(
        self,
        verb: str,
        data: bytes,
        deadline: float,
        doing: str,
        patience: float,
        headers: HeadersLike | None,
    ) -> Msg:
        subject = self.prefix + verb
        while True:
            try:
                return exchange(
                    self.loop, subject, data, headers, deadline, patience=patience
                )
            except UnsentError as error:
                # A link that was lost before it took a byte leaves it to the next one.
                if monotonic() >= deadline:
                    raise errors.TimeoutError(f"{doing}: not sent: {error}") from error
            except UnansweredError as error:
                if not error.is_lost:
                    raise errors.TimeoutError(f"{doing}: {error}") from error
                self.loop.check_open()
                if patience == math.inf:  # it must not be done twice
                    raise errors.DisconnectedError(
                        f"{doing}: the link was lost before the answer came; "
                        "it may be done or not"
                    ) from error

    def _read(self, msg: Msg, doing: str) -> Json:
        if msg.status == 503 and not msg.data:
            description = "no JetStream answers here"
            if self.prefix != DEFAULT_PREFIX:
                description = (
                    f"no JetStream answers at {self.prefix[:-1]!r}: "
                    "is the domain or prefix right?"
                )
            raise JetStreamNotEnabledError(
                code=503, description=description, doing=doing
            )
        self._is_right = True
        try:
            answer = json.loads(msg.data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise errors.ServerError(f"{doing}: the answer is no JSON object")
        if isinstance(answer.get("error"), dict):
            raise api_error(answer["error"], doing=doing)
        return answer

    def refuse_too_new(self, needs: Needs) -> None:
        """Raises for the first thing that the connected server is too old for."""
        for feature, version in needs:
            if self.is_before(version):
                raise UnsupportedByServerError(feature, version, self.loop.info.version)

    def is_before(self, version: Version) -> bool:
        """Whether the server that answers is known to be older.

        Behind a domain or a prefix another server answers, whose release is not known.
        """
        return self.prefix == DEFAULT_PREFIX and self.loop.info.version_tuple < version

    def pages(
        self,
        verb: str,
        key: str,
        make: Callable[[Any], _T],
        *,
        doing: str,
        body: Mapping[str, Any] | None = None,
        timeout: Seconds | None = None,
        is_gathered: bool = False,
    ) -> Listing[_T]:
        """Everything that a paged endpoint lists.

        In a cluster a page may lack entries whose leader did not answer; they are named
        in `missing` and take part in the count, or the pages would repeat. A page that
        `is_gathered` then takes its time, and longer if it is asked for again: unless a
        `timeout` is given for all of them, each has one of its own.
        """
        left = self.countdown(timeout)
        has_own_time = is_gathered and timeout is None
        found: Listing[_T] = Listing()
        offset = 0
        while True:
            page = self.call(
                verb,
                {**(body or {}), "offset": offset},
                doing=doing,
                timeout=max(self.timeout, GATHERING) if has_own_time else left(),
                is_safe=True,
                silence=GATHERING if is_gathered else SILENCE,
            )
            entries, missing = entries_of(page, key), entries_of(page, "missing")
            found.extend(make(entry) for entry in entries)
            found.missing += tuple(
                name for name in missing if name not in found.missing
            )
            found.offline.update(mapping(page, "offline"))
            limit = integer(page, "limit")
            offset += limit if limit > 0 else len(entries) + len(missing)
            if offset >= integer(page, "total") or not (entries or missing):
                return found


def entries_of(page: Json, key: str) -> list[Any]:
    """A list of an answer; servers write an empty one as null."""
    entries = page.get(key)
    return entries if isinstance(entries, list) else []


class Listing(list[_T]):
    """What the server has, and the names of what it cannot tell all of.

    `missing` are those that did not answer, or of which no server is there; `offline`
    has the reasons why a server cannot serve one, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: tuple[str, ...] = ()
        self.offline: dict[str, str] = {}


def api_prefix(domain: str | None, prefix: str | None) -> str:
    """The first tokens of the API's subjects, with the dot at their end."""
    if domain is not None and prefix is not None:
        raise errors.InvalidArgumentError("give a domain or a prefix, not both")
    if domain is not None:
        check_subject(domain, "domain")
        if "." in domain or "*" in domain or ">" in domain:
            raise errors.InvalidArgumentError(
                f"domain must be a single literal token: {domain!r}"
            )
        return f"$JS.{domain}.API."
    if prefix is None:
        return DEFAULT_PREFIX
    return literal_prefix(prefix, "prefix") + "."


def literal_prefix(prefix: str, name: str) -> str:
    """Checks the first tokens of subjects; a dot at their end is taken off."""
    prefix = prefix.removesuffix(".") if isinstance(prefix, str) else prefix
    check_subject(prefix, name)
    if "*" in prefix or ">" in prefix:
        raise errors.InvalidArgumentError(f"{name} must not have wildcards: {prefix!r}")
    return prefix


def level_header(needs: Needs) -> HeadersLike | None:
    """What makes an older server refuse the request instead of doing a part of it."""
    level = api_level(needs)
    return {"Nats-Required-Api-Level": str(level)} if level else None


def _is_brief(error: ApiError, loop: Loop) -> bool:
    """Whether JetStream may be back in a moment."""
    if isinstance(error, JetStreamNotEnabledError):
        # Nobody answers: on a server without JetStream that will not change.
        return error.err_code == 0 and loop.info.jetstream
    return isinstance(error, JetStreamUnavailableError) and error.is_retryable
