"""The folder of a run: its paths, whether a command may resume it, and what killed processes left in it."""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext, suppress
from enum import Enum
from itertools import chain, count
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from di4c_cli import files, recipe_file
from di4c_cli.errors import UserError
from di4c_cli.foreign.regular import MAX_RECORD_BYTES, read_bytes
from di4c_cli.foreign.structured import StructureError, parse_json
from di4c_cli.teacher import safe
from di4c_cli.training.pretrain_config import RunRecipe

CHECKPOINT_PREFIX = "step-"
CHANGEABLE_KEYS = {
    "evaluation",
    "summary",
    "training.checkpoint_every",
    "training.keep",
    "training.max_bad_steps",
    "training.sample_every",
    "training.trackers",
    "training.workers",
}
"""Recipe keys that do not change the trained model; a run may be resumed with other values."""


MetricsRow = dict[str, Any]
"""One line of metrics.jsonl."""


def read_rows(path: Path) -> list[MetricsRow]:
    """The complete lines of a metrics file; a torn last line is omitted, and so is one that no run writes.

    Round and step are integers, everything else is a number or missing.
    """
    rows = []
    for line in read_bytes(path, MAX_RECORD_BYTES, "training record").split(b"\n") if path.is_file() else []:
        try:
            row = parse_json(line)
        except StructureError:
            continue
        if not isinstance(row, dict) or any(type(row.get(key)) is not int for key in ("round", "step")):
            continue
        if all(value is None or isinstance(value, (int, float)) for value in row.values()):
            rows.append(row)
    return rows


def checkpoint_folders(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in root.glob(f"{CHECKPOINT_PREFIX}*") if (path / "state.json").is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(CHECKPOINT_PREFIX)))


class RunState(Enum):
    """State of a run folder with respect to a recipe."""

    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"


class RunFolder:
    """Paths inside one run."""

    def __init__(self, path: Path, kind: str = "student") -> None:
        """`kind`: what the run makes, `student` or, for pretraining, `teacher`."""
        self.path, self.kind = path, kind
        self.recipe = path / "recipe.yaml"
        self.metrics = path / "metrics.jsonl"
        self.curves = path / "curves.png"
        self.samples = path / "samples"
        self.model = path / kind
        self.start_run = path / "start"
        """The run of the student with which this run begins, if its recipe has one."""

    def round(self, number: int) -> Path:
        """Folder of a round; its model is in `student/` or `teacher/`, its checkpoints in `checkpoints/`."""
        return self.path / f"round-{number}"

    def round_model(self, number: int) -> Path:
        """The model that a round writes at its end."""
        return self.round(number) / self.kind

    def checkpoints(self, number: int) -> Path:
        """Checkpoints of a round."""
        return self.round(number) / "checkpoints"

    def clean(self) -> None:
        """Remove the incomplete files of killed processes; the caller must hold the lock."""
        for folder in (self.path, *self.path.glob("round-*"), *self.path.glob("round-*/checkpoints")):
            files.recover(folder / self.kind)
            for path in [*folder.glob(".*.part"), *folder.glob(".*.old")]:
                files.remove(path)

    def state(self, recipe: RunRecipe) -> RunState:
        """New, unfinished or finished; the folder of another recipe is rejected with the differences."""
        if not self.path.exists():
            return RunState.NEW
        if not self.path.is_dir():
            raise UserError(f"{self.path} is a file.", "Choose another --out.")
        if not self.recipe.is_file():
            if any(not files.is_leftover(entry.name) for entry in self.path.iterdir()):
                raise UserError(
                    f"{self.path} holds something that is not a di4c run.",
                    "Choose another --out, or --force moves it aside.",
                )
            return RunState.NEW
        hint = "Choose another --out, or --force moves the old run aside."
        stored = safe.read_tree(self.recipe)
        if stored is None:
            raise UserError(f"{self.recipe} is not a readable recipe.", hint)
        recipe_file.check_renamed_keys(recipe_file.dotted_keys(stored), f"The run in {self.path}", hint)
        with suppress(ValidationError):  # keys that did not exist when it was written have their defaults
            stored = type(recipe).model_validate(stored).model_dump(mode="json")
        found = differences(stored, recipe.model_dump(mode="json"))
        if found:
            raise UserError(f"{self.path} holds a run of another recipe: {'; '.join(found)}.", hint)
        return RunState.FINISHED if (self.model / "config.json").is_file() else RunState.UNFINISHED

    def move_aside(self) -> Path | None:
        """Rename an existing folder to a free name, unless a run is writing to it; None if there is no folder."""
        if not self.path.exists():
            return None
        name = f"{self.path.name}.old-{time.strftime('%Y%m%d-%H%M%S')}"
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        target = next(path for path in map(self.path.with_name, names) if not path.exists())
        with files.lock(self.path) if self.path.is_dir() else nullcontext():
            self.path.rename(target)
        return target

    def start(self, recipe: RunRecipe) -> None:
        """Create the folder with its resolved recipe."""
        files.write_text(self.recipe, recipe_file.dump(recipe))

    def finish(self, rounds: int) -> None:
        """Copy the last round's model to the run's top, where its presence marks the run as finished."""
        with files.new_folder(self.model) as part:
            shutil.copytree(self.round_model(rounds), part, dirs_exist_ok=True)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One sentence part for every differing key that changes the trained model."""
    before, after = flatten(old), flatten(new)
    out = []
    for key in sorted(before.keys() | after.keys()):
        changeable = any(key == name or key.startswith(f"{name}.") for name in CHANGEABLE_KEYS)
        if not changeable and before.get(key) != after.get(key):
            out.append(f"{key}: {before.get(key)} there, {after.get(key)} asked")
    return out


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def default_out(teacher: str, recipe: str, seed: int) -> Path:
    """`runs/<teacher>-<recipe>-s<seed>`, with only the last part of a teacher's path."""
    path, here = Path(teacher), Path(teacher).exists()
    words = [word for word in (files.real_path(path) if here else path).parts if word not in ("/", ".", "..")]
    if len(words) > 1 and words[-1] in ("student", "teacher"):
        words = words[:-1]
    name = "-".join(words[-1:] if here else words) or "model"
    return Path("runs") / f"{name}-{recipe.replace('/', '-')}-s{seed}"
