"""metrics.jsonl after interruptions, the averages of a step, and the summary of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from di4c_cli.training.metrics import MetricsFile, StepMetrics, finite_or_none, read_rows, summary


def steps(path: Path) -> list[tuple[int, int]]:
    return [(row["round"], row["step"]) for row in read_rows(path)]


def test_metrics_file_drops_rows_after_the_checkpoint_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"round": 1, "step": step} for step in range(1, 6)] + [{"round": 2, "step": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"round": 2, "st')
    file = MetricsFile(path, (1, 3))
    file.append({"round": 1, "step": 4})
    file.close()
    assert steps(path) == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_metrics_file_keeps_earlier_rounds_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"round": r, "step": s}) + "\n" for r in (1, 2) for s in (1, 2)))
    MetricsFile(path, (2, 0)).close()
    assert steps(path) == [(1, 1), (1, 2)]


def test_finite_or_none_replaces_nan_and_infinity() -> None:
    assert finite_or_none(float("nan")) is None
    assert finite_or_none(float("inf")) is None
    assert finite_or_none(1.5) == 1.5


def test_step_metrics_average_a_term_over_the_samples_it_covers() -> None:
    figures, names = StepMetrics(), ["other"]
    one = {"consis": torch.tensor([1.0, 100.0])}
    two = {"consis": torch.tensor([3.0, 5.0]), "distil": torch.tensor([7.0, 0.0])}
    covers = {"consis": torch.tensor([True, False])}
    figures.add(torch.tensor(2.0), one, covers, {"health": torch.tensor([1.0, torch.nan])})
    figures.add(torch.tensor(4.0), two, {"distil": torch.tensor([True, False])}, {})
    row, stop = figures.reduce(Accelerator(cpu=True), 2, True, names)
    assert stop
    assert row == {"loss": 3.0, "consis": pytest.approx(3.0), "distil": 7.0, "health": 1.0, "other": None}
    assert names == ["consis", "distil", "health", "other"]


def test_summary_is_of_the_last_tenth_of_the_last_round(tmp_path: Path) -> None:
    rows = [
        {"round": r, "step": s, "loss": 10.0 * r + s, "seconds": 0.5, "skipped": s == 3, "corr": None}
        for r in (1, 2)
        for s in range(1, 21)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert summary(path) == {"steps": 40, "seconds": 20.0, "skipped": 2, "loss": 39.5}


def test_read_rows_leaves_out_lines_that_no_run_writes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    odd = [{"loss": [1]}, {"seconds": "x"}, {"step": "1"}, {"round": True}, {"lr": {}}]
    rows = [{"round": 1, "step": 1, "loss": 1.0, "seconds": None}, *({"round": 1, "step": 2} | row for row in odd), []]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert steps(path) == [(1, 1)]
    assert summary(path)["steps"] == 1 and summary(path)["seconds"] == 0.0
