"""What a pipeline says of its batches, to people and to machines; and of failures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsclient.spark.pipeline.description import PipelineError
from jsclient.spark.pipeline.reasons import is_data_loss, reason
from jsclient.spark.pipeline.report import Batch, Report, batch_of
from jsclient.spark.pipeline.run import _Watched
from jsclient.spark.refusals import Refusals, note
from tests.spark.readers import since_42


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def batch(
    number: int, *, query: str = "p.files", lag: int | None = 7, skipped: int = 0
) -> Batch:
    return Batch(
        time="2026-11-18T00:00:00.000Z",
        pipeline="p",
        query=query,
        batch=number,
        rows=5000,
        seconds=0.5,
        rows_per_second=10_000.0,
        lag=lag,
        skipped=skipped,
    )


def progress(number: int, *, is_batch: bool = True) -> Any:
    """What Spark tells of a batch, or that there was none."""
    took = {"triggerExecution": 200, **({"addBatch": 100} if is_batch else {})}
    ends = {"endOffset": '{"next": 10}', "latestOffset": '{"next": 12}'}
    return SimpleNamespace(
        id="an id",
        name="p.files",
        timestamp="2026-11-18T00:00:00.000Z",
        batchId=number,
        batchDuration=200,
        durationMs=took,
        numInputRows=50,
        sources=[SimpleNamespace(**ends)],
    )


class Clock:
    """Seconds that pass when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal()


def lines(screen: Terminal) -> list[str]:
    """What the live line was, one after another."""
    assert "\n" not in screen.getvalue()
    before, *found = screen.getvalue().split("\r\x1b[K")
    assert before == ""
    return found


def test_a_terminal_shows_one_line_that_is_written_over_and_goes_away(
    screen: Terminal, clock: Clock
) -> None:
    with Report(None, screen, name="p", clock=clock) as report:
        report.say("starting Spark")
        report.done(batch(1))
        report.done(batch(2))
        report.done(batch(0, query="p.out", lag=None, skipped=1200))
    assert lines(screen) == [
        "p: starting Spark",
        "p: 5,000 rows, 10,000 rows/s, lag 7, batch 0.50 s",
        "p: 10,000 rows, 10,000 rows/s, lag 7, batch 0.50 s",
        "p: 15,000 rows, 1,200 skipped, 20,000 rows/s, lag 7, batch 0.50 s",
        "",
    ]


def test_the_line_tells_how_long_a_batch_has_been_running(
    screen: Terminal, clock: Clock
) -> None:
    report = Report(None, screen, name="p", clock=clock)
    clock.now += 20.0  # Spark was starting
    report.started()
    report.tick(["p.files"])
    clock.now += 3.0
    report.tick(["p.files"])
    report.done(batch(0))
    clock.now += 0.5
    report.tick(["p.files"])
    clock.now += 60.0
    report.tick(["p.files"])
    batch_0 = "p: 5,000 rows, 10,000 rows/s, lag 7, batch 0.50 s"
    assert lines(screen) == [
        "p: 0 rows",
        "p: 0 rows, running 3 s",
        batch_0,
        batch_0,
        f"{batch_0}, running 60 s",
    ]


def test_a_pipeline_that_waits_shows_how_long_and_no_rate(
    screen: Terminal, clock: Clock
) -> None:
    report = Report(None, screen, name="p", clock=clock)
    clock.now += 2.0
    report.tick([])
    report.done(batch(0))
    clock.now += 0.5  # between two batches it is not waiting yet
    report.tick([])
    report.done(batch(0, query="p.out"))
    clock.now += 2.0
    report.tick(["p.out"])
    clock.now += 4.0
    report.tick([])
    assert lines(screen) == [
        "p: 0 rows, waiting 2 s",
        "p: 5,000 rows, 10,000 rows/s, lag 7, batch 0.50 s",
        "p: 5,000 rows, 10,000 rows/s, lag 7, batch 0.50 s",
        "p: 10,000 rows, 20,000 rows/s, lag 7, batch 0.50 s",
        "p: 10,000 rows, 10,000 rows/s, lag 7, batch 0.50 s, running 2 s",
        "p: 10,000 rows, lag 7, batch 0.50 s, waiting 6 s",
    ]


def test_a_line_is_no_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Terminal()
    with Report(None, screen, name="p") as report:
        report.done(batch(1))
        report.say("writing to a place with a long name")
    assert [len(line) for line in lines(screen)] == [19, 19, 0]


def test_elsewhere_there_is_one_line_of_json_for_each_batch() -> None:
    screen = io.StringIO()
    with Report(None, screen) as report:
        report.say("starting Spark")
        report.done(batch(1))
        report.tick(["p.files"])
        report.done(batch(2))
    assert [json.loads(line) for line in screen.getvalue().splitlines()] == [
        {
            "time": "2026-11-18T00:00:00.000Z",
            "pipeline": "p",
            "query": "p.files",
            "batch": number,
            "rows": 5000,
            "seconds": 0.5,
            "rows_per_second": 10_000.0,
            "lag": 7,
            "skipped": 0,
        }
        for number in (1, 2)
    ]


@pytest.mark.parametrize("screen", [Terminal(), io.StringIO()])
def test_a_log_gets_the_lines_of_json_wherever_it_runs(
    screen: io.StringIO, tmp_path: Path
) -> None:
    path = tmp_path / "batches.jsonl"
    for number in (1, 2):  # it is added to
        with Report(str(path), screen) as report:
            report.done(batch(number))
    numbers = [json.loads(line)["batch"] for line in path.read_text().splitlines()]
    assert numbers == [1, 2]
    assert "{" not in screen.getvalue()


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"^\[pipeline\] log: .* cannot be written"):
        Report(str(tmp_path / "nowhere" / "log"))


@since_42  # before, it tells no lag
def test_what_spark_tells_of_a_batch_is_understood() -> None:
    found = batch_of("p", progress(3))
    assert found is not None
    assert (found.batch, found.rows, found.seconds, found.lag) == (3, 50, 0.2, 2)
    assert found.rows_per_second == 250.0
    assert batch_of("p", progress(4, is_batch=False)) is None


def test_rows_that_were_skipped_belong_to_their_batch_and_are_told_once() -> None:
    with Refusals() as refusals:
        note(refusals.path, "an id", 3, 2)
        note(refusals.path, "an id", 3, 5)  # by another sink of the query
        note(refusals.path, "another", 3, 1)
        note(refusals.path, None, 0, 4)
        found = [batch_of("p", progress(n), refusals) for n in (2, 3, 3)]
        assert [each and each.skipped for each in found] == [0, 7, 0]
        assert refusals.take(None, 0) == 4
        path = refusals.path
    note(path, "an id", 4, 1)  # nobody is there any more
    known = batch_of("p", progress(3))
    assert known is not None
    assert known.skipped is None


def test_batches_that_ended_between_two_looks_are_all_told_once() -> None:
    query: Any = SimpleNamespace(name="p", lastProgress=None, recentProgress=[])
    watched = _Watched("p", query)
    assert list(watched.news()) == []
    query.lastProgress = progress(0)
    assert [each.batch for each in watched.news()] == [0]
    assert list(watched.news()) == []
    query.recentProgress = [progress(number) for number in range(4)]
    query.lastProgress = query.recentProgress[-1]
    assert [each.batch for each in watched.news()] == [1, 2, 3]
    query.lastProgress = progress(4, is_batch=False)  # nothing new has come
    assert list(watched.news()) == []
    assert watched.last is not None
    assert watched.last.batchId == 3


LOST = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed: Traceback (most recent call last):
  File "source.py", line 1, in latestOffset
jsclient.spark.errors.DataLossError: DATA_LOSS: stream 'S': messages 1..5 are gone
 SQLSTATE: 38000
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOST, "DATA_LOSS: stream 'S': messages 1..5 are gone"),
        ("Traceback:\nValueError: first\nKeyError: second\n", "KeyError: second"),
        ("[A_B] Failed: Traceback:\n  File\nMemoryError\n", "MemoryError"),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] `a` cannot be found. SQLSTATE: 42P01; line 1",
            "[TABLE_OR_VIEW_NOT_FOUND] `a` cannot be found",
        ),
        ("An error occurred.\n: java.X: [NOT_FOUND] no b\n", "[NOT_FOUND] no b"),
        ("plain\nwords", "plain"),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_of_a_failure_is_one_telling_line(text: str, expected: str) -> None:
    error = RuntimeError(text)
    assert reason(error) == expected
    assert is_data_loss(error) == ("DATA_LOSS" in text)
