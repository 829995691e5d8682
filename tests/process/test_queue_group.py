"""Members of a queue group in processes of their own, one of which is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jsclient
from jsclient import server
from tests.process.children import PATIENCE, finish, start, told

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

TOTAL = 3000
MEMBER = """
    import sys, jsclient

    with jsclient.connect(sys.argv[1]) as nc, open(sys.argv[2], "ab", 0) as diary:
        sub = nc.jetstream().subscribe("work.*", queue="crew", ack_wait=1.0)
        print("ready", flush=True)
        while True:
            try:
                msg = sub.next(timeout=4.0)
            except jsclient.TimeoutError:
                break
            diary.write(msg.data + b"\\n")   # the work is done
            msg.ack_sync()
"""


@pytest.fixture
def url() -> Iterator[str]:
    """A server with a stream for the crew."""
    with server.run(jetstream=True) as running, jsclient.connect(running.url) as nc:
        nc.jetstream().create_stream(name="WORK", subjects=["work.*"], storage="memory")
        yield running.url


def test_nothing_is_lost_when_one_of_three_members_is_killed(
    url: str, tmp_path: Path
) -> None:
    diaries = [tmp_path / f"member-{number}" for number in range(3)]
    crew = [start(MEMBER, url, str(diary)) for diary in diaries]
    try:
        for member in crew:
            told(member, "ready")
        with jsclient.connect(url) as nc:
            js = nc.jetstream()
            jobs = (("work.a", b"%d" % number) for number in range(TOTAL))
            for _ in js.publish_all(jobs):
                pass
            victim, *others = crew
            while not done(diaries[0]):
                time.sleep(0.001)  # until it is at work
            victim.kill()
            victim.communicate()
            assert len(done(diaries[0])) < TOTAL
            for member in others:
                finish(member, 4 * PATIENCE).check()
            everything = [number for diary in diaries for number in done(diary)]
            assert set(everything) == set(range(TOTAL))
            # Only what the victim had done and not yet told the server came again.
            assert len(everything) - TOTAL <= 1
            info = js.consumer("WORK", "crew").info()
            assert (info.num_pending, info.num_ack_pending) == (0, 0)
    finally:
        for member in crew:
            if member.poll() is None:
                member.kill()
                member.communicate()


def done(diary: Path) -> list[int]:
    """The jobs that a member has done."""
    if not diary.exists():
        return []
    whole = diary.read_text().rpartition("\n")[0]
    return [int(line) for line in whole.splitlines()]
