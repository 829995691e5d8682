"""The options of `JetStream.subscribe` and `pull_subscribe`, for checkers and editors.

What a consumer is configured by may be given directly, as `ack_wait=5`, or as `config`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from ._core import Msg
from ._engine.arguments import Seconds
from .config import ConsumerConfig
from .config_fields import ConsumerFields


class SubscribeOptions(ConsumerFields, total=False):
    """What both kinds of subscriptions have."""

    stream: str | None
    consumer: str | None
    config: ConsumerConfig | None
    delete_on_close: bool | None
    timeout: Seconds | None


class ReadingOptions(TypedDict, total=False):
    """How the messages of a push consumer are read."""

    callback: Callable[[Msg], object] | None
    heartbeat_alarm: float
    max_pending_messages: int | None
    max_pending_bytes: int | None


class PushOptions(SubscribeOptions, ReadingOptions, total=False):
    """What a push subscription has."""

    durable: str | None
    queue: str | None
    raw_status: bool
    max_resets: int | None
