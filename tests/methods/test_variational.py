"""The variational method: bound against enumeration, KL weight, learned prior, and what a student learns."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.latent.encoder import Encoder
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.methods.base import Loss, MethodSetup
from di4c_cli.methods.config import TimeConfig
from di4c_cli.methods.variational import LOCAL_PRIOR_SAMPLES, PRIOR_SAMPLES, Variational, kl_weight
from di4c_cli.methods.variational_config import KLWeightConfig, VariationalConfig
from di4c_cli.network import build
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from tests.helpers.kernel_inputs import NETWORKS, normal_denoiser, scatter

AT_ONE = TimeConfig(one_share=1.0)


def method_of(model: Denoiser, encoder: Encoder | None = None, **config: Any) -> Variational:
    """The method at t = 1 with an encoder of width 8."""
    values = {"time": AT_ONE, "encoder_width": 8} | config
    method = Variational(VariationalConfig(**values), model)
    if encoder is not None:
        method.encoder = encoder
    return method


def loss_of(method: Variational, x0: Tensor, progress: float = 1.0) -> Loss:
    index = list(range(len(x0)))
    return method.loss(Batch(index, x0), Noise(0, index, "train"), progress)


def some_data(model: Denoiser, count: int) -> Tensor:
    return torch.arange(count * model.length).view(count, -1) % model.symbols


@pytest.mark.parametrize(
    ("kind", "dim", "inject"),
    [(kind, dim, "film") for kind in NETWORKS for dim in (1, 3)] + [("dit", 2, "local"), ("maskgit", 1, "local")],
)
def test_loss_reaches_student_and_encoder(kind: str, dim: int, inject: str) -> None:
    model = normal_denoiser(kind, dim, inject=inject)
    method = method_of(model)
    loss = loss_of(method, some_data(model, 4))
    loss.total.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in method.encoder.net.parameters())
    own = [p.grad for p in model.network.parameters()]
    assert all(grad is not None for grad in own) and sum(float(grad.abs().sum()) for grad in own) > 0
    terms = loss.terms
    torch.testing.assert_close(terms["negative_elbo"], terms["reconstruction"] + terms["kl"])
    torch.testing.assert_close(terms["total"].mean(), loss.total.detach())


def test_negative_elbo_is_above_the_exact_likelihood() -> None:
    """λ is one normal number: log p(x0|x1) by quadrature; E_q[bound] from 4000 draws, within 4 standard errors."""
    model = normal_denoiser("dit", 1)
    method = method_of(model)
    x0 = (torch.arange(model.length) * 3 % model.symbols)[None]
    grid = torch.linspace(-7, 7, 2001, dtype=torch.float64)
    x_1 = torch.full_like(x0, int(model.process.mask or 0))
    with torch.no_grad():
        rows = model.predict(x_1.expand(2001, -1), torch.ones(2001), None, grid).dense()
        single = rows.gather(2, x0.expand(2001, -1)[..., None]).squeeze(-1).sum(1)
        weight = -grid.square() / 2 - math.log(math.sqrt(2 * math.pi)) + math.log(14 / 2000)
        exact = -torch.logsumexp(single + weight, 0)
        draws = loss_of(method, x0.expand(4000, -1)).terms["negative_elbo"]
    error = float(draws.std()) / math.sqrt(len(draws))
    gap = float(draws.mean() - exact)
    assert gap > -4 * error
    assert gap < 5  # and not far above it: KL(q ‖ posterior) of an untrained q


@pytest.mark.parametrize("inject", ["film", "local"])
def test_iwae_samples_give_the_importance_weighted_bound(inject: str) -> None:
    """Value and gradient against the written formula, at β = 1/2."""
    model = normal_denoiser("dit", 2, inject=inject)
    method = method_of(model, iwae_samples=4, kl_weight=KLWeightConfig(start=0.5))
    q, x0 = method.encoder, some_data(model, 3)
    index, trained = [0, 1, 2], [*model.network.parameters(), *q.parameters()]
    noise = Noise(0, index, "train")
    loss = method.loss(Batch(index, x0), noise, 0.0)
    ours = torch.autograd.grad(loss.total, trained, allow_unused=True)

    x_1 = torch.full_like(x0, int(model.process.mask or 0))
    mean, log_variance = q(x0, x_1)
    size = mean.shape[1]
    prior = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    law = torch.distributions.Normal(mean[:, None], (log_variance / 2).exp()[:, None])
    lam = law.loc + law.scale * noise.normal("lam/posterior", 4, size).to(mean)
    rows = model.predict(x_1.repeat_interleave(4, 0), torch.ones(12), None, lam.flatten(0, 1)).dense()
    log_p = rows.gather(2, x0.repeat_interleave(4, 0)[..., None]).squeeze(-1).sum(1).view(3, 4)
    ratio = prior.log_prob(lam).sum(-1) - law.log_prob(lam).sum(-1)
    each = -(torch.logsumexp(log_p + 0.5 * ratio, 1) - math.log(4))
    torch.testing.assert_close(loss.terms["total"], each.detach())
    torch.testing.assert_close(loss.total.detach(), each.detach().mean())
    torch.testing.assert_close(loss.terms["negative_elbo"], -(torch.logsumexp(log_p + ratio, 1) - math.log(4)).detach())
    for mine, exact in zip(ours, torch.autograd.grad(each.mean(), trained, allow_unused=True)):
        if exact is not None:
            torch.testing.assert_close(mine, exact, rtol=1e-6, atol=1e-9)


def test_kl_weight_rises_linearly_to_one() -> None:
    config = KLWeightConfig(start=0.1, anneal_from=0.2, anneal_until=0.6)
    shown = [round(kl_weight(config, p), 6) for p in (0.0, 0.2, 0.3, 0.4, 0.6, 1.0)]
    assert shown == [0.1, 0.1, 0.25, 0.5, 1.0, 1.0]
    assert kl_weight(KLWeightConfig(anneal_from=0.0, anneal_until=0.0), 0.0) == 1.0
    jump = KLWeightConfig(start=0.1, anneal_from=0.6, anneal_until=0.6)
    assert [kl_weight(jump, p) for p in (0.0, 0.59, 0.6, 1.0)] == [0.1, 0.1, 1.0, 1.0]


def test_kl_weight_enters_the_loss() -> None:
    model = normal_denoiser("dit", 2)
    method = method_of(model, kl_weight=KLWeightConfig(start=0.1, anneal_from=0.2, anneal_until=0.6))
    for progress, beta in ((0.0, 0.1), (0.4, 0.5), (1.0, 1.0)):
        loss = loss_of(method, some_data(model, 4), progress)
        expected = loss.terms["reconstruction"] + beta * loss.terms["kl"]
        torch.testing.assert_close(loss.terms["total"], expected)
        torch.testing.assert_close(loss.total.detach(), expected.mean())


@pytest.mark.parametrize(
    "values",
    [
        {"kl_weight": {"anneal_from": 0.6, "anneal_until": 0.5}},
        {"kl_weight": {"start": 1.1}},
        {"iwae_samples": 0},
        {"encoder_width": 0},
        {"time": {"small_share": 0.3}},
        {"latents": 4},
    ],
)
def test_variational_config_rejects_bad_values(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        VariationalConfig.model_validate(values)


def test_loss_of_a_sample_does_not_depend_on_the_others() -> None:
    model = normal_denoiser("maskgit", 2)
    method, x0 = method_of(model, time=TimeConfig(low=0.3, one_share=0.5)), some_data(model, 6)
    whole = loss_of(method, x0).terms
    part = method.loss(Batch([4, 1], x0[[4, 1]]), Noise(0, [4, 1], "train")).terms
    for name in ("negative_elbo", "kl", "reconstruction"):
        torch.testing.assert_close(part[name], whole[name][[4, 1]], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dim", "inject"), [(1, "film"), (3, "film"), (2, "local")])
def test_latents_are_samples_of_the_encoder(dim: int, inject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = mean + exp(log variance / 2) ε with the sample's own ε; one number a sample if there is one dimension."""
    model, seen = normal_denoiser("dit", dim, inject=inject), []
    dim *= model.length if inject == "local" else 1
    method, x0 = method_of(model), some_data(model, 4)
    predict = model.predict
    monkeypatch.setattr(model, "predict", lambda *given: seen.append(given[3]) or predict(*given))
    loss_of(method, x0)
    mean, log_variance = method.encoder(x0, torch.full_like(x0, int(model.process.mask or 0)))
    noise = Noise(0, range(4), "train").normal("lam/posterior", dim)
    expected = torch.distributions.Normal(mean, (log_variance / 2).exp()).icdf(
        torch.distributions.Normal(0.0, 1.0).cdf(noise)
    )
    assert seen[-1].shape == ((4,) if dim == 1 else (4, dim))
    torch.testing.assert_close(seen[-1].view(4, dim), expected.to(seen[-1]))


@pytest.mark.slow
def test_student_learns_two_bits_that_agree() -> None:
    """x0 is 00 or 11: a product gets at most half the mass right, the mixture most in one step."""
    size = {"width": 16, "depth": 1, "heads": 2, "mlp": 32}
    latent = {"inject": "film", "dim": 1, "distribution": "normal", "features": "raw"}
    torch.manual_seed(0)
    network = build({"type": "maskgit", "symbols": 2, "length": 2, **size, "latent": latent})
    scatter(network, 0, 0.2)
    network.init_latent(0.5, torch.Generator().manual_seed(0))  # type: ignore[operator]
    model = Denoiser(network, Masked(2), LatentPrior(1, "normal"))
    method = method_of(model, encoder_width=16)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-2)
    for step in range(200):
        index = list(range(32 * step, 32 * step + 32))
        x0 = (torch.tensor(index) % 2)[:, None].expand(-1, 2)
        noise = Noise(0, index, "train")
        loss = method.loss(Batch(index, x0), noise, step / 200)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    lam = Noise(1, range(4000)).normal("lam").float()
    with torch.no_grad():
        law = model.predict(torch.full((4000, 2), 2), torch.ones(4000), None, lam).dense().exp()
    joint = {pair: float((law[:, 0, pair[0]] * law[:, 1, pair[1]]).mean()) for pair in product((0, 1), repeat=2)}
    assert joint[0, 0] + joint[1, 1] > 0.8
    assert min(joint[0, 0], joint[1, 1]) > 0.3


@pytest.mark.parametrize("inject", ["film", "local"])
def test_prior_loss_trains_the_learned_prior_alone(inject: str) -> None:
    """Its loss against the written formula; the bound and the encoder are as without it."""
    model, plain = (normal_denoiser("maskgit", 2, inject=inject, prior_width=width) for width in (4, None))
    own = model.network.state_dict()
    own.update(plain.network.state_dict())
    model.network.load_state_dict(own)
    prior = model.learned_prior
    assert prior is not None
    torch.nn.init.normal_(prior.mean.weight)
    q, x0 = method_of(model).encoder, some_data(model, 4)
    index, label, noise = list(range(4)), torch.tensor([0, -1, 2, 1]), Noise(0, range(4), "train")
    losses = [method_of(m, q).loss(Batch(index, x0, label), noise) for m in (model, plain)]
    shared = ("reconstruction", "kl", "negative_elbo")
    assert all(torch.equal(losses[0].terms[name], losses[1].terms[name]) for name in shared)
    assert "prior_loss" not in losses[1].terms

    with torch.no_grad():
        x_1 = torch.full_like(x0, int(model.process.mask or 0))
        mean, log_variance = q(x0, x_1)
        count = LOCAL_PRIOR_SAMPLES if inject == "local" else PRIOR_SAMPLES
        draw = noise.normal("law", count, 2, mean.shape[1])
        expected = torch.zeros(4, dtype=torch.float64)
        for k in range(count):
            lam = mean + (log_variance / 2).exp() * draw[:, k, 0]
            lam = lam - prior.conditional_mean(torch.ones(4), label)
            expected += lam.square().mean(1) / count
            x, target = ((lam + sign * draw[:, k, 1]) / math.sqrt(2) for sign in (1, -1))
            expected += (prior(x, x_1, torch.ones(4), label) - target).square().mean(1) / count
    torch.testing.assert_close(losses[0].terms["prior_loss"], expected)
    torch.testing.assert_close(losses[0].total - losses[1].total, expected.mean())
    torch.testing.assert_close(losses[0].terms["total"].mean(), losses[0].total.detach())

    grads = [torch.autograd.grad(loss.total, [*q.parameters()], retain_graph=True) for loss in losses]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    grads_of_prior = torch.autograd.grad(losses[0].total, [*prior.parameters()])
    assert all(bool(grad.any()) for grad in grads_of_prior)


def test_method_needs_no_teacher_and_trains_its_encoder() -> None:
    model = normal_denoiser("dit", 2)
    method = Variational(VariationalConfig(encoder_width=8), model, None, MethodSetup())
    assert not VariationalConfig.needs_teacher and method._frozen == (None,)
    own = {id(p) for part in (model, method.encoder) for p in part.parameters()}
    assert {id(p) for p in method.parameters()} == own


@pytest.mark.parametrize("latent", [LatentPrior(1, "uniform"), None])
def test_method_rejects_a_latent_that_is_not_normal(latent: LatentPrior | None) -> None:
    """Recipes are checked; a mixture teacher brings its own λ."""
    model = normal_denoiser("dit", 1)
    model.latent = latent
    with pytest.raises(UserError, match="normal"):
        method_of(model)


def test_resolve_latent_presents_raw_numbers() -> None:
    config, scalar = VariationalConfig(), LatentConfig(distribution="normal")
    assert config.resolve_latent(scalar).presentation == "raw" and scalar.features is None
    for wrong in (LatentConfig(), LatentConfig(distribution="normal", features="sinusoid")):
        with pytest.raises(ValueError, match=r"needs latent\.distribution: normal and latent\.features: raw"):
            config.check_latent(wrong)
    config.check_latent(scalar)


def test_encoder_weights_come_from_seed_and_round() -> None:
    model, config = normal_denoiser("dit", 2), VariationalConfig(encoder_width=8)
    first, again, other, later = (
        Variational(config, model, None, setup).encoder.clean.weight
        for setup in (MethodSetup(), MethodSetup(), MethodSetup(seed=1), MethodSetup(round_number=2))
    )
    assert torch.equal(first, again) and not torch.equal(first, other) and not torch.equal(first, later)


def test_loss_without_data_says_how_to_get_some() -> None:
    with pytest.raises(UserError, match="needs data"):
        method_of(normal_denoiser("dit", 1)).loss(Batch([0, 1]), Noise(0, [0, 1], "train"))
