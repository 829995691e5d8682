"""The configuration text of a local nats-server.

Settings are what the user asked for, a Node adds where one process listens, and
`config_text` makes the file. One renderer writes all values, so that a quote in a
password or a backslash in a path cannot change the meaning of the file. What
nats-server thinks of a value is not checked here: its own message at the start is
better.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LOOPBACK = "127.0.0.1"

StrPath = str | os.PathLike[str]
Users = Mapping[str, str] | Sequence[Mapping[str, object]]
Accounts = str | Mapping[str, object]

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """The `tls` block of a server; paths are PEM files, durations seconds.

    `handshake_first` is True, False, or how long the server waits for the client's
    first TLS byte before it falls back to sending INFO in clear. `verify` asks clients
    for a certificate of `ca_file`, `verify_and_map` also takes the user from it.
    `allow_non_tls` offers TLS without demanding it.
    """

    cert_file: StrPath
    key_file: StrPath
    ca_file: StrPath | None = None
    verify: bool = False
    verify_and_map: bool = False
    handshake_first: bool | float = False
    timeout: float | None = None
    allow_non_tls: bool = False

    def block(self) -> dict[str, object]:
        """The content of the `tls` block."""
        block: dict[str, object] = {
            "cert_file": os.path.abspath(self.cert_file),
            "key_file": os.path.abspath(self.key_file),
        }
        if self.ca_file is not None:
            block["ca_file"] = os.path.abspath(self.ca_file)
        if self.verify:
            block["verify"] = True
        if self.verify_and_map:
            block["verify_and_map"] = True
        if isinstance(self.handshake_first, bool):
            if self.handshake_first:
                block["handshake_first"] = True
        else:
            block["handshake_first"] = f"{round(self.handshake_first * 1000)}ms"
        if self.timeout is not None:
            block["timeout"] = self.timeout
        return block


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user wants of a server, the same for each member of a cluster."""

    host: str = LOOPBACK
    jetstream: bool | Mapping[str, object] = False
    users: Users | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    accounts: Accounts | None = field(default=None, repr=False)
    tls: TLS | None = None
    max_payload: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One server: where it listens and keeps its data, and its cluster if any."""

    settings: Settings
    port: int
    monitor_port: int
    name: str | None = None
    store_dir: StrPath | None = None  # None: a folder among the server's own files
    cluster: str | None = None
    routes: tuple[int, ...] = ()  # the route ports of the whole cluster, its own first


PORTS_PER_NODE = 3


def nodes(
    settings: Settings,
    ports: Sequence[int],
    *,
    size: int | None,
    name: str | None,
    store_dir: StrPath | None,
) -> list[Node]:
    """The members of a cluster of that size, or with None a single server."""
    clients, monitors, routes = (ports[i::PORTS_PER_NODE] for i in range(3))
    if size is None:
        alone = Node(
            settings=settings,
            port=clients[0],
            monitor_port=monitors[0],
            name=name,
            store_dir=store_dir,
        )
        return [alone]
    return [
        Node(
            settings=settings,
            port=clients[i],
            monitor_port=monitors[i],
            name=f"n{i}",
            store_dir=store_dir and os.path.join(store_dir, f"n{i}"),
            cluster=name or "jsclient",
            routes=(routes[i], *routes[:i], *routes[i + 1 :]),
        )
        for i in range(size)
    ]


def render(value: object) -> str:
    """A value in the server's configuration language."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        items = (f"{render(str(key))}: {render(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (str, os.PathLike)):
        return f'"{"".join(map(_escaped, os.fspath(value)))}"'
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(render, value)) + "]"
    raise TypeError(f"{type(value).__name__} cannot stand in a server configuration")


def _escaped(character: str) -> str:
    """The character as it stands inside double quotes."""
    if character < " ":
        return _ESCAPES.get(character, f"\\x{ord(character):02x}")
    return _ESCAPES.get(character, character)


def config_text(node: Node, store_dir: str) -> str:
    """The configuration file of one server, without the user's own text."""
    settings = node.settings
    config: dict[str, object] = {
        "host": settings.host,
        "port": node.port,
        "http": f"{LOOPBACK}:{node.monitor_port}",
        # The least that the server accepts: a demo or a test does not want to wait.
        "lame_duck_duration": "30s",
        "lame_duck_grace_period": "1s",
    }
    if node.name is not None:
        config["server_name"] = node.name
    if settings.max_payload is not None:
        config["max_payload"] = settings.max_payload
    if settings.jetstream is not False:
        limits = {} if settings.jetstream is True else settings.jetstream
        config["jetstream"] = {**limits, "store_dir": store_dir}
    if settings.tls is not None:
        config["tls"] = settings.tls.block()
        if settings.tls.allow_non_tls:
            config["allow_non_tls"] = True
    authorization = _authorization(settings)
    if authorization:
        config["authorization"] = authorization
    if isinstance(settings.accounts, Mapping):
        config["accounts"] = settings.accounts
    if node.cluster is not None:
        config["cluster"] = {
            "name": node.cluster,
            "listen": f"{LOOPBACK}:{node.routes[0]}",
            "routes": [f"nats://{LOOPBACK}:{port}" for port in node.routes[1:]],
        }
    text = "".join(f"{key}: {render(value)}\n" for key, value in config.items())
    if isinstance(settings.accounts, str):
        text += f"accounts {{\n{settings.accounts}\n}}\n"
    return text


def _authorization(settings: Settings) -> dict[str, object]:
    """The content of the `authorization` block, empty when nobody has to log in."""
    block: dict[str, object] = {}
    if isinstance(settings.users, Mapping):
        block["users"] = [
            {"user": user, "password": password}
            for user, password in settings.users.items()
        ]
    elif settings.users is not None:
        block["users"] = list(settings.users)
    if settings.token is not None:
        block["token"] = settings.token
    return block
