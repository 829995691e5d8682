"""Whether Spark can run here: it needs Java 17 or newer.

`python -m jsclient.spark.java` says which Java there is, or how to get one and fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from ..errors import Error

__all__ = ["Java", "JavaNotFoundError", "find_java"]

LEAST = 17
HOW = (
    f"Spark needs Java {LEAST} or newer; install it with "
    f"'apt install openjdk-{LEAST}-jre-headless' or 'brew install openjdk@{LEAST}', "
    "or name it in JAVA_HOME"
)


class JavaNotFoundError(Error):
    """There is no Java here that Spark can use; the text says how to get one."""


class Java(NamedTuple):
    """A Java program and its major version."""

    path: str
    version: int


def find_java() -> Java:
    """The Java that Spark takes: that of JAVA_HOME, or else the first on the PATH.

    Raises JavaNotFoundError, in one line, if there is none or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if path is None:
        where = f"JAVA_HOME={home} has none" if home else "none is on the PATH"
        raise JavaNotFoundError(f"{HOW} ({where})")
    answer = subprocess.run([path, "-version"], capture_output=True, text=True)
    # 'openjdk version "17.0.15" 2025-04-15'; before 9 it was "1.8.0_292".
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise JavaNotFoundError(f"{HOW} ({path} does not tell its version)")
    version = int(found[1])
    if version < LEAST:
        raise JavaNotFoundError(f"{HOW} ({path} is Java {version})")
    return Java(path, version)


def main() -> int:
    """The exit status is 0 if Spark can run."""
    try:
        java = find_java()
    except JavaNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Java {java.version} ({java.path})\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
