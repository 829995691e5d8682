"""The cell `import`: what importing a client adds to the start of Python.

Starts Python with and without the import, in turn, and takes the median difference of
the whole lives of both processes, so that work done at exit counts as well. Called as
`python -m bench.imports CLIENT import STARTS SIZE`.

Python starts as in an environment without .pth files: an editable install has one that
loads a part of the standard library in every process, which would make the import of a
client that needs the same modules look cheaper than it is for its users.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

MODULES = {"jsclient": "jsclient", "nats-py": "nats"}
WATCHED = ("asyncio", "ssl")


def statements(module: str) -> tuple[str, str]:
    """What a new Python runs: without the import, and with it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{module} is not installed")
    folder = str(Path(spec.origin).parent.parent)
    # With -S, `site` is imported but adds nothing to the path.
    bare = f"import site, sys; sys.path.insert(0, {folder!r})"
    # On the way to a connection, so that a lazily loaded package has to load.
    return bare, f"{bare}; import {module}; {module}.connect"


def command(statement: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", statement]


def lifetime(statement: str) -> float:
    """Seconds that a new Python lives to run the statement."""
    start = time.perf_counter()
    subprocess.run(command(statement), check=True)
    return time.perf_counter() - start


def loaded(statement: str) -> dict[str, float]:
    """Which of the watched modules are loaded after the statement, as 0 or 1."""
    tell = f"{statement}; print(*[name in sys.modules for name in {WATCHED}])"
    answer = subprocess.run(command(tell), check=True, capture_output=True, text=True)
    words = answer.stdout.split()
    return {
        name: float(word == "True") for name, word in zip(WATCHED, words, strict=True)
    }


def main() -> None:
    client, _, starts, _ = sys.argv[1:]
    bare, importing = statements(MODULES[client])
    flags = loaded(importing)  # first: it also writes the byte code and warms the cache
    begin = time.perf_counter()
    over = [lifetime(importing) - lifetime(bare) for _ in range(int(starts))]
    sample = {
        "messages": float(starts),
        "seconds": time.perf_counter() - begin,
        "over_bare": median(over),
    }
    print(json.dumps(sample | flags))


if __name__ == "__main__":
    main()
