"""A random teacher small enough to train in seconds, recipes for it, and the real command as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from di4c_cli import model_folder, recipe_file
from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.data.stream import Batch
from di4c_cli.latent.config import LatentConfig
from di4c_cli.recipe import Recipe
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.pretrain_config import RunRecipe
from di4c_cli.training.processes import Stopped
from di4c_cli.training.run import RunOptions, distill, pretrain

PAPER = "di4c/digits"
"""The recipe with every term of the paper's loss; the default one is `digits`."""
PATIENCE = 300
"""Seconds; a busy machine must not fail a test."""

DIGITS = {
    "type": "maskgit",
    "symbols": 8,
    "length": 64,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp": 32,
    "labels": 10,
    "dropout": 0.0,
}


def make_teacher(folder: Path, name: str = "digits", latent: LatentConfig | None = None) -> Path:
    """A teacher folder with random weights for the 8x8 digits."""
    config = ModelConfig(
        kind="teacher" if latent is None else "student",
        name=name,
        network=DIGITS,
        process={"type": "masked", "symbols": 8, "schedule": "linear"},
        labels=10,
        latent=latent,
        codec={"type": "pixels", "shape": [1, 8, 8], "levels": 8},
    )
    torch.manual_seed(0)
    model_folder.save_folder(folder, config, build_denoiser(config), "# a random teacher\n")
    return folder


def small_recipe(teacher: Path | str, **overrides: Any) -> Recipe:
    """The Di4C recipe of digits shrunk: 4 samples, 4 latents, 6 steps; keys with `__` for the dots."""
    values = {
        "teacher": str(teacher),
        "training.iterations": 6,
        "training.batch": 4,
        "training.checkpoint_every": 3,
        "method.latents": 4,
    }
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    return recipe_file.read(PAPER, values)


def small_recipe_of(method: str, teacher: Path | str, **overrides: Any) -> Recipe:
    """The recipe of another method for digits shrunk in the same way."""
    values = {"teacher": str(teacher), "training.iterations": 6, "training.batch": 4, "training.checkpoint_every": 3}
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    return recipe_file.read(recipe_file.with_method("digits", method), values)


def small_variational_recipe(teacher: Path | str, **overrides: Any) -> Recipe:
    """The variational recipe of digits, without the teacher's own samples."""
    sizes = {"method__encoder_width": 16, "latent__prior_width": 8, "latent__dim": 2, "training__synthetic_share": 0.0}
    return small_recipe_of("variational", teacher, **sizes | overrides)


class RandomSource:
    """Uniform symbols and labels."""

    def __init__(self, length: int, symbols: int, labels: int | None) -> None:
        self.length, self.symbols, self.labels = length, symbols, labels

    def read(self, start: int, count: int) -> Batch:
        index = torch.arange(start, start + count)
        x0 = (index[:, None] * 7919 + torch.arange(self.length) ** 2) % self.symbols
        return Batch(index.tolist(), x0, None if self.labels is None else index % self.labels)


def arguments(teacher: Path, out: Path, *more: str, iterations: int = 6, recipe: str = PAPER) -> list[str]:
    """`di4c distill …` for the small recipe."""
    return [
        *("distill", "--teacher", str(teacher), "--recipe", recipe, "--out", str(out)),
        *("--iterations", str(iterations), "--batch", "4"),
        *(("--latents", "4") if recipe.startswith("di4c/") else ()),
        *("--set", "training.checkpoint_every=3", *more),
    ]


@contextmanager
def started(args: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The real command in a process of its own; nothing of it is left behind."""
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | options.pop("env", {})
    command = [sys.executable, "-m", "di4c_cli", *args]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.communicate()


def run(args: list[str], timeout: float = PATIENCE, **options: Any) -> tuple[int, str]:
    """Exit code and what was said."""
    with started(args, **options) as process:
        _, said = process.communicate(timeout=timeout)
    return process.returncode, said


def wait_for_steps(out: Path, count: int) -> None:
    """Until a run has written so many rows."""
    deadline = time.monotonic() + PATIENCE
    while len(read_rows(out / "metrics.jsonl")) < count:
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.02)


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Tensors of a run's student, with its adapter."""
    student = out / "student"
    adapter = student / "adapter_model.safetensors"
    return load_file(student / "model.safetensors") | (load_file(adapter) if adapter.exists() else {})


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def losses(out: Path) -> list[float]:
    """Of every step of a run."""
    return [row["loss"] for row in read_rows(out / "metrics.jsonl")]


def run_cut(recipe: RunRecipe, out: Path, *cuts: tuple[int, int]) -> None:
    """Run in pieces: each cut (round, step) asks for a stop during that step, as Ctrl-C does."""

    def go(options: RunOptions) -> None:
        distill(recipe, out, options) if isinstance(recipe, Recipe) else pretrain(recipe, out, options)

    for place in cuts:

        def report(row: dict[str, Any], place: tuple[int, int] = place) -> None:
            if (row["round"], row["step"]) == place:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Stopped):
            go(RunOptions(report=report))
    go(RunOptions())
