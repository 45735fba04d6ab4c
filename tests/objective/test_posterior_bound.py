"""The amortised posterior: its bound against enumeration, its price, and what it teaches a student."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from di4c_cli.data.batch import Batch
from di4c_cli.denoiser import Denoiser, Latent
from di4c_cli.errors import UserError
from di4c_cli.network import build
from di4c_cli.noise import Noise
from di4c_cli.objective.loss import Loss, Objective
from di4c_cli.objective.posterior import LESSONS, LESSONS_LOCAL, Posterior, divergence, price
from di4c_cli.objective.settings import Alpha, PosteriorSettings, Settings, Span, Times
from di4c_cli.process import Gaussian, Masked
from tests.helpers.worlds import NETWORKS, scatter

ALONE = Settings(
    latents=1,
    distil_weight=0.0,
    consis_weight=0.0,
    marginal_weight=0.0,
    alpha=Alpha("zero"),
    time=Times(one_share=1.0),
    posterior=PosteriorSettings(),
)


def mixture(
    kind: str,
    dim: int,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    inject: str = "film",
    law: int | None = None,
) -> Denoiser:
    latent = {"inject": inject, "dim": dim, "distribution": "normal", "features": "raw", "law": law}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build({**NETWORKS[kind], "latent": latent}).to(dtype)
    scatter(network, seed, 0.2)
    symbols = int(str(NETWORKS[kind]["symbols"]))
    process = Gaussian(symbols) if kind == "unet" else Masked(symbols)
    places = int(str(NETWORKS[kind]["length"])) if inject == "local" else 1
    return Denoiser(network, process, Latent(dim, "normal", places), labels=3 if kind == "maskgit" else None)


def loss_of(model: Denoiser, q: Posterior, x0: Tensor, settings: Settings = ALONE, seed: int = 0) -> Loss:
    index = list(range(len(x0)))
    return Objective(settings)(model, model, Batch(index, x0), Noise(seed, index, "train"), posterior=q)


def posterior_of(model: Denoiser, width: int = 8, seed: str = "q") -> Posterior:
    return Posterior(model, width, seed).to(model.dtype)


@pytest.mark.parametrize(
    ("kind", "dim", "inject"),
    [(kind, dim, "film") for kind in NETWORKS for dim in (1, 3)]
    + [("dit", 2, "local"), ("maskgit", 1, "local")],
)
def test_bound_reaches_student_and_posterior(kind: str, dim: int, inject: str) -> None:
    model = mixture(kind, dim, inject=inject)
    q = posterior_of(model)
    x0 = torch.arange(4 * model.length).view(4, -1) % model.symbols
    loss = loss_of(model, q, x0)
    loss.total.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in q.net.parameters())
    own = [p.grad for p in model.network.parameters()]
    assert all(grad is not None for grad in own) and sum(float(grad.abs().sum()) for grad in own) > 0
    terms = loss.terms
    torch.testing.assert_close(terms["bound"], terms["explained"] + terms["kl"])
    torch.testing.assert_close(terms["total"].mean(), loss.total.detach())


def test_bound_is_above_the_exact_likelihood() -> None:
    """λ is one normal number: log p(x0|x1) by quadrature; E_q[bound] from 4000 draws, within 4 standard errors."""
    model = mixture("dit", 1)
    q = posterior_of(model)
    x0 = (torch.arange(model.length) * 3 % model.symbols)[None]
    grid = torch.linspace(-7, 7, 2001, dtype=torch.float64)
    x_1 = torch.full_like(x0, int(model.process.mask or 0))
    with torch.no_grad():
        rows = model.predict(x_1.expand(2001, -1), torch.ones(2001), None, grid).dense()
        single = rows.gather(2, x0.expand(2001, -1)[..., None]).squeeze(-1).sum(1)
        weight = -grid.square() / 2 - math.log(math.sqrt(2 * math.pi)) + math.log(14 / 2000)
        exact = -torch.logsumexp(single + weight, 0)
        draws = loss_of(model, q, x0.expand(4000, -1)).terms["bound"]
    error = float(draws.std()) / math.sqrt(len(draws))
    gap = float(draws.mean() - exact)
    assert gap > -4 * error
    assert gap < 5  # and not far above it: KL(q ‖ posterior) of an untrained q


@pytest.mark.parametrize("inject", ["film", "local"])
def test_several_draws_give_the_importance_weighted_bound(inject: str) -> None:
    """Value and gradient against the written formula, at a price of one half."""
    model = mixture("dit", 2, inject=inject)
    q = posterior_of(model)
    x0 = torch.arange(3 * model.length).view(3, -1) % model.symbols
    settings = replace(ALONE, posterior=PosteriorSettings(weight=2.0, draws=4, floor=0.5))
    index, trained = [0, 1, 2], [*model.network.parameters(), *q.parameters()]
    noise = Noise(0, index, "train")
    loss = Objective(settings)(model, model, Batch(index, x0), noise, posterior=q, progress=0.0)
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
    torch.testing.assert_close(loss.terms["total"], 2 * each.detach())
    torch.testing.assert_close(loss.total.detach(), 2 * each.detach().mean())
    torch.testing.assert_close(
        loss.terms["bound"], -(torch.logsumexp(log_p + ratio, 1) - math.log(4)).detach()
    )
    for mine, exact in zip(ours, torch.autograd.grad(2 * each.mean(), trained, allow_unused=True)):
        if exact is not None:
            torch.testing.assert_close(mine, exact, rtol=1e-6, atol=1e-9)


def test_a_posterior_equal_to_the_prior_costs_nothing() -> None:
    zero = torch.zeros(5, 3)
    assert torch.equal(divergence(zero, zero), torch.zeros(5))
    mean, log_variance = torch.randn(1000, 3), torch.randn(1000, 3)
    assert bool((divergence(mean, log_variance) > 0).all())
    normal = torch.distributions.Normal
    known = torch.distributions.kl_divergence(normal(mean, (log_variance / 2).exp()), normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(divergence(mean, log_variance), known)


def test_price_rises_to_one() -> None:
    settings = PosteriorSettings(floor=0.1, rise=Span(0.2, 0.6))
    shown = [round(price(settings, p), 6) for p in (0.0, 0.2, 0.3, 0.4, 0.6, 1.0)]
    assert shown == [0.1, 0.1, 0.25, 0.5, 1.0, 1.0]
    assert price(PosteriorSettings(rise=Span(0.0, 0.0)), 0.0) == 1.0
    jump = PosteriorSettings(floor=0.1, rise=Span(0.6, 0.6))
    assert [price(jump, p) for p in (0.0, 0.59, 0.6, 1.0)] == [0.1, 0.1, 1.0, 1.0]


def test_a_sample_does_not_see_the_others() -> None:
    model = mixture("maskgit", 2)
    q = posterior_of(model)
    x0 = torch.arange(6 * model.length).view(6, -1) % model.symbols
    settings = Settings(**{**ALONE.__dict__, "time": Times(low=0.3, one_share=0.5)})
    whole = loss_of(model, q, x0, settings).terms
    part = Objective(settings)(
        model, model, Batch([4, 1], x0[[4, 1]]), Noise(0, [4, 1], "train"), posterior=q
    ).terms
    for name in ("bound", "kl", "explained"):
        torch.testing.assert_close(part[name], whole[name][[4, 1]], rtol=0, atol=1e-10)


def test_beside_the_other_terms() -> None:
    """The bound adds to a loss that has weights of its own."""
    model = mixture("dit", 2)
    q = posterior_of(model)
    x0 = torch.arange(4 * model.length).view(4, -1) % model.symbols
    both = Settings(latents=3, time=Times(low=0.5), posterior=PosteriorSettings(weight=0.5))
    index = list(range(4))
    arguments = (model, model, Batch(index, x0), Noise(0, index, "train"))
    together = Objective(both)(*arguments, posterior=q)
    without = Objective(both)(*arguments)
    alone = 0.5 * together.terms["bound"].mean()
    torch.testing.assert_close(together.total.detach(), without.total.detach() + alone)


def test_one_share_puts_times_at_one() -> None:
    from di4c_cli.objective.times import draw_moments

    settings = Settings(time=Times(low=0.2, one_share=0.5))
    t = draw_moments(settings, Noise(0, range(2000))).t
    share = float((t == 1).double().mean())
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / 2000)
    assert float(t.min()) >= 0.2


@pytest.mark.parametrize(("dim", "inject"), [(1, "film"), (3, "film"), (2, "local")])
def test_latents_are_drawn_from_q(dim: int, inject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = mean + exp(log variance / 2) ε with the sample's own ε; one number a sample if there is one dimension."""
    model, seen = mixture("dit", dim, inject=inject), []
    dim *= model.length if inject == "local" else 1
    q = posterior_of(model)
    x0 = torch.arange(4 * model.length).view(4, -1) % model.symbols
    predict = model.predict
    monkeypatch.setattr(model, "predict", lambda *given: seen.append(given[3]) or predict(*given))
    loss_of(model, q, x0)
    mean, log_variance = q(x0, torch.full_like(x0, int(model.process.mask or 0)))
    noise = Noise(0, range(4), "train").normal("lam/posterior", dim)
    expected = torch.distributions.Normal(mean, (log_variance / 2).exp()).icdf(
        torch.distributions.Normal(0.0, 1.0).cdf(noise)
    )
    assert seen[-1].shape == ((4,) if dim == 1 else (4, dim))
    torch.testing.assert_close(seen[-1].view(4, dim), expected.to(seen[-1]))


def test_a_local_q_hears_its_neighbours_alone() -> None:
    """Two layers with a reach of three: a symbol tells the numbers of λ up to six places away, and no others."""
    latent = {"inject": "local", "dim": 2, "distribution": "normal", "features": "raw"}
    network = build(
        {
            "type": "dit",
            "symbols": 5,
            "length": 20,
            "width": 8,
            "depth": 1,
            "heads": 2,
            "cond_dim": 4,
            "latent": latent,
        }
    )
    q = Posterior(Denoiser(network, Masked(5), Latent(2, "normal", 20)), 8, "q").double()
    x0, x_t = torch.arange(20)[None] % 5, torch.full((1, 20), 5)
    other = x0.clone()
    other[0, 10] = (other[0, 10] + 1) % 5
    before, after = (torch.stack(q(x, x_t)).view(2, 20, 2) for x in (x0, other))
    touched = (before != after).any(2).any(0)
    assert touched.nonzero().flatten().tolist() == list(range(4, 17))


def test_half_precision_does_not_touch_the_law() -> None:
    """Under autocast the layers of q may be coarse; what is added up over thousands of numbers is not."""
    q = posterior_of(mixture("dit", 2, torch.float32, inject="local"))
    with torch.autocast("cpu", torch.bfloat16):
        mean, log_variance = q(*torch.zeros(2, 1, 6, dtype=torch.long))
    assert mean.dtype == log_variance.dtype == torch.float32


def test_q_starts_near_the_prior_and_stays_in_bounds() -> None:
    model = mixture("dit", 2)
    last = posterior_of(model, width=256).net[-1]
    assert float(last.weight.std()) == pytest.approx(0.05, rel=0.1) and not bool(last.bias.any())
    q = posterior_of(model)
    for size in (-1e3, 1e3):
        torch.nn.init.constant_(q.net[-1].bias, size)
        mean, log_variance = q(*torch.zeros(2, 1, model.length, dtype=torch.long))
        torch.testing.assert_close(log_variance, torch.full_like(log_variance, 5.0 if size > 0 else -5.0))
        assert bool((mean.abs() > 900).all())


def test_weights_of_q_come_from_their_seed_alone() -> None:
    model = mixture("dit", 2)
    first = posterior_of(model, seed="a")
    torch.rand(7)
    again, other = posterior_of(model, seed="a"), posterior_of(model, seed="b")
    assert all(torch.equal(p, r) for p, r in zip(first.parameters(), again.parameters()))
    assert not torch.equal(first.net[0].weight, other.net[0].weight)


def test_needs_a_normal_latent() -> None:
    model = mixture("dit", 1)
    model.latent = Latent(1, "uniform")
    with pytest.raises(UserError, match="normal"):
        posterior_of(model)


def test_learns_two_bits_that_agree() -> None:
    """x0 is 00 or 11: a product gets at most half the mass right, the mixture most in one step."""
    size = {"width": 16, "depth": 1, "heads": 2, "mlp": 32}
    latent = {"inject": "film", "dim": 1, "distribution": "normal", "features": "raw"}
    torch.manual_seed(0)
    network = build({"type": "maskgit", "symbols": 2, "length": 2, **size, "latent": latent})
    scatter(network, 0, 0.2)
    network.init_latent(0.5, torch.Generator().manual_seed(0))  # type: ignore[operator]
    model = Denoiser(network, Masked(2), Latent(1, "normal"))
    q = Posterior(model, 16, "q")
    optimizer = torch.optim.Adam([*model.parameters(), *q.parameters()], lr=1e-2)
    objective = Objective(ALONE)
    for step in range(200):
        index = list(range(32 * step, 32 * step + 32))
        x0 = (torch.tensor(index) % 2)[:, None].expand(-1, 2)
        noise = Noise(0, index, "train")
        loss = objective(model, model, Batch(index, x0), noise, posterior=q, progress=step / 200)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    lam = Noise(1, range(4000)).normal("lam").float()
    with torch.no_grad():
        law = model.predict(torch.full((4000, 2), 2), torch.ones(4000), None, lam).dense().exp()
    joint = {
        pair: float((law[:, 0, pair[0]] * law[:, 1, pair[1]]).mean()) for pair in product((0, 1), repeat=2)
    }
    assert joint[0, 0] + joint[1, 1] > 0.8
    assert min(joint[0, 0], joint[1, 1]) > 0.3


@pytest.mark.parametrize("inject", ["film", "local"])
def test_the_law_of_lambda_learns_from_q_alone(inject: str) -> None:
    """Its lesson against the written formula; the bound and q are as without it."""
    model, plain = (mixture("maskgit", 2, inject=inject, law=law) for law in (4, None))
    own = model.network.state_dict()
    own.update(plain.network.state_dict())
    model.network.load_state_dict(own)
    assert model.law is not None
    torch.nn.init.normal_(model.law.mean.weight)
    q = posterior_of(model)
    x0 = torch.arange(4 * model.length).view(4, -1) % model.symbols
    index, label, noise = list(range(4)), torch.tensor([0, -1, 2, 1]), Noise(0, range(4), "train")
    losses = [Objective(ALONE)(m, m, Batch(index, x0, label), noise, posterior=q) for m in (model, plain)]
    shared = ("explained", "kl", "bound")
    assert all(torch.equal(losses[0].terms[name], losses[1].terms[name]) for name in shared)
    assert "law" not in losses[1].terms

    with torch.no_grad():
        x_1 = torch.full_like(x0, int(model.process.mask or 0))
        mean, log_variance = q(x0, x_1)
        count = LESSONS_LOCAL if inject == "local" else LESSONS
        draw = noise.normal("law", count, 2, mean.shape[1])
        missed = torch.zeros(4, dtype=torch.float64)
        for k in range(count):
            lam = mean + (log_variance / 2).exp() * draw[:, k, 0] - model.law.centre(torch.ones(4), label)
            missed += lam.square().mean(1) / count
            x, target = ((lam + sign * draw[:, k, 1]) / math.sqrt(2) for sign in (1, -1))
            missed += (model.law(x, x_1, torch.ones(4), label) - target).square().mean(1) / count
    torch.testing.assert_close(losses[0].terms["law"], missed)
    torch.testing.assert_close(losses[0].total - losses[1].total, missed.mean())
    torch.testing.assert_close(losses[0].terms["total"].mean(), losses[0].total.detach())

    grads = [torch.autograd.grad(loss.total, [*q.parameters()], retain_graph=True) for loss in losses]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    heard = torch.autograd.grad(losses[0].total, [*model.law.parameters()])
    assert all(bool(grad.any()) for grad in heard)
