"""The encoder q(λ|x0, x_t): its KL divergence, its receptive field, its bounds and its initialisation."""

from __future__ import annotations

import pytest
import torch

from di4c_cli.denoiser import Denoiser
from di4c_cli.latent.encoder import Encoder, kl_to_standard_normal
from di4c_cli.latent.prior import LatentPrior
from tests.helpers.kernel_inputs import normal_denoiser


def encoder_of(model: Denoiser, width: int = 8, seed: str = "q") -> Encoder:
    assert model.latent is not None
    return Encoder(model.latent, model.process.states, model.length, width, seed).to(model.dtype)


def test_kl_to_standard_normal_is_zero_for_the_prior_and_else_positive() -> None:
    zero = torch.zeros(5, 3)
    assert torch.equal(kl_to_standard_normal(zero, zero), torch.zeros(5))
    mean, log_variance = torch.randn(1000, 3), torch.randn(1000, 3)
    assert bool((kl_to_standard_normal(mean, log_variance) > 0).all())
    normal = torch.distributions.Normal
    known = torch.distributions.kl_divergence(normal(mean, (log_variance / 2).exp()), normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(kl_to_standard_normal(mean, log_variance), known)


def test_local_encoder_sees_its_neighbours_only() -> None:
    """Two layers with a reach of three: a symbol tells the numbers of λ up to six places away, and no others."""
    q = Encoder(LatentPrior(2, "normal", 20), 6, 20, 8, "q").double()
    x0, x_t = torch.arange(20)[None] % 5, torch.full((1, 20), 5)
    other = x0.clone()
    other[0, 10] = (other[0, 10] + 1) % 5
    before, after = (torch.stack(q(x, x_t)).view(2, 20, 2) for x in (x0, other))
    touched = (before != after).any(2).any(0)
    assert touched.nonzero().flatten().tolist() == list(range(4, 17))


def test_encoder_under_autocast_gives_float32() -> None:
    """Under autocast the layers of q may be coarse; what is added up over thousands of numbers is not."""
    q = encoder_of(normal_denoiser("dit", 2, torch.float32, inject="local"))
    with torch.autocast("cpu", torch.bfloat16):
        mean, log_variance = q(*torch.zeros(2, 1, 6, dtype=torch.long))
    assert mean.dtype == log_variance.dtype == torch.float32


def test_encoder_starts_near_the_prior_and_bounds_its_variance() -> None:
    model = normal_denoiser("dit", 2)
    last = encoder_of(model, width=256).net[-1]
    assert last.weight.std().item() == pytest.approx(0.05, rel=0.1) and not bool(last.bias.any())
    q = encoder_of(model)
    for size in (-1e3, 1e3):
        torch.nn.init.constant_(q.net[-1].bias, size)
        mean, log_variance = q(*torch.zeros(2, 1, model.length, dtype=torch.long))
        torch.testing.assert_close(log_variance, torch.full_like(log_variance, 5.0 if size > 0 else -5.0))
        assert bool((mean.abs() > 900).all())


def test_encoder_weights_come_from_the_seed_alone() -> None:
    model = normal_denoiser("dit", 2)
    first = encoder_of(model, seed="a")
    torch.rand(7)
    again, other = encoder_of(model, seed="a"), encoder_of(model, seed="b")
    assert all(torch.equal(p, r) for p, r in zip(first.parameters(), again.parameters()))
    assert not torch.equal(first.net[0].weight, other.net[0].weight)
