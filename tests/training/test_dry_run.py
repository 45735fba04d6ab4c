"""The dry run of a teacher that is here: sizes, a timed step, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from di4c_cli import recipe_file
from di4c_cli.build import build_denoiser, build_on_meta
from di4c_cli.cli.distill import preview_lines
from di4c_cli.data.stream import Batch
from di4c_cli.model import Model, load, load_folder
from di4c_cli.noise import Noise
from di4c_cli.teacher.registry import published_config
from di4c_cli.training.dry_run import preview
from di4c_cli.training.estimate import count, estimate, saved_bytes, step_flops
from di4c_cli.training.plan import BatchPlan, make_batch_plan, recipe_plan
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.student_init import build_method, new_student, student_config
from tests.helpers.small_run import small_recipe


@pytest.mark.slow
def test_preview_knows_everything_and_writes_nothing(teacher: Path, tmp_path: Path) -> None:
    recipe = small_recipe(teacher, rounds=2)
    found = preview(recipe, tmp_path / "run", processes=1, device=None)
    assert (found.run, found.teacher, found.problems, found.exit_code) == ("new", "here", [], 0)
    assert "1297 samples" in found.data
    assert found.seconds_per_step is not None and found.total_seconds is not None
    assert abs(found.total_seconds - 12 * found.seconds_per_step) < 1e-9
    assert not list(tmp_path.iterdir())
    distill(recipe, tmp_path / "run", RunOptions())
    student = (tmp_path / "run" / "student" / "model.safetensors").stat().st_size
    announced = found.files[f"{tmp_path / 'run'}/student/"]
    assert announced is not None and abs(announced / student - 1) < 0.1
    assert preview(recipe, tmp_path / "run", 1, None, measure=False).run == "finished"


def test_preview_collects_problems(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    found = preview(small_recipe(teacher, data="nowhere"), tmp_path, 3, None)
    assert found.exit_code == 2
    text = " ".join(found.problems)
    assert "not a di4c run" in text and "nowhere" in text and "3 processes" in text


def test_saved_bytes_are_those_that_torch_keeps(teacher: Path) -> None:
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


@pytest.mark.slow
def test_estimate_counts_every_prediction_of_the_student() -> None:
    """The variational bound, the importance-weighted one, and Di4C with its latents; the teacher is not counted."""
    plan, found = BatchPlan(1, 1, 1, 1), []
    for name, more in (
        ("variational/words", {}),
        ("variational/words", {"method.iwae_samples": 8}),
        ("di4c/words", {"method.latents": 4}),
        ("di4c/words", {"method.latents": 12}),
    ):
        recipe = recipe_file.read(name, more)
        teacher = load(recipe.teacher)
        config = student_config(teacher, recipe, 1)
        memory = estimate(config, teacher.config, recipe, plan)
        found.append(memory.activations)
        frozen = 4 * count(build_on_meta(teacher.config)) if name.startswith("di4c/") else 0
        assert memory.teacher == frozen
    assert found[1] == 8 * found[0] and found[3] == 3 * found[2]


@pytest.mark.parametrize("branch", ["split", "both"])
def test_estimate_covers_every_graph_of_the_loss(branch: str) -> None:
    """With `both` the graphs at t and at δ live together; the estimate holds what torch keeps."""
    recipe = recipe_file.read("di4c/pixels", {"method.branch": branch, "method.latents": 4})
    teacher = load(recipe.teacher)
    config = student_config(teacher, recipe, 1)
    method = build_method(recipe, new_student(teacher, config, recipe, 1), teacher.denoiser, 1)
    own = {parameter.untyped_storage().data_ptr() for parameter in method.parameters()}
    kept: dict[int, int] = {}

    def pack(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    x0 = torch.zeros(2, teacher.denoiser.length, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        total = method(Batch([0, 1], x0, None), Noise(0, [0, 1], "train/1"))[0]
    assert total.requires_grad
    counted = estimate(config, teacher.config, recipe, make_batch_plan(2, None, 1)).activations
    assert sum(kept.values()) == pytest.approx(counted, rel=0.1)


def test_estimate_of_the_published_pixel_run_is_near_its_peak() -> None:
    """13.1 GiB are the live tensors of one step at the published size, counted operation by operation."""
    recipe = recipe_file.read("tauldr-cifar10", {})
    published = published_config(recipe.teacher)
    assert published is not None
    config = student_config(Model(published, build_on_meta(published)), recipe, 1)
    memory = estimate(config, published, recipe, make_batch_plan(recipe.training.batch, None, 1))
    assert memory.total / 2**30 == pytest.approx(13.1, rel=0.1)


def test_preview_counts_the_auxiliary_network() -> None:
    """Two trained networks: weights, gradients, optimizer and checkpoints of both; the average is the student's."""
    found = {}
    for name in ("sdtt/words", "words"):
        recipe = recipe_file.read(name, {"rounds": 1, "training.checkpoint_every": 1, "training.keep": 1})
        found[name] = preview(recipe, Path("never-written"), 1, "cpu", measure=False)
    one, two = found.values()
    student, auxiliary = 4 * two.parameters["student"], 4 * two.parameters["teacher"]
    assert two.memory["weights"] == student + auxiliary and two.memory["optimizer"] == 2 * (student + auxiliary)
    assert two.memory["ema"] == student and two.memory["teacher"] == auxiliary == one.memory["weights"]
    (size,) = (size for name, size in two.files.items() if "checkpoints" in name)
    assert size == 3 * (student + auxiliary) + student


def test_preview_estimates_for_each_size_of_gpu(teacher: Path, tmp_path: Path) -> None:
    """The loss of a large GPU has larger chunks, so one GPU's need says nothing about another's."""
    recipe = recipe_file.read("sdtt-7", {"data": "teacher"})
    published = published_config("sdtt-7")
    assert published is not None
    config = student_config(Model(published, build_on_meta(published)), recipe, 1)
    plan = make_batch_plan(recipe.training.batch, None, 1)
    found = preview(recipe, tmp_path / "run", 1, None, measure=False)
    asked = {size: estimate(config, published, recipe, plan, gpu=size * 2**30).total for size in (24, 48, 80)}
    assert found.gpu_memory == asked and asked[24] < asked[48] < asked[80]


def test_preview_lines_add_up(tmp_path: Path) -> None:
    """Memory of each GPU and disk of all rounds, for the longest of the published ways."""
    found = preview(recipe_file.read("sdtt/mdlm", {"data": "teacher"}), tmp_path / "run", 1, None, measure=False)
    lines = preview_lines(found)
    for line in [line for line in lines if line.startswith("GPU ")]:
        size, tensors, cuda, total = map(float, re.findall(r"[0-9.]+", line))
        assert tensors + cuda == pytest.approx(total) and (" fits: " in line) == (total <= size)
    assert sum(line.startswith("GPU ") for line in lines) == 3
    sizes = [
        float(size.replace(",", "")) for line in lines for size in re.findall(r"^would.* \(([0-9.,]+) MB\)$", line)
    ]
    (disk,) = (line.split()[1] for line in lines if line.startswith("disk "))
    assert float(disk.replace(",", "")) == pytest.approx(sum(sizes), abs=0.3)
    assert sum("round-{1..7}/" in line for line in lines) == 2 and len(sizes) == 4


def test_work_of_sdtt_is_two_forwards_of_the_teacher_and_three_of_the_student() -> None:
    recipe, config = recipe_file.read("sdtt/mdlm"), published_config("mdlm")
    assert config is not None
    plan = recipe_plan(recipe, 1)
    found = step_flops(config, recipe, plan)
    longer = recipe.model_copy(update={"method": recipe.method.model_copy(update={"teacher_steps": 7})})
    assert found is not None and plan.passes == 64 and step_flops(config, longer, plan) == 2 * found
    assert found == pytest.approx(2 * 128 * 5 * 1024 * 131e6, rel=0.05)


def test_preview_reports_wrong_data_before_it_times_anything(teacher: Path, tmp_path: Path) -> None:
    found = preview(small_recipe(teacher, data="nowhere.txt"), tmp_path / "run", 1, None)
    assert found.exit_code == 2 and "nowhere.txt" in found.data
    assert found.seconds_per_step is None and found.measured == "" and found.memory
