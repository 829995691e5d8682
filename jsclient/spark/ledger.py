"""The ledger of a sink: which batch of a query is stored, and what came before it.

A stream forgets message ids after its duplicate window. A batch that Spark runs again
later than that, after a long outage say, would be stored twice. So the sink keeps one
entry per query and stream in a bucket of key-value pairs: the last batch that is whole,
and the last sequence of the stream at that time. An entry of a stream that was deleted
and made again counts for nothing: what it tells of is gone.

A task of a batch that the ledger has publishes nothing. A task that may have run
before, too long ago for the window, looks through what the stream got since the entry
was written, and leaves out the rows that it finds there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import jsclient

from .errors import OptionError
from .stream import bounds_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..info import StreamInfo
    from ..jetstream import JetStream
    from ..stream import Stream

__all__ = ["DEFAULT_BUCKET", "Entry", "Ledger", "Memory", "check_stream"]

DEFAULT_BUCKET = "jsclient-spark"


class Entry(NamedTuple):
    """What the ledger knows of a query."""

    batch: int  # the last one that is whole
    seq: int  # the last sequence of the stream then
    created: str  # when that stream was made
    revision: int  # of the entry itself
    time_ns: int  # when it was written, on the server's clock

    def seconds_old(self, info: StreamInfo) -> float:
        """How long ago it was written when the server told of the stream."""
        if info.ts is None:
            return float("inf")  # servers before 2.10 do not say
        return (info.ts.ns - self.time_ns) / 1e9


class Ledger:
    """The entry of one query and one stream."""

    def __init__(self, js: JetStream, bucket: str, query: str, stream: Stream) -> None:
        self._js = js
        self._bucket = f"KV_{bucket}"
        self._subject = f"$KV.{bucket}.{query}.{stream.name}"
        self._created = bounds_of(stream.cached_info).created
        self._replicas = stream.cached_info.config.num_replicas

    def read(self) -> Entry | None:
        """What is known; None for a query, or a stream, that is new."""
        entry = self._entry()
        return entry if entry is not None and entry.created == self._created else None

    def _entry(self) -> Entry | None:
        """What stands there, perhaps about an earlier stream of that name."""
        try:
            bucket = self._js.stream(self._bucket)
            msg = bucket.get_msg(last_for=self._subject, from_leader=True)
        except (jsclient.StreamNotFoundError, jsclient.MessageNotFoundError):
            return None
        try:
            fields = json.loads(msg.data)
            return Entry(
                batch=int(fields["batch"]),
                seq=int(fields["seq"]),
                created=str(fields["created"]),
                revision=msg.seq,
                time_ns=msg.timestamp_ns,
            )
        except (KeyError, TypeError, ValueError):
            raise OptionError(
                "ledger", f"{self._subject} in {self._bucket} is no entry of a ledger"
            ) from None

    def open(self, batch: int, seq: int) -> Entry:
        """Notes where the stream ends before anything of a new query is published.

        Several tasks may come to it at once: the first counts for all.
        """
        self._make_bucket()
        before = self._entry()
        if before is not None and before.created == self._created:
            return before
        with contextlib.suppress(jsclient.WrongLastSequenceError):
            self._js.publish(
                self._subject,
                self._data(batch, seq),
                expected_last_subject_seq=0 if before is None else before.revision,
            )
        entry = self.read()
        if entry is None:
            raise jsclient.Error(f"the entry {self._subject} was deleted meanwhile")
        return entry

    def commit(self, batch: int, seq: int) -> None:
        """The batch is whole."""
        entry = self.read()
        if entry is None:
            self._make_bucket()
        elif entry.batch >= batch:
            return
        self._js.publish(self._subject, self._data(batch, seq))

    def _data(self, batch: int, seq: int) -> bytes:
        entry = {"batch": batch, "seq": seq, "created": self._created}
        return json.dumps(entry).encode()

    def _make_bucket(self) -> None:
        """The bucket, as every client of key-value pairs makes one."""
        try:
            self._js.stream(self._bucket)
        except jsclient.StreamNotFoundError:
            self._js.create_stream(
                name=self._bucket,
                subjects=[f"$KV.{self._bucket[3:]}.>"],
                max_msgs_per_subject=1,
                allow_direct=True,
                allow_rollup_hdrs=True,
                deny_delete=True,
                discard="new",
                num_replicas=self._replicas,
            )


class Memory:
    """What a task knows of an earlier run of itself."""

    def __init__(
        self,
        ledger: Ledger,
        stream: Stream,
        batch: int,
        prefix: str,
        *,
        timeout: float,
    ) -> None:
        """timeout: how long the stream may be silent while it is looked through."""
        info = stream.cached_info
        entry = ledger.read() or ledger.open(batch - 1, info.state.last_seq)
        self.is_whole = entry.batch >= batch
        self.known_ids: set[bytes] = set()  # of rows that are stored
        self._stream = stream
        self._seq = entry.seq
        self._prefix = prefix
        self._timeout = timeout
        self._is_recalled = False
        # Whatever ran before ran after the entry: while that is young, the stream knows
        # the ids. Half of the window is left for the rows on their way.
        window = info.raw["config"].get("duplicate_window", 0) / 1e9
        self._trusted_until = monotonic() + window / 2 - entry.seconds_old(info)

    def recall(self) -> None:
        """Looks for rows in the stream."""
        self.known_ids |= stored_ids(
            self._stream, self._seq, self._prefix, timeout=self._timeout
        )
        self._is_recalled = True

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; recalls in time what the stream is about to forget."""
        for batch in batches:
            if not self._is_recalled and monotonic() >= self._trusted_until:
                self.recall()
            yield batch


def check_stream(stream: Stream) -> None:
    """Refuses streams in which stored rows cannot be found again."""
    retention = stream.cached_info.config.retention
    if retention != "limits":
        raise OptionError(
            "exactlyOnce",
            f"a ledger needs a stream with retention limits; {stream.name!r} has "
            f"{retention}, where messages vanish when they are acknowledged",
        )


def stored_ids(
    stream: Stream, after: int, prefix: str, *, timeout: float = 10.0
) -> set[bytes]:
    """The message ids with the prefix that the stream got after a sequence.

    Raises TimeoutError if messages are there but none comes for that long.
    """
    state = stream.info().state
    last, position = state.last_seq, max(after + 1, state.first_seq)
    found: set[bytes] = set()
    if not _is_left(stream, position, last):
        return found
    consumer = stream.ordered_consumer(
        deliver_policy="by_start_sequence", opt_start_seq=position, headers_only=True
    )
    with consumer.messages() as messages:
        while position <= last:
            try:
                msg = messages.next(timeout)
            except jsclient.TimeoutError:
                # The rest may have been deleted meanwhile: then nothing follows.
                if _is_left(stream, position, last):
                    raise
                break
            headers, metadata = msg.headers, msg.metadata
            msg_id = None if headers is None else headers.get("Nats-Msg-Id")
            if msg_id is not None and msg_id.startswith(prefix):
                found.add(msg_id.encode(errors="surrogateescape"))
            position = metadata.stream_seq + 1
            if metadata.num_pending == 0:
                break
    return found


def _is_left(stream: Stream, start: int, last: int) -> bool:
    """Whether the stream has a message between the two."""
    if start > last:
        return False
    try:
        return stream.get_msg(start, next_for=">", from_leader=True).seq <= last
    except jsclient.MessageNotFoundError:
        return False
