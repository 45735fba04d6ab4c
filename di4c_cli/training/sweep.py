"""Running a sweep: every row a run of its own, resumed or found finished, then all of them measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from di4c_cli.errors import UserError
from di4c_cli.model import load, load_folder
from di4c_cli.recipe import Recipe
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.sweep_recipe import Row, Sweep

if TYPE_CHECKING:
    from di4c_cli.evaluation.result import Results

TEACHER = "teacher"


def train_row(recipe: Recipe, folder: Path, options: RunOptions) -> None:
    """One run; Ctrl-C leaves it resumable like any other."""
    distill(recipe, folder, options)


def measure_rows(
    sweep: Sweep,
    rows: list[tuple[Row, Recipe]],
    out: Path,
    samples: int,
    seed: int,
    device: torch.device | str = "cpu",
) -> Results:
    """Teacher and students at the sweep's step counts, with the instrument of their embedded world."""
    from di4c_cli.evaluation.instruments import world_of, world_scorer
    from di4c_cli.evaluation.plan import steps_plan
    from di4c_cli.evaluation.run import evaluate
    from di4c_cli.evaluation.sampling import Entrant

    teacher = load(rows[0][1].teacher, device, weights=rows[0][1].init_weights)
    world = world_of(teacher)
    if not world:
        raise UserError(
            f"'{teacher.name}' belongs to no embedded world, so its students are trained but not measured.",
            f"Measure them with `di4c eval`; they are in {out}.",
        )
    entrants = [Entrant(TEACHER, teacher, rows[0][1].teacher)]
    for row, _ in rows:
        folder = out / row.folder / "student"
        entrants.append(Entrant(row.label, load_folder(folder).to(device), str(folder)))
    names = [entrant.row for entrant in entrants]
    plan = steps_plan(sweep.name, sweep.summary, names, sweep.steps, samples)
    return evaluate(plan, entrants, [world_scorer(world)], samples, seed, out / "samples", world=world)
