"""Intervals keep their promise: coverage by simulation; the bootstrap of a Fréchet distance shown wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from di4c_cli.metric.feature_scores import FeatureMoments, frechet
from di4c_cli.metric.interval import bootstrap_means, halvings, of_halves, of_mean, of_splits, split_of, t_quantile
from di4c_cli.metric.neighbours import half_recalls, precision_recall

TRIALS = 400


@pytest.mark.parametrize("freedom", [4, 9, 30, 500])
def test_t_quantile_is_scipys(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=0.01)


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda g: g.normal(3.0, 2.0, 100), 3.0),
        (lambda g: g.gamma(4.0, 1.0, 100), 4.0),
        (lambda g: (g.random(100) < 0.3).astype(float), 0.3),
    ],
    ids=["normal", "skewed", "indicator"],
)
def test_of_mean_covers_between_92_and_98_percent(draw, truth) -> None:  # type: ignore[no-untyped-def]
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(TRIALS):
        found = of_mean(draw(generator), seed=trial)
        assert found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / TRIALS <= 0.98, hits / TRIALS


def test_of_mean_keeps_its_coverage_under_a_transform() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for trial in range(TRIALS):
        found = of_mean(generator.gamma(9.0, 0.4, 80), np.exp, seed=trial)
        assert found.low is not None and found.high is not None
        assert found.low < found.value < found.high
        hits += found.low <= np.exp(3.6) <= found.high
    assert 0.92 <= hits / TRIALS <= 0.98, hits / TRIALS


def _distance(rows: np.ndarray, width: int) -> float:
    reference = FeatureMoments(2, np.zeros(width), np.eye(width))  # N(0, 1), known exactly
    return frechet(FeatureMoments.of(rows), reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "n", "bootstrap"), [(24, 500, (0.0, 0.2)), (8, 1000, (0.7, 0.97))], ids=["24 features", "8 features"]
)
def test_of_splits_covers_a_frechet_distance_and_a_bootstrap_may_not(
    width: int, n: int, bootstrap: tuple[float, float]
) -> None:
    """The target is the distance's expectation at this n, estimated from many fresh samples.

    Splits cover it in both settings (measured: 100 % and 98 %). What the percentile bootstrap covers depends on
    how large the bias of a resample is beside its spread: measured 1 % with 24 features and 500 samples, 88 %
    with 8 features and 1000 samples. With the 2048 features of Inception the bias rules.
    """
    trials = 100
    generator = np.random.default_rng(2)

    def draw() -> np.ndarray:
        return generator.normal(0.15, 1.1, size=(n, width))

    target = float(np.mean([_distance(draw(), width) for _ in range(400)]))
    splits_hit = bootstrap_hit = 0
    for _ in range(trials):
        rows = draw()
        parts = [_distance(part, width) for part in np.array_split(rows, 10)]
        found = of_splits(_distance(rows, width), parts, scaling_bias=True)
        assert found.low is not None and found.high is not None
        splits_hit += found.low <= target <= found.high
        resampled = [_distance(rows[generator.integers(0, n, n)], width) for _ in range(40)]
        bootstrap_hit += np.quantile(resampled, 0.025) <= target <= np.quantile(resampled, 0.975)
    assert splits_hit / trials >= 0.92, splits_hit / trials
    assert bootstrap[0] <= bootstrap_hit / trials <= bootstrap[1], bootstrap_hit / trials


def test_of_splits_estimates_the_bias_of_a_frechet_distance() -> None:
    """Samples from the reference itself: the true distance is 0, so all of the value is bias."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(20):
        rows = generator.normal(size=(1000, 8))
        parts = [_distance(part, 8) for part in np.array_split(rows, 10)]
        interval = of_splits(_distance(rows, 8), parts, scaling_bias=True)
        assert interval.bias is not None
        found.append((interval.value, interval.bias))
    value, bias = np.mean(found, axis=0)
    assert bias == pytest.approx(value, rel=0.25)


def test_intervals_are_none_for_too_few_samples() -> None:
    assert of_mean(np.ones(5)).low is None
    assert of_splits(1.0, [1.0, 2.0]).se is None


def test_bootstrap_means_do_not_depend_on_the_chunk() -> None:
    values = np.arange(50.0)
    np.testing.assert_array_equal(bootstrap_means(values, 60), bootstrap_means(values, 60, chunk=500))


def test_split_of_is_consecutive_and_even() -> None:
    owner = [split_of(i, 103) for i in range(103)]
    assert owner == sorted(owner)
    assert set(np.bincount(owner)) <= {10, 11}


def test_of_halves_gives_the_standard_error_of_a_mean() -> None:
    values = np.random.default_rng(4).normal(size=400)
    pairs = np.array([[values[first].mean(), values[~first].mean()] for first in halvings(400, 2000)])
    assert of_halves(values.mean(), pairs).se == pytest.approx(values.std() / 20, rel=0.05)
    assert of_halves(1.0, pairs[:9]).low is None


@pytest.mark.parametrize(("width", "scale"), [(2, 0.9), (6, 0.6), (32, 0.9)])
def test_of_halves_covers_recall(width: int, scale: float) -> None:
    """The expectation at this n, against one fixed reference, as in an evaluation."""
    generator = np.random.default_rng(5)
    reference, n, trials = generator.normal(size=(200, width)), 200, 60

    def draw() -> np.ndarray:
        return generator.normal(0.2, scale, size=(n, width))

    target = float(np.mean([precision_recall(draw(), reference)[1].mean() for _ in range(200)]))
    hits = 0
    for _ in range(trials):
        rows = draw()
        found = of_halves(precision_recall(rows, reference)[1].mean(), half_recalls(rows, reference, halvings(n)))
        assert found.low is not None and found.high is not None
        hits += found.low <= target <= found.high
    assert hits / trials >= 0.88, hits / trials
