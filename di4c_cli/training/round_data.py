"""The data of one round: a stream of samples, with the teacher's own samples among them if the recipe asks for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator

from di4c_cli.data.source import open_source
from di4c_cli.data.stream import DataSpec, Source, SyntheticMixture
from di4c_cli.model import Model
from di4c_cli.noise import sample_seeds
from di4c_cli.recipe import Recipe

ANNOUNCED_POOL = 1000
"""Number of teacher samples from which on their drawing is announced."""


def data_spec(recipe: Recipe, teacher: Model, round_number: int, device: torch.device | str = "cpu") -> DataSpec:
    """The requirements of a round for its data."""
    denoiser, training = teacher.denoiser, recipe.training
    return DataSpec(
        recipe.seed,
        f"data/{round_number}",
        denoiser.length,
        denoiser.symbols,
        denoiser.labels,
        training.label_dropout,
        training.flip,
        training.crop == "random",
        device,
    )


def open_round_data(recipe: Recipe, teacher: Model, round_number: int, device: torch.device) -> Source:
    """The recipe's data for one round."""
    return open_source(recipe.data, teacher, data_spec(recipe, teacher, round_number, device))


def pool_size(recipe: Recipe) -> tuple[float, int]:
    """Share of the teacher's samples in the stream, and how many different ones a round draws."""
    training = recipe.training
    share, pool = training.synthetic_share, training.synthetic_pool
    if recipe.data == "teacher" and recipe.method.pool_without_data:
        # each sample as often as it would occur among data
        share, pool = 1.0, round(pool / (share or 1.0))
    elif recipe.data == "teacher":
        return 0.0, 0  # x_t comes from the teacher's trajectory
    # a short run does not need them all
    return share, min(pool, training.iterations * training.batch) if share else 0


def information(recipe: Recipe, labels: int | None) -> str:
    """What a student learns from: its teacher alone or data too, and the labels of a teacher with `labels` classes."""
    share = pool_size(recipe)[0]
    source = "teacher only" if recipe.data == "teacher" or share == 1 else "teacher and data"
    return f"{source}, labels" if labels and recipe.training.label_dropout < 1 else source


def with_synthetic(
    source: Source, recipe: Recipe, teacher: Model, number: int, accelerator: Accelerator, say: Callable[[str], None]
) -> Source:
    """The stream with samples of the teacher mixed in; each process draws its part of them before round `number`."""
    share, count = pool_size(recipe)
    if not count:
        return source
    (seed,) = sample_seeds(f"{recipe.seed}:pool", [number])
    (draws,) = sample_seeds(f"{seed}:pool", [0])
    steps, labels = recipe.training.synthetic_steps, teacher.denoiser.labels
    if recipe.training.label_dropout == 1:
        labels = None  # a student without labels learns from the teacher without labels
    if count >= ANNOUNCED_POOL:
        say(f"Drawing {count} of the teacher's own samples in {steps} steps.")
    each = -(-count // accelerator.num_processes)
    first = each * accelerator.process_index
    label = None if labels is None else torch.arange(first, first + each) % labels
    teacher.to(accelerator.device)
    own = teacher.sample(each, steps=steps, seed=draws % 2**31, label=label, first=first)
    teacher.to("cpu")
    return SyntheticMixture(source, accelerator.gather(own)[:count].cpu(), labels, share, seed)
