"""Every row of DESIGN's table of published recipes, number by number, and a dry run of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from di4c_cli import network, recipe_file
from di4c_cli.methods import Di4CConfig
from di4c_cli.teacher import registry
from di4c_cli.teacher.architectures import architectures
from di4c_cli.training.dry_run import preview

ADAM = {"kind": "adam", "betas": (0.9, 0.999), "weight_decay": 0.0, "clip": 1.0}
TAULDR = {
    "optimizer": ADAM | {"lr": 2e-4, "warmup": 0},
    "training": {"iterations": 320_000, "batch": 8, "ema": 0.9999, "flip": True, "dropout": 0.1},
    "method": {"latents": 16, "branch": "both", "distil_weight": 1.0, "teacher_step": "analytical"},
    "delta": (0.01, 0.02, 0.5),
    "step": (0.001, 0.01),
    "alpha": ("sigmoid", 1.0),
}
MASKGIT = {
    "optimizer": {"kind": "adamw", "lr": 1e-5, "betas": (0.9, 0.96), "weight_decay": 1e-5, "clip": 1.0, "warmup": 0},
    "training": {"iterations": 30_000, "batch": 4, "flip": True, "label_dropout": 0.1},
    "method": {"latents": 32, "branch": "split", "distil_weight": "1/step", "teacher_step": "confidence"},
    "delta": (0.05, 0.05, 1.0),
    "step": (0.05, 0.05),
    "alpha": ("zero", 1.0),
}
SDTT = {
    "optimizer": ADAM | {"lr": 3e-5, "warmup": 500},
    "training": {"iterations": 100_000, "batch": 2, "ema": 0.9999, "precision": "bf16"},
    "method": {"latents": 16, "branch": "split", "distil_weight": 1.0, "teacher_step": "analytical"},
    "delta": (0.02, 0.02, 1.0),
    "step": (1 / 1024, 1 / 1024),
    "alpha": ("zero", 1.0),
}
DATA_TERM = {"alpha": ("sigmoid", 0.1)}
PUBLISHED = {
    "tauldr-cifar10": TAULDR,
    "maskgit-imagenet256": MASKGIT,
    "maskgit-imagenet256-d": MASKGIT | DATA_TERM,
    "sdtt-6": SDTT,
    "sdtt-6-d": SDTT | DATA_TERM,
    "sdtt-7": SDTT,
    "sdtt-7-d": SDTT | DATA_TERM,
}
WEIGHTS = {
    "tauldr": (35_749_766, 39_066_630),
    "maskgi": (174_160_874, 174_620_906),
    "sdtt-6": (169_627_218, 170_087_250),
}
WEIGHTS["sdtt-7"] = WEIGHTS["sdtt-6"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipe_has_the_papers_numbers(name: str) -> None:
    recipe, expected = recipe_file.read(name), PUBLISHED[name]
    method = recipe.method
    assert isinstance(method, Di4CConfig)
    for section, values in (
        ("optimizer", recipe.training.optimizer),
        ("training", recipe.training),
        ("method", method),
    ):
        for key, value in expected[section].items():  # type: ignore[attr-defined]
            assert getattr(values, key) == value, f"{section}.{key}"
    assert (method.delta.low, method.delta.high, method.delta.at_low) == expected["delta"]
    assert (method.step.low, method.step.high) == expected["step"]
    assert (method.alpha.kind, method.alpha.scale) == expected["alpha"]
    assert method.control_variate == "marginal" and method.marginal_weight == method.consis_weight == 1
    assert (recipe.latent.distribution, recipe.latent.dim) == ("uniform", 1)
    if name.startswith("sdtt"):
        assert (method.time.grid, method.time.small_share) == (1024, 0.3)
        assert recipe.data == "Skylion007/openwebtext"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipe_header_holds_command_hardware_and_expectation(name: str) -> None:
    lines = recipe_file.find(name).read_text().splitlines()
    head = [line for line in lines[: lines.index("kind: distill")] if line.startswith("# ")]
    assert head[0].startswith("# di4c distill ")
    wanted = ("# Hardware: ", "# Expect (paper ")
    assert [line.startswith(wanted) for line in head].count(True) == len(wanted)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipe_previews_without_a_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network the sizes are still known; what cannot be reached is said."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # first: the import reads the variable
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("di4c_cli.teacher.reference.RemoteModel.cached", False)
    recipe = recipe_file.read(name, {"rounds": 2} if name.startswith("sdtt") else {})
    found = preview(recipe, tmp_path / "run", processes=2, device=None, measure=False)
    assert (found.parameters["teacher"], found.parameters["student"]) == WEIGHTS[name[:6]]
    student = 4 * found.parameters["student"]
    assert found.memory["optimizer"] == 2 * student == 2 * found.memory["gradients"]
    assert found.memory["activations"] > 2**30
    assert found.memory["total"] == sum(size for part, size in found.memory.items() if part != "total")
    assert any(path.endswith("round-{1..2}/student/") for path in found.files) == (recipe.rounds == 2)
    assert found.exit_code and found.problems
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", architectures())
def test_architectures_have_the_stated_number_of_weights(name: str) -> None:
    with torch.device("meta"):
        built = network.build(architectures()[name].network)
    assert sum(parameter.numel() for parameter in built.parameters()) == architectures()[name].parameters
    assert name in {entry.architecture for entry in registry.entries().values()}
