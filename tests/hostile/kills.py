"""Every write and rename × kill: a command dies at some change of a file; nothing is lost, the next run is whole."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from di4c_cli import files
from tests.helpers.faults import run_killed

MAX_CHANGES = 60
MODEL = {"config.json", "model.safetensors", "README.md"}
USUAL = {
    "convert": {f"model/{name}" for name in MODEL},
    "replace": {f"model/{name}" for name in MODEL},
    "shards": {"shards/manifest.json", "shards/ids-00000.npy"},
    "picture": {"a.png"},
    "report": {"page.html"},
    "eval": {"e/results.json", "e/report.html", "e/quality.png"},
    "adapter": {f"r/student/{name}" for name in (*MODEL, "adapter_model.safetensors", "adapter_config.json")},
    "distill": {f"r/student/{name}" for name in MODEL} | {"r/recipe.yaml", "r/metrics.jsonl", "r/curves.png"},
}
"""Files that each command leaves."""


@dataclass
class Plan:
    """A command that writes below `out`, and the model that must stay readable there, if any."""

    words: list[str]
    place: Path
    story: str
    earlier: bool = False


def plan(root: Path, place: Path, rng: random.Random) -> Plan:
    """A command with absolute paths: the copy that is killed does not change its folder."""
    for name in ("digits", "sdtt"):
        shutil.copytree(root / "models" / name, place / "in" / name)
    shutil.copytree(root / "evaluation", place / "in" / "evaluation")
    digits, out = str(place / "in" / "digits"), str(place / "out")
    short = ["--iterations", "2", "--batch", "2", "--latents", "2", "--set", "training.checkpoint_every=1"]
    commands = {
        "convert": ["convert", str(place / "in" / "sdtt"), f"{out}/model", "--force"],
        "replace": ["convert", str(place / "in" / "sdtt"), f"{out}/model", "--force"],
        "shards": ["sample", "--teacher", digits, "-n", "3", "--steps", "1", "--out", f"{out}/shards"],
        "picture": ["sample", "--teacher", digits, "-n", "1", "--steps", "1", "--out", f"{out}/a.png"],
        "report": ["report", str(place / "in" / "evaluation"), "--out", f"{out}/page.html"],
        "eval": ["eval", "--teacher", digits, "--steps", "1", "-n", "3", "--out", f"{out}/e"],
        "distill": ["distill", "--teacher", digits, "--recipe", "di4c/digits", *short, "--out", f"{out}/r"],
    }
    commands["adapter"] = [*commands["distill"], "--set", "training.adapter=lora"]
    name = rng.choice(sorted(commands))
    if name == "replace":
        shutil.copytree(root / "models" / "text", place / "out" / "model")
    return Plan(commands[name], place, name, name == "replace")


def interrupt(plan: Plan, rng: random.Random) -> list[str]:
    """Kill the command up to twice."""
    found = []
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(rng.choice([5, 20, MAX_CHANGES]))
        try:
            run_killed(list(plan.words), plan.place / "out", at)
        except AssertionError as error:
            found.append(f"killed at {at}: {error}")
        plan.story += f", killed at {at}"
        if plan.earlier and not _whole(plan.place / "out" / "model"):
            found.append("the earlier model is lost")
    return found


def after(plan: Plan, code: int) -> list[str]:
    """After the next run: it succeeded, the files are those of an undisturbed run, no leftovers."""
    out = plan.place / "out"
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    left = [name for name in names if files.is_leftover(Path(name).name)]
    found = [f"left after the next run: {left}"] if left else []
    if code:
        found.append("the next run failed")
    kind = plan.story.split(",")[0]
    if not code and not USUAL[kind] <= names:
        found.append(f"files are missing: {sorted(USUAL[kind] - names)}")
    return found


def _whole(folder: Path) -> bool:
    """Whether a complete model is there, or beside it for the next command to put back."""
    from di4c_cli.model_folder import load_folder

    files.recover(folder)
    try:
        load_folder(folder)
    except Exception:
        return False
    return True
