"""`python -m jsclient`: the version, the help, and the demo with its ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import jsclient
from jsclient.__main__ import main

DEMO = [sys.executable, "-W", "error", "-m", "jsclient", "demo"]


def test_without_a_command_it_prints_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"jsclient {jsclient.__version__}\n"


def test_a_demo_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--messages", "0"])
    assert "argument --messages: must be at least 1" in capsys.readouterr().err


def test_a_missing_server_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JSCLIENT_NATS_SERVER", "/nowhere/nats-server")
    assert main(["demo"]) == 1
    said = capsys.readouterr()
    assert said.err == "jsclient: '/nowhere/nats-server' is not a program\n"


@pytest.mark.live
def test_the_demo_shows_every_part_and_ends_well() -> None:
    answer = subprocess.run(
        [*DEMO, "--messages", "2000"], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    for part in (
        "2,000 of 2,000 messages",
        "published and stored",
        "consumed and acknowledged",
        "all there and in order",
        "10,000 of 10,000 requests",
        "arrived: 'written while the server was down'",
        "the server is gone again",
    ):
        assert part in answer.stdout


@pytest.mark.live
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_an_interrupted_demo_says_so_in_one_line() -> None:
    with subprocess.Popen(
        [*DEMO, "--messages", "100000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("a stream"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.stderr.read() == ""
    assert rest == "\ninterrupted; connections closed and the server stopped\n"
    assert process.returncode == 130
