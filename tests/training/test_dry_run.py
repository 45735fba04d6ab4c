"""The dry run of a teacher that is here: sizes, a timed step, nothing written."""

from __future__ import annotations

from pathlib import Path

import torch

from di4c_cli import recipe_file
from di4c_cli.build import build_denoiser, build_on_meta
from di4c_cli.model import load, load_folder
from di4c_cli.training.dry_run import preview
from di4c_cli.training.estimate import estimate, saved_bytes
from di4c_cli.training.make_student import student_config
from di4c_cli.training.plan import Plan
from di4c_cli.training.rounds import Options, distill
from tests.helpers.small_run import small_recipe


def test_everything_is_known_and_nothing_written(teacher: Path, tmp_path: Path) -> None:
    recipe = small_recipe(teacher, rounds=2)
    found = preview(recipe, tmp_path / "run", processes=1, device=None)
    assert (found.run, found.teacher, found.problems, found.exit_code) == ("new", "here", [], 0)
    assert "1297 samples" in found.data
    assert found.seconds_per_step is not None and found.total_seconds is not None
    assert abs(found.total_seconds - 12 * found.seconds_per_step) < 1e-9
    assert not list(tmp_path.iterdir())
    distill(recipe, tmp_path / "run", Options())
    student = (tmp_path / "run" / "student" / "model.safetensors").stat().st_size
    announced = found.files[f"{tmp_path / 'run'}/student/"]
    assert announced is not None and abs(announced / student - 1) < 0.1
    assert preview(recipe, tmp_path / "run", 1, None, measure=False).run == "finished"


def test_problems_are_collected(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    found = preview(small_recipe(teacher, data="nowhere"), tmp_path, 3, None)
    assert found.exit_code == 2
    text = " ".join(found.problems)
    assert "not a di4c run" in text and "nowhere" in text and "3 processes" in text


def test_activations_are_counted_as_torch_keeps_them(teacher: Path) -> None:
    """The count on the meta device against a real forward pass."""
    model = load_folder(teacher)
    config = student_config(model, small_recipe(teacher), 1)
    counted = saved_bytes(build_on_meta(config), half=False)

    real = build_denoiser(config)
    own = {parameter.untyped_storage().data_ptr() for parameter in real.parameters()}
    kept: dict[int, int] = {}

    def pack(value: torch.Tensor) -> torch.Tensor:
        pointer = value.untyped_storage().data_ptr()
        if pointer not in own:
            kept[pointer] = value.untyped_storage().nbytes()
        return value

    real.network.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        x, label = torch.zeros(2, 64, dtype=torch.long), torch.zeros(2, dtype=torch.long)
        hidden = real(x, torch.zeros(2), label, torch.zeros(2))
    assert hidden.requires_grad
    assert abs(sum(kept.values()) / 2 / counted - 1) < 0.1


def test_every_prediction_that_waits_for_its_gradient_is_counted() -> None:
    """The bound alone, with several draws, and beside the consistency term."""
    plan, found = Plan(1, 1, 1, 1), []
    for more in (
        {},
        {"objective.posterior.draws": 8},
        {"objective.posterior.draws": 8, "objective.consis_weight": 1, "objective.latents": 4},
    ):
        recipe = recipe_file.read("tiny-text", more)
        teacher = load(recipe.teacher)
        found.append(estimate(student_config(teacher, recipe, 1), teacher.config, recipe, plan).activations)
    assert [value / found[0] for value in found] == [1, 8, 12]
