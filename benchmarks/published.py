"""Two real training steps of every published recipe, with random weights of the published size.

    python benchmarks/published.py --cifar10 data/cifar10
    python benchmarks/published.py --only sdtt-7 --batch 1

Each is the real command (`di4c distill --recipe … --iterations 2`) in a process of its own, on random tokens, codes
or, with `--cifar10`, on the real images. The first step pays for what is set up once, so the second one counts. Prints
a table, then one JSON object as the last line.
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
]
GOAL = 64
"""Random samples in a file of data."""


@dataclass(frozen=True)
class Ran:
    """What two steps of one recipe took."""

    recipe: str
    batch: int
    latents: int
    precision: str
    seconds: float
    peak_gb: float
    loss: float


def random_teacher(config: ModelConfig, work: Path) -> Path:
    """A folder with a teacher of this size, written once."""
    folder = work / f"{config.network['type']}-{config.network.get('length', 'pixels')}"
    if not folder.exists():
        torch.manual_seed(0)
        save_folder(folder, config, build_denoiser(config), "Random weights.\n")
    return folder


def random_data(config: ModelConfig, work: Path) -> Path:
    """Samples of random symbols, with labels where the teacher has any."""
    size = build_length(config)
    path = work / f"random-{config.network['type']}.npz"
    generator = np.random.default_rng(0)
    x = generator.integers(0, config.process["symbols"], (GOAL, size)).astype(np.int32)
    labels = {"label": generator.integers(0, config.labels, GOAL)} if config.labels else {}
    np.savez(path, x=x, **labels)
    return path


def build_length(config: ModelConfig) -> int:
    """Positions of a sample."""
    return int(config.network.get("length") or np.prod(config.network["shape"]))


def two_steps(name: str, batch: int | None, cifar10: Path | None, work: Path) -> Ran:
    """Run the command and read what it wrote."""
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
        raise SystemExit(
            f"published: `di4c {' '.join(words)}` ended with {os.waitstatus_to_exitcode(status)}."
        )
    last = read_rows(out / "metrics.jsonl")[-1]
    unit = 1 if sys.platform == "darwin" else 1024
    return Ran(
        name,
        size,
        recipe.method.predictions_per_sample,
        recipe.training.precision,
        round(float(last["seconds"]), 1),
        round(usage.ru_maxrss * unit / 2**30, 2),
        round(float(last["loss"]), 3),
    )


def main(words: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=RECIPES, help="a recipe; may be repeated")
    parser.add_argument("--batch", type=int, help="at most so many samples a step")
    parser.add_argument("--cifar10", type=Path, help="folder with the real images")
    parser.add_argument("--work", type=Path, help="where teachers and runs are written; default: thrown away")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        ran = []
        for name in given.only or RECIPES:
            say(f"{name}: two steps")
            ran.append(two_steps(name, given.batch, given.cifar10, work))
    columns = ["recipe", "batch", "latents", "autocast", "second step (s)", "peak (GB)", "loss"]
    show_table(
        "Published sizes, random weights", columns, [[str(x) for x in asdict(r).values()] for r in ran]
    )
    print(json.dumps({"bench": "published", "cores": os.cpu_count(), "ran": [asdict(r) for r in ran]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
