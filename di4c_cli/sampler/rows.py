"""Symbols at chosen positions: the head runs there, some rows at a time, and only symbols are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.draw import categorical, gumbel32
from di4c_cli.noise import Noise


@dataclass(frozen=True)
class RowNoise:
    """Uniforms over all symbols for the 32-bit draw, one stream per (sample, position).

    They are drawn where a symbol is drawn and nowhere else: `(B, D, S)` of them would not fit.
    """

    noise: Noise
    length: int

    def uniform(self, b: Tensor, d: Tensor, symbols: int) -> Tensor:
        """`(n, S)` for rows `(b, d)`."""
        index = [self.noise.index[i] * self.length + j for i, j in zip(b.tolist(), d.tolist())]
        return Noise(self.noise.seed, index, self.noise.stream, self.noise.device).uniform("symbol", symbols)


def draw_rows(
    prediction: Prediction,
    b: Tensor,
    d: Tensor,
    uniform: Tensor,
    gumbel: RowNoise | None = None,
    rows: int = 16,
) -> Tensor:
    """x0 at rows `(b, d)` from uniforms `(n,)` -> `(n,)` long; with `gumbel` by the 32-bit arg-max."""
    out = torch.empty_like(b)
    for start in range(0, len(b), rows):
        part = slice(start, start + rows)
        logits = prediction.logits(b[part], d[part])
        if gumbel is None:
            out[part] = categorical(logits, uniform[part])
        else:
            log_p = torch.log_softmax(logits.float(), -1)
            out[part] = gumbel32(log_p, gumbel.uniform(b[part], d[part], logits.shape[-1]))
    return out


def draw_with_confidence(
    prediction: Prediction,
    b: Tensor,
    d: Tensor,
    uniform: Tensor,
    gumbel: RowNoise | None = None,
    rows: int = 64,
) -> tuple[Tensor, Tensor]:
    """x0 and log p(x0) at rows `(b, d)` from uniforms `(n, M)`: two `(n, M)`, M draws sharing a row's law."""
    value = torch.empty(uniform.shape, dtype=torch.long, device=b.device)
    log_p = torch.empty_like(uniform)
    for start in range(0, len(b), rows):
        part = slice(start, start + rows)
        law = prediction.log_probs(b[part], d[part])
        if gumbel is None:
            drawn = categorical(law[:, None].expand(-1, uniform.shape[1], -1), uniform[part])
        else:
            drawn = gumbel32(law, gumbel.uniform(b[part], d[part], law.shape[-1]))[:, None]
        value[part], log_p[part] = drawn, law.gather(1, drawn).to(log_p.dtype)
    return value, log_p


def most_likely(prediction: Prediction, b: Tensor, d: Tensor, rows: int = 64) -> Tensor:
    """The most probable x0 at rows `(b, d)` -> `(n,)` long; the first of equals."""
    out = torch.empty_like(b)
    for start in range(0, len(b), rows):
        part = slice(start, start + rows)
        out[part] = prediction.logits(b[part], d[part]).argmax(-1)
    return out
