"""The configuration text of a local server."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsclient._server_config import TLS, Node, Settings, config_text, nodes, render


def lines_of(settings: Settings) -> list[str]:
    node = Node(settings=settings, port=4222, monitor_port=8222)
    return config_text(node, "/store").splitlines()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        ('a"b\\c\n\x01é', '"a\\"b\\\\c\\n\\x01é"'),
        (Path("/a b"), '"/a b"'),
        (["x", 1], '["x", 1]'),
        ({"$SYS": {"users": []}}, '{"$SYS": {"users": []}}'),
    ],
)
def test_values_are_written_so_that_their_content_cannot_end_them(
    value: object, text: str
) -> None:
    assert render(value) == text


def test_a_value_without_a_text_form_is_refused() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        render(None)


def test_a_plain_server_has_neither_jetstream_nor_authorization_nor_tls() -> None:
    text = "\n".join(lines_of(Settings()))
    assert not any(word in text for word in ("jetstream", "authorization", "tls"))


def test_jetstream_limits_are_kept_beside_the_store_directory() -> None:
    lines = lines_of(Settings(jetstream={"max_mem": "8MB"}))
    assert 'jetstream: {"max_mem": "8MB", "store_dir": "/store"}' in lines


def test_users_are_a_mapping_or_entries_as_they_are() -> None:
    by_name = lines_of(Settings(users={"a": "b"}))
    entries = lines_of(Settings(users=[{"user": "a", "password": "b"}]))
    line = 'authorization: {"users": [{"user": "a", "password": "b"}]}'
    assert line in by_name
    assert line in entries


def test_accounts_are_a_mapping_or_text() -> None:
    assert 'accounts: {"A": {}}' in lines_of(Settings(accounts={"A": {}}))
    assert lines_of(Settings(accounts="A {}"))[-3:] == ["accounts {", "A {}", "}"]


def test_a_handshake_delay_is_written_in_milliseconds() -> None:
    tls = TLS(cert_file="/c", key_file="/k", handshake_first=0.3)
    assert tls.block()["handshake_first"] == "300ms"


def test_a_tls_server_may_also_accept_plain_clients() -> None:
    tls = TLS(cert_file="/c", key_file="/k", allow_non_tls=True)
    assert "allow_non_tls: true" in lines_of(Settings(tls=tls))


def test_no_secret_is_in_the_text_form_of_settings() -> None:
    settings = Settings(users={"a": "hush"}, token="hush", accounts={"A": "hush"})
    assert "hush" not in repr(settings)


def test_members_listen_on_their_own_route_and_call_the_others() -> None:
    ports = [1, 2, 3, 4, 5, 6]
    first, second = nodes(Settings(), ports, size=2, name=None, store_dir="/d")
    assert (first.port, first.monitor_port, first.routes) == (1, 2, (3, 6))
    assert (second.port, second.monitor_port, second.routes) == (4, 5, (6, 3))
    assert [first.store_dir, second.store_dir] == ["/d/n0", "/d/n1"]
