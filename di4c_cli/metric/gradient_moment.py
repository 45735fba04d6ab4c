"""Gradient moment: squared distance of the mean gradients of a judge's log-likelihood on samples and on real texts.

Repetition and low temperature lower a perplexity, but they move the mean gradient away from that of real texts. The
gradient is the one of a gain on the coordinates of the judge's last hidden state.
"""

from __future__ import annotations

import numpy as np

from di4c_cli.errors import UserError
from di4c_cli.metric.interval import SPLITS, Interval, of_splits


def squared_distance(p: np.ndarray, q: np.ndarray) -> float:
    """Of the means of two laws, unbiased, from independent rows `(n, F)` and `(m, F)`; it may fall below zero."""
    return _squared_mean(p) + _squared_mean(q) - 2 * float(p.mean(0) @ q.mean(0))


def _squared_mean(rows: np.ndarray) -> float:
    """Squared norm of the mean of the rows' law: the mean product of two different rows."""
    n, total = len(rows), rows.sum(0)
    return float((total @ total - (rows * rows).sum()) / (n * (n - 1)))


def gradient_moment(rows: np.ndarray, reference: np.ndarray) -> Interval:
    """The distance with an interval over splits of the samples."""
    if len(rows) < 2:
        raise UserError("The gradient moment needs at least 2 texts on each side.", "Raise -n.")
    rows, reference = rows.astype(np.float64), reference.astype(np.float64)
    splits = [part for part in np.array_split(rows, SPLITS) if len(part) > 1]
    parts = [squared_distance(part, reference) for part in splits]
    return of_splits(squared_distance(rows, reference), parts)
