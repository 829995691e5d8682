"""The package as users get it: sdist and wheel hold what they should, and work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import jsclient

ROOT = Path(__file__).parents[2]
VERSION = jsclient.__version__

# What a build starts from. Copied, so that nothing left by other builds gets in.
SOURCES = (
    *("jsclient", "pyspark_jetstream", "csrc", "tests", "bench", "examples", "docs"),
    *("setup.py", "pyproject.toml", "MANIFEST.in", "Makefile"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="needs the source tree"),
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "results")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, cwd=source)
    return folder


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """What a command prints; its failure shows all of that."""
    answer = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert answer.returncode == 0, answer.stdout
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def in_wheel(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_sdist_has_everything_that_a_build_needs(dist: Path) -> None:
    with tarfile.open(dist / f"jsclient-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {f"csrc/{path.name}" for path in (ROOT / "csrc").iterdir()}
    assert sources <= names
    assert {"LICENSE", "README.md", "jsclient/py.typed", "jsclient/_core.pyi"} <= names
    assert not {name for name in names if name.endswith((".c", ".so", ".pyc"))} - {
        name for name in names if name.startswith("bench/")
    }


def test_the_wheel_has_the_compiled_core_and_its_types(in_wheel: set[str]) -> None:
    assert {"jsclient/py.typed", "jsclient/_core.pyi"} <= in_wheel
    compiled = [name for name in in_wheel if name.endswith((".so", ".pyd"))]
    assert len(compiled) == 1
    assert compiled[0].startswith("jsclient/_core.")
    modules = {
        str(path.relative_to(ROOT))
        for package in ("jsclient", "pyspark_jetstream")
        for path in (ROOT / package).rglob("*.py")
    }
    assert {"jsclient/spark/data_source.py", "pyspark_jetstream/__init__.py"} <= modules
    assert modules <= in_wheel


def test_the_wheel_has_neither_sources_of_the_core_nor_tests(
    in_wheel: set[str],
) -> None:
    tops = {name.split("/")[0] for name in in_wheel}
    assert tops == {
        "jsclient",
        "pyspark_jetstream",
        f"jsclient-{VERSION}.dist-info",
    }
    assert not [
        name for name in in_wheel if name.endswith((".pyx", ".pxd", ".c", ".h"))
    ]


def test_the_wheel_says_its_version_license_and_extras(
    wheel: Path, in_wheel: set[str]
) -> None:
    info = f"jsclient-{VERSION}.dist-info"
    assert f"{info}/licenses/LICENSE" in in_wheel
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{info}/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    for extra in ("nkeys", "server", "arrow", "spark", "bench", "dev"):
        assert f"\nProvides-Extra: {extra}\n" in metadata


@pytest.mark.parametrize("system", ["manylinux", "musllinux", "macosx", "win"])
def test_a_wheel_is_built_for_every_python_on_every_system(system: str) -> None:
    pytest.importorskip("cibuildwheel")
    platform = {"macosx": "macos", "win": "windows"}.get(system, "linux")
    asked = ["--print-build-identifiers", "--platform", platform]
    command = [sys.executable, "-m", "cibuildwheel", *asked, "--archs", "all"]
    # The settings of pyproject.toml count, not those of this process.
    env = {name: value for name, value in os.environ.items() if name[:5] != "CIBW_"}
    planned = run(*command, cwd=ROOT, env=env).split()
    pythons = {word.split("-")[0] for word in planned if f"-{system}" in word}
    assert pythons == {"cp310", "cp311", "cp312", "cp313", "cp314"}


def test_the_installed_wheel_works_away_from_the_sources(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    folder = "Scripts" if sys.platform == "win32" else "bin"
    python = tmp_path / "venv" / folder / "python"
    # The pip of this environment installs into the other one, which then has nothing
    # but the standard library and jsclient.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    code = "import jsclient; print(jsclient.__file__)"
    where = run(python, "-I", "-c", code, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    said = run(python, "-I", "-m", "jsclient", "--version", cwd=tmp_path)
    assert said == f"jsclient {VERSION}\n"
    program = tmp_path / "venv" / folder / "jsclient"
    assert run(program, "--version", cwd=tmp_path) == said
    works = run(python, "-I", ROOT / "tests" / "smoke.py", cwd=tmp_path)
    assert works == f"jsclient {VERSION} works\n"
