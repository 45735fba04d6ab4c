"""Measuring a sweep: every row is a run of its own; the teacher and all students are evaluated together.

In a contest every student is measured twice, with all steps of its own and with the hand-off of its recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.pipeline import fitting_scorer, sizes
from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol, column
from di4c_cli.evaluation.results import Results
from di4c_cli.evaluation.run import Evaluation, merge_repeats
from di4c_cli.evaluation.scorers import ScorerContext, check_scorers, make_scorers
from di4c_cli.evaluation.steps_saved import steps_saved
from di4c_cli.model import Model, load
from di4c_cli.recipe import Recipe
from di4c_cli.tasks.registry import task_of
from di4c_cli.training.compute import forward_equivalents
from di4c_cli.training.round_data import information
from di4c_cli.training.run_folder import RunFolder
from di4c_cli.training.sweep_recipe import Sweep, SweepRow

TEACHER_ROW = "teacher"
HAND_OFF = ", hand-off"
TRIED_SAMPLES = 2
"""Samples of the teacher that are scored before the training."""
Rows = list[tuple[SweepRow, Recipe]]


def sweep_protocol(sweep: Sweep, rows: Rows, teacher: Model) -> EvaluationProtocol:
    """Teacher and students down, the steps of the recipes' `evaluation` across, the sweep's metrics in each cell."""
    task, first = task_of(teacher), rows[0][1]
    cells = []
    for row, recipe in [(None, first), *rows]:
        counts = sizes(recipe.evaluation, task)[1]
        if row is None:
            counts = sorted({*counts, *sweep.teacher_steps})
        for line, options, fewest in _ways(sweep, row, recipe):
            specs = [(column(k), k, options, sweep.published(recipe, row, k)) for k in counts if k >= fewest]
            cells += [CellSpec(line, *spec) for spec in specs]
    return EvaluationProtocol(
        sweep.name,
        sweep.summary
        if sweep.labels
        else f"{sweep.summary}, {first.name}, {first.training.iterations} iterations a row",
        tuple(cells),
        sizes(first.evaluation, task)[0],
        tuple(sweep.metrics),
        labels=sweep.labels or ("none" if task else "uniform"),
        shape="metrics" if sweep.labels else "together",
    )


def _ways(sweep: Sweep, row: SweepRow | None, recipe: Recipe) -> list[tuple[str, dict[str, int], int]]:
    """The printed lines of a row with their sampling settings and smallest number of steps."""
    if row is None:
        return [(TEACHER_ROW, {}, 1)]
    if not sweep.labels:
        return [(row.label, {}, 1)]
    handed = recipe.sampling is not None and recipe.sampling.handoff is not None
    return [(row.label, {"hybrid": 0}, 1), *([(row.label + HAND_OFF, {}, 2)] if handed else [])]


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
    seen = [row.label for row, own in rows if information(own, teacher.config.labels).endswith("labels")]
    if sweep.labels == "none" and seen:
        raise UserError(
            f"{seen[0]} learns from labels, but {sweep.name} samples without labels.",
            "Set training.label_dropout to 1 in this row, or `labels: uniform` in the sweep.",
        )
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
    """The evaluation of teacher and trained students; the lines of a row share its student."""
    device = evaluation.models[0].model.denoiser.device
    lines, students = set(evaluation.protocol.rows), []
    for row, _ in rows:
        folder = evaluation.out / row.folder / "student"
        model = load(str(folder.absolute()), device)
        students += [EvaluatedModel(x, model, str(folder)) for x in (row.label, row.label + HAND_OFF) if x in lines]
    return replace(evaluation, models=[*evaluation.models, *students])


def with_compute(results: Results, rows: Rows, teacher: Model) -> Results:
    """The results with the training compute of every student."""
    forwards = {row.label: forward_equivalents(recipe, teacher) for row, recipe in rows}
    for entry in results.models:
        entry.forwards = forwards.get(entry.row.removesuffix(HAND_OFF))
    return results


def merge_seeds(every: Sequence[Results]) -> Results:
    """One result of several training seeds: means with intervals over the seeds, and the steps every row saves."""
    first = every[0]
    cells = [merge_repeats(group) for group in zip(*(one.cells for one in every), strict=True)]
    merged = first.model_copy(update={"cells": cells, "seconds": sum(one.seconds for one in every)})
    rows = [row for row in dict.fromkeys(cell.row for cell in cells) if row != TEACHER_ROW]
    merged.steps_saved = [entry for row in rows for entry in steps_saved(merged, row)]
    note = f"Intervals are over {len(every)} training seeds; the teacher's are over as many sampling seeds."
    merged.notes = [note, *merged.notes]
    return merged
