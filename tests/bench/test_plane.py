"""The two-dimensional benchmark: its densities, its metrics, and a teacher that can represent them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import plane
from di4c_cli import network
from di4c_cli.recipe_file import read_pretrain


@pytest.mark.parametrize("density", ["8-modes", pytest.param("swiss-roll", marks=pytest.mark.slow)])
def test_points_follow_the_law_and_are_valid(density: str) -> None:
    exact = plane.law(density, 0)
    assert exact.sum() == pytest.approx(1)
    drawn = plane.symbols(plane.points(density, 0, plane.POINTS))
    assert plane.variation(drawn, exact) < 0.08, "20 000 points fill about 300 cells"
    fresh = plane.symbols(plane.points(density, 0, 1000, "fresh"))
    assert plane.validity(fresh, drawn[:1000]) > 90
    anywhere = np.random.default_rng(0).integers(0, plane.SYMBOLS, (1000, 2))
    assert plane.validity(anywhere, drawn[:1000]) < 25
    assert plane.variation(anywhere, exact) > 0.8


def test_symbols_are_cells_between_equal_edges() -> None:
    assert plane.symbols(np.array([-9.0, -3.001, -2.999, 0.0, 2.999, 9.0])).tolist() == [0, 0, 1, 25, 48, 49]


def test_teacher_tells_the_positions_apart_where_both_are_masked() -> None:
    settings = read_pretrain("bench-2d/teacher").network
    torch.manual_seed(0)
    made = network.build(settings)
    with torch.no_grad():
        first, second = made.body(torch.full((1, 2), plane.SYMBOLS), torch.ones(1))[0]
    assert not torch.allclose(first, second, atol=1e-3)
