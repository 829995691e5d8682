"""One table of a file: which keys it may have, and of which kinds their values are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from .description import PipelineError

__all__ = ["Table", "nearest"]

_T = TypeVar("_T")
_KINDS = {str: "a string", bool: "true or false", dict: "a table", list: "a list"}


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint for a name that is not known."""
    names = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {names[near[0]]}?"
    return f"there are {', '.join(names.values())}"


class Table:
    """One table of the file: each of its keys is known, and taken with its kind."""

    def __init__(
        self, name: str, content: Mapping[str, object], known: Iterable[str]
    ) -> None:
        self.name = name
        self._content = content
        # As options of Spark, keys do not mind the case.
        names = {key.lower(): key for key in known}
        self._keys = {key.lower(): key for key in content}
        for key in content:
            if key.lower() not in names:
                what = "key" if name else "table"
                hint = nearest(key, names.values())
                raise self.error(key, f"there is no such {what}; {hint}")

    def error(self, key: str | None, problem: str) -> PipelineError:
        if not self.name and key:
            return PipelineError(key, None, problem)
        return PipelineError(self.name, key, problem)

    def __contains__(self, key: str) -> bool:
        return key.lower() in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def value(self, key: str) -> object:
        return self._content[self._keys[key.lower()]]

    def take(self, key: str, kind: type[_T], default: _T) -> _T:
        """The value of a key, which has to be of that kind."""
        if key not in self:
            return default
        value = self.value(key)
        if not isinstance(value, kind):
            raise self.error(
                key, f"it must be {_KINDS[kind]}, not {type(value).__name__}"
            )
        return value

    def tables(self, key: str) -> dict[str, dict[str, object]]:
        """The tables inside one, by their names."""
        found: dict[str, object] = self.take(key, dict, {})
        result = {}
        for name, content in found.items():
            place = f"{key}.{name}"
            if not isinstance(content, dict):
                raise PipelineError(key, name, f"a {key} is a table: [{key}.NAME]")
            if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
                raise PipelineError(
                    place, None, "a name is a letter and then letters, digits and _"
                )
            result[name] = content
        return result
