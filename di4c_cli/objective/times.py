"""When the loss is taken: δ, Δt, t and u of each sample, and the weight α_t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.noise import Noise
from di4c_cli.objective.settings import Alpha, Delta, Settings, Step, Times


@dataclass(frozen=True)
class Moments:
    """Times of one batch `(B,)`: t, u = max(t - Δt, 0), Δt and δ; in branch `both` δ is `(B, L)`."""

    t: Tensor
    u: Tensor
    step: Tensor
    delta: Tensor


def alpha_at(alpha: Alpha, t: Tensor) -> Tensor:
    """α_t `(B,)`: scale times 0, 1, t or g(t) = 1 / (1 + exp(10 - 20 t)) (eq. sigmoid-alpha)."""
    shapes = {
        "zero": torch.zeros_like,
        "const": torch.ones_like,
        "linear": torch.clone,
        "sigmoid": lambda time: torch.sigmoid(20 * time - 10),
    }
    return alpha.scale * shapes[alpha.kind](t)


def draw_delta(delta: Delta, choose: Tensor, place: Tensor) -> Tensor:
    """δ from two uniforms of any shape: `low` with probability `at_low`, else uniform in [low, high]."""
    spread = delta.low + (delta.high - delta.low) * place
    return torch.where(choose < delta.at_low, delta.low, spread)


def draw_step(step: Step, place: Tensor, progress: float) -> Tensor:
    """Δt, log-uniform in [low, high]; one that grows has gone `progress` of the way between them."""
    if step.grows:
        return torch.full_like(place, step.low + (step.high - step.low) * progress)
    if step.low == step.high:
        return torch.full_like(place, step.low)  # exp(log(x)) would miss a grid point by an ulp
    return torch.exp(math.log(step.low) + math.log(step.high / step.low) * place).clamp(step.low, step.high)


def draw_time(times: Times, low: Tensor, delta: Tensor, choose: Tensor, place: Tensor) -> Tensor:
    """t `(B,)`: uniform in [low, 1], or δ r with probability `small_share`, else δ + (1-δ) r (F.3.2).

    With a grid, t = (1 + ⌊grid t*⌋) / grid, so that 0 is never drawn and 1 is.
    """
    if times.small_share is None:
        t = low + (1 - low) * place
    else:
        t = torch.where(choose < times.small_share, delta * place, delta + (1 - delta) * place)
    if times.grid is not None:
        t = ((1 + torch.floor(times.grid * t)) / times.grid).clamp_max(1)
    return t


def draw_moments(settings: Settings, noise: Noise, progress: float = 1.0) -> Moments:
    """All times of a batch from named uniforms, one draw of each per sample (δ: per latent in branch `both`).

    `progress` in [0, 1] is how much of the training is done.
    Branch `both` keeps u above the smallest δ: t is uniform in [δ.low + Δt, 1] (section F.1.3).
    """
    both = settings.branch == "both"
    count = (settings.latents,) if both else ()
    delta = draw_delta(settings.delta, noise.uniform("delta/choose", *count), noise.uniform("delta", *count))
    step = draw_step(settings.step, noise.uniform("step"), progress)
    low = torch.full_like(step, settings.time.low)
    if both:
        low = torch.maximum(low, settings.delta.low + step)
    small = delta.amin(1) if both else delta
    t = draw_time(settings.time, low, small, noise.uniform("t/choose"), noise.uniform("t"))
    if settings.time.one_share:
        t = torch.where(noise.uniform("t/one") < settings.time.one_share, 1.0, t)
    return Moments(t, (t - step).clamp_min(0), step, delta)
