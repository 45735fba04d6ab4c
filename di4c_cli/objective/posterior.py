"""An amortised posterior q(λ|x0, xt): which λ explains a sample, instead of blind draws from the prior.

With L draws from the prior a mixture can be seen to capture at most log L nats of correlation, and as a rule far
less. A λ drawn from q explains its sample from the start; the price is the divergence of q from the prior:

    -log p(x0|xt) ≤ E_q[-Σ_d log p(x0^d|xt; λ)] + KL(q(λ|x0, xt) ‖ p(λ)).

The bound takes the place of the correlation terms; with several draws it is the importance-weighted one, which is
tighter. q is needed for training alone. A student whose law of λ is learned (`latent.law`) learns it from q's draws;
q does not hear of it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise, sample_seeds
from di4c_cli.objective.fused import evaluate
from di4c_cli.objective.problem import Problem, Weights
from di4c_cli.objective.settings import PosteriorSettings
from di4c_cli.objective.steps import repeat, repeat_label

EMBEDDED, EMBEDDED_LOCAL = 16, 64
"""Numbers per symbol that q looks at, in the whole sample or nearby."""
REACH = 3
"""Positions to each side that one layer of a local q looks at."""
WIDEST = 5.0
"""|log variance| of q is kept below this: a wider or sharper q is an accident of the first steps."""
LESSONS, LESSONS_LOCAL = 16, 4
"""Draws of q a sample that λ's law learns from in one step, in the whole sample or at every position."""


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
        states, self.local = student.process.states, student.latent.places > 1
        embedded, outputs = EMBEDDED_LOCAL if self.local else EMBEDDED, 2 * student.latent.dim
        (number,) = sample_seeds(seed, [0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            self.clean, self.noisy = nn.Embedding(states, embedded), nn.Embedding(states, embedded)
            self.net: nn.Module
            if self.local:
                self.net = Nearby(student.length, embedded, width, outputs)
                last = self.net.last
            else:
                first, second = nn.Linear(student.length * embedded, width), nn.Linear(width, width)
                last = nn.Linear(width, outputs)
                self.net = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last)
            nn.init.normal_(last.weight, std=0.05)
            nn.init.zeros_(last.bias)

    def forward(self, x0: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor]:
        """x0, x_t `(B, D)` -> mean and log variance of λ, `(B, size)` each, in float32 or wider.

        Half precision would be off by a nat and more where thousands of numbers are added up.
        """
        seen = self.clean(x0) + self.noisy(x_t)
        out = self.net(seen if self.local else seen.flatten(1))
        mean, log_variance = out.to(torch.promote_types(out.dtype, torch.float32)).chunk(2, -1)
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
    """Mean of the weighted bound over the samples, with a graph; the same per sample `(B,)`; its parts, unweighted.

    With K = `draws` > 1 it is the importance-weighted bound, E_q[-log 1/K Σ_k p(x0|xt; λ_k) (p(λ_k)/q(λ_k))^β].
    """
    assert problem.x0 is not None and student.latent is not None
    count, size, beta = settings.draws, student.latent.size, price(settings, progress)
    mean, log_variance = posterior(problem.x0, problem.x_t)
    draw = (
        noise.normal("lam/posterior", *((count, size) if count > 1 else (size,)))
        .to(mean)
        .view(-1, count, size)
    )
    lam = mean[:, None] + (0.5 * log_variance[:, None]).exp() * draw
    each_lam = lam.flatten(0, 1).to(student.time_dtype)
    x_t, x0 = repeat(problem.x_t, count), repeat(problem.x0, count)
    prediction = student.predict(
        x_t,
        repeat(t, count),
        repeat_label(label, count),
        each_lam.squeeze(-1) if size == 1 else each_lam,
        dropout,
    )
    one, zero = (fill(t).repeat_interleave(count) for fill in (torch.ones_like, torch.zeros_like))
    alone = replace(
        problem, x_t=x_t, x0=x0, latents=1, weights=Weights(zero, zero, one, zero), control_variate="none"
    )
    kl = divergence(mean, log_variance)
    if count == 1:
        nll, out = evaluate(alone, prediction)
        total = nll + beta * kl.mean().to(nll)
        explained = out.terms["corr"]
        each, tight = explained + beta * kl.detach().to(explained), explained + kl.detach().to(explained)
    else:
        total, each, tight, explained = _weighted(alone, prediction, _ratio(lam, draw, log_variance), beta)
    parts = {"explained": explained, "kl": kl.detach().to(explained), "bound": tight}
    total, each = settings.weight * total, settings.weight * each
    if student.law is not None:
        miss = lesson(student, mean.detach(), log_variance.detach(), problem.x_t, t, label, noise)
        total, each = total + miss.mean().to(total), each + miss.detach().to(each)
        parts["law"] = miss.detach().to(explained)
    return total, each, parts


def lesson(
    student: Denoiser,
    mean: Tensor,
    log_variance: Tensor,
    x_t: Tensor,
    t: Tensor,
    label: Tensor | None,
    noise: Noise,
) -> Tensor:
    """What λ's law misses of some draws from q, a mean `(B,)`; about 1, with labels 2, if it knows nothing."""
    assert student.law is not None
    count = LESSONS_LOCAL if student.law.places > 1 else LESSONS
    draw = noise.normal("law", count, 2, mean.shape[1]).to(mean)
    lam = mean[:, None] + (0.5 * log_variance[:, None]).exp() * draw[:, :, 0]
    return student.law.miss(lam, draw[:, :, 1], x_t, t, label)


def _ratio(lam: Tensor, draw: Tensor, log_variance: Tensor) -> Tensor:
    """log p(λ) - log q(λ) `(B, K)` of draws λ = mean + sd·draw, `(B, K, size)` each."""
    return 0.5 * (draw.square() + log_variance[:, None] - lam.square()).sum(-1)


def _weighted(
    problem: Problem, prediction: Prediction, ratio: Tensor, beta: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The importance-weighted bound: its mean with a graph; per sample at price β, and at price 1; -log p of the draws.

    ∇ -log Σ_k exp(s_k) = -Σ_k softmax(s)_k ∇s_k: with the weights known beforehand one call gives the gradient.
    """
    count = ratio.shape[1]
    with torch.no_grad():
        nll = evaluate(problem, prediction)[1].terms["corr"].view(-1, count)
    known = ratio.detach().to(nll)
    each, tight = (math.log(count) - torch.logsumexp(b * known - nll, 1) for b in (beta, 1.0))
    weight = torch.softmax(beta * known - nll, 1)
    weights = replace(problem.weights, corr=(count * weight).flatten().to(problem.weights.corr))
    pulled = evaluate(replace(problem, weights=weights), prediction)[0]
    pulled = pulled - beta * (weight.to(ratio) * ratio).sum(1).mean().to(pulled)
    return pulled + (each.mean() - pulled).detach(), each, tight, (weight * nll).sum(1)
