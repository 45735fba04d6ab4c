"""`kernels.evaluate` against `methods.di4c.dense_terms` in float64: values and gradients to 1e-10.

The gradients are those of the student's hidden states, of its head and of every other weight behind them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Prediction
from di4c_cli.methods.di4c import dense_loss, dense_terms
from di4c_cli.methods.kernels import TermWeights, evaluate
from tests.helpers.kernel_inputs import BATCH, NETWORKS, KernelCase, case

VARIATES = ["marginal", "convex", "none"]


def gradients(case: KernelCase, loss: Tensor, hidden: Tensor | None = None) -> dict[str, Tensor]:
    """Gradients by name: the student's weights, its head's among them, and its hidden states if they are given."""
    case.student.zero_grad(set_to_none=True)
    loss.backward()
    found = {name: p.grad.clone() for name, p in case.student.named_parameters() if p.grad is not None}
    if hidden is not None:
        assert hidden.grad is not None
        found["hidden"] = hidden.grad.clone()
    return found


def predicted(case: KernelCase) -> Prediction:
    """The student at t; the gradient of its hidden states is kept."""
    student = case.predict()
    student.hidden.retain_grad()
    return student


def compare(case: KernelCase) -> None:
    student = predicted(case)
    total, out = evaluate(case.inputs, student)
    ours = gradients(case, total, student.hidden)
    student = predicted(case)
    dense = dense_loss(case.inputs, student)
    torch.testing.assert_close(total, dense, rtol=0, atol=1e-10)
    for name, value in dense_terms(case.inputs, student).items():
        weight = getattr(case.inputs.weights, name.split("_")[0])
        torch.testing.assert_close(out.terms[name][weight != 0], value[weight != 0], rtol=0, atol=1e-10)
    theirs = gradients(case, dense, student.hidden)
    assert sum(float(g.norm()) for g in theirs.values()) > 0.1
    for name, value in theirs.items():
        torch.testing.assert_close(ours.get(name, torch.zeros_like(value)), value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mixture_teacher", [False, True], ids=["product", "mixture"])
@pytest.mark.parametrize("latents", [1, 3])
@pytest.mark.parametrize("variate", VARIATES)
@pytest.mark.parametrize("kind", NETWORKS)
def test_evaluate_equals_dense_terms(kind: str, variate: str, latents: int, mixture_teacher: bool) -> None:
    """Chunks of two rows, part of them kept between the passes."""
    row = 8 * int(str(NETWORKS[kind]["symbols"]))
    sizes = {"chunk_bytes": 2 * row * latents, "cache_bytes": 4 * row * (1 + latents)}
    compare(case(kind, variate, mixture_teacher, latents=latents, **sizes))


@pytest.mark.parametrize("cache", [0, 1 << 30])
@pytest.mark.parametrize("chunk", [1, 1 << 30])
def test_evaluate_does_not_depend_on_chunk_and_cache(chunk: int, cache: int) -> None:
    compare(case("dit", chunk_bytes=chunk, cache_bytes=cache))


@pytest.mark.parametrize("variate", VARIATES)
@pytest.mark.parametrize("only", ["distil", "consis", "corr", "marginal"])
def test_evaluate_equals_dense_terms_for_each_term_alone(only: str, variate: str) -> None:
    """Weight on one term, and on the first two samples only."""
    share = torch.tensor([1.3, 0.7, 0.0], dtype=torch.float64)
    names = ("distil", "consis", "corr", "marginal")
    weights = TermWeights(**{name: share if name == only else torch.zeros_like(share) for name in names})
    compare(case("dit", variate, weights=weights, chunk_bytes=1000))


def test_evaluate_runs_the_later_student_only_for_samples_that_need_it() -> None:
    """In a batch with both branches the student at u runs only where there is a consistency term."""
    small = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    one = torch.ones(BATCH, dtype=torch.float64)
    base = case("dit", weights=TermWeights(20 * small, 1 - small, 0.1 * one, one), chunk_bytes=1000)
    compare(base)
    p = base.inputs
    assert p.student_u is not None
    later = type(p.student_u)(p.student_u.network, p.student_u.process, p.student_u.x_t[4:8], p.student_u.hidden[4:8])
    few = replace(base, inputs=replace(p, student_u=later, place=torch.tensor([-1, 0, -1])))
    whole, part = (evaluate(c.inputs, c.predict()) for c in (base, few))
    torch.testing.assert_close(part[0], whole[0], rtol=0, atol=1e-12)
    for name, value in whole[1].terms.items():
        torch.testing.assert_close(part[1].terms[name], value, rtol=0, atol=1e-12)


class Opaque(nn.Module):
    """A head of which nothing is known; a blind one does not look at the hidden states."""

    def __init__(self, blind: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second, self.place = (
            nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64))
            for shape in ((11, 16), (11, 11), (6, 11))
        )
        self.blind = blind

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        return self.place[d] if self.blind else torch.tanh(h @ self.first.T) @ self.second + self.place[d]


@pytest.mark.parametrize("blind", [False, True])
def test_opaque_head_gets_the_gradient_of_the_dense_loss(blind: bool) -> None:
    """Differentiated by torch chunk by chunk, added up: as if the loss were dense."""
    base, network = case("dit", chunk_bytes=800), Opaque(blind)
    process = base.student.process
    grads = []
    for loss in (lambda *given: evaluate(*given)[0], dense_loss):
        hidden = torch.linspace(-2, 2, len(base.x) * 6 * 16, dtype=torch.float64).view(-1, 6, 16)
        hidden.requires_grad_()
        network.zero_grad(set_to_none=True)
        loss(base.inputs, Prediction(network, process, base.x, hidden)).backward()
        grads.append([p.grad for p in (hidden, *network.parameters())])
    for ours, theirs in zip(*grads):
        if theirs is None:  # never looked at
            assert ours is None or not bool(ours.any())
        else:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_evaluate_gradient_scales_with_the_incoming_gradient() -> None:
    base = case("dit")
    plain = gradients(base, evaluate(base.inputs, base.predict())[0])
    scaled = gradients(base, evaluate(base.inputs, base.predict())[0] * 2)
    for name, value in plain.items():
        torch.testing.assert_close(scaled[name], 2 * value, rtol=1e-12, atol=1e-12)


def test_evaluate_without_unknown_positions_gives_zero_gradients() -> None:
    """Gradients exist and are zero, so that no process of a group is left waiting for them."""
    base = case("dit")
    p = base.inputs
    assert p.x0 is not None and p.student_u is not None
    known = replace(p, x_t=p.x0)
    total, out = evaluate(known, base.predict())
    assert total.item() == 0
    grads = gradients(base, total)
    assert all(float(g.abs().max()) == 0 for g in grads.values())
    assert "network.output_layer.linear.weight" in grads
    assert all(bool(torch.isfinite(v).all()) for v in (*out.terms.values(), *out.diagnostics.values()))


def test_evaluate_without_gradient_records_no_graph() -> None:
    base = case("dit")
    with torch.no_grad():
        total, _ = evaluate(base.inputs, base.predict())
    assert not total.requires_grad
    torch.testing.assert_close(total, evaluate(base.inputs, base.predict())[0].detach())
