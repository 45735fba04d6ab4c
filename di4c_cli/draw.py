"""Symbols from uniforms: exact categorical draws, the published 32-bit Gumbel arg-max, and how a step is given them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

RowLogProbs = Callable[[Tensor, Tensor], Tensor]
"""`(b, d)` index vectors, each `(n,)`, to log p(x0^d | xt) of shape `(n, S)`."""


def finest(device: torch.device) -> torch.dtype:
    """The widest float type of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def categorical(log_p: Tensor, uniform: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Inverse-CDF draws: `log_p` (..., S) unnormalised, `uniform` (...) in [0, 1) -> (...) long.

    The running sum is taken in `dtype`. Symbols of probability zero are never drawn: the first index whose
    cumulative weight exceeds u * total has positive weight.
    """
    if log_p.device.type == "mps" and dtype is torch.float64:
        return categorical(log_p.cpu(), uniform.cpu(), dtype).to(log_p.device)
    # four passes over the symbols; subtracting a float64 maximum also converts to float64
    wide = log_p if dtype is torch.float64 else log_p.to(dtype)
    weight = (wide - log_p.amax(-1, keepdim=True).to(dtype)).exp_().cumsum_(-1)
    threshold = uniform.to(dtype).unsqueeze(-1) * weight[..., -1:]
    return first_above(weight, threshold).squeeze(-1)


def first_above(cumulative: Tensor, goal: Tensor) -> Tensor:
    """First index `(..., 1)` whose running sum `(..., S)` exceeds the goal `(..., 1)`.

    Rounding may lift the goal to the whole sum: then it is the last index that adds to the sum.
    """
    index = torch.searchsorted(cumulative, goal, right=True)
    last = torch.searchsorted(cumulative, cumulative[..., -1:].contiguous(), right=False)
    return torch.minimum(index, last)


def gumbel32(log_p: Tensor, uniform: Tensor) -> Tensor:
    """The published sampler's draw: arg-max of log p plus float32 Gumbel noise, `uniform` (..., S).

    32-bit uniforms truncate the Gumbel's upper tail, which lowers the effective temperature (arXiv 2409.02908).
    This draw exists to measure and to reproduce that effect.
    """
    # float32 torch.rand gives multiples of 2^-24 below 1; rounding float64 numbers could also give 1 itself
    u = ((uniform * 2**24).floor() / 2**24).to(torch.float32)
    noise = -torch.log(-torch.log(u + 1e-10) + 1e-10)
    return (log_p.to(torch.float32) + noise).argmax(-1)


class SymbolDraw:
    """How `process.step` draws symbols: here exactly, from log-probabilities that are asked for once.

    The samplers have other ways: the head in chunks (`sampler.draws.ChunkedDraw`), the published 32-bit draw
    (`sampler.draws.PublishedDraw`).
    """

    def __init__(self, log_probs: RowLogProbs, dtype: torch.dtype = torch.float64) -> None:
        self.log_probs, self.dtype = log_probs, dtype

    @staticmethod
    def of(draw: SymbolDraw | RowLogProbs) -> SymbolDraw:
        """A draw as it is; exact draws from a plain function."""
        return draw if isinstance(draw, SymbolDraw) else SymbolDraw(draw)

    def symbols(self, b: Tensor, d: Tensor, uniform: Tensor, row: Tensor | None = None) -> Tensor:
        """x0 `(m,)` from uniforms `(m,)` at rows `(b, d)`, one draw each; with `row` (m,) draw i is from row[i]."""
        log_p = self.log_probs(b, d)
        return categorical(log_p if row is None else log_p[row], uniform, self.dtype)


class JointDraw(SymbolDraw, ABC):
    """A draw in which the mask is one more symbol, as in the published code."""

    @abstractmethod
    def states(self, b: Tensor, d: Tensor, reveal: Tensor, stay: Tensor) -> Tensor:
        """x_s `(n,)` at rows `(b, d)`: symbol v at log-weight log p(v) + `reveal` (n,), the mask at `stay` (n,)."""
