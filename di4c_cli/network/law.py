"""The law of λ, learned: a small network that turns normal noise into λ like those an amortised posterior draws.

Over all samples, the λ of a posterior q are never quite normal, and a student that was taught with them stumbles over
others. With λ such a draw, m its mean and ε normal, let x = (λ - m + ε)/√2 and

    v(x) = E[(λ - m - ε)/√2 | x],      λ' = m + ε + v(ε),

all given x_t, t and the label. Were λ - m normal, v would be 0. Along x = cos θ ε + sin θ (λ - m) a flow of speed v_θ
leads from noise to λ - m; here it is one jump with the speed at 45°. To first order, where the law differs from the
normal one in a moment of order n, the jump is n·2^(-n/2) times the flow: 0.71, 1, 1.06, 1, 0.88, 0.75 for n = 1 to 6.
It falls short in the first, so m is learned by itself where much of it is known: from the label and the time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from di4c_cli.network.latent import precise, reset_linear, without_autocast
from di4c_cli.network.tiling import tiled

REACH = 2
"""Positions to each side that one layer looks at, where every position has numbers of its own."""
DEPTH = 2
SEEN = 16
"""Numbers per symbol of x_t."""
ROWS, POSITIONS = 64, 1024
"""Samples in one call, fewer where they have many positions: fixed, so that a λ does not depend on the batch."""


def _near(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer that looks at neighbours, on `(n, places, width)`; a plain product, which is faster, if at none."""
    assert isinstance(layer, nn.Conv1d)
    if layer.kernel_size == (1,):
        return nn.functional.linear(x, layer.weight[..., 0], layer.bias)
    out: Tensor = layer(x.mT).mT
    return out


class LatentLaw(nn.Module):
    """v(x) given x_t, t and a label; λ is `dim` numbers at each of `places`, 1 for a λ that is one vector."""

    def __init__(
        self, width: int, dim: int, places: int, states: int, length: int, labels: int | None = None
    ) -> None:
        super().__init__()
        reach = REACH if places > 1 else 0
        self.dim, self.places, self.labels, self.length = dim, places, labels, length
        self.first = nn.Conv1d(dim, width, 2 * reach + 1, padding=reach)
        self.place = nn.Parameter(torch.empty(places, width))
        self.symbol = nn.Embedding(states, SEEN)
        self.known = nn.Conv1d(SEEN * length // places, width, 2 * reach + 1, padding=reach)
        self.time = nn.Linear(1, width)
        if labels:
            self.label = nn.Embedding(labels + 1, width)
            self.mean = nn.Embedding(labels + 1, 2 * places * dim)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 2 * reach + 1, padding=reach) for _ in range(DEPTH)
        )
        self.last = nn.Conv1d(width, dim, 1)
        self.init_latent()

    def init_latent(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew; v starts at 0, λ as plain noise."""
        for layer in (self.first, self.known, self.time, *self.blocks):
            assert isinstance(layer, (nn.Linear, nn.Conv1d))
            reset_linear(layer, None, generator)
        reset_linear(self.last, 0.0, generator)
        tables = [(self.place, 0.1), (self.symbol.weight, 0.0)]
        if self.labels:
            tables += [(self.label.weight, 0.1), (self.mean.weight, 0.0)]
        with torch.no_grad():
            for table, std in tables:
                table.copy_(std * torch.randn(table.shape, generator=generator))

    def forward(self, x: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """v at centred x `(n, places·dim)` or `(n, count, places·dim)`, given x_t `(n, D)`, t `(n,)` and labels `(n,)`.

        A label of -1, or None for all, is none.
        """
        with without_autocast(x.device):
            still = self._given(x_t, t, label)
            rows = x.flatten(0, -2)
            still = still.repeat_interleave(len(rows) // len(still), 0)
            # numbers of one position stand together in λ
            own = rows.to(still.dtype).unflatten(1, (self.places, self.dim))
            h = nn.functional.gelu(_near(self.first, own) + still)
            for block in self.blocks:
                h = h + nn.functional.gelu(_near(block, h) + still)
            out = _near(self.last, h).reshape(x.shape)
            return out.to(precise(out.dtype))

    def _given(self, x_t: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
        """What every layer is told beside its input, `(n, places, width)`."""
        x_t = nn.functional.pad(x_t, (0, self.length - x_t.shape[1]), value=self.symbol.num_embeddings - 1)
        seen = self.symbol(x_t).flatten(1).unflatten(1, (self.places, -1))
        told = self.time(t[:, None].to(seen.dtype))
        if self.labels:
            told = told + self.label(self._row(t, label))
        return _near(self.known, seen) + self.place + told[:, None]

    def centre(self, t: Tensor, label: Tensor | None) -> Tensor:
        """m `(n, places·dim)`, linear in t for every label; 0 where there are no labels."""
        if not self.labels:
            return torch.zeros(len(t), self.places * self.dim, device=t.device)
        at_zero, slope = self.mean(self._row(t, label)).chunk(2, -1)
        out: Tensor = at_zero + slope * t[:, None].to(slope.dtype)
        return out.to(precise(out.dtype))

    def _row(self, t: Tensor, label: Tensor | None) -> Tensor:
        """Labels `(n,)` as rows of a table whose last one is for none."""
        none = torch.full(t.shape, self.labels or 0, device=t.device)
        return none if label is None else torch.where(label < 0, none, label)

    @torch.no_grad()
    def carry(self, noise: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Normal numbers `(n, places·dim)` to λ, the same shape; a row's bits do not depend on the others."""
        rows = max(1, min(ROWS, POSITIONS // self.places))
        moved = tiled(self, rows, noise, x_t, t, label) + self.centre(t, label)
        return noise + moved.to(noise.dtype)

    def miss(self, lam: Tensor, noise: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Mean squared errors of v and m on draws of q and normal noise, `(n, count, places·dim)` -> `(n,)`.

        1 for a normal λ and v = 0, and another 1 for m = 0 where there are labels.
        """
        half, centred = math.sqrt(0.5), lam - self.centre(t, label)[:, None]
        still = centred.detach()
        missed = self(half * (still + noise), x_t, t, label) - half * (still - noise)
        out = missed.square().mean((1, 2))
        return out + centred.square().mean((1, 2)) if self.labels else out
