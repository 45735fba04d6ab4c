"""Sentences about the figures: student against teacher by steps, at equal entropy, or at the best weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from di4c_cli.evaluation.results import Cell, Results
from di4c_cli.report.table import METRIC_NAMES, number


def sentences(results: Results) -> list[str]:
    """Ratios of student to teacher; along temperatures at equal entropy, along guidance weights the best."""
    metric = results.main_figure
    if not metric:
        return []
    if not is_frontier(results):
        return speed_up(results, metric)
    if any("entropy" in cell.figures for cell in results.cells):
        return at_equal_entropy(results, metric)
    return best_of_each(results, metric)


def is_frontier(results: Results) -> bool:
    """Whether models have several cells at one step count that differ in temperature or guidance."""
    plain = {(cell.row, cell.steps) for cell in results.cells}
    tuned = {
        (cell.row, cell.steps, cell.settings.get("temperature"), cell.settings.get("guidance"))
        for cell in results.cells
    }
    return len(plain) < len(tuned)


def _values(results: Results, row: str, metric: str) -> dict[int, float]:
    return {
        cell.steps: cell.figures[metric].value
        for cell in results.cells
        if cell.row == row and cell.steps is not None and metric in cell.figures and not _has_corrector(cell)
    }


def _has_corrector(cell: Cell) -> bool:
    """Corrector steps are evaluations too, so such a cell is not one of `cell.steps` evaluations."""
    return bool(cell.settings.get("corrector"))


def speed_up(results: Results, metric: str) -> list[str]:
    """Student at k steps against teacher at k and at 2k, as ratios; empty if either is missing."""
    teacher, student = _values(results, "teacher", metric), _values(results, "student", metric)
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
        sign = -1 if cells[0].figures[metric].better == "higher" else 1
        best = min(cells, key=lambda cell: sign * cell.figures[metric].value)
        out.append(f"{name}, best of {row}: {number(best.figures[metric].value)} ({best.column}).")
    return out


def at_equal_entropy(results: Results, metric: str) -> list[str]:
    """One line per step count: the student's mean figure and the teacher's where their entropies agree."""
    found = equal_entropy(results, metric)
    name = METRIC_NAMES.get(metric, metric)
    out = []
    for steps in sorted({point.steps for point in found}):
        points = [point for point in found if point.steps == steps]
        mine = sum(point.value for point in points) / len(points)
        other = sum(point.other for point in points) / len(points)
        low, high = min(p.entropy for p in points), max(p.entropy for p in points)
        where = f"{number(low)}" if len(points) == 1 else f"{number(low)} to {number(high)}"
        sides = f"student {number(mine)}, teacher {number(other)}"
        out.append(f"{name} at equal entropy ({where} nats), {steps} steps: {sides}.")
    return out or [f"The models' entropies do not overlap, so their {name} cannot be compared."]


@dataclass(frozen=True)
class EqualEntropyPoint:
    """A student's figure, and the teacher's at the same entropy on its curve over temperatures."""

    steps: int
    entropy: float
    value: float
    other: float


def entropy_curve(results: Results, row: str, steps: int, metric: str) -> list[tuple[float, float]]:
    """(entropy, figure) of a model at one step count over its temperatures, by entropy."""
    points = [
        (cell.figures["entropy"].value, cell.figures[metric].value)
        for cell in results.cells
        if cell.row == row and cell.steps == steps and {"entropy", metric} <= cell.figures.keys()
    ]
    return sorted(points)


def interpolate(points: list[tuple[float, float]], at: float) -> float | None:
    """Linear between neighbours; None outside the curve."""
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low if right == left else low + (high - low) * (at - left) / (right - left)
    return None


def equal_entropy(results: Results, metric: str) -> list[EqualEntropyPoint]:
    """The student's points that lie within the teacher's curve of the same step count.

    A lower perplexity at a lower entropy is no progress, so models are compared at equal entropy.
    """
    out = []
    for steps in sorted({cell.steps for cell in results.cells if cell.steps is not None}):
        other = entropy_curve(results, "teacher", steps, metric)
        if len(other) < 2:
            continue
        for entropy, value in entropy_curve(results, "student", steps, metric):
            there = interpolate(other, entropy)
            if there is not None:
                out.append(EqualEntropyPoint(steps, entropy, value, there))
    return out
