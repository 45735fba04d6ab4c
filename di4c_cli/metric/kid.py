"""Kernel distance between two sets of features: the squared MMD with a cubic kernel, unbiased at any n."""

from __future__ import annotations

import numpy as np

from di4c_cli.errors import UserError

BLOCK = 1000


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """k(x, y) = (x·y / F + 1)³, the kernel of the published KID."""
    return (a @ b.T / a.shape[1] + 1.0) ** 3


def _sum_of_kernel(a: np.ndarray, b: np.ndarray) -> float:
    """Σ_ij k(a_i, b_j), a block of rows at a time."""
    return float(sum(_kernel(a[start : start + BLOCK], b).sum() for start in range(0, len(a), BLOCK)))


def _mean_of_pairs(a: np.ndarray) -> float:
    """Mean of k(a_i, a_j) over i ≠ j: leaving the diagonal out is what removes the bias."""
    n = len(a)
    diagonal = float(((np.einsum("ij,ij->i", a, a) / a.shape[1] + 1.0) ** 3).sum())
    return (_sum_of_kernel(a, a) - diagonal) / (n * (n - 1))


def kernel_distance(features: np.ndarray, reference: np.ndarray) -> float:
    """Unbiased squared MMD between rows `(n, F)` and `(m, F)`; may come out slightly negative near zero."""
    a, b = np.asarray(features, np.float64), np.asarray(reference, np.float64)
    if min(len(a), len(b)) < 2:
        raise UserError("KID needs at least 2 samples a side.", "Raise -n.")
    return _mean_of_pairs(a) + _mean_of_pairs(b) - 2 * _sum_of_kernel(a, b) / (len(a) * len(b))
