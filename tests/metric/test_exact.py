"""The exact N-step law against sampling and against hand-made laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from di4c_cli import network, process
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.metric.exact import divergence, empirical, enumerable, states, step_distribution, total_variation
from di4c_cli.noise import Noise
from di4c_cli.sampler.loop import sample_batch
from di4c_cli.sampler.plan import SamplingPlan


def _denoiser(latent: bool, length: int = 3, symbols: int = 3) -> Denoiser:
    torch.manual_seed(0)
    settings = {"type": "maskgit", "symbols": symbols, "length": length, "width": 8, "depth": 1, "heads": 2, "mlp": 8}
    if latent:
        settings["latent"] = {"dim": 1, "distribution": "uniform", "inject": "token"}
    net = network.build(settings)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    masked = process.build({"type": "masked", "symbols": symbols, "schedule": "linear"})
    return Denoiser(net, masked, LatentPrior() if latent else None).eval().requires_grad_(False)


@pytest.mark.parametrize("latent", [False, True], ids=["product", "mixture"])
@pytest.mark.parametrize("steps", [1, 3])
def test_step_distribution_is_that_of_the_sampler(latent: bool, steps: int) -> None:
    """3000 samples of 27 states: the distance of a true law from its sample is about 0.04."""
    denoiser = _denoiser(latent)
    law = step_distribution(denoiser, steps, latents=32)
    assert law.sum() == pytest.approx(1.0, abs=1e-6)
    x = sample_batch(denoiser, SamplingPlan(steps=steps, tile=0), Noise(0, range(3000)))
    assert total_variation(empirical(x, 3), law) < 0.07


def test_step_distribution_of_a_product_model_is_the_product_of_its_marginals() -> None:
    denoiser = _denoiser(False)
    x = torch.full((1, 3), 3)
    p = denoiser.predict(x, torch.ones(1, dtype=torch.float64)).dense()[0].double().exp()
    joint = torch.einsum("i,j,k->ijk", p[0], p[1], p[2]).flatten().numpy()
    np.testing.assert_allclose(step_distribution(denoiser, 1), joint, rtol=1e-5)


def test_step_distribution_of_a_mixture_is_the_mean_of_products() -> None:
    """Its law is not a product: that is the point of λ."""
    denoiser = _denoiser(True)
    law = step_distribution(denoiser, 1, latents=64).reshape(3, 3, 3)
    marginals = [law.sum(axis=tuple(a for a in range(3) if a != d)) for d in range(3)]
    product = np.einsum("i,j,k->ijk", *marginals)
    assert total_variation(law.flatten(), product.flatten()) > 1e-4


def test_step_distribution_of_a_markov_process_starts_stationary() -> None:
    torch.manual_seed(0)
    net = network.build({"type": "maskgit", "symbols": 3, "length": 2, "width": 8, "depth": 1, "heads": 2, "mlp": 8})
    uniform = process.build({"type": "uniform", "symbols": 3})
    denoiser = Denoiser(net, uniform).eval().requires_grad_(False)
    assert step_distribution(denoiser, 2).sum() == pytest.approx(1.0, abs=1e-6)


def test_distances_by_hand() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    assert total_variation(p, q) == pytest.approx(0.5)
    assert divergence(p, q) == pytest.approx(np.log(2))
    assert divergence(q, p) == float("inf")
    assert divergence(p, p) == 0


def test_empirical_follows_the_order_of_states() -> None:
    x = states(3, 2)
    law = empirical(torch.cat([x, x[5:6]]), 3)
    assert law.argmax() == 5 and law[5] == pytest.approx(0.2)


def test_step_distribution_rejects_large_spaces() -> None:
    denoiser = _denoiser(False, length=20)
    assert not enumerable(denoiser)
    with pytest.raises(UserError, match="too large"):
        step_distribution(denoiser, 1)
