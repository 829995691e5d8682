"""What README.md and the examples show is true: every block of code runs, every command
is there, and what they print is what the comments say.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from jsclient import server
from tests import certificates
from tests.operators import Operator

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
# These are run by the tests of Spark.
SPARK_EXAMPLES = [
    ROOT / "examples" / "spark" / name
    for name in ("orders.py", "notebook.py", "cluster.py")
]
COMMAND = [sys.executable, "-W", "error"]

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not EXAMPLES, reason="needs the source tree"),
]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    if language == "python":
        before, _, rest = text.partition("\n## Spark\n")
        text = before + rest.partition("\n## ")[2]  # the tests of Spark run that part
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^([a-z][a-z -]*):(?!=)", text, re.MULTILINE)
    return {word for line in lines for word in line.split()}


def extras() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return set(re.findall(r"^([a-z]+) = \[", table, re.MULTILINE))


def test_the_tour_runs_from_top_to_bottom_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the tour finds its files.
    monkeypatch.chdir(tmp_path)
    certs, operator = certificates.write(tmp_path), Operator()
    credentials = tmp_path / "app.creds"
    credentials.write_text(operator.creds())
    credentials.chmod(0o600)
    tls = {"cert_file": certs.server.cert_file, "key_file": certs.server.key_file}
    code = "\n".join(blocks("README.md", "python"))
    said = io.StringIO()
    with (
        server.run(
            jetstream=True, users={"app": "secret"}, config="no_auth_user: app"
        ) as plain,
        server.run(tls=tls, config=operator.config) as secure,
        redirect_stdout(said),
    ):
        monkeypatch.setenv("NATS_URL", plain.url)
        here = f"localhost:{secure.port}"
        assert "nats.example.com:4222" in code
        code = code.replace("nats.example.com:4222", here)
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    expected = re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)
    assert len(expected) == code.count("print(")
    assert said.getvalue().splitlines() == expected


@pytest.mark.parametrize("page", ["publishing", "consuming", "subscribe"])
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_says(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "\n".join(blocks(f"docs/{page}.md", "python"))
    said = io.StringIO()
    with server.run(jetstream=True) as running, redirect_stdout(said):
        monkeypatch.setenv("NATS_URL", running.url)
        exec(compile(code, f"docs/{page}.md", "exec"), {"__name__": "page"})
    expected = re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)
    assert len(expected) == code.count("print(")
    assert said.getvalue().splitlines() == expected


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_command_of_the_page_is_there(page: str) -> None:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert lines
    for line in lines:
        match shlex.split(line, comments=True):
            case ["make", target, *_]:
                assert target in targets()
            case ["python", script]:
                assert ROOT / script in [*EXAMPLES, *SPARK_EXAMPLES]
            case ["jsclient", "pipeline", "run", "orders.toml", *flags]:
                assert set(flags) <= {"--validate", "--once"}
            case ["pip", "install", what]:
                named = re.fullmatch(r"\.(?:\[(\w+)\])?", what)
                assert named is not None
                assert named[1] is None or named[1] in extras()
            case other:
                pytest.fail(f"nobody checks {other}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_alike_on_a_given_server_and_on_its_own(
    path: Path,
) -> None:
    without = {name: value for name, value in os.environ.items() if name != "NATS_URL"}
    with server.run(jetstream=True) as given:
        answers = [
            subprocess.run(
                [*COMMAND, str(path)], env=env, capture_output=True, text=True
            )
            for env in ({**without, "NATS_URL": given.url}, without)
        ]
    for answer in answers:
        assert (answer.returncode, answer.stderr) == (0, "")
    assert answers[0].stdout == answers[1].stdout != ""


def test_every_example_is_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in [*EXAMPLES, *SPARK_EXAMPLES]:
        assert path.relative_to(ROOT).as_posix() in text
