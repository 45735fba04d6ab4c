"""Predictions whose bits do not depend on the batch: body and head run in padded tiles of a fixed size.

A matrix product may sum in another order when it has another number of rows, and one flipped bit can flip a
symbol. Every call of the network therefore has the same shape, whatever the batch; the rest is padded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.process import Process


def padded(x: Tensor, size: int) -> Tensor:
    """`x` (n, ...) with its last row repeated until it has `size` rows."""
    missing = size - len(x)
    return x if missing <= 0 else torch.cat((x, x[-1:].expand(missing, *x.shape[1:])))


def tiled(function: Callable[..., Tensor], size: int, *inputs: Tensor | None) -> Tensor:
    """`function` on `size` rows of every input at a time; 0 is all at once. None inputs stay None."""
    rows = next(len(x) for x in inputs if x is not None)
    if size == 0:
        return function(*inputs)
    parts = []
    for start in range(0, rows, size):
        part = [None if x is None else padded(x[start : start + size], size) for x in inputs]
        parts.append(function(*part)[: rows - start])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class TiledPrediction(Prediction):
    """A prediction whose head is asked for exactly `head_rows` rows at a time."""

    def __init__(
        self, network: nn.Module, process: Process, x_t: Tensor, hidden: Tensor, head_rows: int
    ) -> None:
        super().__init__(network, process, x_t, hidden)
        self.head_rows = head_rows

    def logits(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)` at rows `(b, d)`."""
        if len(b) == 0:
            return self.hidden.new_zeros(0, self.process.symbols)
        return tiled(super().logits, self.head_rows, b, d)


def predict(
    denoiser: Denoiser,
    x_t: Tensor,
    t: Tensor,
    label: Tensor | None = None,
    lam: Tensor | None = None,
    tile: int = 0,
    head_rows: int = 16,
) -> Prediction:
    """`denoiser.predict` in tiles of `tile` samples; 0 is the plain prediction of the whole batch."""
    if tile == 0:
        return denoiser.predict(x_t, t, label, lam)
    denoiser.network.eval()
    hidden = tiled(denoiser, tile, x_t, t, label, lam)
    return TiledPrediction(denoiser.network, denoiser.process, x_t, hidden, head_rows)
