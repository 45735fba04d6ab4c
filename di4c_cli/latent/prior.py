"""The prior of λ: standard (uniform or normal numbers), or learned.

A learned prior is a small network, part of the student, that maps normal noise to λ distributed like samples of the
encoder q(λ|x0, x_t). The aggregate of q over all x0 is not normal, and a student trained on samples of q performs
worse on normal λ. For a sample λ of q, its conditional mean m and normal ε, let x = (λ - m + ε)/√2 and

    v(x) = E[(λ - m - ε)/√2 | x],      λ' = m + ε + v(ε),

all given x_t, t and the label. v is the velocity of a flow from noise to λ - m along x = cos θ ε + sin θ (λ - m), and
is trained by flow matching at θ = 45°. One Euler step with that velocity replaces the flow. v is 0 where λ - m is
normal. To first order, for a deviation from the normal distribution in the moment of order n, the step is n·2^(-n/2)
times the flow: 0.71, 1, 1.06, 1, 0.88, 0.75 for n = 1 to 6. It is too short for the mean, so m is learned separately,
as a function of label and time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from di4c_cli.noise import Noise
from di4c_cli.numerics import precise, reset_linear, tiled, without_autocast

PRIOR_REACH = 2
"""Neighbours on each side in the receptive field of one layer, where every position has its own numbers."""
HIDDEN_LAYERS = 2
SYMBOL_WIDTH = 16
"""Embedding width of the symbols of x_t."""
TILE_SAMPLES, TILE_POSITIONS = 64, 1024
"""Samples per call, fewer for long sequences. The number is fixed so that λ does not depend on the batch."""


@dataclass(frozen=True)
class LatentPrior:
    """The standard prior: `dim` numbers at each of `places`, uniform on [0, 1) or standard normal."""

    dim: int = 1
    distribution: str = "uniform"
    places: int = 1

    @property
    def size(self) -> int:
        """Numbers in all."""
        return self.dim * self.places

    @property
    def is_one_uniform_number(self) -> bool:
        """Whether λ can be stratified."""
        return self.size == 1 and self.distribution == "uniform"

    def draw(self, noise: Noise, name: str, *count: int) -> Tensor:
        """`(B, *count)` for a scalar λ, `(B, *count, size)` for a vector."""
        shape = count if self.size == 1 else (*count, self.size)
        return noise.uniform(name, *shape) if self.distribution == "uniform" else noise.normal(name, *shape)

    def stratified(self, noise: Noise, name: str, count: int) -> Tensor:
        """`(B, count)` draws of one uniform number, one in each of `count` equal parts of [0, 1)."""
        if not self.is_one_uniform_number:
            raise ValueError("only λ of one uniform number can be stratified")
        draw = self.draw(noise, name, count)
        part, parts = noise.part
        return (draw + torch.arange(part * count, (part + 1) * count, device=draw.device)) / (count * parts)


def _convolve(layer: nn.Module, x: Tensor) -> Tensor:
    """A convolution over the places of x `(n, places, width)`; with kernel 1 a matrix product, which is faster."""
    assert isinstance(layer, nn.Conv1d)
    if layer.kernel_size == (1,):
        return nn.functional.linear(x, layer.weight[..., 0], layer.bias)
    out: Tensor = layer(x.mT).mT
    return out


class LearnedPrior(nn.Module):
    """v(x) and m given x_t, t and a label; λ has `dim` numbers at each of `places` (1 for one vector)."""

    def __init__(self, width: int, dim: int, places: int, states: int, length: int, labels: int | None = None) -> None:
        super().__init__()
        reach = PRIOR_REACH if places > 1 else 0
        self.dim, self.places, self.labels, self.length = dim, places, labels, length
        self.first = nn.Conv1d(dim, width, 2 * reach + 1, padding=reach)
        self.place = nn.Parameter(torch.empty(places, width))
        self.symbol = nn.Embedding(states, SYMBOL_WIDTH)
        self.known = nn.Conv1d(SYMBOL_WIDTH * length // places, width, 2 * reach + 1, padding=reach)
        self.time = nn.Linear(1, width)
        if labels:
            self.label = nn.Embedding(labels + 1, width)
            self.mean = nn.Embedding(labels + 1, 2 * places * dim)
        self.blocks = nn.ModuleList(nn.Conv1d(width, width, 2 * reach + 1, padding=reach) for _ in range(HIDDEN_LAYERS))
        self.last = nn.Conv1d(width, dim, 1)
        self.init_latent()

    def init_latent(self, generator: torch.Generator | None = None) -> None:
        """Redraw the weights; v and m start at 0, so λ starts as the noise."""
        if self.place.is_meta:
            return
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
        """v at centred x `(n, places·dim)` or `(n, count, places·dim)`, given x_t `(n, D)`, t `(n,)`, labels `(n,)`.

        A label of -1, or None for all samples, means no label.
        """
        with without_autocast(x.device):
            condition = self._condition(x_t, t, label)
            rows = x.flatten(0, -2)
            condition = condition.repeat_interleave(len(rows) // len(condition), 0)
            # the numbers of one position are neighbours in λ
            own = rows.to(condition.dtype).unflatten(1, (self.places, self.dim))
            h = nn.functional.gelu(_convolve(self.first, own) + condition)
            for block in self.blocks:
                h = h + nn.functional.gelu(_convolve(block, h) + condition)
            out = _convolve(self.last, h).reshape(x.shape)
            return out.to(precise(out.dtype))

    def _condition(self, x_t: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
        """The input of every layer beside x, `(n, places, width)`."""
        x_t = nn.functional.pad(x_t, (0, self.length - x_t.shape[1]), value=self.symbol.num_embeddings - 1)
        seen = self.symbol(x_t).flatten(1).unflatten(1, (self.places, -1))
        condition = self.time(t[:, None].to(seen.dtype))
        if self.labels:
            condition = condition + self.label(self._label_rows(t, label))
        out: Tensor = _convolve(self.known, seen) + self.place + condition[:, None]
        return out

    def conditional_mean(self, t: Tensor, label: Tensor | None) -> Tensor:
        """m `(n, places·dim)`, linear in t for every label; 0 for a model without labels."""
        if not self.labels:
            return torch.zeros(len(t), self.places * self.dim, device=t.device)
        at_zero, slope = self.mean(self._label_rows(t, label)).chunk(2, -1)
        out: Tensor = at_zero + slope * t[:, None].to(slope.dtype)
        return out.to(precise(out.dtype))

    def _label_rows(self, t: Tensor, label: Tensor | None) -> Tensor:
        """Labels `(n,)` as rows of a table whose last row stands for no label."""
        none = torch.full(t.shape, self.labels or 0, device=t.device)
        return none if label is None else torch.where(label < 0, none, label)

    @torch.no_grad()
    def transport(self, noise: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Map normal numbers `(n, places·dim)` to λ; the bits of a row do not depend on the other rows."""
        rows = max(1, min(TILE_SAMPLES, TILE_POSITIONS // self.places))
        moved = tiled(self, rows, noise, x_t, t, label) + self.conditional_mean(t, label)
        return noise + moved.to(noise.dtype)

    def flow_matching_loss(
        self, lam: Tensor, noise: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None = None
    ) -> Tensor:
        """Mean squared errors of v and m on samples of q and normal noise, `(n, count, places·dim)` -> `(n,)`.

        The value is 1 for normal λ and v = 0, plus 1 for m = 0 in a model with labels.
        """
        half, centred = math.sqrt(0.5), lam - self.conditional_mean(t, label)[:, None]
        target = centred.detach()
        error = self(half * (target + noise), x_t, t, label) - half * (target - noise)
        out: Tensor = error.square().mean((1, 2))
        return out + centred.square().mean((1, 2)) if self.labels else out
