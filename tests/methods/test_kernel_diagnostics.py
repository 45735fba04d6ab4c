"""Diagnostic figures of the kernel against their definitions: torch's gradients, Bayes' rule, KL of pairs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from di4c_cli.methods.di4c import dense_terms
from di4c_cli.methods.kernels import LossInputs, TermWeights
from di4c_cli.methods.kernels.accumulators import TERMS
from di4c_cli.methods.kernels.chunked import ChunkedLoss
from di4c_cli.methods.kernels.diagnostics import Probe, pairwise_kl
from tests.helpers.tables import Everything, ones, stored

BATCH, LATENTS, SYMBOLS = 3, 4, 5


def loss_inputs(length: int, variate: str = "marginal") -> tuple[LossInputs, Tensor]:
    """Nothing is known, every term has a weight of its own for every sample; the student's logits (B·L, D, S)."""
    g = torch.Generator().manual_seed(length)
    process = Everything(SYMBOLS)
    rand = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    logits = lambda n: 3 * rand(n, length, SYMBOLS)  # noqa: E731
    x = torch.zeros(BATCH, length, dtype=torch.long)
    many = x.repeat_interleave(LATENTS, 0)
    made = LossInputs(
        x_t=x,
        latents=LATENTS,
        weights=TermWeights(*[0.5 + rand(BATCH) for _ in TERMS]),
        control_variate=variate,
        teacher=stored(logits(BATCH), x, process),
        student_u=stored(logits(BATCH * LATENTS), many, process),
        place=torch.arange(BATCH),
        uniform=rand(BATCH, LATENTS, length),
        x0=torch.randint(0, SYMBOLS, (BATCH, length), generator=g),
    )
    return made, logits(BATCH * LATENTS)


def diagnostics(inputs: LossInputs, logits: Tensor) -> dict[str, Tensor]:
    student = stored(logits, inputs.x_t.repeat_interleave(LATENTS, 0), Everything(SYMBOLS))
    return ChunkedLoss(inputs, student).run(gradient=False).diagnostics


def by_torch(inputs: LossInputs, logits: Tensor, term: str) -> Tensor:
    """Norm of each sample's weighted term differentiated by its logits, `(B,)`."""
    leaf = logits.clone().requires_grad_()
    student = stored(leaf, inputs.x_t.repeat_interleave(LATENTS, 0), Everything(SYMBOLS))
    (getattr(inputs.weights, term) * dense_terms(inputs, student)[term]).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.view(BATCH, -1).norm(dim=1)


@pytest.mark.parametrize("variate", ["marginal", "convex", "none"])
@pytest.mark.parametrize("term", TERMS)
def test_gradient_norms_of_two_rows_are_exact(term: str, variate: str) -> None:
    inputs, logits = loss_inputs(2, variate)
    torch.testing.assert_close(diagnostics(inputs, logits)[f"grad_{term}"], by_torch(inputs, logits, term))


def test_gradient_norms_are_scaled_up_to_all_rows() -> None:
    """Positions that are all alike: two of seven rows tell the whole norm, and the sensitivity of one."""
    inputs, logits = loss_inputs(7)
    assert inputs.teacher is not None
    same = logits[:, :1].expand(-1, 7, -1).clone()
    law = stored(inputs.teacher.hidden[:, :1].expand(-1, 7, -1).clone(), inputs.x_t, Everything(SYMBOLS))
    alike = replace(inputs, teacher=law)
    shown = diagnostics(alike, same)
    for term in ("distil", "marginal"):
        torch.testing.assert_close(shown[f"grad_{term}"], by_torch(alike, same, term))
    one = pairwise_kl(same[:, 0].log_softmax(-1).view(BATCH, LATENTS, SYMBOLS))
    torch.testing.assert_close(shown["lam_sensitivity"], one)


def test_gradient_norm_of_a_term_without_weight_is_zero() -> None:
    inputs, logits = loss_inputs(2)
    zero = 0 * ones(BATCH)
    shown = diagnostics(replace(inputs, weights=TermWeights(zero, zero, ones(BATCH), zero)), logits)
    assert {name: bool((shown[f"grad_{name}"] > 0).all()) for name in TERMS} == {
        "distil": False, "consis": False, "corr": True, "marginal": False,
    }  # fmt: skip
    assert "correlation_consis" not in shown and "target_entropy" not in shown


def test_correlation_and_effective_latents_are_bayes() -> None:
    """Data alone: log of the mixture over the product of its marginals; exp H of λ's posterior given x0."""
    inputs, logits = loss_inputs(3)
    assert inputs.x0 is not None
    shown = diagnostics(replace(inputs, student_u=None, place=None, uniform=None), logits)
    law = logits.softmax(-1).view(BATCH, LATENTS, 3, SYMBOLS)
    picked = law.gather(3, inputs.x0[:, None, :, None].expand(-1, LATENTS, -1, -1)).squeeze(-1)  # (B, L, D)
    joint = picked.prod(2)
    posterior = joint / joint.sum(1, keepdim=True)
    torch.testing.assert_close(shown["correlation_data"], joint.mean(1).log() - picked.mean(1).log().sum(1))
    torch.testing.assert_close(shown["lam_effective"], (-(posterior * posterior.log()).sum(1)).exp())


def test_consistency_figures_are_means_over_the_samples() -> None:
    """M given configurations: the captured nats averaged; the entropy of the later student's mean law."""
    inputs, logits = loss_inputs(2)
    assert inputs.student_u is not None
    samples = torch.randint(0, SYMBOLS, (BATCH, 6, 2), generator=torch.Generator().manual_seed(9))
    shown = diagnostics(replace(inputs, samples=samples, x0=None), logits)
    single = replace(inputs, student_u=None, place=None)
    alone = [diagnostics(replace(single, x0=samples[:, j]), logits) for j in range(6)]
    for name, own in (("correlation_consis", "correlation_data"), ("lam_effective", "lam_effective")):
        torch.testing.assert_close(shown[name], torch.stack([one[own] for one in alone]).mean(0))
    later = inputs.student_u.hidden.softmax(-1).view(BATCH, LATENTS, 2, SYMBOLS).mean(1)
    torch.testing.assert_close(shown["target_entropy"], -(later * later.log()).sum((1, 2)))


def test_pairwise_kl_is_the_mean_divergence_of_pairs() -> None:
    log_p = (2 * torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(2)).double()).log_softmax(-1)
    pairs = [(log_p[:, i].exp() * (log_p[:, i] - log_p[:, j])).sum(-1) for i, j in itertools.permutations(range(4), 2)]
    torch.testing.assert_close(pairwise_kl(log_p), torch.stack(pairs).mean(0))
    assert pairwise_kl(log_p[:, :1]).tolist() == [0] * 6


def test_probe_spreads_its_rows_over_the_sample() -> None:
    """Of 1, 2, 5 and 0 rows in two chunks: the first and the one in the middle, or all there are."""
    b = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2])
    probe = Probe(4, [b[:5], b[5:]], b.device)
    assert [rows.tolist() for rows in probe.wanted] == [[0, 1, 2, 3], [1]]
    assert probe.count.tolist() == [1, 2, 5, 0]
    empty = Probe(2, [], b.device)
    assert empty.wanted == [] and empty.count.tolist() == [0, 0]


def test_terms_that_a_batch_does_not_have_are_zero() -> None:
    inputs, logits = loss_inputs(2)
    bare = replace(inputs, student_u=None, place=None, uniform=None, x0=None)
    student = stored(logits, inputs.x_t.repeat_interleave(LATENTS, 0), Everything(SYMBOLS))
    terms = ChunkedLoss(bare, student).run(gradient=False).terms
    for name in ("consis", "consis_corr", "consis_indep", "corr"):
        assert terms[name].tolist() == [0] * BATCH
    assert "nll" not in terms and bool((terms["distil"] > 0).all())
