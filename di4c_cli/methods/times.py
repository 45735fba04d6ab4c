"""Times t of a training batch."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.methods.config import TimeConfig
from di4c_cli.noise import Noise

GOLDEN_RATIO = (5**0.5 - 1) / 2


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


def even_time(times: TimeConfig, noise: Noise) -> Tensor:
    """t `(B,)` as in `sample_time`, but evenly spread over consecutive sample numbers, which steadies the loss.

    Multiples of the golden ratio modulo 1 are spread evenly; a sample's number alone decides its t.
    """
    start = Noise(noise.seed, [0], noise.stream, noise.device).uniform("t")
    return snapped(times, times.low + (1 - times.low) * ((noise.index.to(start) * GOLDEN_RATIO + start) % 1.0), noise)
