"""Symbols at chosen positions: the head runs there, some rows at a time, and only symbols are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.draw import categorical, gumbel32
from di4c_cli.sampler.published import RowNoise
from di4c_cli.sampler.tiles import chunks

CACHED = 16
"""Rows drawn from at a time: their float64 weights stay in the cache between the passes."""


@dataclass(frozen=True)
class Draws:
    """How symbols are drawn from a prediction: in pieces of at most `rows` rows, of one sample if `alone`.

    The draw is the exact inverse CDF, or with `gumbel` an arg-max with 32-bit noise.
    """

    rows: int = 64
    alone: bool = False
    gumbel: RowNoise | None = None

    def values(self, prediction: Prediction, b: Tensor, d: Tensor, uniform: Tensor) -> Tensor:
        """x0 at rows `(b, d)` from uniforms `(n,)` -> `(n,)` long."""
        out = torch.empty_like(b)
        for piece in chunks(b, self.rows, self.alone):
            logits = prediction.logits(b[piece], d[piece])
            for start in range(0, len(logits), CACHED):
                own = slice(piece.start + start, min(piece.start + start + CACHED, piece.stop))
                out[own] = categorical(logits[start : start + CACHED], uniform[own])
        return out

    def confident(
        self, prediction: Prediction, b: Tensor, d: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x0 and log p(x0) at rows `(b, d)` from uniforms `(n, M)`: two `(n, M)`, M draws sharing a law."""
        value = torch.empty(uniform.shape, dtype=torch.long, device=b.device)
        log_p = torch.empty_like(uniform)
        for piece in chunks(b, self.rows, self.alone):
            law = prediction.log_probs(b[piece], d[piece])
            if self.gumbel is None:
                drawn = categorical(law[:, None].expand(-1, uniform.shape[1], -1), uniform[piece])
            else:
                noise = self.gumbel.uniform(b[piece], d[piece], law.shape[-1])
                drawn = gumbel32(law, noise)[:, None]
            value[piece], log_p[piece] = drawn, law.gather(1, drawn).to(log_p.dtype)
        return value, log_p

    def likeliest(self, prediction: Prediction, b: Tensor, d: Tensor) -> Tensor:
        """The most probable x0 at rows `(b, d)` -> `(n,)` long; the first of equals."""
        out = torch.empty_like(b)
        for piece in chunks(b, self.rows, self.alone):
            out[piece] = prediction.logits(b[piece], d[piece]).argmax(-1)
        return out
