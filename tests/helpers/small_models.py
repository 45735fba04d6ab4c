"""Untrained models of a few thousand weights for the evaluation's tests: digits, pixels, text, and a tiny space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from di4c_cli import model_folder
from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.latent.config import LatentConfig
from di4c_cli.model import Model

SIZE = {"width": 16, "depth": 1, "heads": 2, "mlp": 16}
WORLDS: dict[str, dict[str, Any]] = {
    "digits": {
        "network": {"type": "maskgit", "symbols": 8, "length": 64, "labels": 10, **SIZE},
        "process": {"type": "masked", "symbols": 8, "schedule": "linear"},
        "labels": 10,
        "codec": {"type": "pixels", "shape": [1, 8, 8], "levels": 8},
    },
    "pixels": {
        "network": {
            "type": "unet",
            "symbols": 16,
            "shape": [1, 8, 8],
            "channels": 8,
            "multipliers": [1],
            "blocks": 1,
            "attention": [],
            "time_dim": 8,
        },
        "process": {
            "type": "gaussian",
            "symbols": 16,
            "rate_sigma": 1.0,
            "q_sigma": 32.0,
            "time_exponential": 100.0,
            "time_base": 0.45,
        },
        "codec": {"type": "pixels", "shape": [1, 8, 8], "levels": 16},
        "sampling": {"last": "argmax", "grid": "pixels", "tile": 2},
    },
    "text": {
        "network": {"type": "dit", "symbols": 600, "length": 40, "width": 16, "depth": 1, "heads": 2, "cond_dim": 8},
        "process": {"type": "masked", "symbols": 600, "schedule": "linear"},
        "codec": {"type": "text", "name": "gpt2", "symbols": 600},
    },
    "space": {
        "network": {"type": "maskgit", "symbols": 3, "length": 3, **SIZE},
        "process": {"type": "masked", "symbols": 3, "schedule": "linear"},
    },
}


def small_model(kind: str, seed: int = 0, world: str = "digits") -> Model:
    """A teacher or student with random weights."""
    torch.manual_seed(seed)
    config = ModelConfig(
        kind=kind,  # type: ignore[arg-type]
        name=f"small-{world}" if kind == "teacher" else f"small-{world}-student",
        latent=LatentConfig(inject="film") if kind == "student" else None,
        provenance={"teacher": f"small-{world}"} if kind == "student" else {},
        **WORLDS[world],
    )
    return Model(config, build_denoiser(config).eval().requires_grad_(False))


def save_pair(root: Path, world: str = "digits") -> tuple[Path, Path]:
    """Teacher and student folders; the recipe beside them knows the teacher by its path."""
    for seed, kind in enumerate(("teacher", "student")):
        model = small_model(kind, seed, world)
        if kind == "student":
            model.config.provenance["teacher"] = "teacher"
            (root / "recipe.yaml").write_text(f"teacher: {root / 'teacher'}\n")
        model_folder.save_folder(root / kind, model.config, model.denoiser, "# small\n")
    return root / "teacher", root / "student"


@pytest.fixture(scope="session")
def teacher() -> Model:
    return small_model("teacher", 0)


@pytest.fixture(scope="session")
def pupil() -> Model:
    return small_model("student", 1)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Teacher and student of small digits as folders."""
    return save_pair(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def text_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("text"), "text")


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of a few thousand random weights with GPT-2's first 600 tokens and end-of-text."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `text`)")
    from di4c_cli.codec.text import END_OF_TEXT, gpt2_tokenizer

    folder = tmp_path_factory.mktemp("judge")
    built = gpt2_tokenizer(600)
    built.add_special_tokens([END_OF_TEXT])
    end = built.token_to_id(END_OF_TEXT)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=601, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=end, eos_token_id=end
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
