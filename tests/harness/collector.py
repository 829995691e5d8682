"""A garbage collector that runs other code at the worst moment.

Before Python 3.12 the collector runs where an object is made, and calls finalizers
there; later ones wait for the next step of Python code.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Garbage:
    """Only the collector finds it; then it makes its call."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.itself = self

    def __del__(self) -> None:
        self.call()


def amid_collection(call: Callable[[], T], other: Callable[[], object]) -> T:
    """What the compiled call returns if the other is made in the middle of it."""
    before = gc.get_threshold()
    gc.collect()
    gc.disable()
    gc.set_threshold(1)
    try:
        Garbage(other)
        gc.enable()
        result = call()
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    return result
