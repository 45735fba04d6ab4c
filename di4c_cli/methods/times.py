"""Times t of a training batch."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.methods.config import TimeConfig
from di4c_cli.noise import Noise


def snapped(times: TimeConfig, t: Tensor, noise: Noise) -> Tensor:
    """t on the grid, if there is one, and 1 with probability `one_share`.

    On a grid t becomes (1 + ⌊grid t⌋) / grid, so that 0 is never drawn and 1 is.
    """
    if times.grid is not None:
        t = ((1 + torch.floor(times.grid * t)) / times.grid).clamp_max(1)
    if times.one_share:
        t = torch.where(noise.uniform("t/one") < times.one_share, 1.0, t)
    return t


def sample_time(times: TimeConfig, noise: Noise) -> Tensor:
    """t `(B,)`, uniform in [low, 1] up to grid and `one_share`."""
    uniform = noise.uniform("t")
    low = torch.full_like(uniform, times.low)
    return snapped(times, low + (1 - low) * uniform, noise)
