"""The hand-written stub of the compiled core says what the module has, both ways."""

import inspect
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import jsclient._core as core

STUB = Path(__file__).parents[2] / "jsclient" / "_core.pyi"


def test_stub_and_module_have_the_same_names_and_parameters(tmp_path: Path) -> None:
    settings = tmp_path / "mypy.ini"
    # The package's other modules are read for their types, not checked again.
    # pyarrow has no types.
    settings.write_text(
        "[mypy]\nfollow_imports = silent\n"
        "[mypy-pyarrow.*]\nignore_missing_imports = true\n"
    )
    # Not in this process: the garbage collector would have all of mypy to look through
    # in every other test that counts objects.
    program = [sys.executable, "-m", "mypy.stubtest", "--concise"]
    options = ["--mypy-config-file", str(settings)]
    answer = subprocess.run(
        [*program, *options, "jsclient._core"],
        cwd=STUB.parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert answer.returncode == 0, answer.stdout


def test_the_stub_says_more_of_every_value_than_that_it_is_an_object() -> None:
    # Anything may be compared with anything: that one method must take an object.
    text = re.sub("__eq__.*", "", STUB.read_text())
    assert not re.search(r"(: |-> |\[|\| )(object|Any)\b", text)


def public_functions() -> list[Any]:  # builtins of many kinds, asked for signatures
    found = [f for f in vars(core).values() if inspect.isbuiltin(f)]
    return [f for f in found if f.__module__ == core.__name__]


@pytest.mark.parametrize("function", public_functions(), ids=lambda f: f.__name__)
def test_every_function_can_show_its_signature(function: Any) -> None:
    assert inspect.signature(function)
    assert function.__doc__


def test_headers_are_a_mapping() -> None:
    assert isinstance(core.Headers(), Mapping)
