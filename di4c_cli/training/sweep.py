"""Measuring a sweep: every row is a run of its own; the teacher and all students are evaluated together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.pipeline import fitting_scorer, sizes
from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol, column
from di4c_cli.evaluation.run import Evaluation
from di4c_cli.evaluation.scorers import ScorerContext, check_scorers, make_scorers
from di4c_cli.model import Model, load
from di4c_cli.recipe import Recipe
from di4c_cli.tasks.registry import task_of
from di4c_cli.training.run_folder import RunFolder
from di4c_cli.training.sweep_recipe import Sweep, SweepRow

TEACHER_ROW = "teacher"
TRIED_SAMPLES = 2
"""Samples of the teacher that are scored before the training."""
Rows = list[tuple[SweepRow, Recipe]]


def sweep_protocol(sweep: Sweep, rows: Rows, teacher: Model) -> EvaluationProtocol:
    """Teacher and students down, the steps of the recipes' `evaluation` across, the sweep's metrics in each cell."""
    task, first = task_of(teacher), rows[0][1]
    cells = [
        CellSpec(row.label if row else TEACHER_ROW, column(k), k, paper=sweep.published(recipe, row, k))
        for row, recipe in [(None, first), *rows]
        for k in sizes(recipe.evaluation, task)[1]
    ]
    return EvaluationProtocol(
        sweep.name,
        f"{sweep.summary}, {first.name}, {first.training.iterations} iterations a row",
        tuple(cells),
        sizes(first.evaluation, task)[0],
        tuple(sweep.metrics),
        labels="none" if task else "uniform",
        shape="together",
    )


def prepare_evaluation(
    sweep: Sweep,
    rows: Rows,
    out: Path,
    seed: int,
    options: ScorerOptions,
    samples: int | None = None,
    dry_run: bool = False,
) -> Evaluation:
    """The evaluation of the teacher alone: rejects before the training what would stop it afterwards.

    A dry run writes nothing and has no scorer, because features of a reference are stored when they are computed.
    """
    for row, recipe in rows:
        RunFolder(out / row.folder).state(recipe)
    recipe = rows[0][1]
    teacher = load(recipe.teacher, options.device, weights=recipe.init_weights)
    protocol = sweep_protocol(sweep, rows, teacher)
    context = ScorerContext(teacher, task_of(teacher), samples or protocol.n, out, options)
    name, scorers = fitting_scorer(context), []
    if dry_run:
        check_scorers([name], context)
    else:
        scorers = make_scorers([name], context)
        x = teacher.sample(TRIED_SAMPLES, steps=1)
        scorers[0].score(x, teacher.decode(x))
    models = [EvaluatedModel(TEACHER_ROW, teacher, recipe.teacher)]
    return Evaluation(protocol, models, scorers, context.n, seed, out, context.task)


def with_students(evaluation: Evaluation, rows: Rows) -> Evaluation:
    """The evaluation of teacher and trained students."""
    device = evaluation.models[0].model.denoiser.device
    students = []
    for row, _ in rows:
        folder = evaluation.out / row.folder / "student"
        students.append(EvaluatedModel(row.label, load(str(folder.absolute()), device), str(folder)))
    return replace(evaluation, models=[*evaluation.models, *students])
