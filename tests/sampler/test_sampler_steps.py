"""Single steps against plain versions of themselves, and the claims made about them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from scipy.stats import poisson as poisson_law

from di4c_cli.draw import categorical, gumbel32
from di4c_cli.noise import Noise
from di4c_cli.process import Gaussian, Masked, Uniform
from di4c_cli.sampler.confidence import confidence_step, counts_between, gumbel_scale, reveal_counts
from di4c_cli.sampler.draws import RowNoise
from di4c_cli.sampler.loop import sample_batch
from di4c_cli.sampler.plan import SamplingPlan, times
from di4c_cli.sampler.predictor import GuidedPrediction, guidance_weight
from di4c_cli.sampler.tau import forward_rates, poisson, reverse_rates
from tests.helpers.sampler_table import (
    LEVEL,
    chi_square,
    leap,
    masked_q,
    plackett_luce,
    reverse_rate,
    states,
    tabulated,
)


def test_times_of_both_grids() -> None:
    assert times(4) == [0, 0.25, 0.5, 0.75, 1]
    assert times(1) == times(1, "pixels") == [0, 1]
    assert times(2, "pixels") == [0, 0.01, 1]
    assert times(4, "pixels") == pytest.approx([0, 0.01, 0.34, 0.67, 1])
    assert times(3, handoff_time=0.4) == pytest.approx([0, 0.2, 0.4, 1])
    assert times(2, "pixels", 0.5) == [0, 0.5, 1] and times(1, handoff_time=0.5) == [0, 1]
    assert times(4, "pixels", 0.5) == pytest.approx([0, 0.01, 0.255, 0.5, 1])
    assert times(4, "pixels", 0.02) == pytest.approx([0, 0.005, 0.0125, 0.02, 1])


def test_gumbel_scale_and_guidance_weight_at_both_ends() -> None:
    t = torch.tensor([1.0, 0.5, 0.25])
    assert gumbel_scale(t, 4).tolist() == pytest.approx([4.5, 1.5, 0.0])
    assert guidance_weight(3.0, t, 4).tolist() == pytest.approx([0.0, 2.0, 3.0])
    assert gumbel_scale(t[:1], 1).tolist() == [0.0] and guidance_weight(3.0, t[:1], 1).tolist() == [3.0]


def test_reveal_counts_reveal_all_and_never_nothing_until_done() -> None:
    free = torch.arange(0, 40)
    for steps, schedule in itertools.product((1, 2, 3, 8, 50), ("linear", "arccos", "cosine", "square", "root")):
        counts = reveal_counts(Masked(5, schedule), steps, free)
        assert torch.equal(counts.sum(0), free) and int(counts.min()) >= 0
        left = free - counts.cumsum(0)
        before = torch.cat((free[None], left[:-1]))
        idle = (counts == 0) & (before > 0)
        assert not bool(idle.any())


def test_reveal_counts_follow_the_schedule() -> None:
    """Rounded shares of 64 positions; of three positions in four steps one each until none is left."""
    masked = [round(64 * 2 / math.pi * math.acos(1 - i / 8)) for i in range(8, -1, -1)]
    counts = reveal_counts(Masked(5, "arccos"), 8, torch.tensor([64, 3]))
    assert counts[:, 0].tolist() == [-step for step in np.diff(masked).tolist()]
    assert reveal_counts(Masked(5), 4, torch.tensor([3])).flatten().tolist() == [1, 1, 1, 0]


def test_counts_between_two_times() -> None:
    process = Masked(5, "arccos")
    t, s = torch.tensor([1.0, 0.75]), torch.tensor([0.75, 0.5])
    masked = [round(16 * float(process.mask_share(torch.tensor(v)))) for v in (1.0, 0.75, 0.5)]
    counts = counts_between(process, torch.tensor([16, 16]), t, s)
    assert counts.tolist() == [masked[0] - masked[1], masked[1] - masked[2]]


def test_confidence_step_is_plackett_luce() -> None:
    """Values given, the revealed set is Plackett–Luce with weights p^{1/c}: 200 000 draws at level 1e-3."""
    process, n, scale, count = Masked(2), 200_000, 1.7, 2
    model = tabulated(process, 4, seed=21)
    x = torch.full((1, 4), 2)
    prediction = model.predict(x, torch.ones(1))
    generator = torch.Generator().manual_seed(5)
    value = torch.full((1, n, 4), 0.999999, dtype=torch.float64)  # always the last symbol
    gumbel = -torch.log(-torch.log(torch.rand(1, n, 4, dtype=torch.float64, generator=generator)))
    x_s = confidence_step(prediction, x, torch.tensor([count]), torch.tensor([scale]), value, gumbel)[0]
    weight = model.network.law((2, 2, 2, 2), 1.0)[:, 1] ** (1 / scale)
    sets = plackett_luce(weight, count)
    shown = (x_s != 2).numpy()
    keys = shown @ (1 << np.arange(4))
    counts = np.array([(keys == sum(1 << i for i in kept)).sum() for kept in sets])
    assert counts.sum() == n
    assert chi_square(counts, np.array(list(sets.values()))) > LEVEL


def brute_confidence(
    law: np.ndarray, x: list[int], mask: int, count: int, scale: float, u: list[float], g: list[float]
) -> list[int]:
    """One sample of the confidence step, position by position."""
    order = []
    values = {}
    for d, v in enumerate(x):
        if v == mask:
            values[d] = int(np.searchsorted(law[d].cumsum(), u[d] * law[d].sum(), side="right"))
            order.append((math.log(law[d, values[d]]) + scale * g[d], d))
    for _, d in sorted(order, reverse=True)[:count]:
        x[d] = values[d]
    return x


def test_confidence_step_equals_brute_force() -> None:
    process = Masked(4)
    model = tabulated(process, 3, components=3, seed=22)
    x = torch.tensor(states(process, 3))
    batch = len(x)
    generator = torch.Generator().manual_seed(6)
    u = torch.rand(batch, 3, dtype=torch.float64, generator=generator)
    g = torch.randn(batch, 3, dtype=torch.float64, generator=generator)
    lam = torch.rand(batch, dtype=torch.float64, generator=generator)
    scale = torch.rand(batch, dtype=torch.float64, generator=generator)
    count = torch.randint(0, 5, (batch,), generator=generator)
    got = confidence_step(model.predict(x, torch.full((batch,), 0.6), lam=lam), x, count, scale, u, g)
    for i, row in enumerate(x.tolist()):
        law = model.network.law(tuple(row), float(torch.tensor(0.6)), -1, int(lam[i] * 3))
        expected = brute_confidence(law, row, 4, int(count[i]), float(scale[i]), u[i].tolist(), g[i].tolist())
        assert got[i].tolist() == expected


def test_masked_step_has_the_distribution_of_the_full_head() -> None:
    """Summing over revealed sets and values gives Bayes' rule over all S + 1 states: TV below 1e-12."""
    process = Masked(3, "cosine")
    model = tabulated(process, 3, seed=23)
    t, s = torch.tensor([0.8]), torch.tensor([0.3])
    for x in states(process, 3):
        x_t = torch.tensor([x])
        p0 = model.predict(x_t, t).dense().exp()
        full = process.posterior(p0, x_t, t, s)[0].numpy()
        law = np.zeros((4, 4, 4))
        chance = float(process.reveal_share(t, s))
        hidden = [d for d, v in enumerate(x) if v == 3]
        for shown in itertools.product((False, True), repeat=len(hidden)):
            for values in itertools.product(range(3), repeat=sum(shown)):
                y, weight, left = list(x), 1.0, list(values)
                for d, show in zip(hidden, shown):
                    weight *= chance if show else 1 - chance
                    if show:
                        y[d] = left.pop(0)
                        weight *= float(p0[0, d, y[d]])
                law[tuple(y)] += weight
        joint = np.einsum("a,b,c->abc", *full)
        assert np.abs(law - joint).sum() / 2 < 1e-12
        m_t, m_s = (float(process.mask_share(a)) for a in (t, s))
        by_hand = masked_q(3, 0, m_s)[:3] * masked_q(3, m_s, m_t)[:, 3] / m_t
        for d in hidden:
            assert np.abs(p0[0, d].numpy() @ by_hand - full[d]).sum() / 2 < 1e-12


def test_sampling_loop_takes_the_process_own_step() -> None:
    """Head at revealed rows only, the same symbols as the dense step from the same uniforms."""
    process = Masked(5)
    model = tabulated(process, 4, components=2, seed=24)
    noise = Noise(1, range(40))
    x = sample_batch(model, SamplingPlan(steps=1), noise)
    step = noise.at("step", 1)
    x_1, one = torch.full((40, 4), 5), torch.ones(40)
    prediction = model.predict(x_1, one, lam=model.draw_latent(step, "latent", x_1, one, None))
    uniform = torch.stack((step.uniform("reveal", 4), step.uniform("value", 4)), -1)
    plain = process.step(prediction.log_probs, prediction.x_t, torch.ones(40), torch.zeros(40), uniform)
    assert torch.equal(x, plain)


def test_row_noise_is_different_for_every_row() -> None:
    """Streams of (sample, position) are distinct, and a row's numbers do not depend on the other rows."""
    own = RowNoise(Noise(1, range(7)), 3)
    b, d = (a.reshape(-1) for a in torch.meshgrid(torch.arange(7), torch.arange(3), indexing="ij"))
    whole = own.uniform(b, d, 4)
    assert len(torch.unique(whole)) == 7 * 3 * 4
    other = RowNoise(Noise(1, [5, 2]), 3)
    assert torch.equal(other.uniform(torch.tensor([0, 1]), torch.tensor([2, 0]), 4), whole[[17, 6]])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_markov_step_sums_in_the_dtype_of_the_plan(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Uniform(3)
    seen: list[torch.dtype] = []
    step = process.step
    monkeypatch.setattr(process, "step", lambda *given: seen.append(given[0].dtype) or step(*given))
    sample_batch(tabulated(process, 2, seed=26), SamplingPlan(steps=2, dtype=dtype), Noise(0, range(3)))
    assert seen == [getattr(torch, dtype)] * 2


GAUSSIAN = Gaussian(5, rate_sigma=2.0, q_sigma=3.0, time_exponential=5.0, time_base=0.5)


@pytest.mark.parametrize("process", [GAUSSIAN, Uniform(5, 1.5)], ids=["gaussian", "uniform"])
def test_reverse_rates_equal_the_sum_by_hand(process: Gaussian | Uniform) -> None:
    model = tabulated(process, 2, seed=25)
    x, t = torch.tensor(states(process, 2)), torch.full((25,), 0.4, dtype=torch.float64)
    rates = reverse_rates(process, model.predict(x, t).dense().double().exp(), x, t, eps=0.0)
    forward = forward_rates(process, x, t)
    q, rate = (a[0].numpy() for a in (process.transition(0 * t, t), process.rate(t)))
    for i, row in enumerate(x.tolist()):
        law = model.network.law(tuple(row), 0.4)
        for d, v in enumerate(row):
            assert rates[i, d].numpy() == pytest.approx(reverse_rate(q, rate, law[d], v), rel=1e-9, abs=1e-12)
            assert forward[i, d].numpy() == pytest.approx(np.where(np.arange(5) == v, 0, rate[v]))


@pytest.mark.parametrize("process", [GAUSSIAN, Uniform(3, 1.5)], ids=["gaussian", "uniform"])
def test_tau_step_converges_to_the_analytical_step(process: Gaussian | Uniform) -> None:
    """Exact laws of both after N steps down to a fixed time, one position: the distance falls like 1/N."""
    model = tabulated(process, 1, seed=26)
    size, low = process.symbols, 0.1
    x = torch.arange(size)[:, None]
    distance = []
    for steps in (8, 32, 128):
        laws = [process.stationary().numpy(), process.stationary().numpy()]
        points = np.linspace(1, low, steps + 1)
        for a, b in itertools.pairwise(points):
            t, s = (torch.full((size,), v, dtype=torch.float64) for v in (a, b))
            p0 = model.predict(x, t).dense().double().exp()
            rate = reverse_rates(process, p0, x, t)[:, 0].numpy() * (a - b)
            jumps = np.stack([leap(rate[v], v, isinstance(process, Gaussian), 25) for v in range(size)])
            laws[0] = laws[0] @ jumps
            laws[1] = laws[1] @ process.posterior(p0, x, t, s)[:, 0].numpy()
        distance.append(np.abs(laws[0] - laws[1]).sum() / 2)
    assert distance[2] < 0.01
    assert distance[1] < 0.4 * distance[0] and distance[2] < 0.3 * distance[1]


def test_poisson_numbers_of_large_means_are_sums_that_ignore_the_other_samples() -> None:
    """Mean and variance of 40 000 numbers of mean 1300, within 5 sigma."""
    mean = torch.tensor([[1300.0, 0.5]], dtype=torch.float64).repeat(40_000, 1)
    mean[::2, 0] = 2.0
    drawn = poisson(mean, Noise(5, range(40_000)), "jumps")
    assert torch.equal(poisson(mean[:1], Noise(5, [0]), "jumps"), drawn[:1])
    large = drawn[1::2, 0]
    assert abs(float(large.mean()) - 1300) < 5 * (1300 / 20_000) ** 0.5
    assert abs(float(large.var()) / 1300 - 1) < 5 * (2 / 20_000) ** 0.5


def test_poisson_numbers_are_drawn_per_sample() -> None:
    """Small and large means; a sample's numbers do not depend on its neighbours; χ² at level 1e-3."""
    mean = torch.tensor([0.02, 0.7, 30.0], dtype=torch.float64).expand(40_000, 3)
    drawn = poisson(mean, Noise(4, range(40_000)), "jumps")
    assert torch.equal(poisson(mean[:5], Noise(4, [7, 3, 0, 9, 39_999]), "jumps"), drawn[[7, 3, 0, 9, 39_999]])
    for column, value in enumerate((0.02, 0.7, 30.0)):
        counts = np.bincount(drawn[:, column].long().numpy(), minlength=90)[:90]
        law = poisson_law.pmf(np.arange(90), value)
        law[-1] += 1 - law.sum()
        large = law * 40_000 >= 5
        observed = np.append(counts[large], counts[~large].sum())
        wanted = np.append(law[large], law[~large].sum()) * 40_000
        keep = wanted > 0
        statistic = ((observed - wanted)[keep] ** 2 / np.maximum(wanted[keep], 1)).sum()
        assert chi2.sf(statistic, keep.sum() - 1) > LEVEL


def test_guided_prediction_has_one_latent_for_both_branches() -> None:
    process = Masked(3)
    model = tabulated(process, 2, components=4, labels=2, seed=27)
    x, lam = torch.tensor([[3, 3]]), torch.tensor([0.6], dtype=torch.float64)
    label = torch.tensor([1])
    guided = GuidedPrediction(
        model.predict(x, torch.ones(1), label, lam),
        model.predict(x, torch.ones(1), -torch.ones_like(label), lam),
        torch.tensor([1.5]),
    )
    law = model.network.law((3, 3), 1.0, 1, 2) ** 2.5 / model.network.law((3, 3), 1.0, -1, 2) ** 1.5
    assert guided.dense().exp()[0].numpy() == pytest.approx(law / law.sum(1, keepdims=True), rel=1e-6)


def temperature(hits: int, n: int, symbols: int) -> tuple[float, float]:
    """T and its error if one symbol of `symbols` had half the mass and p^{1/T} was drawn n times with `hits`.

    The log-odds of that symbol are log(symbols - 1) (1/T - 1).
    """
    odds = math.log(hits / (n - hits))
    error = 1 / math.sqrt(n * (hits / n) * (1 - hits / n))
    size = math.log(symbols - 1)
    return 1 / (1 + odds / size), error / size


@pytest.mark.slow
def test_categorical_has_temperature_one() -> None:
    """One token with half the mass, 50 256 share the rest: in float64 the temperature is 1 within error."""
    symbols, n = 50_257, 4096
    log_p = torch.full((symbols,), -math.log(symbols - 1))
    log_p[1234] = 0.0
    uniform = Noise(0, range(n)).uniform("u")
    hits = sum(int((categorical(log_p.expand(64, -1), u) == 1234).sum()) for u in uniform.split(64))
    value, error = temperature(hits, n, symbols)
    assert abs(value - 1) < 3 * error < 0.01


def largest(uniform: torch.Tensor, n: int) -> torch.Tensor:
    """The largest of n uniforms from one: only it matters among n symbols of equal probability.

    One column then stands for them all, exactly, which makes millions of draws from a vocabulary cheap.
    """
    return torch.exp(uniform.log() / n)


def test_gumbel32_is_colder() -> None:
    """Half the mass on one of four million symbols: with 32-bit Gumbel noise the temperature is below 1."""
    symbols, n = 1 << 22, 1_000_000
    generator = torch.Generator().manual_seed(8)
    uniform = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    uniform[:, 1] = largest(uniform[:, 1], symbols - 1)
    log_p = torch.tensor([0.0, -math.log(symbols - 1)], dtype=torch.float64)
    value, error = temperature(int((gumbel32(log_p, uniform) == 0).sum()), n, symbols)
    assert value < 0.99 < 1 - 5 * error
    exact = int(((log_p - torch.log(-torch.log(uniform))).argmax(-1) == 0).sum())
    value, error = temperature(exact, n, symbols)
    assert abs(value - 1) < 3 * error


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "below"), [(64, 0.985), (1024, 0.95)])
def test_gumbel32_with_the_mask_among_the_symbols_is_colder_still(steps: int, below: float) -> None:
    """GPT-2's vocabulary in the published step: the mask has 1 - 1/steps, tokens are in the cut-off tail."""
    symbols, n, stay = 50_257, 4_000_000, 1 - 1 / steps
    generator = torch.Generator().manual_seed(10)
    uniform = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    uniform[:, 1] = largest(uniform[:, 1], symbols - 1)
    rest = (1 - stay) / 2
    log_p = torch.tensor([rest, rest / (symbols - 1), stay], dtype=torch.float64).log()
    short = gumbel32(log_p, uniform)
    exact = (log_p - torch.log(-torch.log(uniform))).argmax(-1)
    cold, _ = temperature(int((short == 0).sum()), int((short < 2).sum()), symbols)
    warm, error = temperature(int((exact == 0).sum()), int((exact < 2).sum()), symbols)
    assert cold < below and abs(warm - 1) < 3 * error
