"""Do samples lie nearer to what a model was trained on than to what nobody showed it?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from di4c_cli.metric.manifold import squared_distances

BLOCK = 256


def euclidean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances of `(n, F)` and `(m, F)`, whole numbers too, `(n, m)`."""
    return squared_distances(a.astype(np.float64), b.astype(np.float64))


def hamming(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Number of places where `(n, D)` and `(m, D)` differ, `(n, m)`."""
    return np.asarray((a[:, None] != b[None]).sum(-1))


def nearer_to_training(
    samples: np.ndarray,
    training: np.ndarray,
    held_out: np.ndarray,
    distance: Callable[[np.ndarray, np.ndarray], np.ndarray] = euclidean,
) -> float:
    """Share of samples whose nearest item is a training item; a tie counts one half.

    Of the larger set only as many items are looked at, so that one half is what a model gives that knows no
    more of its training items than of others from the same law.
    """
    count = min(len(training), len(held_out))
    training, held_out = _evenly(training, count), _evenly(held_out, count)
    share = 0.0
    for start in range(0, len(samples), BLOCK):
        block = samples[start : start + BLOCK]
        own, other = distance(block, training).min(1), distance(block, held_out).min(1)
        share += float((own < other).sum() + 0.5 * (own == other).sum())
    return share / len(samples)


def _evenly(items: np.ndarray, count: int) -> np.ndarray:
    """`count` of the items, spread over all of them."""
    return items[np.arange(count) * len(items) // count]
