"""How many rows the sinks of a query have skipped, told to whoever runs the query.

Rows that the server refuses are left out with `onError=skip`. The process that commits
a batch knows how many, but Spark lets it tell the query nothing. So whoever runs the
query names a file, by an option that is not in the table, and the process that commits,
which is on the same machine, adds a line to it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from pathlib import Path

__all__ = ["OPTION", "Refusals", "note"]

OPTION = "_refusals"


def note(path: str, query: str | None, batch: int, count: int) -> None:
    """Tells of rows that were skipped in a batch; a query of None is a whole table."""
    # A file that is not here any more has nobody who waits for it.
    with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
        file.write(f"{query or '-'} {batch} {count}\n")


class Refusals:
    """The file, and what it says. A context manager, which removes it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="jsclient-spark-")
        self._file = Path(self._folder.name, "refusals")
        self._file.touch()
        self._read = 0  # bytes of it
        self._counts: Counter[tuple[str, int]] = Counter()

    def __enter__(self) -> Refusals:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._folder.cleanup()

    @property
    def path(self) -> str:
        """What the option is to say."""
        return str(self._file)

    def take(self, query: str | None, batch: int) -> int:
        """How many rows were skipped in a batch; each is told once."""
        with open(self._file, encoding="utf-8") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            name, number, count = line.rsplit(maxsplit=2)
            self._counts[name, int(number)] += int(count)
        return self._counts.pop((query or "-", batch), 0)
