"""Nearest neighbours: precision and recall (Kynkäänniemi et al. 2019), and memorisation of training items."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from di4c_cli.errors import UserError

NEIGHBOURS = 3
DISTANCE_BLOCK = 512
"""Rows of a distance matrix in memory at once."""
NEAREST_BLOCK = 256


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances of `(n, F)` and `(m, F)` in float64, `(n, m)`."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    out: np.ndarray = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    return out


def radii(points: np.ndarray, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """Squared distance of each point `(n, F)` to its `neighbours`-th other point, `(n,)`."""
    points = np.asarray(points, np.float64)
    if len(points) <= neighbours:
        raise UserError(
            f"Precision and recall look at {neighbours} neighbours, but there are only {len(points)} points.",
            "Raise -n.",
        )
    out = np.empty(len(points))
    for start in range(0, len(points), DISTANCE_BLOCK):
        distance = squared_distances(points[start : start + DISTANCE_BLOCK], points)
        # the point itself is at distance zero (up to rounding), so the k-th other is the (k+1)-th smallest
        np.fill_diagonal(distance[:, start:], -1.0)
        out[start : start + len(distance)] = np.partition(distance, neighbours, axis=1)[:, neighbours]
    return out


def covered(points: np.ndarray, centres: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """For each point `(n, F)`: is it within the ball of any centre `(m, F)`? -> `(n,)` bool."""
    points, centres = np.asarray(points, np.float64), np.asarray(centres, np.float64)
    parts = [
        (squared_distances(points[start : start + DISTANCE_BLOCK], centres) <= radius[None]).any(1)
        for start in range(0, len(points), DISTANCE_BLOCK)
    ]
    return np.concatenate(parts)


def precision_recall(
    features: np.ndarray, reference: np.ndarray, neighbours: int = NEIGHBOURS
) -> tuple[np.ndarray, np.ndarray]:
    """Which samples are inside the reference's manifold, and which reference points inside the samples'.

    Precision and recall are the means of the two.
    """
    inside = covered(features, reference, radii(reference, neighbours))
    return inside, covered(reference, features, radii(features, neighbours))


def half_recalls(features: np.ndarray, reference: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Recall of both halves of several halvings, `(K, n)` bool -> `(K, 2)`; every distance is computed once."""
    points, reference = np.asarray(features, np.float64), np.asarray(reference, np.float64)
    sides = [side for mask in first for side in (mask, ~mask)]
    if min(int(side.sum()) for side in sides) <= NEIGHBOURS:
        raise UserError(f"Halves of {len(points)} points have too few neighbours.", "Raise -n.")
    radius = np.zeros((len(sides), len(points)))
    for start in range(0, len(points), DISTANCE_BLOCK):
        distance = squared_distances(points[start : start + DISTANCE_BLOCK], points)
        np.fill_diagonal(distance[:, start:], -1.0)
        for place, own in enumerate(sides):
            here = np.flatnonzero(own[start : start + DISTANCE_BLOCK])
            near = np.partition(distance[np.ix_(here, own)], NEIGHBOURS, axis=1)[:, NEIGHBOURS]
            radius[place, start + here] = near
    hits = np.zeros(len(sides))
    for start in range(0, len(reference), DISTANCE_BLOCK):
        distance = squared_distances(reference[start : start + DISTANCE_BLOCK], points)
        for place, own in enumerate(sides):
            hits[place] += (distance[:, own] <= radius[place, own]).any(1).sum()
    out: np.ndarray = (hits / len(reference)).reshape(-1, 2)
    return out


def hamming(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Number of places where `(n, D)` and `(m, D)` differ, `(n, m)`."""
    return np.asarray((a[:, None] != b[None]).sum(-1))


def nearer_to_training(
    samples: np.ndarray,
    training: np.ndarray,
    held_out: np.ndarray,
    distance: Callable[[np.ndarray, np.ndarray], np.ndarray] = squared_distances,
) -> np.ndarray:
    """1 for each sample whose nearest item is a training item, 0 for a held-out item, ½ for a tie, `(n,)`.

    As many training items as held-out items are compared, so a model that has not memorised its training items
    has a mean of one half.
    """
    count = min(len(training), len(held_out))
    training, held_out = (items[np.arange(count) * len(items) // count] for items in (training, held_out))
    parts = []
    for start in range(0, len(samples), NEAREST_BLOCK):
        block = samples[start : start + NEAREST_BLOCK]
        own, other = distance(block, training).min(1), distance(block, held_out).min(1)
        parts.append((own < other) + 0.5 * (own == other))
    return np.concatenate(parts)
