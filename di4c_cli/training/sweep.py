"""Measuring a sweep: every row is a run of its own; the teacher and all students are evaluated together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from di4c_cli.errors import UserError
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.protocol import EvaluationProtocol, steps_protocol
from di4c_cli.evaluation.results import Results
from di4c_cli.evaluation.run import Evaluation
from di4c_cli.evaluation.scorers import ScorerContext, make_scorers
from di4c_cli.model import load, load_folder
from di4c_cli.recipe import Recipe
from di4c_cli.tasks.base import ImageTask
from di4c_cli.tasks.registry import task_of
from di4c_cli.training.sweep_recipe import Sweep, SweepRow

TEACHER_ROW = "teacher"


def sweep_protocol(sweep: Sweep, samples: int) -> EvaluationProtocol:
    """Teacher and students down, the sweep's step counts across, its metrics in each cell."""
    names = [TEACHER_ROW, *(row.label for row in sweep.rows)]
    protocol = steps_protocol(sweep.name, sweep.summary, names, sweep.steps, samples)
    return replace(protocol, metrics=tuple(sweep.metrics), shape="together")


def measure_rows(
    protocol: EvaluationProtocol, rows: list[tuple[SweepRow, Recipe]], out: Path, seed: int, device: str = "cpu"
) -> Results:
    """Teacher and students at the protocol's step counts, with the scorer of their toy task."""
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
    name = "features" if isinstance(task, ImageTask) else "ngram"
    scorers = make_scorers([name], ScorerContext(teacher, task, protocol.n, out))
    return Evaluation(protocol, models, scorers, protocol.n, seed, out, task).run()
