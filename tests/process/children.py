"""Child processes that run a small script against the tests' server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsclient.server import Server

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds until a child counts as hung
DEV = ("-X", "dev")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended, what it wrote, and how long its end took."""

    code: int
    out: str
    err: str
    seconds: float  # from the line "end" on its output, or from its start

    def check(self) -> Ended:
        """The child ended well and had nothing to complain about."""
        assert (self.code, self.err) == (0, ""), f"{self.out}\n{self.err}"
        return self

    def json(self) -> Any:
        """The last line of the output, which is JSON."""
        return json.loads(self.check().out.splitlines()[-1])


def start(
    script: str, *arguments: str, flags: tuple[str, ...] = DEV
) -> subprocess.Popen[str]:
    """A Python process that runs the script with these arguments."""
    return subprocess.Popen(
        [sys.executable, *flags, "-c", textwrap.dedent(script), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str], timeout: float = PATIENCE) -> Ended:
    """Waits for the child's end; one that hangs is killed and fails the test."""
    begun = time.monotonic()
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        raise AssertionError(f"the child hangs:\n{out}\n{err}") from None
    return Ended(child.returncode, out, err, time.monotonic() - begun)


def run(
    script: str,
    *arguments: str,
    flags: tuple[str, ...] = DEV,
    timeout: float = PATIENCE,
) -> Ended:
    """Runs the script in a child to its end."""
    return finish(start(script, *arguments, flags=flags), timeout)


def told(child: subprocess.Popen[str], line: str) -> None:
    """Waits until the child has printed that line."""
    assert child.stdout is not None
    said = child.stdout.readline().strip()
    if said != line:
        child.kill()
        rest, err = child.communicate()
        raise AssertionError(f"{said!r} instead of {line!r}\n{rest}\n{err}")


def connections(server: Server) -> list[dict[str, Any]]:
    """What the server knows of its clients, with their subscriptions."""
    with urllib.request.urlopen(
        f"{server.monitor_url}/connz?subs=1", timeout=5
    ) as page:
        found: list[dict[str, Any]] = json.load(page)["connections"]
    return found


def connection(server: Server, name: str) -> dict[str, Any] | None:
    """What the server knows of the client with that name."""
    for one in connections(server):
        if one.get("name") == name:
            return one
    return None
