"""Exponential moving average (EMA) of the student's weights, in float32 or wider."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from di4c_cli.network.lora import trained_state


class Ema:
    """mean <- keep * mean + (1 - keep) * value, with keep = min(decay, (1 + n) / (10 + n)) after n updates.

    The growing `keep` is that of the published trainings; it limits the weight of the initial values in a short run.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.mean = {name: _wide(value) for name, value in trained_state(module).items()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Average in the current weights; integer buffers are copied."""
        self.updates += 1
        keep = min(self.decay, (1 + self.updates) / (10 + self.updates))
        means, values = [], []
        for name, value in trained_state(module).items():
            mean = self.mean[name]
            if mean.is_floating_point():
                # parts of this process, because FSDP leaves buffers whole and torch does not mix the two
                means.append(local(mean))
                values.append(local(value).to(mean.dtype))
            else:
                mean.copy_(value)
        torch._foreach_lerp_(means, values, 1 - keep)

    def tensors(self) -> dict[str, Tensor]:
        """The averages on the CPU; shards are gathered, so every process must call this."""
        return {name: whole(value) for name, value in self.mean.items()}

    def load(self, tensors: dict[str, Tensor], updates: int) -> None:
        """Load saved averages onto the device and shards of the model."""
        self.updates = updates
        for name, mean in self.mean.items():
            mean.copy_(like(tensors[name], mean))


def _wide(value: Tensor) -> Tensor:
    copy = value.detach().clone()
    return copy.to(torch.promote_types(copy.dtype, torch.float32)) if copy.is_floating_point() else copy


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def whole(value: Any) -> Tensor:
    """A tensor, possibly sharded (FSDP2's DTensor), as a plain CPU tensor."""
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full.detach().cpu()


def like(value: Tensor, target: Any) -> Tensor:
    """A tensor with the device, precision and shards of `target`."""
    moved = value.to(target.device, target.dtype)
    if not hasattr(target, "full_tensor"):
        return moved
    # imported here: only FSDP needs it, and it takes a second
    from torch.distributed.tensor import distribute_tensor

    placed: Tensor = distribute_tensor(moved, target.device_mesh, target.placements)
    return placed
