"""What a codec offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from di4c_cli.errors import UserError


class Codec(ABC):
    """Ids `(n, D)` to text or images, and back where that makes sense."""

    kind: str

    @abstractmethod
    def decode(self, x: Tensor) -> Any:
        """A list of strings, or uint8 images `(n, H, W)` or `(n, H, W, 3)`."""

    def to(self, device: torch.device | str) -> Codec:
        """The same codec, its network on `device` if it has one."""
        return self

    def encode(self, text: str) -> list[int]:
        """Text to ids; only text models have this."""
        raise UserError("This model makes images and takes no text.", "Leave --prompt and --infill out.")


class Plain(Codec):
    """A model whose ids mean nothing to us: decoded as lists of numbers."""

    kind = "none"

    def decode(self, x: Tensor) -> list[str]:
        return [" ".join(map(str, row)) for row in x.tolist()]
