"""Fréchet, kernel distance, inception score and precision/recall against independent computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from di4c_cli.errors import UserError
from di4c_cli.metric.feature_scores import ClassStatistics, FeatureMoments, frechet, kernel_distance
from di4c_cli.metric.interval import halvings
from di4c_cli.metric.neighbours import half_recalls, precision_recall, radii


def _spd(generator: np.random.Generator, width: int, rank: int | None = None) -> np.ndarray:
    a = generator.normal(size=(width, rank or 2 * width))
    return a @ a.T / a.shape[1]


def _moments(mean: np.ndarray, covariance: np.ndarray) -> FeatureMoments:
    return FeatureMoments(2, mean, covariance)


def _inception_score(probabilities: np.ndarray) -> float:
    return ClassStatistics.of(probabilities).score


def test_frechet_of_commuting_gaussians_is_the_closed_form() -> None:
    """Diagonal covariances: |μ-ν|² + Σ (√a - √b)²."""
    generator = np.random.default_rng(0)
    a, b = generator.uniform(0, 3, 6), generator.uniform(0, 3, 6)
    mean = generator.normal(size=6)
    expected = (mean**2).sum() + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    assert frechet(_moments(mean, np.diag(a)), _moments(np.zeros(6), np.diag(b))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rank", [None, 5], ids=["full", "singular"])
def test_frechet_agrees_with_scipys_matrix_root(rank: int | None) -> None:
    generator = np.random.default_rng(1)
    a, b = _spd(generator, 12, rank), _spd(generator, 12)
    mean = generator.normal(size=12)
    root = sqrtm(a @ b)
    expected = mean @ mean + np.trace(a) + np.trace(b) - 2 * np.trace(root).real
    # scipy's root of a singular matrix is good to the root of its precision only
    tolerance = 1e-10 if rank is None else 1e-5
    assert frechet(_moments(mean, a), _moments(np.zeros(12), b)) == pytest.approx(expected, rel=tolerance)


def test_frechet_agrees_with_torchmetrics() -> None:
    from torchmetrics.image.fid import _compute_fid

    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(300, 7)), generator.normal(0.3, 1.4, size=(250, 7))
    a, b = FeatureMoments.of(x), FeatureMoments.of(y)
    parts = [torch.from_numpy(v) for v in (a.mean, a.covariance, b.mean, b.covariance)]
    assert frechet(a, b) == pytest.approx(float(_compute_fid(*parts)), rel=1e-8)


def test_moments_in_batches_are_numpys_and_survive_an_offset() -> None:
    """A large common offset destroys a plain sum of squares."""
    rows = np.random.default_rng(3).normal(size=(500, 4)) + 1e6
    moments = FeatureMoments.of(rows[:77])
    for start in range(77, 500, 77):
        moments += FeatureMoments.of(rows[start : start + 77])
    assert moments.count == 500
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-14)
    np.testing.assert_allclose(moments.covariance, np.cov(rows.T), rtol=1e-7, atol=1e-8)
    assert frechet(moments, moments) == pytest.approx(0, abs=1e-9)


def test_frechet_rejects_one_sample_and_unequal_features() -> None:
    with pytest.raises(UserError, match="at least 2"):
        frechet(FeatureMoments.of(np.ones((1, 3))), FeatureMoments.of(np.ones((5, 3))))
    with pytest.raises(UserError, match="same feature network"):
        frechet(FeatureMoments.of(np.ones((5, 2))), FeatureMoments.of(np.ones((5, 3))))


def _plain_mmd(x: np.ndarray, y: np.ndarray) -> float:
    def k(a: np.ndarray, b: np.ndarray) -> float:
        return float((a @ b / len(a) + 1) ** 3)

    xx = np.mean([k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    yy = np.mean([k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    return float(xx + yy - 2 * np.mean([k(a, b) for a in x for b in y]))


def test_kernel_distance_is_the_sum_over_pairs() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(20, 3)), generator.normal(size=(15, 3)) + 0.5
    assert kernel_distance(x, y) == pytest.approx(_plain_mmd(x, y), rel=1e-12)


def test_kernel_distance_is_unbiased_at_small_n() -> None:
    """Two-point laws have an exact MMD; the mean of many small estimates must be it, the plug-in's is not."""
    generator = np.random.default_rng(5)
    points, p, q = np.array([[0.0], [2.0]]), 0.3, 0.6
    kernel = (points @ points.T + 1) ** 3
    gap = np.array([q - p, p - q])
    exact = float(gap @ kernel @ gap)

    def draw(one: float) -> np.ndarray:
        return points[(generator.random(8) < one).astype(int)]

    estimates = [kernel_distance(draw(p), draw(q)) for _ in range(4000)]
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - exact) < 4 * error
    assert error < 0.05 * kernel.max(), "the check must be sharp"
    plug_in = (p * (1 - p) + q * (1 - q)) / 8 * (kernel[0, 0] + kernel[1, 1] - 2 * kernel[0, 1])
    assert plug_in > 8 * error, "the biased estimate would be noticed"


def test_inception_score_by_hand() -> None:
    """Certain and evenly spread over C classes: C. All alike: 1."""
    assert _inception_score(np.eye(5)) == pytest.approx(5)
    assert _inception_score(np.full((9, 4), 0.25)) == pytest.approx(1)
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    mean = p.mean(0)
    expected = np.exp(np.mean([(row * np.log(row / mean)).sum() for row in p]))
    assert _inception_score(p) == pytest.approx(expected, rel=1e-12)


def test_inception_score_in_batches_is_that_of_the_whole() -> None:
    p = np.random.default_rng(6).dirichlet(np.ones(6), size=120)
    batches = ClassStatistics.of(p[:50]) + ClassStatistics.of(p[50:])
    assert batches.score == pytest.approx(_inception_score(p))


def test_precision_recall_by_hand() -> None:
    """On a line with k = 1 the balls are intervals that can be drawn on paper."""
    reference = np.array([[0.0], [1.0], [2.0], [10.0]])  # radii 1, 1, 1, 8: covers [-1, 3] and [2, 18]
    samples = np.array([[0.5], [0.6], [30.0], [-3.0], [17.5]])
    np.testing.assert_allclose(np.sqrt(radii(reference, 1)), [1, 1, 1, 8])
    # samples' radii 0.1, 0.1, 12.5, 3.5, 12.5: cover [0.4, 0.7], [17.5, 42.5], [-6.5, 0.5] and [5, 30]
    inside, reached = precision_recall(samples, reference, 1)
    assert inside.mean() == pytest.approx(3 / 5)
    assert reached.mean() == pytest.approx(2 / 4)


def test_radii_are_brute_force_even_with_twins() -> None:
    points = np.random.default_rng(7).normal(size=(700, 3))
    points[1] = points[0]
    distance = np.sqrt(((points[:, None] - points[None]) ** 2).sum(-1))
    np.fill_diagonal(distance, np.inf)
    np.testing.assert_allclose(np.sqrt(radii(points).clip(min=0)), np.sort(distance, 1)[:, 2], atol=1e-6)


def test_precision_recall_needs_neighbours() -> None:
    with pytest.raises(UserError, match="neighbours"):
        precision_recall(np.zeros((3, 2)), np.zeros((9, 2)))


def test_half_recalls_are_those_of_each_half_alone() -> None:
    generator = np.random.default_rng(8)
    points, reference = generator.normal(size=(600, 4)), generator.normal(size=(550, 4))
    first = halvings(600, 3)
    expected = [[precision_recall(points[side], reference)[1].mean() for side in (f, ~f)] for f in first]
    np.testing.assert_allclose(half_recalls(points, reference, first), expected)
    with pytest.raises(UserError, match="too few neighbours"):
        half_recalls(points[:6], reference, halvings(6, 1))
