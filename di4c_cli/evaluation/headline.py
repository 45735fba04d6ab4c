"""The sentence that ends an evaluation: the teacher's steps for the quality of a student in its fewest steps."""

from __future__ import annotations

from dataclasses import dataclass

from di4c_cli.evaluation.protocol import column
from di4c_cli.evaluation.results import Results
from di4c_cli.evaluation.steps_saved import steps_for, value_at
from di4c_cli.report.table import METRIC_NAMES

NEARLY_BEST = 1.05
"""Where a teacher's curve is flat, its best is the first number of steps within this factor of its best figure."""
MAX_STUDENTS = 3
"""Tables of more students have no sentences."""


@dataclass(frozen=True)
class Headline:
    """A student in `steps` steps and the teacher in `teacher_steps`, where both are equally good.

    `best`: the student is better than the teacher at any measured number of steps; `teacher_steps` is where the
    teacher is (nearly) best. `worse`: the student is worse than the teacher in the same number of steps.
    """

    row: str
    steps: int
    teacher_steps: float
    best: bool
    worse: bool
    diversity: float | None
    """The student's, as a share of the teacher's in `teacher_steps` steps."""


def find_headline(results: Results, row: str = "student") -> Headline | None:
    """The comparison of a row with the teacher; None if they were not measured alike."""
    main = results.main_figure
    teacher, student = (_curve(results, name, main) for name in ("teacher", row))
    common = [k for k in student if k in teacher]
    figures = [cell.figures[main] for cell in results.cells if main in cell.figures]
    if not common or any(figure.better != "lower" or figure.value <= 0 for figure in figures):
        return None
    k = min(common)
    steps, best = steps_for(list(teacher.items()), student[k])
    if best:
        steps = min(count for count, value in teacher.items() if value <= NEARLY_BEST * min(teacher.values()))
    theirs, mine = (_curve(results, name, results.diversity) for name in ("teacher", row))
    share = mine[k] / value if k in mine and theirs and (value := value_at(theirs, steps)) > 0 else None
    return Headline(row, k, steps, best, student[k] > teacher[k], share)


def headlines(results: Results) -> list[str]:
    """One sentence for each student; empty for results that do not compare students with a teacher by steps."""
    rows = [row for row in dict.fromkeys(cell.row for cell in results.cells) if row != "teacher"]
    found = [find_headline(results, row) for row in rows] if len(rows) <= MAX_STUDENTS else []
    return [sentence(results, one) for one in found if one is not None]


def sentence(results: Results, found: Headline) -> str:
    """`In 2 steps the student is as good as its teacher in 8 (Fréchet distance): 4 times fewer, …`"""
    names = {entry.row: entry.name for entry in results.models}
    name = "the student" if found.row == "student" else names.get(found.row, found.row)
    start = f"In {column(found.steps)} {name} is"
    quality = METRIC_NAMES.get(results.main_figure, results.main_figure)
    if found.worse:
        return f"{start} worse than the teacher in {column(found.steps)} ({quality}): it saves no steps."
    if found.best:
        compared = (
            f"as good as the teacher in {_number(found.teacher_steps)}, where the teacher is near its best ({quality})"
        )
    else:
        compared = f"as good as the teacher in {_number(found.teacher_steps)} ({quality})"
    fewer = found.teacher_steps / found.steps
    out = f"{start} {compared}: {_number(fewer)} times fewer steps" if fewer >= 1.05 else f"{start} {compared}"
    if found.diversity is not None:
        word = METRIC_NAMES.get(results.diversity, results.diversity)
        out += f", with {found.diversity:.2f} of the teacher's {word}"
    right = [_curve(results, row, "right_class") for row in ("teacher", found.row)]
    if all(right) and found.steps in right[1]:
        right_there = value_at(right[0], found.teacher_steps)
        out += f" and {right[1][found.steps] / right_there:.2f} of its share of right classes" if right_there else ""
    labels = {cell.labels for cell in results.cells if cell.row in ("teacher", found.row)}
    return out + (", both with labels." if labels and "" not in labels and "unconditional" not in labels else ".")


def _curve(results: Results, row: str, figure: str) -> dict[int, float]:
    """A figure of a row by steps; empty if the row was sampled in several ways in one number of steps."""
    cells = [cell for cell in results.cells if cell.row == row and figure in cell.figures and cell.steps is not None]
    found = {cell.steps or 0: cell.figures[figure].value for cell in cells}
    return found if len(found) == len(cells) and not any(cell.settings.get("corrector") for cell in cells) else {}


def _number(value: float) -> str:
    """Two digits, no more: `7.5`, `24`."""
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"
