"""What every forward process offers: prior, corruption and the analytical reverse step, as functions of uniforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

RowLogProbs = Callable[[Tensor, Tensor], Tensor]
"""`(b, d)` index vectors, each `(n,)`, to log p(x0^d | xt) of shape `(n, S)`."""


class Process(ABC):
    """A corruption process that acts on each dimension alone; `t = 0` is data, `t = 1` is noise."""

    symbols: int
    mask: int | None = None

    @property
    def states(self) -> int:
        """Symbols a corrupted position may hold: S, or S + 1 with the mask."""
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
        """q_{t|s} as `(B, states, states)` matrices whose rows are the source state; for small state spaces."""

    @abstractmethod
    def posterior(self, p0: Tensor, x_t: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """p_{s|t} `(B, D, states)` from p_{0|t} `(B, D, S)` (eq. dimiwise-analytical, deduce-analytical)."""

    @abstractmethod
    def step(
        self,
        log_probs: RowLogProbs,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        uniform: Tensor,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """One analytical step x_t `(B, D)` -> x_s `(B, *many, D)` from uniforms `(B, *many, D, 2)`.

        `many` draws share one prediction. `log_probs` is asked once, only for the rows that the step needs.
        """

    def unknown(self, x_t: Tensor) -> Tensor:
        """`(B, D)` bool: positions whose clean symbol x_t does not already give."""
        if self.mask is None:
            return torch.ones_like(x_t, dtype=torch.bool)
        return x_t == self.mask


def all_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every position of a `(B, D)` batch as row indices, sample by sample."""
    b, d = torch.meshgrid(
        torch.arange(x.shape[0], device=x.device), torch.arange(x.shape[1], device=x.device), indexing="ij"
    )
    return b.reshape(-1), d.reshape(-1)
