"""A loss that is a sum over rows, with its gradient at the logits in closed form: one pass in chunks of rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.draw import finest
from di4c_cli.methods.kernels.chunked import differentiable
from di4c_cli.methods.kernels.head import LinearHead, OpaqueHead, head_of
from di4c_cli.methods.kernels.inputs import LossOutput

RowTerm = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Logits `(n, S)` at rows (b, d) to the loss of each row `(n,)` and its gradient at the logits `(n, S)`."""
ARRAYS = 6
"""Tensors `(n, S)` that a term holds at once."""


class RowLoss:
    """Σ over the rows of weight[b] · term; `rows` (B, D) bool are unknown positions of the prediction."""

    def __init__(self, prediction: Prediction, rows: Tensor, weight: Tensor, term: RowTerm, chunk_bytes: int) -> None:
        self.prediction, self.weight, self.term = prediction, weight, term
        self.head: LinearHead | OpaqueHead = head_of(prediction.network, prediction.hidden)
        row = prediction.process.symbols * torch.finfo(self.head.dtype).bits // 8
        size = max(1, int(chunk_bytes // (row * ARRAYS)))
        b, d = (rows & (weight != 0)[:, None]).nonzero(as_tuple=True)
        self.chunks = [chunk for chunk in zip(b.split(size), d.split(size)) if len(chunk[0])]

    def run(self, gradient: bool, diagnostics: bool = False) -> LossOutput:
        """The loss of every sample and, with `gradient`, the gradient of the batch mean."""
        hidden, weight = self.prediction.hidden, self.weight.to(finest(self.weight.device))
        value = torch.zeros_like(weight)
        out = LossOutput(value, {}, {})
        if gradient:
            self.head.start()
            # the loss scale of fp16 training multiplies this gradient later, so float16 would round it to zero here
            dtype = torch.float32 if hidden.dtype is torch.float16 else hidden.dtype
            out.hidden_grad = torch.zeros_like(hidden, dtype=dtype)
        for b, d in self.chunks:
            h = hidden[b, d]
            each, dz = self.term(self.head.logits(h, d), b, d)
            value.index_add_(0, b, each.to(value.dtype))
            if out.hidden_grad is not None:
                dz.mul_((weight / len(weight))[b, None].to(dz))
                out.hidden_grad[b, d] = self.head.backward(h, d, dz).to(out.hidden_grad.dtype)
        out.terms["rows"], out.total = value, weight * value
        if gradient:
            out.head_grads = self.head.finish()
        return out


def sum_over_rows(
    prediction: Prediction, rows: Tensor, weight: Tensor, term: RowTerm, chunk_bytes: int
) -> tuple[Tensor, Tensor]:
    """Mean over the samples of weight · Σ term with a graph, and the unweighted sums `(B,)`."""
    loss = RowLoss(prediction, rows, weight, term, chunk_bytes)
    total, out = differentiable(loss, prediction.hidden)
    return total, out.terms["rows"]
