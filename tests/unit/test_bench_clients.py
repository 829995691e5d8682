"""How the benchmark says that a client cannot be measured here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import clients


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nats.c", "no C compiler: cc is not a program"),
        ("nats.go", "no Go: go is not a program"),
    ],
)
def test_a_client_that_nothing_can_build_is_absent_with_the_reason(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clients, "BUILD", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert clients.find([name]) == ([], {name: reason})


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "x.c: In function 'f':\nx.c:9:10: fatal error: nats/nats.h: No such file",
            "x.c:9:10: fatal error: nats/nats.h: No such file",
        ),
        (
            "go: downloading example.org/a v1.0.0\nx.go:20:2: no such host",
            "x.go:20:2: no such host",
        ),
        (
            "# command-line-arguments\n./x.go:3:1: undefined: y",
            "./x.go:3:1: undefined: y",
        ),
        ("", ""),
    ],
)
def test_the_reason_is_the_first_line_that_tells_an_error(
    output: str, reason: str
) -> None:
    assert clients.reason_of(output) == reason
