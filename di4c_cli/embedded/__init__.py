"""The tiny worlds that ship inside the package: where their files are. See README.md in this folder."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent
WORLDS = ("tiny-digits", "tiny-pixels", "tiny-vq", "tiny-text")
DEFAULT = "tiny-digits"


def data(name: str) -> Path:
    """A data file, e.g. `digits.npz`."""
    return ROOT / "data" / name


def asset(name: str) -> Path:
    """A shared file: tokenizer, VQGAN or classifier."""
    return ROOT / "assets" / name


def model(world: str, kind: str) -> Path:
    """The folder of a world's `teacher` or `student`."""
    return ROOT / world / kind
