"""Scores in numbered parts on disk: constant memory, and a stopped evaluation resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from di4c_cli import files
from di4c_cli.errors import Failure, UserError
from di4c_cli.foreign.arrays import NUMBERS, ArrayArchive

Scores = dict[str, np.ndarray]
"""Arrays by name: one row per sample, or per group of samples for figures over groups."""


def identity(**facts: Any) -> str:
    """A short hash of everything a part's numbers depend on."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class ScoreParts:
    """Scores of samples 0 … n-1 of one cell, `size` samples per file.

    Sample numbers determine the samples, so a part does not depend on n or on the run that computed it.
    """

    def __init__(self, folder: Path, n: int, size: int) -> None:
        self.folder, self.n, self.size = folder, n, size

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(first, count) of each part."""
        for first in range(0, self.n, self.size):
            yield first, min(self.size, self.n - first)

    def _path(self, first: int, count: int) -> Path:
        return self.folder / f"{first:08d}-{first + count:08d}.npz"

    def fill(self, compute: Callable[[int, int], Scores]) -> None:
        """Compute the missing parts."""
        for first, count in self.ranges():
            self.ensure(first, count, compute)

    def ensure(self, first: int, count: int, compute: Callable[[int, int], Scores]) -> None:
        """Compute one part if it is missing."""
        path = self._path(first, count)
        if not _is_complete(path):
            files.write_with(path, lambda file: np.savez(file, **compute(first, count)))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[int, Scores]]:
        """(first sample number, scores) of each part, with one in memory at a time."""
        for first, count in self.ranges():
            yield first, self.read(first, count)

    def read(self, first: int, count: int) -> Scores:
        """One part."""
        return _load(self._path(first, count))

    def column(self, name: str) -> np.ndarray:
        """One score of all samples (or groups), in their order."""
        return np.concatenate([scores[name] for _, scores in self])


class _Part(Scores):
    """The arrays of one file, which may have been changed since it was written."""

    def __init__(self, path: Path, arrays: Scores) -> None:
        super().__init__(arrays)
        self.path = path

    def __missing__(self, name: str) -> np.ndarray:
        raise Failure(f"{self.path} has no array '{name}'.", "Delete it; it is then computed again.")


def _load(path: Path) -> _Part:
    with ArrayArchive(path) as file:
        return _Part(path, {name: file.read(name, NUMBERS + "US") for name in file.names})


def _is_complete(path: Path) -> bool:
    """Whether the part exists and can be read; a file truncated by a full disk is computed again."""
    try:
        return bool(_load(path))
    except UserError:
        return False
