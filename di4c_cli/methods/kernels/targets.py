"""Targets of the student at a row: marginals of the teacher and of the student at u, and draws from the latter."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.draw import finest, first_above
from di4c_cli.numerics import precise

CPU_CACHE_BYTES = 2 << 20
"""Size of the blocks of elementwise work on a CPU, which fit in the nearest cache."""


def product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product in the dtype of its factors; autocast would round probabilities."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def groups(rows: int, width: int, like: Tensor) -> Iterator[slice]:
    """Slices of `rows` rows with `width` numbers each, small enough for the cache; all at once on a GPU."""
    size = max(1, CPU_CACHE_BYTES // (width * like.element_size())) if like.device.type == "cpu" else max(1, rows)
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))


def averaged(
    prediction: Prediction, first: Tensor, count: int, d: Tensor, uniform: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Mean distribution of `count` consecutive predictions at rows, and one draw from each.

    Row r reads samples first[r] … first[r] + count - 1 of `prediction` at position d[r]: first, d `(n,)`,
    uniform `(n, count)` -> mean `(n, S)`, draws `(n, count)` or None. Known positions have
    probability one, and the head does not run there.
    """
    sample = first[:, None] + torch.arange(count, device=d.device)
    x = prediction.x_t[sample, d[:, None]]
    unknown = prediction.process.unknown(x)
    row, latent = unknown.nonzero(as_tuple=True)
    z = prediction.logits(sample[row, latent], d[row])
    z = z.to(precise(z.dtype))
    mean = z.new_empty(len(d), z.shape[1])
    drawn = x.clone()
    pieces = list(groups(len(d), count * z.shape[1], z))
    ends = [0, len(row)] if len(pieces) < 2 else [0, *unknown.sum(1).cumsum(0)[[r.stop - 1 for r in pieces]].tolist()]
    for number, rows in enumerate(pieces):
        part = slice(ends[number], ends[number + 1])
        place = (row[part] - rows.start) * count + latent[part]
        mean[rows] = _mean(z[part], place, rows.stop - rows.start, count)
        if uniform is not None:
            drawn[row[part], latent[part]] = inverse_cdf(z[part], uniform[row[part], latent[part]])
    mean.scatter_add_(1, x.clamp_max(z.shape[1] - 1), (~unknown).to(mean.dtype) / count)
    return mean, None if uniform is None else drawn


def _mean(z: Tensor, place: Tensor, rows: int, count: int) -> Tensor:
    """Softmax of z `(k, S)`, averaged over `count` places a row: `(rows, S)`. Leaves weights in z.

    `place` (k,) numbers the places 0 … rows·count - 1 that z fills; the others, known positions, add nothing.
    """
    if not len(z):
        return z.new_zeros(rows, z.shape[1])
    share = 1 / (count * z.sub_(z.amax(-1, keepdim=True)).exp_().sum(-1))
    if len(z) < rows * count:
        full, part = z.new_zeros(rows * count, z.shape[1]), share
        full[place], share = z, share.new_zeros(rows * count)
        share[place] = part
        z = full
    # one matrix product a row normalises and averages at once
    return product(share.view(rows, 1, count), z.view(rows, count, -1)).squeeze(1)


def inverse_cdf(weight: Tensor, uniform: Tensor) -> Tensor:
    """Symbols `(k,)` from unnormalised non-negative weights `(k, S)` and uniforms `(k,)` in [0, 1).

    Two levels: block sums find the block, a running sum in float64 the symbol inside it. Only the sums pass
    over all of `weight`, which a plain running sum would have to write out in float64. A symbol of weight 0
    is never drawn.
    """
    rows, symbols = weight.shape
    if rows == 0:
        return torch.zeros(0, dtype=torch.long, device=weight.device)
    fine = finest(weight.device)
    block_size = 1 << (symbols.bit_length() // 2)  # about √S, which makes both levels cheap
    blocks = symbols // block_size
    body = weight[:, : blocks * block_size].unflatten(1, (blocks, block_size)).sum(-1)
    tail = weight[:, blocks * block_size :].sum(-1, keepdim=True)
    upto = torch.cat((body, tail), 1).to(fine).cumsum(1)  # (k, blocks + 1)
    goal = uniform.to(fine)[:, None] * upto[:, -1:]
    block = first_above(upto, goal)
    before = torch.where(block > 0, upto.gather(1, (block - 1).clamp_min(0)), 0.0)
    column = block * block_size + torch.arange(block_size, device=weight.device)
    inside = torch.where(column < symbols, weight.gather(1, column.clamp_max(symbols - 1)), 0)
    place = first_above(inside.to(fine).cumsum(1), goal - before)
    return (block * block_size + place).squeeze(1)
