"""τ-leaping and corrector steps of tauLDR: rates constant during a step, Poisson numbers of jumps."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from di4c_cli.draw import RowLogProbs, SymbolDraw, finest
from di4c_cli.noise import Noise
from di4c_cli.process import Gaussian, Markov, all_rows
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.steps import in_tiles

RATE_EPS = 1e-9
"""Added to q_{t|0}(x|x0) in the denominator, as in tauLDR: rates stay finite for an x0 that hardly reaches x."""

LARGEST_MEAN = 500.0
"""Poisson numbers of larger means are sums of several."""
CHECKED_EVERY = 4
"""Terms of the inversion between two looks at whether every number is drawn: a look waits for the device."""


def tau_step(predictor: Predictor, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise) -> Tensor:
    """x_t `(B, D)` -> x_s `(B, D)`: jumps at rates R̂_t, held constant from t down to s `(B,)`."""
    process = _markov(predictor)

    def step(draw: SymbolDraw, own: Noise, x_t: Tensor, t: Tensor, s: Tensor) -> Tensor:
        rate = reverse_rates(process, dense(process, draw.log_probs, x_t), x_t, t)
        return jump(process, x_t, rate * (t - s)[:, None, None], own)

    return in_tiles(predictor, step, noise, x_t, t, s)


def corrector_step(predictor: Predictor, x_t: Tensor, t: Tensor, size: float, noise: Noise) -> Tensor:
    """x_t `(B, D)` -> another x_t at time t: rates R_t + R̂_t for a time `size`, which leave q_t as it is."""
    process = _markov(predictor)

    def step(draw: SymbolDraw, own: Noise, x_t: Tensor, t: Tensor) -> Tensor:
        rate = reverse_rates(process, dense(process, draw.log_probs, x_t), x_t, t)
        return jump(process, x_t, size * (rate + forward_rates(process, x_t, t)), own)

    return in_tiles(predictor, step, noise, x_t, t)


def _markov(predictor: Predictor) -> Markov:
    assert isinstance(predictor.process, Markov), "SamplingPlan.resolve rejects other processes"
    return predictor.process


def dense(process: Markov, log_probs: RowLogProbs, x_t: Tensor) -> Tensor:
    """p(x0^d|xt) `(B, D, S)`, float64 where the device has it."""
    log_p = log_probs(*all_rows(x_t)).view(*x_t.shape, process.symbols)
    return log_p.to(finest(log_p.device)).exp()


def reverse_rates(process: Markov, p0: Tensor, x_t: Tensor, t: Tensor, eps: float = RATE_EPS) -> Tensor:
    """R̂_t(x→y) = R_t(y→x) Σ_{x0} p(x0|xt) q_{t|0}(y|x0) / q_{t|0}(x|x0), `(B, D, S)`; 0 at y = x.

    `p0` (B, D, S), `x_t` (B, D), `t` (B,).
    """
    q = process.transition(torch.zeros_like(t), t).to(p0)
    column = x_t[..., None].expand(-1, -1, process.symbols)
    here = q.transpose(1, 2).gather(1, column)  # q_{t|0}(x | x0)
    back = process.rate(t).to(p0).transpose(1, 2).gather(1, column)  # R_t(y → x)
    rate = back * ((p0 / (here + eps)) @ q)
    return rate.scatter(2, x_t[..., None], 0.0).clamp_min(0)


def forward_rates(process: Markov, x_t: Tensor, t: Tensor) -> Tensor:
    """R_t(x→y) `(B, D, S)`; 0 at y = x."""
    rate = process.rate(t).gather(1, x_t[..., None].expand(-1, -1, process.symbols))
    return rate.scatter(2, x_t[..., None], 0.0)


def jump(process: Markov, x: Tensor, mean: Tensor, noise: Noise) -> Tensor:
    """x `(B, D)` after Poisson(`mean`) jumps to each symbol, mean `(B, D, S)`.

    Grey levels are ordered: jumps add up and stop at the ends. Other symbols have no sum, so a position that
    would jump more than once in one step stays where it is, as in tauLDR.
    """
    jumps = poisson(mean, noise, "jumps")
    symbol = torch.arange(process.symbols, device=x.device)
    if isinstance(process, Gaussian):
        shift = (jumps * (symbol - x[..., None])).sum(-1)
        return (x + shift).clamp(0, process.symbols - 1).long()
    once = jumps.sum(-1) == 1
    return torch.where(once, jumps.argmax(-1), x)


def poisson(mean: Tensor, noise: Noise, name: str) -> Tensor:
    """Poisson numbers `(B, ...)` with the given means, by inversion of the distribution function.

    A sum of Poisson numbers is one of the summed mean, so that a large mean, whose exp(-mean) would vanish, is drawn in
    parts.
    """
    parts = (mean.flatten(1).amax(1) / LARGEST_MEAN).ceil().clamp_min(1).view(-1, *[1] * (mean.dim() - 1))
    total = torch.zeros_like(mean)
    rounding = 8 * torch.finfo(mean.dtype).eps  # what is left of a uniform after all weights, at most
    for part in range(int(parts.max())):
        share = torch.where(part < parts, mean / parts, 0.0)
        left = noise.at(name, part).uniform("count", *mean.shape[1:]).to(mean.dtype)
        weight = torch.exp(-share)
        for count in itertools.count(1):
            left -= weight
            more = left > rounding
            total += more
            weight *= share / count
            if count % CHECKED_EVERY == 0 and not bool(more.any()):
                break
    return total
