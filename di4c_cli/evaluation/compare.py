"""Differences between two results with intervals, and which of them are within noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from di4c_cli.errors import UserError
from di4c_cli.evaluation.results import Cell, Results
from di4c_cli.metric.interval import NORMAL_QUANTILE

N_DEPENDENT = ("frechet", "recall", "is", "mauve", "vocabulary")
"""Figures whose expectation depends on n; different n make them incomparable."""


@dataclass(frozen=True)
class Difference:
    """B - A of one figure in one cell."""

    row: str
    column: str
    metric: str
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    verdict: str


def compare(a: Results, b: Results) -> list[Difference]:
    """Differences of all figures that both results have; results that were not measured alike are rejected."""
    check_alike(a, b)
    out = [
        _difference(one, two, metric)
        for one in a.cells
        if (two := b.cell(*one.key)) is not None
        for metric in one.figures
        if metric in two.figures
    ]
    if not out:
        raise UserError("The two results have no cell in common.", "Evaluate both at the same step counts.")
    return out


def check_alike(a: Results, b: Results) -> None:
    """Reject results of different protocols, instruments or references."""
    if a.protocol != b.protocol:
        raise UserError(
            f"The results follow different protocols, '{a.protocol}' and '{b.protocol}'.",
            "Compare results of the same `di4c eval --protocol`.",
        )
    for left, right in zip(a.instruments, b.instruments, strict=False):
        if (left.name, left.digest) != (right.name, right.digest):
            raise UserError(
                f"The results were measured by different instruments, {left.name} and {right.name}.",
                "Evaluate one of them again with the instrument of the other.",
            )
        if left.reference_digest != right.reference_digest:
            raise UserError(
                f"The results have different references, {left.reference} and {right.reference}.",
                "Evaluate one of them again with the other's --reference.",
            )


def _difference(one: Cell, two: Cell, metric: str) -> Difference:
    """Errors are taken as independent; with a shared seed the true interval is narrower."""
    a, b = one.figures[metric], two.figures[metric]
    change = b.value - a.value
    low = high = None
    if a.interval == b.interval == "exact":
        low = high = change
    elif a.se is not None and b.se is not None:
        reach = NORMAL_QUANTILE * math.hypot(a.se, b.se)
        low, high = change - reach, change + reach
    if metric in N_DEPENDENT and one.n != two.n:
        verdict = f"not comparable: n is {one.n} and {two.n}"
    else:
        verdict = _verdict(b.better, change, low, high)
    return Difference(one.row, one.column, metric, a.value, b.value, change, low, high, verdict)


def _verdict(better: str, change: float, low: float | None, high: float | None) -> str:
    if change == 0:
        return "equal"
    if low is None or high is None:
        return "no interval"
    if low <= 0 <= high:
        return "within noise"
    if better == "neither":
        return "different"
    return "B better" if (change < 0) == (better == "lower") else "B worse"
