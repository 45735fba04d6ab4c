"""Rotary positions, which all transformers of the package but MaskGIT's use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.numerics import precise


class Rotary(nn.Module):
    """Rotary tables; the buffer exists in published files and holds base^(-2i/h)."""

    inv_freq: Tensor

    def __init__(self, head_width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.head_width, self.base = head_width, float(base)
        self.register_buffer("inv_freq", self.frequencies())

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Angles per position, `(h/2,)`."""
        exponent = torch.arange(0, self.head_width, 2, device=device).float() / self.head_width
        return 1.0 / self.base**exponent

    def forward(self, length: int, extra: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine `(length + extra, 1, 1, h/2)`; the extra λ token at the end has angle 0."""
        frequency = self.inv_freq
        if precise(frequency.dtype) != frequency.dtype:  # a network cast to half precision blurs the buffer
            frequency = self.frequencies(frequency.device)
        position = torch.arange(length, device=frequency.device, dtype=frequency.dtype)
        angle = F.pad(torch.outer(position, frequency), (0, 0, 0, extra))[:, None, None]
        return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the two halves of every head's channels by the rotary angles."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
