"""Uniform and Gaussian chains: matrices, Bayes' rule by enumeration, the prior."""

from __future__ import annotations

import itertools

import pytest
import torch

from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.process import Gaussian, Markov, Uniform, build

PROCESSES = [
    Uniform(2, 1.0),
    Uniform(5, 3.0),
    Uniform(4, schedule="linear"),
    Gaussian(6, 1.5, 8.0),
    Gaussian(7, 2.0, 3.0),
    Gaussian(16, 2.0, 20.0),
]


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: f"{p.config['type']}-{p.symbols}")
class TestChain:
    def test_rows_are_distributions(self, process: Markov) -> None:
        for t in (0.0, 1e-6, 0.01, 0.5, 1.0):
            matrix = process.transition(one(0.0), one(t))
            assert bool((matrix >= 0).all())
            torch.testing.assert_close(matrix.sum(-1), torch.ones(1, process.symbols).double())
        eye = torch.eye(process.symbols).double()[None]
        torch.testing.assert_close(process.transition(one(0.4), one(0.4)), eye, atol=1e-12, rtol=0)

    def test_composes(self, process: Markov) -> None:
        parts = process.transition(one(0.0), one(0.3)) @ process.transition(one(0.3), one(0.7))
        torch.testing.assert_close(parts, process.transition(one(0.0), one(0.7)), atol=1e-12, rtol=0)

    def test_is_generated_by_its_rate(self, process: Markov) -> None:
        """(q_{t+h|t} - I) / h tends to R_t."""
        h = 1e-7
        slope = (process.transition(one(0.5), one(0.5 + h)) - torch.eye(process.symbols).double()) / h
        rate = process.rate(one(0.5))
        torch.testing.assert_close(slope, rate, atol=float(rate.abs().max()) * 1e-4, rtol=1e-3)
        torch.testing.assert_close(rate.sum(-1), torch.zeros(1, process.symbols).double(), atol=1e-9, rtol=0)

    def test_posterior_is_bayes_in_two_dimensions(self, process: Markov) -> None:
        """The product over dimensions of the one-dimensional posterior, enumerated over x0 pairs."""
        if process.symbols > 7:
            pytest.skip("enumerated on the smaller spaces")
        s, t, size = one(0.35), one(0.6), process.symbols
        q_s0, q_ts, q_t0 = (process.transition(a, b)[0] for a, b in ((s * 0, s), (s, t), (s * 0, t)))
        p0 = torch.rand(1, 2, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        p0 = p0 / p0.sum(-1, keepdim=True)
        x_t = torch.tensor([[size - 1, 0]])
        got = process.posterior(p0, x_t, t, s)[0]
        for x_s in itertools.product(range(size), repeat=2):
            expected = 0.0
            for x0 in itertools.product(range(size), repeat=2):
                term = 1.0
                for d in range(2):
                    z, y, w = x0[d], x_s[d], int(x_t[0, d])
                    term *= float(p0[0, d, z] * q_s0[z, y] * q_ts[y, w] / q_t0[z, w])
                expected += term
            assert float(got[0, x_s[0]] * got[1, x_s[1]]) == pytest.approx(expected, abs=1e-12)

    @pytest.mark.slow
    def test_step_follows_the_posterior(self, process: Markov) -> None:
        """30 000 draws; total variation below 0.02."""
        n, size = 30_000, process.symbols
        p0 = torch.linspace(1, 2, size).double()
        x_t, t, s = (torch.full((n, 1), size // 2), torch.full((n,), 0.7).double(), torch.full((n,), 0.5).double())
        uniform = Noise(5, range(n)).uniform("u", 1, 2)
        x_s = process.step(lambda b, d: p0.log().expand(len(b), -1), x_t, t, s, uniform)
        exact = process.posterior((p0 / p0.sum()).view(1, 1, -1), x_t[:1], t[:1], s[:1])[0, 0]
        seen = torch.bincount(x_s[:, 0], minlength=size).double() / n
        assert 0.5 * (seen - exact).abs().sum() < 0.02

    def test_draws_that_share_a_prediction_are_draws_alone(self, process: Markov) -> None:
        size = process.symbols
        law = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
        x_t, t, s = torch.tensor([[0, 1, 1], [1, 0, 1]]), one(0.6).expand(2), one(0.2).expand(2)
        for many in ((), (2,), (3, 2)):
            uniform = Noise(2, [0, 1]).uniform("u", *many, 3, 2)
            x_s = process.step(lambda b, d: law[b, d], x_t, t, s, uniform)
            assert x_s.shape == (2, *many, 3)
            for j, own in enumerate(uniform.reshape(2, -1, 3, 2).unbind(1)):
                alone = process.step(lambda b, d: law[b, d], x_t, t, s, own)
                assert torch.equal(x_s.reshape(2, -1, 3)[:, j], alone)

    def test_corrupt_follows_the_forward_law(self, process: Markov) -> None:
        """Equidistant uniforms through the inverse CDF give every symbol its share of q_{t|0}, up to one draw."""
        n, size = 2000, process.symbols
        x0 = torch.arange(size)[:, None].expand(size, n)
        t = torch.full((size,), 0.1).double()
        uniform = ((torch.arange(n) + 0.5) / n).double().expand(size, n)
        x_t = process.corrupt(x0, t, uniform)
        law = process.transition(one(0.0), one(0.1))[0]
        for symbol in range(size):
            seen = torch.bincount(x_t[symbol], minlength=size).double() / n
            torch.testing.assert_close(seen, law[symbol], atol=1.01 / n, rtol=0)

    def test_config_round_trip(self, process: Markov) -> None:
        again = build(process.config)
        torch.testing.assert_close(again.transition(one(0.1), one(0.9)), process.transition(one(0.1), one(0.9)))


@pytest.mark.parametrize("symbols", [6, 16, 256])
def test_gaussian_reaches_its_prior(symbols: int) -> None:
    """For even S the published initial law is stationary, and at t = 1 the chain is near it."""
    process = Gaussian(symbols, 6.0, 2.0 * symbols)
    prior = process.stationary()
    torch.testing.assert_close(prior @ process.base_rate, torch.zeros(symbols).double(), atol=1e-12, rtol=0)
    end = process.transition(one(0.0), one(1.0))[0]
    assert float(0.5 * (end - prior).abs().sum(-1).max()) < 0.05


def test_posterior_survives_impossible_predictions() -> None:
    """All of p0 far from a barely noised x_t: the chain itself decides, nothing is NaN."""
    process = Gaussian(64, 2.0, 50.0)
    p0 = torch.zeros(1, 1, 64).double()
    p0[..., 63] = 1
    out = process.posterior(p0, torch.tensor([[0]]), one(1e-5), one(1e-6))
    assert bool(torch.isfinite(out).all()) and float(out.sum()) == pytest.approx(1)


class Islands(Uniform):
    """Two states that mix unevenly, and a third without transitions."""

    posterior = Markov.posterior

    def transition(self, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        matrix = torch.tensor([[0.7, 0.3, 0.0], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
        return matrix.expand(len(t), -1, -1)


def test_posterior_of_an_impossible_prediction_is_that_of_the_chain() -> None:
    p0 = torch.tensor([[[0.0, 0.0, 1.0]]]).double()
    out = Islands(3).posterior(p0, torch.tensor([[0]]), one(0.6), one(0.3))
    torch.testing.assert_close(out[0, 0], torch.tensor([0.7, 0.4, 0.0]).double() / 1.1)


def test_posterior_leaves_out_the_impossible_part_of_a_prediction() -> None:
    half, whole = (torch.tensor([[p0]]).double() for p0 in ([0.5, 0.0, 0.5], [1.0, 0.0, 0.0]))
    x_t, process = torch.tensor([[0]]), Islands(3)
    torch.testing.assert_close(
        process.posterior(half, x_t, one(0.6), one(0.3)), process.posterior(whole, x_t, one(0.6), one(0.3))
    )


def test_prior_follows_the_stationary_distribution() -> None:
    process = Gaussian(8, 2.0, 3.0)
    x = process.prior(Noise(0, range(20_000)).uniform("u", 1))
    seen = torch.bincount(x[:, 0], minlength=8).double() / 20_000
    assert 0.5 * (seen - process.stationary()).abs().sum() < 0.02


def test_transition_of_one_time_equals_that_of_many_times() -> None:
    process, t = Gaussian(8, 2.0, 3.0), torch.tensor([0.5, 0.5, 0.5]).double()
    mixed = process.transition(torch.zeros(3).double(), torch.tensor([0.5, 0.2, 0.5]).double())
    torch.testing.assert_close(process.transition(t * 0, t)[0], mixed[0])


@pytest.mark.parametrize("process", [Uniform(7, 2.0), Uniform(7, schedule="linear")], ids=["exponential", "linear"])
def test_posterior_of_the_uniform_chain_needs_no_matrix(process: Uniform) -> None:
    generator = torch.Generator().manual_seed(0)
    p0 = torch.rand(3, 4, 7, generator=generator, dtype=torch.float64).softmax(-1)
    x_t = torch.randint(0, 7, (3, 4), generator=generator)
    t, s = torch.tensor([1.0, 0.5, 0.2]).double(), torch.tensor([0.7, 0.0, 0.1]).double()
    torch.testing.assert_close(process.posterior(p0, x_t, t, s), Markov.posterior(process, p0, x_t, t, s))


def test_uniform_chain_over_a_large_vocabulary() -> None:
    process, times = Uniform(50258, schedule="linear"), torch.tensor([0.3, 0.9]).double()
    noise = Noise(0, range(2))
    x0 = torch.full((2, 4000), 7)
    x_t = process.corrupt(x0, times, noise.uniform("x", 4000))
    assert ((x_t == 7).double().mean(1) - process.alpha(times)).abs().max() < 0.03
    assert x_t[x_t != 7].double().mean() == pytest.approx(50258 / 2, rel=0.05) and int(x_t.max()) < 50258
    with pytest.raises(UserError, match="analytical sampler"):
        process.transition(times, times)
