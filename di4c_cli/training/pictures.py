"""What a run draws: training curves as one PNG, and samples of the student every so many steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from di4c_cli import files
from di4c_cli.codec.grid import save_grid
from di4c_cli.model import Model
from di4c_cli.training.metrics import MetricsRow

CURVE_POINTS = 200
"""Curves are averaged to about this many points: single steps are noise."""
SAMPLE_COUNT = 16
"""Samples in a picture."""


def smooth(values: Sequence[float | None], points: int = CURVE_POINTS) -> tuple[list[float], list[float]]:
    """Positions in [0, 1] and means of consecutive groups; missing values are omitted."""
    size = max(1, len(values) // points)
    x, y = [], []
    for start in range(0, len(values), size):
        group = [value for value in values[start : start + size] if value is not None]
        if group:
            x.append((start + size / 2) / len(values))
            y.append(sum(group) / len(group))
    return x, y


def panels(rows: list[MetricsRow], metrics: Sequence[str]) -> dict[str, list[str]]:
    """The metrics of each panel that the run has; a panel without any is left out."""
    correlations = ["correlation_data", "correlation_consis"]
    wanted = {
        "loss and its terms": [name for name in metrics if name not in correlations],
        "correlation captured (nats)": correlations,
        "gradient norm": ["grad_norm"],
    }
    there = {name for row in rows for name, value in row.items() if value is not None}
    found = {title: [name for name in names if name in there] for title, names in wanted.items()}
    return {title: names for title, names in found.items() if names}


def draw_curves(rows: list[MetricsRow], path: Path, metrics: Sequence[str]) -> None:
    """The method's metrics, captured correlation and gradient norm over the steps of all rounds."""
    # imported here: matplotlib is slow to import, and a run needs it only at its end
    from matplotlib.figure import Figure

    shown = panels(rows, metrics) or {"no finite metric": []}
    figure = Figure(figsize=(8, 3 * len(shown)), layout="constrained")
    round_ends = [i for i in range(1, len(rows)) if rows[i]["round"] != rows[i - 1]["round"]]
    grid = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, names) in zip(grid, shown.items(), strict=True):
        for name in names:
            x, y = smooth([row.get(name) for row in rows])
            axes.plot([place * len(rows) for place in x], y, label=name, linewidth=1.2)
        for place in round_ends:
            axes.axvline(place, color="grey", linewidth=0.8, linestyle=":")
        axes.set_title(title, loc="left", fontsize=10)
        if names:
            axes.legend(fontsize=8, frameon=False)
        axes.grid(alpha=0.2)
    axes.set_xlabel("iteration (all rounds; dotted: a new round)")
    files.write_with(path, lambda file: figure.savefig(file, format="png", dpi=110))


def write_samples(model: Model, folder: Path, round_number: int, step: int, seed: int) -> Path:
    """A picture or text file of samples with the model's defaults; the same seed each time makes them comparable."""
    shown = model.decode(model.sample(SAMPLE_COUNT, seed=seed).cpu())
    stem = folder / f"round-{round_number}-step-{step:08d}"
    if isinstance(shown, list):
        path = stem.with_suffix(".txt")
        files.write_text(path, "\n\n".join(shown) + "\n")
    else:
        path = stem.with_suffix(".png")
        save_grid(shown, path)
    return path
