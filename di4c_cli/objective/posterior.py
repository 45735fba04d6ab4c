"""An amortised posterior q(λ|x0, xt): which λ explains a sample, instead of blind draws from the prior.

With L draws from the prior a mixture can be seen to capture at most log L nats of correlation, and as a rule far
less. A λ drawn from q explains its sample from the start; the price is the divergence of q from the prior:

    -log p(x0|xt) ≤ E_q[-Σ_d log p(x0^d|xt; λ)] + KL(q(λ|x0, xt) ‖ p(λ)).

The bound takes the place of the correlation terms. q is needed for training alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise, sample_seeds
from di4c_cli.objective.fused import evaluate
from di4c_cli.objective.problem import Problem, Weights
from di4c_cli.objective.settings import PosteriorSettings

EMBEDDED, EMBEDDED_LOCAL = 16, 64
"""Numbers per symbol that q looks at, in the whole sample or nearby."""
REACH = 3
"""Positions to each side that one layer of a local q looks at."""
WIDEST = 5.0
"""|log variance| of q is kept below this: a wider or sharper q is an accident of the first steps."""


class Nearby(nn.Module):
    """q of a local λ: two convolutions along the positions, `(B, D, in)` -> `(B, D, out)`.

    Positions differ from the start: were all alike, neighbours could not take turns in what they tell.
    """

    def __init__(self, length: int, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.place = nn.Parameter(0.1 * torch.randn(length, inputs))
        self.first = nn.Conv1d(inputs, width, 2 * REACH + 1, padding=REACH)
        self.second = nn.Conv1d(width, width, 2 * REACH + 1, padding=REACH)
        self.last = nn.Linear(width, outputs)

    def forward(self, seen: Tensor) -> Tensor:
        h = nn.functional.gelu(self.first((seen + self.place).transpose(1, 2)))
        h = h + nn.functional.gelu(self.second(h))
        out: Tensor = self.last(h.transpose(1, 2))
        return out


class Posterior(nn.Module):
    """A normal law of λ for every sample, from a small network over its symbols before and after corruption."""

    def __init__(self, student: Denoiser, width: int, seed: str) -> None:
        super().__init__()
        if student.latent is None or student.latent.distribution != "normal":
            raise UserError("objective.posterior needs a normal λ.", "Add --set latent.distribution=normal.")
        states, local = student.process.states, student.latent.places > 1
        embedded, outputs = EMBEDDED_LOCAL if local else EMBEDDED, 2 * student.latent.dim
        (number,) = sample_seeds(seed, [0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            self.clean, self.noisy = nn.Embedding(states, embedded), nn.Embedding(states, embedded)
            self.net: nn.Module
            if local:
                self.net = Nearby(student.length, embedded, width, outputs)
                last = self.net.last
            else:
                first, second = nn.Linear(student.length * embedded, width), nn.Linear(width, width)
                last = nn.Linear(width, outputs)
                self.net = nn.Sequential(nn.Flatten(), first, nn.GELU(), second, nn.GELU(), last)
            nn.init.normal_(last.weight, std=0.05)
            nn.init.zeros_(last.bias)

    def forward(self, x0: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor]:
        """x0, x_t `(B, D)` -> mean and log variance of λ, `(B, size)` each."""
        mean, log_variance = self.net(self.clean(x0) + self.noisy(x_t)).chunk(2, -1)
        return mean.flatten(1), WIDEST * torch.tanh(log_variance / WIDEST).flatten(1)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(q ‖ standard normal) in nats, `(B,)`."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def price(settings: PosteriorSettings, progress: float) -> float:
    """β, the weight of the divergence: `floor` at first, rising from `rise.low` to 1 at `rise.high`.

    λ that costs its full price from the first step is never used: the network does not know yet what for.
    """
    low, high = settings.rise.low, settings.rise.high
    if progress >= high:
        return 1.0
    share = (progress - low) / max(high - low, 1e-9)  # `low = high` is a jump
    return min(1.0, max(settings.floor, share))


def bound(
    settings: PosteriorSettings,
    problem: Problem,
    student: Denoiser,
    posterior: Posterior,
    t: Tensor,
    label: Tensor | None,
    noise: Noise,
    progress: float,
    dropout: bool = False,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Mean of the weighted bound over the samples, with a graph; the same per sample `(B,)`; its parts, unweighted."""
    assert problem.x0 is not None and student.latent is not None
    mean, log_variance = posterior(problem.x0, problem.x_t)
    draw = noise.normal("lam/posterior", student.latent.size).to(mean)
    lam = mean + (0.5 * log_variance).exp() * draw
    lam = lam.squeeze(-1) if student.latent.size == 1 else lam
    prediction = student.predict(problem.x_t, t, label, lam.to(student.time_dtype), dropout)
    one, zero = torch.ones_like(t), torch.zeros_like(t)
    alone = replace(problem, latents=1, weights=Weights(zero, zero, one, zero), control_variate="none")
    nll, out = evaluate(alone, prediction)
    kl = divergence(mean, log_variance)
    beta = price(settings, progress)
    total = settings.weight * (nll + beta * kl.mean().to(nll))
    parts = {"explained": out.terms["corr"], "kl": kl.detach().to(out.total)}
    each = settings.weight * (parts["explained"] + beta * parts["kl"])
    return total, each, parts | {"bound": parts["explained"] + parts["kl"]}
