"""From samples to figures: medians, ratios to the floor, the table and the JSON.

Pure functions: samples in, text and plain data out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bench.cells import Cell, Figure, Sample

FLOOR = "floor"
NOTHING = "-"

# Of each cell and client: the samples of all runs, in order.
Results = Mapping[str, Mapping[str, Sequence[Sample]]]


def figure_median(figure: Figure, samples: Sequence[Sample]) -> float | None:
    """The median of a figure over the samples that have it, None if none has."""
    values = [value for each in samples if (value := figure.of(each)) is not None]
    return median(values) if values else None


def ratio(value: float | None, floor: float | None) -> float | None:
    """How many times the floor a value is, None where that says nothing."""
    if value is None or not floor or floor < 0:
        return None
    return value / floor


def format_number(value: float | None) -> str:
    """Three significant digits, or all digits of the whole part if it has more."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995 or size == 0:
        return f"{value:.2f}"
    return f"{value:.3f}"


def format_ratio(value: float | None) -> str:
    """A ratio as it stands in the table."""
    return NOTHING if value is None else f"{format_number(value)}x"


def table(cells: Sequence[Cell], clients: Sequence[str], results: Results) -> str:
    """One line per figure: each client's median and its ratio to the floor."""
    has_floor = FLOOR in clients
    header = ["cell", "figure"]
    for client in clients:
        header.append(client)
        if has_floor and client != FLOOR:
            header.append("/floor")
    rows = [header]
    for cell in cells:
        samples = results.get(cell.name, {})
        for number, figure in enumerate(cell.figures):
            row = [cell.name if number == 0 else "", figure.name]
            floor = figure_median(figure, samples.get(FLOOR, ()))
            for client in clients:
                value = figure_median(figure, samples.get(client, ()))
                row.append(_shown(figure, value))
                if has_floor and client != FLOOR:
                    compared = None if figure.is_flag else ratio(value, floor)
                    row.append(format_ratio(compared))
            rows.append(row)
    return align(rows)


def _shown(figure: Figure, value: float | None) -> str:
    if figure.is_flag and value is not None:
        return "yes" if value else "no"
    return format_number(value)


def align(rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other: the first two to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        words = [
            word.ljust(width) if column < 2 else word.rjust(width)
            for column, (word, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(words).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def summary(cells: Sequence[Cell], results: Results) -> dict[str, object]:
    """Samples, medians and ratios of every cell and client, as plain data for JSON."""
    return {
        cell.name: {
            "title": cell.title,
            "clients": {
                client: {
                    "medians": _medians(cell, samples),
                    "ratios": _ratios(cell, samples, by_client.get(FLOOR, ())),
                    "samples": [dict(sample) for sample in samples],
                }
                for client, samples in by_client.items()
            },
        }
        for cell in cells
        if (by_client := results.get(cell.name))
    }


def _medians(cell: Cell, samples: Sequence[Sample]) -> dict[str, float | None]:
    return {each.name: figure_median(each, samples) for each in cell.figures}


def _ratios(
    cell: Cell, samples: Sequence[Sample], floor: Sequence[Sample]
) -> dict[str, float | None]:
    return {
        each.name: ratio(figure_median(each, samples), figure_median(each, floor))
        for each in cell.figures
        if not each.is_flag
    }
