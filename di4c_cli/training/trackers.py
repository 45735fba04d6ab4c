"""Optional experiment trackers through Accelerate: off by default, never a prompt."""

from __future__ import annotations

import importlib.util
import os

from accelerate import Accelerator

from di4c_cli.errors import UserError
from di4c_cli.recipe import Recipe
from di4c_cli.training.metrics import Row
from di4c_cli.training.run_folder import flatten

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


def check_trackers(names: list[str]) -> None:
    """Refuse a tracker whose package is not installed, before anything is written."""
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise UserError(f"The tracker '{name}' is not installed.", f"Run `pip install {PACKAGES[name]}`.")


def start_trackers(accelerator: Accelerator, recipe: Recipe, name: str) -> None:
    """Open the recipe's trackers; wandb without a key stays offline instead of asking for one."""
    if not recipe.training.trackers:
        return
    os.environ.setdefault("WANDB_SILENT", "true")
    if "WANDB_API_KEY" not in os.environ:
        os.environ.setdefault("WANDB_MODE", "offline")
    settings = {key: _plain(value) for key, value in flatten(recipe.model_dump(mode="json")).items()}
    accelerator.init_trackers(name.replace("/", "-"), config=settings)


def track(accelerator: Accelerator, recipe: Recipe, row: Row) -> None:
    """One step; rounds follow one another on one axis."""
    step = (row["round"] - 1) * recipe.training.iterations + row["step"]
    numbers = {key: value for key, value in row.items() if isinstance(value, (int, float))}
    accelerator.log(numbers, step=step)


def _plain(value: object) -> object:
    """Trackers take numbers and strings."""
    return value if isinstance(value, (int, float, str, bool)) else str(value)
