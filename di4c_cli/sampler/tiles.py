"""Predictions whose bits do not depend on the batch: the shape of every network call is fixed beforehand.

A matrix product may sum in another order when it has another number of rows, and one flipped bit can flip a
symbol. The body therefore runs on tiles of a fixed number of samples. With a tile of one, each call of the head has
the rows of one sample, and its shape depends on that sample alone. With larger tiles (short sequences, small
models) the head runs on a fixed number of rows, whichever samples they come from. The last call is padded. Equal
bits need an equal number of CPU threads, because torch may split a sum differently for another number.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.latent.injection import ConditionedTransformer
from di4c_cli.numerics import padded, tiled
from di4c_cli.process import Process

MIN_MATRIX_ROWS = 16
"""Matrix products with fewer rows take another, slower path."""


def chunks(b: Tensor, rows: int, alone: bool) -> Iterator[slice]:
    """Cut rows with sample numbers b `(n,)`, in order, into chunks of at most `rows`.

    `alone`: no chunk spans two samples, so that a sample's chunks do not depend on its neighbours.
    """
    ends = [len(b)]
    if alone and len(b):
        ends = torch.unique_consecutive(b, return_counts=True)[1].cumsum(0).tolist()
    start = 0
    for end in ends:
        for low in range(start, end, rows):
            yield slice(low, min(low + rows, end))
        start = end


class TiledPrediction(Prediction):
    """A prediction whose head runs on at most `head_rows` rows at a time, of one sample if `alone`."""

    def __init__(
        self, network: nn.Module, process: Process, x_t: Tensor, hidden: Tensor, head_rows: int, alone: bool
    ) -> None:
        super().__init__(network, process, x_t, hidden)
        self.head_rows, self.alone = head_rows, alone

    def logits(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)` at rows `(b, d)`, which come sample by sample."""
        if len(b) == 0:
            return self.hidden.new_zeros(0, self.process.symbols)
        parts = []
        for piece in chunks(b, self.head_rows, self.alone):
            rows = piece.stop - piece.start
            size = max(rows, MIN_MATRIX_ROWS) if self.alone else self.head_rows
            parts.append(super().logits(padded(b[piece], size), padded(d[piece], size))[:rows])
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def predict(
    denoiser: Denoiser,
    x_t: Tensor,
    t: Tensor,
    label: Tensor | None = None,
    lam: Tensor | None = None,
    tile: int = 0,
    head_rows: int = 1024,
    wanted: Tensor | None = None,
) -> Prediction:
    """`denoiser.predict` in tiles of `tile` samples; 0 is the plain prediction of the whole batch.

    `wanted` (B, D) marks the only positions that are used later. With a tile of one the transformers skip the
    others, whose hidden states are then zeros.
    """
    denoiser.passes += len(x_t)
    if tile == 0:
        return denoiser.predict(x_t, t, label, lam)
    network = denoiser.network.eval()
    if wanted is not None and tile == 1 and isinstance(network, ConditionedTransformer):
        hidden = _hidden_at(network, x_t, t.to(denoiser.time_dtype), label, lam, wanted)
    else:
        hidden = tiled(denoiser, tile, x_t, t, label, lam)
    return TiledPrediction(network, denoiser.process, x_t, hidden, head_rows, tile == 1)


def _hidden_at(
    network: ConditionedTransformer, x_t: Tensor, t: Tensor, label: Tensor | None, lam: Tensor | None, wanted: Tensor
) -> Tensor:
    """Hidden states `(B, D, H)`, sample by sample, at the wanted positions (B, D) only."""
    hidden: Tensor | None = None
    for i in range(len(x_t)):
        d = wanted[i].nonzero().squeeze(1)
        if len(d) == 0:
            continue
        one = slice(i, i + 1)
        own_label, own_lam = (None if a is None else a[one] for a in (label, lam))
        (rows,) = network.body(x_t[one], t[one], own_label, own_lam, padded(d, MIN_MATRIX_ROWS))
        if hidden is None:
            hidden = rows.new_zeros(*x_t.shape, rows.shape[-1])
        hidden[i, d] = rows[: len(d)]
    return torch.zeros(*x_t.shape, 1, device=x_t.device) if hidden is None else hidden
