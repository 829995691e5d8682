"""Names and addresses: slow resolvers, dead addresses, names that vanish."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

import jsclient
from jsclient._engine.servers import Server
from jsclient._io.dial import Interrupted, Patience, reach, resolve
from tests.harness.scripted import ScriptedServer, wait

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "")

Found = list[tuple[Any, ...]]  # what getaddrinfo returns


def within(seconds: float) -> Patience:
    return Patience(time.monotonic() + seconds)


def test_a_literal_address_asks_no_resolver() -> None:
    def never(*_: object, **__: object) -> Found:
        raise AssertionError("asked")

    found = resolve("127.0.0.1", 4222, within(5.0), never)
    assert found == [(socket.AF_INET, ("127.0.0.1", 4222))]
    ((family, address),) = resolve("::1", 4222, within(5.0), never)
    assert (family, address[:2]) == (socket.AF_INET6, ("::1", 4222))


def test_a_slow_resolver_is_left_behind_at_the_deadline() -> None:
    answer = threading.Event()

    def slow(*_: object, **__: object) -> Found:
        answer.wait(30.0)
        return [(*V4, ("127.0.0.1", 1))]

    start = time.monotonic()
    with pytest.raises(jsclient.TimeoutError, match=r"slow\.example"):
        resolve("slow.example", 4222, within(0.2), slow)
    assert time.monotonic() - start < 20.0
    answer.set()


def test_a_slow_resolver_does_not_hold_up_close() -> None:
    answer, asked = threading.Event(), threading.Event()
    mine, other = socket.socketpair()

    def slow(*_: object, **__: object) -> Found:
        asked.set()
        answer.wait(30.0)
        return []

    def ring() -> None:
        asked.wait(20.0)
        other.send(b"!")

    with mine, other:
        mine.setblocking(False)
        patience = Patience(time.monotonic() + 30.0, bell=mine, is_off=asked.is_set)
        ringer = threading.Thread(target=ring)
        ringer.start()
        with pytest.raises(Interrupted):
            resolve("slow.example", 4222, patience, slow)
        ringer.join()
    answer.set()


def test_a_name_that_is_unknown_is_named_in_the_error() -> None:
    def unknown(*_: object, **__: object) -> Found:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(jsclient.ConnectionError, match=r"gone\.example") as caught:
        reach(Server("gone.example"), within(5.0), unknown)
    assert isinstance(caught.value.__cause__, socket.gaierror)


def test_a_name_without_addresses_is_an_error_and_no_crash() -> None:
    with pytest.raises(jsclient.ConnectionError, match=r"empty\.example"):
        reach(Server("empty.example"), within(5.0), lambda *_, **__: [])


def test_the_second_address_is_used_when_the_first_is_dead() -> None:
    with ScriptedServer([wait("end")]) as server:

        def both(host: str, port: int, **_: object) -> Found:
            return [(*V6, ("::1", 1, 0, 0)), (*V4, ("127.0.0.1", port))]

        sock = reach(Server("two.example", server.port), within(5.0), both)
        with sock:
            assert sock.getpeername() == ("127.0.0.1", server.port)
        server.release("end")


def test_an_address_that_never_answers_gets_only_its_share_of_the_time() -> None:
    # A listener with a full backlog answers no SYN, as a dead host does.
    with socket.socket() as deaf, ScriptedServer([wait("end")]) as server:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        dead = deaf.getsockname()

        def both(host: str, port: int, **_: object) -> Found:
            return [(*V4, dead), (*V4, ("127.0.0.1", port))]

        sock = reach(Server("two.example", server.port), within(2.0), both)
        with sock:
            assert sock.getpeername() == ("127.0.0.1", server.port)
        for filler in fillers:
            filler.close()
        server.release("end")


def test_when_all_addresses_fail_the_error_names_the_server() -> None:
    def both(host: str, port: int, **_: object) -> Found:
        return [(*V4, ("127.0.0.1", 1)), (*V4, ("127.0.0.2", 1))]

    with pytest.raises(jsclient.ConnectionError, match=r"nats://two\.example:4222"):
        reach(Server("two.example"), within(5.0), both)
