"""When a publish whose outcome is unknown may be sent again.

A stream does not store a message whose id it has seen within its duplicate window. How
long that is stands only in its configuration, and it may be nothing at all: that is the
server's default for a stream with sources. So the stream is looked up at the first
doubt, and the message is sent again only while half of the window is not over: the
rest is for the time that it takes to arrive. Where the stream cannot be looked up, or
its window is too short, the outcome stays unknown.
"""

from __future__ import annotations

from time import monotonic

from . import _stream_verbs as streams_api
from . import errors
from ._api import Api
from ._engine.values import duration_ns
from .info import StreamInfo
from .jetstream_errors import NoMatchingStreamError

# The part of a duplicate window in which a message is sent again.
USED_PART = 0.5


class Repeats:
    """Until when messages with ids can be sent again and are stored once.

    A stream is asked for once, whatever the number of its messages.
    """

    def __init__(self, api: Api, stream: str | None = None) -> None:
        self._api = api
        self._stream = stream  # no other stores the messages
        self._found: list[StreamInfo] = []

    @property
    def has_one_stream(self) -> bool:
        """Whether all messages are of one stream, whatever their subjects."""
        return self._stream is not None

    def until(self, subject: str, sent: float, deadline: float) -> float:
        """When a message that was first sent at `sent` must not be sent any more.

        That is at once if the stream cannot be looked up before the deadline. All times
        are those of the monotonic clock.
        """
        try:
            window = self._info(subject, deadline).config.duplicate_window or 0
        except errors.Error:
            return sent
        return sent + USED_PART * duration_ns(window, "duplicate_window") / 1e9

    def _info(self, subject: str, deadline: float) -> StreamInfo:
        for info in self._found:
            if self._stream or any(
                covers(pattern, subject) for pattern in info.config.subjects or ()
            ):
                return info
        left = self._api.countdown(max(0.0, deadline - monotonic()))
        name = self._stream
        if name is None:
            names = streams_api.names(self._api, subject=subject, timeout=left())
            if len(names) != 1:
                raise NoMatchingStreamError(subject, names)
            name = names[0]
        info = streams_api.fetch_info(self._api, name, timeout=left())
        self._found.append(info)
        return info


def covers(pattern: str, subject: str) -> bool:
    """Whether a subject, perhaps with wildcards, is that of a stream's messages."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        del given[len(wanted) :]
    return len(wanted) == len(given) and all(
        token in ("*", other) for token, other in zip(wanted, given, strict=True)
    )
