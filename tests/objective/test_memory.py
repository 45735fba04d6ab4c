"""Chunks, groups, slices and caches: within the memory they were given, and of no influence on the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from di4c_cli.noise import Noise
from di4c_cli.objective.core import Chunk, Core
from di4c_cli.objective.problem import Outcome, Weights
from di4c_cli.objective.steps import analytical
from di4c_cli.objective.targets import NEAR, averaged, groups
from di4c_cli.objective.times import Moments
from di4c_cli.process import Masked
from tests.helpers.tables import stored
from tests.helpers.worlds import BATCH, LATENTS, case, denoiser

ROW = 11 * 8
"""Bytes of one law of the small DiT in float64."""
ONE, NONE = torch.ones(BATCH, dtype=torch.float64), torch.zeros(BATCH, dtype=torch.float64)


@pytest.mark.parametrize(
    ("size", "most"),
    [(1, 1), (LATENTS * ROW, 1), (3 * LATENTS * ROW, 3), (4 * LATENTS * ROW - 1, 3)],
)
def test_a_chunk_is_the_most_rows_that_fit_and_at_least_one(size: int, most: int) -> None:
    base = case("dit", chunk_bytes=size)
    assert max(len(chunk.b) for chunk in Core(base.problem, base.predict()).chunks()) == most


@pytest.mark.parametrize(
    ("variate", "distil", "laws"),
    [("marginal", NONE, 1), ("none", NONE, 1), ("marginal", ONE, 2), ("convex", NONE, 2), ("convex", ONE, 2)],
)
def test_the_cache_keeps_targets_first_then_laws(variate: str, distil: Tensor, laws: int) -> None:
    """Chunks of one row: `laws` laws of targets each, then L of the student's; as many as fit, no byte more."""
    base = case("dit", variate, weights=Weights(distil, ONE, ONE, ONE), chunk_bytes=1)
    count = len(Core(base.problem, base.predict()).chunks())
    targets, rest = laws * ROW, LATENTS * ROW
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
        chunks = Core(replace(base.problem, cache_bytes=cache), base.predict()).chunks()
        kept = sum(chunk.keep_targets for chunk in chunks), sum(chunk.keep_laws for chunk in chunks)
        assert kept == expected


@pytest.mark.parametrize(("gradient", "cache"), [(False, 1 << 30), (True, 0), (True, 1 << 30)])
def test_between_the_passes_only_what_was_planned_is_held(
    gradient: bool, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = case("dit", cache_bytes=cache)
    with torch.no_grad():
        core = Core(base.problem, base.predict())
    chunks = core.chunks()
    asked: list[bool] = []

    def second_pass(same: list[Chunk], out: Outcome) -> None:
        asked.append(same is chunks)

    monkeypatch.setattr(core, "chunks", lambda: chunks)
    monkeypatch.setattr(core, "second_pass", second_pass)
    core.run(gradient)
    held = [(chunk.log_p is not None, chunk.shift is not None, chunk.single is not None) for chunk in chunks]
    assert set(held) == {(gradient and cache > 0,) * 3} and asked == [True] * gradient


def test_groups_cover_all_rows_in_pieces_of_the_cache() -> None:
    like = torch.zeros(0, dtype=torch.float64)
    width = NEAR // 8 // 4  # four rows fill it
    cut = [(part.start, part.stop) for part in groups(10, width, like)]
    assert cut == [(0, 4), (4, 8), (8, 10)]
    assert [(part.start, part.stop) for part in groups(2, 100 * width, like)] == [(0, 1), (1, 2)]
    assert list(groups(0, width, like)) == []


def test_a_mean_law_of_many_groups_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
    for size in (1, NEAR):
        monkeypatch.setattr("di4c_cli.objective.targets.NEAR", size)
        mean, drawn = averaged(stored(logits.clone(), x, Masked(4)), first, 4, d, uniform)
        torch.testing.assert_close(mean, expected)
        assert drawn is not None
        draws.append(drawn)
    assert torch.equal(*draws)
    known = x.view(3, 4, 5).transpose(1, 2).flatten(0, 1)
    assert torch.equal(draws[0][known < 4], known[known < 4])


def test_slices_of_a_step_fit_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a mask, two positions at a time: the same x_u as all at once."""
    model, count = denoiser("unet", False, 2), 3
    process, length = model.process, model.length
    noise, t = Noise(0, range(BATCH)), torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    x_t = process.prior(noise.uniform("x", length))
    moments = Moments(t, t - 0.2, torch.full_like(t, 0.2), t)
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
    sliced = analytical(prediction, 1, x_t, moments, uniform, budget)
    assert widths == [2] * (length // 2)
    assert torch.equal(analytical(prediction, 1, x_t, moments, uniform, 0), sliced)
    assert widths[-length:] == [1] * length
    assert torch.equal(analytical(prediction, 1, x_t, moments, uniform, 1 << 30), sliced)
