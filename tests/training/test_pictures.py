"""Smoothing of curves, and the picture of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from di4c_cli.training.pictures import draw_curves, smooth


def test_smooth_averages_groups_and_omits_gaps() -> None:
    x, y = smooth([1.0, 3.0, None, 5.0, None, None], points=3)
    assert y == [2.0, 5.0]
    assert x == pytest.approx([1 / 6, 3 / 6])


def test_draw_curves_writes_a_picture_of_two_rounds(tmp_path: Path) -> None:
    rows = [
        {"round": r, "step": s, "loss": 10.0 * r + s, "corr": None, "grad_norm": 1.0}
        for r in (1, 2)
        for s in range(1, 21)
    ]
    draw_curves(rows, tmp_path / "curves.png", ("loss", "corr"))
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size == (880, 660), "loss and gradient norm; no correlation was recorded"
