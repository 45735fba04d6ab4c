"""Sentences about the figures: student against teacher by steps, at equal entropy, or at the best weight."""

from __future__ import annotations

import math

import numpy as np

from di4c_cli.evaluation.results import Cell, Results, best_cell
from di4c_cli.report.table import METRIC_NAMES, number


def sentences(results: Results) -> list[str]:
    """Ratios of student to teacher; along temperatures at equal entropy, along guidance weights the best."""
    metric = results.main_figure
    if not metric:
        return []
    draws = list(dict.fromkeys(str(cell.settings.get("dtype", "")) for cell in results.cells))
    if len(draws) > 1:
        cells = {dtype: [cell for cell in results.cells if cell.settings.get("dtype", "") == dtype] for dtype in draws}
        parts = {dtype: results.model_copy(update={"cells": own}) for dtype, own in cells.items()}
        return [f"{dtype} draws: {line}" for dtype, part in parts.items() for line in sentences(part)]
    if not is_frontier(results):
        return speed_up(results, metric)
    if any("entropy" in cell.figures for cell in results.cells):
        return at_equal_entropy(results, metric)
    return best_of_each(results, metric)


def is_frontier(results: Results) -> bool:
    """Whether models have several cells at one step count that differ in temperature or guidance."""
    plain = {(cell.row, cell.steps) for cell in results.cells}
    tuned = {
        (cell.row, cell.steps, str(cell.settings.get("temperature")), str(cell.settings.get("guidance")))
        for cell in results.cells
    }
    return len(plain) < len(tuned)


def _values(results: Results, row: str, metric: str, sampler: str) -> dict[int, float]:
    """A row's figure by step count, with `sampler` if it has cells of several samplers.

    Cells with corrector steps have more evaluations than steps and are left out.
    """
    cells = [cell for cell in results.cells if cell.row == row and cell.steps is not None and metric in cell.figures]
    chosen = [cell for cell in cells if cell.settings.get("sampler", "") == sampler] or cells
    return {cell.steps or 0: cell.figures[metric].value for cell in chosen if not cell.settings.get("corrector")}


def speed_up(results: Results, metric: str) -> list[str]:
    """Student at k steps against teacher at k and at 2k, as ratios; empty if either is missing."""
    sampler = next((str(cell.settings.get("sampler", "")) for cell in results.cells if cell.row == "student"), "")
    teacher, student = (_values(results, row, metric, sampler) for row in ("teacher", "student"))
    name = METRIC_NAMES.get(metric, metric)
    out = []
    for factor in (1, 2):
        ratios = {k: student[k] / teacher[factor * k] for k in sorted(student) if teacher.get(factor * k, 0) > 0}
        if not ratios:
            continue
        mean = math.exp(sum(math.log(max(r, 1e-12)) for r in ratios.values()) / len(ratios))
        each = ", ".join(f"k={k}: {number(ratio)}" for k, ratio in ratios.items())
        against = "teacher at k" if factor == 1 else "teacher at 2k"
        out.append(f"{name}, student at k steps / {against}: {number(mean)} in the geometric mean ({each}).")
    return out


def best_of_each(results: Results, metric: str) -> list[str]:
    """One line per model and step count: its best figure along the guidance weights."""
    name = METRIC_NAMES.get(metric, metric)
    groups: dict[tuple[str, int | None], list[Cell]] = {}
    for cell in results.cells:
        if metric in cell.figures:
            groups.setdefault((cell.row, cell.steps), []).append(cell)
    out = []
    for (row, _), cells in groups.items():
        best = best_cell(cells, metric)
        out.append(f"{name}, best of {row}: {number(best.figures[metric].value)} ({best.column}).")
    return out


def at_equal_entropy(results: Results, metric: str) -> list[str]:
    """One line per step count: the student's mean figure and the teacher's where their entropies agree."""
    name = METRIC_NAMES.get(metric, metric)
    out = []
    for steps in sorted({cell.steps for cell in results.cells if cell.steps is not None}):
        points = equal_entropy(results, steps, metric)
        if not points:
            continue
        entropy, mine, other = zip(*points)
        low, high = number(min(entropy)), number(max(entropy))
        where = low if len(points) == 1 else f"{low} to {high}"
        sides = f"student {number(sum(mine) / len(points))}, teacher {number(sum(other) / len(points))}"
        out.append(f"{name} at equal entropy ({where} nats), {steps} steps: {sides}.")
    return out or [f"The models' entropies do not overlap, so their {name} cannot be compared."]


def equal_entropy(results: Results, steps: int, metric: str) -> list[tuple[float, float, float]]:
    """(entropy, student's figure, teacher's figure) of the student's points within the teacher's curve.

    A lower perplexity at a lower entropy is no progress, so models are compared at equal entropy.
    """
    curves: dict[str, list[tuple[float, float]]] = {"teacher": [], "student": []}
    for cell in results.cells:
        if cell.row in curves and cell.steps == steps and {"entropy", metric} <= cell.figures.keys():
            curves[cell.row].append((cell.figures["entropy"].value, cell.figures[metric].value))
    teacher, student = map(sorted, curves.values())
    if len(teacher) < 2:
        return []
    x, y = np.array(teacher).T
    found = [float(np.interp(entropy, x, y, left=np.nan, right=np.nan)) for entropy, _ in student]
    return [(entropy, mine, other) for (entropy, mine), other in zip(student, found) if not math.isnan(other)]
