"""The hand-written stub of the compiled core says what the module has, both ways."""

import contextlib
import inspect
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mypy import stubtest

import jsclient._core as core

STUB = Path(__file__).parents[2] / "jsclient" / "_core.pyi"


def test_stub_and_module_have_the_same_names_and_parameters(tmp_path: Path) -> None:
    settings = tmp_path / "mypy.ini"
    # The package's other modules are read for their types, not checked again.
    settings.write_text("[mypy]\nfollow_imports = silent\n")
    said = io.StringIO()
    arguments = stubtest.parse_options(
        ["--concise", "--mypy-config-file", str(settings), "jsclient._core"]
    )
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = stubtest.test_stubs(arguments)
    assert status == 0, said.getvalue()


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
