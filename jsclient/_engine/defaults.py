"""Whether two configurations mean the same, given what servers make of defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .values import RESERVED_METADATA

# A field of this value means the same as an absent one.
_DEFAULTS: dict[str, Any] = {
    "retention": "limits",
    "discard": "old",
    "storage": "file",
    "compression": "none",
    "persist_mode": "default",
    "deliver_policy": "all",
    "ack_policy": "none",
    "replay_policy": "instant",
    "priority_policy": "none",
    "src": ">",
}
# 0 and every negative number mean no limit, which servers write as -1.
_LIMITS = frozenset(
    {
        *("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject"),
        *("max_msg_size", "max_deliver"),
    }
)
# Of these, nothing means that the server decides.
_FILLED = frozenset(
    {
        *("subjects", "num_replicas", "duplicate_window", "mirror_direct", "ack_wait"),
        *("max_waiting", "max_ack_pending", "max_batch", "inactive_threshold"),
        *("priority_timeout", "name"),
    }
)
# Lists of which the order means nothing.
_UNORDERED = frozenset({"subjects", "filter_subjects", "tags"})


def different(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """The fields of `wanted`, as JSON, that `actual` has otherwise."""
    left, right = _meaning(wanted), _meaning(actual)
    if "backoff" in left:
        left.pop("ack_wait", None)  # the server puts the first backoff in its place
    return [
        name
        for name in wanted
        if left.get(name) != right.get(name)
        and not (name in _FILLED and name not in left)
    ]


def _meaning(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that ask for something, each in one form."""
    found = {name: _value_of(name, value) for name, value in wire.items()}
    return {
        name: value
        for name, value in found.items()
        if value and value != _DEFAULTS.get(name)
    }


def _value_of(name: str, value: Any) -> Any:
    if name in _LIMITS and isinstance(value, int):
        return max(value, 0)
    if name == "metadata" and isinstance(value, dict):
        return {
            key: text
            for key, text in value.items()
            if not key.startswith(RESERVED_METADATA)
        }
    if isinstance(value, dict):
        return _meaning(value)
    if isinstance(value, list):
        entries = [_meaning(part) if isinstance(part, dict) else part for part in value]
        return sorted(entries) if name in _UNORDERED else entries
    return value
