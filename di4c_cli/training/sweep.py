"""Running a sweep: every row is a run of its own, trained or resumed; then all of them are evaluated."""

from __future__ import annotations

from pathlib import Path

import torch

from di4c_cli.errors import UserError
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.protocol import steps_protocol
from di4c_cli.evaluation.results import Results
from di4c_cli.evaluation.run import Evaluation
from di4c_cli.evaluation.scorers import ScorerContext, make_scorers
from di4c_cli.model import load, load_folder
from di4c_cli.recipe import Recipe
from di4c_cli.tasks.base import ImageTask
from di4c_cli.tasks.registry import task_of
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.sweep_recipe import Sweep, SweepRow

TEACHER_ROW = "teacher"


def train_row(recipe: Recipe, folder: Path, options: RunOptions) -> None:
    """One run; Ctrl-C leaves it resumable like any other."""
    distill(recipe, folder, options)


def measure_rows(
    sweep: Sweep,
    rows: list[tuple[SweepRow, Recipe]],
    out: Path,
    samples: int,
    seed: int,
    device: torch.device | str = "cpu",
) -> Results:
    """Teacher and students at the sweep's step counts, with the scorer of their toy task."""
    teacher = load(rows[0][1].teacher, device, weights=rows[0][1].init_weights)
    task = task_of(teacher)
    if task is None:
        raise UserError(
            f"'{teacher.name}' belongs to no toy task, so its students are trained but not measured.",
            f"Measure them with `di4c eval`; they are in {out}.",
        )
    models = [EvaluatedModel(TEACHER_ROW, teacher, rows[0][1].teacher)]
    for row, _ in rows:
        folder = out / row.folder / "student"
        models.append(EvaluatedModel(row.label, load_folder(folder).to(device), str(folder)))
    names = [one.row for one in models]
    protocol = steps_protocol(sweep.name, sweep.summary, names, sweep.steps, samples)
    name = "features" if isinstance(task, ImageTask) else "ngram"
    scorers = make_scorers([name], ScorerContext(teacher, task, samples, out))
    return Evaluation(protocol, models, scorers, samples, seed, out, task).run()
