"""The cell `import`: what importing a client adds to the start of Python.

Starts Python with and without the import, in turn, and takes the median difference of
the whole lives of both processes, so that work done at exit counts as well. Called as
`python -m bench.imports CLIENT import STARTS SIZE`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median

# The way to the first connection, so that a lazily loaded package has to load.
STATEMENTS = {
    "jsclient": "import jsclient; jsclient.connect",
    "nats-py": "import nats; nats.connect",
}
WATCHED = ("asyncio", "ssl")


def lifetime(statement: str) -> float:
    """Seconds that a new Python lives to run the statement."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def loaded(statement: str) -> dict[str, float]:
    """Which of the watched modules are loaded after the statement, as 0 or 1."""
    tell = f"{statement}\nimport sys; print(*[n in sys.modules for n in {WATCHED}])"
    answer = subprocess.run(
        [sys.executable, "-c", tell], check=True, capture_output=True, text=True
    )
    words = answer.stdout.split()
    return {
        name: float(word == "True") for name, word in zip(WATCHED, words, strict=True)
    }


def main() -> None:
    client, _, starts, _ = sys.argv[1:]
    statement = STATEMENTS[client]
    flags = loaded(statement)  # first: it also writes the byte code and warms the cache
    begin = time.perf_counter()
    over = [lifetime(statement) - lifetime("pass") for _ in range(int(starts))]
    sample = {
        "messages": float(starts),
        "seconds": time.perf_counter() - begin,
        "over_bare": median(over),
    }
    print(json.dumps(sample | flags))


if __name__ == "__main__":
    main()
