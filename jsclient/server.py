"""A local nats-server for demos, tests and notebooks.

    with jsclient.server.run(jetstream=True) as server:
        with jsclient.connect(server.url) as nc:
            ...

`run` returns when the server accepts connections. It ends with the `with` block, with
`stop()`, or when the interpreter exits; a Python process that is killed leaves it
behind. It listens on the loopback address unless told otherwise, and its own files,
which may hold passwords, are readable by the user alone. This is no way to operate a
server in production: nothing watches or restarts it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, overload

from jsclient._server_config import (
    LOOPBACK,
    PORTS_PER_NODE,
    TLS,
    Accounts,
    Node,
    Settings,
    StrPath,
    Users,
    config_text,
    nodes,
)
from jsclient._server_process import (
    PortTakenError,
    Process,
    find_binary,
    free_ports,
    http_get,
)
from jsclient.errors import (
    Error,
    InvalidArgumentError,
    ServerStartError,
    TimeoutError,
)

__all__ = ["TLS", "Cluster", "Server", "find_binary", "run"]

_TLSOption = TLS | Mapping[str, Any]  # the constructor of TLS checks the values
_STARTS = 5  # a free port can be lost to another process before the server has it


class Server:
    """A running nats-server; made by `run`, ended by `stop` or as a context manager."""

    def __init__(self, binary: str, node: Node, config: str) -> None:
        self._binary = binary
        self._node = node
        self._config = config
        self._process = Process(binary)
        self.name = node.name
        self.host = node.settings.host
        self.port = node.port
        self.store_dir = os.path.abspath(
            node.store_dir or self._process.directory / "store"
        )
        self._finalizer = weakref.finalize(self, _abandoned, self._process, self.url)

    @property
    def url(self) -> str:
        """The address for `connect`, without credentials."""
        tls = self._node.settings.tls
        scheme = "nats" if tls is None or tls.allow_non_tls else "tls"
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """The address of the HTTP monitoring pages, such as /varz and /jsz."""
        return f"http://{LOOPBACK}:{self._node.monitor_port}"

    @property
    def pid(self) -> int | None:
        """The process id, None while the server is down."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives; a paused one does."""
        return self._process.is_running

    @cached_property
    def version(self) -> str:
        """The version of the program, such as "2.11.4"."""
        answer = subprocess.run(
            [self._binary, "--version"], capture_output=True, text=True, check=True
        )
        return answer.stdout.split()[-1].removeprefix("v")

    def log(self) -> str:
        """What the server wrote since the first start (the last mebibyte of it)."""
        return self._process.log()

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would; see `restart`."""
        self._process.kill()

    def stop(self, timeout: float = 5.0) -> None:
        """End the server in good order and remove its files. May be called again.

        A server that has not ended after `timeout` seconds is killed. A `store_dir`
        that the caller named is kept.
        """
        if not self._finalizer.alive or not self._process.is_owned:
            return
        try:
            self._process.terminate(timeout)
        finally:
            self._process.discard()
            self._finalizer.detach()

    def restart(self, keep_store: bool = True, *, timeout: float = 10.0) -> None:
        """End the server if it runs and start it again on the same ports.

        With `keep_store=False` it starts with an empty JetStream. A member of a cluster
        is not waited for until it agrees with the others, who may be down as well:
        see `Cluster.wait_healthy`.
        """
        deadline = time.monotonic() + timeout
        if not self._finalizer.alive:
            raise Error("the server was stopped and its files are gone; run another")
        if not self._process.is_owned:
            raise Error("the server belongs to the process that started it")
        self._process.terminate(timeout)
        if not keep_store:
            # The server keeps its data in this folder of the store directory; other
            # things there are not ours to remove.
            shutil.rmtree(os.path.join(self.store_dir, "jetstream"), ignore_errors=True)
        self._start()
        self._wait_ready(deadline)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): links stay open and nobody answers."""
        self._process.pause()

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._process.signal("SIGCONT", "resume")

    def lame_duck(self) -> None:
        """Make the server send its clients away and then end by itself (SIGUSR2).

        Returns at once; `wait` tells when it has ended. The clients are told at once,
        and disconnected one by one over 30 seconds after a grace period of one second.
        """
        self._process.signal("SIGUSR2", "enter lame duck mode")

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended by itself; its exit code.

        Raises TimeoutError when it still runs after `timeout` seconds.
        """
        return self._process.wait(timeout)

    def reload(self, config: str | None = None, *, timeout: float = 5.0) -> None:
        """Make the server read its configuration again (SIGHUP).

        `config` replaces the text that `run` was given as `config`; None keeps it,
        which is enough when certificates have changed. Raises ServerStartError with
        the server's reason when it refuses; it then goes on as before.
        """
        deadline = time.monotonic() + timeout
        text = self._config if config is None else config
        self._process.write_config(config_text(self._node, self.store_dir), text)
        refusal = self._process.reload(deadline)
        if refusal is not None:
            raise ServerStartError(f"nats-server did not reload: {refusal}")
        self._config = text

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.is_running else "not running"
        return f"<Server {self.url} {state}>"

    def _start(self) -> None:
        text = config_text(self._node, self.store_dir)
        self._process.start(text, self._config)

    def _wait_ready(self, deadline: float) -> None:
        # Alone, a server is ready when JetStream has recovered; in a cluster that can
        # depend on members that are down.
        only = "" if self._node.cluster is None else "?js-server-only=true"
        self._process.wait_ready(lambda: self._is_healthy(only, deadline), deadline)

    def _wait_joined(self, others: int, deadline: float) -> None:
        def has_joined() -> bool:
            return self._is_healthy("", deadline) and self._routes(deadline) >= others

        self._process.wait_ready(has_joined, deadline)

    def _is_healthy(self, query: str, deadline: float) -> bool:
        try:
            answer = http_get(self._node.monitor_port, f"/healthz{query}", deadline)
        except OSError:
            return False
        return answer[0] == 200

    def _routes(self, deadline: float) -> int:
        """How many other servers this one has a route to."""
        try:
            body = http_get(self._node.monitor_port, "/routez", deadline)[1]
        except OSError:
            return 0
        return len({route["remote_id"] for route in json.loads(body)["routes"] or ()})


def _abandoned(process: Process, url: str) -> None:
    """End the server of a Server object that is gone without `stop`."""
    if process.is_owned:
        process.discard()
        warnings.warn(f"the server {url} was never stopped", ResourceWarning, 2)


class Cluster:
    """Some servers that know each other; each can be killed and restarted alone."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = tuple(servers)

    @property
    def urls(self) -> list[str]:
        """The addresses of all members, running or not."""
        return [server.url for server in self.servers]

    @property
    def url(self) -> str:
        """The addresses of all members in one text, with commas between them."""
        return ",".join(self.urls)

    def wait_healthy(self, timeout: float = 10.0) -> None:
        """Wait until the running members see each other and JetStream has a leader.

        Raises TimeoutError when that does not come about, as when too few run.
        """
        deadline = time.monotonic() + timeout
        running = [server for server in self.servers if server.is_running]
        try:
            for server in running:
                server._wait_joined(len(running) - 1, deadline)
        except ServerStartError as error:
            raise TimeoutError("the cluster did not become healthy") from error

    def stop(self, timeout: float = 5.0) -> None:
        """Stop all members and remove their files. May be called again."""
        deadline = time.monotonic() + timeout
        for server in self.servers:
            server.stop(max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Cluster {self.url}>"


@overload
def run(
    *,
    cluster: None = None,
    jetstream: bool | Mapping[str, object] = False,
    host: str = LOOPBACK,
    port: int | None = None,
    store_dir: StrPath | None = None,
    config: str = "",
    users: Users | None = None,
    token: str | None = None,
    accounts: Accounts | None = None,
    tls: _TLSOption | None = None,
    max_payload: int | None = None,
    name: str | None = None,
    binary: StrPath | None = None,
    timeout: float = 10.0,
) -> Server: ...


@overload
def run(
    *,
    cluster: int,
    jetstream: bool | Mapping[str, object] = False,
    host: str = LOOPBACK,
    store_dir: StrPath | None = None,
    config: str = "",
    users: Users | None = None,
    token: str | None = None,
    accounts: Accounts | None = None,
    tls: _TLSOption | None = None,
    max_payload: int | None = None,
    name: str | None = None,
    binary: StrPath | None = None,
    timeout: float = 10.0,
) -> Cluster: ...


def run(
    *,
    cluster: int | None = None,
    jetstream: bool | Mapping[str, object] = False,
    host: str = LOOPBACK,
    port: int | None = None,
    store_dir: StrPath | None = None,
    config: str = "",
    users: Users | None = None,
    token: str | None = None,
    accounts: Accounts | None = None,
    tls: _TLSOption | None = None,
    max_payload: int | None = None,
    name: str | None = None,
    binary: StrPath | None = None,
    timeout: float = 10.0,
) -> Server | Cluster:
    """Start a nats-server, or a cluster of them, and return when it is ready.

    cluster: how many servers to start as a cluster, named n0, n1, …; the result is then
        a Cluster, which is ready when all see each other and JetStream has a leader.
    jetstream: True, or a mapping with entries for the `jetstream` block.
    host, port: where clients connect; port None or 0 chooses a free one.
    store_dir: where JetStream keeps its data (each member in a folder of its own). By
        default a temporary folder, which is removed at the end.
    config: text in the server's configuration language for everything else. A key in it
        replaces the whole block or value of that name which the other options make.
    users: passwords by user name, or entries for `authorization { users: [...] }`.
    token: what clients must show instead of a user name.
    accounts: the content of the `accounts` block, as text or as a mapping.
    tls: a TLS, or a mapping with its fields.
    max_payload: the largest message in bytes.
    name: the server's name, or the cluster's.
    binary: the program, if not the one that `find_binary` finds.
    timeout: how many seconds the start may take.

    Raises ServerNotFoundError without a program, and ServerStartError with the end of
    the server's log when it does not become ready.
    """
    if cluster is not None and (cluster < 2 or port):
        raise InvalidArgumentError(
            "a cluster has at least two servers and chooses its own ports"
        )
    deadline = time.monotonic() + timeout
    program = find_binary(binary)
    settings = Settings(
        host=host,
        jetstream=jetstream,
        users=users,
        token=token,
        accounts=accounts,
        tls=tls if tls is None or isinstance(tls, TLS) else TLS(**tls),
        max_payload=max_payload,
    )
    starts = 1
    while True:
        ports = free_ports([host, *[LOOPBACK] * (PORTS_PER_NODE - 1)] * (cluster or 1))
        ports[0] = port or ports[0]
        members = nodes(settings, ports, size=cluster, name=name, store_dir=store_dir)
        servers = [Server(program, node, config) for node in members]
        try:
            _start_all(servers, deadline)
        except PortTakenError:
            if starts == _STARTS:
                raise
            starts += 1
        else:
            return servers[0] if cluster is None else Cluster(servers)


def _start_all(servers: list[Server], deadline: float) -> None:
    """Start the servers and wait until all are ready; on failure none is left."""
    with ExitStack() as undo:
        for server in servers:
            undo.callback(server.stop, 0.0)
        for server in servers:
            server._start()
        for server in servers:
            server._wait_ready(deadline)
        if len(servers) > 1:
            for server in servers:
                server._wait_joined(len(servers) - 1, deadline)
        undo.pop_all()
