"""Which stream a subject belongs to, when the duplicate window of one is known."""

from __future__ import annotations

import pytest

from jsclient.repeating import covers


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "b.b", False),
        ("a.*.>", "a.b.c", True),
        ("a.*.>", "a.b", False),
        (">", "a", True),
        ("a", "A", False),
    ],
)
def test_a_pattern_covers_what_the_server_would_store(
    pattern: str, subject: str, expected: bool
) -> None:
    assert covers(pattern, subject) is expected
