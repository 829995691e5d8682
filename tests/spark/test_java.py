"""Java is found where Spark finds it; what is missing is said in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jsclient.spark.java import JavaNotFoundError, find_java, main

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")
in_the_tree = pytest.mark.skipif(
    not (MAKE and (ROOT / "Makefile").exists()), reason="needs the source tree and make"
)


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without Java; the folder is its PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # The shell of the scripts below, and nothing else.
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put_java(folder: Path, says: str) -> Path:
    """A program in place of Java, which tells that version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "java"
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_java_on_the_path_is_found(no_java: Path, says: str, version: int) -> None:
    path = put_java(no_java, says)
    assert find_java() == (str(path), version)


def test_java_home_comes_before_the_path(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_java(no_java, 'openjdk version "17.0.1"')
    path = put_java(no_java / "home" / "bin", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(no_java / "home"))
    assert find_java() == (str(path), 21)


def test_a_wrong_java_home_is_told_though_the_path_has_one(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark would not look any further either.
    put_java(no_java, 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JavaNotFoundError, match=r"\(JAVA_HOME=/nowhere has none\)$"):
        find_java()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ('java version "1.8.0_292"', "is Java 8)"),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11)"),
        ("what?", "does not tell its version)"),
    ],
)
def test_a_java_that_is_of_no_use_is_told(no_java: Path, says: str, why: str) -> None:
    put_java(no_java, says)
    with pytest.raises(JavaNotFoundError) as missing:
        find_java()
    assert str(missing.value).endswith(why)


def test_how_to_get_java_is_one_line_and_the_command_fails(
    no_java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main() == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "apt install openjdk-17-jre-headless" in said
    assert said.endswith(f"(none is on the PATH){os.linesep}")


def test_the_command_says_which_java_there_is(
    no_java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put_java(no_java, 'openjdk version "17.0.15"')
    assert main() == 0
    assert capsys.readouterr().out == f"Java 17 ({path})\n"


def ran(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command in the tree, as if it were not started by tests that make runs."""
    ours = ("CI", "MAKEFLAGS", "MAKELEVEL", "PYTEST_ADDOPTS")
    rest = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        command, cwd=ROOT, env={**rest, **env}, capture_output=True, text=True
    )


def make_java(**env: str) -> subprocess.CompletedProcess[str]:
    assert MAKE is not None
    # The core is taken as it is, whichever that is.
    core = f"{sys.prefix}/.core-dev"
    return ran(MAKE, "-o", core, "java", f"VENV={sys.prefix}", "BUILD=dev", **env)


@in_the_tree
def test_make_fails_without_java_in_continuous_integration(no_java: Path) -> None:
    answer = make_java(CI="true")
    assert answer.returncode != 0
    how, makes_own = answer.stderr.splitlines()
    assert how.startswith("Spark needs Java 17 or newer; install it with 'apt install ")
    assert makes_own.startswith("make: *** ")


@in_the_tree
def test_make_says_that_java_is_missing_and_goes_on_elsewhere(no_java: Path) -> None:
    answer = make_java()
    assert answer.returncode == 0
    assert answer.stderr.startswith("Spark needs Java 17 or newer; install it with ")
    assert (answer.stderr + answer.stdout).count("\n") == 1


@in_the_tree
def test_make_is_silent_where_there_is_java(no_java: Path) -> None:
    put_java(no_java, 'openjdk version "17.0.15"')
    answer = make_java(CI="true")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("env", "end"), [({}, "1 skipped"), ({"CI": "true"}, "1 error")]
)
def test_tests_without_java_are_skipped_loudly_or_fail(
    no_java: Path, env: dict[str, str], end: str
) -> None:
    one = "tests/spark/test_source_spark.py::test_a_batch_has_every_message_once"
    words = ["-q", "-p", "no:cacheprovider", one]
    answer = ran(sys.executable, "-m", "pytest", *words, **env)
    assert (answer.returncode != 0) == bool(env)
    assert "SPARK WAS NOT TESTED: Spark needs Java 17 or newer" in answer.stdout
    assert answer.stdout.splitlines()[-1].startswith(end)
