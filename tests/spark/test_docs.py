"""The pages about Spark are true: their tables of options, their files, their TOML.

`python -m tests.spark.test_docs` writes the tables of options anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jsclient.spark.options import (
    ConnectionOptions,
    Option,
    SinkOptions,
    SourceOptions,
    table,
)
from jsclient.spark.pipeline.toml import parse

ROOT = Path(__file__).parents[2]
PAGES = ("docs/spark.md", "docs/spark-cluster.md")

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="needs the source tree"
)


def row(option: Option) -> str:
    names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
    match option.default:
        case None | "" | ():
            default = ""
        case bool(flag):
            default = str(flag).lower()
        case other:
            default = f"{other:g}" if isinstance(other, float) else str(other)
    return f"| {names} | {default} | {option.text} |"


def rows(part: type[Any]) -> str:
    return "\n".join(
        ["| option | default | |", "|---|---|---|", *map(row, table(part))]
    )


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


TABLES = {
    ConnectionOptions: "### Of both",
    SourceOptions: "### Of a source",
    SinkOptions: "### Of a sink",
}


def write_tables() -> None:
    text = text_of("docs/spark.md")
    for part, heading in TABLES.items():
        before, _, rest = text.partition(f"{heading}\n\n")
        after = rest.partition("\n\n")[2]
        text = f"{before}{heading}\n\n{rows(part)}\n\n{after}"
    (ROOT / "docs/spark.md").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("part", TABLES)
def test_the_tables_of_options_are_those_of_the_code(part: type[Any]) -> None:
    hint = "write them anew with python -m tests.spark.test_docs"
    assert rows(part) in text_of("docs/spark.md"), hint


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_or_a_heading(page: str) -> None:
    text = text_of(page)
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
    assert links
    for link in links:
        if link.startswith("#"):
            assert link[1:] in headings
        else:
            assert (ROOT / page).parent.joinpath(link).exists(), link


def test_the_pipeline_of_the_page_is_right() -> None:
    (described,) = re.findall(r"```toml\n(.*?)```", text_of("docs/spark.md"), re.DOTALL)
    pipeline = parse(described, env={"ORDERS_CREDS": "orders.creds"})
    assert [sink.name for sink in pipeline.sinks] == ["files", "sums"]


def test_every_key_of_a_pipeline_is_on_the_page() -> None:
    from jsclient.spark.pipeline import toml

    text = text_of("docs/spark.md")
    for key in (*toml._PIPELINE, *toml._SOURCE, *toml._SINK, "path", "partition_by"):
        assert f"`{key}`" in text


if __name__ == "__main__":
    write_tables()
