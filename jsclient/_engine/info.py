"""What a server says of itself in INFO."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class ServerInfo(NamedTuple):
    """The INFO of the connected server; `raw` has every field as it came."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    proto: int = 0
    host: str = ""
    port: int = 0
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    tls_verify: bool = False
    max_payload: int = 1024 * 1024
    jetstream: bool = False
    client_id: int = 0
    client_ip: str = ""
    nonce: str = ""
    cluster: str = ""
    domain: str = ""
    connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    api_lvl: int = 0
    # JSON of any shape, by the server's grace.
    raw: Mapping[str, Any] = MappingProxyType({})

    @property
    def version_tuple(self) -> tuple[int, int, int]:
        """The version for comparisons; a suffix after `-` does not count."""
        numbers = [0, 0, 0]
        for place, part in enumerate(self.version.split("-")[0].split(".")[:3]):
            if not part.isdecimal() or len(part) > 9:
                break
            numbers[place] = int(part)
        return numbers[0], numbers[1], numbers[2]

    @property
    def max_message(self) -> int:
        """The size of the largest message that may come, 0 if there is no telling.

        It is not `max_payload`: that of other users may be larger, and answers that the
        server makes itself, as JetStream's, are bounded by what it holds for a client.
        """
        if self.max_payload <= 0:
            return 0
        return max(min(2 * self.max_payload, _BOUND - 1), _HELD_FOR_A_CLIENT)

    def __repr__(self) -> str:
        """The facts without the nonce, which is what we sign, and without `raw`."""
        shown = (
            f"{name}={value!r}"
            for name, value in zip(self._fields, self, strict=True)
            if name not in ("nonce", "raw")
        )
        return f"ServerInfo({', '.join(shown)})"


def parse_info(text: bytes) -> ServerInfo:
    """The INFO that the text spells; ValueError if it is none.

    Unknown fields are only kept in `raw`; missing ones have their defaults.
    """
    import json  # paid by the first link, not by the import of the package

    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"INFO is not JSON: {type(error).__name__}") from None
    if not isinstance(raw, dict):
        raise ValueError("INFO is not a JSON object")
    values: dict[str, Any] = {}  # what raw has, as ServerInfo's arguments
    for name, kind in _KINDS.items():
        if name not in raw or raw[name] is None:
            continue
        value = raw[name]
        if type(value) is not kind:
            raise ValueError(f"INFO has a {type(value).__name__} as {name!r}")
        if isinstance(value, int) and not -_BOUND <= value < _BOUNDS.get(name, _BOUND):
            raise ValueError(f"INFO has a number out of range as {name!r}")
        values[name] = value
    urls = raw.get("connect_urls")
    if isinstance(urls, list):
        values["connect_urls"] = tuple(urls)
    return ServerInfo(raw=raw, **values)


# The server's own default, max_pending.
_HELD_FOR_A_CLIENT = 64 * 1024 * 1024

# Numbers are 64 bits wide in the server; only the client's is unsigned there.
_BOUND = 1 << 63
_BOUNDS = {"client_id": 1 << 64}

_KINDS: dict[str, type] = {
    "server_id": str,
    "server_name": str,
    "version": str,
    "proto": int,
    "host": str,
    "port": int,
    "headers": bool,
    "auth_required": bool,
    "tls_required": bool,
    "tls_available": bool,
    "tls_verify": bool,
    "max_payload": int,
    "jetstream": bool,
    "client_id": int,
    "client_ip": str,
    "nonce": str,
    "cluster": str,
    "domain": str,
    "ldm": bool,
    "api_lvl": int,
}
