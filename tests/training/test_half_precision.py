"""bf16 trains what fp32 trains: every paper recipe and every other method at a toy size, through the training loop.

torch 2.9 and 2.10 lost the gradients of whole layers here, which only a run on those versions shows
(`make test-torch TORCH=2.9.1`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.recipe import Recipe
from di4c_cli.training.loop import RunContext, TrainingLoop
from di4c_cli.training.processes import StopRequest, make_accelerator
from di4c_cli.training.student_init import build_method, new_student, student_config
from tests.helpers.small_run import RandomSource

TOYS = {
    "sdtt": "words",
    "duo": "words",
    "llada": "words",
    "maskgit": "digits",
    "tauldr": "pixels",
    "runs/english": "words",
}
"""Embedded teachers with the networks of the recipes' teachers."""
STEPS = 3
"""Behind weights that start at zero gradients appear in later steps."""
PAPER = [name for name in recipe_file.names() if "\n  name: di4c\n" in recipe_file.find(name).read_text()]
OTHERS = ["words", "moment_matching/pixels", "sdtt/words", "variational/words", "pixels"]


def toy_recipe(name: str, precision: str) -> Recipe:
    """The recipe on an embedded teacher, with 2 samples, 4 latents and a learning rate that shows in every weight."""
    recipe = recipe_file.read(name)
    latents = {"method.latents": 4} if name in PAPER else {"training.synthetic_share": 0.0}
    kind = recipe.teacher.partition("-")[0]
    return recipe_file.read(
        name,
        {
            "teacher": TOYS.get(kind, recipe.teacher),
            "data": "embedded",
            **latents,
            "training.batch": 2,
            "training.precision": precision,
            "training.optimizer.lr": 1e-3,
            "training.optimizer.warmup": 0,
        },
    )


def moved(recipe: Recipe, folder: Path) -> set[str]:
    """Names of the trained tensors that change in a few steps of the training loop."""
    teacher = di4c_cli.load(recipe.teacher)
    student = new_student(teacher, student_config(teacher, recipe, 1), recipe, 1)
    method = build_method(recipe, student, teacher.denoiser if recipe.method.needs_teacher else None, 1)
    before = {name: value.detach().clone() for name, value in method.named_parameters()}
    accelerator = make_accelerator(recipe.training.precision, "cpu", [], folder)
    context = RunContext(folder, None, StopRequest(), lambda _: None, lambda *_: None, lambda _: None)
    source = RandomSource(student.length, student.symbols, teacher.config.labels)
    loop = TrainingLoop(accelerator, recipe, 1, method, source, context)  # type: ignore[arg-type]
    for _ in range(STEPS):
        loop.step()
    return {name for name, value in loop.module.named_parameters() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("name", [*PAPER, *OTHERS])
def test_bf16_moves_every_parameter_that_fp32_moves(name: str, tmp_path: Path) -> None:
    full, half = (moved(toy_recipe(name, precision), tmp_path) for precision in ("fp32", "bf16"))
    assert len(full) > 10
    assert not full - half


@pytest.mark.parametrize("value", ["no", "false", "fp32"])
def test_old_name_of_fp32(value: str) -> None:
    """YAML reads `no`, the name of version 0.1, as false."""
    recipe = recipe_file.read("di4c/digits", dict([recipe_file.parse_assignment(f"training.precision={value}")]))
    assert recipe.training.precision == "fp32"
