"""δ, Δt, t and α_t as the paper's experiments draw them."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from di4c_cli.methods.config import TimeConfig
from di4c_cli.methods.di4c_config import AlphaConfig, DeltaConfig, Di4CConfig, SplitTimeConfig, StepConfig
from di4c_cli.methods.di4c_times import alpha_at, sample_times
from di4c_cli.methods.times import sample_time
from di4c_cli.noise import Noise

MANY = Noise(0, range(8000), "times")
CIFAR = Di4CConfig(
    latents=2, branch="both", delta=DeltaConfig(low=0.01, high=0.02, at_low=0.5), step=StepConfig(low=0.001, high=0.01)
)
MASKGIT = Di4CConfig(delta=DeltaConfig(low=0.05, high=0.05), step=StepConfig(low=0.05, high=0.05))
SDTT = Di4CConfig(
    delta=DeltaConfig(low=0.02, high=0.02),
    step=StepConfig(low=1 / 1024, high=1 / 1024),
    time=SplitTimeConfig(grid=1024, small_share=0.3),
)


def uniform(values: torch.Tensor, low: float, high: float) -> float:
    """p-value of a Kolmogorov-Smirnov test; a true hypothesis is rejected below 1e-4 once in 10 000 seeds."""
    return float(stats.kstest(((values - low) / (high - low)).numpy(), "uniform").pvalue)


def test_sample_times_of_pixels() -> None:
    """δ = 0.01 half of the time, else uniform to 0.02; Δt log-uniform; t uniform above 0.01 + Δt."""
    m = sample_times(CIFAR, MANY)
    assert m.delta.shape == (8000, 2)
    flat = m.delta.flatten()
    at_low = flat == 0.01
    assert abs(float(at_low.double().mean()) - 0.5) < 4.5 * 0.5 / math.sqrt(len(flat))
    assert uniform(flat[~at_low], 0.01, 0.02) > 1e-4
    assert uniform(m.step.log(), math.log(0.001), math.log(0.01)) > 1e-4
    assert uniform((m.t - 0.01 - m.step) / (0.99 - m.step), 0, 1) > 1e-4
    assert float(m.u.min()) >= 0.01 - 1e-15
    torch.testing.assert_close(m.t - m.u, m.step)


def test_sample_times_of_maskgit() -> None:
    m = sample_times(MASKGIT, MANY)
    assert uniform(m.t, 0, 1) > 1e-4
    assert bool((m.step == 0.05).all() and (m.delta == 0.05).all())
    assert bool((m.u == (m.t - 0.05).clamp_min(0)).all())


def test_sample_times_of_language_stay_on_the_grid() -> None:
    """t = 2^-10 (1 + ⌊2^10 t*⌋): on the grid, never 0, the exact probabilities of the 0.3/0.7 split."""
    m = sample_times(SDTT, MANY)
    ticks = m.t * 1024
    assert bool((ticks == ticks.round()).all()) and float(ticks.min()) >= 1 and float(ticks.max()) <= 1024
    assert bool((m.u * 1024 == ticks - 1).all())
    # t* is uniform below δ with weight 0.3 and above with 0.7; the tick of t* = 0.02 is shared
    edges = torch.arange(1025, dtype=torch.float64) / 1024
    law = 0.3 * (edges / 0.02).clamp_max(1) + 0.7 * ((edges - 0.02) / 0.98).clamp_min(0)
    expected = torch.diff(law) * 8000
    seen = torch.bincount(ticks.long() - 1, minlength=1024)
    assert stats.chisquare(seen.numpy(), (expected / expected.sum() * 8000).numpy()).pvalue > 1e-4


def test_alpha_at_gives_every_kind() -> None:
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    assert alpha_at(AlphaConfig(kind="zero"), t).tolist() == [0, 0, 0]
    assert alpha_at(AlphaConfig(kind="const", scale=0.3), t).tolist() == [0.3] * 3
    assert alpha_at(AlphaConfig(kind="linear", scale=2.0), t).tolist() == [0, 1, 2]
    expected = [0.1 / (1 + math.exp(10 - 20 * x)) for x in t.tolist()]
    assert alpha_at(AlphaConfig(kind="sigmoid", scale=0.1), t).tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    "values",
    [
        {"branch": "neither"},
        {"control_variate": "half"},
        {"alpha": {"kind": "cubic"}},
        {"latents": 0},
        {"distil_weight": "often"},
        {"step": {"low": 0.0, "high": 0.0}},
        {"step": {"low": 0.2, "high": 0.1}},
        {"delta": {"low": 0.2, "high": 0.1}},
        {"distil_weight": -1.0},
        {"time": {"grid": 1}},
        {"branch": "both", "step": {"low": 0.99, "high": 0.99}},
        {"speed": 3},
    ],
)
def test_di4c_config_rejects_bad_values(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Di4CConfig.model_validate(values)


def test_sample_times_do_not_depend_on_the_batch() -> None:
    whole = sample_times(CIFAR, Noise(3, range(6), "x"))
    part = sample_times(CIFAR, Noise(3, [4, 1], "x"))
    for name in ("t", "u", "step", "delta"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[[4, 1]])


def test_sample_times_with_a_growing_step_follow_the_progress() -> None:
    config = Di4CConfig(step=StepConfig(low=0.1, high=0.5, grows=True), time=SplitTimeConfig(low=0.6))
    for progress, expected in ((0.0, 0.1), (0.25, 0.2), (1.0, 0.5)):
        m = sample_times(config, Noise(0, range(50)), progress)
        torch.testing.assert_close(m.step, torch.full_like(m.step, expected))
        torch.testing.assert_close(m.t - m.u, m.step)


@pytest.mark.parametrize("method", ["di4c", "variational"])
def test_one_share_puts_times_at_one(method: str) -> None:
    noise = Noise(0, range(2000))
    if method == "di4c":
        t = sample_times(Di4CConfig(time=SplitTimeConfig(low=0.2, one_share=0.5)), noise).t
    else:
        t = sample_time(TimeConfig(low=0.2, one_share=0.5), noise)
    share = float((t == 1).double().mean())
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / 2000)
    assert float(t.min()) >= 0.2


def test_sample_time_draws_as_sample_times() -> None:
    """Both methods draw the same t from the same noise, so that their students see the same x_t."""
    noise = Noise(3, range(500))
    for values in ({"low": 0.1}, {"grid": 8}, {"grid": 8, "one_share": 0.3}):
        both = sample_times(Di4CConfig(time=SplitTimeConfig(**values)), noise).t
        assert torch.equal(sample_time(TimeConfig(**values), noise), both)
