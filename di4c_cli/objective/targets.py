"""What the student is pulled towards at one row: the teacher's marginals and the student's own law one step later."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction

BLOCK = 256
"""Symbols per block of the two-level inverse CDF."""


def wide(x: Tensor) -> Tensor:
    """Logits in float32 or wider: half precision must not decide a log-probability."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def inverse_cdf(weight: Tensor, uniform: Tensor) -> Tensor:
    """Symbols `(k,)` from unnormalised non-negative weights `(k, S)` and uniforms `(k,)` in [0, 1).

    Two levels: block sums find the block, a running sum in float64 the symbol inside it. Only the sums pass over all
    of `weight`, which a plain running sum would have to write out in float64. A symbol of weight 0 is never drawn.
    """
    rows, symbols = weight.shape
    if rows == 0:
        return torch.zeros(0, dtype=torch.long, device=weight.device)
    blocks = symbols // BLOCK
    body = weight[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).sum(-1, dtype=torch.float64)
    tail = weight[:, blocks * BLOCK :].sum(-1, keepdim=True, dtype=torch.float64)
    upto = torch.cat((body, tail), 1).cumsum(1)  # (k, blocks + 1)
    goal = uniform.to(upto.dtype)[:, None] * upto[:, -1:]
    block = _first_above(upto, goal)
    before = torch.where(block > 0, upto.gather(1, (block - 1).clamp_min(0)), 0.0)
    column = block * BLOCK + torch.arange(BLOCK, device=weight.device)
    inside = (
        torch.where(column < symbols, weight.gather(1, column.clamp_max(symbols - 1)), 0).double().cumsum(1)
    )
    return (block + 0).squeeze(1) * BLOCK + _first_above(inside, goal - before).squeeze(1)


def _first_above(cumulative: Tensor, goal: Tensor) -> Tensor:
    """First index `(k, 1)` whose running sum exceeds the goal; the last one with weight if rounding lifted the goal."""
    index = torch.searchsorted(cumulative, goal, right=True)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)
    return torch.minimum(index, last)


def averaged(
    prediction: Prediction, first: Tensor, count: int, d: Tensor, uniform: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Mean law of `count` consecutive predictions at rows, and one draw from each.

    Row r asks samples first[r] … first[r] + count - 1 of `prediction` at position d[r]: first, d `(n,)`,
    uniform `(n, count)` -> mean `(n, S)`, draws `(n, count)` or None. A position already known to a sample is certain
    there, and its head is not run.
    """
    n = len(d)
    sample = first[:, None] + torch.arange(count, device=d.device)
    x = prediction.x_t[sample, d[:, None]]
    row, latent = prediction.process.unknown(x).nonzero(as_tuple=True)
    z = wide(prediction.logits(sample[row, latent], d[row]))
    if len(row):
        z = z.sub_(z.amax(-1, keepdim=True)).exp_()
    total = z.sum(-1)
    # one small matrix product normalises, averages and leaves out the known ones at once
    pick = z.new_zeros(n, len(row))
    pick[row, torch.arange(len(row), device=d.device)] = 1 / (count * total)
    mean = pick @ z
    if len(row) < n * count:
        known = (~prediction.process.unknown(x)).nonzero(as_tuple=True)
        share = mean.new_full((len(known[0]),), 1 / count)
        mean.index_put_((known[0], x[known]), share, accumulate=True)
    if uniform is None:
        return mean, None
    drawn = x.clone()
    drawn[row, latent] = inverse_cdf(z, uniform[row, latent])
    return mean, drawn
