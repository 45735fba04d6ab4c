"""MAUVE (Pillutla et al. 2021) on given features: one number for the gap between two sets of texts.

Both sets are quantised by one k-means; the score is the area under the curve of exp(-c KL(q ‖ r)) against
exp(-c KL(p ‖ r)) over mixtures r = w p + (1 - w) q of the two histograms. 1 is no gap.
"""

from __future__ import annotations

import numpy as np

from di4c_cli.errors import UserError
from di4c_cli.metric.exact import divergence

MAUVE_SCALE = 5.0
MAUVE_RUNS = 5
CURVE_POINTS = 25
KEPT_VARIANCE = 0.9


def kmeans(points: np.ndarray, clusters: int, seed: int, rounds: int = 100) -> np.ndarray:
    """Cluster of each point `(n, F)` -> `(n,)`: k-means++ start, Lloyd rounds until no point changes its cluster."""
    generator = np.random.default_rng(seed)
    centres = points[[generator.integers(len(points))]]
    nearest = ((points - centres[0]) ** 2).sum(1)
    while len(centres) < clusters:
        total = nearest.sum()
        weights = nearest / total if total > 0 else None
        centre = points[generator.choice(len(points), p=weights)]
        centres = np.vstack([centres, centre])
        nearest = np.minimum(nearest, ((points - centre) ** 2).sum(1))
    owner = np.full(len(points), -1)
    for _ in range(rounds):
        distance = (centres**2).sum(1)[None] - 2 * points @ centres.T
        fresh = distance.argmin(1)
        if (fresh == owner).all():
            break
        owner = fresh
        for k in np.unique(owner):
            centres[k] = points[owner == k].mean(0)
    return owner


def _prepare(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Rows of both sets on the unit sphere, projected to the axes that hold 90 % of their variance."""
    rows = np.vstack([p, q]).astype(np.float64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)
    centred = rows - rows.mean(0)
    _, size, axes = np.linalg.svd(centred, full_matrices=False)
    share = np.cumsum(size**2) / max(float((size**2).sum()), 1e-300)
    out: np.ndarray = centred @ axes[: int(np.searchsorted(share, KEPT_VARIANCE)) + 1].T
    return out


def frontier_area(p: np.ndarray, q: np.ndarray) -> float:
    """The score of two histograms `(k,)`."""
    curve = [(0.0, 1.0), (1.0, 0.0)]
    for w in np.linspace(1e-6, 1 - 1e-6, CURVE_POINTS):
        r = w * p + (1 - w) * q
        curve.append((float(np.exp(-MAUVE_SCALE * divergence(q, r))), float(np.exp(-MAUVE_SCALE * divergence(p, r)))))
    x, y = np.array(sorted(curve, key=lambda point: (point[0], -point[1]))).T
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())


def mauve(p: np.ndarray, q: np.ndarray, seed: int = 0) -> float:
    """MAUVE of features `(n, F)` and `(m, F)`, with a tenth of the smaller set as the number of clusters."""
    fewest = min(len(p), len(q))
    if fewest < 2:
        raise UserError("MAUVE needs at least 2 texts on each side.", "Raise -n.")
    clusters = max(2, round(fewest / 10))
    owner = kmeans(_prepare(p, q), clusters, seed)
    left, right = (np.bincount(part, minlength=clusters) for part in (owner[: len(p)], owner[len(p) :]))
    return frontier_area(left / left.sum(), right / right.sum())


def mauve_runs(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The score for each seed of the quantisation, `(MAUVE_RUNS,)`."""
    return np.array([mauve(p, q, seed) for seed in range(MAUVE_RUNS)])
