"""The options of a connection, checked once, when `connect` is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

MIB = 1024 * 1024


class Options(NamedTuple):
    """What `connect` was asked for, but for the servers and who we are."""

    name: str | None
    tls: ssl.SSLContext | bool
    tls_first: bool
    tls_hostname: str | None
    connect_timeout: float
    allow_reconnect: bool
    reconnect_buffer: int
    ping_interval: float
    max_pings_out: int
    echo: bool
    inbox_prefix: str
    write_buffer: int
    reconnect_on_lame_duck: bool
