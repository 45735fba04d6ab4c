"""Which cells make one line of a chart against steps: a model's, and each of its samplers' if it has several."""

from __future__ import annotations

from typing import NamedTuple

from di4c_cli.evaluation.result import Cell, Results


class Line(NamedTuple):
    """Cells by ascending steps; `row` decides the colour, `name` stands in the legend."""

    name: str
    row: str
    cells: list[Cell]


def lines(results: Results, metric: str) -> list[Line]:
    """All lines of one figure."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.cells:
        if metric in cell.figures and cell.steps:
            groups.setdefault((cell.row, str(cell.settings.get("sampler", ""))), []).append(cell)
    rows = [row for row, _ in groups]
    return [
        Line(
            f"{row}, {sampler}" if rows.count(row) > 1 else row,
            row,
            sorted(cells, key=lambda cell: cell.steps or 0),
        )
        for (row, sampler), cells in groups.items()
    ]
