"""Uniform diffusion: a position jumps to any symbol at equal rate (the example of paper C.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from di4c_cli.draw import finest
from di4c_cli.process.markov import Markov


class Uniform(Markov):
    """Rates Q(y, x) = 1/S - δ_yx over a horizon: q_{t|s} = e^{-Δ} I + (1 - e^{-Δ})/S with Δ = horizon (t - s).

    With S = 2 this is eq. eg-start. The prior is the limit law; the process reaches it as the horizon grows.
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
