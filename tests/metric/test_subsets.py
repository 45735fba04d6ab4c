"""Random subsets of feature rows: independent of the order of the images, disjoint where there are enough."""

from __future__ import annotations

import numpy as np
import pytest

from di4c_cli.metric import subsets
from di4c_cli.metric.subsets import SUBSETS, RandomRows, reference_subset, sample_subsets


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsets, "SUBSET_ROWS", 40)


def chosen(images: np.ndarray, batch: int = 37) -> np.ndarray:
    """Rows that are kept of images whose single feature is their first pixel pair."""
    rows = RandomRows()
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        rows.add(part, part[:, 0] * 256.0 + part[:, 1:2].sum(1))
    return rows.rows()


def pictures(n: int) -> np.ndarray:
    """Images sorted by their number, which their pixels hold."""
    number = np.arange(n)
    return np.stack([number // 256, number % 256], 1).astype(np.uint8)[:, :, None]


def test_random_rows_depend_on_the_images_and_not_on_their_order() -> None:
    images = pictures(1000)
    kept = chosen(images)
    assert kept.shape == (SUBSETS * 40, 1) and len(np.unique(kept)) == 200
    shuffled = np.random.default_rng(0).permutation(images)
    np.testing.assert_array_equal(chosen(shuffled, 101), kept)
    # 200 numbers below 1000 at random: their mean has a standard error of 18
    assert abs(kept.mean() - 499.5) < 4 * 18
    assert len(chosen(images[:90])) == 90


def test_reference_subsets_share_no_row_if_there_are_enough() -> None:
    rows = np.arange(200)[:, None]
    parts = [reference_subset(rows, number) for number in range(SUBSETS)]
    assert sorted(np.concatenate(parts)[:, 0]) == list(range(200))
    few = [reference_subset(rows[:50], number) for number in range(SUBSETS)]
    assert {len(np.unique(part)) for part in few} == {40}
    assert np.bincount(np.concatenate(few)[:, 0], minlength=50).min() >= 3
    assert len(reference_subset(rows[:30], 3)) == 30


@pytest.mark.parametrize(("n", "expected"), [(25, [25]), (199, [40]), (200, [40] * 5), (333, [40] * 5)])
def test_sample_subsets_are_consecutive(n: int, expected: list[int]) -> None:
    rows = np.arange(n)[:, None]
    parts = list(sample_subsets((rows[start : start + 30] for start in range(0, n, 30)), n))
    assert [len(part) for part in parts] == expected
    np.testing.assert_array_equal(np.concatenate(parts), rows[: sum(expected)])
