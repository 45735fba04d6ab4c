"""Processes without a mask: transition matrices and Bayes' rule for all of them, and uniform diffusion."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from di4c_cli.draw import RowLogProbs, SymbolDraw, categorical, finest
from di4c_cli.process.base import Process, all_rows


class Markov(Process):
    """A time-inhomogeneous chain exp(R (b(t) - b(s))) on S states with a stationary prior."""

    @abstractmethod
    def stationary(self) -> Tensor:
        """The prior over one position `(S,)`, float64."""

    @abstractmethod
    def rate(self, t: Tensor) -> Tensor:
        """Forward rates R_t(x -> y) as `(B, S, S)`, rows the source, rows sum to zero."""

    def prior(self, uniform: Tensor) -> Tensor:
        log_p = self.stationary().to(uniform).log().expand(*uniform.shape, -1)
        return categorical(log_p, uniform)

    def corrupt(self, x0: Tensor, t: Tensor, uniform: Tensor) -> Tensor:
        rows = self._rows(self.transition(torch.zeros_like(t), t), x0)
        return categorical(rows.log(), uniform)

    def posterior(self, p0: Tensor, x_t: Tensor, t: Tensor, s: Tensor, eps: float = 0.0) -> Tensor:
        """Bayes: q_{t|s}(x_t|x_s) sum_{x0} p(x0) q_{s|0}(x_s|x0) / q_{t|0}(x_t|x0), normalised over x_s.

        `eps` is added to all three matrices, as the published code does; 0 is exact.
        """
        zero = torch.zeros_like(t)
        q_s0, q_ts = self.transition(zero, s) + eps, self.transition(s, t) + eps
        # Chapman-Kolmogorov gives q_{t|0} from the same rounded matrices, so that every x0's conditional sums to one
        q_t0 = self.transition(zero, t) + eps if eps else q_s0 @ q_ts
        dtype = q_t0.dtype
        into = self._rows(q_t0.transpose(1, 2), x_t)  # (B, D, S): q_{t|0}(x_t | x0)
        # an x0 that cannot reach x_t has no posterior weight; without the guard 0/0 would make the sum NaN
        ratio = torch.where(into > 0, p0.to(dtype) / into.clamp_min(torch.finfo(dtype).tiny), 0.0)
        back = self._rows(q_ts.transpose(1, 2), x_t)  # (B, D, S): q_{t|s}(x_t | x_s)
        weight = back * (ratio @ q_s0)
        total = weight.sum(-1, keepdim=True)
        # all of p0 on symbols that cannot reach x_t: fall back on the chain itself
        return torch.where(
            total > 0, weight / total.clamp_min(torch.finfo(dtype).tiny), back / back.sum(-1, keepdim=True)
        )

    def step(
        self, draw: SymbolDraw | RowLogProbs, x_t: Tensor, t: Tensor, s: Tensor, uniform: Tensor
    ) -> Tensor:
        draw = SymbolDraw.of(draw)
        b, d = all_rows(x_t)
        p0 = draw.log_probs(b, d).to(uniform.dtype).softmax(-1).view(*x_t.shape, self.symbols)
        log_p = self.posterior(p0, x_t, t, s).log()
        many = uniform.shape[1:-2]
        spread = log_p.view(len(x_t), *[1] * len(many), *log_p.shape[1:]).expand(*uniform.shape[:-1], -1)
        return categorical(spread, uniform[..., 1], draw.dtype)

    @staticmethod
    def _rows(matrix: Tensor, x: Tensor) -> Tensor:
        """matrix `(B, S, S)`, x `(B, D)` -> `(B, D, S)`: row x of each sample's matrix."""
        return matrix.gather(1, x[..., None].expand(-1, -1, matrix.shape[2]))


class Uniform(Markov):
    """Jumps to any symbol at equal rate (the example of paper C.3).

    Rates are Q(y, x) = 1/S - δ_yx over a horizon: q_{t|s} = e^{-Δ} I + (1 - e^{-Δ})/S with Δ = horizon (t - s).
    With S = 2 this is eq. eg-start. The prior is the limit, which the process approaches as the horizon grows.
    """

    def __init__(self, symbols: int, horizon: float = 1.0) -> None:
        self.symbols = symbols
        self.horizon = horizon

    @property
    def config(self) -> dict[str, Any]:
        return {"type": "uniform", "symbols": self.symbols, "horizon": self.horizon}

    def stationary(self) -> Tensor:
        return torch.full((self.symbols,), 1 / self.symbols, dtype=torch.float64)

    def rate(self, t: Tensor) -> Tensor:
        eye = torch.eye(self.symbols, dtype=finest(t.device), device=t.device)
        return (self.horizon * (1 / self.symbols - eye)).expand(len(t), -1, -1)

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        stay = torch.exp(-self.horizon * (t - s).to(finest(t.device)))[:, None, None]
        eye = torch.eye(self.symbols, dtype=finest(t.device), device=t.device)
        return stay * eye + (1 - stay) / self.symbols
