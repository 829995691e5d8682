"""The rules of the subscribe workflow (ADR-15), as two tables.

`check_wish` finds arguments that contradict each other, before anything is sent.
`find_mismatch` finds why a subscription does not fit the consumer that is there.
Configurations are JSON here: those of a wish have only the fields that the caller set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._core import check_filter, check_token
from ..errors import InvalidArgumentError
from ..jetstream_errors import (
    DuplicateSubscriptionError,
    NoDeliverGroupError,
    PullConsumerMismatchError,
    PushConsumerMismatchError,
    QueueMismatchError,
    QueueRequiredError,
    QueueStatusError,
    SubjectMismatchError,
    SubscriptionMismatchError,
)
from .values import check_name

Fields = Mapping[str, Any]


class Wish(NamedTuple):
    """What a call of `subscribe` or `pull_subscribe` asks for; "" is not given."""

    subject: str = ""
    stream: str = ""
    consumer: str = ""  # one that is there, to be used as it is
    is_pull: bool = False
    is_ordered: bool = False
    fields: Fields = {}  # of the configuration

    @property
    def queue(self) -> str:
        """The queue group that shares the messages."""
        return self.text("deliver_group")

    @property
    def name(self) -> str:
        """The consumer that is looked for; a queue without one is its own durable."""
        return (
            self.consumer
            or self.text("durable_name")
            or self.text("name")
            or ("" if self.is_pull else self.queue)
        )

    @property
    def filters(self) -> list[str]:
        """The subjects that the consumer is to deliver."""
        return filters_of(self.fields) or ([self.subject] if self.subject else [])

    def text(self, field: str) -> str:
        """A field of the configuration, "" if it is not set."""
        return str(self.fields.get(field) or "")

    def has(self, *fields: str) -> bool:
        """Whether any of the fields is set."""
        return any(self.fields.get(field) for field in fields)


def filters_of(fields: Fields) -> list[str]:
    """The subjects that a consumer delivers; none: all."""
    one = fields.get("filter_subject")
    return [one] if one else sorted(fields.get("filter_subjects") or ())


def _names(wish: Wish) -> set[str]:
    """The names that the caller gave to the consumer."""
    given = (wish.consumer, wish.text("durable_name"), wish.text("name"))
    return {name for name in given if name}


# First match wins.
_WRONG_ARGUMENTS: tuple[tuple[Callable[[Wish], object], str], ...] = (
    (
        lambda w: not w.subject and not w.stream,
        "give a subject, to find the stream by, or a stream",
    ),
    (
        lambda w: w.subject and filters_of(w.fields) not in ([], [w.subject]),
        "the subject and the filters of the configuration differ: give one of them",
    ),
    (
        lambda w: len(_names(w)) > 1,
        "consumer, durable and the names of the configuration differ: give one of them",
    ),
    (
        lambda w: w.is_pull and w.has("deliver_subject", "deliver_group"),
        (
            "a pull subscription has neither a deliver_subject nor a deliver_group: "
            "messages are asked for"
        ),
    ),
    (
        lambda w: w.is_pull and w.has("flow_control", "idle_heartbeat"),
        (
            "flow_control and idle_heartbeat are for push subscriptions: a fetch has a "
            "heartbeat of its own"
        ),
    ),
    (
        lambda w: w.is_pull and w.text("ack_policy") in ("none", "all"),
        "the ack_policy of a pull subscription must be 'explicit'",
    ),
    (
        lambda w: w.is_ordered and w.consumer,
        "an ordered subscription has consumers of its own: give no consumer",
    ),
    (
        lambda w: not w.is_pull and w.has("max_waiting"),
        "max_waiting is for pull subscriptions",
    ),
    (
        lambda w: w.queue and w.has("flow_control", "idle_heartbeat"),
        (
            "a queue has neither flow_control nor idle_heartbeat: the server would "
            "send them to any one of its members"
        ),
    ),
)


def check_wish(wish: Wish) -> None:
    """Raises an InvalidArgumentError for arguments that cannot be."""
    if wish.subject:
        check_filter(wish.subject)
    if wish.stream:
        check_name(wish.stream, "stream")
    if wish.queue:
        check_token(wish.queue, "queue")
    for is_wrong, why in _WRONG_ARGUMENTS:
        if is_wrong(wish):
            raise InvalidArgumentError(why)
    if wish.name:
        is_queue = wish.name == wish.queue and not _names(wish)
        check_name(
            wish.name,
            "a queue that is its own durable" if is_queue else "the consumer's name",
        )


# First match wins: a wish, the consumer's configuration, whether it has a subscriber.
_MISMATCHES: tuple[
    tuple[Callable[[Wish, Fields, bool], object], type[SubscriptionMismatchError], str],
    ...,
] = (
    (
        lambda w, c, _: w.filters and filters_of(c) and filters_of(c) != w.filters,
        SubjectMismatchError,
        "delivers {actual[filters]}, not {wish.filters}",
    ),
    (
        lambda w, c, _: w.is_pull and c.get("deliver_subject"),
        PushConsumerMismatchError,
        "is a push consumer: use subscribe, not pull_subscribe",
    ),
    (
        lambda w, c, _: not w.is_pull and not c.get("deliver_subject"),
        PullConsumerMismatchError,
        "is a pull consumer: use pull_subscribe, not subscribe",
    ),
    (
        lambda w, c, _: w.queue and not c.get("deliver_group"),
        NoDeliverGroupError,
        "was made without a deliver group: the queue {wish.queue!r} cannot share it",
    ),
    (
        lambda w, c, is_bound: (
            not w.is_pull and not w.queue and not c.get("deliver_group") and is_bound
        ),
        DuplicateSubscriptionError,
        "has a subscriber already; to share it, make it for a queue",
    ),
    (
        lambda w, c, _: not w.is_pull and not w.queue and c.get("deliver_group"),
        QueueRequiredError,
        "was made for the queue group {actual[deliver_group]!r}: give that queue",
    ),
    (
        lambda w, c, _: w.queue and w.queue != c.get("deliver_group"),
        QueueMismatchError,
        "was made for the queue group {actual[deliver_group]!r}, not {wish.queue!r}",
    ),
    (
        lambda w, c, _: w.queue and c.get("flow_control"),
        QueueStatusError,
        "has flow_control, which members of a queue cannot answer",
    ),
    (
        lambda w, c, _: w.queue and c.get("idle_heartbeat"),
        QueueStatusError,
        "has an idle_heartbeat, which reaches any one member of a queue",
    ),
)


def find_mismatch(
    wish: Wish, stream: str, actual: Fields, *, is_bound: bool
) -> SubscriptionMismatchError | None:
    """Why the subscription does not fit a consumer, fields that differ aside."""
    for is_wrong, kind, why in _MISMATCHES:
        if is_wrong(wish, actual, is_bound):
            facts = {**actual, "filters": filters_of(actual)}
            return kind(stream, wish.name, why.format(wish=wish, actual=facts))
    return None
