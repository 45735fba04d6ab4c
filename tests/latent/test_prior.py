"""The learned prior of λ: its step against exact conditional means, what it depends on, and what it does not."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.latent.config import LatentConfig
from di4c_cli.latent.prior import HIDDEN_LAYERS, PRIOR_REACH, TILE_POSITIONS, TILE_SAMPLES, LatentPrior, LearnedPrior
from di4c_cli.network import build
from di4c_cli.noise import Noise
from di4c_cli.process import Masked

STATES, LENGTH = 5, 20


def known(count: int, seed: int = 9) -> Tensor:
    """Some x_t `(count, LENGTH)`."""
    return torch.randint(0, STATES, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def prior_of(width: int, dim: int, places: int = 1, labels: int | None = None) -> LearnedPrior:
    return LearnedPrior(width, dim, places, STATES, places if places > 1 else LENGTH, labels)


def normals(count: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(prior: LearnedPrior, seed: int = 1) -> LearnedPrior:
    """Random weights, so that everything matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return prior


class Scaled(LearnedPrior):
    """The exact v for normal λ of variance c."""

    variance = 1.5

    def forward(self, x: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        return (self.variance - 1) / (self.variance + 1) * x


class TwoModes(LearnedPrior):
    """The exact v for λ of two normal modes at ±a with variance s², all together of variance 1."""

    a, s = 0.8, 0.6

    def forward(self, x: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        whole = (1 + self.s**2) / 2
        up = torch.sigmoid(2 * self.a * math.sqrt(0.5) * x / whole)  # P(mode +a | x)
        mean = (2 * up - 1) * self.a
        expected = mean + self.s**2 * math.sqrt(0.5) / whole * (x - mean * math.sqrt(0.5))  # E[λ | x]
        return math.sqrt(2) * expected - x


def test_new_prior_is_plain_noise() -> None:
    prior = prior_of(8, 3, labels=4)
    assert torch.equal(prior.transport(normals(7, 3), known(7), torch.ones(7), torch.arange(7) % 4), normals(7, 3))
    noise, many = (normals(100_000, 3, seed) for seed in (1, 2))
    for new, wanted in ((prior, 2.0), (prior_of(8, 3), 1.0)):
        loss = new.flow_matching_loss(noise[:, None], many[:, None], known(100_000), torch.ones(100_000)).detach()
        assert float(loss.mean()) == pytest.approx(wanted, abs=0.02)


def test_flow_matching_loss_of_the_exact_velocity() -> None:
    """E|target - v|² = 2c/(c+1) for normal λ of variance c; 400 000 draws, within 0.01: over five standard errors."""
    prior, c = Scaled(1, 1, 1, 2, 1), Scaled.variance
    lam = math.sqrt(c) * normals(400_000, 1, 1)
    loss = prior.flow_matching_loss(
        lam.view(-1, 4, 1), normals(400_000, 1, 2).view(-1, 4, 1), known(100_000), torch.ones(100_000)
    )
    assert float(loss.mean()) == pytest.approx(2 * c / (c + 1), abs=0.01)


@pytest.mark.parametrize("variance", [0.7, 0.9, 1.1, 1.3])
def test_transport_stretches_as_the_flow_does(variance: float) -> None:
    """To first order: 2c/(c+1) against √c, which differ by (c-1)²/8 and terms of higher order."""
    prior, one = Scaled(1, 1, 1, 2, 1), torch.ones(1, 1, dtype=torch.float64)
    prior.variance = variance
    stretched = float(prior.transport(one, one.long(), torch.ones(1)))
    assert abs(stretched - math.sqrt(variance)) < 0.16 * (variance - 1) ** 2


def test_transport_comes_near_two_modes() -> None:
    """The largest gap of the distribution functions falls from 0.046 to 0.016, on a grid of quantiles."""
    prior = TwoModes(1, 1, 1, 2, 1)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    noise = torch.special.ndtri(grid)

    def cdf(x: Tensor) -> Tensor:
        return 0.5 * sum(torch.special.ndtr((x - sign * prior.a) / prior.s) for sign in (-1, 1))

    carried = prior.transport(noise[:, None], noise[:, None].long(), torch.ones(len(noise)))[:, 0]
    assert bool((carried.diff() > 0).all())  # so that the k-th of them is the k-th quantile
    before, after = ((cdf(x) - grid).abs().max() for x in (noise, carried))
    assert before > 0.045 and after < 0.016


@pytest.mark.slow
def test_prior_learns_correlation_and_the_known_symbols() -> None:
    """Four numbers in a row, of a sign that one symbol of x_t tells and with neighbours alike."""
    torch.manual_seed(0)
    prior = LearnedPrior(16, 1, 4, 3, 4)
    optimizer = torch.optim.Adam(prior.parameters(), 3e-3)
    mix = torch.eye(4) + 0.5 * torch.diag(torch.ones(3), -1)
    mix = 0.7 * mix / mix.norm(dim=1, keepdim=True)

    def drawn_batch(count: int) -> tuple[Tensor, Tensor]:
        x_t = torch.full((count, 4), 2)
        x_t[:, 0] = torch.randint(0, 2, (count,))
        return x_t, x_t[:, :1] * 2.0 - 1

    for _ in range(800):
        x_t, sign = drawn_batch(512)
        lam = 0.7 * sign + torch.randn(512, 4) @ mix.T
        loss = prior.flow_matching_loss(lam[:, None], torch.randn(512, 1, 4), x_t, torch.ones(512)).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    x_t, sign = drawn_batch(20_000)
    drawn = prior.transport(torch.randn(20_000, 4), x_t, torch.ones(20_000))
    # of the step itself, λ' = √2 E[λ|x = ε] for a normal λ
    spread, mean = mix @ mix.T, torch.full((4,), 0.7)
    gain = 2 * spread @ torch.linalg.inv(spread + torch.eye(4))
    wanted = math.sqrt(2) * mean - math.sqrt(0.5) * gain @ mean
    torch.testing.assert_close((drawn * sign).mean(0), wanted, rtol=0, atol=0.07)
    torch.testing.assert_close(torch.cov((drawn - wanted * sign).T), gain @ gain.T, rtol=0, atol=0.07)


@pytest.mark.slow
def test_conditional_mean_learns_the_mean_of_every_label() -> None:
    """A step alone would go 0.71 of the way there; the spread is that of the step, 2c/(c+1)."""
    torch.manual_seed(0)
    prior, c = LearnedPrior(16, 2, 1, 3, 4, labels=2), 0.49
    means = torch.tensor([[1.5, -1.0], [-0.5, 2.0], [0.3, 0.0]])  # the last: no label
    optimizer = torch.optim.Adam(prior.parameters(), 3e-2)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 1000)

    def drawn_batch(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        t, label = torch.rand(count), torch.randint(-1, 2, (count,))
        return torch.full((count, 4), 2), t, label, means[label] * t[:, None]

    for _ in range(1000):
        x_t, t, label, mean = drawn_batch(512)
        lam = mean + math.sqrt(c) * torch.randn(512, 2)
        optimizer.zero_grad()
        prior.flow_matching_loss(lam[:, None], torch.randn(512, 1, 2), x_t, t, label).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        decay.step()
    x_t, t, label, mean = drawn_batch(30_000)
    torch.testing.assert_close(prior.conditional_mean(t, label).detach(), mean, rtol=0, atol=0.1)
    away = prior.transport(torch.randn(30_000, 2), x_t, t, label) - mean
    for own in (-1, 0, 1):
        assert float(away[label == own].mean(0).abs().max()) < 0.08
        assert away[label == own].std(0).tolist() == pytest.approx([2 * c / (c + 1)] * 2, abs=0.07)


@pytest.mark.parametrize("what", ["noise", "known"])
def test_transport_depends_on_the_neighbourhood_of_a_position(what: str) -> None:
    prior = randomised(prior_of(6, 2, places=LENGTH)).double()
    noise, x_t, t = normals(1, 2 * LENGTH), known(1), torch.ones(1)
    before = prior.transport(noise, x_t, t)
    if what == "noise":
        noise[0, 9 * 2 : 10 * 2] += 1  # both numbers of position 9
    else:
        x_t[0, 9] = (x_t[0, 9] + 1) % STATES
    change = (prior.transport(noise, x_t, t) - before).view(LENGTH, 2).abs().sum(1) > 0
    reach = PRIOR_REACH * (1 + HIDDEN_LAYERS)
    assert change.nonzero().flatten().tolist() == list(range(9 - reach, 9 + reach + 1))


def test_transport_depends_on_time_label_and_symbols() -> None:
    prior = randomised(prior_of(6, 3, labels=5)).double()
    noise, x_t, one = normals(4, 3), known(4), torch.ones(4)
    none = prior.transport(noise, x_t, one)
    assert torch.equal(none, prior.transport(noise, x_t, one, torch.full((4,), -1)))
    assert not torch.isclose(none, prior.transport(noise, x_t, one, torch.arange(4))).any()
    assert not torch.isclose(none, prior.transport(noise, x_t, one / 2)).any()
    assert not torch.isclose(none, prior.transport(noise, known(4, 8), one)).any()
    masked = torch.nn.functional.pad(x_t[:, :15], (0, 5), value=STATES - 1)
    assert torch.equal(prior.transport(noise, x_t[:, :15], one), prior.transport(noise, masked, one))
    unlabelled = randomised(prior_of(6, 3)).double()
    assert torch.equal(unlabelled.transport(noise, x_t, one), unlabelled.transport(noise, x_t, one, torch.arange(4)))


@pytest.mark.parametrize(("places", "count"), [(1, TILE_SAMPLES + 50), (20, 100), (2 * TILE_POSITIONS, 3)])
def test_transport_bits_do_not_depend_on_the_batch(places: int, count: int) -> None:
    prior = randomised(prior_of(8, 2, places, labels=3))
    noise, x_t = normals(count, 2 * places).float(), known(count)
    t, label = torch.rand(count, generator=torch.Generator().manual_seed(2)), torch.arange(count) % 3
    whole = prior.transport(noise, x_t, t, label)
    for part in (slice(1), slice(2, 3), slice(count // 2, None)):
        assert torch.equal(prior.transport(noise[part], x_t[part], t[part], label[part]), whole[part])


def test_transport_with_half_precision_weights_gives_float32() -> None:
    prior = randomised(prior_of(8, 4))
    given = normals(6, 4).float(), known(6), torch.ones(6)
    wide = prior.transport(*given)
    narrow = prior.to(torch.bfloat16).transport(*given)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, wide, rtol=0, atol=0.1)


def test_init_latent_is_a_function_of_the_generator() -> None:
    first, second = (prior_of(5, 2, 3, labels=2) for _ in range(2))
    for prior in (first, second):
        prior.init_latent(torch.Generator().manual_seed(3))
    states = first.state_dict(), second.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not bool(first.last.weight.any()) and not bool(first.last.bias.any())
    assert not bool(first.symbol.weight.any())  # x_t is a stranger to begin with
    assert all(bool(p.any()) for name, p in first.named_parameters() if name[:4] not in ("last", "symb", "mean"))
    assert not bool(first.mean.weight.any())


SIZES = {
    "dit": {"length": 6, "width": 8, "depth": 1, "heads": 2, "cond_dim": 8},
    "maskgit": {"length": 6, "width": 8, "depth": 1, "heads": 2, "mlp": 8, "labels": 3},
    "unet": {"shape": [1, 4, 4], "channels": 8, "multipliers": [1], "blocks": 1, "attention": 0, "time_dim": 8},
}


@pytest.mark.parametrize(
    ("kind", "inject", "size"),
    [
        ("dit", "local", 12),
        ("dit", "film", 2),
        ("maskgit", "field", 2),
        ("maskgit", "local", 12),
        ("unet", "field", 2),
        ("unet", "film", 2),
    ],
)
def test_networks_hold_their_prior(kind: str, inject: str, size: int) -> None:
    latent = {"inject": inject, "dim": 2, "distribution": "normal", "prior": "learned", "prior_width": 4}
    net = build({"type": kind, "symbols": 5, **SIZES[kind], "latent": latent})
    prior = net.latent_prior
    assert isinstance(prior, LearnedPrior) and prior.dim * prior.places == size
    assert bool(prior.labels) == (kind == "maskgit")
    assert net.latent.prior_width == 4  # type: ignore[union-attr]
    before = prior.first.weight.clone()
    net.init_latent("default", torch.Generator().manual_seed(0))  # type: ignore[operator]
    assert not torch.equal(before, prior.first.weight)


def test_denoiser_draws_from_its_prior() -> None:
    latent = {"inject": "local", "dim": 2, "distribution": "normal", "prior": "learned", "prior_width": 4}
    net = build({"type": "maskgit", "symbols": 5, **SIZES["maskgit"], "latent": latent})
    model, plain = (Denoiser(net, Masked(5), LatentPrior(2, "normal", 6), labels=3) for _ in range(2))
    noise, label = Noise(0, [4, 5, 6]), torch.tensor([0, -1, 2])
    x_t, t = torch.arange(18).view(3, 6) % 6, torch.tensor([0.2, 0.5, 1.0])
    drawn = plain.draw_latent(noise, "lam", x_t, t, label, 4)
    assert drawn is not None and drawn.shape == (3, 4, 12)
    randomised(net.latent_prior)
    each = model.draw_latent(noise, "lam", x_t, t, label, 4)
    apart = model.draw_latent(noise, "lam", x_t[:, None].expand(3, 4, 6), t[:, None].expand(3, 4), label, 4)
    assert each is not None and apart is not None and torch.equal(each, apart)
    assert torch.equal(each[1, 2:3], net.latent_prior.transport(drawn[1, 2:3], x_t[1:2], t[1:2], label[1:2]))
    assert not each.requires_grad


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prior": "learned", "prior_width": 0}, "prior_width"),
        ({"prior": "learned", "distribution": "uniform"}, "needs distribution: normal"),
        ({"prior": "flow"}, "prior"),
        ({"distribution": "laplace"}, "distribution"),
    ],
)
def test_latent_config_rejects_impossible_priors(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        LatentConfig.model_validate({"distribution": "normal", **wrong})
