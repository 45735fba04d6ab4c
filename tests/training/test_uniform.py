"""Uniform diffusion (Duo, UDLM): every method that takes it distils a small teacher by the real command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from di4c_cli import load
from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.model_folder import save_folder
from tests.helpers.small_run import run

NETWORK = {"type": "dit", "symbols": 12, "length": 8, "width": 32, "depth": 2, "heads": 2, "cond_dim": 16}
WAYS = {"duo": ["method.latents=3"], "variational/sdtt-7": [], "moment_matching/sdtt-7": []}
"""Recipes of the three methods, and what makes them small."""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = NETWORK | {"time_conditioning": True, "mask": False}
    process = {"type": "uniform", "symbols": 12, "schedule": "linear"}
    config = ModelConfig(kind="teacher", name="uniform", network=network, process=process, codec={"type": "none"})
    denoiser = build_denoiser(config)
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder = tmp_path_factory.mktemp("uniform") / "teacher"
    save_folder(folder, config, denoiser, "# card\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("recipe", WAYS)
def test_method_distils_a_uniform_process(recipe: str, teacher: Path, tmp_path: Path) -> None:
    words = ["distill", "--teacher", str(teacher), "--recipe", recipe, "--data", "teacher"]
    small = ["training.iterations=2", "training.batch=2", "training.precision=fp32"]
    for setting in [*small, *WAYS[recipe]]:
        words += ["--set", setting]
    code, shown = run([*words, "--out", str(tmp_path / "run")])
    assert code == 0, shown
    student = load(str(tmp_path / "run"))
    x = student.sample(3, steps=2)
    assert x.shape == (3, 8) and int(x.min()) >= 0 and int(x.max()) < 12
