"""A small run in float64, alone or launched: `python -m tests.helpers.float64_run TEACHER OUT STEPS [MICRO METHOD]`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from di4c_cli.training.run import RunOptions, distill
from tests.helpers.small_run import small_recipe, small_recipe_of


def main(teacher: str, out: str, steps: str, micro: str = "4", method: str = "di4c") -> None:
    settings = {
        "training__iterations": int(steps),
        "training__checkpoint_every": 100,
        "training__micro_batch": int(micro),
    }
    recipe = small_recipe(teacher, **settings) if method == "di4c" else small_recipe_of(method, teacher, **settings)
    distill(recipe, Path(out), RunOptions(dtype=torch.float64))


if __name__ == "__main__":
    main(*sys.argv[1:])
