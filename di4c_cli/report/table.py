"""Results as tables in the paper's shape: models down, ways of sampling across, its figures beside ours."""

from __future__ import annotations

from typing import NamedTuple

from di4c_cli.evaluation.plan import CellPlan, Plan
from di4c_cli.evaluation.result import Cell, Figure, Results

NAMES = {
    "frechet": "Fréchet distance",
    "kid": "KID",
    "is": "inception score",
    "precision": "precision",
    "recall": "recall",
    "bits_per_char": "bits per character",
    "bits_per_byte": "bits per byte",
    "entropy": "unigram entropy",
    "distinct": "distinct bigrams",
    "perplexity": "generative perplexity",
    "perplexity_strict": "generative perplexity (strict)",
    "self_bleu": "Self-BLEU",
    "mauve": "MAUVE",
    "tv": "total variation",
    "kl": "KL(data ‖ model)",
}
ARROWS = {"lower": "↓", "higher": "↑", "neither": ""}


class Printed(NamedTuple):
    """A table ready to print: what its figures are, its header and its rows."""

    title: str
    header: list[str]
    rows: list[list[str]]


def metric_title(results: Results, metric: str) -> str:
    """Name, unit and which way is better, as far as something was measured."""
    figure = next((cell.figures[metric] for cell in results.cells if metric in cell.figures), None)
    if figure is None:
        return NAMES.get(metric, metric)
    unit = f" ({figure.unit})" if figure.unit else ""
    return f"{NAMES.get(metric, metric)}{unit} {ARROWS[figure.better]}".strip()


def number(value: float) -> str:
    """Four significant digits, without exponents for the sizes that occur."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    if abs(value) >= 0.001:
        digits = f"{value:.4g}"
        return digits
    return f"{value:.2e}"


def figure_text(figure: Figure) -> str:
    """`12.3 ±0.4`: the half width of the 95 % interval."""
    text = number(figure.value)
    if figure.low is not None and figure.high is not None:
        text += f" ±{(figure.high - figure.low) / 2:.2g}"
    return text


def cell_text(cell: Cell | None, metric: str, paper: float | None = None) -> str:
    """Ours, and in brackets the paper's."""
    ours = figure_text(cell.figures[metric]) if cell is not None and metric in cell.figures else "–"
    return ours if paper is None else f"{ours} [{paper:.6g}]"


def plan_tables(results: Results, plan: Plan) -> list[Printed]:
    """A protocol's results in the shape of the paper's table, with its figures where we ran nothing too."""
    cells = [cell for cell in plan.cells if cell.paper or results.cell(cell.row, cell.column)]
    published = {metric for cell in cells for metric in cell.paper}
    metrics = [name for name in plan.metrics if name in results.metrics or name in published]
    if results.metrics and plan.metrics[0] not in metrics and results.metrics[0] not in metrics:
        metrics.insert(0, results.metrics[0])  # an embedded world has its own instrument
    if plan.shape == "lines":
        return [_lines(results, cells, metrics)]
    groups = [metrics] if plan.shape == "together" else [[metric] for metric in metrics]
    return [_grid(results, cells, group) for group in groups]


def _lines(results: Results, cells: list[CellPlan], metrics: list[str]) -> Printed:
    header = ["model", "sampling", *(metric_title(results, metric) for metric in metrics)]
    body = [
        [cell.row, cell.column, *(_several(results, cell, [metric]) for metric in metrics)] for cell in cells
    ]
    return Printed("", header, body)


def _grid(results: Results, cells: list[CellPlan], metrics: list[str]) -> Printed:
    """Models down, ways of sampling across, all of `metrics` in each cell."""
    at = {cell.place or (cell.row, cell.column): cell for cell in cells}
    across = list(dict.fromkeys(heading for _, heading in at))
    across.sort(key=lambda heading: min(cell.steps for place, cell in at.items() if place[1] == heading))
    body = []
    for line in dict.fromkeys(line for line, _ in at):
        row = [at.get((line, heading)) for heading in across]
        body.append([line, *("–" if cell is None else _several(results, cell, metrics) for cell in row)])
    return Printed(" / ".join(metric_title(results, metric) for metric in metrics), ["", *across], body)


def _several(results: Results, plan: CellPlan, metrics: list[str]) -> str:
    """`ours / ours [paper's / paper's]`."""
    cell = results.cell(plan.row, plan.column)
    ours = " / ".join(cell_text(cell, metric) for metric in metrics)
    theirs = [f"{plan.paper[metric]:.6g}" if metric in plan.paper else "–" for metric in metrics]
    return f"{ours} [{' / '.join(theirs)}]" if any(metric in plan.paper for metric in metrics) else ours


def overview(results: Results) -> tuple[list[str], list[list[str]]]:
    """All figures of all cells: one line a cell, one column a metric."""
    metrics = results.metrics
    header = ["model", "sampling", *(metric_title(results, metric) for metric in metrics)]
    body = [
        [cell.row, cell.column, *(cell_text(cell, metric, cell.paper.get(metric)) for metric in metrics)]
        for cell in results.cells
    ]
    return header, body
