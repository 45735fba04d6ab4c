"""Uncertainty of a figure: bootstrap for means, independent splits, halves or repeats for everything else.

A bootstrap of a Fréchet distance is wrong: a resample repeats samples, which narrows its covariance and adds
the small-n bias a second time. With many features for the samples that bias exceeds the spread and the interval
misses the value it is drawn around.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

NORMAL_QUANTILE = NormalDist().inv_cdf(0.975)
"""z with P(|Z| < z) = 95 %, the level of all intervals."""
RESAMPLES = 1000
SPLITS = 10
T_QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182}
HALVINGS = 10
STUDENT = "Student's t"
MIN_SAMPLES = 20
"""Below this many samples no interval is given, because neither method would have its nominal coverage."""


@dataclass(frozen=True)
class Interval:
    """`value` with its standard error and the ends of its 95 % interval.

    `interval` names the method, `over` what is resampled or averaged.
    """

    value: float
    se: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = "none"
    bias: float | None = None
    over: str = ""


def clause(method: str, over: str) -> str:
    """What an interval is, in a few words for a caption."""
    return f"{'bootstrap' if method == 'bootstrap' else STUDENT} over {over or method}"


def t_quantile(freedom: int) -> float:
    """Student's quantile at 95 %: a table below 4 degrees of freedom, else the Cornish–Fisher expansion.

    The expansion is within 0.01 from 4 degrees of freedom on.
    """
    if freedom in T_QUANTILES:
        return T_QUANTILES[freedom]
    z = NORMAL_QUANTILE
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def bootstrap_means(values: np.ndarray, draws: int = RESAMPLES, seed: int = 0, chunk: int = 2_000_000) -> np.ndarray:
    """Means of `draws` resamples of `(n,)` values, a few resamples at a time."""
    generator = np.random.default_rng(seed)
    n, rows = len(values), max(1, chunk // max(1, len(values)))
    out = [
        values[generator.integers(0, n, size=(min(rows, draws - start), n))].mean(1) for start in range(0, draws, rows)
    ]
    return np.concatenate(out)


def of_mean(
    values: np.ndarray,
    transform: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    seed: int = 0,
    over: str = "samples",
) -> Interval:
    """Mean of independent values, one for each of `over`, with a percentile bootstrap interval.

    `transform` is a monotone function of the mean (exp for a perplexity) and is applied to value and ends.
    The percentiles are widened to those of Student's t (Hesterberg's expanded percentile), since a plain
    bootstrap is too narrow by √((n-1)/n) and by the tail of t.
    """
    values = np.asarray(values, np.float64)
    value = float(transform(values.mean()))
    n = len(values)
    if n < MIN_SAMPLES:
        return Interval(value)
    means = bootstrap_means(values, seed=seed)
    tail = NormalDist().cdf(-np.sqrt(n / (n - 1)) * t_quantile(n - 1))
    ends = sorted(float(transform(end)) for end in np.quantile(means, [tail, 1 - tail]))
    return Interval(value, float(np.std(transform(means), ddof=1)), ends[0], ends[1], "bootstrap", over=over)


def of_splits(value: float, parts: Sequence[float], scaling_bias: bool = False) -> Interval:
    """A figure of all samples with its spread from the same figure on K independent splits.

    The standard error is sd(splits) / √K, exact for means and right to first order for smooth figures; close
    to zero, where a squared distance is no longer linear, it is too wide rather than too narrow. The interval
    is about the figure's expectation at this n. With `scaling_bias` (Fréchet) the part of it that falls like
    1/n is estimated too: E F_n = F_∞ + c/n at n and n/K.
    """
    k = len(parts)
    if k < 5:
        return Interval(value)
    se = float(np.std(parts, ddof=1) / np.sqrt(k))
    reach = t_quantile(k - 1) * se
    bias = (float(np.mean(parts)) - value) / (k - 1) if scaling_bias else None
    return Interval(value, se, value - reach, value + reach, "splits", bias, f"{k} splits of the samples")


def halvings(n: int, count: int = HALVINGS, seed: int = 0) -> np.ndarray:
    """`(count, n)` bool: which of `n` samples are in the first half, in `count` random halvings."""
    generator = np.random.default_rng(seed)
    return np.stack([generator.permutation(n) < n // 2 for _ in range(count)])


def of_halves(value: float, pairs: np.ndarray) -> Interval:
    """A figure with its spread from the same figure on both halves of K random halvings, `(K, 2)`.

    The halves of one halving are independent, so E (a - b)² / 4 is half the figure's variance at n/2, which is
    its variance at n if that falls like 1/n. For figures that change too much with n for tenths to stand for
    the whole (recall, whose neighbourhoods grow). In simulations the standard error was 0.75 to 1.3 times the
    true one. Halvings share their samples, so they count as half as many degrees of freedom.
    """
    k = len(pairs)
    if k < HALVINGS:
        return Interval(value)
    se = float(np.sqrt(((pairs[:, 0] - pairs[:, 1]) ** 2).mean() / 4))
    reach = t_quantile(k // 2) * se
    return Interval(value, se, value - reach, value + reach, "halves", over=f"{k} random halvings of the samples")


def split_of(index: int, n: int, splits: int = SPLITS) -> int:
    """Which of the consecutive, near-equal splits sample `index` of `n` belongs to."""
    return index * splits // n


def of_repeats(values: Sequence[float]) -> Interval:
    """Mean of a figure over independent repeats, with Student's interval."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return Interval(mean)
    spread = math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
    se = spread / math.sqrt(len(values))
    reach = t_quantile(len(values) - 1) * se
    return Interval(mean, se, mean - reach, mean + reach, "repeats", over=f"{len(values)} repeats")


def of_subsets(values: Sequence[float]) -> Interval:
    """Mean of a figure over disjoint subsets of samples and reference, with Student's interval."""
    over = f"{len(values)} subsets of samples and reference"
    return replace(of_repeats(values), interval="subsets", over=over)
