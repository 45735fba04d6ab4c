"""A batch smaller than the number of processes: two processes divide the latents of one sample and change nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from di4c_cli.errors import UserError
from di4c_cli.training.launch import launch
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.plan import make_batch_plan
from di4c_cli.training.run import RunOptions, distill
from tests.helpers import divided_latents
from tests.helpers.small_run import weights


@pytest.mark.slow
def test_two_processes_divide_the_latents_of_one_sample(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "run"
    distill(divided_latents.small("di4c/words"), one, RunOptions())
    assert launch(2, [sys.executable, "-m", divided_latents.__name__, str(tmp_path)], cpu=True) == 0
    for a, b in zip(read_rows(one / "metrics.jsonl"), read_rows(two / "metrics.jsonl"), strict=True):
        for name in a.keys() - {"seconds"}:
            assert b[name] == (None if a[name] is None else pytest.approx(a[name], rel=1e-6, abs=1e-6)), name
    for name, value in weights(two).items():
        torch.testing.assert_close(value, weights(one)[name], rtol=0, atol=1e-5)  # Adam magnifies rounding
    assert torch.equal(torch.load(tmp_path / "pool.pt"), divided_latents.teacher_pool(Accelerator(cpu=True)))
    found = json.loads((tmp_path / "errors.json").read_text())
    assert set(found) == set(divided_latents.CASES)
    for case, errors in found.items():
        assert max(errors.values()) < 1e-9, (case, errors)


def test_batch_plan_divides_latents_where_samples_cannot_be_divided() -> None:
    sdtt = make_batch_plan(2, None, 8, latents=16)
    assert (sdtt.group, sdtt.micro, sdtt.passes) == (4, 1, 1)
    assert [sdtt.starts(3, rank) for rank in range(8)] == [[6]] * 4 + [[7]] * 4
    assert make_batch_plan(4, None, 6, latents=3).starts(0, 5) == [2]
    assert make_batch_plan(8, None, 8, latents=16).group == 1, "samples first"
    with pytest.raises(UserError, match=r"A batch of 2 cannot be divided over 8 processes.*--batch 8"):
        make_batch_plan(2, None, 8, latents=6)
