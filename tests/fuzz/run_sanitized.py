"""Builds the core with the address and undefined-behaviour sanitizers and runs it.

    python -m tests.fuzz.run_sanitized --seconds 60 --seed 1     # the fuzz program
    python -m tests.fuzz.run_sanitized --tests                   # the core's unit tests

The sanitized core lives in build/sanitize, beside links to the rest of the package, so
the core in the source tree stays as it is. It needs gcc with its sanitizer libraries.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGE = ROOT / "build" / "sanitize"
LIBRARIES = ("libasan.so", "libubsan.so")
CORE_TESTS = (
    "acks",
    "allocation_failure",
    "batch",
    "headers",
    "helm",
    "inbox",
    "lane",
    "link",
    "lone_pull",
    "metadata",
    "msg",
    "ordered_inbox",
    "outbox",
    "parser",
    "parser_oracle",
    "pledges",
    "pub_ack",
    "push_inbox",
    "replies",
    "rows",
    "tickets",
    "turn",
    "window",
)

# Runs a module in the stage, having made sure that the core under test is the stage's.
START = """
import runpy, sys
import jsclient._core as core
assert core.__file__.startswith(sys.argv[1]), core.__file__
module, sys.argv = sys.argv[2], sys.argv[2:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def sanitizers() -> list[str] | None:
    """The libraries to load before Python, or None if the compiler has none."""
    found = []
    for name in LIBRARIES:
        try:
            asked = subprocess.run(
                ["gcc", f"-print-file-name={name}"],
                capture_output=True,
                text=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        path = asked.stdout.strip()
        if not os.path.isabs(path):
            return None
        found.append(path)
    return found


def build() -> None:
    """Compiles the sanitized core and puts the package's other files beside it."""
    subprocess.run(
        [
            *(sys.executable, "setup.py", "-q", "build_ext"),
            *(
                "--build-lib",
                str(STAGE),
                "--build-temp",
                str(ROOT / "build/tmp-sanitize"),
            ),
        ],
        cwd=ROOT,
        env={**os.environ, "JSCLIENT_BUILD": "sanitize"},
        check=True,
    )
    link(ROOT / "tests", STAGE / "tests")
    link(ROOT / "pyproject.toml", STAGE / "pyproject.toml")
    for source in (ROOT / "jsclient").iterdir():
        if not source.name.startswith(("_core.", "__pycache__")):
            link(source, STAGE / "jsclient" / source.name)


def link(source: Path, place: Path) -> None:
    if not place.is_symlink():
        place.symlink_to(source)


def run(libraries: list[str], module: str, *arguments: str) -> int:
    """The exit status of a module that was run on the sanitized core."""
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries),
        "PYTHONMALLOC": "malloc",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Python itself keeps memory to its end: leaks are told by other tests.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, "-c", START, str(STAGE), module, *arguments]
    return subprocess.run(command, cwd=STAGE, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", action="store_true", help="the core's unit tests")
    options = parser.parse_args()
    libraries = sanitizers()
    if libraries is None:
        sys.stderr.write("this compiler has no sanitizer libraries\n")
        return 2
    build()
    if options.tests:
        files = [f"tests/unit/test_{name}.py" for name in CORE_TESTS]
        return run(libraries, "pytest", "-q", "-p", "no:cacheprovider", *files)
    length = ("--seconds", str(options.seconds), "--seed", str(options.seed))
    return run(libraries, "tests.fuzz.fuzz_core", *length)


if __name__ == "__main__":
    sys.exit(main())
