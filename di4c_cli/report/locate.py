"""Where the results, samples and training records of a page are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from di4c_cli.errors import UserError
from di4c_cli.evaluation.result import Results, load


@dataclass(frozen=True)
class Place:
    """Results, the folder their pictures are in, and the run they belong to (None: no run)."""

    results: Results
    folder: Path
    run: Path | None


def locate(path: Path | None) -> Place:
    """From a run, an evaluation folder, a results.json, or nothing (the newest here)."""
    if path is None:
        found = [*Path("runs").glob("*/evaluation/results.json"), *Path("evaluations").glob("*/results.json")]
        if not found:
            raise UserError("There is no evaluation here yet.", "Run `di4c eval` first.")
        path = max(found, key=lambda file: file.stat().st_mtime)
    if not path.exists():
        raise UserError(f"There is no {path}.", "Name a run or an evaluation.")
    file = path if path.is_file() else _file_in(path)
    folder = file.parent
    return Place(load(file), folder, run_of(folder))


def _file_in(folder: Path) -> Path:
    for candidate in (folder / "results.json", folder / "evaluation" / "results.json"):
        if candidate.is_file():
            return candidate
    raise UserError(f"{folder} has no evaluation.", f"Run `di4c eval --student {folder}` first.")


def run_of(folder: Path) -> Path | None:
    """The run an evaluation folder is in, if it is in one."""
    return next((place for place in (folder, folder.parent) if (place / "recipe.yaml").is_file()), None)
