"""Smoothing, the summary of a run, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from di4c_cli.methods import METHODS
from di4c_cli.training.curves import draw_curves, smooth, summary


def test_smooth_averages_groups_and_leaves_gaps_out() -> None:
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


@pytest.mark.parametrize("method", METHODS)
def test_summary_has_the_live_metrics_of_every_method(method: str, tmp_path: Path) -> None:
    names = METHODS[method].live_metrics
    row = {"round": 1, "step": 1, "seconds": 0.5, "skipped": False} | dict.fromkeys(names, 1.5)
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert {name: summary(path).get(name) for name in names} == dict.fromkeys(names, 1.5)
