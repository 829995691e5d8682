"""Server URLs and the pool: whom to try next, and when."""

from __future__ import annotations

import math
import random
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from jsclient._engine.servers import MAX_DISCOVERED, Pool, Server, parse_servers
from jsclient.errors import (
    AuthenticationExpiredError,
    AuthenticationTimeoutError,
    AuthorizationError,
    InvalidArgumentError,
    ServerLimitError,
)

REFUSED = ConnectionRefusedError("refused")


class Fixed:
    """Randomness with known answers: reverses instead of shuffling."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share
        self.bounds: list[tuple[float, float]] = []

    def shuffle(self, x: list[Server], /) -> None:
        x.reverse()

    def uniform(self, a: float, b: float, /) -> float:
        self.bounds.append((a, b))
        return a + (b - a) * self.share


def pool_of(
    servers: str,
    *,
    rng: Fixed | None = None,
    randomize: bool = False,
    max_reconnects: int | None = None,
    jitter: float | None = None,
    ignore_discovered: bool = False,
    ignore_auth_errors: bool = False,
    wants_tls: bool = False,
) -> Pool:
    return Pool(
        parse_servers(servers),
        rng=rng or Fixed(),
        randomize=randomize,
        max_reconnects=max_reconnects,
        wait=2.0,
        jitter=jitter,
        ignore_discovered=ignore_discovered,
        ignore_auth_errors=ignore_auth_errors,
        wants_tls=wants_tls,
    )


def linked_pool(servers: str, *, max_reconnects: int | None = None) -> Pool:
    """A pool whose first server accepted the first link at 0."""
    pool = pool_of(servers, max_reconnects=max_reconnects)
    pool.connected(pool.servers[0], 0.0)
    return pool


def due(pool: Pool, now: float) -> tuple[str, float]:
    answer = pool.next_attempt(now)
    assert answer is not None
    return answer[0].host, answer[1]


def fail(pool: Pool, now: float, error: Exception = REFUSED) -> str:
    """Let the due attempt fail, the caller being sure that it is due."""
    answer = pool.next_attempt(now)
    assert answer is not None
    server, at = answer
    assert at == now
    pool.failed(server, error, now)
    return server.host


def link(pool: Pool, now: float) -> str:
    """Let the due attempt succeed, the caller being sure that it is due."""
    answer = pool.next_attempt(now)
    assert answer is not None
    server, at = answer
    assert at == now
    pool.connected(server, now)
    return server.host


def hosts(pool: Pool) -> list[str]:
    return [server.host for server in pool.servers]


# URLs


@pytest.mark.parametrize(
    ("url", "address", "tls"),
    [
        ("nats://a:1", "a:1", False),
        ("a:1", "a:1", False),
        ("a", "a:4222", False),
        ("a:", "a:4222", False),
        ("nats://a/", "a:4222", False),
        ("  a  ", "a:4222", False),
        ("tls://a:1", "a:1", True),
        ("TLS://A.Example:1", "a.example:1", True),
        ("[::1]", "[::1]:4222", False),
        ("nats://[::1]:1", "[::1]:1", False),
        ("[0:0:0:0:0:0:0:1]:", "[::1]:4222", False),
        ("[fe80::1%25eth0]:1", "[fe80::1%eth0]:1", False),
        ("10.0.0.1:65535", "10.0.0.1:65535", False),
        ("my_host-1:4222", "my_host-1:4222", False),
        ("bücher.example", "bücher.example:4222", False),
        ("nats://a:1?x=1", "a:1", False),
        ("nats://a/?x=1#y", "a:4222", False),
    ],
)
def test_a_url_gives_an_address_and_the_demand_for_tls(
    url: str, address: str, tls: bool
) -> None:
    (server,) = parse_servers(url)
    assert (server.address, server.tls) == (address, tls)
    assert server.label == f"{'tls' if tls else 'nats'}://{address}"
    assert str(server) == server.label
    assert server.tls_name == server.host
    assert (server.user, server.password, server.token) == (None, None, None)


@pytest.mark.parametrize(
    ("userinfo", "user", "password", "token"),
    [
        ("tok%40en", None, None, "tok@en"),
        ("u:", "u", "", None),
        ("u:p", "u", "p", None),
        ("u%3Aser:p%2Fa%3Fs:s", "u:ser", "p/a?s:s", None),
        ("u:p@ss", "u", "p@ss", None),
        ("u:gr%C3%B6%C3%9Fe", "u", "größe", None),
        ("u:100%", "u", "100%", None),
        (":p", "", "p", None),
        ("", None, None, None),
    ],
)
def test_user_information_is_a_token_or_a_name_with_a_password(
    userinfo: str, user: str | None, password: str | None, token: str | None
) -> None:
    (server,) = parse_servers(f"nats://{userinfo}@h")
    assert (server.user, server.password, server.token) == (user, password, token)
    assert server.address == "h:4222"


def test_a_comma_list_is_split_and_trimmed() -> None:
    servers = parse_servers("a:1, nats://b:2/ ,,c")
    assert [server.address for server in servers] == ["a:1", "b:2", "c:4222"]


def test_the_items_of_a_sequence_are_not_split() -> None:
    (server,) = parse_servers(["nats://u:p,w@h"])
    assert server.password == "p,w"
    assert [server.host for server in parse_servers(("a", "b"))] == ["a", "b"]


def test_a_url_without_a_scheme_takes_the_default() -> None:
    servers = parse_servers("a,nats://b", default_tls=True)
    assert [server.tls for server in servers] == [True, False]


BAD_URLS = [
    "nats://",
    "nats://:4222",
    "nats://u:hidden@",
    "a:0",
    "a:65536",
    "a:123456",
    "a:1x",
    "a:-1",
    "a:\u0661",
    "a b:1",
    "a\tb",
    "nats://a\r\nb",
    "a\x00",
    "a..b",
    ".a",
    "a" * 64,
    "a." * 200,
    "a,b",
    "[bad",
    "[::1",
    "[::1]x",
    "[10.0.0.1]:1",
    "[]:1",
    "::1",
    "fe80::1:4222",
    "nats://a/path",
    "nats://a//",
    "http://a",
    "://a",
    "ws://a",
    "wss://u:hidden@a",
    "nats://hidden/x@h",
    "nats://hidden?x@h",
    "nats://hidden#x@h",
    "nats://u:hidden",
    "nats://u:hidden/x@h",
    "u:hidden://x@h",
    "nats://u:hidden@h:port",
    "nats://u:hidden%ff@h",
    "nats://u:hidden@h/path",
    "nats://h/x?token=hidden",
    "nats://h/hidden",
    "nats://h:1:hidden",
    "nats://hidden @h",
    "nats://u:hidden@h\n:1",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_refused_without_showing_its_secrets(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="bad server URL") as caught:
        parse_servers([url])
    assert "hidden" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__context__ is None
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 320


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:hidden@h:port", "'nats://***@h:***'"),
        ("nats://u:hidden", "'nats://u:***'"),
        ("u:hidden://x@h", "'***://***@h'"),
        ("ws://a:1/x", "'ws://a:1/***'"),
        ("http://[::1]:1/", "'http://[::1]:1/'"),
        ("a b:1", "'a b:1'"),
        ("", "''"),
        ("h" * 300, "'" + "h" * 200 + "…'"),
    ],
)
def test_an_error_shows_the_url_redacted(url: str, shown: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_servers([url])
    assert str(caught.value).startswith(f"bad server URL {shown}: ")


def test_websocket_urls_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="WebSocket is not supported"):
        parse_servers("ws://a")


@pytest.mark.parametrize("servers", ["", " , ,", []])
def test_no_server_at_all_is_refused(servers: str | list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="no server is given"):
        parse_servers(servers)
    with pytest.raises(InvalidArgumentError, match="no server is given"):
        Pool([], rng=Fixed())


@pytest.mark.parametrize("servers", [b"a", [b"a"], [None]])
def test_a_url_that_is_no_text_is_a_type_error(servers: list[str]) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        parse_servers(servers)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    st.sampled_from(["nats://u:{}@h", "nats://{}@h", "{}@h", "tls://{}:p@h"]),
)
def test_an_unencoded_secret_is_never_printed(secret: str, form: str) -> None:
    marked = f"hid{secret}den"
    try:
        servers = parse_servers([form.format(marked)])
    except InvalidArgumentError as error:
        text = str(error)
    else:
        text = repr(servers) + str(servers[0]) + servers[0].label
    assert "hid" not in text


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        servers = parse_servers(text)
    except InvalidArgumentError:
        return
    for server in servers:
        assert server.host
        assert 1 <= server.port <= 65535
        assert parse_servers([server.label])[0].address == server.address


def test_a_server_prints_its_address_and_no_secret() -> None:
    named, tokened = parse_servers("nats://alice:hidden@h,hidden@[::1]:1")
    assert repr(named) == "<Server nats://h:4222 listed attempts=0>"
    assert repr(tokened) == "<Server nats://[::1]:1 listed attempts=0>"
    for text in (repr([named, tokened]), f"{named}{tokened}", f"{named!s}"):
        assert "hidden" not in text
        assert "alice" not in text


# The first pass


def test_the_first_pass_keeps_the_order_when_asked_to() -> None:
    assert [server.host for server in pool_of("a,b,c").initial()] == ["a", "b", "c"]


def test_the_first_pass_is_shuffled_by_default() -> None:
    pool = Pool(parse_servers("a,b,c"), rng=Fixed())
    assert [server.host for server in pool.initial()] == ["c", "b", "a"]


def test_a_random_generator_fits() -> None:
    pool = Pool(parse_servers("a,b,c"), rng=random.Random(1))
    assert sorted(hosts(pool)) == ["a", "b", "c"]
    while pool.is_first_pass:
        fail(pool, 1.0)
    assert 3.0 <= due(pool, 1.0)[1] <= 3.1


def test_a_server_listed_twice_is_one_server() -> None:
    assert hosts(pool_of("a,nats://A:4222,b")) == ["a", "b"]


def test_the_first_pass_tries_each_server_once_without_waiting() -> None:
    pool = pool_of("a,b,c")
    assert [fail(pool, 10.0) for _ in range(3)] == ["a", "b", "c"]
    assert due(pool, 10.0) == ("a", 12.0)


def test_the_first_pass_costs_no_attempts() -> None:
    pool = pool_of("a,b", max_reconnects=1)
    fail(pool, 0.0)
    fail(pool, 0.0)
    assert [server.attempts for server in pool.servers] == [0, 0]
    assert [fail(pool, 2.0), fail(pool, 2.0)] == ["a", "b"]
    assert pool.next_attempt(2.0) is None


def test_the_first_pass_can_be_made_even_without_a_budget() -> None:
    pool = pool_of("a,b", max_reconnects=0)
    assert [fail(pool, 0.0), fail(pool, 0.0)] == ["a", "b"]
    assert pool.next_attempt(0.0) is None


# The search


def test_asking_for_the_next_attempt_changes_nothing() -> None:
    pool = linked_pool("a,b")
    pool.lost(5.0)
    assert due(pool, 5.0) == due(pool, 5.0) == ("b", 5.0)
    assert due(pool, 6.5) == ("b", 6.5)


def test_the_others_are_tried_at_once_and_the_lost_one_after_the_wait() -> None:
    pool = linked_pool("a,b,c")
    pool.lost(100.0)
    assert pool.current is None
    assert fail(pool, 100.0) == "b"
    assert fail(pool, 100.5) == "c"
    assert due(pool, 100.5) == ("a", 102.5)
    assert [fail(pool, 102.5) for _ in range(3)] == ["a", "b", "c"]
    assert due(pool, 102.5) == ("a", 104.5)


def test_a_single_server_is_tried_at_once_and_then_after_each_wait() -> None:
    pool = linked_pool("a")
    pool.lost(100.0)
    assert fail(pool, 100.0) == "a"
    assert due(pool, 100.0) == ("a", 102.0)
    fail(pool, 102.0)
    assert due(pool, 102.0) == ("a", 104.0)


def test_losing_no_link_changes_nothing() -> None:
    pool = linked_pool("a")
    pool.lost(100.0)
    fail(pool, 100.0)
    pool.lost(100.5)
    assert due(pool, 100.5) == ("a", 102.0)


def test_a_link_that_dies_at_once_does_not_make_a_storm() -> None:
    pool = linked_pool("a")
    pool.lost(0.1)
    link(pool, 0.1)  # the user's own connect does not count as an attempt
    pool.lost(0.2)
    assert due(pool, 0.2) == ("a", 2.1)
    link(pool, 2.1)
    pool.lost(2.2)
    assert due(pool, 2.2) == ("a", 4.1)


def test_the_wait_in_a_storm_has_jitter() -> None:
    rng = Fixed(share=0.5)
    pool = pool_of("a", rng=rng, jitter=1.0)
    pool.connected(pool.servers[0], 0.0)
    pool.lost(0.0)
    link(pool, 0.0)
    pool.lost(0.1)
    assert due(pool, 0.1) == ("a", 2.5)


def test_a_rested_server_comes_before_one_that_was_just_tried() -> None:
    pool = linked_pool("a,b,c")
    pool.lost(10.0)
    assert [fail(pool, 10.0), link(pool, 10.0)] == ["b", "c"]
    pool.lost(10.5)
    assert hosts(pool) == ["a", "b", "c"]
    assert link(pool, 10.5) == "a"
    pool.lost(11.0)
    assert hosts(pool) == ["b", "c", "a"]
    assert due(pool, 11.0) == ("b", 12.0)
    pool.servers[0].tried_at = 10.9
    assert due(pool, 11.0) == ("c", 12.0)
    pool.failed(pool.servers[1], REFUSED, 12.0)
    assert due(pool, 12.0) == ("b", 12.9)


def test_a_failure_out_of_turn_leaves_the_others_their_turns() -> None:
    pool = linked_pool("a,b,c")
    pool.lost(10.0)
    pool.failed(pool.servers[2], REFUSED, 10.0)
    assert (pool.left, due(pool, 10.0)) == (2, ("b", 10.0))


@pytest.mark.parametrize(
    ("servers", "wants_tls", "jitter", "expected"),
    [
        ("a", False, None, 0.1),
        ("tls://a", False, None, 1.0),
        ("a", True, None, 1.0),
        ("tls://a", False, 0.3, 0.3),
    ],
)
def test_jitter_is_drawn_once_per_pass(
    servers: str, wants_tls: bool, jitter: float | None, expected: float
) -> None:
    rng = Fixed(share=0.5)
    pool = pool_of(servers, rng=rng, jitter=jitter, wants_tls=wants_tls)
    fail(pool, 0.0)
    assert due(pool, 0.0) == due(pool, 0.0) == ("a", 2.0 + expected / 2)
    assert rng.bounds == [(0.0, expected)]


def test_the_budget_is_per_server_and_outage() -> None:
    pool = linked_pool("a,b", max_reconnects=2)
    for start in (100.0, 200.0):
        pool.lost(start)
        tried = [fail(pool, start + 2.0 * n) for n in (0, 1, 1)]
        assert sorted(tried) == sorted([*hosts(pool), tried[0]])
        assert link(pool, start + 4.0) == tried[1]
        assert [server.attempts for server in pool.servers] == [0, 0]


def test_a_spent_server_is_passed_over_while_others_go_on() -> None:
    pool = linked_pool("a,b,c", max_reconnects=2)
    pool.lost(0.0)
    assert [fail(pool, 0.0) for _ in range(2)] == ["b", "c"]
    assert [fail(pool, 2.0) for _ in range(3)] == ["a", "b", "c"]
    assert (pool.left, hosts(pool)) == (1, ["a", "b", "c"])
    assert fail(pool, 4.0) == "a"
    assert pool.next_attempt(4.0) is None


def test_a_spent_server_takes_nobody_elses_turn() -> None:
    pool = linked_pool("a,b", max_reconnects=2)
    pool.lost(0.0)
    assert fail(pool, 0.0) == "b"
    pool.failed(pool.servers[1], REFUSED, 2.0)  # out of turn: b is spent before a
    assert fail(pool, 2.0) == "a"
    assert hosts(pool) == ["a", "b"]
    assert due(pool, 2.0) == ("a", 4.0)


def test_a_dead_single_server_is_given_up_after_its_budget() -> None:
    pool = linked_pool("a", max_reconnects=2)
    pool.lost(10.0)
    fail(pool, 10.0)
    fail(pool, 12.0)
    assert pool.next_attempt(12.0) is None
    assert pool.abort_error is None


def test_without_a_budget_a_lost_link_is_the_end() -> None:
    pool = linked_pool("a,b", max_reconnects=0)
    pool.lost(10.0)
    assert pool.next_attempt(10.0) is None


@pytest.mark.parametrize("max_reconnects", [None, -1])
def test_without_a_limit_the_search_goes_on(max_reconnects: int | None) -> None:
    pool = linked_pool("a", max_reconnects=max_reconnects)
    pool.lost(0.0)
    for attempt in range(50):
        assert fail(pool, 2.0 * attempt, ServerLimitError("full")) == "a"
    assert pool.next_attempt(98.0) is not None


def test_a_link_ends_the_outage() -> None:
    pool = linked_pool("a,b")
    pool.lost(10.0)
    fail(pool, 10.0, AuthorizationError("no"))
    b = pool.servers[-1]
    assert (b.host, b.attempts, b.did_connect) == ("b", 1, False)
    assert repr(b.last_auth_error) == "AuthorizationError('no')"
    assert link(pool, 12.0) == "a"
    assert pool.current is pool.servers[0]
    assert pool.servers[0].did_connect
    assert (b.attempts, b.last_auth_error) == (0, None)


def test_hurry_skips_the_wait() -> None:
    pool = linked_pool("a,b")
    pool.lost(10.0)
    fail(pool, 10.0)
    assert due(pool, 10.5) == ("a", 12.0)
    pool.hurry()
    assert [fail(pool, 10.5), fail(pool, 10.5)] == ["a", "b"]
    assert due(pool, 10.5) == ("a", 12.5)


def test_hurry_before_the_loss_skips_the_wait_too() -> None:
    pool = linked_pool("a")
    pool.lost(0.1)
    link(pool, 0.1)
    pool.hurry()
    pool.lost(0.2)
    assert due(pool, 0.2) == ("a", 0.2)


# Refused credentials


def test_the_same_refusal_twice_from_one_server_ends_the_search() -> None:
    pool = linked_pool("a,b")
    pool.lost(0.0)
    fail(pool, 0.0, AuthorizationError("b, first"))
    fail(pool, 2.0, AuthorizationError("a, first"))
    assert pool.next_attempt(2.0) is not None
    second = AuthorizationError("b, second")
    fail(pool, 2.0, second)
    assert pool.abort_error is second
    assert pool.next_attempt(2.0) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (AuthenticationExpiredError("x"), AuthorizationError("x")),
        (AuthenticationTimeoutError("x"), AuthenticationTimeoutError("x")),
        (REFUSED, REFUSED),
    ],
)
def test_other_failures_do_not_end_the_search(
    first: Exception, second: Exception
) -> None:
    pool = linked_pool("a")
    pool.lost(0.0)
    fail(pool, 0.0, first)
    fail(pool, 2.0, second)
    assert pool.next_attempt(2.0) is not None


def test_another_failure_between_two_refusals_breaks_the_row() -> None:
    pool = linked_pool("a")
    pool.lost(0.0)
    for at, error in enumerate((AuthorizationError(""), REFUSED) * 2):
        fail(pool, 2.0 * at, error)
    assert pool.abort_error is None


def test_repeated_refusals_are_borne_when_asked_to() -> None:
    pool = pool_of("a", ignore_auth_errors=True)
    for attempt in range(10):
        fail(pool, 2.0 * attempt, AuthorizationError("no"))
    assert due(pool, 18.0) == ("a", 20.0)
    assert pool.abort_error is None


# Discovery


def test_announced_servers_join_and_leave_and_listed_ones_stay() -> None:
    pool = linked_pool("a,b")
    assert pool.announced(["a:4222", "c:1", "d:2"]) == ("nats://c:1", "nats://d:2")
    assert hosts(pool) == ["a", "b", "c", "d"]
    assert [s.is_implicit for s in pool.servers] == [False, False, True, True]
    assert pool.announced(["d:2"]) == ()
    assert hosts(pool) == ["a", "b", "d"]
    assert repr(pool.servers[2]) == "<Server nats://d:2 discovered attempts=0>"


def test_a_server_that_returns_is_added_but_not_new() -> None:
    pool = linked_pool("a")
    pool.announced(["b:1", "c:1"])
    pool.announced(["c:1"])
    assert pool.announced(["b:1", "c:1"]) == ()
    assert hosts(pool) == ["a", "c", "b"]


def test_the_linked_server_stays_though_no_longer_announced() -> None:
    pool = linked_pool("a")
    pool.announced(["b:1", "c:1"])
    pool.lost(10.0)
    assert link(pool, 10.0) == "b"
    pool.announced(["c:1"])
    assert sorted(hosts(pool)) == ["a", "b", "c"]
    pool.lost(20.0)
    assert link(pool, 20.0) == "c"
    pool.announced(["c:1"])
    assert sorted(hosts(pool)) == ["a", "c"]


@pytest.mark.parametrize("urls", [[], ["[bad", "a b:1", 7, None]])
def test_a_list_without_a_usable_entry_changes_nothing(urls: list[object]) -> None:
    pool = linked_pool("a")
    pool.announced(["b:1"])
    assert pool.announced(urls) == ()
    assert hosts(pool) == ["a", "b"]
    assert pool.ignored_urls == len(urls)


def test_garbage_is_counted_and_the_rest_is_used() -> None:
    pool = linked_pool("a")
    garbage = ["[bad", "a b:1", "x" * 10_000_000, "u:p@h:1", "nats://h:1", "h:0", {}]
    assert pool.announced(["b:1", *garbage, "c:1"]) == ("nats://b:1", "nats://c:1")
    assert pool.ignored_urls == len(garbage)


def test_a_huge_list_is_cut() -> None:
    pool = linked_pool("a")
    urls = [f"10.0.{n // 250}.{n % 250}:1" for n in range(MAX_DISCOVERED + 10)]
    assert len(pool.announced(urls)) == MAX_DISCOVERED
    assert len(pool.servers) == MAX_DISCOVERED + 1
    assert pool.ignored_urls == 10


def test_what_was_seen_is_remembered_within_bounds() -> None:
    pool = linked_pool("a")
    for block in range(3):
        pool.announced([f"h{block}-{n}:1" for n in range(MAX_DISCOVERED)])
    assert pool.announced(["h2-0:1", "h1-0:1"]) == ()
    assert pool.announced(["h0-0:1"]) == ("nats://h0-0:1",)


def test_new_servers_are_shuffled_in_and_the_linked_one_keeps_its_place() -> None:
    pool = pool_of("a,b", randomize=True)
    assert hosts(pool) == ["b", "a"]
    pool.connected(pool.servers[1], 0.0)
    pool.announced(["c:1", "d:1"])
    assert hosts(pool) == ["d", "a", "c", "b"]
    pool.announced(["c:1", "d:1"])
    assert hosts(pool) == ["d", "a", "c", "b"]


def test_nothing_is_learnt_without_a_link() -> None:
    pool = pool_of("a")
    assert pool.announced(["b:1"]) == ()
    assert hosts(pool) == ["a"]


def test_discovery_can_be_turned_off() -> None:
    pool = pool_of("a", ignore_discovered=True)
    pool.connected(pool.servers[0], 0.0)
    assert pool.announced(["b:1"]) == ()
    assert hosts(pool) == ["a"]


def test_announced_servers_inherit_user_information_and_the_demand_for_tls() -> None:
    pool = linked_pool("tls://u:p@a,b")
    assert pool.servers[1].tls
    assert pool.announced(["c:1"]) == ("tls://c:1",)
    c = pool.servers[2]
    assert (c.user, c.password, c.token, c.tls) == ("u", "p", None, True)
    tokened = linked_pool("t@a")
    tokened.announced(["c:1"])
    assert (tokened.servers[1].token, tokened.servers[1].tls) == ("t", False)


def test_wanting_tls_makes_every_server_demand_it() -> None:
    pool = pool_of("a,b", wants_tls=True)
    assert [server.label for server in pool.servers] == ["tls://a:4222", "tls://b:4222"]


def test_a_bare_address_is_verified_by_the_name_that_led_to_it() -> None:
    pool = linked_pool("nats.example")
    pool.announced(["10.0.0.1:1", "[::2]:1", "other.example:1"])
    assert [server.tls_name for server in pool.servers] == [
        "nats.example",
        "nats.example",
        "nats.example",
        "other.example",
    ]
    pool.lost(10.0)
    assert link(pool, 10.0) == "10.0.0.1"
    pool.announced(["10.0.0.1:1", "10.0.0.9:1"])
    assert pool.servers[-1].host == "10.0.0.9"
    assert pool.servers[-1].tls_name == "nats.example"


def test_addresses_found_through_an_address_are_verified_as_themselves() -> None:
    pool = linked_pool("10.0.0.1")
    pool.announced(["10.0.0.2:1"])
    assert pool.servers[1].tls_name == "10.0.0.2"


def test_a_dying_server_is_put_last() -> None:
    pool = linked_pool("a,b,c")
    pool.demote_current()
    assert hosts(pool) == ["b", "c", "a"]
    pool.lost(10.0)
    pool.demote_current()
    assert hosts(pool) == ["b", "c", "a"]
    assert due(pool, 10.0) == ("b", 10.0)


# Invariants

WAIT = 2.0


class Searching(RuleBasedStateMachine):
    """Any sequence of links, losses, failures, announcements and passing time."""

    @initialize(
        count=st.integers(1, 4),
        budget=st.one_of(st.none(), st.integers(0, 3)),
        seed=st.integers(0, 100),
    )
    def begin(self, count: int, budget: int | None, seed: int) -> None:
        self.now = 1000.0
        self.budget = math.inf if budget is None else budget
        urls = [f"nats://hidden:hidden@h{n}" for n in range(count)]
        listed = parse_servers(urls)
        self.listed = set(listed)
        self.pool = Pool(
            listed, rng=random.Random(seed), max_reconnects=budget, wait=WAIT
        )
        self.is_initial = True
        self.is_first_of_outage = False
        # The last attempt on each, outside the first pass and since the last hurry.
        self.ended: dict[Server, float] = {}
        self.failures: dict[Server, int] = {}  # in this outage

    def attempt(self) -> Server | None:
        """Wait until the next attempt is due and check that it may be made."""
        answer = self.pool.next_attempt(self.now)
        assert answer == self.pool.next_attempt(self.now)
        if answer is None:
            assert all(
                self.failures.get(server, 0) >= self.budget
                for server in self.pool.servers
            )
            return None
        server, at = answer
        assert self.now <= at <= self.now + WAIT + 0.1
        rested = [
            other
            for other in self.pool.servers
            if self.now - self.ended.get(other, -math.inf) >= WAIT
        ]
        if self.is_first_of_outage and len(rested) == len(self.pool.servers):
            assert at == self.now
        assert at >= self.ended.get(server, -math.inf) + WAIT
        if self.is_initial:
            assert at == self.now
        assert self.is_initial or self.failures.get(server, 0) < self.budget
        self.now = at
        self.is_first_of_outage = False
        return server

    @precondition(lambda self: self.pool.current is None)
    @rule(spent=st.floats(0.0, 3.0))
    def attempt_fails(self, spent: float) -> None:
        server = self.attempt()
        if server is None:
            return
        self.now += spent
        is_counted = not self.pool.is_first_pass
        self.pool.failed(server, REFUSED, self.now)
        if is_counted:
            self.ended[server] = self.now
            self.failures[server] = self.failures.get(server, 0) + 1
        self.is_initial = self.pool.is_first_pass

    @precondition(lambda self: self.pool.current is None)
    @rule(spent=st.floats(0.0, 3.0))
    def attempt_succeeds(self, spent: float) -> None:
        server = self.attempt()
        if server is None:
            return
        self.now += spent
        is_counted = not self.pool.is_first_pass
        self.pool.connected(server, self.now)
        if is_counted:
            self.ended[server] = self.now
        self.failures.clear()
        self.is_initial = False

    @precondition(lambda self: self.pool.current is not None)
    @rule(after=st.floats(0.0, 5.0))
    def link_is_lost(self, after: float) -> None:
        self.now += after
        self.pool.lost(self.now)
        self.is_first_of_outage = True

    @rule()
    def user_hurries(self) -> None:
        self.pool.hurry()
        self.ended.clear()

    @rule(numbers=st.sets(st.integers(0, 8)))
    def servers_are_announced(self, numbers: set[int]) -> None:
        fresh = self.pool.announced([f"h{n}:4222" for n in numbers])
        known = {server.address for server in self.pool.servers}
        assert {label.removeprefix("nats://") for label in fresh} <= known
        if self.pool.current is not None and numbers:
            assert {f"h{n}:4222" for n in numbers} <= known

    @rule()
    def server_is_dying(self) -> None:
        before = set(self.pool.servers)
        self.pool.demote_current()
        assert set(self.pool.servers) == before

    @invariant()
    def listed_servers_stay_and_nobody_is_twice(self) -> None:
        servers = self.pool.servers
        assert self.listed <= set(servers)
        assert len({server.address for server in servers}) == len(servers)
        assert self.pool.current is None or self.pool.current in servers
        assert self.pool.left >= 0

    @invariant()
    def no_secret_is_shown(self) -> None:
        assert "hidden" not in repr(self.pool.servers) + repr(self.pool)


TestSearching = Searching.TestCase
TestSearching.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
