"""Masked (absorbing) diffusion: each position is hidden with probability m_t (paper F.2.1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from di4c_cli.draw import JointDraw, RowLogProbs, SymbolDraw, finest
from di4c_cli.errors import UserError
from di4c_cli.process.base import Process

SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda t: t,
    "arccos": lambda t: torch.arccos((1 - t).clamp(0, 1)) * (2 / math.pi),
    "cosine": lambda t: torch.cos((1 - t) * (math.pi / 2)),
    "square": lambda t: 1 - (1 - t) ** 2,
    "root": lambda t: 1 - torch.sqrt((1 - t).clamp(0, 1)),
}
"""Masked share m_t; m_0 = 0 and m_1 = 1. In MaskGIT's own notation r = 1 - t."""


class Masked(Process):
    """x_t^d is the mask with probability m_t, else x_0^d (eq. mask-forward)."""

    def __init__(self, symbols: int, schedule: str = "linear") -> None:
        if schedule not in SCHEDULES:
            raise UserError(f"Unknown mask schedule '{schedule}'.", f"Choose one of {', '.join(SCHEDULES)}.")
        self.symbols = symbols
        self.mask: int = symbols
        self.schedule = schedule

    @property
    def config(self) -> dict[str, Any]:
        return {"type": "masked", "symbols": self.symbols, "schedule": self.schedule}

    def mask_share(self, t: Tensor) -> Tensor:
        """m_t, computed in float64 and clamped to [0, 1] against rounding."""
        return SCHEDULES[self.schedule](t.to(finest(t.device))).clamp(0, 1)

    def reveal_share(self, t: Tensor, s: Tensor) -> Tensor:
        """Probability (m_t - m_s) / m_t that a masked position is revealed between t and s; 1 where m_t = 0."""
        m_t, m_s = self.mask_share(t), self.mask_share(s)
        return torch.where(m_t > 0, (m_t - m_s) / m_t.clamp_min(1e-300 if m_t.dtype == torch.float64 else 1e-30), 1.0)

    def prior(self, uniform: Tensor) -> Tensor:
        return torch.full(uniform.shape, self.mask, dtype=torch.long, device=uniform.device)

    def corrupt(self, x0: Tensor, t: Tensor, uniform: Tensor) -> Tensor:
        return torch.where(uniform < self.mask_share(t)[:, None], self.mask, x0)

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        m_t, m_s = self.mask_share(t), self.mask_share(s)
        # eq. masking-t|s; at s = 1 everything is masked already and 0/0 means that it stays masked
        hide = torch.where(m_s < 1, (m_t - m_s) / (1 - m_s).clamp_min(1e-30), 1.0)
        matrix = torch.zeros(len(t), self.states, self.states, dtype=m_t.dtype, device=t.device)
        real = torch.arange(self.symbols, device=t.device)
        matrix[:, real, real] = (1 - hide)[:, None]
        matrix[:, real, self.mask] = hide[:, None]
        matrix[:, self.mask, self.mask] = 1
        return matrix

    def posterior(self, p0: Tensor, x_t: Tensor, t: Tensor, s: Tensor) -> Tensor:
        reveal = self.reveal_share(t, s).to(p0.dtype)[:, None, None]
        hidden = torch.cat([p0 * reveal, (1 - reveal).expand(*p0.shape[:2], 1)], dim=-1)
        kept = torch.nn.functional.one_hot(x_t, self.states).to(p0.dtype)
        return torch.where(self.unknown(x_t)[..., None], hidden, kept)

    def step(self, draw: SymbolDraw | RowLogProbs, x_t: Tensor, t: Tensor, s: Tensor, uniform: Tensor) -> Tensor:
        """Which positions are revealed does not depend on their symbols, so it is decided first."""
        draw = SymbolDraw.of(draw)
        if isinstance(draw, JointDraw):
            # one draw over all symbols and the mask: log q = (log p(x0) + log(m_t - m_s), log m_s), unnormalised
            b, d = self.unknown(x_t).nonzero(as_tuple=True)
            m_t, m_s = self.mask_share(t), self.mask_share(s)
            x_s = x_t.clone()
            if len(b):
                x_s[b, d] = draw.states(b, d, (m_t - m_s).log()[b], m_s.log()[b])
            return x_s
        batch, length = x_t.shape
        choose, value = uniform.reshape(batch, -1, length, 2).unbind(-1)  # (B, many, D)
        reveal = self.unknown(x_t)[:, None] & (choose < self.reveal_share(t, s)[:, None, None])
        x_s = x_t[:, None].expand(reveal.shape).clone()
        b, d = reveal.any(1).nonzero(as_tuple=True)
        if len(b):
            row = None
            if reveal.shape[1] > 1:
                number = torch.empty_like(x_t)
                number[b, d] = torch.arange(len(b), device=x_t.device)
                sample, _, position = reveal.nonzero(as_tuple=True)
                row = number[sample, position]
            x_s[reveal] = draw.symbols(b, d, value[reveal], row)
        return x_s.view(uniform.shape[:-1])
