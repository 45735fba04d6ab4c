"""Moment matching by enumeration: its optimum, its divergence, its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from di4c_cli.methods.kernels import sum_over_rows
from di4c_cli.methods.moment_matching import OwnStep, auxiliary_rows, student_rows, weight_at
from di4c_cli.noise import Noise
from di4c_cli.process import Gaussian, Masked, Process, Uniform
from tests.helpers.tables import stored

PROCESSES: list[Process] = [Masked(3), Uniform(3, horizon=2.0), Gaussian(4, rate_sigma=1.5, q_sigma=3.0)]
LENGTH, COMPONENTS, LARGE = 2, 3, 1 << 30


def all_states(states: int) -> Tensor:
    return torch.tensor(list(product(range(states), repeat=LENGTH)))


@dataclass
class Space:
    """Every (x_t, component, x_s) of a small space, with its probability under a mixture of products.

    The teacher is the exact posterior p(x0^d|x_s) of P = Σ_k w_k Π_d P_k^d. The student at x_t is the exact mixture for
    p(x0|x_t), its logits moved by `change`: with change 0 it has the law of the teacher's infinitely many steps.
    """

    process: Process
    t: float
    s: float
    change: float

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(4)
        symbols, states = self.process.symbols, self.process.states
        self.mix = torch.rand(COMPONENTS, generator=g).double().add(0.2)
        self.mix /= self.mix.sum()
        self.parts = (1.5 * torch.randn(COMPONENTS, LENGTH, symbols, generator=g).double()).softmax(-1)
        self.x = all_states(states)
        at_t, clean = self.posterior(self.t)  # (X, K, D, S) and P(x_t, k)
        moved = self.change * torch.randn(at_t.shape, generator=g).double()
        self.logits = (at_t.clamp_min(1e-30).log() + moved).requires_grad_()
        p_t = self.logits.detach().softmax(-1)
        # every x_t, k, x_s: P(x_t, k) Π_d Σ_c p(c) q(x_s^d|x_t^d, c)
        count, number = len(self.x), torch.arange(len(self.x))
        self.it, self.k, self.js = (i.flatten() for i in torch.meshgrid(number, torch.arange(3), number, indexing="ij"))
        times = (torch.full((count * COMPONENTS,), v, dtype=torch.float64) for v in (self.t, self.s))
        rows = p_t.flatten(0, 1), self.x.repeat_interleave(COMPONENTS, 0)
        known = torch.nn.functional.one_hot(rows[1].clamp_max(symbols - 1), symbols).double()
        unknown = self.process.unknown(rows[1])[..., None]
        forward = self.process.posterior(torch.where(unknown, rows[0], known), rows[1], *times)
        forward = forward.unflatten(0, (count, COMPONENTS))[self.it, self.k]
        self.probability = clean[self.it, self.k] * forward.gather(2, self.x[self.js][..., None]).prod(1).squeeze(-1)

    def posterior(self, time: float) -> tuple[Tensor, Tensor]:
        """p(x0^d|x; k) `(X, K, D, S)` and P(x, k) `(X, K)` of all noised x at a time, by Bayes' rule."""
        at = torch.tensor([time], dtype=torch.float64)
        q = self.process.transition(torch.zeros_like(at), at)[0]
        if isinstance(self.process, Masked):
            q = q[: self.process.symbols]
        joint = self.parts[None] * q[:, self.x].permute(1, 2, 0)[:, None]
        total = joint.sum(-1)
        return joint / total.clamp_min(1e-300)[..., None], self.mix * total.prod(-1)

    def teacher(self) -> Tensor:
        """p(x0^d|x_s) `(X, D, S)`."""
        each, weight = self.posterior(self.s)
        return (each * (weight / weight.sum(1, keepdim=True).clamp_min(1e-300))[..., None, None]).sum(1)

    def own_conditional(self) -> tuple[Tensor, Tensor]:
        """The student's P(x^d = c|x_s) `(X, D, S)` and P(x_s) `(X,)`, from the joint distribution of x and x_s."""
        p_t, process = self.logits.detach().softmax(-1)[self.it, self.k], self.process
        evidence = torch.ones_like(p_t)
        if not isinstance(process, Masked):
            times = (torch.tensor([v], dtype=torch.float64) for v in (0.0, self.s, self.t))
            zero, s, t = times
            q_s, q_t = process.transition(zero, s)[0], process.transition(zero, t)[0]
            evidence = (q_s[:, self.x[self.js]] / q_t[:, self.x[self.it]]).permute(1, 2, 0)
        r = p_t * evidence
        r = r / r.sum(-1, keepdim=True)
        total = torch.zeros(len(self.x), dtype=torch.float64).index_add_(0, self.js, self.probability)
        mean = torch.zeros(len(self.x), *r.shape[1:], dtype=torch.float64)
        mean.index_add_(0, self.js, self.probability[:, None, None] * r)
        return mean / total.clamp_min(1e-300)[:, None, None], total

    def step(self) -> OwnStep:
        x_t, x_s, many = self.x[self.it], self.x[self.js], torch.ones(len(self.it), dtype=torch.float64)
        student = stored(self.logits[self.it, self.k], x_t, self.process)
        teacher = stored(self.teacher().clamp_min(1e-300).log()[self.js], x_s, self.process)
        return OwnStep(student, teacher, x_t, x_t, x_s, many * self.t, many * self.s, Noise(0, range(len(many))))

    def expected(self, law: Tensor, teacher_weight: float | None = None) -> tuple[Tensor, Tensor]:
        """E of the student's loss, or of the auxiliary one, with φ = law `(X, D, S)`, and the table that it trains."""
        step, table = self.step(), law.clamp_min(1e-300).log().requires_grad_()
        auxiliary = stored(table[self.js], step.x_s, self.process)
        weight = self.probability * len(self.probability)
        if teacher_weight is None:
            return sum_over_rows(step.student, step.rows, weight, student_rows(step, auxiliary), LARGE)[0], self.logits
        return sum_over_rows(auxiliary, step.rows, weight, auxiliary_rows(step, teacher_weight), LARGE)[0], table


def gradient_norm(found: tuple[Tensor, Tensor]) -> float:
    (grad,) = torch.autograd.grad(*found)
    return float(grad.abs().max())


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.config["type"])
@pytest.mark.parametrize("w", [0.0, 1.0])
def test_student_with_the_law_of_many_steps_has_no_gradient(process: Process, w: float) -> None:
    space = Space(process, 0.8, 0.35, change=0.0)
    own, total = space.own_conditional()
    assert float(total.sum()) == pytest.approx(1, abs=1e-12)
    reached = process.unknown(space.x) & (total > 0)[:, None]
    torch.testing.assert_close(own[reached], space.teacher()[reached], rtol=0, atol=1e-12)
    optimum = (own + w * space.teacher()) / (1 + w)
    assert gradient_norm(space.expected(optimum)) < 1e-12 > abs(space.expected(optimum)[0].item())
    moved = Space(process, 0.8, 0.35, change=0.3)
    found = moved.own_conditional()[0]
    assert gradient_norm(moved.expected((found + w * moved.teacher()) / (1 + w))) > 1e-4


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.config["type"])
@pytest.mark.parametrize("w", [0.0, 0.5, 1.0])
def test_optimum_of_the_auxiliary_network_is_the_students_conditional(process: Process, w: float) -> None:
    space = Space(process, 0.9, 0.4, change=0.7)
    own, _ = space.own_conditional()
    optimum = (own + w * space.teacher()) / (1 + w)
    assert gradient_norm(space.expected(optimum, w)) < 1e-12
    assert gradient_norm(space.expected(own * 0.9 + 0.1 / process.symbols, w)) > 1e-4
    best = space.expected(optimum, w)[0].item()
    for other in (own * 0.9 + 0.1 / process.symbols, space.teacher(), space.teacher() * 0.5 + 0.5 * own):
        assert space.expected(other, w)[0].item() >= best - 1e-12


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.config["type"])
@pytest.mark.parametrize("w", [0.0, 1.0, 3.0])
def test_gap_at_the_optimum_is_a_divergence(process: Process, w: float) -> None:
    """E Σ_d Σ_c p̄ log (p̄ + wψ)/((1 + w)ψ), between KL(p̄ ‖ ψ)/(1 + w) and KL(p̄ ‖ ψ); 0 only at the target."""
    for change in (0.0, 0.05, 0.7):
        space = Space(process, 0.9, 0.4, change)
        own, total = space.own_conditional()
        target = space.teacher()
        optimum = (own + w * target) / (1 + w)
        unknown = process.unknown(space.x)

        def mean(log_ratio: Tensor, own: Tensor = own, total: Tensor = total, rows: Tensor = unknown) -> float:
            each = (own * log_ratio).sum(-1).where(rows, 0.0).sum(1)
            return float((total * each.where(total > 0, 0.0)).sum())

        gap = space.expected(optimum)[0].item()
        kl = mean(own.clamp_min(1e-300).log() - target.clamp_min(1e-300).log())
        assert gap == pytest.approx(mean(optimum.clamp_min(1e-300).log() - target.clamp_min(1e-300).log()), abs=1e-12)
        assert kl / (1 + w) - 1e-12 <= gap <= kl + 1e-12
        assert gap > 1e-5 if change else abs(gap) < 1e-12


def test_mean_gap_over_s_is_the_divergence_of_the_joint_law() -> None:
    """t = 1, linear masks, w = 0: ∫ gap(s)/m_s ds = KL(student's samples ‖ teacher's), by Gauss's quadrature."""
    process = Masked(3)
    places, weights = ([0.5 - math.sqrt(0.15), 0.5, 0.5 + math.sqrt(0.15)], [5 / 18, 8 / 18, 5 / 18])
    found = 0.0
    for s, weight in zip(places, weights):
        space = Space(process, 1.0, s, change=0.8)
        scale = weight_at(process, torch.tensor([s], dtype=torch.float64))
        found += weight * float(scale) * space.expected(space.own_conditional()[0])[0].item()
    start = int((space.x == process.mask).all(1).nonzero())
    own, clean = space.logits.detach().softmax(-1)[start], all_states(3)
    laws = []
    for parts in (own, space.parts):
        each = torch.stack([parts[:, d, clean[:, d]] for d in range(LENGTH)]).prod(0)
        laws.append((space.mix[:, None] * each).sum(0))
    exact = float((laws[0] * (laws[0] / laws[1]).log()).sum())
    assert exact > 0.01 and found == pytest.approx(exact, abs=1e-12)
