"""Forward and backward passes of a network's head on rows of hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from di4c_cli.numerics import precise


def head_of(network: nn.Module, hidden: Tensor) -> LinearHead | OpaqueHead:
    """The cheapest backward pass through a network's head.

    A network whose logits are h·Wᵀ + b has a property `linear_head` -> (W, b): W `(V, H)` with the S
    real symbols first, b `(V,)` or one row per position.
    """
    if getattr(network, "linear_head", None) is not None:
        return LinearHead(network, hidden)
    return OpaqueHead(network, hidden)


FLOAT16_ROOM = 2.0**14
"""Largest sum that a scaled float16 product may reach; float16 ends at 65 504."""


def float16_scale(dz: Tensor, row_factor: Tensor | float = 1.0, column_factor: Tensor | float = 1.0) -> Tensor:
    """The largest power of two for dz `(k, S)` at which no product overflows float16.

    `row_factor` bounds the numbers that a row of dz is multiplied with, `column_factor` those of a column. Without
    the scale most of dz, which the loss scale of fp16 training reaches only afterwards, would be rounded to zero.
    """
    sums = [torch.linalg.vector_norm(dz, 1, dim=axis).amax() for axis in (1, 0)]
    largest = torch.maximum(sums[0] * row_factor, sums[1] * column_factor).clamp_min(2.0**-100)
    return torch.exp2(torch.floor(torch.log2(FLOAT16_ROOM / largest)))


class Head:
    """A head and the gradients of its weights, accumulated in float32 or wider."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.parameters: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.dtype = torch.float32
        """Of the logits as `logits` gives them."""

    def logits(self, h: Tensor, d: Tensor) -> Tensor:
        """Rows h `(k, H)` at positions d `(k,)` -> `(k, S)`, float32 or wider."""
        logits: Tensor = self.network.head(h, d)
        return logits.to(precise(logits.dtype))

    def start(self) -> None:
        """Gradients that `backward` adds to."""
        self.grads = [torch.zeros_like(p, dtype=precise(p.dtype)) for p in self.parameters]

    def finish(self) -> list[Tensor]:
        """The gradients, each in its weight's own dtype."""
        return [grad.to(p.dtype) for grad, p in zip(self.grads, self.parameters)]


class LinearHead(Head):
    """logits = h W[:S]ᵀ + b[:S], or b[d, :S]: the gradient is two matrix products, added in place."""

    def __init__(self, network: Any, hidden: Tensor) -> None:
        super().__init__(network)
        self.weight, self.bias = network.linear_head
        self.parameters = [self.weight, self.bias]
        kind = hidden.device.type
        half = torch.is_autocast_enabled(kind)
        self.work = torch.get_autocast_dtype(kind) if half else self.weight.dtype
        self.dtype = precise(self.work)
        self.written, self.symbols = False, 0

    def start(self) -> None:
        """The first `backward` writes the gradient of the large weight; that of a frozen weight is never made."""
        self.written = False
        trained = self.weight if self.weight.requires_grad else self.weight[:0]
        self.grads = [
            torch.empty_like(trained, dtype=precise(self.weight.dtype)),
            torch.zeros_like(self.bias, dtype=precise(self.bias.dtype)),
        ]

    def finish(self) -> list[Tensor]:
        self.grads[0][self.symbols if self.written else 0 :] = 0
        return super().finish()

    def backward(self, h: Tensor, d: Tensor, dz: Tensor) -> Tensor:
        """Rows h `(k, H)`, d `(k,)`, gradient at the logits dz `(k, S)` -> gradient at h `(k, H)`.

        Half-precision networks multiply in half precision, as torch's own backward does; float16 with a scale.
        """
        symbols = self.symbols = dz.shape[1]
        weight_grad, bias_grad = self.grads[0][:symbols], self.grads[1]
        if self.bias.dim() == 1:
            bias_grad[:symbols] += dz.sum(0)
        else:
            bias_grad[:, :symbols].index_add_(0, d, dz.to(bias_grad.dtype))
        with torch.autocast(dz.device.type, enabled=False):
            scale = None
            if self.work is torch.float16 and len(dz):
                scale = float16_scale(dz, self.weight[:symbols].abs().amax(), h.abs().amax())
                dz = dz * scale
            dz, h = dz.to(self.work), h.to(self.work)
            if not self.weight.requires_grad:
                pass
            elif scale is not None:
                grad = (dz.T @ h).to(weight_grad.dtype).div_(scale)
                weight_grad.copy_(grad) if not self.written else weight_grad.add_(grad)
            elif weight_grad.dtype != self.work:
                weight_grad.copy_(dz.T @ h) if not self.written else weight_grad.add_(dz.T @ h)
            elif self.written:
                weight_grad.addmm_(dz.T, h)
            else:
                torch.mm(dz.T, h, out=weight_grad)
            self.written = True
            out: Tensor = dz @ self.weight[:symbols].to(self.work)
        return out if scale is None else out.float().div_(scale)


class OpaqueHead(Head):
    """Any other head: torch differentiates it on the given rows, at the cost of one more forward pass."""

    def __init__(self, network: Any, hidden: Tensor) -> None:
        super().__init__(network)
        with torch.enable_grad():
            row = hidden[:1, :1].detach().flatten(0, 1)
            out = network.head(row, torch.zeros(len(row), dtype=torch.long, device=row.device))
        self.dtype = precise(out.dtype)
        self.parameters = leaves(out)

    def backward(self, h: Tensor, d: Tensor, dz: Tensor) -> Tensor:
        """As `LinearHead.backward`."""
        with torch.enable_grad():
            rows = (h.detach().float() if h.dtype is torch.float16 else h.detach()).requires_grad_()
            z = self.network.head(rows, d)
        scale = float16_scale(dz, 2.0**8, 2.0**8) if z.dtype is torch.float16 and len(dz) else None
        given = (dz if scale is None else dz * scale).to(z.dtype)
        first, *rest = torch.autograd.grad(z, [rows, *self.parameters], given, allow_unused=True)
        for total, grad in zip(self.grads, rest):
            if grad is not None:
                total += grad if scale is None else grad / scale
        if first is None:
            return torch.zeros_like(rows)
        return first if scale is None else first / scale


def leaves(out: Tensor) -> list[Tensor]:
    """The tensors with a gradient that `out` depends on, read off its graph."""
    found: dict[int, Tensor] = {}
    queue: list[Any] = [out.grad_fn]
    seen = set()
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        queue.extend(following for following, _ in node.next_functions)
    return list(found.values())
