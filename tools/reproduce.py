"""Record what the shipped recipes and models produce, or compare it with an earlier record, bit for bit.

    python tools/reproduce.py record before.json
    python tools/reproduce.py check before.json

Every recipe is trained for 20 iterations from seed 0 and its student's tensors are hashed. Recipes of published
teachers are trained on the small checkpoints of `tests/golden`, which have the published formats. Every embedded model
is sampled and evaluated. All work goes through the `di4c` command of the current environment, on one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
TASKS = ("digits", "pixels", "words", "fashion")
SMALL = ["--data", "teacher", "--precision", "no", "--set", "training.batch=4"]
STAND_INS = {
    "sdtt-6": GOLDEN / "sdtt",
    "sdtt-7": GOLDEN / "sdtt",
    "maskgit-imagenet256": "maskgit",
    "tauldr-cifar10": GOLDEN / "tauldr" / "teacher",
}
RECIPES = [
    *TASKS,
    *(f"paper/{name}" for name in TASKS),
    *("sdtt-6", "sdtt-6-d", "sdtt-7", "sdtt-7-d", "maskgit-imagenet256", "maskgit-imagenet256-d", "tauldr-cifar10"),
    *("leader/sdtt-7", "leader/maskgit-imagenet256", "leader/tauldr-cifar10"),
]


def di4c(*arguments: object) -> str:
    """Standard output of one command."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "di4c_cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def digest(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """A hash of each array's type, shape and bytes."""
    return {
        name: hashlib.sha256(f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes()).hexdigest()[:16]
        for name, a in sorted(arrays.items())
    }


def stand_in(recipe: str, scratch: Path) -> Path | None:
    """A small teacher in the format of the recipe's published one; None for an embedded task."""
    base = recipe.split("/")[-1].removesuffix("-d")
    if base not in STAND_INS:
        return None
    if STAND_INS[base] != "maskgit":
        return Path(STAND_INS[base])
    folder = scratch / "maskgit"
    if not folder.exists():
        di4c("convert", GOLDEN / "maskgit", folder, "--heads", 4, "--vqgan", GOLDEN / "vqgan")
    return folder


def trained(recipe: str, scratch: Path) -> dict[str, str]:
    """Tensors of the student after 20 iterations."""
    out = scratch / recipe.replace("/", "-")
    flags: list[object] = ["--recipe", recipe, "--iterations", 20, "--seed", 0, "--out", out, "--device", "cpu"]
    teacher = stand_in(recipe, scratch)
    if teacher is not None:
        flags += ["--teacher", teacher, *SMALL]
    if recipe == "sdtt-7":
        flags += ["--rounds", 2]
    di4c("distill", *flags)
    return digest(load_file(out / "student" / "model.safetensors"))


def sampled(model: str, steps: int, scratch: Path, *flags: object) -> dict[str, str]:
    """Ids of 24 samples."""
    out = Path(tempfile.mkdtemp(dir=scratch)) / "samples"
    di4c("sample", "--student", model, "--steps", steps, "-n", 24, "--out", out, "--device", "cpu", *flags)
    return digest({"ids": np.concatenate([np.load(path) for path in sorted(out.glob("ids-*.npy"))])})


def evaluated(task: str, scratch: Path) -> dict[str, float]:
    """Figures of teacher and student at two step counts."""
    out = scratch / f"eval-{task}"
    di4c("eval", "--student", f"{task}-student", "--steps", "1,4", "-n", 200, "--out", out, "--device", "cpu")
    results = json.loads((out / "results.json").read_text())
    return {
        f"{cell['row']} {cell['column']} {name}": figure["value"]
        for cell in results["cells"]
        for name, figure in cell["figures"].items()
    }


def everything(only: str) -> dict[str, object]:
    """All results whose name contains `only`."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        jobs = [(f"distill {recipe}", lambda r=recipe: trained(r, scratch)) for recipe in RECIPES]
        for task in TASKS:
            for model in (task, f"{task}-student"):
                jobs += [(f"sample {model} {k}", lambda m=model, k=k: sampled(m, k, scratch)) for k in (1, 2, 4, 20)]
            jobs.append((f"eval {task}", lambda t=task: evaluated(t, scratch)))
        for task in ("digits", "fashion"):
            name = f"{task}-student"
            jobs.append((f"sample {name} labels", lambda n=name: sampled(n, 4, scratch, "--label", "all")))
            jobs.append((f"sample {name} confidence", lambda n=name: sampled(n, 4, scratch, "--sampler", "confidence")))
        for name, job in jobs:
            if only in name:
                found[name] = job()
                print(name, flush=True)
    return found


def main() -> None:
    """Record or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="part of a result's name")
    chosen = parser.parse_args()
    found = everything(chosen.only)
    if chosen.action == "record":
        chosen.file.write_text(json.dumps(found, indent=1) + "\n")
        return
    before = json.loads(chosen.file.read_text())
    changed = [name for name in found if found[name] != before.get(name)]
    for name in changed:
        print(f"CHANGED: {name}")
    print(f"{len(found) - len(changed)} of {len(found)} results are equal.")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
