"""Temperature and nucleus (top-p): deliberate departures from the model's law, off unless asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.draw import finest


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most probable symbols whose mass reaches `top_p`, at least one; the others get -inf."""
    law, order = torch.softmax(logits.to(finest(logits.device)), -1).sort(
        dim=-1, descending=True, stable=True
    )
    before = law.cumsum(-1) - law
    drop = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, order, before >= top_p)
    return logits.masked_fill(drop, -torch.inf)


class ShapedPrediction(Prediction):
    """p^{1/T}, normalised, then cut to its nucleus."""

    def __init__(self, inner: Prediction, temperature: float = 1.0, top_p: float = 1.0) -> None:
        super().__init__(inner.network, inner.process, inner.x_t, inner.hidden)
        self.inner, self.temperature, self.top_p = inner, temperature, top_p

    def logits(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)` at rows `(b, d)`."""
        logits = self.inner.logits(b, d) / self.temperature
        return logits if self.top_p == 1 else nucleus(logits, self.top_p)
