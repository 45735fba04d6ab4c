"""Quality at equal entropy: a lower perplexity that is bought with less diversity is no progress."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from di4c_cli.evaluation.result import Results


@dataclass(frozen=True)
class EqualEntropy:
    """A model's figure and the other's at the same entropy, on its curve over temperatures."""

    steps: int
    row: str
    against: str
    entropy: float
    value: float
    other: float


def curve(results: Results, row: str, steps: int, metric: str) -> list[tuple[float, float]]:
    """(entropy, figure) of a model at one step count over its temperatures, by entropy."""
    points = [
        (cell.figures["entropy"].value, cell.figures[metric].value)
        for cell in results.cells
        if cell.row == row and cell.steps == steps and {"entropy", metric} <= cell.figures.keys()
    ]
    return sorted(points)


def interpolate(points: list[tuple[float, float]], at: float) -> float | None:
    """Linear between neighbours; None outside the curve, which says nothing there."""
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low if right == left else low + (high - low) * (at - left) / (right - left)
    return None


def equal_entropy(
    results: Results, metric: str, row: str = "student", against: str = "teacher"
) -> list[EqualEntropy]:
    """Each of `row`'s points that lies within `against`'s curve of the same step count."""
    out = []
    for steps in sorted({cell.steps for cell in results.cells if cell.steps is not None}):
        other = curve(results, against, steps, metric)
        if len(other) < 2:
            continue
        for entropy, value in curve(results, row, steps, metric):
            there = interpolate(other, entropy)
            if there is not None:
                out.append(EqualEntropy(steps, row, against, entropy, value, there))
    return out
