"""Smoothing, the summary of a run, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from di4c_cli.training.curves import draw_curves, smooth, summary


def test_groups_are_averaged_and_gaps_left_out() -> None:
    x, y = smooth([1.0, 3.0, None, 5.0, None, None], points=3)
    assert y == [2.0, 5.0]
    assert x == pytest.approx([1 / 6, 3 / 6])


def test_summary_is_of_the_last_tenth_of_the_last_round(tmp_path: Path) -> None:
    rows = [
        {"round": r, "step": s, "loss": 10.0 * r + s, "seconds": 0.5, "skipped": s == 3, "corr": None}
        for r in (1, 2)
        for s in range(1, 21)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = summary(path)
    assert found == {"steps": 40, "seconds": 20.0, "skipped": 2, "loss": 39.5}
    draw_curves(rows, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size == (880, 990)
