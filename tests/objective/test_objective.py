"""The objective as the training loop calls it: compositions, branches, references, what must not matter."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from di4c_cli.bench.dense import dense_loss
from di4c_cli.data.batch import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.objective.fused import evaluate
from di4c_cli.objective.loss import Case, Loss, Objective
from di4c_cli.objective.reference import draw_reference, trajectory
from di4c_cli.objective.settings import Alpha, Delta, PosteriorSettings, Settings, Step, Times
from di4c_cli.objective.steps import confident, teacher_predictions
from di4c_cli.objective.times import Moments, alpha_at, draw_moments
from tests.helpers.enumerable import (
    DATA,
    LENGTH,
    NOISY,
    PLACES,
    SYMBOLS,
    clean_laws,
    configurations,
    student,
    teacher,
)
from tests.helpers.worlds import denoiser

CIFAR = Settings(latents=3, branch="both", delta=Delta(0.01, 0.02, 0.5), step=Step(0.001, 0.01))
MASKGIT = Settings(
    latents=3, delta=Delta(0.4, 0.4), step=Step(0.4, 0.4), distil_weight="1/step", alpha=Alpha("sigmoid", 0.1)
)
SDTT = Settings(
    latents=3,
    delta=Delta(0.3, 0.3),
    step=Step(1 / 8, 1 / 8),
    time=Times(grid=8, small_share=0.5),
    alpha=Alpha("zero"),
)
PAPER = {"cifar10": CIFAR, "maskgit": MASKGIT, "sdtt": SDTT}


def batch_of(model: Denoiser, index: list[int]) -> Batch:
    """Data that depend on the sample's number alone."""
    uniform = Noise(7, index, "data").uniform("x0", model.length)
    return Batch(index, (uniform * model.symbols).long())


def run(settings: Settings, kind: str = "dit", index: list[int] | None = None, mixture: bool = False) -> Loss:
    index = list(range(8)) if index is None else index
    ours, theirs = denoiser(kind, True, 1), denoiser(kind, mixture, 2)
    return Objective(settings)(ours, theirs, batch_of(ours, index), Noise(0, index, "train"))


@pytest.mark.parametrize("name", PAPER)
def test_compositions_of_the_paper(name: str) -> None:
    """eq. loss-cifar10, loss-maskgit, loss-sdtt from the reported terms, sample by sample."""
    settings, noise = PAPER[name], Noise(0, range(8), "train")
    loss, moments = run(settings), draw_moments(settings, noise)
    alpha, terms = alpha_at(settings.alpha, moments.t), loss.terms
    expected = alpha * terms["corr"] + terms["marginal"]
    if name == "cifar10":
        expected = expected + terms["distil"] + terms["consis"]
        assert bool(loss.active["distil"].all() and loss.active["consis"].all())
    else:
        small = moments.t <= moments.delta
        weight = 1 / 0.4 if name == "maskgit" else 1.0
        expected = expected + torch.where(small, weight * terms["distil"], terms["consis"])
        assert 0 < int(small.sum()) < 8
        assert torch.equal(loss.active["distil"], small) and torch.equal(loss.active["consis"], ~small)
    torch.testing.assert_close(terms["total"], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss.total.detach(), expected.mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixture", [False, True], ids=["product", "mixture"])
@pytest.mark.parametrize("name", PAPER)
def test_a_sample_does_not_see_the_others(name: str, mixture: bool) -> None:
    """Terms of a sample alone and in a batch: the same draws, the same numbers."""
    whole = run(PAPER[name], mixture=mixture)
    part = run(PAPER[name], index=[5, 2], mixture=mixture)
    for key, value in part.terms.items():
        torch.testing.assert_close(value, whole.terms[key][[5, 2]], rtol=0, atol=1e-10)
    for key, flags in part.active.items():
        assert torch.equal(flags, whole.active[key][[5, 2]])


@pytest.mark.parametrize("kind", ["dit", "unet"])
def test_equal_to_dense_on_the_same_draws(kind: str) -> None:
    index = list(range(3))
    ours, theirs = denoiser(kind, True, 1), denoiser(kind, False, 2)
    objective = Objective(replace(MASKGIT, delta=Delta(0.0, 0.0)))
    noise, batch = Noise(0, index, "train"), batch_of(ours, index)
    moments = draw_moments(objective.settings, noise)
    x_t = ours.process.corrupt(batch.x0, moments.t, noise.uniform("corrupt", ours.length))
    case = Case(ours, theirs, None, noise, moments, x_t, batch.x0)
    with torch.no_grad():
        problem = objective.at_t(case)
        expected = dense_loss(problem, objective.student_at_t(case))
        total = objective(ours, theirs, batch, noise).total
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-9)


def test_the_problem_holds_the_teacher_and_its_share_of_memory() -> None:
    index = list(range(3))
    ours, theirs = denoiser("dit", True, 1), denoiser("dit", False, 2)
    objective = Objective(replace(MASKGIT, chunk_mb=0.5, cache_mb=3.0))
    noise, batch = Noise(0, index, "train"), batch_of(ours, index)
    moments = draw_moments(objective.settings, noise)
    x_t = torch.full_like(batch.x0, ours.process.mask)  # type: ignore[arg-type]
    with torch.no_grad():
        problem = objective.at_t(Case(ours, theirs, None, noise, moments, x_t, batch.x0))
        expected = theirs.predict(x_t, moments.t)
    assert (problem.chunk_bytes, problem.cache_bytes) == (1 << 19, 3 << 20)
    assert problem.teacher is not None and problem.teacher_latents == 1 and problem.x0 is batch.x0
    torch.testing.assert_close(problem.teacher.dense(), expected.dense())


@pytest.mark.parametrize("each", [1, 2], ids=["product", "mixture"])
def test_confidence_step_has_the_noise_of_its_length(each: int) -> None:
    """c_gb = 4.5 (t - Δt) / (1 - Δt), as in a sampler of 1/Δt steps; no noise in a step over all times."""
    theirs, count = denoiser("maskgit", each > 1, 2), 2
    noise = Noise(4, range(40))
    t = torch.linspace(0.55, 1, 40, dtype=torch.float64)
    step = torch.tensor([1.0, 0.5, 0.25, 0.2], dtype=torch.float64).repeat(10)
    moments = Moments(t, (t - step).clamp_min(0), step, step)
    x_t = torch.full((40, theirs.length), 7)
    with torch.no_grad():
        prediction, made = teacher_predictions(theirs, x_t, t, None, count, noise)
    assert made == each
    x_u = confident(prediction, each, x_t, moments, noise, count)
    scale = 4.5 * ((t - step) / (1 - step)).nan_to_num(posinf=0.0, neginf=0.0).clamp_min(0)
    log_p = prediction.dense().view(40, each, 1, theirs.length, 7)
    drawn = (
        log_p.exp().cumsum(-1) > noise.uniform("step/u", count, theirs.length)[:, None, ..., None]
    ).double()
    value = drawn.argmax(-1)  # (B, each, L, D)
    sure = log_p.expand(-1, -1, count, -1, -1).gather(-1, value[..., None]).squeeze(-1)
    sure = sure + scale[:, None, None, None] * noise.gumbel("step/gumbel", count, theirs.length)[:, None]
    number = ((5 * t).round() - (5 * moments.u).round()).clamp_min(1).long()
    for b, j in itertools.product(range(40), range(count)):
        k = j if each > 1 else 0
        shown = sure[b, k, j].topk(int(number[b])).indices
        expected = x_t[b].clone()
        expected[shown] = value[b, k, j, shown]
        assert torch.equal(x_u[b, j], expected)


def test_confidence_step_reveals_the_surest() -> None:
    """n(t, u) positions a latent, at least one; only masked positions change."""
    ours, theirs = denoiser("maskgit", True, 1), denoiser("maskgit", False, 2)
    objective = Objective(replace(MASKGIT, teacher_step="confidence", delta=Delta(0.0, 0.0)))
    index = list(range(6))
    noise, batch = Noise(0, index, "train"), batch_of(ours, index)
    moments = draw_moments(objective.settings, noise)
    x_t = torch.full_like(batch.x0, ours.process.mask)  # type: ignore[arg-type]
    with torch.no_grad():
        problem = objective.at_t(Case(ours, theirs, None, noise, moments, x_t, batch.x0))
    assert problem.student_u is not None
    shown = (~ours.process.unknown(problem.student_u.x_t)).sum(1).view(6, 3)
    length = ours.length
    expected = (length * moments.t).round() - (length * moments.u).round()
    assert torch.equal(shown, expected.clamp_min(1).long()[:, None].expand(-1, 3))


@pytest.mark.parametrize("dropout", [{}, {"dropout": True}], ids=["without", "with"])
def test_dropout_and_modes(dropout: dict[str, bool]) -> None:
    """Only the student at t (and δ) runs in training mode, if asked to, and it runs last."""
    seen: list[tuple[str, bool, bool]] = []
    models = {"student": denoiser("dit", True, 1), "teacher": denoiser("dit", False, 2)}
    for name, model in models.items():
        body = model.network.body

        def spy(*args: Any, _name: str = name, _body: Any = body, _model: Denoiser = model) -> Tensor:
            seen.append((_name, _model.network.training, torch.is_grad_enabled()))
            return _body(*args)

        model.network.body = spy  # type: ignore[assignment]
    noise = Noise(0, range(4), "train")
    batch = batch_of(models["student"], list(range(4)))
    Objective(CIFAR)(models["student"], models["teacher"], batch, noise, **dropout)
    assert seen == [
        ("teacher", False, False),
        ("student", False, False),
        ("teacher", False, False),
        ("student", bool(dropout), True),
        ("student", bool(dropout), True),
    ]


def test_activation_checkpoints_change_nothing() -> None:
    grads = []
    for checkpointing in (False, True):
        ours, theirs = denoiser("dit", True, 1), denoiser("dit", False, 2)
        ours.network.checkpointing = checkpointing  # type: ignore[assignment]
        Objective(CIFAR)(ours, theirs, batch_of(ours, [0, 1]), Noise(0, [0, 1], "train")).total.backward()
        grads.append([p.grad for p in ours.parameters() if p.grad is not None])
    for plain, replayed in zip(*grads):
        torch.testing.assert_close(plain, replayed, rtol=0, atol=1e-12)


def test_data_are_asked_for() -> None:
    ours, theirs = denoiser("dit", True, 1), denoiser("dit", False, 2)
    with pytest.raises(UserError, match="--data teacher"):
        Objective(SDTT)(ours, theirs, Batch([0, 1]), Noise(0, [0, 1], "train"))


@pytest.mark.parametrize("alpha", ["zero", "sigmoid"])
@pytest.mark.parametrize("name", PAPER)
def test_distillation_without_data(name: str, alpha: str) -> None:
    settings = replace(PAPER[name], reference="teacher", alpha=Alpha(alpha), reference_steps=4)
    ours, theirs = denoiser("dit", True, 1), denoiser("dit", False, 2)
    loss = Objective(settings)(ours, theirs, Batch([0, 1, 2]), Noise(0, [0, 1, 2], "train"))
    loss.total.backward()
    assert bool(torch.isfinite(loss.total))
    assert bool(loss.active["corr"].any()) == (alpha != "zero")
    # the walk goes on to x0 only for terms that look at it
    assert bool(loss.active["nll"].any()) == (alpha != "zero" or name == "cifar10")


def exact_trajectory(theirs: Denoiser, times: list[float]) -> Tensor:
    """Law over the 64 configurations of the teacher's steps through `times`, by enumeration."""
    law = torch.zeros(len(NOISY), dtype=torch.float64)
    law[-1] = 1.0  # everything masked
    with torch.no_grad():
        p0 = theirs.predict(NOISY, torch.zeros(len(NOISY))).dense().exp()
    for t, s in pairwise(times):
        now, below = (torch.full((len(NOISY),), value, dtype=torch.float64) for value in (t, s))
        law = law @ configurations_each(theirs.process.posterior(p0, NOISY, now, below))
    return law


def configurations_each(factors: Tensor) -> Tensor:
    """Product laws `(N, D, states)` over all 64 configurations: `(N, 64)`."""
    return configurations(factors, NOISY)


def test_teachers_trajectory_has_the_law_of_its_grid() -> None:
    """x_t after 1, ¾, ½, 0.3 and x0 after 0.3, ¼, 0: chi-square against enumeration, level 1e-4 each."""
    theirs, count = teacher(), 3000
    t = torch.full((count,), 0.3, dtype=torch.float64)
    drawn = trajectory(theirs, None, t, 4, Noise(0, range(count), "train"), to_zero=True)
    assert drawn.x0 is not None
    for x, times in ((drawn.x_t, [1, 0.75, 0.5, 0.3]), (drawn.x0, [1, 0.75, 0.5, 0.3, 0.25, 0])):
        law = exact_trajectory(theirs, [float(value) for value in times])
        seen = torch.bincount((x * PLACES).sum(-1), minlength=len(NOISY)).double()
        possible = law > 1e-12
        assert float(seen[~possible].sum()) == 0
        expected = count * law[possible] / law[possible].sum()
        assert stats.chisquare(seen[possible].numpy(), expected.numpy()).pvalue > 1e-4
    kept = drawn.x_t != SYMBOLS
    assert torch.equal(drawn.x0[kept], drawn.x_t[kept])


def test_a_sample_of_the_trajectory_does_not_see_the_others() -> None:
    theirs = student(seed=4)  # a mixture teacher: a fresh λ for every step
    t = torch.linspace(0.05, 0.95, 6, dtype=torch.float64)
    whole = trajectory(theirs, None, t, 4, Noise(1, range(6), "x"), to_zero=True)
    part = trajectory(theirs, None, t[[4, 1]], 4, Noise(1, [4, 1], "x"), to_zero=True)
    assert whole.x0 is not None and part.x0 is not None
    assert torch.equal(part.x_t, whole.x_t[[4, 1]]) and torch.equal(part.x0, whole.x0[[4, 1]])


def test_distillation_at_delta_is_the_mean_over_its_latents() -> None:
    """Each λ of a sample has a time and an x_δ of its own; term and gradient are those of their mean."""
    settings = replace(CIFAR, delta=Delta(0.5, 0.6, 0.5))
    ours, theirs, index = denoiser("dit", True, 1), denoiser("dit", False, 2), [0, 1]
    batch, noise = batch_of(ours, index), Noise(0, index, "train")
    loss = Objective(settings)(ours, theirs, batch, noise)
    assert batch.x0 is not None
    case = Case(ours, theirs, None, noise, draw_moments(settings, noise), batch.x0, batch.x0)
    apart, delta = Objective(settings).at_delta(case)
    lam = ours.draw_latent(noise, "lam/delta", batch.x0, delta.view(2, 3), None, 3)
    assert lam is not None
    _, out = evaluate(apart, ours.predict(apart.x_t, delta, None, lam.flatten(0, 1)))
    torch.testing.assert_close(loss.terms["distil"], out.terms["distil"].view(2, 3).mean(1))
    squares = out.health["grad_distil"].view(2, 3).square().sum(1)
    assert float(squares.min()) > 0
    torch.testing.assert_close(loss.health["grad_distil"], squares.sqrt() / 3)


@pytest.mark.parametrize("learned", [None, PosteriorSettings()])
@pytest.mark.parametrize("given", [True, False])
def test_where_samples_without_a_data_term_come_from(learned: PosteriorSettings | None, given: bool) -> None:
    """`reference: teacher` walks, although data stands by; a posterior takes what is there, or walks on to x0."""
    settings = Settings(reference="teacher", alpha=Alpha("zero"), posterior=learned)
    noise = Noise(0, range(4), "train")
    batch = Batch(list(range(4)), DATA[:4] if given else None, None)
    drawn = draw_reference(settings, teacher(), batch, draw_moments(settings, noise), noise)
    if learned is None:
        assert drawn.x0 is None
    elif given:
        assert drawn.x0 is batch.x0
    else:
        assert drawn.x0 is not None and int(drawn.x0.max()) < SYMBOLS


def test_training_learns_the_correlation() -> None:
    """A tabular student on data of two equal halves: what its marginals cannot hold, the mixture learns."""
    theirs, ours = teacher(), student(seed=3, spread=0.3)
    objective = Objective(
        Settings(latents=8, delta=Delta(0.05, 0.05), step=Step(0.25, 0.25), alpha=Alpha("const"))
    )
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.05)
    data = torch.tensor([[0, 1, 2], [2, 0, 1]])
    captured: list[float] = []
    for step in range(100):
        index = list(range(step * 16, step * 16 + 16))
        noise = Noise(0, index, "train")
        x0 = data[(noise.uniform("data") * 2).long()]
        loss = objective(ours, theirs, Batch(index, x0), noise)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        captured.append(float(loss.health["correlation_data"].mean()))
    assert sum(captured[-20:]) / 20 > sum(captured[:5]) / 5 + 0.3
    masked = torch.full((1, LENGTH), SYMBOLS)
    law = clean_laws(ours, masked)[0].mean(0)
    ones = torch.stack([DATA.eq(s).double().T @ law for s in range(SYMBOLS)], -1)  # (D, S) marginals
    wanted = [int(DATA.eq(row).all(1).nonzero()) for row in data]
    assert float(law[wanted].sum()) > 1.5 * float(configurations(ones, DATA)[wanted].sum())
