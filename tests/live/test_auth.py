"""Who we are and what we may do, against real servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jsclient
from jsclient import errors, events, server
from jsclient._engine import nkeys
from tests.live.support import PATIENCE, Events, all_results
from tests.operators import Key, Operator

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_leaks")]

SECRET = "p@ss:w/rd%41"
ENCODED = "p%40ss%3Aw%2Frd%2541"


def check(nc: jsclient.Connection, subject: str = "checked") -> None:
    """The link carries messages."""
    sub = nc.subscribe(subject)
    nc.publish(subject, b"x")
    assert sub.next(PATIENCE).data == b"x"
    sub.unsubscribe()


def with_user(url: str, user: str) -> str:
    return url.replace("://", f"://{user}@")


def users_config(users: str) -> str:
    return f"authorization {{ users: [ {users} ] }}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[server.Server]:
    """A server with one user."""
    with server.run(users={"app": SECRET, "empty": ""}) as running:
        yield running


@pytest.fixture(scope="module")
def token_server() -> Iterator[server.Server]:
    """A server that wants a token."""
    with server.run(token=SECRET) as running:
        yield running


@pytest.fixture(scope="module")
def operator() -> Operator:
    return Operator()


@pytest.fixture(scope="module")
def operated(operator: Operator) -> Iterator[server.Server]:
    """A server in operator mode."""
    with server.run(config=operator.config) as running:
        yield running


def creds_file(folder: Path, text: str) -> Path:
    path = folder / "user.creds"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


# Who we are ---------------------------------------------------------------------------


def test_a_user_and_password_are_accepted(guarded: server.Server) -> None:
    with jsclient.connect(guarded.url, user="app", password=SECRET) as nc:
        check(nc)
    with jsclient.connect(guarded.url, user="app", password=lambda: SECRET) as nc:
        check(nc)
    with jsclient.connect(with_user(guarded.url, f"app:{ENCODED}")) as nc:
        check(nc)


def test_the_user_of_the_url_goes_before_that_of_the_options(
    guarded: server.Server,
) -> None:
    with jsclient.connect(
        with_user(guarded.url, f"app:{ENCODED}"), user="other", password="wrong"
    ) as nc:
        check(nc)


def test_a_token_is_accepted(token_server: server.Server) -> None:
    with jsclient.connect(token_server.url, token=SECRET) as nc:
        check(nc)
    with jsclient.connect(token_server.url, token=lambda: SECRET) as nc:
        check(nc)
    with jsclient.connect(with_user(token_server.url, ENCODED)) as nc:
        check(nc)


def test_an_nkey_is_accepted(tmp_path: Path) -> None:
    key, stranger = Key(nkeys.USER), Key(nkeys.USER)
    path = creds_file(tmp_path, key.seed)
    with server.run(config=users_config(f"{{nkey: {key.public}}}")) as running:
        for seed in (key.seed, key.seed.encode(), path, lambda: key.seed):
            with jsclient.connect(running.url, nkey_seed=seed) as nc:
                check(nc)
        with pytest.raises(errors.AuthorizationError) as caught:
            jsclient.connect(running.url, nkey_seed=stranger.seed)
        assert stranger.seed not in str(caught.value)


def test_an_nkey_needs_a_server_that_asks_for_it(guarded: server.Server) -> None:
    with pytest.raises(errors.AuthenticationError, match="nonce"):
        jsclient.connect(guarded.url, nkey_seed=Key(nkeys.USER).seed)


def test_credentials_are_accepted(
    operated: server.Server, operator: Operator, tmp_path: Path
) -> None:
    text = operator.creds()
    path = creds_file(tmp_path, text)
    for credentials in (path, str(path), text.encode(), lambda: text):
        with jsclient.connect(operated.url, credentials=credentials) as nc:
            check(nc)
    path.write_text(text.replace("\n", "\r\n"))
    with jsclient.connect(operated.url, credentials=path) as nc:
        check(nc)


def test_a_user_of_an_unknown_account_is_refused(
    operated: server.Server, operator: Operator
) -> None:
    text = operator.creds(is_stranger=True)
    with pytest.raises(errors.AuthorizationError) as caught:
        jsclient.connect(operated.url, credentials=text.encode())
    assert str(operated.port) in str(caught.value)
    for line in text.splitlines():
        assert line == "" or line not in repr(caught.value)


def test_credentials_that_have_expired_are_refused(
    operated: server.Server, operator: Operator
) -> None:
    text = operator.creds(expires=time.time() - 10)
    with pytest.raises(errors.AuthenticationError):
        jsclient.connect(operated.url, credentials=text.encode())


# Refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "connect",
    [
        lambda url: jsclient.connect(url, user="app", password="wr0ng-secret"),
        lambda url: jsclient.connect(url, user="app", password=lambda: "wr0ng-secret"),
        lambda url: jsclient.connect(with_user(url, "app:wr0ng-secret")),
        lambda url: jsclient.connect(with_user(url, "wr0ng-secret")),
        lambda url: jsclient.connect(url, token="wr0ng-secret"),
        lambda url: jsclient.connect(url),
    ],
)
def test_wrong_credentials_are_an_error_that_names_the_server_and_no_secret(
    guarded: server.Server,
    connect: Callable[[str], jsclient.Connection],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(errors.AuthorizationError) as caught:
        connect(guarded.url)
    error: BaseException | None = caught.value
    assert f"127.0.0.1:{guarded.port}" in str(error)
    while error is not None:
        assert "wr0ng-secret" not in f"{error!r} {error} {vars(error)}"
        error = error.__cause__ or error.__context__
    assert "wr0ng-secret" not in caplog.text


def test_another_server_that_accepts_us_is_found(
    guarded: server.Server, url: str
) -> None:
    with jsclient.connect([guarded.url, url], randomize=False) as nc:
        assert nc.connected_url == url


def test_a_refusal_is_told_rather_than_that_no_server_is_left(
    guarded: server.Server, plain_server: server.Server
) -> None:
    dead = server.run()
    dead.stop()
    with pytest.raises(errors.AuthorizationError, match=str(guarded.port)):
        jsclient.connect([guarded.url, dead.url], randomize=False)


def test_no_object_shows_a_secret(guarded: server.Server, told: Events) -> None:
    with jsclient.connect(
        with_user(guarded.url, f"app:{ENCODED}"), on_event=told
    ) as nc:
        told.wait(events.Connected)
        shown = f"{nc!r} {nc.connected_url} {nc.servers} {nc.server_info!r} {told.seen}"
    assert SECRET not in shown
    assert ENCODED not in shown


# Changes while connected --------------------------------------------------------------


def test_callables_are_asked_again_for_every_link(told: Events) -> None:
    asked: list[str] = []
    secrets = {"now": "first"}

    def current() -> str:
        asked.append(secrets["now"])
        return secrets["now"]

    with (
        server.run(config="authorization { token: first }") as running,
        jsclient.connect(
            running.url, token=current, reconnect_wait=0.05, on_event=told
        ) as nc,
    ):
        check(nc)
        assert asked == ["first"]
        secrets["now"] = "second"
        running.reload("authorization { token: second }")
        told.wait(events.Reconnected)
        check(nc)
        assert asked[-1] == "second"


def test_a_callable_that_raises_fails_the_attempt_and_is_asked_again(
    guarded: server.Server, told: Events
) -> None:
    broken: list[bool] = [False]

    def password() -> str:
        if broken[0]:
            broken[0] = False
            raise OSError("the vault is closed")
        return SECRET

    with jsclient.connect(
        guarded.url, user="app", password=password, reconnect_wait=0.05, on_event=told
    ) as nc:
        broken[0] = True
        nc.reconnect()
        failed = told.wait(events.ReconnectFailed)
        assert isinstance(failed.error, errors.CredentialsError)
        told.wait(events.Reconnected)
        check(nc)


def test_expired_credentials_are_read_again_from_their_file(
    operated: server.Server, operator: Operator, tmp_path: Path, told: Events
) -> None:
    path = creds_file(tmp_path, operator.creds(expires=time.time() + 2))
    with jsclient.connect(
        operated.url, credentials=path, reconnect_wait=0.05, on_event=told
    ) as nc:
        sub = nc.subscribe("kept")
        nc.flush()
        path.write_text(operator.creds())
        lost = told.wait(events.Disconnected)
        assert isinstance(lost.error, errors.AuthenticationExpiredError)
        told.wait(events.Reconnected)
        nc.publish("kept", b"on")
        assert sub.next(PATIENCE).data == b"on"


def test_credentials_that_stay_expired_close_the_connection(
    operated: server.Server, operator: Operator, told: Events
) -> None:
    text = operator.creds(expires=time.time() + 1)
    nc = jsclient.connect(
        operated.url, credentials=text.encode(), reconnect_wait=0.05, on_event=told
    )
    closed = told.wait(events.Closed)
    assert isinstance(closed.error, errors.AuthenticationError)
    assert nc.is_closed
    with pytest.raises(errors.ConnectionClosedError):
        nc.publish("late")
    nc.close()


def test_a_user_who_is_removed_is_closed_after_the_second_refusal(told: Events) -> None:
    with server.run(config=users_config("{user: a, password: a}")) as running:
        nc = jsclient.connect(
            running.url, user="a", password="a", reconnect_wait=0.05, on_event=told
        )
        running.reload(users_config("{user: b, password: b}"))
        assert isinstance(told.wait(events.Closed).error, errors.AuthorizationError)
        assert len(told.of(events.ReconnectFailed)) == 2
        nc.close()


def test_a_user_who_is_removed_may_go_on_trying(told: Events) -> None:
    config = users_config("{user: a, password: a}")
    with (
        server.run(config=config) as running,
        jsclient.connect(
            running.url,
            user="a",
            password="a",
            reconnect_wait=0.02,
            ignore_auth_errors=True,
            on_event=told,
        ) as nc,
    ):
        running.reload(users_config("{user: b, password: b}"))
        told.wait(events.ReconnectFailed, 4)
        running.reload(config)
        told.wait(events.Reconnected)
        check(nc)


# What we may do -----------------------------------------------------------------------

DENIED = users_config(
    "{user: a, password: a, permissions: {"
    'publish: {deny: ["secret.>"]}, subscribe: {deny: ["secret.>", "open q"]}}}'
)


@pytest.fixture
def limited() -> Iterator[server.Server]:
    """A server whose user may neither publish nor subscribe to secret.>."""
    with server.run(config=DENIED) as running:
        yield running


def test_a_denied_publish_is_told_and_harms_nothing_else(
    limited: server.Server, told: Events
) -> None:
    with jsclient.connect(limited.url, user="a", password="a", on_event=told) as nc:
        sub = nc.subscribe("open")
        nc.publish("secret.x")
        nc.publish("open", b"x")
        assert sub.next(PATIENCE).data == b"x"
        event = told.wait(events.ErrorEvent)
        assert isinstance(event.error, errors.PermissionsViolationError)
        assert (event.error.operation, event.error.subject) == ("publish", "secret.x")
        assert event.subscription is None
        assert nc.last_error is event.error
        assert told.of(events.Disconnected) == []


def test_a_denied_request_fails_at_once(limited: server.Server) -> None:
    with jsclient.connect(limited.url, user="a", password="a") as nc:
        for _ in range(2):
            with pytest.raises(errors.PermissionsViolationError) as caught:
                nc.request("secret.x", timeout=None)
            assert caught.value.subject == "secret.x"
        check(nc)


def test_a_denied_subscription_fails_its_readers_at_once(
    limited: server.Server, told: Events
) -> None:
    with jsclient.connect(limited.url, user="a", password="a", on_event=told) as nc:
        good = nc.subscribe("open.>")
        denied = nc.subscribe("secret.x")
        with pytest.raises(errors.PermissionsViolationError) as caught:
            denied.next(timeout=None)
        assert caught.value.subject == "secret.x"
        with pytest.raises(errors.PermissionsViolationError):
            list(denied)
        assert not denied.is_active
        assert told.wait(events.ErrorEvent).subscription is denied

        quiet: list[jsclient.Msg] = []
        called = nc.subscribe("secret.y", callback=quiet.append)
        assert told.wait(events.ErrorEvent, 2).subscription is called
        nc.publish("open.x", b"x")
        assert good.next(PATIENCE).data == b"x"
        assert quiet == []


def test_a_denied_queue_leaves_the_plain_subscription_alone(
    limited: server.Server,
) -> None:
    with jsclient.connect(limited.url, user="a", password="a") as nc:
        plain = nc.subscribe("open")
        denied = nc.subscribe("open", queue="q")
        with pytest.raises(errors.PermissionsViolationError) as caught:
            denied.next(timeout=None)
        assert caught.value.queue == "q"
        nc.publish("open", b"x")
        assert plain.next(PATIENCE).data == b"x"


def test_a_denied_inbox_fails_every_request_at_once() -> None:
    config = users_config(
        '{user: a, password: a, permissions: {subscribe: {deny: ["_INBOX.>"]}}}'
    )
    with server.run(config=config) as running:
        with jsclient.connect(running.url, user="a", password="a") as nc:
            service = nc.subscribe("asked")
            for _ in range(2):
                with pytest.raises(errors.PermissionsViolationError):
                    nc.request("asked", timeout=PATIENCE)
            assert service.is_active
        with jsclient.connect(
            running.url, user="a", password="a", inbox_prefix="_MINE"
        ) as nc:
            service = nc.subscribe("asked", callback=lambda msg: msg.respond(b"x"))
            assert nc.request("asked", timeout=PATIENCE).data == b"x"
            assert service.is_active


def test_permissions_taken_away_by_a_reload_end_only_what_they_cover(
    told: Events,
) -> None:
    with (
        server.run(config=users_config("{user: a, password: a}")) as running,
        jsclient.connect(running.url, user="a", password="a", on_event=told) as nc,
    ):
        first = nc.subscribe("open.x")
        taken = nc.subscribe("secret.x")
        also = nc.subscribe("secret.x")
        nc.flush()

        def work(number: int) -> None:
            if number == 1:
                running.reload(DENIED)
                return
            with pytest.raises(errors.PermissionsViolationError) as caught:
                taken.next(PATIENCE)
            assert caught.value.subject == "secret.x"

        all_results(2, work)
        with pytest.raises(errors.PermissionsViolationError):
            also.next(PATIENCE)
        nc.publish("open.x", b"x")
        assert first.next(PATIENCE).data == b"x"
        assert first.is_active
        assert told.of(events.Disconnected) == []


def test_denied_subscriptions_are_not_asked_for_again_after_a_reconnect(
    limited: server.Server, told: Events
) -> None:
    with jsclient.connect(limited.url, user="a", password="a", on_event=told) as nc:
        denied = nc.subscribe("secret.x")
        nc.flush()
        assert not denied.is_active
        nc.reconnect()
        told.wait(events.Reconnected)
        nc.flush()
        assert len(told.of(events.ErrorEvent)) == 1
