"""Which release of the server each field of a configuration needs.

An older server ignores a field that it does not know, or refuses the request, by its
settings; what was asked for does not happen either way. The table says so beforehand.
Fields that 2.9.0 knows are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Version = tuple[int, int, int]

# "field" or "field=value" to release; inner fields have their path.
_SINCE: dict[str, dict[str, Version]] = {
    "StreamConfig": {
        "discard_new_per_subject": (2, 9, 1),
        "compression": (2, 10, 0),
        "first_seq": (2, 10, 0),
        "subject_transform": (2, 10, 0),
        "consumer_limits": (2, 10, 0),
        "metadata": (2, 10, 0),
        "mirror.subject_transforms": (2, 10, 0),
        "sources.subject_transforms": (2, 10, 0),
        "placement.preferred": (2, 11, 0),
        "allow_msg_ttl": (2, 11, 0),
        "subject_delete_marker_ttl": (2, 11, 0),
        "allow_msg_counter": (2, 12, 0),
        "allow_atomic": (2, 12, 0),
        "allow_msg_schedules": (2, 12, 0),
        "persist_mode": (2, 12, 0),
        "allow_batched": (2, 14, 0),
        "mirror.consumer": (2, 14, 0),
        "sources.consumer": (2, 14, 0),
    },
    "ConsumerConfig": {
        "filter_subjects": (2, 10, 0),
        "metadata": (2, 10, 0),
        "pause_until": (2, 11, 0),
        "priority_groups": (2, 11, 0),
        "priority_policy": (2, 11, 0),
        "priority_policy=prioritized": (2, 12, 0),
        "priority_timeout": (2, 11, 0),
        "ack_policy=flow_control": (2, 14, 0),
    },
}

# The first release of each level of the API.
_LEVELS: tuple[tuple[Version, int], ...] = (
    ((2, 14, 0), 4),
    ((2, 12, 0), 2),
    ((2, 11, 0), 1),
)

# Values that ask for nothing: a server that does not know the field does just that.
_IDLE = ("none", "default")


def needs(kind: str, wire: Mapping[str, Any]) -> list[tuple[str, Version]]:
    """The fields of a configuration's JSON that ask for a release, and which one."""
    found: dict[str, Version] = {}
    _collect(_SINCE[kind], "", wire, found)
    return list(found.items())


def api_level(wanted: Iterable[tuple[str, Version]]) -> int:
    """The level of the API that a server needs to know all of these; 0 is any."""
    newest = max((release for _, release in wanted), default=(0, 0, 0))
    return next((level for release, level in _LEVELS if newest >= release), 0)


def _collect(
    since: dict[str, Version],
    path: str,
    wire: Mapping[str, Any],
    found: dict[str, Version],
) -> None:
    for name, value in wire.items():
        place = path + name
        if not value or value in _IDLE:
            continue
        release = since.get(place)
        if isinstance(value, str):
            release = since.get(f"{place}={value}", release)
        if release is not None:
            found[place] = release
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                _collect(since, f"{place}.", inner, found)
