"""Estimators of the Di4C terms against exact sums over all configurations.

Given its λ set every estimator is unbiased: value and gradient are compared with the exact ones, |z| < 4.5
for each number (a true hypothesis fails with probability 7e-6 per number; the seeds are fixed). Against the
exact E_λ the log of an L-average is biased by Jensen's inequality: that bias is measured and must shrink
with L.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.methods.kernels import LossInputs, LossOutput, TermWeights
from di4c_cli.methods.kernels.chunked import ChunkedLoss
from tests.helpers.enumerable import DATA, LENGTH, SYMBOLS, clean_laws, configurations, student, target_law, teacher

REPEATS, LATENTS = 4000, 4
T, U = 0.8, 0.45
X_T = torch.tensor([SYMBOLS, SYMBOLS, SYMBOLS])
STUDENT, TEACHER = student(), teacher()
MILD = student(spread=0.5)
"""A student whose λ differ less: nearer to what training starts from."""
VARIATES = ["marginal", "convex", "none"]


def draws(
    variate: str,
    latents: int = LATENTS,
    fixed: bool = True,
    seed: int = 0,
    repeats: int = REPEATS,
    model: Denoiser = STUDENT,
) -> tuple[LossInputs, Prediction]:
    """The same x_t `repeats` times with independent x_u, λ' and x_j; one λ set for all, or one for each."""
    g = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    x_t = X_T.expand(repeats, -1)
    t, u = (torch.full((repeats,), value, dtype=torch.float64) for value in (T, U))
    with torch.no_grad():
        teach = TEACHER.predict(x_t, t)
        x_u = TEACHER.process.step(teach.log_probs, x_t, t, u, rand(repeats, latents, LENGTH, 2))
        many = repeats * latents
        later = model.predict(x_u.flatten(0, 1), u.repeat_interleave(latents), lam=rand(many))
        lam = rand(latents).repeat(repeats) if fixed else rand(many)
        ours = model.predict(x_t.repeat_interleave(latents, 0), t.repeat_interleave(latents), lam=lam)
    one = torch.ones(repeats, dtype=torch.float64)
    inputs = LossInputs(
        x_t=x_t,
        latents=latents,
        weights=TermWeights(0 * one, one, 0 * one, 0 * one),
        control_variate=variate,
        teacher=teach,
        student_u=later,
        place=torch.arange(repeats),
        uniform=rand(repeats, latents, LENGTH),
    )
    return inputs, ours


def cross_entropy(out: LossOutput, variate: str) -> Tensor:
    """The consistency term without the target's entropy, which the reported value subtracts."""
    return out.terms["consis"] + (0 if variate == "none" else out.diagnostics["target_entropy"])


def exact_loss(logits: Tensor, law: Tensor) -> Tensor:
    """H(q, p_L) for the L fixed products with logits `(L, D, S)`."""
    mixture = configurations(logits.softmax(-1), DATA).mean(0)
    return -(law * mixture.log()).sum()


def z_scores(values: Tensor, exact: Tensor) -> Tensor:
    """Standardised difference of the mean over the first dimension from its exact value."""
    error = values.std(0) / math.sqrt(len(values))
    return (values.mean(0) - exact) / error.clamp_min(1e-12)


@pytest.mark.parametrize("variate", VARIATES)
def test_consistency_is_unbiased_given_its_latents(variate: str) -> None:
    inputs, ours = draws(variate)
    out = ChunkedLoss(inputs, ours).run(gradient=True)
    law = target_law(TEACHER, STUDENT, X_T, T, U)
    logits = ours.hidden[:LATENTS].clone().requires_grad_()
    exact = exact_loss(logits, law)
    exact.backward()
    assert abs(float(z_scores(cross_entropy(out, variate), exact.detach()))) < 4.5
    assert out.hidden_grad is not None and logits.grad is not None
    each = REPEATS * out.hidden_grad.view(REPEATS, LATENTS, LENGTH, SYMBOLS)  # of each repeat's own loss
    assert float(z_scores(each, logits.grad).abs().max()) < 4.5


@pytest.mark.parametrize(("model", "share"), [(STUDENT, 0.9), (MILD, 0.6)], ids=["strong", "mild"])
def test_control_variate_lowers_the_variance(model: Denoiser, share: float, record_property: Any) -> None:
    """Variance over x_u, λ' and x_j for one λ set: of the value, and of the gradient summed over its entries.

    `share`: what the variate must at most leave. The less correlation the mixture holds, the more it takes
    away.
    """
    value, gradient = {}, {}
    for variate in VARIATES:
        inputs, ours = draws(variate, model=model)
        out = ChunkedLoss(inputs, ours).run(gradient=True)
        assert out.hidden_grad is not None
        value[variate] = float(cross_entropy(out, variate).var())
        gradient[variate] = float((REPEATS * out.hidden_grad.view(REPEATS, -1)).var(0).sum())
    print(f"variance of the value {value}, of the gradient {gradient}")
    record_property("variance", {"value": value, "gradient": gradient})
    assert value["marginal"] < share * value["none"]
    assert gradient["marginal"] < share * gradient["none"]


def test_bias_against_all_latents_shrinks_with_their_number(record_property: Any) -> None:
    """E over λ sets of the estimate minus H(q, E_λ p): positive, each doubling of L lowers it."""
    law = target_law(TEACHER, STUDENT, X_T, T, U)
    exact = -(law * clean_laws(STUDENT, X_T[None])[0].mean(0).log()).sum()
    biases = []
    for latents in (1, 2, 4, 8, 16):
        inputs, ours = draws("marginal", latents, fixed=False, seed=latents, repeats=3000)
        estimate = cross_entropy(ChunkedLoss(inputs, ours).run(gradient=False), "marginal") - exact
        biases.append((float(estimate.mean()), float(estimate.std()) / math.sqrt(len(estimate))))
    print("bias by L", dict(zip((1, 2, 4, 8, 16), biases)))
    record_property("bias", biases)
    for (large, error), (small, other) in pairwise(biases):
        assert large - small > 4.5 * math.hypot(error, other)
    assert biases[0][0] > 10 * biases[-1][0] > 0


def test_correlation_on_data_is_unbiased_given_its_latents() -> None:
    """L_corr over x0 from a law with correlations: mean of the estimates, exact expectation."""
    g = torch.Generator().manual_seed(5)
    law = torch.randn(len(DATA), generator=g, dtype=torch.float64).mul(2).softmax(0)
    inputs, ours = draws("marginal")
    x0 = DATA[torch.multinomial(law, REPEATS, replacement=True, generator=g)]
    zero = torch.zeros(REPEATS, dtype=torch.float64)
    weights = TermWeights(zero, zero, zero + 1, zero)
    out = ChunkedLoss(replace(inputs, x0=x0, weights=weights), ours).run(gradient=True)
    logits = ours.hidden[:LATENTS].clone().requires_grad_()
    single = logits.softmax(-1)
    mixture, product = configurations(single, DATA).mean(0), configurations(single.mean(0), DATA)
    exact = (law * (product.log() - mixture.log())).sum()
    exact.backward()
    assert abs(float(z_scores(out.terms["corr"], exact.detach()))) < 4.5
    assert out.hidden_grad is not None and logits.grad is not None
    each = REPEATS * out.hidden_grad.view(REPEATS, LATENTS, LENGTH, SYMBOLS)
    assert float(z_scores(each, logits.grad).abs().max()) < 4.5


@pytest.mark.parametrize("term", ["marginal", "distil"])
def test_terms_against_the_teacher_are_exact_or_unbiased(term: str) -> None:
    """Exact for a product teacher; with a mixture teacher the gradient is unbiased over its λ."""
    inputs, ours = draws("marginal")
    zero = torch.zeros(REPEATS, dtype=torch.float64)
    weights = replace(TermWeights(zero, zero, zero, zero), **{term: zero + 1})
    logits = ours.hidden[:LATENTS].clone().requires_grad_()

    def exact(marginals: Tensor) -> Tensor:
        single = logits.log_softmax(-1)
        if term == "marginal":
            return (marginals * (marginals.log() - single.exp().mean(0).log())).sum()
        return (marginals * (marginals.log() - single)).sum((1, 2)).mean()

    assert inputs.teacher is not None
    plain = ChunkedLoss(replace(inputs, weights=weights), ours).run(gradient=False).terms[term]
    expected = exact(inputs.teacher.dense()[0].exp()).detach()
    torch.testing.assert_close(plain, expected.expand(REPEATS), rtol=0, atol=1e-12)
    other = student(seed=9)
    g = torch.Generator().manual_seed(3)
    lam = torch.rand(2 * REPEATS, generator=g, dtype=torch.float64)
    with torch.no_grad():
        mixture = other.predict(inputs.x_t.repeat_interleave(2, 0), zero.repeat_interleave(2), lam=lam)
        grid = (torch.arange(8).double() + 0.5) / 8
        means = other.predict(X_T.expand(8, -1), torch.zeros(8), lam=grid).dense().exp().mean(0)
    mixed = replace(inputs, weights=weights, teacher=mixture, teacher_latents=2)
    out = ChunkedLoss(mixed, ours).run(gradient=True)
    exact(means).backward()
    assert out.hidden_grad is not None and logits.grad is not None
    each = REPEATS * out.hidden_grad.view(REPEATS, LATENTS, LENGTH, SYMBOLS)
    assert float(z_scores(each, logits.grad).abs().max()) < 4.5
