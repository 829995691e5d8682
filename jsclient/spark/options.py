"""The options of the format `jetstream`: one table for the source and the sink.

Every option is a field here, with its type, its default and what it means. Names are
case-insensitive, values are the strings that Spark hands over. A name that is no option
is refused with the nearest one, a bad value with the name of its option; the text of an
error never shows a secret.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from . import option_kinds as kinds
from . import refusals
from .contexts import read_context
from .errors import OptionError

__all__ = [
    "SECRETS",
    "ConnectionOptions",
    "Option",
    "SinkOptions",
    "SourceOptions",
    "as_here",
    "sink_options",
    "source_options",
    "table",
]

DEFAULT_URL = "nats://127.0.0.1:4222"
# What Spark itself puts among the options, and what belongs to other layers of it.
SPARKS_OWN = frozenset(
    (
        "checkpointlocation",
        "queryname",
        "outputmode",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    )
)
# What others have and we do not, with what there is instead.
REFUSED = {
    "pushdown": "Spark's filter pushdown gives wrong results when a DataFrame is used "
    "twice; subject, startingOffsets and startingTimestamp choose what is read",
    "retries": "requests are repeated until requestTimeout, and failed tasks by Spark, "
    "as spark.task.maxFailures says",
}


@dataclass(frozen=True)
class Option:
    """One row of the table."""

    name: str
    # The value. A ValueError says what is wrong with it, without showing a secret.
    read: Callable[[str], Any]
    text: str
    default: Any  # as the kind of the option has it
    aliases: tuple[str, ...] = ()
    is_secret: bool = False


def option(
    name: str,
    read: Callable[[str], Any],
    text: str,
    *,
    default: Any = None,
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    """A field of one of the tables below; Any, as the field has its own annotation."""
    row = Option(name, read, text, default, aliases, is_secret)
    return dataclasses.field(
        default=default, metadata={"option": row}, repr=not is_secret
    )


# The table ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Where the servers are and who we are, for the source and the sink."""

    servers: tuple[str, ...] = option(
        "servers",
        kinds.servers,
        "addresses of servers, separated by commas; without it NATS_URL of the driver, "
        f"or {DEFAULT_URL}",
        default=(),
        is_secret=True,
    )
    context: str | None = option(
        "context",
        kinds.text,
        "a context of the command `nats`, by its name or the path of its file on the "
        "driver: servers, credentials and TLS, where no option says otherwise",
    )
    creds: str | None = option(
        "creds",
        kinds.text,
        "path of a credentials file on every node, or its content",
        is_secret=True,
    )
    nkey: str | None = option(
        "nkey",
        kinds.text,
        "an nkey seed, or the path of its file on every node",
        is_secret=True,
    )
    token: str | None = option("token", kinds.text, "a token", is_secret=True)
    user: str | None = option("user", kinds.text, "the name of a user")
    password: str | None = option(
        "password", kinds.text, "its password", is_secret=True
    )
    tls: bool = option("tls", kinds.flag, "demand TLS", default=False)
    tls_first: bool = option(
        "tlsFirst", kinds.flag, "the TLS handshake comes first", default=False
    )
    tls_ca: str | None = option(
        "tlsCa", kinds.text, "file of the certificates of who may sign the server's"
    )
    tls_cert: str | None = option("tlsCert", kinds.text, "file of our own certificate")
    tls_key: str | None = option("tlsKey", kinds.text, "file of its private key")
    tls_hostname: str | None = option(
        "tlsHostname", kinds.text, "the name in the server's certificate"
    )
    connect_timeout: float = option(
        "connectTimeout", kinds.span, "how long connecting may take", default=5.0
    )
    request_timeout: float = option(
        "requestTimeout", kinds.span, "how long one request may take", default=10.0
    )
    name: str = option(
        "name", kinds.text, "what monitoring calls us", default="jsclient-spark"
    )
    domain: str | None = option("domain", kinds.text, "the JetStream domain")
    api_prefix: str | None = option(
        "apiPrefix",
        kinds.text,
        "the subjects under which another account's API is imported",
    )
    inbox_prefix: str = option(
        "inboxPrefix",
        kinds.text,
        "the first tokens of reply subjects",
        default="_INBOX",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What is read of which stream, and how."""

    connection: ConnectionOptions
    stream: str = option(
        "stream",
        kinds.stream,
        "the stream to read; load('NAME') says the same",
        default="",
    )
    subject: tuple[str, ...] | None = option(
        "subject", kinds.subjects, "subjects to read, wildcards allowed; all without it"
    )
    columns: tuple[str, ...] | None = option(
        "columns",
        kinds.several,
        "columns to read, in that order, where there is no schema; all without it",
    )
    starting_offsets: str | None = option(
        "startingOffsets",
        kinds.place,
        "where to start: earliest (the default), latest, a sequence, or the JSON of an "
        "offset; a streaming query uses it only without a checkpoint",
    )
    starting_timestamp: datetime | None = option(  # noqa: RUF009 - it makes a field
        "startingTimestamp",
        kinds.moment,
        "start at the first message of that time: milliseconds since 1970, or ISO 8601",
    )
    starting_timestamp_strategy: str = option(
        "startingTimestampStrategy",
        kinds.choice("error", "latest"),
        "when no message is that young: error, or start with the next one (latest)",
        default="error",
    )
    ending_offsets: str | None = option(
        "endingOffsets",
        kinds.place,
        "where a batch ends: latest (the default), the first sequence that it does not "
        "read, or the JSON of an offset",
    )
    ending_timestamp: datetime | None = option(  # noqa: RUF009 - it makes a field
        "endingTimestamp",
        kinds.moment,
        "end a batch before the first message of that time",
    )
    max_records: int | None = option(
        "maxRecordsPerTrigger",
        kinds.count,
        "messages of one micro-batch at most",
        aliases=("maxOffsetsPerTrigger",),
    )
    max_bytes: int | None = option(
        "maxBytesPerTrigger",
        kinds.size,
        "about so many bytes of one micro-batch at most, by the stream's mean size",
    )
    min_records: int | None = option(
        "minRecordsPerTrigger",
        kinds.count,
        "wait until so many messages are there",
        aliases=("minOffsetsPerTrigger",),
    )
    max_trigger_delay: float = option(
        "maxTriggerDelay",
        kinds.span,
        "how long minRecordsPerTrigger may wait; 15 minutes without it",
        default=900.0,
    )
    num_partitions: int = option(
        "numPartitions", kinds.count, "partitions of one batch at most", default=8
    )
    records_per_partition: int = option(
        "recordsPerPartition",
        kinds.count,
        "a batch gets a further partition for every so many sequences",
        default=50_000,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        kinds.flag,
        "fail when messages that were still to be read are gone, or their stream was "
        "deleted and made again",
        default=True,
    )
    read_mode: str = option(
        "readMode",
        kinds.choice("auto", "direct", "consumer"),
        "how messages are read: direct gets, an ephemeral consumer, or what fits",
        default="auto",
    )
    fetch_size: int = option(
        "fetchSize", kinds.count, "messages that are asked for at once", default=10_000
    )
    max_fetch_bytes: int = option(
        "maxFetchBytes",
        kinds.size,
        "bytes that are asked for at once, and of a consumer are on their way",
        default=8 << 20,
    )
    consume: str = option(
        "consume",
        kinds.choice("none", "purge", "reset"),
        "how messages are freed after their micro-batch is committed: not at all, by a "
        "purge, or by moving the anchor consumer of an interest stream",
        default="none",
    )
    anchor: str | None = option(
        "anchor",
        kinds.text,
        "name of the durable consumer that holds the interest for consume=reset",
    )
    low_latency: bool = option(
        "lowLatency",
        kinds.flag,
        "read micro-batches on the driver: for few messages that must be there soon; "
        "without a limit a batch has 10,000 messages at most",
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where rows are published, and what happens to those that come twice."""

    connection: ConnectionOptions
    has_async_progress: bool = False  # Spark's option: batches may be cut otherwise
    refusals: str | None = None  # the file of a `Refusals`
    stream: str | None = option(
        "stream", kinds.stream, "the stream that has to store the rows; else any"
    )
    subject: str | None = option(
        "subject", kinds.subject, "the subject of rows that have no column `subject`"
    )
    dedup: str = option(
        "dedup",
        kinds.choice("content", "column", "none"),
        "where message ids come from: the rows' content, the column `msg_id`, or none",
        default="content",
    )
    exactly_once: str = option(
        "exactlyOnce",
        kinds.choice("window", "ledger"),
        "how long a replayed row is recognised: within the stream's duplicate window, "
        "or always, by a ledger",
        default="window",
    )
    ledger: str | None = option(
        "ledger", kinds.text, "the name of the ledger, for exactlyOnce=ledger"
    )
    max_inflight: int = option(
        "maxInflight",
        kinds.count,
        "rows of a task that may wait for their acknowledgement; raise it where that "
        "takes 10 ms or more",
        # With fewer the server is idle at times while Spark hands over the next rows.
        default=3000,
    )
    on_error: str = option(
        "onError",
        kinds.choice("fail", "skip"),
        "what to do with a row that the server refuses",
        default="fail",
    )


_Table = TypeVar("_Table", ConnectionOptions, SourceOptions, SinkOptions)


def table(part: type[object]) -> tuple[Option, ...]:
    """The rows of one part: ConnectionOptions, SourceOptions or SinkOptions."""
    fields = dataclasses.fields(part)  # type: ignore[arg-type]  # it is one of these
    return tuple(f.metadata["option"] for f in fields if "option" in f.metadata)


def _known_names() -> dict[str, str]:
    """Every spelling in lower case, with the name as it is written."""
    known = {"path": "path"}
    for part in (ConnectionOptions, SourceOptions, SinkOptions):
        for row in table(part):
            for name in (row.name, *row.aliases):
                known[name.lower()] = name
    return known


KNOWN = _known_names()
# The options that nobody may see.
SECRETS = tuple(row.name for row in table(ConnectionOptions) if row.is_secret)


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a source; OptionError names the first that is wrong."""
    options = _read(SourceOptions, given, connection=_connection_options(given))
    if not options.stream:
        raise OptionError("stream", "it says which stream to read, and is missing")
    for one, other in (
        (options.starting_offsets, options.starting_timestamp),
        (options.ending_offsets, options.ending_timestamp),
    ):
        if one is not None and other is not None:
            name = "starting" if one is options.starting_offsets else "ending"
            raise OptionError(f"{name}Timestamp", f"give it or {name}Offsets, not both")
    if options.anchor is not None and options.consume != "reset":
        raise OptionError("anchor", "it needs consume=reset")
    if options.anchor is None and options.consume == "reset":
        raise OptionError("anchor", "consume=reset needs its name, one for each query")
    return options


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a sink; OptionError names the first that is wrong."""
    values = {name.lower(): str(value) for name, value in given.items()}
    is_async = values.get("asyncprogresstrackingenabled", "").strip().lower() == "true"
    options = _read(
        SinkOptions,
        given,
        connection=_connection_options(given),
        has_async_progress=is_async,
        refusals=values.get(refusals.OPTION),
    )
    if is_async and options.exactly_once == "ledger":
        raise OptionError(
            "exactlyOnce",
            "a ledger counts batches, which asyncProgressTrackingEnabled makes others "
            "after a restart: rows would be lost",
        )
    return options


def as_here(given: Mapping[str, str]) -> dict[str, str]:
    """The same options for other machines: what only this one knows is filled in.

    That is its NATS_URL, and the file of a context. OptionError if that is of no use.
    """
    found = {name: value for name, value in given.items() if name.lower() != "context"}
    names = {name.lower() for name in found}
    for name, value in given.items():
        if name.lower() == "context":
            from_file = read_context(str(value)).items()
            found |= {key: text for key, text in from_file if key.lower() not in names}
    if "servers" not in {name.lower() for name in found}:
        found["servers"] = os.environ.get("NATS_URL") or DEFAULT_URL
    return found


def _connection_options(given: Mapping[str, str]) -> ConnectionOptions:
    _refuse_unknown(given)
    options = _read(ConnectionOptions, as_here(given))
    if (options.tls_cert is None) != (options.tls_key is None):
        missing = "tlsKey" if options.tls_key is None else "tlsCert"
        raise OptionError(missing, "tlsCert and tlsKey belong together")
    if options.password is not None and options.user is None:
        raise OptionError("user", "a password needs it")
    ways = {
        "creds": options.creds,
        "nkey": options.nkey,
        "token": options.token,
        "user": options.user,
    }
    first, *others = [name for name, value in ways.items() if value] or [""]
    if others:
        raise OptionError(others[0], f"give it or {first}, not both")
    if options.domain is not None and options.api_prefix is not None:
        raise OptionError("apiPrefix", "give it or domain, not both")
    return options


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        key = name.lower()
        # Names with dots are settings of Spark, which ends up here in some catalogs.
        if key in KNOWN or key in SPARKS_OWN or "." in key or key.startswith("_"):
            continue
        near = difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.6)
        hint = f"did you mean {KNOWN[near[0]]}?" if near else "see the table of options"
        raise OptionError(name, f"there is no such option; {REFUSED.get(key, hint)}")


def _read(part: type[_Table], given: Mapping[str, str], **others: Any) -> _Table:
    values = {name.lower(): value for name, value in given.items()}
    if part is not ConnectionOptions and "path" in values:
        # load("NAME") and save("NAME") arrive like that.
        if values.get("stream", values["path"]) != values["path"]:
            raise OptionError("path", "load() and the option stream name two streams")
        values["stream"] = values["path"]
    found: dict[str, Any] = dict(others)
    for field in dataclasses.fields(part):
        if "option" not in field.metadata:
            continue
        row: Option = field.metadata["option"]
        spelled = [n for n in (row.name, *row.aliases) if n.lower() in values]
        if len(spelled) > 1:
            raise OptionError(spelled[1], f"give it or {spelled[0]}, not both")
        if spelled:
            found[field.name] = _value(row, spelled[0], values[spelled[0].lower()])
    return part(**found)


def _value(row: Option, name: str, value: object) -> Any:
    try:
        return row.read(value if isinstance(value, str) else str(value))
    except ValueError as error:
        problem = str(error)
    raise OptionError(name, problem)
