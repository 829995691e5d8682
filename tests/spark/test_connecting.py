"""The connections of a process: shared by options, replaced when they have ended."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from jsclient.server import Server, run
from jsclient.spark import connecting
from jsclient.spark.errors import OptionError
from jsclient.spark.options import ConnectionOptions, source_options

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def closed_after() -> Iterator[None]:
    yield
    connecting.close_all()


def options(url: str, **given: str) -> ConnectionOptions:
    return source_options({"stream": "S", "servers": url, **given}).connection


def test_equal_options_share_a_connection(server: Server) -> None:
    first = connecting.connection(options(server.url))
    assert connecting.connection(options(server.url)) is first
    assert connecting.connection(options(server.url, name="other")) is not first


def test_a_connection_that_has_ended_is_replaced(jetstream_server: Server) -> None:
    here = options(jetstream_server.url)
    connecting.connection(here).close()
    tries = []

    def work(js: object) -> int:
        tries.append(js)
        if len(tries) == 1:
            connecting.connection(here).close()
        return js.account_info().streams  # type: ignore[attr-defined, no-any-return]

    assert connecting.ask(here, work) == 0
    assert len(tries) == 2


# Newer Pythons warn of forks beside threads: that is what is tried here.
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_makes_its_own(server: Server) -> None:
    here = options(server.url)
    connecting.connection(here)
    child = os.fork()
    if child == 0:
        try:
            connecting.connection(here).flush()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    connecting.connection(here).flush()


def test_servers_that_nobody_answers_at_are_named_by_their_option() -> None:
    with pytest.raises(OptionError, match=r"option servers: no server answers"):
        connecting.connection(options("nats://127.0.0.1:1", connectTimeout="1s"))


def test_wrong_credentials_name_the_options_and_no_secret() -> None:
    with run(users={"u": "right"}) as server:
        url = f"nats://127.0.0.1:{server.port}"
        with pytest.raises(OptionError, match="check user, password") as caught:
            connecting.connection(options(url, user="u", password="wrong1"))
        assert "wrong1" not in f"{caught.value!r}{caught.value.__cause__!r}"


def test_files_that_are_not_there_are_named_by_their_option(server: Server) -> None:
    for name in ("creds", "nkey", "tlsCa"):
        with pytest.raises(OptionError, match=f"option {name}: "):
            connecting.connection(options(server.url, **{name: "/nowhere/file"}))
