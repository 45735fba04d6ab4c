"""The chunked loss as one node of torch's graph: the gradient is computed with the value, not recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from di4c_cli.denoiser import Prediction
from di4c_cli.objective.core import Core
from di4c_cli.objective.head import head_of
from di4c_cli.objective.problem import Outcome, Problem


class _Fused(torch.autograd.Function):
    """(hidden states of the student at t, head weights) -> mean loss of the batch."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        student: Prediction,
        gradient: bool,
        box: list[Outcome],
        hidden: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        out = Core(problem, student).run(gradient)
        ctx.grads = [out.hidden_grad, *out.head_grads]
        out.hidden_grad, out.head_grads = None, []
        box.append(out)
        return out.total.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        one = bool(grad == 1)
        grads = [g if g is None or one else g.mul_(grad.to(g.dtype)) for g in ctx.grads]
        ctx.grads = []
        return (None, None, None, None, *grads)


def evaluate(problem: Problem, student: Prediction) -> tuple[Tensor, Outcome]:
    """Mean loss with a graph behind it, and the values per sample."""
    head = head_of(student.network, student.hidden)
    box: list[Outcome] = []
    inputs = [student.hidden, *head.parameters]
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    total = _Fused.apply(problem, student, gradient, box, *inputs)  # type: ignore[no-untyped-call]
    return total, box[0]
