"""The pure parts of the benchmark: medians, ratios, and how the table shows them."""

from __future__ import annotations

import pytest

from bench.cells import CELLS, CPU, RATE, Beside, Cell, Figure, field, per_message
from bench.report import (
    align,
    figure_median,
    format_number,
    format_ratio,
    ratio,
    summary,
    table,
)

SPEED = Figure("speed", field("speed"))
PURE = Figure("pure", field("pure"), is_flag=True)
CELL = Cell("run", "runs", (SPEED, PURE), messages=10, quick=1)


def test_a_median_is_taken_over_the_samples_that_have_the_figure() -> None:
    samples = [{"speed": 3.0}, {}, {"speed": 1.0}, {"speed": 2.0}]
    assert figure_median(SPEED, samples) == 2.0


def test_an_even_number_of_samples_has_its_median_in_the_middle() -> None:
    assert figure_median(SPEED, [{"speed": 1.0}, {"speed": 4.0}]) == 2.5


@pytest.mark.parametrize("samples", [[], [{}], [{"other": 1.0}]])
def test_without_a_value_there_is_no_median(samples: list[dict[str, float]]) -> None:
    assert figure_median(SPEED, samples) is None


def test_a_ratio_says_how_many_times_the_floor_a_value_is() -> None:
    assert ratio(3.0, 2.0) == 1.5


@pytest.mark.parametrize(
    ("value", "floor"), [(None, 2.0), (3.0, None), (3.0, 0.0), (3.0, -1.0)]
)
def test_there_is_no_ratio_without_a_value_and_a_positive_floor(
    value: float | None, floor: float | None
) -> None:
    assert ratio(value, floor) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.8, "1,234,568"),
        (999.6, "1,000"),
        (123.4, "123"),
        (99.96, "100"),
        (99.94, "99.9"),
        (12.345, "12.3"),
        (9.996, "10.0"),
        (1.234, "1.23"),
        (0.9996, "1.00"),
        (0.1234, "0.123"),
        (0.0, "0.00"),
        (-12.34, "-12.3"),
        (None, "-"),
    ],
)
def test_numbers_are_shown_with_three_digits_or_their_whole_part(
    value: float | None, text: str
) -> None:
    assert format_number(value) == text


def test_ratios_are_marked_as_such() -> None:
    assert format_ratio(1.5) == "1.50x"
    assert format_ratio(None) == "-"


def test_columns_stand_under_each_other_below_a_ruled_header() -> None:
    assert align([["a", "bb", "c"], ["aaa", "b", "100"], ["", "b", "1"]]).split(
        "\n"
    ) == [
        "a    bb    c",
        "------------",
        "aaa  b   100",
        "     b     1",
    ]


def test_the_table_shows_medians_flags_and_ratios_to_the_floor() -> None:
    results = {
        "run": {
            "floor": [{"speed": 2.0}],
            "ours": [{"speed": 3.0, "pure": 1.0}, {"speed": 5.0, "pure": 1.0}],
            "theirs": [{"pure": 0.0}],
        }
    }
    assert table([CELL], ["floor", "ours", "theirs"], results).split("\n") == [
        "cell  figure  floor  ours  /floor  theirs  /floor",
        "-------------------------------------------------",
        "run   speed    2.00  4.00   2.00x       -       -",
        "      pure        -   yes       -      no       -",
    ]


def test_a_table_without_the_floor_has_no_ratios() -> None:
    lines = table([CELL], ["ours"], {"run": {"ours": [{"speed": 3.0}]}}).split("\n")
    assert lines[0] == "cell  figure  ours"
    assert lines[2] == "run   speed   3.00"


def test_a_cell_that_nobody_ran_is_shown_empty() -> None:
    lines = table([CELL], ["ours"], {}).split("\n")
    assert lines[2] == "run   speed      -"


def test_the_summary_keeps_every_sample_beside_medians_and_ratios() -> None:
    samples = [{"speed": 3.0}, {"speed": 5.0}]
    results = {"run": {"floor": [{"speed": 2.0}], "ours": samples}}
    assert summary([CELL], results) == {
        "run": {
            "title": "runs",
            "clients": {
                "floor": {
                    "medians": {"speed": 2.0, "pure": None},
                    "ratios": {"speed": 1.0},
                    "samples": [{"speed": 2.0}],
                },
                "ours": {
                    "medians": {"speed": 4.0, "pure": None},
                    "ratios": {"speed": 2.0},
                    "samples": samples,
                },
            },
        }
    }


def test_cpu_is_user_and_system_time_per_message_in_microseconds() -> None:
    sample = {"messages": 1000, "seconds": 2.0, "cpu_user": 0.25, "cpu_sys": 0.75}
    assert CPU.of(sample) == pytest.approx(1000.0)
    assert RATE.of(sample) == 500.0


def test_a_figure_per_message_needs_all_its_fields() -> None:
    assert per_message("cpu_user", "cpu_sys")({"messages": 1, "cpu_user": 1}) is None


def test_the_cells_have_distinct_names_and_a_smaller_quick_size() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert all(0 < cell.quick < cell.messages for cell in CELLS)


def test_only_cells_that_need_a_server_have_something_run_beside_them() -> None:
    assert all(
        cell.beside is Beside.NOTHING for cell in CELLS if cell.module is not None
    )
