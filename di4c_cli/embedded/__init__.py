"""Paths of the files of the toy tasks that ship inside the package. See README.md in this folder."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent
DEFAULT = "tiny-digits"


def data(name: str) -> Path:
    """A data file, e.g. `digits.npz`."""
    return ROOT / "data" / name


def asset(name: str) -> Path:
    """A shared file: tokenizer, VQGAN or classifier."""
    return ROOT / "assets" / name


def model(task: str, kind: str) -> Path:
    """The folder of a task's `teacher` or `student`."""
    return ROOT / task / kind
