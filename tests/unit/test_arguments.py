"""Checks of arguments that many calls share; most are tested by the calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from jsclient._engine.arguments import check_callback


def plain(*_: object) -> None:
    """Does its work when it is called."""


async def later(*_: object) -> None:
    """Does nothing before it is awaited."""


def one_by_one(*_: object) -> Iterator[int]:
    yield 1


async def one_by_one_later(*_: object) -> AsyncIterator[int]:
    yield 1


class Handler:
    """Has methods of both kinds."""

    def plain(self, _: object) -> None:
        pass

    async def later(self, _: object) -> None:
        pass

    def __call__(self, _: object) -> None:
        pass


class LateHandler:
    async def __call__(self, _: object) -> None:
        pass


@pytest.mark.parametrize(
    "value",
    [
        plain,
        print,
        list,
        [].append,
        Handler,
        Handler(),
        Handler().plain,
        LateHandler,
        partial(plain, 1),
        partial(partial(print, 1), 2),
        lambda _: None,
        Mock(),
    ],
)
def test_whatever_works_when_it_is_called_is_a_callback(value: object) -> None:
    check_callback(value)


@pytest.mark.parametrize(
    "value",
    [
        later,
        one_by_one,
        one_by_one_later,
        Handler().later,
        LateHandler(),
        partial(later, 1),
        partial(partial(later, 1), 2),
        AsyncMock(),
    ],
)
def test_what_would_not_run_is_no_callback(value: object) -> None:
    with pytest.raises(TypeError, match="on_event must be an ordinary function"):
        check_callback(value, "on_event")


@pytest.mark.parametrize("value", [5, "print", None, object()])
def test_what_cannot_be_called_is_no_callback(value: Any) -> None:
    with pytest.raises(TypeError, match="callback must be callable, not"):
        check_callback(value)
