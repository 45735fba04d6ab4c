"""What every forward process offers: prior, corruption, transition matrices and the analytical reverse step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from di4c_cli.noise import Noise

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
    def prior(self, length: int, noise: Noise) -> Tensor:
        """x_1 `(B, D)`: where sampling starts."""

    @abstractmethod
    def corrupt(self, x0: Tensor, t: Tensor, noise: Noise) -> Tensor:
        """x_t ~ q_{t|0} `(B, D)` for per-sample times t `(B,)`."""

    @abstractmethod
    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """q_{t|s} as `(B, states, states)` matrices whose rows are the source state."""

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
        noise: Noise,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """One analytical step x_t -> x_s `(B, D)`; asks for `log_probs` only where the step needs them."""

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
