"""Streams: handles to what stores messages on the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from . import _consumer_verbs as consumers_api
from . import _stream_verbs as verbs
from ._api import Api, Listing
from ._core import Batch
from ._engine.arguments import Seconds
from .config import ConsumerConfig
from .consumer import Consumer
from .info import ConsumerInfo, PauseInfo, StreamInfo
from .reading import get_batch, get_message, get_messages
from .stored import StoredMessage

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .config_fields import (
        ConsumerFields,
        ConsumerSettings,
        OrderedFields,
        StreamSettings,
    )
    from .ordered import OrderedConsumer


class Stream:
    """A stream. Made by `JetStream.stream` and `JetStream.create_stream`."""

    def __init__(self, api: Api, info: StreamInfo) -> None:
        self._api = api
        self._info = info

    @property
    def name(self) -> str:
        """Its name."""
        name = self._info.config.name
        assert name is not None  # the server always tells it
        return name

    @property
    def cached_info(self) -> StreamInfo:
        """What the server said of it last; `info` asks again."""
        return self._info

    def info(
        self,
        *,
        subjects: str | None = None,
        deleted_details: bool = False,
        timeout: Seconds | None = None,
    ) -> StreamInfo:
        """What the server says of it now.

        With `subjects`, a filter, `state.subjects` counts the messages of each matching
        subject; with `deleted_details`, `state.deleted` has the deleted sequences.
        """
        self._info = verbs.fetch_info(
            self._api,
            self.name,
            subjects=subjects,
            deleted_details=deleted_details,
            timeout=timeout,
        )
        return self._info

    def update(
        self,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[StreamSettings],
    ) -> Stream:
        """Changes fields of its configuration; all others stay as they are.

        None takes a field back to the server's default; `mirror=None` makes a mirror a
        stream of its own.
        """
        self._info = verbs.update(
            self._api, self.name, None, fields, pedantic=pedantic, timeout=timeout
        )
        return self

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """Deletes it with all its messages and consumers."""
        verbs.delete(self._api, self.name, timeout=timeout)

    def purge(
        self,
        subject: str | None = None,
        *,
        sequence: int | None = None,
        keep: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """Deletes messages and returns how many: all, or those of a subject.

        `sequence` spares that message and later ones; `keep` spares the last so many.
        A purge with a `sequence` whose answer is lost with its link is done again, and
        the number is then of what the first one left, perhaps 0.
        """
        return verbs.purge(
            self._api,
            self.name,
            subject=subject,
            sequence=sequence,
            keep=keep,
            timeout=timeout,
        )

    # Messages -------------------------------------------------------------------------

    def get_msg(
        self,
        seq: int | None = None,
        *,
        last_for: str | None = None,
        next_for: str | None = None,
        start_time: datetime | str | None = None,
        from_leader: bool = False,
        timeout: Seconds | None = None,
    ) -> StoredMessage:
        """One message: by sequence, the last of a subject, or the next of one.

        `next_for` looks from `seq` or `start_time` on. Raises MessageNotFoundError.
        When the stream allows it any replica may answer, which can be a little behind;
        `from_leader` asks the one that is not.
        """
        return get_message(
            self._api,
            self.name,
            is_direct=bool(self._info.config.allow_direct) and not from_leader,
            seq=seq,
            last_for=last_for,
            next_for=next_for,
            start_time=start_time,
            timeout=timeout,
        )

    def get_msgs(
        self,
        *,
        seq: int | None = None,
        start_time: datetime | str | None = None,
        next_for: str | None = None,
        last_for: Iterable[str] | None = None,
        limit: int | None = None,
        max_bytes: int | None = None,
        up_to_seq: int | None = None,
        up_to_time: datetime | str | None = None,
        timeout: Seconds | None = None,
    ) -> Iterator[StoredMessage]:
        """Messages in order, read in batches; the stream must have `allow_direct`.

        From `seq` (the first by default) or `start_time` on, perhaps only those of the
        subject `next_for`; or, with `last_for`, the last message of every subject that
        matches one of these, as of one moment. At most `limit` messages. A batch ends
        with the message that reaches `max_bytes`, and may take `timeout`.
        """
        return get_messages(
            self._api,
            self.name,
            seq=seq,
            start_time=start_time,
            next_for=next_for,
            last_for=last_for,
            limit=limit,
            max_bytes=max_bytes,
            up_to_seq=up_to_seq,
            up_to_time=up_to_time,
            timeout=timeout,
        )

    def get_batch(
        self,
        seq: int = 1,
        *,
        next_for: str | None = None,
        max_messages: int = 1000,
        max_bytes: int | None = None,
        timeout: Seconds | None = None,
    ) -> Batch:
        """Messages from `seq` on in columns; the stream must have `allow_direct`.

        Like `get_msgs`, but one batch of them and no object per message; empty if there
        are none. Its `num_pending` tells how many follow. The batch ends with the
        message that reaches `max_bytes` (4 MiB by default).
        """
        return get_batch(
            self._api,
            self.name,
            seq=seq,
            next_for=next_for,
            max_messages=max_messages,
            max_bytes=max_bytes,
            timeout=timeout,
        )

    def delete_msg(
        self, seq: int, *, secure: bool = False, timeout: Seconds | None = None
    ) -> None:
        """Deletes one message; `secure` also overwrites its bytes, which is slow."""
        verbs.delete_msg(self._api, self.name, seq, secure=secure, timeout=timeout)

    # Consumers ------------------------------------------------------------------------

    def create_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """Makes a consumer; ConsumerExistsError if another one has its name."""
        return self._consumer(
            consumers_api.create(
                self._api,
                self.name,
                config,
                fields,
                pedantic=pedantic,
                timeout=timeout,
            )
        )

    def update_consumer(
        self,
        name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerSettings],
    ) -> Consumer:
        """Changes the fields of a consumer that are given; all others stay."""
        return self._consumer(
            consumers_api.update(
                self._api,
                self.name,
                name,
                config,
                fields,
                pedantic=pedantic,
                timeout=timeout,
            )
        )

    def create_or_update_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        timeout: Seconds | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """Changes the given fields of a consumer, or makes it if there is none."""
        return self._consumer(
            consumers_api.create_or_update(
                self._api,
                self.name,
                config,
                fields,
                pedantic=pedantic,
                timeout=timeout,
            )
        )

    def consumer(self, name: str, *, timeout: Seconds | None = None) -> Consumer:
        """The consumer of that name; ConsumerNotFoundError if there is none."""
        return self._consumer(
            consumers_api.fetch_info(self._api, self.name, name, timeout=timeout)
        )

    def delete_consumer(self, name: str, *, timeout: Seconds | None = None) -> None:
        """Deletes a consumer."""
        consumers_api.delete(self._api, self.name, name, timeout=timeout)

    def consumers(self, *, timeout: Seconds | None = None) -> Listing[Consumer]:
        """Every consumer; `timeout` is as in `JetStream.streams`."""
        return consumers_api.listing(
            self._api,
            self.name,
            lambda info: Consumer(self._api, info),
            timeout=timeout,
        )

    def consumer_names(self, *, timeout: Seconds | None = None) -> Listing[str]:
        """The names of every consumer."""
        return consumers_api.names(self._api, self.name, timeout=timeout)

    def pause_consumer(
        self, name: str, until: datetime | str, *, timeout: Seconds | None = None
    ) -> PauseInfo:
        """Stops the deliveries of a consumer until that time."""
        return consumers_api.pause(self._api, self.name, name, until, timeout=timeout)

    def resume_consumer(
        self, name: str, *, timeout: Seconds | None = None
    ) -> PauseInfo:
        """Ends the pause of a consumer."""
        return consumers_api.pause(self._api, self.name, name, None, timeout=timeout)

    def reset_consumer(
        self, name: str, seq: int | None = None, *, timeout: Seconds | None = None
    ) -> ConsumerInfo:
        """Sets a consumer back to what is not acknowledged yet, or to a sequence."""
        return consumers_api.reset(self._api, self.name, name, seq, timeout=timeout)

    def unpin_consumer(
        self, name: str, group: str, *, timeout: Seconds | None = None
    ) -> None:
        """Takes the pin of a priority group from the client that has it."""
        consumers_api.unpin(self._api, self.name, name, group, timeout=timeout)

    def ordered_consumer(
        self,
        filter_subjects: Sequence[str] | str | None = None,
        *,
        max_resets: int | None = None,
        inactive_threshold: Seconds = 300.0,
        name_prefix: str | None = None,
        **fields: Unpack[OrderedFields],
    ) -> OrderedConsumer:
        """Reads the stream in order, without gaps or repeats, whatever happens.

        Args:
            filter_subjects: a subject or several; all by default.
            max_resets: how often it may begin anew before it gives up; None: always.
            fields: of a ConsumerConfig: deliver_policy, opt_start_seq, opt_start_time,
                headers_only, replay_policy, metadata.
        """
        from .ordered import OrderedConsumer  # it stands on this module's consumers

        filters: dict[str, Any] = {}
        if isinstance(filter_subjects, str):
            filters["filter_subject"] = filter_subjects
        elif filter_subjects is not None:
            filters["filter_subjects"] = list(filter_subjects)
        return OrderedConsumer(
            self._api,
            self.name,
            max_resets=max_resets,
            inactive_threshold=inactive_threshold,
            name_prefix=name_prefix,
            **filters,
            **fields,
        )

    def _consumer(self, info: ConsumerInfo) -> Consumer:
        return Consumer(self._api, info)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Stream cannot be pickled: pickle its name, and ask a JetStream of the "
            "other process for it"
        )
