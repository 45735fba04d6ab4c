"""Memorisation by nearest neighbours: known answers, one half without memorisation, more with it."""

from __future__ import annotations

import numpy as np
import pytest

from di4c_cli.metric.neighbours import NEAREST_BLOCK, hamming, nearer_to_training, squared_distances


def test_distances_against_loops() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 5, (7, 3)), generator.integers(0, 5, (4, 3))
    for i in range(7):
        for j in range(4):
            assert squared_distances(a, b)[i, j] == pytest.approx(((a[i] - b[j]) ** 2).sum())
            assert hamming(a, b)[i, j] == (a[i] != b[j]).sum()


def test_nearer_to_training_of_known_samples() -> None:
    """Samples at 0 lie at a training item, those at 10 at a held-out one, one at 5 between both."""
    training, held_out = np.array([[0.0]]), np.array([[10.0]])
    samples = np.array([[0.0], [1.0], [9.0], [5.0]])
    assert nearer_to_training(samples, training, held_out).mean() == pytest.approx((2 + 0.5) / 4)
    words = np.array([[1, 2, 3], [4, 5, 6]])
    assert nearer_to_training(np.array([[1, 2, 9]]), words[:1], words[1:], hamming).mean() == 1.0
    assert nearer_to_training(np.array([[4, 5, 9]]), words[:1], words[1:], hamming).mean() == 0.0


def test_nearer_to_training_is_one_half_without_memorisation() -> None:
    """All from one law; 4000 samples and 200 items a side: three standard errors of the sets are 0.1."""
    generator = np.random.default_rng(1)
    samples, training, held_out = (generator.normal(size=(n, 2)) for n in (4 * NEAREST_BLOCK + 3, 1000, 200))
    assert nearer_to_training(samples, training, held_out).mean() == pytest.approx(0.5, abs=0.1)


def test_nearer_to_training_sees_copies() -> None:
    generator = np.random.default_rng(2)
    training, held_out = generator.normal(size=(100, 8)), generator.normal(size=(100, 8))
    copies = training + 0.01 * generator.normal(size=training.shape)
    assert nearer_to_training(copies, training, held_out).mean() == 1.0
