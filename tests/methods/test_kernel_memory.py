"""Chunks, groups, slices and caches of the kernel keep to their memory and do not change the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from di4c_cli.methods.di4c_times import SampledTimes
from di4c_cli.methods.kernels import LossOutput, TermWeights
from di4c_cli.methods.kernels.chunked import Chunk, ChunkedLoss
from di4c_cli.methods.kernels.targets import CPU_CACHE_BYTES, averaged, groups
from di4c_cli.methods.teacher_step import analytical_teacher_step
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from tests.helpers.kernel_inputs import BATCH, LATENTS, case, denoiser
from tests.helpers.tables import stored

ROW = 11 * 8
"""Bytes of one distribution of the small DiT in float64."""
ONE, NONE = torch.ones(BATCH, dtype=torch.float64), torch.zeros(BATCH, dtype=torch.float64)


@pytest.mark.parametrize(
    ("size", "most"), [(1, 1), (LATENTS * ROW, 1), (3 * LATENTS * ROW, 3), (4 * LATENTS * ROW - 1, 3)]
)
def test_chunks_hold_the_most_rows_that_fit_and_at_least_one(size: int, most: int) -> None:
    base = case("dit", chunk_bytes=size)
    assert max(len(chunk.b) for chunk in ChunkedLoss(base.inputs, base.predict()).chunks()) == most


@pytest.mark.parametrize(
    ("variate", "distil", "targets_per_row"),
    [("marginal", NONE, 1), ("none", NONE, 1), ("marginal", ONE, 2), ("convex", NONE, 2), ("convex", ONE, 2)],
)
def test_cache_keeps_targets_first_then_log_probabilities(variate: str, distil: Tensor, targets_per_row: int) -> None:
    """Chunks of one row: `targets_per_row` targets each, then L log-probabilities of the student; as many as fit."""
    base = case("dit", variate, weights=TermWeights(distil, ONE, ONE, ONE), chunk_bytes=1)
    count = len(ChunkedLoss(base.inputs, base.predict()).chunks())
    targets, rest = targets_per_row * ROW, LATENTS * ROW
    for cache, expected in {
        0: (0, 0),
        targets - 1: (0, 0),
        targets: (1, 0),
        count * targets - 1: (count - 1, 0),
        count * targets: (count, 0),
        count * targets + rest - 1: (count, 0),
        count * targets + 2 * rest: (count, 2),
        count * (targets + rest): (count, count),
    }.items():
        chunks = ChunkedLoss(replace(base.inputs, cache_bytes=cache), base.predict()).chunks()
        kept = sum(chunk.keep_targets for chunk in chunks), sum(chunk.keep_log_probs for chunk in chunks)
        assert kept == expected


@pytest.mark.parametrize(("gradient", "cache"), [(False, 1 << 30), (True, 0), (True, 1 << 30)])
def test_chunks_hold_only_what_was_planned_between_the_passes(
    gradient: bool, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = case("dit", cache_bytes=cache)
    with torch.no_grad():
        kernel = ChunkedLoss(base.inputs, base.predict())
    chunks = kernel.chunks()
    asked: list[bool] = []

    def second_pass(same: list[Chunk], out: LossOutput) -> None:
        asked.append(same is chunks)

    monkeypatch.setattr(kernel, "chunks", lambda: chunks)
    monkeypatch.setattr(kernel, "second_pass", second_pass)
    kernel.run(gradient)
    held = [(chunk.log_p is not None, chunk.shift is not None, chunk.single is not None) for chunk in chunks]
    assert set(held) == {(gradient and cache > 0,) * 3} and asked == [True] * gradient


def test_groups_cover_all_rows_in_pieces_of_the_cache() -> None:
    like = torch.zeros(0, dtype=torch.float64)
    width = CPU_CACHE_BYTES // 8 // 4  # four rows fill it
    cut = [(part.start, part.stop) for part in groups(10, width, like)]
    assert cut == [(0, 4), (4, 8), (8, 10)]
    assert [(part.start, part.stop) for part in groups(2, 100 * width, like)] == [(0, 1), (1, 2)]
    assert list(groups(0, width, like)) == []


def test_averaged_does_not_depend_on_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows known to all, to some and to no prediction; groups of one row, then of all."""
    g = torch.Generator().manual_seed(3)
    x = torch.where(torch.rand(12, 5, generator=g) < 0.5, 4, torch.randint(0, 4, (12, 5), generator=g))
    x[0:4, 0], x[4:8, 1] = 2, 4
    logits = torch.randn(12, 5, 4, generator=g, dtype=torch.float64)
    first, d = torch.tensor([0, 4, 8]).repeat_interleave(5), torch.arange(5).repeat(3)
    uniform = torch.rand(15, 4, generator=g, dtype=torch.float64)
    law = torch.where((x == 4)[..., None], logits.softmax(-1), torch.eye(5).double()[x][..., :4])
    expected = law.view(3, 4, 5, 4).mean(1).flatten(0, 1)
    draws = []
    for size in (1, CPU_CACHE_BYTES):
        monkeypatch.setattr("di4c_cli.methods.kernels.targets.CPU_CACHE_BYTES", size)
        mean, drawn = averaged(stored(logits.clone(), x, Masked(4)), first, 4, d, uniform)
        torch.testing.assert_close(mean, expected)
        assert drawn is not None
        draws.append(drawn)
    assert torch.equal(*draws)
    known = x.view(3, 4, 5).transpose(1, 2).flatten(0, 1)
    assert torch.equal(draws[0][known < 4], known[known < 4])


def test_analytical_works_in_slices_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a mask, two positions at a time: the same x_u as all at once."""
    model, count = denoiser("unet", False, 2), 3
    process, length = model.process, model.length
    noise, t = Noise(0, range(BATCH)), torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    x_t = process.prior(noise.uniform("x", length))
    times = SampledTimes(t, t - 0.2, torch.full_like(t, 0.2), t)
    uniform = noise.uniform("u", count, length, 2)
    with torch.no_grad():
        prediction = model.predict(x_t, t)
    widths: list[int] = []
    step = process.step

    def spy(rows: Any, x: Tensor, *rest: Any) -> Tensor:
        widths.append(x.shape[1])
        return step(rows, x, *rest)

    monkeypatch.setattr(process, "step", spy)
    budget = 2 * 8 * BATCH * count * process.symbols
    sliced = analytical_teacher_step(prediction, 1, x_t, times, uniform, budget)
    assert widths == [2] * (length // 2)
    assert torch.equal(analytical_teacher_step(prediction, 1, x_t, times, uniform, 0), sliced)
    assert widths[-length:] == [1] * length
    assert torch.equal(analytical_teacher_step(prediction, 1, x_t, times, uniform, 1 << 30), sliced)
