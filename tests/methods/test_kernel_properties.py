"""The kernel at its limits: all or no positions masked, underflow, one latent, two symbols, half precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from di4c_cli.draw import first_above
from di4c_cli.methods.di4c import dense_loss
from di4c_cli.methods.kernels import LossInputs, LossOutput, TermWeights, evaluate
from di4c_cli.methods.kernels.chunked import ChunkedLoss
from di4c_cli.methods.kernels.head import FLOAT16_ROOM, float16_scale
from di4c_cli.methods.kernels.targets import inverse_cdf, product
from di4c_cli.process import Masked
from tests.helpers.kernel_inputs import case, denoiser
from tests.helpers.tables import stored

VARIATES = ["marginal", "convex", "none"]


def random_inputs(
    g: torch.Generator,
    symbols: int,
    length: int,
    latents: int,
    masked: float,
    size: float,
    variate: str,
    dtype: torch.dtype = torch.float64,
    batch: int = 2,
) -> tuple[LossInputs, Tensor]:
    """Logits of standard deviation `size` everywhere; returns the student's too."""
    process = Masked(symbols)
    rand = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    logits = lambda *shape: (size * torch.randn(*shape, length, symbols, generator=g)).to(dtype)  # noqa: E731
    x0 = torch.randint(0, symbols, (batch, length), generator=g)
    x_t = torch.where(rand(batch, length) < masked, symbols, x0)
    many = x_t.repeat_interleave(latents, 0)
    x_u = torch.where(rand(*many.shape) < 0.5, many, x0.repeat_interleave(latents, 0))
    inputs = LossInputs(
        x_t=x_t,
        latents=latents,
        weights=TermWeights(*[rand(batch) for _ in range(4)]),
        control_variate=variate,
        teacher=stored(logits(batch), x_t, process),
        student_u=stored(logits(batch * latents), x_u, process),
        place=torch.arange(batch),
        uniform=rand(batch, latents, length),
        x0=x0,
        chunk_bytes=200,
    )
    return inputs, logits(batch * latents)


def run(inputs: LossInputs, logits: Tensor) -> LossOutput:
    process = Masked(logits.shape[-1])
    many = inputs.x_t.repeat_interleave(inputs.latents, 0)
    return ChunkedLoss(inputs, stored(logits, many, process)).run(gradient=True)


def finite(out: LossOutput) -> None:
    assert out.hidden_grad is not None
    for value in (out.total, out.hidden_grad, *out.terms.values(), *out.diagnostics.values()):
        assert bool(torch.isfinite(value).all())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    symbols=st.sampled_from([2, 3, 17]),
    length=st.integers(1, 5),
    latents=st.sampled_from([1, 2, 5]),
    masked=st.sampled_from([0.0, 0.5, 1.0]),
    size=st.sampled_from([0.0, 1.0, 60.0, 2000.0]),
    variate=st.sampled_from(VARIATES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_kernel_is_finite(
    seed: int, symbols: int, length: int, latents: int, masked: float, size: float, variate: str, dtype: torch.dtype
) -> None:
    """Logits up to thousands: probabilities far below what float32 (and float64) can hold."""
    g = torch.Generator().manual_seed(seed)
    inputs, logits = random_inputs(g, symbols, length, latents, masked, size, variate, dtype)
    out = run(inputs, logits)
    finite(out)
    assert out.hidden_grad is not None
    # a gradient at logits sums to zero over the symbols, and known positions have none
    scale = float(out.hidden_grad.abs().max()) + 1
    assert float(out.hidden_grad.sum(-1).abs().max()) < (1e-4 if dtype is torch.float32 else 1e-11) * scale
    known = (inputs.x_t != symbols).repeat_interleave(latents, 0)
    assert float(out.hidden_grad[known].abs().sum()) == 0


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), variate=st.sampled_from(VARIATES), size=st.sampled_from([1.0, 30.0]))
def test_kernel_in_float32_agrees_with_float64(seed: int, variate: str, size: float) -> None:
    """Underflow in float32 is no reason for another answer: log-probabilities around -100 and below."""
    g = torch.Generator().manual_seed(seed)
    inputs, logits = random_inputs(g, 5, 4, 3, 1.0, size, variate, torch.float32)
    wide_teacher, wide_later = (
        stored(p.hidden.double(), p.x_t, p.process) for p in (inputs.teacher, inputs.student_u) if p
    )
    wide = replace(inputs, teacher=wide_teacher, student_u=wide_later)
    narrow, exact = run(inputs, logits), run(wide, logits.double())
    assert narrow.hidden_grad is not None and exact.hidden_grad is not None
    torch.testing.assert_close(narrow.total, exact.total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(narrow.hidden_grad.double(), exact.hidden_grad, rtol=1e-3, atol=1e-4)


def test_kernel_keeps_the_gradient_of_a_symbol_that_underflows() -> None:
    """All λ give the teacher's symbol probability e^-300: the gradient leads back to it, in float32 too."""
    one, process = torch.ones(1, dtype=torch.float64), Masked(2)
    x = torch.full((2, 1), 2)
    inputs = LossInputs(
        x[:1], 2, TermWeights(0 * one, 0 * one, 0 * one, one),
        teacher=stored(torch.tensor([[[0.0, 50.0]]]), x[:1], process),
    )  # fmt: skip
    out = ChunkedLoss(inputs, stored(torch.tensor([[[300.0, 0.0]], [[300.0, 0.0]]]), x, process)).run(gradient=True)
    assert out.hidden_grad is not None
    torch.testing.assert_close(out.hidden_grad.flatten(), torch.tensor([0.5, -0.5, 0.5, -0.5]))
    assert float(out.terms["marginal"]) == pytest.approx(300, rel=1e-6)


@pytest.mark.parametrize("variate", VARIATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correlation_of_one_latent_is_exactly_zero(variate: str, dtype: torch.dtype) -> None:
    inputs, logits = random_inputs(torch.Generator().manual_seed(0), 7, 6, 1, 0.8, 3.0, variate, dtype)
    out = run(inputs, logits)
    assert out.diagnostics["correlation_data"].tolist() == [0, 0]
    assert out.diagnostics["correlation_consis"].tolist() == [0, 0]
    if variate == "marginal":
        assert out.terms["corr"].tolist() == [0, 0] and out.terms["consis_corr"].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("latents", [2, 3, 16])
def test_correlation_of_a_latent_without_influence_is_zero(latents: int, dtype: torch.dtype) -> None:
    """The same prediction for all λ: at most rounding of the sums, and no gradient from the correlation."""
    g = torch.Generator().manual_seed(1)
    inputs, logits = random_inputs(g, 50, 40, latents, 1.0, 3.0, "marginal", dtype)
    same = logits[::latents].repeat_interleave(latents, 0)
    out = run(inputs, same)
    for name in ("correlation_data", "correlation_consis"):
        assert float(out.diagnostics[name].abs().max()) <= 1e-12
    assert float(out.terms["corr"].abs().max()) <= 1e-12
    assert float(out.diagnostics["grad_corr"].max()) <= 1e-6
    torch.testing.assert_close(out.diagnostics["lam_effective"], torch.full((2,), float(latents)).double())
    assert float(out.diagnostics["lam_sensitivity"].max()) <= 1e-5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    symbols=st.sampled_from([1, 2, 3, 15, 16, 17, 255, 256, 257, 1000]),
    holes=st.floats(0, 0.99),
)
def test_inverse_cdf_draws_the_first_symbol_above_the_goal(seed: int, symbols: int, holes: float) -> None:
    """The symbol whose running sum first exceeds u·total; never one of weight zero."""
    g = torch.Generator().manual_seed(seed)
    weight = torch.rand(20, symbols, generator=g) * (torch.rand(20, symbols, generator=g) >= holes)
    weight[:, int(torch.randint(symbols, (1,), generator=g))] += 0.1
    u = torch.rand(20, generator=g, dtype=torch.float64)
    u[0], u[1] = 0.0, 1 - 2.0**-53
    drawn = inverse_cdf(weight, u)
    assert bool((weight.gather(1, drawn[:, None]) > 0).all())
    running = weight.double().cumsum(1)
    below = running.gather(1, drawn[:, None]) - weight.double().gather(1, drawn[:, None])
    goal = u[:, None] * running[:, -1:]
    slack = 1e-6 * running[:, -1:]
    assert bool((below <= goal + slack).all())
    assert bool((running.gather(1, drawn[:, None]) >= goal - slack).all())


def test_first_above_gives_the_last_symbol_with_weight_for_the_total() -> None:
    goal = torch.tensor([[1.0], [0.5], [0.0]], dtype=torch.float64)
    running = torch.tensor([[0.5, 1.0, 1.0]], dtype=torch.float64).repeat(3, 1)
    assert first_above(running, goal).flatten().tolist() == [1, 1, 0]


def test_product_keeps_its_precision_under_autocast() -> None:
    a, b = torch.rand(3, 40), torch.rand(40, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ b).dtype is torch.bfloat16
        torch.testing.assert_close(product(a, b), (a.double() @ b.double()).float())


def test_evaluate_under_autocast_is_near_float32() -> None:
    """bfloat16 products, float32 log-probabilities: near the float32 loss, gradients in float32, chunk by chunk."""
    base = case("dit", chunk_bytes=500)
    network = denoiser("dit", True, 1, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        student = network.predict(base.x, base.t, lam=base.lam.float())
        total, _ = evaluate(base.inputs, student)
    total.backward()
    gradient = network.network.linear_head[0].grad  # type: ignore[index, union-attr]
    reference = network.predict(base.x, base.t, lam=base.lam.float())
    exact = dense_loss(base.inputs, reference)
    network.zero_grad()
    exact.backward()
    expected = network.network.linear_head[0].grad  # type: ignore[index, union-attr]
    assert gradient.dtype == torch.float32 and bool(torch.isfinite(gradient).all())
    assert float(total.detach()) == pytest.approx(float(exact.detach()), rel=0.05)
    assert float((gradient - expected).norm()) < 0.1 * float(expected.norm())


@pytest.mark.parametrize("kind", ["dit", "maskgit", "unet"])
def test_evaluate_under_float16_keeps_small_gradients(kind: str) -> None:
    """Gradients of 1e-7 that a loss scale of 2^22 brings into float16's range: all parameters, head included."""
    scale = 2.0**22
    base = case(kind, chunk_bytes=500)
    inputs = replace(base.inputs, weights=base.inputs.weights.divided(int(scale)))
    network = denoiser(kind, True, 1, torch.float32)
    with torch.autocast("cpu", torch.float16):
        student = network.predict(base.x, base.t, lam=base.lam.float())
        total, _ = evaluate(inputs, student)
    (total * scale).backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    dense_loss(base.inputs, network.predict(base.x, base.t, lam=base.lam.float())).backward()
    for name, parameter in network.named_parameters():
        if parameter.grad is not None and float(parameter.grad.norm()) > 1e-3:
            error = float((gradients[name] - parameter.grad).norm()) / float(parameter.grad.norm())
            assert error < 0.05, (name, error)


def test_float16_scale_uses_the_range_of_float16() -> None:
    dz = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 1e-9
    scale = float16_scale(dz, 3.0, 5.0)
    largest = max(float(dz.abs().sum(1).max()) * 3, float(dz.abs().sum(0).max()) * 5) * float(scale)
    assert FLOAT16_ROOM / 2 < largest <= FLOAT16_ROOM and float(torch.log2(scale)).is_integer()
    assert bool(torch.isfinite(float16_scale(torch.zeros(2, 3))))
