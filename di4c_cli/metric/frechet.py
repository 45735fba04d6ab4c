"""Fréchet distance between two sets of features by means and covariances; FID when they are Inception's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from di4c_cli.errors import UserError


class Moments:
    """Count, mean and scatter of feature rows seen so far; float64 and constant memory.

    Batches are merged around their own means (Chan et al.), because a raw sum of squares over 50 000 rows
    loses the digits that the distance is made of.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = np.zeros(width)
        self.scatter = np.zeros((width, width))

    @classmethod
    def of(cls, features: np.ndarray) -> Moments:
        """Of one array `(n, F)`."""
        out = cls(features.shape[1])
        out.add(features)
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Moments:
        """The inverse of `arrays`."""
        out = cls(len(arrays["mean"]))
        out.count = int(arrays["count"])
        out.mean, out.scatter = np.array(arrays["mean"]), np.array(arrays["scatter"])
        return out

    def arrays(self) -> dict[str, np.ndarray]:
        """For an .npz file."""
        return {"count": np.array(self.count), "mean": self.mean, "scatter": self.scatter}

    def add(self, features: np.ndarray) -> None:
        """Take in rows `(n, F)`."""
        rows = np.asarray(features, dtype=np.float64)
        if len(rows) == 0:
            return
        other = Moments(rows.shape[1])
        other.count, other.mean = len(rows), rows.mean(0)
        centred = rows - other.mean
        other.scatter = centred.T @ centred
        self.merge(other)

    def merge(self, other: Moments) -> None:
        """Take in another summary."""
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
            raise UserError(
                f"A Fréchet distance needs at least 2 samples a side, here {self.count}.", "Raise -n."
            )
        return self.scatter / (self.count - 1)


def frechet(a: Moments, b: Moments) -> float:
    """|μa - μb|² + tr(A + B - 2 (AB)^½) between N(μa, A) and N(μb, B).

    tr (AB)^½ is the sum of the roots of the eigenvalues of A^½ B A^½, which is symmetric: no complex roots
    and no regularisation, even for singular covariances.
    """
    return frechet_gaussian(a.mean, a.covariance, b.mean, b.covariance)


def frechet_gaussian(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    """The same from means `(F,)` and covariances `(F, F)`."""
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
