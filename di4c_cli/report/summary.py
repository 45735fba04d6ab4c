"""What the figures say in a sentence: how many teacher steps a student step is worth."""

from __future__ import annotations

import math

from di4c_cli.evaluation.result import Results
from di4c_cli.report.table import NAMES, number


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
