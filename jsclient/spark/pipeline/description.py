"""What a pipeline is: typed values without Spark, and the rules that they keep.

    [pipeline]   name, mode, trigger, checkpoint, shared, master, log
    [spark]      settings of Spark
    [jetstream]  options that all sources and sinks of that format have
    [source.X]   a table of rows: a stream, or anything else that Spark can read
    [transform.Y]  a table made of those before it by a SQL statement
    [sink.Z]     where the rows of a table go

`toml` makes them of a file. Whatever is wrong is a PipelineError, which names the table
and the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...errors import InvalidArgumentError

__all__ = ["Pipeline", "PipelineError", "Query", "Sink", "Source", "Transform"]

AVAILABLE_NOW = "available_now"


class PipelineError(InvalidArgumentError):
    """A pipeline is described wrongly; `table` and `key` say where."""

    def __init__(self, table: str, key: str | None, problem: str) -> None:
        place = f"[{table}] {key}" if key else f"[{table}]"
        super().__init__(f"{place}: {problem}")
        self.table = table
        self.key = key
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Format:
    """What a sink of one format can do."""

    output_modes: tuple[str, ...]
    save_modes: tuple[str, ...]  # the first is the default
    has_path: bool = False


_FILES = ("error", "append", "overwrite", "ignore")
FORMATS: Mapping[str, Format] = {
    "parquet": Format(("append",), _FILES, has_path=True),
    "delta": Format(("append", "complete"), _FILES, has_path=True),
    "jetstream": Format(("append", "update", "complete"), ("append",)),
    "console": Format(("append", "update", "complete"), ("append",)),
    "noop": Format(("append", "update", "complete"), ("overwrite", "append")),
}


@dataclass(frozen=True, slots=True)
class Source:
    """A table that comes from outside."""

    name: str
    format: str
    options: Mapping[str, str] = field(repr=False)  # secrets are among them
    path: str | None
    schema: str | None  # columns to read, as in CREATE TABLE
    json_schema: str | None  # of the payloads, which then are the column `value`
    is_static: bool  # read once as a whole, also in a stream

    @property
    def frees_messages(self) -> bool:
        """Whether messages are removed from their stream once they are handled."""
        options = {key.lower(): value for key, value in self.options.items()}
        return options.get("consume", "none").lower() != "none"


@dataclass(frozen=True, slots=True)
class Transform:
    """A table made of others."""

    name: str
    sql: str

    def reads(self, name: str) -> bool:
        """Whether the statement may read a table: its name is a word of it."""
        return re.search(rf"\b{name}\b", self.sql, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class Sink:
    """Where the rows of the table `origin` go."""

    name: str
    origin: str
    format: str
    options: Mapping[str, str] = field(repr=False)  # secrets are among them
    path: str | None
    output_mode: str
    save_mode: str
    partition_by: tuple[str, ...]
    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query: the sinks it feeds and where it notes what is done."""

    name: str
    sinks: tuple[Sink, ...]
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything that a file says."""

    name: str
    mode: str  # "stream" or "batch"
    trigger: str  # AVAILABLE_NOW or an interval
    checkpoint: str | None
    is_shared: bool
    master: str | None
    log: str | None
    spark: Mapping[str, str]
    sources: tuple[Source, ...]
    transforms: tuple[Transform, ...]
    sinks: tuple[Sink, ...]

    @property
    def is_stream(self) -> bool:
        return self.mode == "stream"

    @property
    def streams(self) -> tuple[Source, ...]:
        """The sources that bring new rows while the pipeline runs."""
        if not self.is_stream:
            return ()
        return tuple(source for source in self.sources if not source.is_static)

    def queries(self) -> tuple[Query, ...]:
        """The streaming queries: one for each sink, or one for all."""
        root = (self.checkpoint or "").rstrip("/")
        if self.is_shared:
            return (Query(self.name, self.sinks, f"{root}/_shared"),)
        return tuple(
            Query(
                f"{self.name}.{sink.name}",
                (sink,),
                sink.checkpoint or f"{root}/{sink.name}",
            )
            for sink in self.sinks
        )

    def origins(self, table: str) -> set[str]:
        """The names of the sources whose rows may get into a table, and its own."""
        found = {table}
        for transform in reversed(self.transforms):
            if transform.name in found:
                found |= {name for name in self._before(transform) if name}
        return found

    def _before(self, transform: Transform) -> Iterator[str]:
        """The names of the tables that a transform may read."""
        for source in self.sources:
            if transform.reads(source.name):
                yield source.name
        for other in self.transforms:
            if other is transform:
                return
            if transform.reads(other.name):
                yield other.name

    def check(self) -> None:
        """The rules between tables; those inside one are checked when it is read."""
        names: dict[str, str] = {}
        tables = [("source", each.name) for each in self.sources]
        tables += [("transform", each.name) for each in self.transforms]
        for kind, name in tables:
            if name.lower() in names:
                raise PipelineError(
                    f"{kind}.{name}", None, f"{names[name.lower()]} has that name too"
                )
            names[name.lower()] = f"[{kind}.{name}]"
        for kind, found in (("source", self.sources), ("sink", self.sinks)):
            if not found:
                raise PipelineError(f"{kind}.NAME", None, f"there is no {kind}")
        if self.is_stream:
            self._check_stream()

    def _check_stream(self) -> None:
        if self.checkpoint is None:
            raise PipelineError(
                "pipeline",
                "checkpoint",
                "a stream needs a folder where it notes what is done, such as "
                '"checkpoints"',
            )
        if not self.streams:
            raise PipelineError(
                "pipeline", "mode", 'a stream needs a source without "static = true"'
            )
        if self.is_shared:
            self._check_shared()
            return
        for source in self.streams:
            readers = [s for s in self.sinks if source.name in self.origins(s.origin)]
            if source.frees_messages and len(readers) > 1:
                raise PipelineError(
                    f"source.{source.name}",
                    "consume",
                    "a sink would free messages that another still has to read; "
                    "let them share one query by [pipeline] shared = true",
                )

    def _check_shared(self) -> None:
        if len(self.streams) > 1:
            raise PipelineError(
                "pipeline",
                "shared",
                "only the rows of one streaming source can be shared, not of "
                + " and ".join(source.name for source in self.streams),
            )
        for sink in self.sinks:
            table = f"sink.{sink.name}"
            if sink.output_mode != "append":
                raise PipelineError(
                    table,
                    "output_mode",
                    f"{sink.output_mode} needs a query of its own, so not "
                    "[pipeline] shared = true",
                )
            if sink.checkpoint is not None:
                raise PipelineError(
                    table, "checkpoint", "a shared query has that of [pipeline]"
                )
            if sink.format == "delta":
                raise PipelineError(
                    table,
                    "format",
                    "delta would get a batch twice after a crash; it "
                    "needs a query of its own, so not [pipeline] shared = true",
                )
