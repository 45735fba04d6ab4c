"""Numbers that depend on the step alone: times, tokens to reveal, Gumbel scale and guidance weight."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.draw import finest
from di4c_cli.process import Masked

GUMBEL = 4.5
"""Gumbel scale of the confidence sampler at t = 1 (section mg-sampling)."""
SMALLEST = 0.01
"""The last time before data on the pixel grid (section sampling)."""


def times(steps: int, kind: str = "uniform", leap: float | None = None) -> list[float]:
    """t_0 = 0 < t_1 < … < t_N = 1.

    `uniform`: t_i = i/N. `pixels`: t_i = 0.01 + 0.99 (i-1)/(N-1) for i ≥ 1; N = 1 is one jump from t = 1.
    With `leap` the first step of the walk goes from 1 to that time and the others share what is left.
    """
    if steps == 1:
        return [0.0, 1.0]
    if leap is not None:
        if kind == "uniform" or steps == 2:
            return [*(leap * i / (steps - 1) for i in range(steps)), 1.0]
        low = min(SMALLEST, leap / steps)
        return [0.0, *(low + (leap - low) * i / (steps - 2) for i in range(steps - 1)), 1.0]
    if kind == "uniform":
        return [i / steps for i in range(steps + 1)]
    later = [SMALLEST + (1 - SMALLEST) * (i - 1) / (steps - 1) for i in range(1, steps)]
    return [0.0, *later, 1.0]


def counts_between(process: Masked, free: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """n(t, s) = round(D m_t) - round(D m_s) for `free` maskable positions (B,), times (B,) -> (B,) long."""
    high = (free * process.mask_share(t)).round()
    return (high - (free * process.mask_share(s)).round()).long()


def reveal_counts(process: Masked, steps: int, free: Tensor) -> Tensor:
    """Tokens to reveal at each step, `(N, B)` in the order of sampling, for `free` (B,) masked positions.

    n(t_i, t_{i-1}) of section mg-sampling with the at-least-one rule: a zero becomes a one and the last step
    pays for it. When the ones use up what is left, the sample is finished early and the rest are zeros.
    """
    t = torch.arange(steps, -1, -1, dtype=finest(free.device), device=free.device) / steps
    masked = (free[None].to(t) * process.mask_share(t)[:, None]).round().long()  # (N + 1, B)
    wanted = (masked[:-1] - masked[1:]).clamp_min(1)
    done = torch.minimum(wanted.cumsum(0), free[None])
    done[-1] = free
    return torch.diff(done, dim=0, prepend=torch.zeros_like(done[:1]))


def gumbel_scale(t: Tensor, steps: int) -> Tensor:
    """c_gb(t) = 4.5 (t - 1/N) / (1 - 1/N), `(B,)`; 0 at N = 1 and for times below the last step's."""
    if steps == 1:
        return torch.zeros_like(t)
    return (GUMBEL * (t - 1 / steps) / (1 - 1 / steps)).clamp_min(0)


def guidance_weight(guidance: float, t: Tensor, steps: int) -> Tensor:
    """w = w_cfg (1 - t) N / (N - 1), `(B,)` (section cfg): 0 at t = 1, w_cfg at the end and when N = 1."""
    if steps == 1:
        return torch.full_like(t, guidance)
    return guidance * (1 - t) * steps / (steps - 1)
