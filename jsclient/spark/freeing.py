"""Freeing messages of work queues and interest streams after they were processed.

A query reads such a stream without taking anything away, so that every batch can be
read again. When Spark commits a batch, its messages are freed:

* a work queue is purged up to the end of the batch;
* an interest stream keeps what some consumer still waits for, so a durable consumer
  that nobody reads, the anchor, holds the messages. It is moved by making the next one
  before the last is deleted.

Spark commits a batch when it plans the next one, so the last one is not committed:
`commit_final` frees it after a query has ended well.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import jsclient

from . import connecting
from .errors import OptionError
from .offsets import Offset, read_offset
from .options import SourceOptions, source_options
from .stream import bounds_of, filters, find_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..jetstream import JetStream
    from ..stream import Stream

__all__ = ["commit_final", "free", "prepare"]

_RETENTION = {"purge": "workqueue", "reset": "interest"}


def prepare(options: SourceOptions, stream: Stream, start: int) -> None:
    """Checks that the stream is of the kind, and holds its messages from `start` on."""
    wanted = _RETENTION.get(options.consume)
    if wanted is None:
        return
    config = stream.cached_info.config
    if config.retention != wanted:
        raise OptionError(
            "consume",
            f"{options.consume} is for streams with retention {wanted}; that of "
            f"{stream.name!r} is {config.retention}",
        )
    if options.consume == "purge" and config.deny_purge:
        raise OptionError("consume", f"stream {stream.name!r} has deny_purge")
    if options.consume == "reset":
        try:
            if not _anchors(options, stream):
                _set_anchor(options, stream, start)
        except jsclient.PermissionsViolationError as error:
            raise _denied(options, error) from error


def free(options: SourceOptions, end: Offset) -> None:
    """The messages before an offset are not needed any more."""
    if options.consume == "none":
        return
    try:
        connecting.ask(options.connection, lambda js: _free(js, options, end))
    except jsclient.PermissionsViolationError as error:
        raise _denied(options, error) from error


def commit_final(
    options: Mapping[str, str], end_offset: Mapping[str, object] | str
) -> None:
    """Frees the messages of a query's last batch, which Spark does not commit.

    Call it after the query has ended well, with the options of its source and the
    `endOffset` of its last progress. Without the option `consume` it does nothing.
    """
    source = source_options(options)
    free(source, read_offset(end_offset, source.stream, "end_offset"))


def _denied(
    options: SourceOptions, error: jsclient.PermissionsViolationError
) -> OptionError:
    return OptionError(
        "consume", f"{options.consume} is not allowed to this user: {error}"
    )


def _free(js: JetStream, options: SourceOptions, end: Offset) -> None:
    stream = find_stream(js, options.stream)
    if bounds_of(stream.cached_info).created != end.created:
        return  # another stream of that name: nothing of it was read
    if options.consume == "purge":
        for subject in options.subject or (None,):
            stream.purge(subject, sequence=end.next)
    else:
        before = _anchors(options, stream)
        made = _set_anchor(options, stream, end.next)
        for name in before:
            if name != made:
                with contextlib.suppress(jsclient.ConsumerNotFoundError):
                    stream.delete_consumer(name)


def _anchors(options: SourceOptions, stream: Stream) -> list[str]:
    """The names of the anchors that there are: one, or two if a move was cut short."""
    prefix = f"{options.anchor}_"
    return [
        name
        for name in stream.consumer_names()
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    ]


def _set_anchor(options: SourceOptions, stream: Stream, start: int) -> str:
    name = f"{options.anchor}_{start}"
    stream.create_or_update_consumer(
        durable_name=name,
        deliver_policy="by_start_sequence",
        opt_start_seq=start,
        ack_policy="explicit",
        **filters(options.subject),
    )
    return name
