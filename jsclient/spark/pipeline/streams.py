"""Whether the streams that a pipeline names are there, asked from here.

Where nobody answers, nothing is wrong with the file: that is told as not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import jsclient

from .. import connecting
from ..errors import OptionError
from ..options import ConnectionOptions, SourceOptions, sink_options, source_options
from ..sink import check_options
from ..stream import find_stream
from .description import Pipeline, PipelineError

__all__ = ["check_streams"]


def check_streams(pipeline: Pipeline, *, is_here: bool = True) -> list[str]:
    """What could not be checked, a line for each; PipelineError for what is wrong.

    is_here: Spark's driver is to run on this machine. Elsewhere it may have files and
    reach servers that we do not, so only a stream that is missing is wrong.
    """
    unchecked = []
    silent: dict[ConnectionOptions, str] = {}  # servers are waited for once
    try:
        for table, servers, ask in _questions(pipeline):
            if servers in silent:
                unchecked.append(f"[{table}] {silent[servers]}")
                continue
            try:
                ask()
            except OptionError as error:
                problem = f"{error.option}: {error.problem}"
                if isinstance(error.__cause__, jsclient.NoServersError):
                    silent[servers] = problem
                elif is_here or error.option == "stream":
                    raise PipelineError(table, error.option, error.problem) from error
                unchecked.append(f"[{table}] {problem}")
            except jsclient.Error as error:
                unchecked.append(f"[{table}] stream: {error}")
    finally:
        connecting.close_all()
    return unchecked


def _questions(
    pipeline: Pipeline,
) -> Iterator[tuple[str, ConnectionOptions, Callable[[], None]]]:
    """For each table of the format: its name, whom to ask, and how."""
    for source in pipeline.sources:
        if source.format == "jetstream":
            read = source_options(source.options)
            yield f"source.{source.name}", read.connection, partial(_find, read)
    for sink in pipeline.sinks:
        if sink.format == "jetstream":
            written = sink_options(sink.options)
            ask = partial(check_options, written)
            yield f"sink.{sink.name}", written.connection, ask


def _find(options: SourceOptions) -> None:
    connecting.ask(options.connection, lambda js: find_stream(js, options.stream))
