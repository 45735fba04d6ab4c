"""The latency figure: every batch a dot, every side a bar, one panel per experiment."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from di4c_cli import files

COLOURS = {"teacher": "#4477aa", "student": "#ee6677", "body only": "#bbbbbb", "textbook": "#ccbb44"}


def save_plot(results: list[dict[str, Any]], path: Path) -> None:
    """Seconds per batch of all sides, with the paired overhead in each title."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 3.2 * len(results), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for number, result in enumerate(results):
        axes = figure.add_subplot(1, len(results), number + 1)
        for place, (name, side) in enumerate(result["sides"].items()):
            axes.bar(place, side["mean"], 0.6, color=COLOURS[name], alpha=0.6)
            count = len(side["seconds"])
            spread = [place + 0.3 * (i / max(1, count - 1) - 0.5) for i in range(count)]
            axes.plot(spread, side["seconds"], ".", color="#333333", markersize=3)
        axes.set_xticks(range(len(result["sides"])), list(result["sides"]), fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"seconds per batch of {result['batch']}", fontsize=8)
        over = result["overhead"]
        title = f"{result['experiment']}, {result['settings']['steps']} steps"
        interval = f"[{over['low']:.3f}, {over['high']:.3f}]"
        axes.set_title(f"{title}\nstudent / teacher {over['ratio']:.3f} {interval}", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    files.write_bytes(path, buffer.getvalue())
