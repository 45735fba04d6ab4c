"""Training curves as one PNG, and the closing figures of a run, both read from metrics.jsonl."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from di4c_cli import files
from di4c_cli.training.metrics import Row, read_rows

TERMS = ("loss", "distil", "consis", "corr", "marginal", "reconstruction", "kl", "prior_loss")
CORRELATION = ("correlation_data", "correlation_consis")
POINTS = 200
"""Curves are averaged down to about this many points: single steps are noise."""


def smooth(values: Sequence[float | None], points: int = POINTS) -> tuple[list[float], list[float]]:
    """Positions in [0, 1] and means of consecutive groups; missing values are left out."""
    size = max(1, len(values) // points)
    x, y = [], []
    for start in range(0, len(values), size):
        group = [value for value in values[start : start + size] if value is not None]
        if group:
            x.append((start + size / 2) / len(values))
            y.append(sum(group) / len(group))
    return x, y


def draw_curves(rows: list[Row], path: Path) -> None:
    """Loss terms, captured correlation and gradient norm over the steps of all rounds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (
        ("loss and its terms", TERMS),
        ("correlation captured (nats)", CORRELATION),
        ("gradient norm", ("grad_norm",)),
    )
    for axes, (title, names) in zip(figure.subplots(3, 1, sharex=True), panels, strict=True):
        for name in names:
            values = [row.get(name) for row in rows]
            if any(value is not None for value in values):
                x, y = smooth(values)
                axes.plot([place * len(rows) for place in x], y, label=name, linewidth=1.2)
        for place in _round_ends(rows):
            axes.axvline(place, color="grey", linewidth=0.8, linestyle=":")
        axes.set_title(title, loc="left", fontsize=10)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False)
        axes.grid(alpha=0.2)
    axes.set_xlabel("iteration (all rounds; dotted: a new round)")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    files.write_bytes(path, buffer.getvalue())


def _round_ends(rows: list[Row]) -> list[int]:
    return [i for i in range(1, len(rows)) if rows[i]["round"] != rows[i - 1]["round"]]


def summary(metrics: Path) -> dict[str, Any]:
    """Steps, time, skipped steps and the mean loss of the last tenth of the last round."""
    rows = read_rows(metrics)
    if not rows:
        return {"steps": 0, "seconds": 0.0, "skipped": 0}
    last = [row for row in rows if row["round"] == rows[-1]["round"]]
    tail = [row for row in last[-max(1, len(last) // 10) :] if row["loss"] is not None]
    out: dict[str, Any] = {
        "steps": len(rows),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "skipped": sum(bool(row["skipped"]) for row in rows),
    }
    for name in (*TERMS, *CORRELATION):
        values = [row[name] for row in tail if row.get(name) is not None]
        if values:
            out[name] = sum(values) / len(values)
    return out
