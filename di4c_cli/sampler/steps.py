"""Analytical steps p_{s|t} (eq. dimiwise-analytical, deduce-analytical): `process.step` with a model's prediction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from di4c_cli.draw import SymbolDraw
from di4c_cli.noise import Noise
from di4c_cli.sampler.draws import ChunkedDraw, HeadChunks, PublishedDraw
from di4c_cli.sampler.predictor import Predictor


def analytical_step(
    predictor: Predictor, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise, block: Tensor | None = None
) -> Tensor:
    """x_t `(B, D)` -> x_s ~ p_{s|t}(·|x_t; λ) with a fresh λ, for times t > s `(B,)`; draws from `noise`.

    Of a masked process only the positions of `block` (B, D) are revealed.
    """
    process, length = predictor.process, x_t.shape[1]
    if process.mask is not None:
        kind = PublishedDraw if predictor.plan.dtype == "float32" else ChunkedDraw
        choose = noise.uniform("reveal", length)
        if block is not None:
            choose = choose.masked_fill(~block, 1.0)  # never below a probability
        uniform = torch.stack((choose, noise.uniform("value", length)), -1)
        return process.step(kind(predictor, x_t, t, noise), x_t, t, s, uniform)

    def step(draw: SymbolDraw, own: Noise, x_t: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return process.step(draw, x_t, t, s, own.uniform("value", length, 2))

    return in_tiles(predictor, step, noise, x_t, t, s)


def in_tiles(
    predictor: Predictor, step: Callable[..., Tensor], noise: Noise, x_t: Tensor, t: Tensor, *times: Tensor
) -> Tensor:
    """One prediction of x_t `(B, D)`, then `step(draw, noise, x_t, t, *times)` tile by tile.

    A step that needs `(B, D, S)` probabilities has them for one tile at a time; the last tile is padded.
    """
    prediction = predictor(x_t, t, noise)
    dtype = torch.float32 if predictor.plan.dtype == "float32" else torch.float64
    batch, size = len(x_t), predictor.plan.tile or len(x_t)
    parts = []
    for start in range(0, batch, size):
        rows = torch.arange(start, start + size, device=x_t.device).clamp_max(batch - 1)

        def log_probs(b: Tensor, d: Tensor, rows: Tensor = rows) -> Tensor:
            return prediction.log_probs(rows[b], d)

        draw, own = SymbolDraw(log_probs, dtype), noise.of(rows)
        parts.append(step(draw, own, *(a[rows] for a in (x_t, t, *times)))[: batch - start])
    return torch.cat(parts)


def argmax_step(predictor: Predictor, x_t: Tensor, t: Tensor, noise: Noise, block: Tensor | None = None) -> Tensor:
    """x_0 = arg max p(·|x_t; λ) at every unknown position (of `block`): the published last step for pixels."""
    unknown = predictor.process.unknown(x_t)
    if block is not None:
        unknown = unknown & block
    b, d = unknown.nonzero(as_tuple=True)
    if len(b) == 0:
        return x_t
    x_0 = x_t.clone()
    prediction = predictor(x_t, t, noise, wanted=unknown)
    x_0[b, d] = HeadChunks.of(predictor).argmax(prediction, b, d)
    return x_0
