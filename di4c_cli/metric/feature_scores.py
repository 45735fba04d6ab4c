"""Figures from feature rows: Fréchet distance, KID and inception score.

With Inception's features the Fréchet distance is the FID.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from di4c_cli.errors import UserError

KERNEL_BLOCK = 1000
"""Rows of the kernel matrix in memory at once."""


class FeatureMoments:
    """Count, mean and scatter of the feature rows added so far, in float64 and constant memory.

    Batches are merged around their own means (Chan et al.), because a raw sum of squares over 50 000 rows
    loses the digits that the distance is made of.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = np.zeros(width)
        self.scatter = np.zeros((width, width))

    @classmethod
    def of(cls, features: np.ndarray) -> FeatureMoments:
        """The moments of one array `(n, F)`."""
        out = cls(features.shape[1])
        out.add(features)
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> FeatureMoments:
        """The inverse of `arrays`."""
        out = cls(len(arrays["mean"]))
        out.count = int(arrays["count"])
        out.mean, out.scatter = np.array(arrays["mean"]), np.array(arrays["scatter"])
        return out

    def arrays(self) -> dict[str, np.ndarray]:
        """For an .npz file."""
        return {"count": np.array(self.count), "mean": self.mean, "scatter": self.scatter}

    def add(self, features: np.ndarray) -> None:
        """Add rows `(n, F)`."""
        rows = np.asarray(features, dtype=np.float64)
        if len(rows) == 0:
            return
        other = FeatureMoments(rows.shape[1])
        other.count, other.mean = len(rows), rows.mean(0)
        centred = rows - other.mean
        other.scatter = centred.T @ centred
        self.merge(other)

    def merge(self, other: FeatureMoments) -> None:
        """Add another set of moments."""
        total = self.count + other.count
        if total == 0:
            return
        shift = other.mean - self.mean
        self.scatter += other.scatter + np.outer(shift, shift) * (self.count * other.count / total)
        self.mean = self.mean + shift * (other.count / total)
        self.count = total

    @property
    def covariance(self) -> np.ndarray:
        """`(F, F)`, divided by n - 1 as in the published FID."""
        if self.count < 2:
            raise UserError(f"A Fréchet distance needs at least 2 samples on each side, not {self.count}.", "Raise -n.")
        return self.scatter / (self.count - 1)


def frechet(a: FeatureMoments, b: FeatureMoments) -> float:
    """|μa - μb|² + tr(A + B - 2 (AB)^½) between N(μa, A) and N(μb, B).

    tr (AB)^½ is the sum of the roots of the eigenvalues of A^½ B A^½, which is symmetric: no complex roots
    and no regularisation, even for singular covariances.
    """
    return frechet_gaussian(a.mean, a.covariance, b.mean, b.covariance)


def frechet_gaussian(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    """The Fréchet distance from means `(F,)` and covariances `(F, F)`."""
    if mean_a.shape != mean_b.shape:
        raise UserError(
            f"The two sides have {mean_a.shape[0]} and {mean_b.shape[0]} features.",
            "Use the same feature network for samples and reference.",
        )
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    cross = np.linalg.eigvalsh(root @ cov_b @ root).clip(min=0)
    gap = mean_a - mean_b
    return float(gap @ gap + np.trace(cov_a) + np.trace(cov_b) - 2 * np.sqrt(cross).sum())


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """k(x, y) = (x·y / F + 1)³, the kernel of the published KID."""
    return (a @ b.T / a.shape[1] + 1.0) ** 3


def _sum_of_kernel(a: np.ndarray, b: np.ndarray) -> float:
    """Σ_ij k(a_i, b_j), a block of rows at a time."""
    return float(sum(_kernel(a[start : start + KERNEL_BLOCK], b).sum() for start in range(0, len(a), KERNEL_BLOCK)))


def _mean_of_pairs(a: np.ndarray) -> float:
    """Mean of k(a_i, a_j) over i ≠ j: leaving the diagonal out is what removes the bias."""
    n = len(a)
    diagonal = float(((np.einsum("ij,ij->i", a, a) / a.shape[1] + 1.0) ** 3).sum())
    return (_sum_of_kernel(a, a) - diagonal) / (n * (n - 1))


def kernel_distance(features: np.ndarray, reference: np.ndarray) -> float:
    """Unbiased squared MMD between rows `(n, F)` and `(m, F)`; may come out slightly negative near zero."""
    a, b = np.asarray(features, np.float64), np.asarray(reference, np.float64)
    if min(len(a), len(b)) < 2:
        raise UserError("KID needs at least 2 samples on each side.", "Raise -n.")
    return _mean_of_pairs(a) + _mean_of_pairs(b) - 2 * _sum_of_kernel(a, b) / (len(a) * len(b))


class ClassStatistics:
    """Sums over class probabilities `(n, C)` that determine the inception score, in constant memory."""

    def __init__(self, classes: int) -> None:
        self.count = 0
        self.total = np.zeros(classes)
        self.negative_entropy = 0.0

    def add(self, probabilities: np.ndarray) -> None:
        """Add rows that sum to one."""
        p = np.asarray(probabilities, np.float64)
        self.count += len(p)
        self.total += p.sum(0)
        self.negative_entropy += float(_xlogx(p).sum())

    @property
    def score(self) -> float:
        """exp(E KL(p(y|x) ‖ p(y))), from 1 to the number of classes."""
        if self.count == 0:
            raise UserError("The inception score of no samples is not defined.", "Raise -n.")
        mean = self.total / self.count
        return float(np.exp(self.negative_entropy / self.count - _xlogx(mean).sum()))


def _xlogx(p: np.ndarray) -> np.ndarray:
    return np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0)


def inception_score(probabilities: np.ndarray, splits: int = 1) -> tuple[float, float]:
    """Mean and standard deviation over `splits` consecutive parts (10 in published tables)."""
    scores = []
    for part in np.array_split(np.asarray(probabilities), splits):
        statistics = ClassStatistics(part.shape[1])
        statistics.add(part)
        scores.append(statistics.score)
    return float(np.mean(scores)), float(np.std(scores))
