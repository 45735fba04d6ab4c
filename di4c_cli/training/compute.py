"""Training compute in network-forward equivalents: the operations of a run over those of one teacher prediction."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from di4c_cli.model import Model
from di4c_cli.recipe import Recipe
from di4c_cli.recipe_file import start_recipe
from di4c_cli.training.dry_run import trial_loop
from di4c_cli.training.processes import make_accelerator
from di4c_cli.training.round_data import pool_size

COUNTED_STEPS, COUNTED_SAMPLES = 4, 16
"""Training steps whose operations are counted, and samples of each; their mean stands for all."""


def forward_equivalents(recipe: Recipe, teacher: Model, device: str | None = None) -> float:
    """Forward equivalents of all rounds, with backward passes, extra networks and the teacher's synthetic samples.

    PyTorch's counter counts matrix products and convolutions of steps on random symbols; attention on a GPU only.
    """
    accelerator = make_accelerator("fp32", device, [], Path())
    small = recipe.model_copy(deep=True)
    small.training.batch, small.training.micro_batch = COUNTED_SAMPLES * accelerator.num_processes, None
    loop = trial_loop(small, teacher, accelerator)
    with FlopCounterMode(display=False) as counter:
        for _ in range(COUNTED_STEPS):
            loop.step()
    sample = counter.get_total_flops() / (COUNTED_STEPS * COUNTED_SAMPLES)
    accelerator.free_memory()
    denoiser = teacher.denoiser
    x = denoiser.process.prior(torch.full((1, denoiser.length), 0.5, dtype=torch.float64)).to(denoiser.device)
    with torch.no_grad(), FlopCounterMode(display=False) as forward:  # of one sample: all positions are noise
        denoiser.predict(x, torch.ones(1, device=denoiser.device), None).dense()
    drawn = pool_size(recipe)[1] * recipe.training.synthetic_steps
    trained = recipe.training.iterations * recipe.training.batch
    first = start_recipe(recipe)
    before = 0.0 if first is None else forward_equivalents(first, teacher, device)
    return before + recipe.rounds * (trained * sample / forward.get_total_flops() + drawn)
