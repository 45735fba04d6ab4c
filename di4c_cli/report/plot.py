"""Quality against steps as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from di4c_cli import files
from di4c_cli.evaluation.result import Results
from di4c_cli.report.table import metric_title

COLOURS = {"teacher": "#6b7280", "student": "#d9480f"}
MORE = ("#1c7ed6", "#2b8a3e", "#862e9c", "#e8590c", "#0b7285")


def colour(row: str, number: int) -> str:
    """Teacher grey, student orange, others by number."""
    return COLOURS.get(row, MORE[number % len(MORE)])


def steps_figure(results: Results, metric: str) -> Any:
    """A matplotlib figure: one line per row, 95 % intervals as bars, the paper's figures dashed."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure = Figure(figsize=(6.4, 4.0), dpi=130, layout="constrained")
    axes = figure.subplots()
    shown: set[int] = set()
    for number, row in enumerate(dict.fromkeys(cell.row for cell in results.cells)):
        cells = sorted(
            (c for c in results.cells if c.row == row and metric in c.figures and c.steps),
            key=lambda c: c.steps or 0,
        )
        if not cells:
            continue
        steps = [cell.steps or 0 for cell in cells]
        values = [cell.figures[metric] for cell in cells]
        ends = [
            ((f.value - f.low, f.high - f.value) if f.low is not None and f.high is not None else (0, 0))
            for f in values
        ]
        ink = colour(row, number)
        axes.errorbar(
            steps,
            [f.value for f in values],
            list(zip(*ends)),
            color=ink,
            marker="o",
            ms=5,
            lw=1.8,
            capsize=3,
            label=row,
        )
        published = [(c.steps or 0, c.paper[metric]) for c in cells if metric in c.paper]
        if published:
            axes.plot(*zip(*published), color=ink, ls="--", lw=1, label=f"{row} (paper)")
        shown.update(steps)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(shown))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("sampling steps")
    axes.set_ylabel(metric_title(results, metric))
    axes.set_ylim(bottom=0 if metric == "frechet" else None)
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.set_title(f"{results.title}, n = {max(c.n for c in results.cells)}", fontsize=10)
    return figure


def steps_png(results: Results, metric: str) -> bytes:
    """The same as PNG bytes."""
    buffer = io.BytesIO()
    steps_figure(results, metric).savefig(buffer, format="png")
    return buffer.getvalue()


def save_steps_plot(results: Results, metric: str, path: Path) -> None:
    """Write the PNG, whole or not at all."""
    files.write_bytes(path, steps_png(results, metric))
