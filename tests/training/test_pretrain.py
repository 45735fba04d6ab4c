"""Pretraining: a recipe is checked before any training, and a short training writes a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from di4c_cli import model_folder, recipe_file
from di4c_cli.errors import UserError
from di4c_cli.tasks.config import PretrainConfig
from di4c_cli.training.pretrain import PretrainHistory, pretrain


def recipe(name: str = "pretrain/tiny-digits", **changes: Any) -> PretrainConfig:
    small = {"training.iterations": 3, "training.batch": 2, "evaluate_every": 2}
    return recipe_file.read_pretrain(name, small | {key.replace("__", "."): v for key, v in changes.items()})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"network__widht": 8}, r"The recipe pretrain/tiny-digits: .*widht.*in the recipe"),
        ({"network__depth": "three"}, "depth"),
        ({"network__length": 65}, "65 positions"),
        ({"network__symbols": 4, "process__symbols": 4}, "4 symbols"),
        ({"network__type": "mlp"}, "mlp"),
        ({"process__shedule": "linear"}, "shedule"),
    ],
)
def test_pretrain_rejects_a_bad_recipe_before_any_training(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        pretrain(recipe(**changes), tmp_path / "out", lambda row: None)
    assert not (tmp_path / "out").exists()


def test_pretrain_writes_a_teacher(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    history = pretrain(recipe(), tmp_path, said.append)
    evaluations = said[:-1]
    assert [row["step"] for row in evaluations] == [2, 3]
    assert history.best == min(row["held_out"] for row in evaluations)
    config, denoiser, _ = model_folder.load_folder(tmp_path / "teacher")
    assert config.provenance["iterations"] == history.best_step
    assert all(torch.isfinite(weight).all() for weight in denoiser.parameters())


def test_history_counts_evaluations_without_improvement() -> None:
    history = PretrainHistory()
    for step, figure in enumerate((3.0, 2.0, 2.0, 2.5), 1):
        history.add(step, figure)
    assert (history.best, history.best_step, history.stale) == (2.0, 2, 2)
