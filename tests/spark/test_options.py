"""The table of options: every bad value is named, and no secret is shown."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from jsclient.spark.errors import OptionError
from jsclient.spark.options import (
    KNOWN,
    ConnectionOptions,
    SinkOptions,
    SourceOptions,
    as_here,
    sink_options,
    source_options,
    table,
)


def test_names_are_case_insensitive_and_have_their_defaults() -> None:
    options = source_options({"STREAM": "S", "numpartitions": "3"})
    assert options.stream == "S"
    assert options.num_partitions == 3
    assert options.fail_on_data_loss is True
    assert options.connection.servers == ("nats://127.0.0.1:4222",)


def test_load_and_save_name_the_stream() -> None:
    assert source_options({"path": "S"}).stream == "S"
    assert sink_options({"path": "S"}).stream == "S"
    with pytest.raises(OptionError, match="two streams"):
        source_options({"path": "S", "stream": "T"})


def test_an_alias_is_the_option_itself() -> None:
    given = {"stream": "S", "maxOffsetsPerTrigger": "7"}
    assert source_options(given).max_records == 7
    with pytest.raises(OptionError, match="maxRecordsPerTrigger, not both"):
        source_options({**given, "maxRecordsPerTrigger": "7"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("straem", "stream"),
        ("maxRecordPerTrigger", "maxRecordsPerTrigger"),
        ("starting_offsets", "startingOffsets"),
        ("credentials", "creds"),
        ("dedupe", "dedup"),
        ("contexts", "context"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=rf"{name}.*did you mean {nearest}\?"):
        source_options({"stream": "S", name: "1"})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pushdown", "wrong results"),
        ("retries", "requestTimeout"),
        ("secretProvider", "see the table of options"),
    ],
)
def test_what_others_have_and_we_do_not_is_refused_with_the_reason(
    name: str, says: str
) -> None:
    with pytest.raises(OptionError, match=rf"option {name}: there is no.*{says}"):
        source_options({"stream": "S", name: "x"})


# What only the driver knows -----------------------------------------------------------


def test_the_drivers_servers_go_with_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://driver:1")
    assert as_here({"stream": "S"})["servers"] == "nats://driver:1"
    given = {"stream": "S", "SERVERS": "nats://given:1"}
    assert as_here(given) == given
    monkeypatch.delenv("NATS_URL")
    assert source_options(as_here({"stream": "S"})).connection.servers == (
        "nats://127.0.0.1:4222",
    )


def saved(folder: Path, **fields: object) -> str:
    """A context as the command writes it: most fields are empty."""
    path = folder / "nats" / "context" / "work.json"
    path.parent.mkdir(parents=True)
    empty = {"description": "for work", "token": "", "nsc": "", "tls_first": False}
    path.write_text(json.dumps({**empty, **fields}))
    return str(path)


def test_a_context_says_where_servers_are_and_who_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = saved(
        tmp_path,
        url="nats://a:1,nats://b:2",
        creds="~/work.creds",
        ca="/ca.pem",
        jetstream_domain="hub",
        inbox_prefix="_ME",
        tls_first=True,
    )
    for context in ("work", path):
        found = source_options({"stream": "S", "context": context}).connection
        assert found.servers == ("nats://a:1", "nats://b:2")
        assert found.creds == str(Path.home() / "work.creds")
        assert (found.tls_ca, found.domain, found.tls_first) == (
            "/ca.pem",
            "hub",
            True,
        )
        assert found.inbox_prefix == "_ME"
    given = {"stream": "S", "context": "work", "Servers": "nats://c:3"}
    assert sink_options(given).connection.servers == ("nats://c:3",)
    # Nothing else is needed on another machine.
    there = as_here(given)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert source_options(there).connection.domain == "hub"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"nsc": "nsc://o/a/u"}, "nsc in"),
        ({"user_jwt": "hidden"}, "user_jwt in"),
        ({"url": ["hidden"]}, "url in"),
    ],
)
def test_a_context_that_says_what_we_cannot_do_is_refused(
    tmp_path: Path, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(OptionError, match=f"option context: {says}") as caught:
        source_options({"stream": "S", "context": saved(tmp_path, **fields)})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "hidden", "[]"])
def test_a_context_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "work.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OptionError, match=r"option context: .*work\.json") as caught:
        source_options({"stream": "S", "context": str(path)})
    assert "hidden" not in str(caught.value)


# Values -------------------------------------------------------------------------------


def test_what_spark_adds_is_no_unknown_option() -> None:
    given = {"stream": "S", "checkpointLocation": "/c", "spark.x": "1", "_internal": ""}
    assert sink_options(given).stream == "S"


def test_the_source_takes_the_options_of_the_sink_for_views_that_are_both() -> None:
    assert source_options({"stream": "S", "dedup": "none"}).stream == "S"
    assert sink_options({"stream": "S", "readMode": "direct"}).stream == "S"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("stream", "", "one stream"),
        ("stream", "a.b", "one stream"),
        ("stream", "A,B", "union"),
        ("subject", "a..b", "no subject"),
        ("subject", "a,,b", "empty"),
        ("subject", "a.>.b", "no subject"),
        ("subject", "[1]", "JSON list"),
        ("numPartitions", "0", "at least 1"),
        ("numPartitions", "-1", "at least 1"),
        ("maxRecordsPerTrigger", "1.5", "at least 1"),
        ("minRecordsPerTrigger", "many", "at least 1"),
        ("maxRecordsPerTrigger", str(1 << 63), "too large"),
        ("maxBytesPerTrigger", "1 parsec", "a size"),
        ("maxTriggerDelay", "soon", "a time"),
        ("requestTimeout", "-1s", "a time"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("readMode", "fast", "auto, direct, consumer"),
        ("consume", "eat", "none, purge, reset"),
        ("servers", "nats://", "nats://host:4222"),
        ("startingOffsets", "yesterday", "earliest, latest, a sequence"),
        ("endingOffsets", "-5", "a sequence from 1 on"),
        ("startingOffsets", "{", "no JSON"),
        ("startingTimestamp", "soon", "milliseconds since 1970"),
        ("endingTimestamp", "2026-13-01", "milliseconds since 1970"),
    ],
)
def test_a_bad_value_names_its_option(name: str, value: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        source_options({"stream": "S", name: value})
    assert caught.value.option == name
    assert str(caught.value).startswith(f"option {name}: ")
    assert isinstance(caught.value, ValueError)


def test_the_sink_publishes_to_one_subject_without_wildcards() -> None:
    assert sink_options({"subject": "a.b"}).subject == "a.b"
    for value in ("a.*", "a,b", ">"):
        with pytest.raises(OptionError, match="without wildcards"):
            sink_options({"subject": value})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "stream"),
        ({"stream": "S", "startingOffsets": "1", "startingTimestamp": "1"}, "not both"),
        ({"stream": "S", "endingOffsets": "1", "endingTimestamp": "1"}, "not both"),
        ({"stream": "S", "token": "t", "user": "u"}, "user.*token"),
        ({"stream": "S", "password": "p"}, "user"),
        ({"stream": "S", "tlsCert": "c"}, "tlsKey"),
        ({"stream": "S", "domain": "d", "apiPrefix": "p"}, "apiPrefix"),
        ({"stream": "S", "anchor": "a"}, "consume=reset"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    given: dict[str, str], says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        source_options(given)


@pytest.mark.parametrize(
    ("value", "size"), [("500000", 500000), ("64k", 65536), ("8MB", 8 << 20)]
)
def test_sizes_may_have_units(value: str, size: int) -> None:
    assert (
        source_options({"stream": "S", "maxFetchBytes": value}).max_fetch_bytes == size
    )


@pytest.mark.parametrize(
    ("value", "span"), [("2", 2.0), ("500ms", 0.5), ("15 minutes", 900.0)]
)
def test_times_may_have_units(value: str, span: float) -> None:
    given = {"stream": "S", "maxTriggerDelay": value}
    assert source_options(given).max_trigger_delay == span


def test_no_secret_is_in_the_text_of_options_or_errors() -> None:
    given = {
        "stream": "S",
        "servers": "nats://someone:hidden1@127.0.0.1:1",
        "password": "hidden2",
        "user": "u",
    }
    options = source_options(given)
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    for shown in (repr(options), str(options), repr(again), repr(options.connection)):
        assert "hidden" not in shown
    for name, value in (("servers", "nats://x:hidden3@"), ("token", "")):
        with pytest.raises(OptionError) as caught:
            source_options({"stream": "S", name: value})
        assert "hidden" not in str(caught.value) + repr(caught.value)
        assert caught.value.__context__ is None


def test_every_option_says_what_it_means_and_no_two_share_a_name() -> None:
    parts = (ConnectionOptions, SourceOptions, SinkOptions)
    rows = [row for part in parts for row in table(part)]
    assert all(row.text for row in rows)
    names = {name.lower() for row in rows for name in (row.name, *row.aliases)}
    assert names | {"path"} == set(KNOWN)
