"""What the file of a pipeline may say, and how each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsclient.spark.pipeline.description import Pipeline, PipelineError
from jsclient.spark.pipeline.toml import load, parse

HEAD = '[pipeline]\nname = "p"\ncheckpoint = "checkpoints"\n'
SOURCE = '[source.orders]\nstream = "ORDERS"\n'
SINK = '[sink.out]\nfrom = "orders"\nformat = "noop"\n'
UPDATED = 'path = "x"\noutput_mode = "update"\n'
HERE = Path("/here")

EVERYTHING = """
[pipeline]
name = "orders"
mode = "stream"
trigger = "available_now"
checkpoint = "state/checkpoints"
master = "local[2]"
log = "/var/log/orders.jsonl"

[spark]
"spark.sql.shuffle.partitions" = 4

[jetstream]
servers = "nats://${HOST}:4222"
password = "${PASSWORD}"
user = "app"

[source.orders]
stream = "ORDERS"
numPartitions = 2
startingTimestamp = 2026-11-01T00:00:00Z
json_schema = "id BIGINT, total DOUBLE"
failOnDataLoss = false
subject = ["orders.eu", "orders.us"]

[source.regions]
format = "csv"
path = "s3://bucket/regions"
schema = "name STRING"
static = true
options = { header = true }

[transform.big]
sql = "select value.* from orders where value.total > 10 and '${x}' = '$$'"

[transform.counts]
sql = "select count(*) from big"

[sink.files]
from = "big"
format = "parquet"
path = "out/big"
partition_by = ["region"]

[sink.news]
from = "counts"
output_mode = "update"
subject = "counts"
user = "another"
"""


def pipeline(*parts: str) -> Pipeline:
    return parse("".join(parts), folder=HERE, env={})


def told(*parts: str, env: dict[str, str] | None = None) -> str:
    """The one line that is said about a file."""
    with pytest.raises(PipelineError) as wrong:
        parse("".join(parts), folder=HERE, env=env or {})
    text = str(wrong.value)
    assert "\n" not in text
    return text


def test_everything_that_a_file_says_is_there() -> None:
    env = {"HOST": "nats.example.com", "PASSWORD": "$$ecret"}
    whole = parse(EVERYTHING, folder=HERE, env=env)
    assert (whole.name, whole.mode, whole.trigger) == (
        "orders",
        "stream",
        "available_now",
    )
    assert whole.checkpoint == "/here/state/checkpoints"
    assert (whole.master, whole.log) == ("local[2]", "/var/log/orders.jsonl")
    assert whole.spark == {"spark.sql.shuffle.partitions": "4"}

    orders, regions = whole.sources
    assert orders.options == {
        "servers": "nats://nats.example.com:4222",
        "password": "$$ecret",
        "user": "app",
        "stream": "ORDERS",
        "numPartitions": "2",
        "startingTimestamp": "2026-11-01T00:00:00+00:00",
        "failOnDataLoss": "false",
        "subject": '["orders.eu", "orders.us"]',
    }
    assert orders.json_schema == "id BIGINT, total DOUBLE"
    assert (regions.format, regions.path) == ("csv", "s3://bucket/regions")
    assert (regions.options, regions.is_static) == ({"header": "true"}, True)
    assert whole.streams == (orders,)

    assert [transform.name for transform in whole.transforms] == ["big", "counts"]
    assert "'${x}' = '$$'" in whole.transforms[0].sql

    files, news = whole.sinks
    assert (files.path, files.partition_by) == ("/here/out/big", ("region",))
    assert (files.output_mode, news.output_mode) == ("append", "update")
    assert news.format == "jetstream"
    assert news.options["user"] == "another"
    assert [query.checkpoint for query in whole.queries()] == [
        "/here/state/checkpoints/files",
        "/here/state/checkpoints/news",
    ]


def test_a_file_is_read_from_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(HEAD + SOURCE + SINK)
    assert load(file).checkpoint == str(tmp_path / "checkpoints")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(
        PipelineError, match=r"^\[nowhere.toml\]: it cannot be read: No such"
    ):
        load("nowhere.toml")


@pytest.mark.parametrize(
    "written",
    [
        "[spark]\n'spark.sql.shuffle.partitions' = 4\n",
        "[spark]\nspark.sql.shuffle.partitions = 4\n",
        "[spark]\nsql.shuffle.partitions = 4\n",
        "[spark.sql]\nshuffle.partitions = 4\n",
    ],
)
def test_settings_of_spark_may_be_written_as_tables(written: str) -> None:
    settings = pipeline(HEAD, SOURCE, SINK, written).spark
    assert settings == {"spark.sql.shuffle.partitions": "4"}


def test_options_do_not_show() -> None:
    source = SOURCE + 'token = "tiger"\n'
    assert "tiger" not in repr(pipeline(HEAD, source, SINK))


def test_shared_sinks_are_one_query_with_one_checkpoint() -> None:
    second = SINK.replace("sink.out", "sink.too")
    (query,) = pipeline(HEAD, "shared = true\n", SOURCE, SINK, second).queries()
    assert [sink.name for sink in query.sinks] == ["out", "too"]
    assert query.checkpoint == "/here/checkpoints/_shared"


def test_the_sources_of_a_table_are_found_through_all_transforms() -> None:
    more = SOURCE.replace("source.orders", "source.others")
    first = '[transform.a]\nsql = "select * from Orders"\n'
    second = '[transform.b]\nsql = "select * from a join others"\n'
    whole = pipeline(HEAD, SOURCE, more, first, second, SINK)
    assert whole.origins("a") == {"a", "orders"}
    assert whole.origins("b") == {"a", "b", "orders", "others"}
    assert whole.origins("others") == {"others"}


MISTAKES = [
    ("[pipelin]", "[pipelin]: there is no such table; did you mean pipeline?"),
    ("x = ", "[TOML]: "),
    ("", "[pipeline]: there is no such table"),
    ("[pipeline]", "[pipeline] name: it is missing"),
    (
        HEAD.replace("checkpoint", "chekpoint") + SOURCE + SINK,
        "[pipeline] chekpoint: there is no such key; did you mean checkpoint?",
    ),
    (
        HEAD + 'mode = "steam"\n',
        "[pipeline] mode: it must be stream or batch, not 'steam'",
    ),
    (HEAD + "shared = 1\n", "[pipeline] shared: it must be true or false, not int"),
    (
        HEAD + 'trigger = "soon"\n',
        '[pipeline] trigger: it must be available_now or a time like "5 seconds"',
    ),
    (
        HEAD + 'mode = "batch"\ntrigger = "5 seconds"\n',
        '[pipeline] trigger: it is for mode = "stream"',
    ),
    (HEAD + SINK, "[sink.out] from: there is no source or transform 'orders'"),
    (HEAD + SOURCE, "[sink.NAME]: there is no sink"),
    (
        '[pipeline]\nname = "p"\n' + SOURCE + SINK,
        "[pipeline] checkpoint: a stream needs a folder",
    ),
    (
        HEAD + SOURCE.replace("stream =", "steam =") + SINK,
        "[source.orders] steam: there is no such key; did you mean stream?",
    ),
    (
        HEAD + SOURCE + "num_partitions = 2\n" + SINK,
        "[source.orders] num_partitions: there is no such key; did you mean numParti",
    ),
    (
        HEAD + SOURCE + "numPartitions = 0\n" + SINK,
        "[source.orders] numPartitions: it must be a whole number of at least 1",
    ),
    (
        HEAD + SOURCE + "stream2 = {}\n" + SINK,
        "[source.orders] stream2: there is no such key; did you mean stream?",
    ),
    (
        HEAD + SOURCE + "subject = [1]\n" + SINK,
        "[source.orders] subject: it must be a string, a number,",
    ),
    (
        HEAD + "[source.orders]\nnumPartitions = 1\n" + SINK,
        "[source.orders] stream: it says which stream to read, and is missing",
    ),
    (
        HEAD + "[jetstream]\nconnectTimeout = 'x'\n" + SOURCE + SINK,
        "[jetstream] connectTimeout: it must be a time",
    ),
    (
        HEAD + "[jetstream]\nstream = 'x'\n" + SOURCE + SINK,
        "[jetstream] stream: there is no such key",
    ),
    (
        HEAD + '[source.a]\nformat = "csv"\njson_schema = "a INT"\n' + SINK,
        "[source.a] json_schema: it is for the format jetstream",
    ),
    (HEAD + "[source]\na = 1\n", "[source] a: a source is a table: [source.NAME]"),
    (HEAD + '[source."a b"]\n', "[source.a b]: a name is a letter and then"),
    (
        HEAD + SOURCE + "static = true\n" + SINK,
        '[pipeline] mode: a stream needs a source without "static = true"',
    ),
    (HEAD + SOURCE + "[transform.a]\n" + SINK, "[transform.a] sql: it is missing"),
    (
        HEAD + SOURCE + "[transform.ORDERS]\nsql = 'select 1'\n" + SINK,
        "[transform.ORDERS]: [source.orders] has that name too",
    ),
    (
        HEAD + SOURCE + SINK.replace('"orders"', '"order"'),
        "[sink.out] from: there is no source or transform 'order'; did you mean orders",
    ),
    (
        HEAD + SOURCE + SINK.replace("noop", "parket"),
        "[sink.out] format: there is no such format; did you mean parquet?",
    ),
    (
        HEAD + SOURCE + SINK.replace("noop", "parquet"),
        "[sink.out] path: the format parquet needs it",
    ),
    (
        HEAD + SOURCE + SINK + 'path = "x"\n',
        "[sink.out] path: there is no such key",
    ),
    (
        HEAD + SOURCE + SINK.replace("noop", "parquet") + UPDATED,
        "[sink.out] output_mode: it must be append, not 'update'",
    ),
    (
        HEAD + SOURCE + SINK + 'save_mode = "append"\n',
        '[sink.out] save_mode: it is for [pipeline] mode = "batch"',
    ),
    (
        HEAD + 'mode = "batch"\n' + SOURCE + SINK + 'output_mode = "append"\n',
        '[sink.out] output_mode: it is for [pipeline] mode = "stream"',
    ),
    (
        HEAD + "shared = true\n" + SOURCE + SINK + 'output_mode = "update"\n',
        "[sink.out] output_mode: update needs a query of its own",
    ),
    (
        HEAD + "shared = true\n" + SOURCE + SINK + 'checkpoint = "x"\n',
        "[sink.out] checkpoint: a shared query has that of [pipeline]",
    ),
    (
        HEAD
        + "shared = true\n"
        + SOURCE
        + SOURCE.replace("source.orders", "source.others")
        + SINK,
        "[pipeline] shared: only the rows of one streaming source can be shared, not",
    ),
    (
        HEAD
        + SOURCE
        + 'consume = "purge"\n'
        + SINK
        + SINK.replace("sink.out", "sink.too"),
        "[source.orders] consume: a sink would free messages that another",
    ),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_one_line_with_its_table_and_key(text: str, said: str) -> None:
    assert told(text).startswith(said)


def test_a_variable_that_is_not_set_is_named() -> None:
    source = SOURCE.replace("ORDERS", "${STREAM}")
    assert told(HEAD, source, SINK) == (
        "[source.orders] stream: the environment has no variable STREAM"
    )


@pytest.mark.parametrize("place", ["[jetstream]\n", SOURCE])
def test_no_mistake_shows_the_value_of_a_variable(place: str) -> None:
    wrong = place + 'connectTimeout = "${SECRET}"\n'
    rest = SOURCE if place == "[jetstream]\n" else ""
    said = told(HEAD, wrong, rest, SINK, env={"SECRET": "tiger"})
    assert "connectTimeout: its value cannot be used" in said
    mode = told(HEAD, 'mode = "${SECRET}"\n', SOURCE, SINK, env={"SECRET": "tiger"})
    assert mode == "[pipeline] mode: it must be stream or batch, not '${SECRET}'"


def test_sources_that_free_messages_may_have_one_sink_each() -> None:
    first = SOURCE + 'consume = "purge"\n'
    second = first.replace("source.orders", "source.others")
    sink = SINK.replace("sink.out", "sink.too").replace('"orders"', '"others"')
    assert len(pipeline(HEAD, first, second, SINK, sink).queries()) == 2
