"""Pictures of results: quality against steps, or two figures along temperatures or guidance weights."""

from __future__ import annotations

import io
from typing import Any

from di4c_cli.evaluation.result import Results
from di4c_cli.report.lines import Line, lines
from di4c_cli.report.table import NAMES, metric_title

COLOURS = {"teacher": "#6b7280", "student": "#d9480f"}
MORE = ("#1c7ed6", "#2b8a3e", "#862e9c", "#e8590c", "#0b7285")
STYLES = ("-", "--", ":", "-.")
OTHER = {"frechet": "is"}
"""What a figure is drawn against in a trade-off; text figures against entropy."""


def colour(row: str, number: int) -> str:
    """Teacher grey, student orange, others by number."""
    return COLOURS.get(row, MORE[number % len(MORE)])


def _blank(results: Results) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{results.title}, n = {max(c.n for c in results.cells)}", fontsize=9)
    return figure, axes


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def steps_png(results: Results, metric: str) -> bytes:
    """Quality against steps: one line per row, 95 % intervals as bars, the paper's figures dashed."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure, axes = _blank(results)
    shown: set[int] = set()
    rows = list(dict.fromkeys(cell.row for cell in results.cells))
    for place, line in enumerate(drawn := lines(results, metric)):
        dotted = any(other.row == line.row for other in drawn[:place])
        _steps_line(axes, line, metric, colour(line.row, rows.index(line.row)), ":" if dotted else "-")
        shown.update(cell.steps or 0 for cell in line.cells)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(shown))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("sampling steps")
    axes.set_ylabel(metric_title(results, metric))
    axes.set_ylim(bottom=0 if metric == "frechet" else None)
    axes.legend(frameon=False)
    return _png(figure)


def _steps_line(axes: Any, line: Line, metric: str, ink: str, style: str) -> None:
    cells = line.cells
    steps = [cell.steps or 0 for cell in cells]
    values = [cell.figures[metric] for cell in cells]
    ends = [
        (f.value - f.low, f.high - f.value) if f.low is not None and f.high is not None else (0.0, 0.0)
        for f in values
    ]
    bars = list(zip(*ends, strict=True))
    look = {"color": ink, "ls": style, "marker": "o", "ms": 5, "lw": 1.8, "capsize": 3}
    axes.errorbar(steps, [f.value for f in values], bars, label=line.name, **look)
    published = [(c.steps or 0, c.paper[metric]) for c in cells if metric in c.paper]
    if published:
        axes.plot(*zip(*published, strict=True), color=ink, ls="--", lw=1, label=f"{line.name} (paper)")


def tradeoff_png(results: Results, metric: str) -> bytes:
    """One line per model and step count, in the order of the cells (temperature or guidance ascending)."""
    other = OTHER.get(metric, "entropy")
    figure, axes = _blank(results)
    rows = list(dict.fromkeys(cell.row for cell in results.cells))
    steps = sorted({cell.steps for cell in results.cells if cell.steps is not None})
    for number, row in enumerate(rows):
        for place, count in enumerate(steps):
            cells = [
                c
                for c in results.cells
                if (c.row, c.steps) == (row, count) and {metric, other} <= c.figures.keys()
            ]
            if cells:
                x, y = ([c.figures[name].value for c in cells] for name in (other, metric))
                style = STYLES[place % len(STYLES)]
                axes.plot(
                    x, y, ls=style, color=colour(row, number), marker="o", ms=4, label=f"{row}, {count} steps"
                )
    axes.set_xlabel(NAMES.get(other, other))
    axes.set_ylabel(metric_title(results, metric))
    axes.legend(frameon=False, fontsize=8)
    return _png(figure)
