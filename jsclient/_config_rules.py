"""What servers refuse in a configuration, found before it is sent.

Only what is certain without a server is checked: names, subjects, and fields that
contradict each other. What depends on the account, on other streams or on a server's
settings is left to the server. Each error names its field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING

from ._core import check_filter, check_token
from ._engine.arguments import LAST_SEQUENCE, integer
from ._engine.values import (
    MAX_DESCRIPTION_BYTES,
    RESERVED_METADATA,
    check_group,
    check_metadata,
    check_name,
    check_size,
    duration_ns,
    subject_covers,
    subjects_overlap,
)
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from ._config_parts import ConsumerLimits, StreamSource
    from .config import ConsumerConfig, StreamConfig

_MILLISECOND = 1_000_000  # in nanoseconds
_MOST_REPLICAS = 5
# The keys that servers have written so far.
_WRITTEN_METADATA = ("_nats.ver", "_nats.level", "_nats.req.level")

# What the numbers of a field can be on the wire, if it is no usual one.
_USUAL_NUMBERS = (-(1 << 63), (1 << 63) - 1)
_NUMBERS = {
    "max_msg_size": (-(1 << 31), (1 << 31) - 1),
    "first_seq": (0, LAST_SEQUENCE),
    "opt_start_seq": (0, LAST_SEQUENCE),
    "rate_limit_bps": (0, LAST_SEQUENCE),
}

# (a field, those that must not be set with it)
_STREAM_RIVALS = (
    (
        "mirror",
        *("subjects", "sources", "first_seq", "allow_msg_counter", "allow_atomic"),
        *("allow_batched", "allow_msg_schedules", "subject_delete_marker_ttl"),
    ),
    ("allow_msg_counter", "allow_msg_ttl", "allow_msg_schedules"),
    ("allow_msg_schedules", "sources"),
    ("deny_purge", "allow_rollup_hdrs"),
)

# (field, whether it is wrong, why)
_STREAM_RULES: tuple[tuple[str, Callable[[StreamConfig], object], str], ...] = (
    (
        "duplicate_window",
        lambda c: 0 < _ns(c.max_age) < _ns(c.duplicate_window),
        "must not be longer than max_age",
    ),
    (
        "discard_new_per_subject",
        lambda c: c.discard_new_per_subject and c.discard != "new",
        "needs discard to be 'new'",
    ),
    (
        "discard_new_per_subject",
        lambda c: c.discard_new_per_subject and (c.max_msgs_per_subject or 0) <= 0,
        "needs max_msgs_per_subject",
    ),
    (
        "discard",
        lambda c: c.discard == "new" and (c.allow_msg_counter or c.allow_msg_schedules),
        "cannot be 'new' with allow_msg_counter or allow_msg_schedules",
    ),
    (
        "retention",
        lambda c: c.allow_msg_counter and c.retention not in (None, "limits"),
        "must be 'limits' with allow_msg_counter",
    ),
    (
        "persist_mode",
        lambda c: (
            c.persist_mode == "async"
            and (c.storage == "memory" or (c.num_replicas or 0) > 1 or c.allow_atomic)
        ),
        "can only be 'async' with file storage, one replica and no allow_atomic",
    ),
    (
        "mirror_direct",
        lambda c: c.mirror_direct and not c.mirror,
        "needs a mirror",
    ),
    (
        "placement",
        lambda c: c.placement and c.placement.preferred,
        "of a stream cannot have a preferred server",
    ),
)

_CONSUMER_RULES: tuple[tuple[str, Callable[[ConsumerConfig], object], str], ...] = (
    (
        "durable_name",
        lambda c: c.name and c.durable_name and c.name != c.durable_name,
        "must be the same as name",
    ),
    (
        "opt_start_seq",
        lambda c: bool(c.opt_start_seq) != (c.deliver_policy == "by_start_sequence"),
        "goes with the deliver_policy 'by_start_sequence', and only with that",
    ),
    (
        "opt_start_time",
        lambda c: bool(c.opt_start_time) != (c.deliver_policy == "by_start_time"),
        "goes with the deliver_policy 'by_start_time', and only with that",
    ),
    (
        "deliver_policy",
        lambda c: (
            c.deliver_policy == "last_per_subject"
            and not (c.filter_subject or c.filter_subjects)
        ),
        "'last_per_subject' needs a filter_subject",
    ),
    (
        "filter_subjects",
        lambda c: c.filter_subject and c.filter_subjects,
        "cannot go with filter_subject",
    ),
    (
        "backoff",
        lambda c: 0 < (c.max_deliver or -1) < len(c.backoff or ()),
        "must not be longer than max_deliver",
    ),
    (
        "priority_policy",
        lambda c: _has_priorities(c) and not c.priority_groups,
        "needs priority_groups",
    ),
    (
        "priority_groups",
        lambda c: c.priority_groups and not _has_priorities(c),
        "need a priority_policy",
    ),
    (
        "priority_timeout",
        lambda c: c.priority_timeout and not _has_priorities(c),
        "needs a priority_policy",
    ),
    (
        "sample_freq",
        lambda c: c.sample_freq and not _is_number(c.sample_freq.removesuffix("%")),
        "must be a number, with or without %",
    ),
    (
        "max_expires",
        lambda c: 0 < _ns(c.max_expires) < _MILLISECOND,
        "must be 0.001 seconds or more",
    ),
)

_PUSH_RULES: tuple[tuple[str, Callable[[ConsumerConfig], object], str], ...] = (
    ("max_waiting", lambda c: c.max_waiting, "is for pull consumers only"),
    ("priority_policy", lambda c: _has_priorities(c), "is for pull consumers only"),
    (
        "idle_heartbeat",
        lambda c: 0 < _ns(c.idle_heartbeat) < 100 * _MILLISECOND,
        "must be 0.1 seconds or more",
    ),
    (
        "flow_control",
        # The server sets the heartbeat itself for acks by flow control.
        lambda c: (
            c.flow_control and not c.idle_heartbeat and c.ack_policy != "flow_control"
        ),
        "needs an idle_heartbeat",
    ),
    (
        "max_ack_pending",
        lambda c: (c.max_ack_pending or 0) > 0 and c.ack_policy in (None, "none"),
        "needs an ack_policy",
    ),
    (
        "ack_policy",
        lambda c: (
            c.ack_policy == "flow_control"
            and (c.ack_wait or c.backoff or (c.max_deliver or 0) > 0)
        ),
        "'flow_control' cannot go with ack_wait, backoff or max_deliver",
    ),
)

_PULL_RULES: tuple[tuple[str, Callable[[ConsumerConfig], object], str], ...] = (
    ("rate_limit_bps", lambda c: c.rate_limit_bps, "is for push consumers only"),
    ("idle_heartbeat", lambda c: c.idle_heartbeat, "is for push consumers only"),
    ("flow_control", lambda c: c.flow_control, "is for push consumers only"),
    ("deliver_group", lambda c: c.deliver_group, "is for push consumers only"),
    (
        "ack_policy",
        lambda c: c.ack_policy == "flow_control",
        "'flow_control' is for push consumers only",
    ),
)


def stream_name(config: StreamConfig) -> str:
    """The stream that is meant; raises an InvalidArgumentError without a name."""
    if config.name is None:
        raise InvalidArgumentError("name must be given: a stream has one")
    return check_name(config.name, "name")


def check_stream(config: StreamConfig) -> None:
    """Raises an InvalidArgumentError for the first field that cannot be."""
    stream_name(config)
    _check_common(config)
    _check_least(config.max_age, "max_age", 100 * _MILLISECOND)
    _check_least(config.duplicate_window, "duplicate_window", 100 * _MILLISECOND)
    _check_least(
        config.subject_delete_marker_ttl,
        "subject_delete_marker_ttl",
        1000 * _MILLISECOND,
    )
    for name, *rivals in _STREAM_RIVALS:
        for rival in rivals:
            if getattr(config, name) and getattr(config, rival):
                raise InvalidArgumentError(f"{name} cannot go with {rival}")
    for name, is_wrong, why in _STREAM_RULES:
        if is_wrong(config):
            raise InvalidArgumentError(f"{name} {why}")
    if config.consumer_limits is not None:
        _check_numbers(config.consumer_limits, "consumer_limits.")
    _check_stored_subjects(config)
    sources = config.sources or []
    for at, source in enumerate(sources):
        _check_source(source, f"sources[{at}]")
    if any(one.to_api() == other.to_api() for one, other in combinations(sources, 2)):
        raise InvalidArgumentError("sources must differ from each other")
    if config.mirror is not None:
        _check_source(config.mirror, "mirror")
    if config.subject_transform is not None and config.subject_transform.src:
        check_filter(config.subject_transform.src, "subject_transform.src")
    _check_republish(config)


def check_consumer(config: ConsumerConfig) -> None:
    """Raises an InvalidArgumentError for the first field that cannot be."""
    for field in ("name", "durable_name"):
        name = getattr(config, field)
        if name is not None:
            check_name(name, field)
    _check_common(config)
    for rule, is_wrong, why in (
        *_CONSUMER_RULES,
        *(_PUSH_RULES if config.deliver_subject else _PULL_RULES),
    ):
        if is_wrong(config):
            raise InvalidArgumentError(f"{rule} {why}")
    if config.deliver_subject:
        _check_literal(config.deliver_subject, "deliver_subject")
    if config.deliver_group:
        check_token(config.deliver_group, "deliver_group")
    if config.filter_subject:
        check_filter(config.filter_subject, "filter_subject")
    _check_filters(config.filter_subjects or (), "filter_subjects")
    for group in config.priority_groups or ():
        check_group(group, "priority_groups")


def check_change(
    config: StreamConfig | ConsumerConfig,
    current: StreamConfig | ConsumerConfig | None,
) -> None:
    """Raises for what cannot be sent to make something, or to change the current one.

    What a server has already accepted against the rules here is left to that server.
    Keys of the metadata that are the server's may only be those that servers write: a
    configuration that was read has them.
    """
    if current is None or _is_known_good(current):
        config.validate()
    written = set(_WRITTEN_METADATA)
    if current is not None:
        written.update(current.metadata or ())
    for key in config.metadata or ():
        if key.startswith(RESERVED_METADATA) and key not in written:
            raise InvalidArgumentError(
                f"metadata must not have {key!r}: keys with {RESERVED_METADATA} are "
                "the server's"
            )


def _is_known_good(config: StreamConfig | ConsumerConfig) -> bool:
    try:
        config.validate()
    except InvalidArgumentError:
        return False
    return True


def check_domain(source: StreamSource) -> None:
    """Raises unless at most one of `domain` and `external` says where a stream is."""
    if source.domain is None:
        return
    if source.external is not None:
        raise InvalidArgumentError("domain cannot go with external")
    check_name(source.domain, "domain")


def _check_numbers(
    config: StreamConfig | ConsumerConfig | StreamSource | ConsumerLimits,
    prefix: str = "",
) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int) and not isinstance(value, bool):
            least, most = _NUMBERS.get(field.name, _USUAL_NUMBERS)
            integer(value, prefix + field.name, least=least, most=most)


def _check_common(config: StreamConfig | ConsumerConfig) -> None:
    _check_numbers(config)
    check_size(config.description or "", "description", MAX_DESCRIPTION_BYTES)
    check_metadata(config.metadata or {}, "metadata")
    if not 0 <= (config.num_replicas or 0) <= _MOST_REPLICAS:
        raise InvalidArgumentError(
            f"num_replicas must be 0 to {_MOST_REPLICAS}, not {config.num_replicas}"
        )


def _check_stored_subjects(config: StreamConfig) -> None:
    subjects = config.subjects or []
    for subject in subjects:
        check_filter(subject, "subjects")
        if subject == ">" and (config.num_replicas or 1) > 1:
            raise InvalidArgumentError("subjects can be '>' only with one replica")
        if not config.no_ack and _is_of_servers(subject):
            raise InvalidArgumentError(
                f"subjects of the servers are stored only with no_ack: {subject!r}"
            )
    for one, other in combinations(subjects, 2):
        if subjects_overlap(one, other):
            raise InvalidArgumentError(f"subjects overlap: {one!r} and {other!r}")


def _is_of_servers(subject: str) -> bool:
    """Whether an ack, itself published, could be stored by the stream that sent it."""
    if subject_covers("$JS.EVENT.>", subject) or subject_covers(
        "$SYS.ACCOUNT.>", subject
    ):
        return False
    spaces = ("$JS.>", "$JSC.>", "$NRG.>", "$SYS.>")
    return any(subjects_overlap(subject, space) for space in spaces)


def _check_source(source: StreamSource, name: str) -> None:
    check_domain(source)
    if source.name is None:
        raise InvalidArgumentError(f"{name} must have a name")
    check_name(source.name, f"{name}.name")
    _check_numbers(source, f"{name}.")
    transforms = source.subject_transforms or []
    if source.filter_subject:
        check_filter(source.filter_subject, f"{name}.filter_subject")
        if transforms:
            raise InvalidArgumentError(
                f"{name}.filter_subject cannot go with subject_transforms"
            )
    _check_filters(
        [transform.src for transform in transforms if transform.src],
        f"{name}.subject_transforms",
    )
    if source.external is not None and source.external.api:
        _check_literal(source.external.api, f"{name}.external.api")
    if source.consumer is None:
        return
    if source.opt_start_seq or source.opt_start_time or source.filter_subject:
        raise InvalidArgumentError(
            f"{name}.consumer cannot go with a start or a filter: it has its own"
        )
    check_name(source.consumer.name or "", f"{name}.consumer.name")
    _check_literal(
        source.consumer.deliver_subject or "", f"{name}.consumer.deliver_subject"
    )


def _check_republish(config: StreamConfig) -> None:
    republish = config.republish
    if republish is None:
        return
    if republish.src:
        check_filter(republish.src, "republish.src")
    if not republish.dest:
        raise InvalidArgumentError("republish.dest must be given")
    # With a transform, `>` means the subjects that the transform makes.
    if config.subject_transform and republish.dest == ">":
        return
    subjects = config.subjects
    if not subjects:
        # A stream that neither gets subjects nor takes from another has its name.
        subjects = [] if config.mirror or config.sources else [str(config.name)]
    for subject in subjects:
        if subjects_overlap(republish.dest, subject):
            raise InvalidArgumentError(
                f"republish.dest overlaps the stream's own subject {subject!r}"
            )


def _check_filters(filters: Sequence[str], name: str) -> None:
    for subject in filters:
        check_filter(subject, name)
    for one, other in combinations(filters, 2):
        if subject_covers(one, other) or subject_covers(other, one):
            raise InvalidArgumentError(f"{name} overlap: {one!r} and {other!r}")


def _check_literal(subject: str, name: str) -> None:
    check_filter(subject, name)
    if "*" in subject or ">" in subject:
        raise InvalidArgumentError(f"{name} must not have wildcards: {subject!r}")


def _check_least(value: float | timedelta | None, name: str, least_ns: int) -> None:
    if 0 < _ns(value) < least_ns:
        raise InvalidArgumentError(
            f"{name} must be {least_ns / 1e9:g} seconds or more, or 0"
        )


def _ns(value: float | timedelta | None) -> int:
    return 0 if value is None else duration_ns(value, "it")


def _has_priorities(config: ConsumerConfig) -> bool:
    return config.priority_policy not in (None, "none")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
