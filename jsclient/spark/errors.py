"""What goes wrong between Spark and JetStream, in words that name what to change."""

from __future__ import annotations

from ..errors import Error, InvalidArgumentError

__all__ = ["DataLossError", "OptionError"]


class OptionError(InvalidArgumentError):
    """An option of the format `jetstream` is wrong; `option` is its name."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option}: {problem}")
        self.option = option
        self.problem = problem

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.option, self.problem)


class DataLossError(Error):
    """Messages that a query still had to read are gone from their stream."""
