"""One picture of an evaluation: the teacher in few steps, the student in as many, the teacher in many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from di4c_cli import files
from di4c_cli.codec.grid import image_grid
from di4c_cli.evaluation.headline import find_headline
from di4c_cli.evaluation.measurement import Measurement
from di4c_cli.evaluation.results import Results
from di4c_cli.tasks.base import ToyTask

NAME = "comparison.png"
ROWS, COLUMNS = 10, 5
"""Images of a panel; with labels, a row is a class."""
TITLE_SIZE, DPI, PIXELS_PER_INCH = 11, 100, 100


def write_comparison(results: Results, measured: Sequence[Measurement], task: ToyTask | None, out: Path) -> str:
    """Write the picture and return its name; nothing is written for text or without teacher and student."""
    headline = find_headline(results)
    if headline is None:
        return ""
    by_cell = {(one.cell.row, one.cell.steps): one for one in measured}
    many = max(steps for row, steps in by_cell if row == "teacher")
    shown = [("teacher", headline.steps), ("student", headline.steps), ("teacher", many)]
    panels = {f"{row}, {steps} step{'s' * (steps > 1)}": by_cell[row, steps] for row, steps in shown}
    images = {title: _images(one) for title, one in panels.items()}
    if len(images) < 3 or any(found is None for found in images.values()):
        return ""
    first = next(iter(panels.values())).sampling
    names = task.class_names if task and first.labels == "uniform" and first.labelled else ()
    figure = _draw({title: found for title, found in images.items() if found is not None}, names)
    files.write_with(out / NAME, lambda file: figure.savefig(file, format="png"))
    return NAME


def _images(measured: Measurement) -> np.ndarray | None:
    """The first images, class by class if they have labels; None for text or too few samples."""
    first, count = next(measured.samples.ranges())
    if count < ROWS * COLUMNS:
        return None
    decoded = measured.sampling.model.decode(measured.ids(first, count)[: ROWS * COLUMNS])
    if not isinstance(decoded, np.ndarray):
        return None
    # sample i has class i modulo the number of classes, so a class is every ROWS-th sample
    order = [row + ROWS * column for row in range(ROWS) for column in range(COLUMNS)]
    return decoded[order]


def _draw(panels: dict[str, np.ndarray], names: Sequence[str]) -> Any:
    from matplotlib.figure import Figure  # slow to import; text needs no picture

    grids = [np.asarray(image_grid(images, COLUMNS)) for images in panels.values()]
    height, width = grids[0].shape[:2]
    margin = 90 if names else 10
    size = (margin + len(grids) * (width + 20), height + 40)
    figure = Figure(figsize=(size[0] / PIXELS_PER_INCH, size[1] / PIXELS_PER_INCH), dpi=DPI)
    for number, (title, grid) in enumerate(zip(panels, grids, strict=True)):
        left = (margin + number * (width + 20)) / size[0]
        axes = figure.add_axes((left, 5 / size[1], width / size[0], height / size[1]))
        axes.imshow(grid, interpolation="nearest", aspect="auto")
        axes.set_title(title, fontsize=TITLE_SIZE)
        axes.set_xticks([])
        middles = [(row + 0.5) * height / ROWS for row in range(ROWS)]
        axes.set_yticks(middles if names and not number else [], names if names and not number else [])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure
