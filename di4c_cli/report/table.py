"""Results as tables in the paper's shape: models down, ways of sampling across, the paper's figures in brackets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol
from di4c_cli.evaluation.results import Cell, Figure, Results
from di4c_cli.metric.interval import clause

METRIC_NAMES = {
    "frechet": "Fréchet distance",
    "kid": "KID",
    "is": "inception score",
    "bits_per_char": "bits per character",
    "bits_per_byte": "bits per byte",
    "entropy": "unigram entropy",
    "distinct": "distinct bigrams",
    "perplexity": "generative perplexity",
    "perplexity_strict": "generative perplexity (strict)",
    "self_bleu": "Self-BLEU",
    "mauve": "MAUVE",
    "gradient_moment": "gradient moment",
    "vocabulary": "different symbols",
    "right_class": "share of the right class",
    "nearer_to_training": "nearer to training items",
    "tv": "total variation",
    "kl": "KL(data ‖ model)",
}
ARROWS = {"lower": "↓", "higher": "↑", "neither": ""}


class PrintedTable(NamedTuple):
    """A table ready to print: a title that names its figures, its header, its rows and what its intervals are."""

    title: str
    header: list[str]
    rows: list[list[str]]
    caption: str = ""


def metric_title(results: Results, metric: str) -> str:
    """Name, unit and an arrow to the better side; only the name if nothing was measured."""
    figure = next((cell.figures[metric] for cell in results.cells if metric in cell.figures), None)
    if figure is None:
        return METRIC_NAMES.get(metric, metric)
    unit = f" ({figure.unit})" if figure.unit else ""
    return f"{METRIC_NAMES.get(metric, metric)}{unit} {ARROWS[figure.better]}".strip()


def number(value: float) -> str:
    """Four significant digits, without exponents for the sizes that occur."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    if abs(value) >= 0.001:
        return f"{value:.4g}"
    return f"{value:.2e}"


def interval_caption(results: Results, metrics: Sequence[str]) -> str:
    """What the ± of these metrics is, in one sentence; empty if none has an interval."""
    found: dict[str, dict[str, None]] = {}
    for metric in metrics:
        for figure in (cell.figures[metric] for cell in results.cells if metric in cell.figures):
            if figure.low is not None:
                names = found.setdefault(clause(figure.interval, figure.over), {})
                names[METRIC_NAMES.get(metric, metric)] = None
    clauses = [f"{', '.join(names)} by {method}" for method, names in found.items()]
    if len(clauses) == 1 and len(metrics) == 1:
        clauses = [f"by {method}" for method in found]
    return f"± is half the width of the 95 % interval: {'; '.join(clauses)}." if clauses else ""


def cell_text(cell: Cell | None, metric: str) -> str:
    """`12.3 ±0.4`, the figure of a cell and the half width of its 95 % interval; a dash if it has none."""
    if cell is None or metric not in cell.figures:
        return "–"
    figure = cell.figures[metric]
    half = "" if figure.low is None or figure.high is None else f" ±{(figure.high - figure.low) / 2:.2g}"
    return number(figure.value) + half


def protocol_tables(results: Results, protocol: EvaluationProtocol) -> list[PrintedTable]:
    """A protocol's results in the shape of the paper's table; cells without a model show the paper's figures."""
    cells = [cell for cell in protocol.cells if cell.paper or results.cell(cell.row, cell.column)]
    published = {metric for cell in cells for metric in cell.paper}
    metrics = [name for name in protocol.metrics if name in results.metrics or name in published]
    if results.metrics and protocol.metrics[0] not in metrics and results.metrics[0] not in metrics:
        metrics.insert(0, results.metrics[0])  # a toy task has its own scorer
    if protocol.shape == "lines":
        return [_lines(results, cells, metrics)]
    groups = [metrics] if protocol.shape == "together" else [[metric] for metric in metrics]
    return [_grid(results, cells, group) for group in groups]


def _lines(results: Results, cells: Sequence[Cell | CellSpec], metrics: list[str]) -> PrintedTable:
    """One line for each cell, one column for each metric."""
    header = ["model", "sampling", *(metric_title(results, metric) for metric in metrics)]
    body = [[cell.row, cell.column, *(_several(results, cell, [metric]) for metric in metrics)] for cell in cells]
    return PrintedTable("", header, body, interval_caption(results, metrics))


def _grid(results: Results, cells: list[CellSpec], metrics: list[str]) -> PrintedTable:
    """Models down, ways of sampling across, all of `metrics` in each cell."""
    at = {cell.place or (cell.row, cell.column): cell for cell in cells}
    across = list(dict.fromkeys(heading for _, heading in at))
    across.sort(key=lambda heading: min(cell.steps for place, cell in at.items() if place[1] == heading))
    body = []
    for line in dict.fromkeys(line for line, _ in at):
        row = [at.get((line, heading)) for heading in across]
        shown = ("–" if cell is None else _several(results, cell, metrics) for cell in row)
        body.append([line, *_training(results, line), *shown])
    title = " / ".join(metric_title(results, metric) for metric in metrics)
    header = ["", *(["information", "forwards"] if _training(results, "") else []), *across]
    return PrintedTable(title, header, body, interval_caption(results, metrics))


def _training(results: Results, row: str) -> list[str]:
    """What the model of a row learned from and its training compute; nothing if that was not counted."""
    counted = {entry.row: entry for entry in results.models if entry.forwards is not None}
    if row not in counted:
        return ["–", "–"] if counted else []
    return [counted[row].information, number(counted[row].forwards or 0.0)]


def _several(results: Results, spec: Cell | CellSpec, metrics: list[str]) -> str:
    """`ours / ours [paper's / paper's]`."""
    cell = results.cell(spec.row, spec.column)
    ours = " / ".join(cell_text(cell, metric) for metric in metrics)
    theirs = [f"{spec.paper[metric]:.6g}" if metric in spec.paper else "–" for metric in metrics]
    return f"{ours} [{' / '.join(theirs)}]" if any(metric in spec.paper for metric in metrics) else ours


def overview(results: Results) -> PrintedTable:
    """All figures of all cells, and the tokens per forward pass of those that were sampled."""
    table = _lines(results, results.cells, results.metrics)
    rates = [cell.tokens_per_pass for cell in results.cells]
    if None in rates:
        return table
    table.header.append("tokens/pass")
    for row, rate in zip(table.rows, rates):
        row.append(number(rate or 0))
    return table


def interval_text(figure: Figure | None, digits: int = 3) -> str:
    """`2.31 [2.05, 2.60]`."""
    if figure is None:
        return "–"
    text = f"{figure.value:.{digits}g}"
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{figure.low:.{digits}g}, {figure.high:.{digits}g}]"


def steps_saved_caption(results: Results) -> str:
    """What the figures and brackets of `steps_saved_rows` are."""
    return (
        f"Geometric means over {results.cells[0].repeats} repeats with 95 % intervals by Student's t over the repeats. "
        "Steps saved: the steps at which the teacher is as good as the student, divided by the student's."
    )


def steps_saved_rows(results: Results) -> list[dict[str, str]]:
    """One row for each step count of the student; quality is the geometric mean over the repeats."""
    rows = []
    for entry in results.steps_saved:
        bound, memory = "≥ " if entry.at_least else "", interval_text(entry.nearer_to_training)
        if entry.teacher_nearer_to_training is not None:
            memory += f"; {entry.teacher_nearer_to_training.value:.3g}"
        several = {} if entry.row == "student" else {"row": entry.row}
        row = several | {
            "task": results.task or results.title,
            "n": str(results.cells[0].n),
            "steps": str(entry.steps),
            "quality": interval_text(entry.quality, 4),
            "teacher at the same steps": interval_text(entry.teacher_quality, 4),
            "steps saved": f"{bound}{interval_text(entry.steps_saved)}x",
            "diversity / teacher's": interval_text(entry.diversity),
            "/ teacher's at equal quality": interval_text(entry.diversity_equal),
            "/ teacher's best": interval_text(entry.diversity_best),
            "nearer to training; teacher": memory,
        }
        rows.append(row)
    return rows
