"""Latents divided over processes: a batch smaller than their number keeps all of them busy.

The processes of a group have the same samples and equal parts of their λ. Whatever averages over λ asks the group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class LatentGroup:
    """The processes that share the latents of a sample; number `rank` of `size` has the rank-th part of them.

    Every process of a group must make the same calls. Gradients do not pass through them.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None
    """torch's process group."""

    def concatenate(self, x: Tensor, dim: int) -> Tensor:
        """The tensors of all processes in order along `dim`."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        distributed.all_gather(parts, x.contiguous(), group=self.handle)
        return torch.cat(parts, dim)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over the processes; overwrites x."""
        if self.size > 1:
            x = x.contiguous()
            distributed.all_reduce(x, group=self.handle)
            x.div_(self.size)
        return x

    def log_mean(self, x: Tensor) -> Tensor:
        """log of the mean of exp(x) over the processes."""
        if self.size == 1:
            return x
        return torch.logsumexp(self.concatenate(x[None], 0), 0) - math.log(self.size)

    def own(self, x: Tensor) -> Tensor:
        """This process's part of `(B, L, ...)`."""
        return x.chunk(self.size, 1)[self.rank]


ALONE = LatentGroup()
"""Of a process that has all latents of its samples."""
