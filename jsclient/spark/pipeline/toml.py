"""Pipelines from TOML files.

A string may hold `${NAME}` for a variable of the environment, so that secrets stay out
of files; `$$` is a dollar sign. SQL statements are left as they are. Paths are relative
to the folder of the file.

Every mistake is one PipelineError with the table and the key, and with the nearest name
when there is none like that. No text of an error shows a value that holds a variable.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..errors import OptionError
from ..options import (
    ConnectionOptions,
    SinkOptions,
    SourceOptions,
    sink_options,
    source_options,
    table,
)
from .description import (
    AVAILABLE_NOW,
    FORMATS,
    Pipeline,
    PipelineError,
    Sink,
    Source,
    Transform,
)
from .table import Table, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["load", "parse"]

_TOP = ("pipeline", "spark", "jetstream", "source", "transform", "sink")
_PIPELINE = (
    *("name", "mode", "trigger", "checkpoint", "shared"),
    *("master", "log"),
)
_SOURCE = ("format", "static", "schema", "json_schema")
_SINK = ("from", "format", "output_mode", "save_mode", "checkpoint")
_UNITS = "milliseconds?|seconds?|minutes?|hours?|days?"


def load(path: str | os.PathLike[str]) -> Pipeline:
    """The pipeline that a file describes."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PipelineError(str(path), None, f"it cannot be read: {why}") from error
    return parse(text, folder=file.resolve().parent)


def parse(
    text: str, *, folder: Path | None = None, env: Mapping[str, str] = os.environ
) -> Pipeline:
    """The pipeline that a text describes; its paths are relative to the folder."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError("TOML", None, str(error)) from error
    reader = _Reader(folder or Path.cwd(), env)
    return reader.pipeline(Table("", content, _TOP))


class _Reader:
    """Reads the tables of one file."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = env
        # Options of everything that is jetstream, as they stand and as they are.
        self._shared = Table("jetstream", {}, ())
        self._common: dict[str, str] = {}

    def pipeline(self, top: Table) -> Pipeline:
        if "pipeline" not in top:
            raise PipelineError("pipeline", None, "there is no such table")
        content: dict[str, object] = top.take("jetstream", dict, {})
        self._shared = Table("jetstream", content, _names())
        self._common = {key: self._option(self._shared, key) for key in content}
        head = Table("pipeline", top.take("pipeline", dict, {}), _PIPELINE)
        if "name" not in head:
            raise head.error("name", "it is missing")
        mode = self._choice(head, "mode", ("stream", "batch"))
        spark: dict[str, object] = top.take("spark", dict, {})
        pipeline = Pipeline(
            name=self._text(head, "name") or "",
            mode=mode,
            trigger=self._trigger(head, mode),
            checkpoint=self._path(head, "checkpoint"),
            is_shared=head.take("shared", bool, False),
            master=self._text(head, "master"),
            log=self._path(head, "log"),
            spark={
                key if key.startswith("spark.") else f"spark.{key}": value
                for key, value in self._settings("spark", flat(spark)).items()
            },
            sources=tuple(
                self._source(name, content)
                for name, content in top.tables("source").items()
            ),
            transforms=tuple(
                self._transform(name, content)
                for name, content in top.tables("transform").items()
            ),
            sinks=tuple(
                self._sink(name, content, mode, top)
                for name, content in top.tables("sink").items()
            ),
        )
        pipeline.check()
        return pipeline

    # Tables --------------------------------------------------------------------------

    def _source(self, name: str, content: dict[str, object]) -> Source:
        title = f"source.{name}"
        kind = self._format(title, content)
        if kind == "jetstream":
            table = Table(title, content, (*_SOURCE, *_names(SourceOptions)))
            options = self._jetstream(table, _SOURCE, source_options)
        else:
            table = Table(title, content, (*_SOURCE, "path", "options"))
            options = self._settings(
                f"{title}.options", table.take("options", dict, {})
            )
            if "json_schema" in table:
                raise table.error("json_schema", "it is for the format jetstream")
        return Source(
            name=name,
            format=kind,
            options=options,
            path=None if kind == "jetstream" else self._path(table, "path"),
            schema=self._text(table, "schema"),
            json_schema=self._text(table, "json_schema"),
            is_static=table.take("static", bool, False),
        )

    def _transform(self, name: str, content: dict[str, object]) -> Transform:
        table = Table(f"transform.{name}", content, ("sql",))
        sql = table.take("sql", str, "").strip()
        if not sql:
            raise table.error("sql", "it is missing")
        return Transform(name, sql)

    def _sink(
        self, name: str, content: dict[str, object], mode: str, top: Table
    ) -> Sink:
        title = f"sink.{name}"
        kind = self._format(title, content, FORMATS)
        abilities = FORMATS[kind]
        if kind == "jetstream":
            table = Table(title, content, (*_SINK, *_names(SinkOptions)))
            options = self._jetstream(table, _SINK, sink_options)
        else:
            known = (
                *_SINK,
                "options",
                *(("path", "partition_by") * abilities.has_path),
            )
            table = Table(title, content, known)
            options = self._settings(
                f"{title}.options", table.take("options", dict, {})
            )
        for key, right in (
            ("output_mode", "stream"),
            ("checkpoint", "stream"),
            ("save_mode", "batch"),
        ):
            if key in table and mode != right:
                raise table.error(key, f'it is for [pipeline] mode = "{right}"')
        if abilities.has_path and "path" not in table:
            raise table.error("path", f"the format {kind} needs it")
        return Sink(
            name=name,
            origin=self._origin(table, top),
            format=kind,
            options=options,
            path=self._path(table, "path") if abilities.has_path else None,
            output_mode=self._choice(table, "output_mode", abilities.output_modes),
            save_mode=self._choice(table, "save_mode", abilities.save_modes),
            partition_by=self._columns(table) if abilities.has_path else (),
            checkpoint=self._path(table, "checkpoint"),
        )

    def _origin(self, table: Table, top: Table) -> str:
        """The table whose rows a sink takes."""
        name = table.take("from", str, "")
        known = [*top.tables("source"), *top.tables("transform")]
        if not name:
            raise table.error(
                "from", "it names the source or transform, and is missing"
            )
        if name not in known:
            hint = nearest(name, known)
            raise table.error(
                "from", f"there is no source or transform {name!r}; {hint}"
            )
        return name

    # Values --------------------------------------------------------------------------

    def _format(
        self, title: str, content: Mapping[str, object], known: Iterable[str] = ()
    ) -> str:
        table = Table(title, content, content)
        name = self._text(table, "format") or "jetstream"
        if known and name not in known:
            hint = nearest(name, known)
            raise table.error("format", f"there is no such format; {hint}")
        return name

    def _jetstream(
        self,
        table: Table,
        own: Iterable[str],
        check: Callable[[Mapping[str, str]], object],
    ) -> dict[str, str]:
        """Options of the format: those of all, and then those of this table."""
        given = {
            key: self._option(table, key) for key in table if key.lower() not in own
        }
        mine = {key.lower() for key in given}
        common = {k: v for k, v in self._common.items() if k.lower() not in mine}
        options = {**common, **given}
        try:
            check(options)
        except OptionError as error:
            is_common = error.option not in table and error.option in self._shared
            place = self._shared if is_common else table
            problem = error.problem
            if error.option in place and "$" in str(place.value(error.option)):
                problem = "its value cannot be used"
            raise place.error(error.option, problem) from None
        return options

    def _settings(self, name: str, content: dict[str, object]) -> dict[str, str]:
        """Options of Spark's own, which nobody here can check."""
        table = Table(name, content, content)
        return {key: self._option(table, key) for key in table}

    def _option(self, table: Table, key: str) -> str:
        """A value as the string that Spark wants."""
        match table.value(key):
            case str(text):
                return self._expanded(table, key, text)
            case bool(flag):
                return "true" if flag else "false"
            case int() | float() as number:
                return str(number)
            case datetime.datetime() as moment:
                return moment.isoformat()
            case list(items) if all(isinstance(item, str) for item in items):
                return json.dumps([self._expanded(table, key, x) for x in items])
            case _:
                raise table.error(
                    key, "it must be a string, a number, true, false, a time or strings"
                )

    def _text(self, table: Table, key: str) -> str | None:
        if key not in table:
            return None
        text = self._expanded(table, key, table.take(key, str, ""))
        if not text.strip():
            raise table.error(key, "it is empty")
        return text

    def _path(self, table: Table, key: str) -> str | None:
        """A path as it is, if it is absolute or a URL; else below the file's folder."""
        text = self._text(table, key)
        if text is None or re.match(r"[A-Za-z][\w+.-]+:", text):
            return text
        return str(self._folder / text)

    def _choice(self, table: Table, key: str, values: tuple[str, ...]) -> str:
        text = self._text(table, key)
        if text is not None and text not in values:
            raise table.error(
                key, f"it must be {' or '.join(values)}, not {table.value(key)!r}"
            )
        return text or values[0]

    def _columns(self, table: Table) -> tuple[str, ...]:
        columns: list[object] = table.take("partition_by", list, [])
        for column in columns:
            if not isinstance(column, str) or not column:
                raise table.error("partition_by", "it must be names of columns")
        return tuple(str(column) for column in columns)

    def _trigger(self, table: Table, mode: str) -> str:
        text = self._text(table, "trigger")
        if text is None:
            return "1 second"
        if mode != "stream":
            raise table.error("trigger", 'it is for mode = "stream"')
        if text != AVAILABLE_NOW and not re.fullmatch(rf"\d+ ?({_UNITS})", text):
            raise table.error(
                "trigger", f'it must be {AVAILABLE_NOW} or a time like "5 seconds"'
            )
        return text

    def _expanded(self, table: Table, key: str, text: str) -> str:
        """The text with variables of the environment in it."""

        def value(found: re.Match[str]) -> str:
            if found[0] == "$$":
                return "$"
            name = found[1]
            if name not in self._env:
                raise table.error(key, f"the environment has no variable {name}")
            return self._env[name]

        return re.sub(r"\$\$|\$\{(\w+)\}", value, text)


def flat(content: Mapping[str, object]) -> dict[str, object]:
    """Tables in tables as one table: a.b.c = 1 is three of them."""
    found: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            found |= {f"{key}.{k}": each for k, each in flat(value).items()}
        else:
            found[key] = value
    return found


def _names(*parts: type[object]) -> list[str]:
    """The names of options that a part of the format has, beside those of all."""
    all_parts: tuple[type[object], ...] = (ConnectionOptions, *parts)
    return [
        name
        for part in all_parts
        for row in table(part)
        for name in (row.name, *row.aliases)
    ]
