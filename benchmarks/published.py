"""Two real training steps of every published recipe, with random weights of the published size.

    python -m benchmarks.published --cifar10 data/cifar10
    python -m benchmarks.published --only sdtt-7 --batch 1

Each recipe runs as the real command (`di4c distill --recipe … --iterations 2`) in a process of its own, on random
tokens or codes or, with `--cifar10`, on the real images. The first step includes the set-up, so the second step is
reported. Prints a table, then one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from di4c_cli import recipe_file
from di4c_cli.build import build_denoiser
from di4c_cli.cli.console import say, show_table
from di4c_cli.config import ModelConfig
from di4c_cli.model_folder import save_folder
from di4c_cli.teacher.registry import published_config
from di4c_cli.training.metrics import read_rows

RECIPES = [
    *("tauldr-cifar10", "maskgit-imagenet256", "maskgit-imagenet256-d"),
    *("sdtt-6", "sdtt-6-d", "sdtt-7", "sdtt-7-d"),
    *("variational/tauldr-cifar10", "variational/maskgit-imagenet256", "variational/sdtt-7"),
    *("moment_matching/tauldr-cifar10", "moment_matching/maskgit-imagenet256", "moment_matching/sdtt-7"),
]
RANDOM_SAMPLES = 64
"""Random samples in a data file."""


@dataclass(frozen=True)
class RecipeTiming:
    """Time and memory of two steps of one recipe."""

    recipe: str
    batch: int
    latents: int
    precision: str
    seconds: float
    peak_gb: float
    loss: float


def random_teacher(config: ModelConfig, work: Path) -> Path:
    """A folder with a random teacher of this size; an existing one is used again."""
    folder = work / f"{config.network['type']}-{config.network.get('length', 'pixels')}"
    if not folder.exists():
        torch.manual_seed(0)
        save_folder(folder, config, build_denoiser(config), "Random weights.\n")
    return folder


def random_data(config: ModelConfig, work: Path) -> Path:
    """Samples of random symbols, with labels if the teacher has classes."""
    size = sample_length(config)
    path = work / f"random-{config.network['type']}.npz"
    generator = np.random.default_rng(0)
    x = generator.integers(0, config.process["symbols"], (RANDOM_SAMPLES, size)).astype(np.int32)
    labels = {"label": generator.integers(0, config.labels, RANDOM_SAMPLES)} if config.labels else {}
    np.savez(path, x=x, **labels)
    return path


def sample_length(config: ModelConfig) -> int:
    """Positions of a sample."""
    return int(config.network.get("length") or np.prod(config.network["shape"]))


def two_steps(name: str, batch: int | None, cifar10: Path | None, work: Path) -> RecipeTiming:
    """Run the command and read its metrics and peak memory."""
    recipe = recipe_file.read(name)
    config = published_config(recipe.teacher)
    assert config is not None
    data = cifar10 if cifar10 is not None and config.network["type"] == "unet" else random_data(config, work)
    size = min(batch or recipe.training.batch, recipe.training.batch)
    out = work / name.replace("/", "-")
    words = ["distill", "--recipe", name, "--teacher", str(random_teacher(config, work)), "--data", str(data)]
    more = {"training.batch": size, "training.micro_batch": 1, "training.activation_checkpointing": "true"}
    more |= {"training.synthetic_pool": 1} if recipe.training.synthetic_share else {}
    words += ["--iterations", "2", "--out", str(out)]
    words += [word for key, value in more.items() for word in ("--set", f"{key}={value}")]
    child = subprocess.Popen([sys.executable, "-m", "di4c_cli", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"published: `di4c {' '.join(words)}` ended with {os.waitstatus_to_exitcode(status)}.")
    last = read_rows(out / "metrics.jsonl")[-1]
    unit = 1 if sys.platform == "darwin" else 1024
    return RecipeTiming(
        name,
        size,
        recipe.method.predictions_per_sample,
        recipe.training.precision,
        round(float(last["seconds"]), 1),
        round(usage.ru_maxrss * unit / 2**30, 2),
        round(float(last["loss"]), 3),
    )


def main(words: list[str]) -> int:
    """Run the recipes and print their timings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=RECIPES, help="run this recipe only; may be repeated")
    parser.add_argument("--batch", type=int, help="largest batch size")
    parser.add_argument("--cifar10", type=Path, help="folder with the real images")
    parser.add_argument("--work", type=Path, help="folder for teachers and runs; default: a temporary one")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        ran = []
        for name in given.only or RECIPES:
            say(f"{name}: two steps")
            ran.append(two_steps(name, given.batch, given.cifar10, work))
    columns = ["recipe", "batch", "latents", "autocast", "second step (s)", "peak (GB)", "loss"]
    show_table("Published sizes, random weights", columns, [[str(x) for x in asdict(r).values()] for r in ran])
    print(json.dumps({"bench": "published", "cores": os.cpu_count(), "ran": [asdict(r) for r in ran]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
