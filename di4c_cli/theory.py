"""`di4c theory`: the paper's theorems on a space that is small enough to enumerate (paper sections 4, C, D).

A distribution is a vector over configurations and a conditional distribution p(y|x) a matrix with the condition x in
its rows, so that composition is a matrix product from left to right. Nothing is sampled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from di4c_cli import files
from di4c_cli.process import Uniform

CONFIGURATIONS = torch.tensor(list(itertools.product(range(2), repeat=2)))
"""aa, ab, ba, bb: the configurations of the paper's example."""
START, END = 0.1, 1.0
"""δ and T."""
PROVED_CONSTANT = (2 ** (1 / START) * math.e) ** (-2 * END) * (END - START) ** 2
"""c of proposition lower-bound, as its proof gives it."""
STEPS = [2**k for k in range(10)]
LATENTS = [1, 2, 4, 8, 16]
TEACHER_STEPS = 8


def tv(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance over the last dimension."""
    return 0.5 * (p - q).abs().sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Kullback–Leibler divergence over the last dimension, as Σ p (r - 1 - log r) with r = q/p.

    No summand is negative and nothing cancels, so divergences far below 1e-16 are exact.
    """
    excess = (q - p) / p.clamp_min(1e-300)
    return torch.where(p > 0, p * (excess - torch.log1p(excess.clamp_min(-1 + 1e-16))), q).sum(-1)


def product(factors: Tensor) -> Tensor:
    """Factors `(..., D, S)` -> the product distribution over S^D configurations, last position fastest."""
    out = factors[..., 0, :]
    for d in range(1, factors.shape[-2]):
        out = (out[..., :, None] * factors[..., d, None, :]).flatten(-2)
    return out


def marginals(joint: Tensor, length: int, symbols: int) -> Tensor:
    """Distribution over S^D `(..., S^D)` -> its one-position marginals `(..., D, S)`."""
    full = joint.unflatten(-1, (symbols,) * length)
    others = [[-length + k for k in range(length) if k != d] for d in range(length)]
    return torch.stack([full.sum(axes) if axes else full for axes in others], -2)


class TwoPositionExample:
    """Two positions, two symbols, q_0 = (δ_aa + δ_bb)/2 under uniform diffusion (eq. eg-start)."""

    def __init__(self) -> None:
        self.process = Uniform(2)
        self.data = torch.tensor([0.5, 0.0, 0.0, 0.5], dtype=torch.float64)

    def forward(self, s: float, t: float) -> Tensor:
        """q_{t|s} `(4, 4)`."""
        one = self.process.transition(*(torch.tensor([x], dtype=torch.float64) for x in (s, t)))[0]
        return product(one[CONFIGURATIONS])

    def at(self, t: float) -> Tensor:
        """q_t `(4,)`."""
        return self.data @ self.forward(0.0, t)

    def true_denoiser(self, t: float, s: float) -> Tensor:
        """q_{s|t} `(4, 4)` by Bayes' rule over the four configurations."""
        joint = self.at(s)[:, None] * self.forward(s, t)  # (x_s, x_t)
        return (joint / joint.sum(0)).T

    def analytical(self, t: float, s: float) -> Tensor:
        """p_{s|t} `(4, 4)`: one analytical step of the product model with the true marginals."""
        p0 = marginals(self.true_denoiser(t, 0.0), 2, 2)
        t_s = [torch.full((4,), value, dtype=torch.float64) for value in (t, s)]
        return product(self.process.posterior(p0, CONFIGURATIONS, t_s[0], t_s[1]))

    def grid(self, steps: int) -> list[float]:
        """t_i = δ + i (T - δ) / N."""
        return [START + i * (END - START) / steps for i in range(steps + 1)]

    def error(self, steps: int) -> float:
        """d_TV(q_δ, N-step analytical sampling from q_T), the left-hand side of eq. comp-formal-lower-bound."""
        sampled = self.at(END)
        for s, t in reversed(list(itertools.pairwise(self.grid(steps)))):
            sampled = sampled @ self.analytical(t, s)
        return float(tv(self.at(START), sampled))

    def bound(self, steps: int) -> float:
        """Σ_i E_{q_{t_{i+1}}} d_TV(q_{t_i|t_{i+1}}, p_{t_i|t_{i+1}}): the sum of eq. tv-compose-concrete."""
        total = 0.0
        for s, t in itertools.pairwise(self.grid(steps)):
            total += float(self.at(t) @ tv(self.true_denoiser(t, s), self.analytical(t, s)))
        return total


def distil(
    example: TwoPositionExample, steps: int, latents: int, iterations: int, lr: float = 0.05
) -> dict[str, float]:
    """Train a tabular student on the enumerated losses of theorem main; distances of its one step.

    The student p(x_δ|x_{t_n}), n = 1..N, is a mixture of `latents` equally weighted products. L_distil applies at
    t_1 and L_consis at t_2..t_N under the teacher's own r_t, with a stopped gradient on the target.
    """
    times = example.grid(steps)
    teacher = torch.stack([example.analytical(t, s) for s, t in itertools.pairwise(times)])  # (N, 4, 4)
    reference = [example.at(END)]
    for step in reversed(teacher):
        reference.insert(0, reference[0] @ step)  # r_{t_0} .. r_{t_N}
    weight = torch.stack(reference[1:])  # r at t_1 .. t_N
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(steps, 4, latents, 2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)

    def losses(student: Tensor) -> Tensor:
        target = torch.cat([teacher[:1], teacher[1:] @ student[:-1].detach()])
        return (weight * kl(target, student)).sum(-1)

    for _ in range(iterations):
        optimizer.zero_grad()
        losses(product(logits.softmax(-1)).mean(-2)).sum().backward()
        optimizer.step()
        schedule.step()
    student = product(logits.detach().softmax(-1)).mean(-2)  # (N, 4, 4): row x_{t_n}, column x_δ
    one_step = example.at(END) @ example.analytical(END, START)
    return {
        "student": float(tv(reference[0], example.at(END) @ student[-1])),
        "one_step_teacher": float(tv(reference[0], one_step)),
        "bound": float(losses(student).clamp_min(0).sqrt().sum() / math.sqrt(2)),
    }


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the regression line of log y on log x."""
    logs = torch.tensor([x, y], dtype=torch.float64).log()
    a, b = logs - logs.mean(1, keepdim=True)
    return float((a * b).sum() / (a * a).sum())


def theorem_1(example: TwoPositionExample) -> list[dict[str, Any]]:
    """For each N the error of N-step sampling between the proved c/N and the sum of one-step distances."""
    return [
        {
            "steps": n,
            "lower": PROVED_CONSTANT / n if n >= 2 * (END - START) / START else None,
            "error": example.error(n),
            "upper": example.bound(n),
        }
        for n in STEPS
    ]


def theorem_2(
    example: TwoPositionExample, iterations: int = 2000, advance: Callable[[int], None] = lambda count: None
) -> list[dict[str, Any]]:
    """For each number of latents the distance of the one-step student to the N-step teacher, and its bound."""
    rows = []
    for count in LATENTS:
        rows.append({"latents": count, **distil(example, TEACHER_STEPS, count, iterations)})
        advance(1)
    return rows


def save_plot(first: list[dict[str, Any]], second: list[dict[str, Any]], path: Path) -> None:
    """Theorem 1 on the left, theorem 2 on the right, on logarithmic axes."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    counts = [row["steps"] for row in first]
    scaled = [row["error"] * row["steps"] for row in first]
    left.loglog(counts, [row["upper"] for row in first], "s--", color="0.6", label="sum of one-step distances")
    left.loglog(counts, [row["error"] for row in first], "o-", label="N-step analytical sampling")
    for constant in (min(scaled), max(scaled)):
        left.loglog(counts, [constant / n for n in counts], ":", color="k", label=f"{constant:.2f} / N")
    left.set(xlabel="sampling steps N", ylabel="total variation to the data", title="Theorem 1")
    left.legend()
    latents = [row["latents"] for row in second]
    right.loglog(latents, [row["bound"] for row in second], "s--", color="0.6", label="bound from the losses")
    right.loglog(latents, [row["student"] for row in second], "o-", label="student, one step")
    right.axhline(second[0]["one_step_teacher"], color="C3", label="teacher, one step")
    right.set(xlabel="latents in the mixture", title="Theorem 2")
    right.set_ylabel(f"total variation to the {TEACHER_STEPS}-step teacher")
    right.set_xticks(latents, [str(count) for count in latents])
    right.minorticks_off()
    right.legend()
    files.write_with(path, lambda file: figure.savefig(file, format="png", dpi=110))
