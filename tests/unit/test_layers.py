"""The rules of the layers: imports point down, and the lower rows stay pure."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jsclient

PACKAGE = Path(jsclient.__file__).parent
CORE = PACKAGE.parent / "csrc"

IMPURE = {"logging", "random", "selectors", "socket", "ssl", "threading", "time"}

# From the bottom. The package itself gathers the public names, so it stands with the
# modules that users hold; what is not listed stands there too.
ROWS = (
    {"errors", "events", "jetstream_errors", "version"},
    {"_core"},
    {"_engine"},
    {"_io"},
    {""},
    {"spark"},
    {"__main__", "server", "_server_config", "_server_process"},
)
HELD = ROWS.index({""})


def row_of(module: str) -> int:
    """The number of the row that a dotted name of the package belongs to."""
    first = module.removeprefix("jsclient").lstrip(".").split(".")[0]
    return next((n for n, row in enumerate(ROWS) if first in row), HELD)


def modules() -> dict[str, Path]:
    """The dotted names of all Python files of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("jsclient", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def names_of(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The dotted names that a statement in a module of that package imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = package.split(".")[: len(package.split(".")) - node.level + 1]
    prefix = ".".join([*(base if node.level else ()), *(node.module or "").split(".")])
    for alias in node.names:
        name = f"{prefix.rstrip('.')}.{alias.name}"
        yield name if name in MODULES or node.module is None else prefix


def imports(module: str) -> set[str]:
    """What a module imports anywhere in it, except for type checkers only."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in skipped
        for name in names_of(node, package)
    }


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_only(module: str) -> None:
    ours = {name for name in imports(module) if name.split(".")[0] == "jsclient"}
    upward = {name for name in ours if row_of(name) > row_of(module)}
    assert not upward


@pytest.mark.parametrize("module", [name for name in MODULES if "._engine" in name])
def test_the_engine_imports_no_socket_clock_thread_chance_or_log(module: str) -> None:
    assert not {name.split(".")[0] for name in imports(module)} & IMPURE


@pytest.mark.parametrize("module", MODULES)
def test_only_the_row_of_spark_imports_pyspark(module: str) -> None:
    if not module.startswith("jsclient.spark"):
        assert "pyspark" not in {name.split(".")[0] for name in imports(module)}


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m.startswith("jsclient.spark")]
)
def test_spark_uses_only_public_modules_of_ours(module: str) -> None:
    ours = {name for name in imports(module) if name.split(".")[0] == "jsclient"}
    assert not {name for name in ours if "._" in name}


@pytest.mark.skipif(not CORE.is_dir(), reason="the sources of the core are not here")
def test_the_core_imports_no_socket_clock_thread_chance_or_log() -> None:
    statement = re.compile(r"^\s*(?:from|import|cimport)\s+([\w.]+)", re.MULTILINE)
    named = {
        name.split(".")[0]
        for path in [*CORE.glob("*.pyx"), *CORE.glob("*.pxd")]
        for name in statement.findall(path.read_text(encoding="utf-8"))
    }
    assert "jsclient" in named
    assert not named & IMPURE


def loaded_by(statement: str) -> set[str]:
    """The modules that are loaded after a statement in a new Python without site."""
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {statement}; "
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    # Without -S, the hooks of an editable install would load a part of the library.
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(answer.stdout))


def test_importing_the_package_loads_neither_asyncio_nor_ssl() -> None:
    loaded = loaded_by("import jsclient")
    assert "jsclient._core" in loaded
    assert not loaded & {"asyncio", "ssl", "cryptography", "subprocess", "tempfile"}


def test_the_server_is_loaded_when_it_is_used() -> None:
    assert "jsclient.server" not in loaded_by("import jsclient")
    assert "jsclient.server" in loaded_by("import jsclient; jsclient.server.run")


def test_every_public_name_is_there() -> None:
    missing = [name for name in jsclient.__all__ if not hasattr(jsclient, name)]
    assert not missing
    assert len(set(jsclient.__all__)) == len(jsclient.__all__)
