"""Teacher against student at several step counts: the evaluation that everybody wants first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from di4c_cli.errors import UserError
from di4c_cli.evaluation.instruments import world_of, world_scorer
from di4c_cli.evaluation.plan import steps_plan
from di4c_cli.evaluation.result import Results
from di4c_cli.evaluation.run import evaluate
from di4c_cli.evaluation.sampling import Entrant
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.model import Model


def compare_pair(
    teacher: Model,
    student: Model,
    steps: Sequence[int] = (1, 2, 4, 8),
    n: int = 2000,
    seed: int = 0,
    work: Path | None = None,
    scorers: Sequence[Scorer] | None = None,
    advance: Callable[[int], None] = lambda count: None,
    gallery: Path | None = None,
) -> Results:
    """Both models at each step count, measured by their world's instrument (or by `scorers`)."""
    world = world_of(student)
    if world_of(teacher) != world:
        raise UserError(
            "Teacher and student do not make the same kind of samples.", "Use the student's own teacher."
        )
    if scorers is None:
        if not world:
            raise UserError(
                f"'{student.name}' is not an embedded model.", "Name a judge or a feature network."
            )
        scorers = [world_scorer(world)]
    plan = steps_plan(
        world or student.name,
        f"{student.name} against {teacher.name}",
        ["teacher", "student"],
        list(steps),
        n,
    )
    plan = replace(plan, labels="none" if world else plan.labels)
    entrants = [Entrant("teacher", teacher), Entrant("student", student)]
    return evaluate(plan, entrants, scorers, n, seed, work, advance, world, gallery)
