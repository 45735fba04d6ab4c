"""Figures from feature rows: Fréchet distance, KID and inception score.

With Inception's features the Fréchet distance is the FID.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from di4c_cli.errors import UserError

KERNEL_BLOCK = 1000
"""Rows of the kernel matrix in memory at once."""


@dataclass(frozen=True)
class FeatureMoments:
    """Count, mean and scatter of feature rows, in float64.

    Batches are added around their own means (Chan et al.), because a raw sum of squares over 50 000 rows
    loses the digits that the distance is made of.
    """

    count: int
    mean: np.ndarray
    scatter: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> FeatureMoments:
        """The moments of one array `(n, F)`, n at least 1."""
        rows = np.asarray(features, dtype=np.float64)
        mean = rows.mean(0)
        centred = rows - mean
        return cls(len(rows), mean, centred.T @ centred)

    def __add__(self, other: FeatureMoments) -> FeatureMoments:
        """The moments of both sets of rows."""
        total, shift = self.count + other.count, other.mean - self.mean
        between = np.outer(shift, shift) * (self.count * other.count / total)
        return FeatureMoments(
            total, self.mean + shift * (other.count / total), self.scatter + (other.scatter + between)
        )

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
    if a.mean.shape != b.mean.shape:
        raise UserError(
            f"The two sides have {len(a.mean)} and {len(b.mean)} features.",
            "Use the same feature network for samples and reference.",
        )
    cov_a, cov_b, gap = a.covariance, b.covariance, a.mean - b.mean
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    cross = np.linalg.eigvalsh(root @ cov_b @ root).clip(min=0)
    return float(gap @ gap + np.trace(cov_a) + np.trace(cov_b) - 2 * np.sqrt(cross).sum())


def _sum_of_kernel(a: np.ndarray, b: np.ndarray) -> float:
    """Σ_ij k(a_i, b_j) with the published KID's kernel k(x, y) = (x·y / F + 1)³, a block of rows at a time."""
    blocks = (a[start : start + KERNEL_BLOCK] for start in range(0, len(a), KERNEL_BLOCK))
    return float(sum(((block @ b.T / a.shape[1] + 1.0) ** 3).sum() for block in blocks))


def mean_of_pairs(rows: np.ndarray) -> float:
    """Mean of k(a_i, a_j) over i ≠ j of rows `(n, F)`: leaving the diagonal out is what removes the bias."""
    a, n = np.asarray(rows, np.float64), len(rows)
    if n < 2:
        raise UserError("KID needs at least 2 samples on each side.", "Raise -n.")
    diagonal = float(((np.einsum("ij,ij->i", a, a) / a.shape[1] + 1.0) ** 3).sum())
    return (_sum_of_kernel(a, a) - diagonal) / (n * (n - 1))


def kernel_distance(features: np.ndarray, reference: np.ndarray, reference_pairs: float | None = None) -> float:
    """Unbiased squared MMD between rows `(n, F)` and `(m, F)`, which may be negative; see `mean_of_pairs`."""
    a, b = np.asarray(features, np.float64), np.asarray(reference, np.float64)
    pairs = mean_of_pairs(b) if reference_pairs is None else reference_pairs
    return mean_of_pairs(a) + pairs - 2 * _sum_of_kernel(a, b) / (len(a) * len(b))


@dataclass(frozen=True)
class ClassStatistics:
    """Sums over class probabilities `(n, C)` that determine the inception score."""

    count: int
    total: np.ndarray
    negative_entropy: float

    @classmethod
    def of(cls, probabilities: np.ndarray) -> ClassStatistics:
        """The sums over rows that sum to one, at least one row."""
        p = np.asarray(probabilities, np.float64)
        return cls(len(p), p.sum(0), float(_xlogx(p).sum()))

    def __add__(self, other: ClassStatistics) -> ClassStatistics:
        """The sums over both sets of rows."""
        entropy = self.negative_entropy + other.negative_entropy
        return ClassStatistics(self.count + other.count, self.total + other.total, entropy)

    @property
    def score(self) -> float:
        """exp(E KL(p(y|x) ‖ p(y))), from 1 to the number of classes."""
        return float(np.exp(self.negative_entropy / self.count - _xlogx(self.total / self.count).sum()))


def _xlogx(p: np.ndarray) -> np.ndarray:
    return np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0)
