"""The discretized-Gaussian chain of tauLDR: nearby grey levels mix first, the prior is a discretized Gaussian."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from di4c_cli.draw import finest
from di4c_cli.process.markov import Markov


def gaussian_rate(symbols: int, rate_sigma: float, q_sigma: float) -> Tensor:
    """Base rate matrix `(S, S)` float64, rows the source state, in detailed balance with the Gaussian weights.

    Jumps away from the edge nearer to i go at exp(-(|i-j|-1)^2 / rate_sigma^2); the opposite direction follows from
    detailed balance with weights exp(-((k+1)^2 - S(k+1)) / (2 q_sigma^2)).
    """
    k = torch.arange(symbols, dtype=torch.float64)
    i, j = k[:, None], k[None, :]
    half = symbols // 2
    inward = ((i < half) & (j > i) & (j < symbols - i)) | ((i > half) & (j < i) & (j > symbols - 1 - i))
    jump = torch.exp(-(((i - j).abs() - 1) ** 2) / rate_sigma**2)
    forward = torch.where(inward, jump, 0.0)
    log_weight = -(((k + 1) ** 2) - symbols * (k + 1)) / (2 * q_sigma**2)
    balance = torch.exp(log_weight[None, :] - log_weight[:, None])  # w_j / w_i
    rate = torch.where(inward, forward, forward.T * balance)
    rate.fill_diagonal_(0)
    return rate - torch.diag(rate.sum(1))


class Gaussian(Markov):
    """q_{t|s} = exp(R (b(t) - b(s))), b(t) = time_base (time_exponential^t - 1) (tauLDR section E)."""

    def __init__(
        self,
        symbols: int,
        rate_sigma: float = 6.0,
        q_sigma: float = 512.0,
        time_exponential: float = 100.0,
        time_base: float = 3.0,
    ) -> None:
        self.symbols = symbols
        self.rate_sigma, self.q_sigma = rate_sigma, q_sigma
        self.time_exponential, self.time_base = time_exponential, time_base
        self.base_rate = gaussian_rate(symbols, rate_sigma, q_sigma)
        # detailed balance makes D^{1/2} R D^{-1/2} symmetric, whose eigen-decomposition is stable in float64
        k = torch.arange(symbols, dtype=torch.float64) + 1
        log_weight = -((k**2) - symbols * k) / (2 * q_sigma**2)
        self._root = torch.exp(0.5 * (log_weight - log_weight.max()))
        symmetric = self._root[:, None] * self.base_rate / self._root[None, :]
        self._values, self._vectors = torch.linalg.eigh((symmetric + symmetric.T) / 2)
        self._values = self._values.clamp_max(0)

    @property
    def config(self) -> dict[str, Any]:
        names = ("symbols", "rate_sigma", "q_sigma", "time_exponential", "time_base")
        return {"type": "gaussian", **{name: getattr(self, name) for name in names}}

    def beta(self, t: Tensor) -> Tensor:
        """Speed of the chain at t: the derivative of `elapsed`."""
        return (
            self.time_base * self.time_exponential ** t.to(finest(t.device)) * math.log(self.time_exponential)
        )

    def elapsed(self, t: Tensor) -> Tensor:
        """b(t): how much of the base chain's own time has passed."""
        return self.time_base * (self.time_exponential ** t.to(finest(t.device)) - 1)

    def stationary(self) -> Tensor:
        """The published initial law exp(-((k+1) - S//2)^2 / (2 q_sigma^2)): stationary for even S."""
        k = torch.arange(self.symbols, dtype=torch.float64) + 1
        weight = torch.exp(-((k - self.symbols // 2) ** 2) / (2 * self.q_sigma**2))
        return weight / weight.sum()

    def rate(self, t: Tensor) -> Tensor:
        return self.beta(t)[:, None, None] * self.base_rate.to(finest(t.device)).to(t.device)

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """float64 throughout (on the CPU where the device has none); rounding noise below zero is removed."""
        home = "cpu" if t.device.type == "mps" else t.device
        if len(t) > 1 and bool((t == t[0]).all()) and bool((s == s[0]).all()):
            # sampling: one time for the whole batch
            return self.transition(s[:1], t[:1]).expand(len(t), -1, -1)
        span = (self.elapsed(t.to(home)) - self.elapsed(s.to(home)))[:, None]
        values, vectors, root = (a.to(home) for a in (self._values, self._vectors, self._root))
        decay = torch.exp(values[None, :] * span)
        matrix = (vectors[None] * decay[:, None, :]) @ vectors.T
        matrix = (matrix / root[:, None] * root[None, :]).clamp_min(0)
        matrix = matrix / matrix.sum(-1, keepdim=True)
        return matrix.to(finest(t.device)).to(t.device)
