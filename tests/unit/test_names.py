"""The names of the package: all are there, and JetStream's are loaded when used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import jsclient
from jsclient import config, errors, events, info, jetstream_errors

ROOT = Path(jsclient.__file__).parent.parent
# Of these, classes are for everybody, functions for the package itself.
GATHERED = (config, errors, events, info, jetstream_errors)


def in_a_new_python(code: str) -> str:
    """What a program prints in a Python without the hooks of an editable install."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import jsclient; "
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_importing_the_package_loads_nothing_of_jetstream() -> None:
    loaded = in_a_new_python("print(*sys.modules)").split()
    ours = {name.removeprefix("jsclient.") for name in loaded if "jsclient." in name}
    assert not ours & {*jsclient._LATER, "_api", "_engine.pull", "_io.pulling", "arrow"}


def test_every_name_can_be_the_first_that_is_used() -> None:
    # Nothing is remembered from name to name, as in one new process for each.
    code = (
        "for name in jsclient.__all__:\n"
        "    for module in [m for m in sys.modules if m.startswith('jsclient.')]:\n"
        "        if module.removeprefix('jsclient.') in jsclient._LATER:\n"
        "            del sys.modules[module]\n"
        "    getattr(jsclient, name)\n"
        "print('all')"
    )
    assert in_a_new_python(f"exec({code!r})") == "all"


def test_dir_lists_every_name() -> None:
    assert set(dir(jsclient)) >= set(jsclient.__all__)


@pytest.mark.parametrize("module", GATHERED, ids=lambda module: module.__name__)
def test_the_classes_of_a_module_are_names_of_the_package(module: ModuleType) -> None:
    classes = [name for name in module.__all__ if name[0].isupper()]
    assert classes
    for name in classes:
        assert name in jsclient.__all__
        assert getattr(jsclient, name) is getattr(module, name)


@pytest.mark.parametrize(
    "name",
    [
        *("Batch", "Batches", "ConsumeHandle", "Consumer", "FetchResult", "JetStream"),
        *("Messages", "OrderedConsumer", "PubAck", "StoredMessage", "Stream"),
    ],
)
def test_what_users_hold_is_a_name_of_the_package(name: str) -> None:
    assert name in jsclient.__all__
    assert getattr(jsclient, name).__name__ == name


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match=r"'jsclient' has no attribute 'Strem'"):
        _ = jsclient.Strem  # type: ignore[attr-defined]
    assert not hasattr(jsclient, "consumer_config")
