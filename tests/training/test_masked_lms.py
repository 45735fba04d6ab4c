"""Masked language models of both kinds are distilled by the real command, and their students sample."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from di4c_cli import load
from tests.helpers.small_run import run

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "inject"), [("dream", "token"), ("esm", "film")])
def test_distill_of_a_masked_lm_gives_a_student_that_samples(kind: str, inject: str, tmp_path: Path) -> None:
    teacher = str(GOLDEN / kind)
    small = ["training.iterations=2", "training.batch=2", "method.latents=3"]
    words = ["distill", "--teacher", teacher, "--data", "teacher", "--out", str(tmp_path / "run")]
    for setting in [*small, f"latent.inject={inject}"]:
        words += ["--set", setting]
    code, shown = run(words)
    assert code == 0, shown
    student = load(str(tmp_path / "run"))
    assert student.config.kind == "student" and student.config.provenance["recipe"]["name"] == "masked-lm"
    x = student.sample(3, steps=2)
    assert x.shape == (3, student.denoiser.length) and (x < student.denoiser.symbols).all()
    assert all(word[0] == "w" for text in student.decode(x) for word in text.split())
    moved = student.denoiser.network.state_dict()
    own = load(teacher).denoiser.network.state_dict()
    assert any(not torch.equal(own[name], moved[name]) for name in own)
