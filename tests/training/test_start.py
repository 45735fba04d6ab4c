"""`start:` of a recipe: a run that begins with the student of another recipe."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.recipe import Recipe
from di4c_cli.training.compute import forward_equivalents
from di4c_cli.training.processes import Stopped
from di4c_cli.training.run import RunOptions, distill

SMALL = {"training.iterations": 4, "training.batch": 4, "training.synthetic_pool": 8, "training.checkpoint_every": 2}


def small_recipe(**more: object) -> Recipe:
    return recipe_file.read("moment_matching/digits", {**SMALL, "seed": 3, **more})


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "student" / "model.safetensors")


def test_start_recipe_has_the_information_and_latent_of_its_recipe() -> None:
    recipe = small_recipe(data="teacher")
    first = recipe_file.start_recipe(recipe)
    assert first is not None and first.method.name == "variational"
    assert (first.teacher, first.data, first.seed) == (recipe.teacher, recipe.data, recipe.seed)
    assert (first.latent, first.training.label_dropout) == (recipe.latent, recipe.training.label_dropout)
    assert first.training.iterations == 11  # 2.8 × 4


def test_distill_begins_with_the_student_of_its_start(tmp_path: Path) -> None:
    recipe = small_recipe(**{"training.optimizer.lr": 1e-30, "training.iterations": 2})
    distill(recipe, tmp_path / "run", RunOptions())
    begun, ended = weights(tmp_path / "run" / "start"), weights(tmp_path / "run")
    assert begun.keys() == ended.keys()
    for name, tensor in begun.items():
        torch.testing.assert_close(ended[name], tensor, rtol=0, atol=1e-6)
    teacher = di4c_cli.load("digits").denoiser.network.state_dict()
    assert any(not torch.equal(ended[name], tensor) for name, tensor in teacher.items())


def test_distill_after_a_start_moves_all_but_the_prior(tmp_path: Path) -> None:
    distill(small_recipe(), tmp_path / "run", RunOptions())
    begun, ended = weights(tmp_path / "run" / "start"), weights(tmp_path / "run")
    moved = {name for name, tensor in begun.items() if not torch.equal(ended[name], tensor)}
    assert moved and not any(name.startswith("latent_prior.") for name in moved)


class Interrupt:
    """Raises after some steps of training, as a stop would."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, row: object) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Stopped("Stopped.", "Run the same command again to resume.")


@pytest.mark.parametrize("steps", [5, 14], ids=["in the start", "after it"])
def test_distill_with_a_start_resumes_bit_for_bit(tmp_path: Path, steps: int) -> None:
    recipe = small_recipe()
    distill(recipe, tmp_path / "whole", RunOptions())
    with pytest.raises(Stopped):
        distill(recipe, tmp_path / "cut", RunOptions(report=Interrupt(steps)))
    distill(recipe, tmp_path / "cut", RunOptions())
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], tensor) for name, tensor in cut.items())


@pytest.mark.parametrize("recipe", [small_recipe(), small_recipe(start=None, **{"latent.prior": "standard"})])
def test_signal_in_the_last_step_is_not_forgotten(tmp_path: Path, recipe: Recipe) -> None:
    first = recipe_file.start_recipe(recipe) or recipe

    def terminate(row: dict[str, object]) -> None:
        if row["step"] == first.training.iterations:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped) as stopped:
        distill(recipe, tmp_path / "run", RunOptions(report=terminate)).check_stop()
    assert stopped.value.exit_code == 143
    assert distill(recipe, tmp_path / "run", RunOptions()).check_stop().asked_to_stop == 0


def test_forward_equivalents_count_the_start() -> None:
    recipe, teacher = small_recipe(), di4c_cli.load("digits")
    first = recipe_file.start_recipe(recipe)
    assert first is not None
    alone = recipe.model_copy(update={"start": None})
    total, parts = forward_equivalents(recipe, teacher), forward_equivalents(first, teacher)
    assert total == pytest.approx(parts + forward_equivalents(alone, teacher))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"start": None}, "start from a variational student"),
        ({"start.recipe": "moment_matching/digits"}, "cannot be a start"),
        ({"start.recipe": "no-such-recipe"}, "no-such-recipe"),
    ],
)
def test_recipe_with_an_impossible_start_is_rejected(change: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        recipe_file.start_recipe(small_recipe(**change))
