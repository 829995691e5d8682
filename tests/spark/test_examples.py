"""The examples and the README's part about Spark run, and print what they say."""

from __future__ import annotations

import io
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jsclient
from jsclient.jetstream import JetStream
from jsclient.server import Server
from tests.spark.readers import HAS_LIMITS, since_42

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "spark"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs the source tree")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder to run in; examples start servers of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NATS_URL", raising=False)
    monkeypatch.syspath_prepend(EXAMPLES)
    return tmp_path


@since_42  # it tells the lag
def test_the_part_of_the_readme_does_what_it_says(
    spark: SparkSession, js: JetStream, here: Path, jetstream_server: Server
) -> None:
    js.create_stream(name="ORDERS", subjects=["orders.*"], storage="memory")
    js.create_stream(name="COPIES", subjects=["copies.*"], storage="memory")
    for ack in js.publish_all(("orders.new", b"") for _ in range(1000)):
        assert isinstance(ack, jsclient.PubAck)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = text.partition("\n## Spark\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    assert "nats://127.0.0.1:4222" in code
    code = code.replace("nats://127.0.0.1:4222", jetstream_server.url)
    # Spark's folder is where it was started.
    assert 'checkpoint="checkpoint"' in code
    code = code.replace('checkpoint="', f'checkpoint="{here}/')
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(code, "README.md", "exec"), {"js": js})
    expected = re.findall(r"^print\(.*\)  # (.+)$", code, re.MULTILINE)
    assert len(expected) == code.count("print(")
    assert said.getvalue().splitlines() == expected


def test_the_pipeline_of_orders_ends_with_all_orders_each_once(
    spark: SparkSession,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("FOLDER", "NATS_URL"):
        monkeypatch.setenv(name, "")  # the example changes them
    monkeypatch.setattr(sys, "argv", ["orders.py", "--orders", "2000"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "orders.py"), run_name="__main__")
    said = capfd.readouterr().out
    assert ended.value.code == 0, said
    assert "files: 2,000 orders" in said
    assert said.endswith("all there, each once\n")


def test_the_cells_of_the_notebook_run(
    spark: SparkSession,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ORDERS", "500")
    # The session goes on for other tests.
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    runpy.run_path(str(EXAMPLES / "notebook.py"))
    said = capfd.readouterr().out
    lag = 0 if HAS_LIMITS else None
    assert f"orders not read yet: {lag}" in said
    assert "of the first hundred orders" in said
