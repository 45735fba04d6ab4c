"""Samples of the student under way, for the eye: a picture or a text file every so many steps."""

from __future__ import annotations

from pathlib import Path

from di4c_cli import files
from di4c_cli.codec.grid import save_grid
from di4c_cli.model import Model

COUNT = 16


def write_samples(model: Model, folder: Path, round_number: int, step: int, seed: int) -> Path:
    """`COUNT` samples with the model's defaults; the same seed each time, so that they can be compared."""
    x = model.sample(COUNT, seed=seed)
    stem = folder / f"round-{round_number}-step-{step:08d}"
    shown = model.decode(x.cpu())
    if isinstance(shown, list):
        path = stem.with_suffix(".txt")
        files.write_text(path, "\n\n".join(shown) + "\n")
        return path
    path = stem.with_suffix(".png")
    save_grid(shown, path)
    return path
