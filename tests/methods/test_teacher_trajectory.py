"""Steps of the teacher: its trajectory against enumeration, its confidence step against the written rule."""

from __future__ import annotations

import itertools
from itertools import pairwise

import pytest
import torch
from scipy import stats
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.methods.di4c_times import SampledTimes
from di4c_cli.methods.noised_batch import teacher_trajectory
from di4c_cli.methods.teacher_step import confidence_teacher_step, teacher_predictions
from di4c_cli.noise import Noise
from tests.helpers.enumerable import NOISY, PLACES, SYMBOLS, configurations, student, teacher
from tests.helpers.kernel_inputs import denoiser


def exact_trajectory(theirs: Denoiser, times: list[float]) -> Tensor:
    """Law over the 64 configurations of the teacher's steps through `times`, by enumeration."""
    law = torch.zeros(len(NOISY), dtype=torch.float64)
    law[-1] = 1.0  # everything masked
    with torch.no_grad():
        p0 = theirs.predict(NOISY, torch.zeros(len(NOISY))).dense().exp()
    for t, s in pairwise(times):
        now, below = (torch.full((len(NOISY),), value, dtype=torch.float64) for value in (t, s))
        law = law @ configurations_each(theirs.process.posterior(p0, NOISY, now, below))
    return law


def configurations_each(factors: Tensor) -> Tensor:
    """Product laws `(N, D, states)` over all 64 configurations: `(N, 64)`."""
    return configurations(factors, NOISY)


def test_teacher_trajectory_has_the_distribution_of_its_grid() -> None:
    """x_t after 1, ¾, ½, 0.3 and x0 after 0.3, ¼, 0: chi-square against enumeration, level 1e-4 each."""
    theirs, count = teacher(), 3000
    t = torch.full((count,), 0.3, dtype=torch.float64)
    x_t, x0 = teacher_trajectory(theirs, None, t, 4, Noise(0, range(count), "train"), to_zero=True)
    assert x0 is not None
    for x, times in ((x_t, [1, 0.75, 0.5, 0.3]), (x0, [1, 0.75, 0.5, 0.3, 0.25, 0])):
        law = exact_trajectory(theirs, [float(value) for value in times])
        seen = torch.bincount((x * PLACES).sum(-1), minlength=len(NOISY)).double()
        possible = law > 1e-12
        assert float(seen[~possible].sum()) == 0
        expected = count * law[possible] / law[possible].sum()
        assert stats.chisquare(seen[possible].numpy(), expected.numpy()).pvalue > 1e-4
    kept = x_t != SYMBOLS
    assert torch.equal(x0[kept], x_t[kept])


def test_teacher_trajectory_of_a_sample_does_not_depend_on_the_others() -> None:
    theirs = student(seed=4)  # a mixture teacher: a fresh λ for every step
    t = torch.linspace(0.05, 0.95, 6, dtype=torch.float64)
    whole = teacher_trajectory(theirs, None, t, 4, Noise(1, range(6), "x"), to_zero=True)
    part = teacher_trajectory(theirs, None, t[[4, 1]], 4, Noise(1, [4, 1], "x"), to_zero=True)
    for all_samples, some in zip(whole, part):
        assert all_samples is not None and some is not None and torch.equal(some, all_samples[[4, 1]])


@pytest.mark.parametrize("each", [1, 2], ids=["product", "mixture"])
def test_confidence_step_has_the_noise_of_its_length(each: int) -> None:
    """c_gb = 4.5 (t - Δt) / (1 - Δt), as in a sampler of 1/Δt steps; no noise in a step over all times."""
    theirs, count = denoiser("maskgit", each > 1, 2), 2
    noise = Noise(4, range(40))
    t = torch.linspace(0.55, 1, 40, dtype=torch.float64)
    step = torch.tensor([1.0, 0.5, 0.25, 0.2], dtype=torch.float64).repeat(10)
    times = SampledTimes(t, (t - step).clamp_min(0), step, step)
    x_t = torch.full((40, theirs.length), 7)
    with torch.no_grad():
        prediction, made = teacher_predictions(theirs, x_t, t, None, count, noise)
    assert made == each
    x_u = confidence_teacher_step(prediction, each, x_t, times, noise, count)
    scale = 4.5 * ((t - step) / (1 - step)).nan_to_num(posinf=0.0, neginf=0.0).clamp_min(0)
    log_p = prediction.dense().view(40, each, 1, theirs.length, 7)
    drawn = (log_p.exp().cumsum(-1) > noise.uniform("step/u", count, theirs.length)[:, None, ..., None]).double()
    value = drawn.argmax(-1)  # (B, each, L, D)
    sure = log_p.expand(-1, -1, count, -1, -1).gather(-1, value[..., None]).squeeze(-1)
    sure = sure + scale[:, None, None, None] * noise.gumbel("step/gumbel", count, theirs.length)[:, None]
    number = ((5 * t).round() - (5 * times.u).round()).clamp_min(1).long()
    for b, j in itertools.product(range(40), range(count)):
        k = j if each > 1 else 0
        shown = sure[b, k, j].topk(int(number[b])).indices
        expected = x_t[b].clone()
        expected[shown] = value[b, k, j, shown]
        assert torch.equal(x_u[b, j], expected)
