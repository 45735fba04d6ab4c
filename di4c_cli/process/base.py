"""Interface of a forward process: prior, corruption and the analytical reverse step, as functions of uniforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from di4c_cli.draw import RowLogProbs, SymbolDraw


class Process(ABC):
    """A corruption process that is independent in each dimension; `t = 0` is data, `t = 1` is noise."""

    symbols: int
    mask: int | None = None

    @property
    def states(self) -> int:
        """Number of values of a corrupted position: S, or S + 1 with the mask."""
        return self.symbols + (self.mask is not None)

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Constructor arguments and `type`, as written to config.json."""

    @abstractmethod
    def prior(self, uniform: Tensor) -> Tensor:
        """x_1 `(B, D)`, where sampling starts, from `(B, D)` uniforms."""

    @abstractmethod
    def corrupt(self, x0: Tensor, t: Tensor, uniform: Tensor) -> Tensor:
        """x_t ~ q_{t|0} `(B, D)` for per-sample times t `(B,)` and uniforms `(B, D)`."""

    @abstractmethod
    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """q_{t|s} as matrices `(B, states, states)` whose rows are the source state; for small state spaces."""

    @abstractmethod
    def posterior(self, p0: Tensor, x_t: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """p_{s|t} `(B, D, states)` from p_{0|t} `(B, D, S)` (eq. dimiwise-analytical, deduce-analytical)."""

    @abstractmethod
    def step(self, draw: SymbolDraw | RowLogProbs, x_t: Tensor, t: Tensor, s: Tensor, uniform: Tensor) -> Tensor:
        """x_s ~ p_{s|t} `(B, *many, D)` from x_t `(B, D)`, times t > s `(B,)` and uniforms `(B, *many, D, 2)`.

        The reverse step of training and of every analytical sampler. `draw` is log p(x0^d|xt) as a function of
        rows, or another way of drawing symbols; it is asked once, only for the rows that the step needs. `many`
        draws share one prediction.
        """

    def evidence(self, x_t: Tensor, t: Tensor, x_s: Tensor, s: Tensor) -> RowLogProbs | None:
        """log q(x_s^d|x_t^d, x0^d = c) `(n, S)` as a function of rows, up to a constant of the row.

        None if an unknown position of x_s says nothing about its own x0, as the mask does.
        """
        return None

    def unknown(self, x_t: Tensor) -> Tensor:
        """`(B, D)` bool: positions at which x_t does not show the clean symbol."""
        if self.mask is None:
            return torch.ones_like(x_t, dtype=torch.bool)
        return x_t == self.mask


def all_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every position of a `(B, D)` batch as row indices, sample by sample."""
    batch, length = x.shape
    b, d = torch.arange(batch, device=x.device), torch.arange(length, device=x.device)
    return b.repeat_interleave(length), d.repeat(batch)
