"""Calls with a fixed number of rows, because the row count can change the order of sums in a matrix product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def padded(x: Tensor, size: int) -> Tensor:
    """`x` (n, ...) with its last row repeated until it has `size` rows."""
    missing = size - len(x)
    return x if missing <= 0 else torch.cat((x, x[-1:].expand(missing, *x.shape[1:])))


def tiled(function: Callable[..., Tensor], size: int, *inputs: Tensor | None) -> Tensor:
    """`function` on `size` rows of every input at a time, the last time padded. None inputs stay None."""
    rows = next(len(x) for x in inputs if x is not None)
    parts = []
    for start in range(0, rows, size):
        part = [None if x is None else padded(x[start : start + size], size) for x in inputs]
        parts.append(function(*part)[: rows - start])
    return parts[0] if len(parts) == 1 else torch.cat(parts)
