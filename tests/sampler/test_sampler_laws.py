"""Every stochastic sampler against its distribution by enumeration: 200 000 draws, χ² at level 1e-3, fixed seeds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from di4c_cli.denoiser import Denoiser
from di4c_cli.noise import Noise
from di4c_cli.process import Gaussian, Markov, Masked, Uniform
from di4c_cli.sampler.loop import sample_batch
from di4c_cli.sampler.plan import SamplingPlan
from tests.helpers.sampler_table import (
    DRAWS,
    LEVEL,
    Kernel,
    bayes,
    chain_q,
    chi_square,
    confidence,
    frequencies,
    likeliest,
    masked_q,
    move,
    states,
    tabulated,
    tau,
)


def share(process: Masked, t: float) -> float:
    """m_t written out."""
    return {"linear": t, "arccos": float(np.arccos(1 - t) * 2 / np.pi)}[process.schedule]


def start(process: Masked | Markov, length: int) -> np.ndarray:
    """The prior over all states."""
    if isinstance(process, Masked):
        law = np.zeros(process.states**length)
        law[-1] = 1.0
        return law
    one = process.stationary().numpy()
    out = np.ones(1)
    for _ in range(length):
        out = np.outer(out, one).reshape(-1)
    return out


def masked_law(model: Denoiser, times: list[float], label: int = -1, law: np.ndarray | None = None) -> np.ndarray:
    """N analytical steps through `times`, descending."""
    process = model.process
    assert isinstance(process, Masked)
    law = start(process, model.length) if law is None else law
    for t, s in pairwise(times):
        m_t, m_s = share(process, t), share(process, s)
        kernel = bayes(process, masked_q(process.symbols, 0.0, m_s), masked_q(process.symbols, m_s, m_t))
        law = move(law, model.network, process, t, kernel, label)
    return law


def span(process: Markov, s: float, t: float) -> float:
    """How far the chain's own clock runs between s and t."""
    if isinstance(process, Gaussian):
        return process.time_base * (process.time_exponential**t - process.time_exponential**s)
    assert isinstance(process, Uniform)
    return process.horizon * (t - s)


def base_rate(process: Markov) -> np.ndarray:
    """Rates per unit of the chain's own clock."""
    if isinstance(process, Gaussian):
        return process.base_rate.numpy()
    return np.full((process.symbols, process.symbols), 1 / process.symbols) - np.eye(process.symbols)


def speed(process: Markov, t: float) -> float:
    """How fast that clock runs at t."""
    if isinstance(process, Gaussian):
        return process.time_base * np.log(process.time_exponential) * process.time_exponential**t
    assert isinstance(process, Uniform)
    return process.horizon


def markov_kernel(process: Markov, t: float, s: float) -> Kernel:
    rate = base_rate(process)
    return bayes(process, chain_q(rate, span(process, 0, s)), chain_q(rate, span(process, s, t)))


def tau_kernel(process: Markov, t: float, length: float, both: bool = False) -> Kernel:
    rate = base_rate(process)
    q_t0 = chain_q(rate, span(process, 0, t))
    return tau(q_t0, rate * speed(process, t), length, isinstance(process, Gaussian), both)


def drawn(model: Denoiser, plan: SamplingPlan, n: int = DRAWS, seed: int = 3, **options: object) -> torch.Tensor:
    """n samples in large batches."""
    return sample_batch(model, plan, Noise(seed, range(n)), **options)  # type: ignore[arg-type]


GAUSSIAN = Gaussian(4, rate_sigma=2.0, q_sigma=3.0, time_exponential=5.0, time_base=0.5)
UNIFORM = Uniform(3, horizon=2.0)
BIG = {"tile": 0}


@pytest.mark.slow
def test_analytical_step_masked_with_the_real_noise() -> None:
    model = tabulated(Masked(3, "arccos"), 3, components=2, seed=1)
    x = drawn(model, SamplingPlan(steps=2, **BIG))
    law = masked_law(model, [1.0, 0.5, 0.0])
    assert chi_square(frequencies(x, model.process), law) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_analytical_step_masked_in_three_steps(dtype: str) -> None:
    model = tabulated(Masked(3), 3, components=2, seed=2)
    x = drawn(model, SamplingPlan(steps=3, dtype=dtype, **BIG), 200_000 if dtype == "float64" else 20_000)
    assert chi_square(frequencies(x, model.process), masked_law(model, [1.0, 2 / 3, 1 / 3, 0.0])) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("process", [GAUSSIAN, UNIFORM], ids=["gaussian", "uniform"])
@pytest.mark.parametrize("last", ["sample", "argmax"])
def test_analytical_step_markov(process: Markov, last: str) -> None:
    model = tabulated(process, 2, components=2, seed=3)
    times = [1.0, 0.505, 0.01]
    law = start(process, 2)
    for t, s in pairwise(times):
        law = move(law, model.network, process, t, markov_kernel(process, t, s))
    final = likeliest(process) if last == "argmax" else markov_kernel(process, 0.01, 0.0)
    law = move(law, model.network, process, 0.01, final)
    x = drawn(model, SamplingPlan(steps=3, grid="pixels", last=last, **BIG))
    assert chi_square(frequencies(x, process), law) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("process", [GAUSSIAN, UNIFORM], ids=["gaussian", "uniform"])
@pytest.mark.parametrize("corrector", [0, 2])
def test_tau_step_and_corrector_step(process: Markov, corrector: int) -> None:
    model = tabulated(process, 2, components=2, seed=4)
    size = 0.05
    law = start(process, 2)
    for i, (t, s) in enumerate([(1.0, 0.505), (0.505, 0.01), (0.01, 0.0)]):
        for _ in range(corrector if i > 0 else 0):
            law = move(law, model.network, process, t, tau_kernel(process, t, size, both=True))
        kernel = tau_kernel(process, t, t - s) if i < 2 else likeliest(process)
        law = move(law, model.network, process, t, kernel)
    plan = SamplingPlan(
        steps=3, sampler="tau-leaping", grid="pixels", last="argmax", corrector=corrector, corrector_step=size, **BIG
    )
    assert chi_square(frequencies(drawn(model, plan), process), law) > LEVEL


@pytest.mark.slow
def test_corrector_step_with_analytical_steps() -> None:
    model = tabulated(GAUSSIAN, 2, components=2, seed=5)
    law = start(GAUSSIAN, 2)
    for i, (t, s) in enumerate([(1.0, 0.505), (0.505, 0.01), (0.01, 0.0)]):
        for _ in range(3 if i > 0 else 0):
            law = move(law, model.network, GAUSSIAN, t, tau_kernel(GAUSSIAN, t, 0.02, both=True))
        law = move(law, model.network, GAUSSIAN, t, markov_kernel(GAUSSIAN, t, s))
    plan = SamplingPlan(steps=3, grid="pixels", corrector=3, corrector_step=0.02, **BIG)
    assert chi_square(frequencies(drawn(model, plan), GAUSSIAN), law) > LEVEL


@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_maskgit_step(guidance: float) -> None:
    process = Masked(2, "arccos")
    model = tabulated(process, 4, components=2, labels=2, seed=6)
    steps, law = 3, start(process, 4)
    masked = [round(4 * share(process, i / steps)) for i in range(steps + 1)]
    for i in range(steps, 0, -1):
        t = i / steps
        scale = 4.5 * (t - 1 / steps) / (1 - 1 / steps)
        kernel = confidence(process, masked[i] - masked[i - 1], scale)
        if guidance:
            law = guided_move(law, model, t, kernel, guidance * (1 - t) * steps / (steps - 1))
        else:
            law = move(law, model.network, process, t, kernel, 1)
    plan = SamplingPlan(steps=steps, sampler="confidence", guidance=guidance, **BIG)
    x = drawn(model, plan, label=torch.ones(DRAWS, dtype=torch.long))
    assert chi_square(frequencies(x, process), law) > LEVEL


def guided_move(law: np.ndarray, model: Denoiser, t: float, kernel: Kernel, weight: float) -> np.ndarray:
    """One step with label 1: λ first, then both branches at that λ, combined in log space."""
    net, out = model.network, np.zeros_like(law)
    for x, chance in zip(states(model.process, net.length), law):
        for part in range(net.components if chance > 0 else 0):
            with np.errstate(divide="ignore", invalid="ignore"):
                both = net.law(x, t, 1, part) ** (1 + weight) / net.law(x, t, -1, part) ** weight
            both = np.nan_to_num(both)
            out += chance / net.components * kernel(x, both / both.sum(1, keepdims=True))
    return out


@pytest.mark.slow
def test_maskgit_step_with_the_real_noise() -> None:
    process = Masked(3)
    model = tabulated(process, 3, seed=7)
    # round(3 / 2) = 2 positions stay masked at t = 1/2
    law = move(start(process, 3), model.network, process, 1.0, confidence(process, 1, 4.5))
    law = move(law, model.network, process, 0.5, confidence(process, 2, 0.0))
    x = drawn(model, SamplingPlan(steps=2, sampler="confidence", **BIG))
    assert chi_square(frequencies(x, process), law) > LEVEL


@pytest.mark.slow
def test_sampling_loop_hybrid_is_student_then_teacher() -> None:
    process = Masked(3)
    student, teacher = tabulated(process, 3, components=2, seed=8), tabulated(process, 3, seed=9)
    law = masked_law(student, [1.0, 0.75, 0.5])
    law = masked_law(teacher, [0.5, 0.25, 0.0], law=law)
    x = drawn(student, SamplingPlan(steps=4, hybrid=2, **BIG), teacher=teacher)
    assert chi_square(frequencies(x, process), law) > LEVEL


@pytest.mark.slow
def test_sampling_loop_conditions_on_given_symbols() -> None:
    process = Masked(3)
    model = tabulated(process, 3, components=2, seed=10)
    law = np.array([float(x == (3, 1, 3)) for x in states(process, 3)])
    law = masked_law(model, [1.0, 0.5, 0.0], law=law)
    given = torch.tensor([-1, 1, -1]).expand(DRAWS, 3)
    x = drawn(model, SamplingPlan(steps=2, **BIG), given=given)
    assert chi_square(frequencies(x, process), law) > LEVEL


@pytest.mark.slow
def test_shaped_prediction_has_temperature_and_nucleus() -> None:
    process = Masked(4)
    model = tabulated(process, 2, seed=11)
    x = drawn(model, SamplingPlan(steps=1, temperature=0.7, top_p=0.8, **BIG))
    law = np.ones(1)
    for row in model.network.law((4, 4), 1.0):
        sharp = row ** (1 / 0.7) / (row ** (1 / 0.7)).sum()
        order = np.argsort(-sharp)
        kept = order[: int(np.searchsorted(sharp[order].cumsum(), 0.8)) + 1]
        cut = np.zeros(5)
        cut[kept] = sharp[kept] / sharp[kept].sum()
        law = np.outer(law, cut).reshape(-1)
    assert chi_square(frequencies(x, process), law) > LEVEL
