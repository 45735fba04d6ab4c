"""Steps saved at equal quality: how many steps the teacher needs for the quality of the student in k steps.

A summary of results with teacher, student and repeats. The teacher's curve is interpolated linearly in the
logarithms of steps and quality, after each point is lowered to the best of those before it. Steps saved and
ratios are geometric means over the repeats with Student's interval of the logarithms; shares are plain means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from di4c_cli.evaluation.results import Figure, Results, StepsSaved
from di4c_cli.metric.interval import Interval, of_repeats

MEMORISATION = "nearer_to_training"
SMALLEST_DIVERSITY = 1e-9
"""A teacher may have no diversity at all in one step."""
Curve = dict[int, list[float]]
"""Values of one figure in each repeat, by step count."""


def steps_saved(results: Results, row: str = "student") -> list[StepsSaved]:
    """One entry for each step count of a student's row; empty without repeats, teacher, or a positive figure."""
    main = results.main_figure
    teacher, student = (curve(results, name, main) for name in ("teacher", row))
    figures = [cell.figures[main] for cell in results.cells if main in cell.figures]
    # lower is better and all values have a logarithm
    positive = all(figure.better == "lower" and min(figure.repeats, default=0.0) > 0 for figure in figures)
    if not student or not student.keys() <= teacher.keys() or not positive:
        return []
    return [_entry(results, row, k, teacher, student) for k in student]


def curve(results: Results, row: str, figure: str) -> Curve:
    """The repeated values of a row's figure; empty if the row has several cells of one step count."""
    cells = [c for c in results.cells if c.row == row and figure in c.figures and c.figures[figure].repeats]
    steps = [cell.steps for cell in cells]
    if len(set(steps)) < len(steps) or any(cell.settings.get("corrector") for cell in cells):
        return {}
    return {cell.steps: cell.figures[figure].repeats for cell in cells if cell.steps is not None}


def _entry(results: Results, row: str, k: int, teacher: Curve, student: Curve) -> StepsSaved:
    reached = [
        steps_for([(steps, values[i]) for steps, values in teacher.items()], own) for i, own in enumerate(student[k])
    ]
    theirs, mine = (curve(results, name, results.diversity) for name in ("teacher", row))
    far, near = (curve(results, name, MEMORISATION) for name in ("teacher", row))
    repeats = enumerate(reached) if mine else ()
    equal = [value_at({n: values[i] for n, values in theirs.items()}, steps) for i, (steps, _) in repeats]
    return StepsSaved(
        row=row,
        steps=k,
        quality=geometric_mean(student[k]),
        teacher_quality=geometric_mean(teacher[k]),
        steps_saved=geometric_mean([steps / k for steps, _ in reached], "higher"),
        at_least=any(beyond for _, beyond in reached),
        ratio=geometric_mean([own / other for own, other in zip(student[k], teacher[k])]),
        diversity=_diversity(mine[k], theirs[k]) if mine else None,
        diversity_best=_diversity(mine[k], theirs[max(theirs)]) if mine else None,
        diversity_equal=_diversity(mine[k], equal) if mine else None,
        nearer_to_training=mean_share(near[k]) if near else None,
        teacher_nearer_to_training=mean_share(far[k]) if far else None,
    )


def value_at(curve: Mapping[int, float], steps: float) -> float:
    """A curve's value at any number of steps, linear in the logarithm of the steps."""
    known = sorted(curve)
    return float(np.interp(math.log(steps), [math.log(k) for k in known], [curve[k] for k in known]))


def steps_for(curve: Sequence[tuple[int, float]], value: float) -> tuple[float, bool]:
    """Steps at which a curve of (steps, quality) reaches `value`, and whether that lies beyond its end.

    A value that the first point already reaches needs the steps of that point.
    """
    steps, qualities = zip(*sorted(curve))
    falling = list(zip(steps, accumulate(qualities, min)))
    before = falling[0]
    if value >= before[1]:
        return float(before[0]), False
    for point in falling[1:]:
        if value >= point[1]:
            share = math.log(before[1] / value) / math.log(before[1] / point[1])
            return before[0] * (point[0] / before[0]) ** share, False
        before = point
    return float(falling[-1][0]), True


def geometric_mean(values: Sequence[float], better: str = "lower") -> Figure:
    """Geometric mean with Student's interval of the logarithms."""
    found = of_repeats([math.log(value) for value in values])
    return _figure(found, values, better, math.exp)


def mean_share(values: Sequence[float]) -> Figure:
    """Mean of shares, which may be 0, with Student's interval inside [0, 1]."""
    return _figure(of_repeats(values), values, "neither", lambda x: min(1.0, max(0.0, x)))


def _figure(found: Interval, values: Sequence[float], better: str, scale: Callable[[float], float]) -> Figure:
    low, high = (None if end is None else scale(end) for end in (found.low, found.high))
    value = scale(found.value) if len(values) > 1 else values[0]
    ends = {"low": low, "high": high, "interval": found.interval, "over": found.over}
    return Figure(value=value, **ends, better=better, repeats=list(values))


def _diversity(student: Sequence[float], teacher: Sequence[float]) -> Figure:
    """The student's diversity as a share of the teacher's."""
    ratios = [max(a, SMALLEST_DIVERSITY) / max(b, SMALLEST_DIVERSITY) for a, b in zip(student, teacher)]
    return geometric_mean(ratios, "higher")
