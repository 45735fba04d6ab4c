"""Scores in numbered parts on disk: constant memory, and a stopped evaluation resumes where it stopped."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from di4c_cli import files

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

    def fill(self, compute: Callable[[int, int], Scores], advance: Callable[[int], None] = lambda n: None) -> None:
        """Compute the missing parts."""
        for first, count in self.ranges():
            path = self._path(first, count)
            if not _is_complete(path):
                buffer = io.BytesIO()
                np.savez(buffer, **compute(first, count))  # type: ignore[arg-type]
                files.write_bytes(path, buffer.getvalue())
            advance(count)

    def __iter__(self) -> Iterator[tuple[int, Scores]]:
        """(first sample number, scores) of each part, with one in memory at a time."""
        for first, count in self.ranges():
            yield first, self.read(first, count)

    def read(self, first: int, count: int) -> Scores:
        """One part."""
        with np.load(self._path(first, count)) as file:
            return {name: file[name] for name in file.files}

    def column(self, name: str) -> np.ndarray:
        """One score of all samples (or groups), in their order."""
        return np.concatenate([scores[name] for _, scores in self])


def _is_complete(path: Path) -> bool:
    """Whether the part exists and is complete; a file truncated by a full disk is computed again."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False
