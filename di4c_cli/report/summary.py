"""What the figures say in a sentence: student against teacher by steps, or at equal entropy."""

from __future__ import annotations

import math

from di4c_cli.evaluation.frontier import equal_entropy
from di4c_cli.evaluation.result import Results
from di4c_cli.report.table import NAMES, number


def sentences(results: Results, metric: str) -> list[str]:
    """Ratios of student to teacher; with a frontier the comparison at equal entropy instead."""
    if is_frontier(results):
        return at_equal_entropy(results, metric)
    return speed_up(results, metric)


def is_frontier(results: Results) -> bool:
    """Do models have several cells at one step count?"""
    keys = [(cell.row, cell.steps) for cell in results.cells if cell.steps is not None]
    return len(set(keys)) < len(keys)


def _values(results: Results, row: str, metric: str) -> dict[int, float]:
    return {
        cell.steps: cell.figures[metric].value
        for cell in results.cells
        if cell.row == row and cell.steps is not None and metric in cell.figures
    }


def speed_up(results: Results, metric: str) -> list[str]:
    """Student at k steps against teacher at k and at 2k, as ratios; nothing if a side is missing."""
    teacher, student = _values(results, "teacher", metric), _values(results, "student", metric)
    name = NAMES.get(metric, metric)
    out = []
    for factor in (1, 2):
        ratios = {
            k: student[k] / teacher[factor * k] for k in sorted(student) if teacher.get(factor * k, 0) > 0
        }
        if not ratios:
            continue
        mean = math.exp(sum(math.log(max(r, 1e-12)) for r in ratios.values()) / len(ratios))
        each = ", ".join(f"k={k}: {number(ratio)}" for k, ratio in ratios.items())
        against = "teacher at k" if factor == 1 else "teacher at 2k"
        out.append(f"{name}, student at k steps / {against}: {number(mean)} in the geometric mean ({each}).")
    return out


def at_equal_entropy(results: Results, metric: str) -> list[str]:
    """One line a step count: the student's mean figure and the teacher's where their entropies agree."""
    found = equal_entropy(results, metric)
    name = NAMES.get(metric, metric)
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
