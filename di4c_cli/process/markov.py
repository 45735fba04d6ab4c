"""Processes without a mask: Markov chains with Bayes' rule, uniform diffusion, the discretized Gaussian of tauLDR."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from di4c_cli.draw import RowLogProbs, SymbolDraw, categorical, finest
from di4c_cli.errors import UserError
from di4c_cli.process.base import Process, all_rows

LOG_LINEAR_EPS = 1e-3
"""Of the log-linear noise: α_1 = ε."""
MAX_DENSE_SYMBOLS = 1024


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

    def step(self, draw: SymbolDraw | RowLogProbs, x_t: Tensor, t: Tensor, s: Tensor, uniform: Tensor) -> Tensor:
        draw = SymbolDraw.of(draw)
        b, d = all_rows(x_t)
        p0 = draw.log_probs(b, d).to(uniform.dtype).softmax(-1).view(*x_t.shape, self.symbols)
        log_p = self.posterior(p0, x_t, t, s).log()
        many = uniform.shape[1:-2]
        spread = log_p.view(len(x_t), *[1] * len(many), *log_p.shape[1:]).expand(*uniform.shape[:-1], -1)
        return categorical(spread, uniform[..., 1], draw.dtype)

    def evidence(self, x_t: Tensor, t: Tensor, x_s: Tensor, s: Tensor) -> RowLogProbs:
        """log q_{s|0}(x_s|c) - log q_{t|0}(x_t|c): Bayes' rule without the factor that is the same for every c."""
        zero = torch.zeros_like(t)
        log_s, log_t = self.transition(zero, s).log(), self.transition(zero, t).log()

        def rows(b: Tensor, d: Tensor) -> Tensor:
            into_s, into_t = log_s[b, :, x_s[b, d]], log_t[b, :, x_t[b, d]]
            return torch.where(into_t > -torch.inf, into_s - into_t, -torch.inf)

        return rows

    @staticmethod
    def _rows(matrix: Tensor, x: Tensor) -> Tensor:
        """matrix `(B, S, S)`, x `(B, D)` -> `(B, D, S)`: row x of each sample's matrix."""
        return matrix.gather(1, x[..., None].expand(-1, -1, matrix.shape[2]))


class Uniform(Markov):
    """Jumps to any symbol at equal rate (the example of paper C.3); all but `rate` and `transition` take O(S).

    q_{t|s} = a I + (1 - a)/S with a = α_t/α_s. `exponential`: α_t = e^{-horizon t}; with S = 2 this is eq. eg-start,
    and the prior is the limit, which the process approaches as the horizon grows. `linear`: α_t = 1 - (1 - ε) t, the
    log-linear noise of Duo and UDLM.
    """

    def __init__(self, symbols: int, horizon: float = 1.0, schedule: str = "exponential") -> None:
        if schedule not in ("exponential", "linear"):
            raise UserError(f"Unknown schedule '{schedule}'.", "Choose exponential or linear.")
        self.symbols, self.horizon, self.schedule = symbols, horizon, schedule

    @property
    def config(self) -> dict[str, Any]:
        return {"type": "uniform", "symbols": self.symbols, "horizon": self.horizon, "schedule": self.schedule}

    def alpha(self, t: Tensor) -> Tensor:
        """Probability `(B,)` that a position was not drawn anew."""
        t = t.to(finest(t.device))
        return torch.exp(-self.horizon * t) if self.schedule == "exponential" else 1 - (1 - LOG_LINEAR_EPS) * t

    def stationary(self) -> Tensor:
        return torch.full((self.symbols,), 1 / self.symbols, dtype=torch.float64)

    def rate(self, t: Tensor) -> Tensor:
        change = (1 - LOG_LINEAR_EPS) / self.alpha(t)
        speed = self.horizon * torch.ones_like(change) if self.schedule == "exponential" else change
        return speed[:, None, None] * (1 / self.symbols - self._eye(t))

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        stay = (self.alpha(t) / self.alpha(s))[:, None, None]
        return stay * self._eye(t) + (1 - stay) / self.symbols

    def _eye(self, t: Tensor) -> Tensor:
        if self.symbols > MAX_DENSE_SYMBOLS:
            problem = f"A matrix over {self.symbols} × {self.symbols} symbols is too large."
            raise UserError(problem, "Use the analytical sampler.")
        return torch.eye(self.symbols, dtype=finest(t.device), device=t.device)

    def prior(self, uniform: Tensor) -> Tensor:
        return (uniform * self.symbols).long().clamp_max(self.symbols - 1)

    def corrupt(self, x0: Tensor, t: Tensor, uniform: Tensor) -> Tensor:
        stay = self.alpha(t).to(uniform.dtype)[:, None]
        return torch.where(uniform < stay, x0, self.prior(((uniform - stay) / (1 - stay)).clamp_min(0)))

    def posterior(self, p0: Tensor, x_t: Tensor, t: Tensor, s: Tensor, eps: float = 0.0) -> Tensor:
        if eps:
            return super().posterior(p0, x_t, t, s, eps)
        a_s, a_t = (self.alpha(time)[:, None, None] for time in (s, t))
        at, none = x_t[..., None], torch.finfo(a_t.dtype).tiny
        jump_t, jump = (1 - a_t) / self.symbols, (1 - a_t / a_s) / self.symbols
        ratio = p0.to(a_t.dtype) / jump_t.clamp_min(none)  # p(x0) / q_{t|0}(x_t | x0)
        ratio.scatter_(2, at, p0.to(a_t.dtype).gather(2, at) / (a_t + jump_t))
        mixed = a_s * ratio + (1 - a_s) / self.symbols * ratio.sum(2, keepdim=True)
        weight = mixed * jump
        weight.scatter_(2, at, mixed.gather(2, at) * (a_t / a_s + jump))
        return weight / weight.sum(2, keepdim=True).clamp_min(none)


def same_times(t: Tensor) -> bool:
    """Whether all samples have one time; on a GPU only what needs no wait is seen, an expanded number."""
    return t.stride(0) == 0 or (t.device.type == "cpu" and bool((t == t[0]).all()))


def gaussian_rate(symbols: int, rate_sigma: float, q_sigma: float) -> tuple[Tensor, Tensor]:
    """Base rates `(S, S)` float64, rows the source state, in detailed balance with weights, whose logs `(S,)` come too.

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
    return rate - torch.diag(rate.sum(1)), log_weight


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
        self.base_rate, log_weight = gaussian_rate(symbols, rate_sigma, q_sigma)
        # detailed balance makes D^{1/2} R D^{-1/2} symmetric, whose eigen-decomposition is stable in float64
        root = torch.exp(0.5 * (log_weight - log_weight.max()))
        symmetric = root[:, None] * self.base_rate / root[None, :]
        values, vectors = torch.linalg.eigh((symmetric + symmetric.T) / 2)
        self._decomposition = values.clamp_max(0), vectors, root
        self._copies: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues, eigenvectors and square roots of the weights; copied to a device once."""
        if device not in self._copies:
            values, vectors, root = self._decomposition
            self._copies[device] = (values.to(device), vectors.to(device), root.to(device))
        return self._copies[device]

    @property
    def config(self) -> dict[str, Any]:
        names = ("symbols", "rate_sigma", "q_sigma", "time_exponential", "time_base")
        return {"type": "gaussian", **{name: getattr(self, name) for name in names}}

    def beta(self, t: Tensor) -> Tensor:
        """Speed of the chain at t: the derivative of `elapsed`."""
        return self.time_base * self.time_exponential ** t.to(finest(t.device)) * math.log(self.time_exponential)

    def elapsed(self, t: Tensor) -> Tensor:
        """b(t): how much of the base chain's own time has passed."""
        return self.time_base * (self.time_exponential ** t.to(finest(t.device)) - 1)

    def stationary(self) -> Tensor:
        """The published initial distribution exp(-((k+1) - S//2)^2 / (2 q_sigma^2)): stationary for even S."""
        k = torch.arange(self.symbols, dtype=torch.float64) + 1
        weight = torch.exp(-((k - self.symbols // 2) ** 2) / (2 * self.q_sigma**2))
        return weight / weight.sum()

    def rate(self, t: Tensor) -> Tensor:
        return self.beta(t)[:, None, None] * self.base_rate.to(finest(t.device)).to(t.device)

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """float64 throughout (on the CPU where the device has none); rounding noise below zero is removed."""
        home = "cpu" if t.device.type == "mps" else t.device
        if len(t) > 1 and same_times(t) and same_times(s):  # sampling
            return self.transition(s[:1], t[:1]).expand(len(t), -1, -1)
        span = (self.elapsed(t.to(home)) - self.elapsed(s.to(home)))[:, None]
        values, vectors, root = self._constants(torch.device(home))
        decay = torch.exp(values[None, :] * span)
        matrix = (vectors[None] * decay[:, None, :]) @ vectors.T
        matrix = (matrix / root[:, None] * root[None, :]).clamp_min(0)
        matrix = matrix / matrix.sum(-1, keepdim=True)
        return matrix.to(finest(t.device)).to(t.device)
