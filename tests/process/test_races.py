"""Races, one by one: the steps of two threads in the order that once went wrong."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from types import FrameType

import pytest

from jsclient._core import Helm, Link, Outbox, Parser, Routes
from jsclient._engine.info import ServerInfo
from jsclient._engine.session import Session
from jsclient._io.interruption import is_from_signal_handler


def new_session() -> Session:
    return Session(ServerInfo(), ping_interval=30.0, max_pings_out=2, now=0.0)


def new_helm() -> Helm:
    return Helm(lambda what, deadline: None, lambda: 0.0, Outbox(1 << 20, 0))


def test_a_fence_is_open_when_its_pong_came_before_it() -> None:
    session = new_session()
    session.ponged(1)
    assert session.fence(1).is_open
    assert not session.fence(2).is_open


def test_pongs_that_are_counted_again_do_no_harm() -> None:
    session = new_session()
    fences = [session.fence(number) for number in (1, 2, 3)]
    session.ponged(2)
    session.ponged(1)
    assert [fence.is_open for fence in fences] == [True, True, False]
    assert session.fence(2).is_open


def test_the_end_of_an_old_link_does_not_stop_the_new_one() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        old, new = Link(ours.fileno()), Link(theirs.fileno())
        helm = new_helm()
        steps = [
            (helm.start, old, True),
            (helm.stop, old, False),
            (helm.start, new, True),
            (helm.stop, old, True),
            (helm.stop, new, False),
        ]
        for step, link, is_steerable in steps:
            step(link)
            assert helm.is_steerable == is_steerable


def test_a_ping_that_is_added_before_the_link_counts_as_its_first() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox = Outbox(1 << 20, 1 << 20)
        outbox.expect_link()
        outbox.attach(Link(ours.fileno()), b"")
        assert [outbox.ping(), outbox.ping()] == [1, 2]
        outbox.detach()
        outbox.expect_link()
        assert outbox.ping() == 1
        outbox.attach(Link(ours.fileno()), b"SUB a 1\r\n")
        assert outbox.ping() == 2


def test_a_link_that_was_ended_does_not_read_from_its_successor() -> None:
    first, peer = socket.socketpair()
    with peer:
        link = Link(first.fileno())
        number = first.fileno()
        link.close()
        first.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert number in (ours.fileno(), theirs.fileno())  # the number is used again
        for end in (ours, theirs):
            end.send(b"PING\r\n")
        parser = Parser(Routes())
        with pytest.raises(OSError, match="ended"):
            link.receive(parser)
        assert link.send(b"x") == 0
        assert (ours.recv(100), theirs.recv(100)) == (b"PING\r\n", b"PING\r\n")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
@pytest.mark.parametrize("kind", [TimeoutError, ValueError, OSError])
def test_what_a_signal_handler_raises_is_told_from_what_the_loop_raises(
    kind: type[Exception],
) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise kind("from the handler")

    def variadic(*arguments: object) -> None:
        handler(signal.SIGALRM, sys._getframe())

    def forgetful(number: int, frame: FrameType | None) -> None:
        frame = None
        handler(number, frame)

    before = signal.getsignal(signal.SIGALRM)
    try:
        for function in (handler, variadic, forgetful):
            signal.signal(signal.SIGALRM, function)
            with pytest.raises(kind) as caught:
                signal.raise_signal(signal.SIGALRM)
            assert is_from_signal_handler(caught.value)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(kind) as caught:
        raise kind("from the loop")
    assert not is_from_signal_handler(caught.value)


def test_other_threads_than_the_main_one_have_no_signal_handlers() -> None:
    said: list[bool] = []

    def run() -> None:
        try:
            raise_with(sys._getframe())
        except ValueError as error:
            said.append(is_from_signal_handler(error))

    def raise_with(frame: FrameType) -> None:
        raise ValueError(str(frame))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert said == [False]
