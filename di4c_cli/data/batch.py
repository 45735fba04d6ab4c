"""What travels from data to objective: numbered samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Samples `index` of the global stream; `x0` is None when there is no data (reference: teacher)."""

    index: list[int]
    x0: Tensor | None = None
    label: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        return Batch(
            self.index,
            None if self.x0 is None else self.x0.to(device),
            None if self.label is None else self.label.to(device),
        )


class Source(Protocol):
    """An endless, shuffled, numbered stream of samples; position is one integer."""

    length: int
    """D of one sample."""

    def read(self, start: int, count: int) -> Batch:
        """Samples start … start + count - 1."""
        ...
