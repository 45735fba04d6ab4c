"""δ, Δt, t and α_t as the paper's experiments draw them."""

from __future__ import annotations

import math

import pytest
import torch
from di4c_cli.objective.settings import Alpha, Delta, Settings, Step, Times
from di4c_cli.objective.times import alpha_at, draw_moments
from scipy import stats

from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.recipe import Objective as Section

MANY = Noise(0, range(8000), "times")
CIFAR = Settings(latents=2, branch="both", delta=Delta(0.01, 0.02, 0.5), step=Step(0.001, 0.01))
MASKGIT = Settings(delta=Delta(0.05, 0.05), step=Step(0.05, 0.05))
SDTT = Settings(
    delta=Delta(0.02, 0.02), step=Step(1 / 1024, 1 / 1024), time=Times(grid=1024, small_share=0.3)
)


def uniform(values: torch.Tensor, low: float, high: float) -> float:
    """p-value of a Kolmogorov-Smirnov test; a true hypothesis is rejected below 1e-4 once in 10 000 seeds."""
    return float(stats.kstest(((values - low) / (high - low)).numpy(), "uniform").pvalue)


def test_pixels() -> None:
    """δ = 0.01 half of the time, else uniform to 0.02; Δt log-uniform; t uniform above 0.01 + Δt."""
    m = draw_moments(CIFAR, MANY)
    assert m.delta.shape == (8000, 2)
    flat = m.delta.flatten()
    at_low = flat == 0.01
    assert abs(float(at_low.double().mean()) - 0.5) < 4.5 * 0.5 / math.sqrt(len(flat))
    assert uniform(flat[~at_low], 0.01, 0.02) > 1e-4
    assert uniform(m.step.log(), math.log(0.001), math.log(0.01)) > 1e-4
    assert uniform((m.t - 0.01 - m.step) / (0.99 - m.step), 0, 1) > 1e-4
    assert float(m.u.min()) >= 0.01 - 1e-15
    torch.testing.assert_close(m.t - m.u, m.step)


def test_maskgit() -> None:
    m = draw_moments(MASKGIT, MANY)
    assert uniform(m.t, 0, 1) > 1e-4
    assert bool((m.step == 0.05).all() and (m.delta == 0.05).all())
    assert bool((m.u == (m.t - 0.05).clamp_min(0)).all())


def test_language_grid() -> None:
    """t = 2^-10 (1 + ⌊2^10 t*⌋): on the grid, never 0, the exact probabilities of the 0.3/0.7 split."""
    m = draw_moments(SDTT, MANY)
    ticks = m.t * 1024
    assert bool((ticks == ticks.round()).all()) and float(ticks.min()) >= 1 and float(ticks.max()) <= 1024
    assert bool((m.u * 1024 == ticks - 1).all())
    # t* is uniform below δ with weight 0.3 and above with 0.7; the tick of t* = 0.02 is shared
    edges = torch.arange(1025, dtype=torch.float64) / 1024
    law = 0.3 * (edges / 0.02).clamp_max(1) + 0.7 * ((edges - 0.02) / 0.98).clamp_min(0)
    expected = torch.diff(law) * 8000
    seen = torch.bincount(ticks.long() - 1, minlength=1024)
    assert stats.chisquare(seen.numpy(), (expected / expected.sum() * 8000).numpy()).pvalue > 1e-4


def test_alpha() -> None:
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    assert alpha_at(Alpha("zero"), t).tolist() == [0, 0, 0]
    assert alpha_at(Alpha("const", 0.3), t).tolist() == [0.3] * 3
    assert alpha_at(Alpha("linear", 2.0), t).tolist() == [0, 1, 2]
    expected = [0.1 / (1 + math.exp(10 - 20 * x)) for x in t.tolist()]
    assert alpha_at(Alpha("sigmoid", 0.1), t).tolist() == pytest.approx(expected, rel=1e-14)


def test_settings_mirror_the_recipe() -> None:
    """The recipe's section, dumped, is the settings: every field, the same defaults."""
    assert Settings.from_dict(Section().model_dump()) == Settings()
    values = {"latents": 4, "delta": {"low": 0.01, "high": 0.02, "at_low": 0.5}, "distil_weight": "1/step"}
    built = Settings.from_dict(Section.model_validate(values).model_dump())
    assert built.delta == Delta(0.01, 0.02, 0.5) and built.distil_weight == "1/step"


@pytest.mark.parametrize(
    "values",
    [
        {"branch": "neither"},
        {"control_variate": "half"},
        {"alpha": {"kind": "cubic"}},
        {"latents": 0},
        {"distil_weight": "often"},
        {"step": {"low": 0.0, "high": 0.0}},
        {"branch": "both", "step": {"low": 0.99, "high": 0.99}},
        {"speed": 3},
    ],
)
def test_bad_settings_are_told(values: dict[str, object]) -> None:
    with pytest.raises(UserError):
        Settings.from_dict(values)


def test_times_do_not_depend_on_the_batch() -> None:
    whole = draw_moments(CIFAR, Noise(3, range(6), "x"))
    part = draw_moments(CIFAR, Noise(3, [4, 1], "x"))
    for name in ("t", "u", "step", "delta"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[[4, 1]])


def test_a_step_that_grows_follows_the_training() -> None:
    settings = Settings(step=Step(0.1, 0.5, grows=True), time=Times(low=0.6))
    for progress, expected in ((0.0, 0.1), (0.25, 0.2), (1.0, 0.5)):
        m = draw_moments(settings, Noise(0, range(50)), progress)
        torch.testing.assert_close(m.step, torch.full_like(m.step, expected))
        torch.testing.assert_close(m.t - m.u, m.step)
