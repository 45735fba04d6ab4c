"""Di4C as the training loop calls it: compositions, branches, sources of x_t, and what must not matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.methods.base import Loss, MethodSetup
from di4c_cli.methods.di4c import Di4C, dense_loss
from di4c_cli.methods.di4c_config import AlphaConfig, DeltaConfig, Di4CConfig, SplitTimeConfig, StepConfig
from di4c_cli.methods.di4c_times import alpha_at, sample_times
from di4c_cli.methods.kernels import evaluate
from di4c_cli.methods.noised_batch import NoisedBatch
from di4c_cli.noise import Noise
from tests.helpers.enumerable import DATA, LENGTH, SYMBOLS, clean_laws, configurations, student, teacher
from tests.helpers.kernel_inputs import denoiser

CIFAR = Di4CConfig(
    latents=3, branch="both", delta=DeltaConfig(low=0.01, high=0.02, at_low=0.5), step=StepConfig(low=0.001, high=0.01)
)
MASKGIT = Di4CConfig(
    latents=3,
    delta=DeltaConfig(low=0.4, high=0.4),
    step=StepConfig(low=0.4, high=0.4),
    distil_weight="1/step",
    alpha=AlphaConfig(kind="sigmoid", scale=0.1),
)
SDTT = Di4CConfig(
    latents=3,
    delta=DeltaConfig(low=0.3, high=0.3),
    step=StepConfig(low=1 / 8, high=1 / 8),
    time=SplitTimeConfig(grid=8, small_share=0.5),
    alpha=AlphaConfig(kind="zero"),
)
NO_DELTA = DeltaConfig(low=0.0, high=0.0)
PAPER = {"cifar10": CIFAR, "maskgit": MASKGIT, "sdtt": SDTT}


def batch_of(model: Denoiser, index: list[int]) -> Batch:
    """Data that depend on the sample's number alone."""
    uniform = Noise(7, index, "data").uniform("x0", model.length)
    return Batch(index, (uniform * model.symbols).long())


def changed(config: Di4CConfig, **values: Any) -> Di4CConfig:
    return config.model_copy(update=values)


def method_of(config: Di4CConfig, kind: str = "dit", mixture: bool = False, **setup: bool) -> Di4C:
    """The method with a small student and a small teacher; `mixture`: the teacher has a λ too."""
    return Di4C(config, denoiser(kind, True, 1), denoiser(kind, mixture, 2), MethodSetup(**setup))


def run(config: Di4CConfig, kind: str = "dit", index: list[int] | None = None, mixture: bool = False) -> Loss:
    index = list(range(8)) if index is None else index
    method = method_of(config, kind, mixture)
    return method.loss(batch_of(method.student, index), Noise(0, index, "train"))


def masked_batch(method: Di4C, index: list[int]) -> NoisedBatch:
    """Times of the config and x_t without a known position."""
    noise, data = Noise(0, index, "train"), batch_of(method.student, index)
    assert data.x0 is not None
    x_t = torch.full_like(data.x0, method.student.process.mask)  # type: ignore[arg-type]
    return NoisedBatch(x_t, data.x0, None, sample_times(method.config, noise), noise)


@pytest.mark.parametrize("name", PAPER)
def test_loss_is_the_composition_of_the_paper(name: str) -> None:
    """eq. loss-cifar10, loss-maskgit, loss-sdtt from the reported terms, sample by sample."""
    config, noise = PAPER[name], Noise(0, range(8), "train")
    loss, times = run(config), sample_times(config, noise)
    alpha, terms = alpha_at(config.alpha, times.t), loss.terms
    expected = alpha * terms["corr"] + terms["marginal"]
    if name == "cifar10":
        expected = expected + terms["distil"] + terms["consis"]
        assert bool(loss.active["distil"].all() and loss.active["consis"].all())
    else:
        small = times.t <= times.delta
        weight = 1 / 0.4 if name == "maskgit" else 1.0
        expected = expected + torch.where(small, weight * terms["distil"], terms["consis"])
        assert 0 < int(small.sum()) < 8
        assert torch.equal(loss.active["distil"], small) and torch.equal(loss.active["consis"], ~small)
    torch.testing.assert_close(terms["total"], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss.total.detach(), expected.mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixture", [False, True], ids=["product", "mixture"])
@pytest.mark.parametrize("name", PAPER)
def test_loss_of_a_sample_does_not_depend_on_the_others(name: str, mixture: bool) -> None:
    """Terms of a sample alone and in a batch: the same draws, the same numbers."""
    whole = run(PAPER[name], mixture=mixture)
    part = run(PAPER[name], index=[5, 2], mixture=mixture)
    for key, value in part.terms.items():
        torch.testing.assert_close(value, whole.terms[key][[5, 2]], rtol=0, atol=1e-10)
    for key, flags in part.active.items():
        assert torch.equal(flags, whole.active[key][[5, 2]])


@pytest.mark.parametrize("kind", ["dit", "unet"])
def test_loss_equals_the_dense_loss_of_its_inputs(kind: str) -> None:
    method, index = method_of(changed(MASKGIT, delta=NO_DELTA), kind), list(range(3))
    noise, batch = Noise(0, index, "train"), batch_of(method.student, index)
    times = sample_times(method.config, noise)
    assert batch.x0 is not None
    x_t = method.student.process.corrupt(batch.x0, times.t, noise.uniform("corrupt", method.student.length))
    with torch.no_grad():
        noised = NoisedBatch(x_t, batch.x0, None, times, noise)
        expected = dense_loss(method.inputs_at_t(noised), method.student_at_t(noised))
        total = method.loss(batch, noise).total
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-9)


def test_inputs_at_t_hold_the_teacher_and_the_memory_limits() -> None:
    method = method_of(changed(MASKGIT, chunk_mb=0.5, cache_mb=3.0))
    batch = masked_batch(method, list(range(3)))
    with torch.no_grad():
        inputs = method.inputs_at_t(batch)
        expected = method.teacher.predict(batch.x_t, batch.times.t)
    assert (inputs.chunk_bytes, inputs.cache_bytes) == (1 << 19, 3 << 20)
    assert inputs.teacher is not None and inputs.teacher_latents == 1 and inputs.x0 is batch.x0
    torch.testing.assert_close(inputs.teacher.dense(), expected.dense())


def test_confidence_step_reveals_the_surest() -> None:
    """n(t, u) positions a latent, at least one; only masked positions change."""
    method = method_of(changed(MASKGIT, teacher_step="confidence", delta=NO_DELTA), "maskgit")
    batch, process, length = (masked_batch(method, list(range(6))), method.student.process, method.student.length)
    with torch.no_grad():
        inputs = method.inputs_at_t(batch)
    assert inputs.student_u is not None
    shown = (~process.unknown(inputs.student_u.x_t)).sum(1).view(6, 3)
    expected = (length * batch.times.t).round() - (length * batch.times.u).round()
    assert torch.equal(shown, expected.clamp_min(1).long()[:, None].expand(-1, 3))


@pytest.mark.parametrize("dropout", [False, True], ids=["without", "with"])
def test_dropout_acts_on_the_student_with_a_graph_only(dropout: bool) -> None:
    """Only the student at t (and δ) runs in training mode, if asked to, and it runs last."""
    seen: list[tuple[str, bool, bool]] = []
    method = method_of(CIFAR, dropout=dropout)
    for name, model in {"student": method.student, "teacher": method.teacher}.items():
        body = model.network.body

        def spy(*args: Any, _name: str = name, _body: Any = body, _model: Denoiser = model) -> Tensor:
            seen.append((_name, _model.network.training, torch.is_grad_enabled()))
            return _body(*args)

        model.network.body = spy  # type: ignore[assignment]
    method.loss(batch_of(method.student, list(range(4))), Noise(0, range(4), "train"))
    assert seen == [
        ("teacher", False, False),
        ("student", False, False),
        ("teacher", False, False),
        ("student", dropout, True),
        ("student", dropout, True),
    ]


def test_activation_checkpoints_change_nothing() -> None:
    grads = []
    for checkpointing in (False, True):
        method = method_of(CIFAR)
        method.student.network.checkpointing = checkpointing  # type: ignore[assignment]
        method.loss(batch_of(method.student, [0, 1]), Noise(0, [0, 1], "train")).total.backward()
        grads.append([p.grad for p in method.parameters() if p.grad is not None])
    for plain, replayed in zip(*grads):
        torch.testing.assert_close(plain, replayed, rtol=0, atol=1e-12)


def test_loss_without_data_says_how_to_train_without() -> None:
    with pytest.raises(UserError, match="--data teacher"):
        method_of(SDTT).loss(Batch([0, 1]), Noise(0, [0, 1], "train"))


@pytest.mark.parametrize("alpha", ["zero", "sigmoid"])
@pytest.mark.parametrize("name", PAPER)
def test_loss_without_data_is_finite_and_reports_its_terms(name: str, alpha: str) -> None:
    config = changed(PAPER[name], alpha=AlphaConfig(kind=alpha), reference_steps=4)  # type: ignore[arg-type]
    loss = method_of(config, data_free=True).loss(Batch([0, 1, 2]), Noise(0, [0, 1, 2], "train"))
    loss.total.backward()
    assert bool(torch.isfinite(loss.total))
    assert bool(loss.active["corr"].any()) == (alpha != "zero")
    # the trajectory continues to x0 only for terms that need it
    assert bool(loss.active["nll"].any()) == (alpha != "zero" or name == "cifar10")


def test_distillation_at_delta_is_the_mean_over_its_latents() -> None:
    """Each λ of a sample has a time and an x_δ of its own; term and gradient are those of their mean."""
    method, index = method_of(changed(CIFAR, delta=DeltaConfig(low=0.5, high=0.6, at_low=0.5))), [0, 1]
    batch, noise = batch_of(method.student, index), Noise(0, index, "train")
    loss = method.loss(batch, noise)
    assert batch.x0 is not None
    noised = NoisedBatch(batch.x0, batch.x0, None, sample_times(method.config, noise), noise)
    apart, delta = method.inputs_at_delta(noised)
    lam = method.student.draw_latent(noise, "lam/delta", batch.x0, delta.view(2, 3), None, 3)
    assert lam is not None
    _, out = evaluate(apart, method.student.predict(apart.x_t, delta, None, lam.flatten(0, 1)))
    torch.testing.assert_close(loss.terms["distil"], out.terms["distil"].view(2, 3).mean(1))
    squares = out.diagnostics["grad_distil"].view(2, 3).square().sum(1)
    assert float(squares.min()) > 0
    torch.testing.assert_close(loss.diagnostics["grad_distil"], squares.sqrt() / 3)


def test_noised_follows_the_teacher_without_data_although_data_is_given() -> None:
    """With `data_free` x_t comes from the trajectory; x0 is drawn only for terms that need it."""
    noise, batch = Noise(0, range(4), "train"), Batch(list(range(4)), DATA[:4], None)
    for alpha in ("zero", "const"):
        config = Di4CConfig(alpha=AlphaConfig(kind=alpha))  # type: ignore[arg-type]
        drawn = Di4C(config, student(), teacher(), MethodSetup(data_free=True)).noised(batch, noise)
        assert drawn.x0 is not batch.x0
        assert (drawn.x0 is None) == (alpha == "zero")
        own = Di4C(config, student(), teacher()).noised(batch, noise)
        assert own.x0 is batch.x0 and not torch.equal(own.x_t, drawn.x_t)
        if drawn.x0 is not None:
            assert int(drawn.x0.max()) < SYMBOLS


def test_training_learns_the_correlation() -> None:
    """A tabular student on data of two equal halves: what its marginals cannot hold, the mixture learns."""
    theirs, ours = teacher(), student(seed=3, spread=0.3)
    config = Di4CConfig(
        latents=8,
        delta=DeltaConfig(low=0.05, high=0.05),
        step=StepConfig(low=0.25, high=0.25),
        alpha=AlphaConfig(kind="const"),
    )
    method = Di4C(config, ours, theirs)
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.05)
    data = torch.tensor([[0, 1, 2], [2, 0, 1]])
    captured: list[float] = []
    for step in range(100):
        index = list(range(step * 16, step * 16 + 16))
        noise = Noise(0, index, "train")
        x0 = data[(noise.uniform("data") * 2).long()]
        loss = method.loss(Batch(index, x0), noise)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        captured.append(float(loss.diagnostics["correlation_data"].mean()))
    assert sum(captured[-20:]) / 20 > sum(captured[:5]) / 5 + 0.3
    masked = torch.full((1, LENGTH), SYMBOLS)
    law = clean_laws(ours, masked)[0].mean(0)
    ones = torch.stack([DATA.eq(s).double().T @ law for s in range(SYMBOLS)], -1)  # (D, S) marginals
    wanted = [int(DATA.eq(row).all(1).nonzero()) for row in data]
    assert float(law[wanted].sum()) > 1.5 * float(configurations(ones, DATA)[wanted].sum())


def test_method_trains_the_student_and_hides_the_teacher() -> None:
    """The teacher is no submodule, so neither the optimizer nor DDP sees it."""
    method = method_of(MASKGIT)
    assert {id(p) for p in method.parameters()} == {id(p) for p in method.student.parameters()}
    assert method._frozen == (method.teacher,)
    with pytest.raises(AssertionError, match="without a teacher"):
        _ = Di4C(MASKGIT, method.student).teacher


@pytest.mark.parametrize("touch", [False, True])
def test_forward_gives_a_graph_to_a_batch_without_unknown_positions(touch: bool) -> None:
    """A sample at t near 0 may have no unknown position; DDP still waits for the gradients of every parameter."""
    method, index = method_of(changed(SDTT, time=SplitTimeConfig(low=0.0))), [0, 1]
    method.touch_all_parameters = touch
    batch = batch_of(method.student, index)
    known = method.noised(batch, Noise(0, index, "train"))
    method.noised = lambda *_: NoisedBatch(batch.x0, batch.x0, None, known.times, known.noise)  # type: ignore
    total, terms, active, diagnostics = method(batch, Noise(0, index, "train"))
    total.backward()
    assert total.item() == 0 and {"distil", "consis", "corr", "marginal", "total"} <= terms.keys()
    assert active.keys() and diagnostics.keys()
    grads = [p.grad for p in method.parameters()]
    assert all(grad is None or not bool(grad.any()) for grad in grads)
    assert not touch or all(grad is not None for grad in grads)


class CountedOperations(TorchDispatchMode):
    """Counts the operations inside the block."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is not torch.ops.aten.view.default
        return function(*args, **(kwargs or {}))


def test_gradients_for_all_parameters_cost_nothing_where_all_are_used() -> None:
    """DDP and FSDP need a gradient of every parameter; a zero for each of them used to cost six kernels."""
    counts = []
    for touch in (False, True):
        method = method_of(MASKGIT)
        method.unused = torch.nn.Parameter(torch.ones(3))
        method.touch_all_parameters = touch
        with CountedOperations() as operations:
            method(batch_of(method.student, [0, 1]), Noise(0, [0, 1]))[0].backward()
        counts.append(operations.count)
        assert (method.unused.grad is not None) == touch
    assert not bool(method.unused.grad.any())
    assert counts[1] - counts[0] <= 3 * sum(p.grad is None or not bool(p.grad.any()) for p in method.parameters())


def test_loss_clears_the_autocast_cache_between_the_passes_without_and_with_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch 2.9 and 2.10 keep cast weights of a pass without gradient, and the next pass would train nothing."""
    method = method_of(SDTT)
    calls: list[str] = []
    predict, clear = Denoiser.predict, torch.clear_autocast_cache

    def recorded(self: Denoiser, *arguments: Any, **options: Any) -> Any:
        calls.append("graph" if torch.is_grad_enabled() else "no graph")
        return predict(self, *arguments, **options)

    monkeypatch.setattr(Denoiser, "predict", recorded)
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: (calls.append("clear"), clear()))
    with torch.autocast("cpu", torch.bfloat16):
        method.loss(batch_of(method.student, [0, 1, 2, 3]), Noise(0, [0, 1, 2, 3]))
        seen = list(calls)  # leaving the context clears the cache too
    assert set(seen[: seen.index("clear")]) == {"no graph"}
    assert set(seen[seen.index("clear") + 1 :]) == {"graph"}
