"""Spaces small enough to list: exact denoisers, their compositions and distances (paper sections 4, C, D).

A distribution is a vector over configurations, a conditional law p(y|x) a matrix with the condition x in
its rows, so that composition is a matrix product from left to right.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from di4c_cli.process import Uniform

TWO = torch.tensor(list(itertools.product(range(2), repeat=2)))
"""aa, ab, ba, bb: the configurations of the paper's example."""
START, END = 0.1, 1.0
"""δ and T."""


def tv(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance over the last dimension."""
    return 0.5 * (p - q).abs().sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Kullback-Leibler divergence over the last dimension, as Σ p (r - 1 - log r) with r = q/p.

    No summand is negative and nothing cancels, so that divergences far below 1e-16 come out right.
    """
    excess = (q - p) / p.clamp_min(1e-300)
    return torch.where(p > 0, p * (excess - torch.log1p(excess.clamp_min(-1 + 1e-16))), q).sum(-1)


def product(factors: Tensor) -> Tensor:
    """Factors `(..., D, S)` -> the product law over S^D configurations, last position fastest."""
    out = factors[..., 0, :]
    for d in range(1, factors.shape[-2]):
        out = (out[..., :, None] * factors[..., d, None, :]).flatten(-2)
    return out


def marginals(law: Tensor, length: int, symbols: int) -> Tensor:
    """Law over S^D `(..., S^D)` -> its one-position marginals `(..., D, S)`."""
    full = law.unflatten(-1, (symbols,) * length)
    others = [[-length + k for k in range(length) if k != d] for d in range(length)]
    return torch.stack([full.sum(axes) if axes else full for axes in others], -2)


class Example:
    """Two positions, two symbols, q_0 = (δ_aa + δ_bb)/2 under uniform diffusion (eq. eg-start)."""

    def __init__(self) -> None:
        self.process = Uniform(2)
        self.data = torch.tensor([0.5, 0.0, 0.0, 0.5], dtype=torch.float64)

    def forward(self, s: float, t: float) -> Tensor:
        """q_{t|s} `(4, 4)`."""
        one = self.process.transition(*(torch.tensor([x], dtype=torch.float64) for x in (s, t)))[0]
        return product(one[TWO])

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
        times = (torch.full((4,), value, dtype=torch.float64) for value in (t, s))
        return product(self.process.posterior(p0, TWO, *times))

    def grid(self, steps: int) -> list[float]:
        """t_i = δ + i (T - δ) / N."""
        return [START + i * (END - START) / steps for i in range(steps + 1)]

    def sampled(self, steps: int) -> Tensor:
        """Law of N-step analytical sampling from q_T down to δ."""
        times = self.grid(steps)
        law = self.at(END)
        for s, t in reversed(list(itertools.pairwise(times))):
            law = law @ self.analytical(t, s)
        return law

    def error(self, steps: int) -> float:
        """d_TV(q_δ, N-step analytical sampling), the left-hand side of eq. comp-formal-lower-bound."""
        return float(tv(self.at(START), self.sampled(steps)))

    def bound(self, steps: int) -> float:
        """Σ_i E_{q_{t_{i+1}}} d_TV(q_{t_i|t_{i+1}}, p_{t_i|t_{i+1}}): the sum of eq. tv-compose-concrete."""
        total = 0.0
        for s, t in itertools.pairwise(self.grid(steps)):
            total += float(self.at(t) @ tv(self.true_denoiser(t, s), self.analytical(t, s)))
        return total


class Student(torch.nn.Module):
    """p(x_δ|x_{t_n}) for n = 1..N as a mixture of `latents` equally weighted products: one table."""

    def __init__(self, steps: int, latents: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(steps, 4, latents, 2, 2, generator=generator, dtype=torch.float64)
        self.logits = torch.nn.Parameter(start)

    def forward(self) -> Tensor:
        """`(N, 4, 4)`: row x_{t_n}, column x_δ."""
        return product(self.logits.softmax(-1)).mean(-2)


def distil(example: Example, steps: int, latents: int, iterations: int, lr: float = 0.05) -> dict[str, float]:
    """Train a tabular student on the enumerated losses of theorem main; distances of its one step.

    L_distil at t_1 and L_consis at t_2..t_N under the teacher's own r_t, with a stopped gradient on the
    target.
    """
    times = example.grid(steps)
    teacher = torch.stack([example.analytical(t, s) for s, t in itertools.pairwise(times)])  # (N, 4, 4)
    reference = [example.at(END)]
    for step in reversed(teacher):
        reference.insert(0, reference[0] @ step)  # r_{t_0} .. r_{t_N}
    weight = torch.stack(reference[1:])  # r at t_1 .. t_N
    student = Student(steps, latents)
    optimizer = torch.optim.Adam(student.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    for _ in range(iterations):
        law = student()
        target = torch.cat([teacher[:1], teacher[1:] @ law[:-1].detach()])
        loss = (weight * kl(target, law)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    law = student().detach()
    target = torch.cat([teacher[:1], teacher[1:] @ law[:-1]])
    each = (weight * kl(target, law)).sum(-1).clamp_min(0)
    one_step = example.at(END) @ example.analytical(END, START)
    return {
        "student": float(tv(reference[0], example.at(END) @ law[-1])),
        "one_step_teacher": float(tv(reference[0], one_step)),
        "bound": float(each.sqrt().sum() / math.sqrt(2)),
    }
