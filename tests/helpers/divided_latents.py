"""Latents divided over two processes: `python -m tests.helpers.divided_latents OUT`, launched in two processes.

OUT/run is a run of the training loop. OUT/errors.json has the relative deviations of loss, gradient and metrics from
those of one process in float64, for single losses of several configurations. OUT/pool.pt is a pool of the teacher's
samples, of which every process draws half.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, distributed

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.data.stream import SyntheticMixture
from di4c_cli.methods.latent_group import ALONE, LatentGroup
from di4c_cli.model import Model
from di4c_cli.noise import Noise
from di4c_cli.recipe import Recipe
from di4c_cli.training.round_data import with_synthetic
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.student_init import build_method, new_student, student_config
from tests.helpers.small_run import RandomSource

POOL = 5
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("di4c/words", {}),
    "no control variate": ("di4c/words", {"method.control_variate": "none"}),
    "convex control variate": ("di4c/words", {"method.control_variate": "convex"}),
    "latent by latent at delta": ("di4c/pixels", {}),
    "stratified, confidence step": (
        "di4c/digits",
        {"method.stratified": True, "method.teacher_step": "confidence", "latent.distribution": "uniform"},
    ),
    "one latent each, in chunks": ("di4c/words", {"method.latents": 2, "method.chunk_mb": 0.001}),
    "mixture teacher": ("di4c/words", {"teacher": "run/student"}),
    "mixture teacher, one latent each": ("di4c/words", {"teacher": "run/student", "method.latents": 2}),
}


def small(name: str, **overrides: Any) -> Recipe:
    """One sample with four latents."""
    values = {"training.batch": 1, "training.iterations": 2, "method.latents": 4, "training.dropout": 0.0}
    return recipe_file.read(name, values | overrides)


def figures(recipe: Recipe, group: LatentGroup) -> dict[str, Tensor]:
    """Loss, terms, diagnostics and gradients of one batch; means over the processes of the group."""
    teacher = di4c_cli.load(recipe.teacher)
    student = new_student(teacher, student_config(teacher, recipe, 1), recipe, 1)
    method = build_method(recipe, student.double(), teacher.denoiser.double(), 1)
    method.latent_group = group
    batch = RandomSource(student.length, student.symbols, teacher.config.labels).read(5, 2)
    total, terms, _, diagnostics = method(batch, Noise(0, batch.index, "train/1"), 0.5)
    total.backward()
    gradients = [p.grad.flatten() for p in method.parameters() if p.grad is not None]
    found = {"loss": total.detach(), "gradient": torch.cat(gradients), **terms, **diagnostics}
    return {name: group.mean(value.double()) for name, value in found.items()}


def errors(recipe: Recipe) -> dict[str, float]:
    """Relative deviations of the divided computation."""
    handle = distributed.group.WORLD
    one, two = figures(recipe, ALONE), figures(recipe, LatentGroup(distributed.get_rank(), 2, handle))
    return {name: float((one[name] - two[name]).norm() / one[name].norm().clamp_min(1e-6)) for name in one}


def teacher_pool(accelerator: Accelerator) -> Tensor:
    """The teacher's samples for a run without data."""
    values = {"data": "teacher", "training.synthetic_share": 1.0, "training.synthetic_pool": POOL}
    recipe = recipe_file.read("digits", values)
    teacher = di4c_cli.load("digits")
    source = RandomSource(64, 8, 10)
    mixed = with_synthetic(source, recipe, teacher, 1, accelerator, lambda text: None)  # type: ignore[arg-type]
    assert isinstance(mixed, SyntheticMixture)
    return mixed.pool


def main(out: str) -> None:
    distill(small("di4c/words"), Path(out) / "run", RunOptions(keep_group=True))
    os.chdir(out)
    found = {case: errors(small(name, **overrides)) for case, (name, overrides) in CASES.items()}
    if os.environ["RANK"] == "0":
        Path("errors.json").write_text(json.dumps(found))
    accelerator = Accelerator(cpu=True)
    own: list[int] = []
    sample = Model.sample
    Model.sample = lambda self, n, **options: (own.append(n), sample(self, n, **options))[1]  # type: ignore[method-assign]
    pool = teacher_pool(accelerator)
    assert own == [-(-POOL // 2)]
    if accelerator.is_main_process:
        torch.save(pool, "pool.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
