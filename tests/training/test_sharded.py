"""FSDP2 on the CPU: sharded weights give the losses of one process and survive an interruption."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from di4c_cli.training.launch import launch
from di4c_cli.training.metrics import read_rows
from tests.helpers import float64_run, sharded_run
from tests.helpers.small_run import weights


@pytest.mark.slow
def test_sharded_run_equals_a_plain_one_and_resumes(teacher: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    float64_run.main(str(teacher), str(one), "6")
    command = [sys.executable, "-m", sharded_run.__name__, str(teacher), str(two), "6"]
    assert launch(2, command, cpu=True) == 0
    pairs = zip(read_rows(one / "metrics.jsonl"), read_rows(two / "metrics.jsonl"), strict=True)
    assert max(abs(a["loss"] - b["loss"]) for a, b in pairs) < 1e-8
    first = weights(two)
    for name in ("student", "round-1/student", "round-1/checkpoints/step-00000006"):
        shutil.rmtree(two / name)
    assert launch(2, command, cpu=True) == 0
    assert [row["step"] for row in read_rows(two / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    for name, value in weights(two).items():
        torch.testing.assert_close(value, first[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(value, weights(one)[name], rtol=0, atol=1e-8)
