"""The interface of codecs, and the two that need no file: plain ids and pixels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.limits import CHECK_CONFIG


class Codec(ABC):
    """Decodes ids `(n, D)` to text or images; text codecs also encode."""

    kind: str

    @abstractmethod
    def decode(self, x: Tensor) -> Any:
        """A list of strings, or uint8 images `(n, H, W)` or `(n, H, W, 3)`."""

    def check_fits(self, length: int, symbols: int) -> None:  # noqa: B027 (most codecs fit any model)
        """Reject a codec that cannot decode `length` ids below `symbols`."""

    def to(self, device: torch.device | str) -> Codec:
        """The same codec, its network on `device` if it has one."""
        return self

    def encode(self, text: str) -> list[int]:
        """Text to ids; only text models have this."""
        raise UserError("This model makes images and takes no text.", "Leave --prompt and --infill out.")

    def normalized(self, text: str) -> str:
        """The text as the codec reads it."""
        return text


class Plain(Codec):
    """Ids of unknown meaning, decoded as lists of numbers."""

    kind = "none"

    def decode(self, x: Tensor) -> list[str]:
        return [" ".join(map(str, row)) for row in x.tolist()]


class Pixels(Codec):
    """Images of `shape` (C, H, W) with `levels` S: level k is grey 255 k / (S - 1)."""

    kind = "pixels"

    def __init__(self, shape: tuple[int, ...], levels: int) -> None:
        self.shape, self.levels = shape, levels

    def check_fits(self, length: int, symbols: int) -> None:
        if math.prod(self.shape) != length:
            size = "x".join(map(str, self.shape))
            raise UserError(f"The codec's images of {size} do not have the model's {length} positions.", CHECK_CONFIG)

    def decode(self, x: Tensor) -> np.ndarray:
        """`(n, D)` -> uint8 `(n, H, W)` for one channel, `(n, H, W, C)` otherwise."""
        images = x.cpu().reshape(-1, *self.shape).permute(0, 2, 3, 1).double()
        out = (images * 255 / (self.levels - 1)).round().clamp(0, 255).byte().numpy()
        return out[..., 0] if self.shape[0] == 1 else out
