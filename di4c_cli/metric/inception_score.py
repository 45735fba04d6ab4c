"""Inception score: exp of the mean divergence of a sample's class law from the average law."""

from __future__ import annotations

import numpy as np

from di4c_cli.errors import UserError


class ClassLaw:
    """Sums over class probabilities `(n, C)` from which the score follows; constant memory."""

    def __init__(self, classes: int) -> None:
        self.count = 0
        self.total = np.zeros(classes)
        self.negative_entropy = 0.0

    def add(self, probabilities: np.ndarray) -> None:
        """Take in rows that sum to one."""
        p = np.asarray(probabilities, np.float64)
        self.count += len(p)
        self.total += p.sum(0)
        self.negative_entropy += float(_xlogx(p).sum())

    def merge(self, other: ClassLaw) -> None:
        """Take in another summary."""
        self.count += other.count
        self.total += other.total
        self.negative_entropy += other.negative_entropy

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
        law = ClassLaw(part.shape[1])
        law.add(part)
        scores.append(law.score)
    return float(np.mean(scores)), float(np.std(scores))
