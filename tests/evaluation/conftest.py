"""Tiny untrained models of the embedded worlds, enough to run every path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from di4c_cli import student
from di4c_cli.config import LatentConfig, ModelConfig
from di4c_cli.model import Model

SIZE = {"width": 16, "depth": 1, "heads": 2, "mlp": 16}


def digits_config(kind: str) -> ModelConfig:
    """A MaskGIT of a few thousand weights that makes 8x8 images of 8 levels."""
    return ModelConfig(
        kind=kind,  # type: ignore[arg-type]
        name="small-digits" if kind == "teacher" else "small-digits-student",
        network={"type": "maskgit", "symbols": 8, "length": 64, "labels": 10, **SIZE},
        process={"type": "masked", "symbols": 8, "schedule": "linear"},
        latent=LatentConfig() if kind == "student" else None,
        labels=10,
        codec={"type": "pixels", "shape": [1, 8, 8], "levels": 8},
        provenance={"teacher": "small-digits"} if kind == "student" else {},
    )


def small_model(kind: str, seed: int = 0) -> Model:
    """The model with random weights."""
    torch.manual_seed(seed)
    config = digits_config(kind)
    return Model(config, student.build(config).eval().requires_grad_(False))


@pytest.fixture(scope="session")
def teacher() -> Model:
    return small_model("teacher", 0)


@pytest.fixture(scope="session")
def pupil() -> Model:
    return small_model("student", 1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Teacher and student as folders on disk."""
    root = tmp_path_factory.mktemp("models")
    for kind, seed in (("teacher", 0), ("student", 1)):
        model = small_model(kind, seed)
        student.save_folder(root / kind, model.config, model.denoiser, "# small\n")
    return root / "teacher", root / "student"
