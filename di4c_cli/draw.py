"""Turning uniforms into symbols: exact categorical draws, and the 32-bit Gumbel trick of the published code."""

from __future__ import annotations

import torch
from torch import Tensor


def finest(device: torch.device) -> torch.dtype:
    """The finest floats a device has: MPS knows no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def categorical(log_p: Tensor, uniform: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Inverse-CDF draws: `log_p` (..., S) unnormalised, `uniform` (...) in [0, 1) -> (...) long.

    The running sum is taken in `dtype`. Symbols of probability zero are never drawn: the first index whose
    cumulative weight exceeds u * total has positive weight.
    """
    if log_p.device.type == "mps" and dtype is torch.float64:
        return categorical(log_p.cpu(), uniform.cpu(), dtype).to(log_p.device)
    # four passes over the symbols; subtracting a float64 maximum widens on the way
    wide = log_p if dtype is torch.float64 else log_p.to(dtype)
    weight = (wide - log_p.amax(-1, keepdim=True).to(dtype)).exp_().cumsum_(-1)
    threshold = uniform.to(dtype).unsqueeze(-1) * weight[..., -1:]
    index = torch.searchsorted(weight, threshold, right=True).squeeze(-1)
    # rounding may lift the threshold to the total: step back to the last symbol with positive weight
    last = torch.searchsorted(weight, weight[..., -1:].contiguous(), right=False).squeeze(-1)
    return torch.minimum(index, last)


def gumbel32(log_p: Tensor, uniform: Tensor) -> Tensor:
    """The published sampler's draw: arg-max of log p plus float32 Gumbel noise, `uniform` (..., S).

    32-bit uniforms truncate the Gumbel's upper tail, which lowers the effective temperature (arXiv 2409.02908).
    Kept to show and to reproduce that effect.
    """
    # torch.rand in float32 has multiples of 2^-24 below 1; rounding wider numbers would add 1 itself
    u = ((uniform * 2**24).floor() / 2**24).to(torch.float32)
    noise = -torch.log(-torch.log(u + 1e-10) + 1e-10)
    return (log_p.to(torch.float32) + noise).argmax(-1)
