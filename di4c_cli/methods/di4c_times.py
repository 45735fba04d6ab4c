"""Times of a Di4C batch: t, u, Δt and δ of each sample, and the weight α_t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.methods.di4c_config import AlphaConfig, DeltaConfig, Di4CConfig, SplitTimeConfig, StepConfig
from di4c_cli.methods.times import snapped
from di4c_cli.noise import Noise


@dataclass(frozen=True)
class SampledTimes:
    """Times of one batch `(B,)`: t, u = max(t - Δt, 0), Δt and δ; in branch `both` δ is `(B, L)`."""

    t: Tensor
    u: Tensor
    step: Tensor
    delta: Tensor


def alpha_at(alpha: AlphaConfig, t: Tensor) -> Tensor:
    """α_t `(B,)`: scale times 0, 1, t or g(t) = 1 / (1 + exp(10 - 20 t)) (eq. sigmoid-alpha)."""
    shapes = {
        "zero": torch.zeros_like,
        "const": torch.ones_like,
        "linear": torch.clone,
        "sigmoid": lambda time: torch.sigmoid(20 * time - 10),
    }
    return alpha.scale * shapes[alpha.kind](t)


def draw_delta(delta: DeltaConfig, choose: Tensor, uniform: Tensor) -> Tensor:
    """δ from two uniforms of any shape: `low` with probability `at_low`, else uniform in [low, high]."""
    spread = delta.low + (delta.high - delta.low) * uniform
    return torch.where(choose < delta.at_low, delta.low, spread)


def draw_step(step: StepConfig, uniform: Tensor, progress: float) -> Tensor:
    """Δt, log-uniform in [low, high], or the point at share `progress` between them if it grows."""
    if step.grows:
        return torch.full_like(uniform, step.low + (step.high - step.low) * progress)
    if step.low == step.high:
        return torch.full_like(uniform, step.low)  # exp(log(x)) would miss a grid point by an ulp
    return torch.exp(math.log(step.low) + math.log(step.high / step.low) * uniform).clamp(step.low, step.high)


def draw_time(times: SplitTimeConfig, low: Tensor, delta: Tensor, choose: Tensor, uniform: Tensor) -> Tensor:
    """t `(B,)`: uniform in [low, 1], or δ r with probability `small_share`, else δ + (1-δ) r (F.3.2)."""
    if times.small_share is None:
        return low + (1 - low) * uniform
    return torch.where(choose < times.small_share, delta * uniform, delta + (1 - delta) * uniform)


def sample_times(config: Di4CConfig, noise: Noise, progress: float = 1.0) -> SampledTimes:
    """All times of a batch, one draw of each per sample (δ: one per latent in branch `both`).

    `progress` in [0, 1] is the completed share of the training. Branch `both` keeps u above the smallest δ: t is
    uniform in [δ.low + Δt, 1] (section F.1.3).
    """
    both = config.branch == "both"
    count = (config.latents,) if both else ()
    delta = draw_delta(config.delta, noise.uniform("delta/choose", *count), noise.uniform("delta", *count))
    step = draw_step(config.step, noise.uniform("step"), progress)
    low = torch.full_like(step, config.time.low)
    if both:
        low = torch.maximum(low, config.delta.low + step)
    small = delta.amin(1) if both else delta
    t = draw_time(config.time, low, small, noise.uniform("t/choose"), noise.uniform("t"))
    t = snapped(config.time, t, noise)
    return SampledTimes(t, (t - step).clamp_min(0), step, delta)
