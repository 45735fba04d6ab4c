"""Subsets of feature rows for the figures that need the rows themselves: KID, precision and recall.

Published precision and recall are means over five subsets of 10 000 samples, each against 10 000 real images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

SUBSETS, SUBSET_ROWS = 5, 10_000


class RandomRows:
    """A random choice of rows, as many as all subsets hold: those whose images have the smallest hashes.

    The choice depends on the images alone, so the order of the files, often sorted by class, does not matter.
    """

    def __init__(self) -> None:
        self.room = SUBSETS * SUBSET_ROWS
        self.keys: list[np.ndarray] = []
        self.kept: list[np.ndarray] = []

    def add(self, images: np.ndarray, features: np.ndarray) -> None:
        """Offer the features `(n, F)` of images `(n, …)`."""
        hashes = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images)
        self.keys.append(np.frombuffer(hashes, np.uint64))
        self.kept.append(features.astype(np.float32))
        if sum(map(len, self.keys)) > 1.2 * self.room:
            self.rows()

    def rows(self) -> np.ndarray:
        """The chosen rows in the order of their hashes, which is random."""
        keys = np.concatenate(self.keys)
        chosen = np.argsort(keys, kind="stable")[: self.room]
        self.keys, self.kept = [keys[chosen]], [np.concatenate(self.kept)[chosen]]
        return self.kept[0]


def reference_subset(rows: np.ndarray, number: int) -> np.ndarray:
    """Subset `number` of rows in random order; subsets overlap where there are too few rows for all of them."""
    start = number * (len(rows) // SUBSETS)
    return rows.take(range(start, start + min(len(rows), SUBSET_ROWS)), axis=0, mode="wrap")


def sample_subsets(batches: Iterable[np.ndarray], n: int) -> Iterator[np.ndarray]:
    """All subsets of the rows of `n` independent samples, one after the other; the first one if n is too small."""
    left, pending = SUBSETS if n >= SUBSETS * SUBSET_ROWS else 1, np.zeros((0, 0))
    for batch in batches:
        pending = np.concatenate([pending, batch]) if len(pending) else batch
        while len(pending) >= SUBSET_ROWS and left:
            yield pending[:SUBSET_ROWS]
            left, pending = left - 1, pending[SUBSET_ROWS:]
        if not left:
            return
    if len(pending):
        yield pending
