"""The meaning of -ERR texts: every row of the table, and texts that nobody expects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._engine.refusals import MAX_TEXT, Refusal, Scope, classify
from jsclient.errors import (
    AuthenticationExpiredError,
    AuthenticationRevokedError,
    AuthenticationTimeoutError,
    AuthorizationError,
    ConnectionError,
    Error,
    MaxPayloadError,
    PermissionsViolationError,
    ProtocolError,
    ServerError,
    ServerLimitError,
    StaleConnectionError,
    TLSError,
)

FATAL: list[tuple[str, type[Error]]] = [
    ("Authorization Violation", AuthorizationError),
    ("Failed Account Registration", AuthorizationError),
    ("Authentication Timeout", AuthenticationTimeoutError),
    ("Authorization Timeout", AuthenticationTimeoutError),
    ("User Authentication Expired", AuthenticationExpiredError),
    ("Account Authentication Expired", AuthenticationExpiredError),
    ("User Authentication Revoked", AuthenticationRevokedError),
    ("maximum connections exceeded", ServerLimitError),
    ("maximum account active connections exceeded", ServerLimitError),
    ("Connection throttling is active. Please try again later.", ServerLimitError),
    ("Secure Connection - TLS Required", TLSError),
    ("Stale Connection", StaleConnectionError),
    ("Maximum Payload Violation", MaxPayloadError),
    ("maximum control line exceeded", ProtocolError),
    ("Unknown Protocol Operation", ProtocolError),
    ("invalid client protocol", ProtocolError),
    ("no responders requires headers support", ProtocolError),
    ("attempted to connect to route port", ConnectionError),
    ("attempted to connect to leaf node port", ConnectionError),
    ("attempted to connect to gateway port", ConnectionError),
]
HARMLESS: list[tuple[str, type[Error], bool | None, Scope]] = [
    ("Parser Error", ProtocolError, None, "connection"),
    ("Slow Consumer", ServerError, None, "connection"),
    ("maximum subscriptions exceeded", ServerError, None, "subscription"),
    ("Invalid Subject", ServerError, False, "subscription"),
    ("Invalid Publish Subject", ServerError, False, "publish"),
    ("Permissions Violation", PermissionsViolationError, False, "none"),
    ("Something New", ServerError, None, "none"),
    ("", ServerError, None, "none"),
]


def violation(text: bytes | str) -> PermissionsViolationError:
    error = classify(text).error
    assert isinstance(error, PermissionsViolationError)
    return error


@pytest.mark.parametrize(("text", "error"), FATAL)
def test_a_closing_refusal_concerns_the_connection(
    text: str, error: type[Error]
) -> None:
    refusal = classify(f"'{text}'".encode())
    assert type(refusal.error) is error
    assert (refusal.closes, refusal.scope) == (True, "connection")
    assert str(refusal.error) == f"server said: {text}"


@pytest.mark.parametrize(("text", "error", "closes", "scope"), HARMLESS)
def test_other_refusals_leave_the_connection_to_its_end(
    text: str, error: type[Error], closes: bool | None, scope: Scope
) -> None:
    refusal = classify(f"'{text}'")
    assert type(refusal.error) is error
    assert (refusal.closes, refusal.scope) == (closes, scope)


@pytest.mark.parametrize(
    "text",
    [
        b"'Stale Connection'",
        b"Stale Connection",
        b"  'stale connection' ",
        b"'STALE CONNECTION",
        b"Stale Connection - and more",
    ],
)
def test_case_quotes_and_surroundings_do_not_matter(text: bytes) -> None:
    assert isinstance(classify(text).error, StaleConnectionError)


@pytest.mark.parametrize("text", [b"", b"'", b"''", b"  ", ""])
def test_an_empty_text_is_reported_as_such(text: bytes | str) -> None:
    refusal = classify(text)
    assert type(refusal.error) is ServerError
    assert str(refusal.error) == "server said: (nothing)"


def test_only_one_pair_of_quotes_is_stripped() -> None:
    assert str(classify("''a''").error) == "server said: 'a'"


def test_the_server_is_named_when_its_label_is_given() -> None:
    error = classify(b"'Authorization Violation'", server="nats://h:4222").error
    assert str(error) == "server nats://h:4222 said: Authorization Violation"


def test_the_text_in_an_error_is_bounded() -> None:
    error = classify("x" * 100_000).error
    assert len(str(error)) == len("server said: ") + MAX_TEXT
    assert str(error).endswith("x…")
    assert str(classify("x" * MAX_TEXT).error).endswith("x" * MAX_TEXT)


def test_unprintable_characters_are_escaped_in_the_text() -> None:
    assert str(classify(b"a\x1b[2J\xff").error) == "server said: a\\x1b[2J\\udcff"


def test_a_denied_publish_names_its_subject() -> None:
    refusal = classify(b"'Permissions Violation for Publish to \"a.b\"'")
    assert (refusal.closes, refusal.scope) == (False, "publish")
    error = refusal.error
    assert isinstance(error, PermissionsViolationError)
    assert (error.operation, error.subject) == ("publish", "a.b")
    assert (error.queue, error.sid) == (None, None)


def test_a_denied_reply_is_told_from_a_denied_publish() -> None:
    text = "'Permissions Violation for Publish with Reply of \"_INBOX.x\"'"
    assert classify(text).scope == "publish"
    assert (violation(text).operation, violation(text).subject) == ("reply", "_INBOX.x")


@pytest.mark.parametrize(
    ("tail", "queue", "sid"),
    [
        ("", None, None),
        (' using queue "q"', "q", None),
        (' (sid "7")', None, 7),
        (' using queue "q" (sid "7")', "q", 7),
        (", too many tokens", None, None),
        (' (sid "x")', None, None),
        (' (sid "99999999999999999999")', None, None),
        (' using queue ""', "", None),
    ],
)
def test_a_denied_subscription_names_what_the_text_says(
    tail: str, queue: str | None, sid: int | None
) -> None:
    text = f"'Permissions Violation for Subscription to \"x.>\"{tail}'"
    assert classify(text).scope == "subscription"
    error = violation(text)
    assert (error.operation, error.subject) == ("subscribe", "x.>")
    assert (error.queue, error.sid) == (queue, sid)


@pytest.mark.parametrize(
    ("quoted", "subject"),
    [
        (r"a\"b", 'a"b'),
        (r"a\\b", "a\\b"),
        (r"\t\n\r\a\b\f\v", "\t\n\r\a\b\f\v"),
        (r"\x01\x7f", "\x01\x7f"),
        (r"\xff", "\udcff"),
        (r"\u200b", "\u200b"),
        (r"\U000e0001", "\U000e0001"),
        (r"\UFFFFFFFF", r"\UFFFFFFFF"),
        (r"\xg", "xg"),
        ("it's", "it's"),
        ("größe", "größe"),
        (r"x\" using queue \"y", 'x" using queue "y'),
        ("", ""),
    ],
)
def test_escapes_of_a_quoted_subject_are_undone(quoted: str, subject: str) -> None:
    error = violation(f"'Permissions Violation for Publish to \"{quoted}\"'".encode())
    assert (error.subject, error.queue) == (subject, None)


@pytest.mark.parametrize(
    "text",
    [
        "Permissions Violation for Publish to ",
        'Permissions Violation for Subscription to "cut',
        'Permissions Violation for Publish to "cut\\',
        "Permissions Violation for Publish",
    ],
)
def test_a_permission_text_without_a_subject_leaves_the_fields_empty(text: str) -> None:
    error = violation(text)
    assert (error.operation, error.subject, error.queue, error.sid) == (
        "",
        "",
        None,
        None,
    )


def test_a_long_subject_is_kept_whole_in_its_field() -> None:
    subject = "a." * 1500 + "a"
    error = violation(f'Permissions Violation for Publish to "{subject}"')
    assert error.subject == subject
    assert len(str(error)) < MAX_TEXT + 50


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
def test_any_text_is_classified_and_can_be_printed(text: bytes | str) -> None:
    refusal = classify(text)
    assert isinstance(refusal, Refusal)
    shown = str(refusal.error)
    assert shown.encode()
    assert shown.isprintable()


@given(st.binary(max_size=100))
def test_any_tail_of_a_permission_text_is_understood(tail: bytes) -> None:
    assert violation(b'Permissions Violation for Subscription to "x"' + tail)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_a_subject_survives_quoting(subject: str) -> None:
    quoted = subject.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = f'Permissions Violation for Publish to "{quoted}"'
    assert violation(text.encode()).subject == subject
