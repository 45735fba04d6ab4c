"""What a denoiser may ask of a network; DiT, MaskGIT and U-Net all offer it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn


class Network(Protocol):
    """Hidden states and head, apart."""

    symbols: int
    length: int
    width: int
    config: dict[str, Any]

    def body(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        """x `(B, D)`, t `(B,)` -> hidden states `(B, D, H)`."""
        ...

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        """Hidden states `(n, H)` at positions d `(n,)` -> logits `(n, S)` over the real symbols."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """All weights."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on or off."""
        ...
