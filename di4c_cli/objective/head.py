"""From a gradient at the logits to gradients of hidden states and head weights, one chunk of rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def head_of(network: nn.Module, hidden: Tensor) -> LinearHead | OpaqueHead:
    """The cheapest way back through a network's head.

    A network whose logits are h·Wᵀ + b says so by a property `linear_head` -> (W, b), b `(V,)` or `(positions, V)`.
    """
    if getattr(network, "linear_head", None) is not None:
        return LinearHead(network)
    return OpaqueHead(network, hidden)


class LinearHead:
    """logits = h W[:S]ᵀ + b[:S], or b[d, :S]: the gradient is two matrix products, added in place."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.weight, self.bias = network.linear_head
        self.parameters: list[Tensor] = [self.weight, self.bias]
        self.grads: list[Tensor] = []

    def start(self) -> None:
        """Gradients that `pull` adds to."""
        self.grads = [torch.zeros_like(p) for p in self.parameters]

    def pull(self, h: Tensor, d: Tensor, dz: Tensor) -> Tensor:
        """Rows h `(k, H)`, d `(k,)`, gradient at the logits dz `(k, S)` -> gradient at h `(k, H)`.

        Half-precision networks multiply in half precision, as torch's own backward does, and add in the weights' dtype.
        """
        symbols = dz.shape[1]
        weight_grad, bias_grad = self.grads[0][:symbols], self.grads[1]
        with torch.autocast(dz.device.type, enabled=False):
            work = torch.promote_types(h.dtype, self.weight.dtype) if h.dtype == dz.dtype else h.dtype
            narrow, h = dz.to(work), h.to(work)
            if work == weight_grad.dtype:
                weight_grad.addmm_(narrow.T, h)
            else:
                weight_grad.add_(narrow.T @ h)
            if self.bias.dim() == 1:
                bias_grad[:symbols] += dz.sum(0)
            else:
                bias_grad[:, :symbols].index_add_(0, d, dz.to(bias_grad.dtype))
            return narrow @ self.weight[:symbols].to(work)


class OpaqueHead:
    """Any other head: torch differentiates it on the rows at hand, which costs one more forward."""

    def __init__(self, network: Any, hidden: Tensor) -> None:
        self.network = network
        self.parameters: list[Tensor] = self._used(hidden)
        self.grads: list[Tensor] = []

    def _used(self, hidden: Tensor) -> list[Tensor]:
        """The weights the head depends on, read off the graph of one row."""
        with torch.enable_grad():
            row = hidden[:1, :1].detach().flatten(0, 1)
            out = self.network.head(row, torch.zeros(len(row), dtype=torch.long, device=row.device))
        found: dict[int, Tensor] = {}
        queue, seen = [out.grad_fn], set()
        while queue:
            node = queue.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                found[id(node.variable)] = node.variable
            queue.extend(next_node for next_node, _ in node.next_functions)
        return list(found.values())

    def start(self) -> None:
        self.grads = [torch.zeros_like(p) for p in self.parameters]

    def pull(self, h: Tensor, d: Tensor, dz: Tensor) -> Tensor:
        """As `LinearHead.pull`."""
        with torch.enable_grad():
            rows = h.detach().requires_grad_()
            z = self.network.head(rows, d)
        inputs = [rows, *self.parameters]
        if not z.requires_grad:
            return torch.zeros_like(h)
        first, *rest = torch.autograd.grad(z, inputs, dz.to(z.dtype), allow_unused=True)
        for total, grad in zip(self.grads, rest):
            if grad is not None:
                total += grad
        return torch.zeros_like(h) if first is None else first
