"""Java is found where Spark finds it; what is missing is said in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jsclient.spark.java import JavaNotFoundError, find_java, main


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
